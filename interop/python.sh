# shellcheck shell=bash
# Sourced by tests of farblock with programs from the Python package index. Has two functions.

# shellcheck disable=SC2034 # scripts that source this file use the variables
here=$(cd "$(dirname "$0")" && pwd)
script=$(basename "$0")

die() {
    echo "$script: $*" >&2
    exit 2
}

# binary ARGUMENT...: sets farblock to the absolute path of the program, the only argument.
binary() {
    [ $# = 1 ] || die "usage: $script FARBLOCK"
    farblock=$(realpath -- "$1")
    [ -x "$farblock" ] || die "$1 is no program: cargo build --release -p farblock"
}

# environment PACKAGE VERSION COMMAND FOLDER: sets venv to a virtual environment in FOLDER with this
# package, which provides this command.
environment() {
    venv=$4/$2
    [ ! -x "$venv/bin/$3" ] || return 0
    rm -rf "$venv"
    mkdir -p "$4"
    python3 -m venv "$venv" || die "python3 -m venv failed: apt-get install python3-venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$1==$2" ||
        die "pip could not install $1 $2: is there a package index?"
}
