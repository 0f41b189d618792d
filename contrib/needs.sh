#!/bin/sh
# needs.sh CARGO [--compiler-later | --whole]: reports in one sentence which programs a build needs
# and this machine lacks, and how to install them. --compiler-later: if apt-get exists, ignores a
# missing C compiler, which a later step installs. --whole: also reports what only the complete
# program needs (protoc). Exit code: 0 nothing is missing, 1 something is.
set -u
cargo=${1:?usage: needs.sh CARGO [--compiler-later | --whole]}
here=$(cd "$(dirname "$0")" && pwd)
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -n 1)
rustup="curl --proto =https --tlsv1.2 -sSf https://sh.rustup.rs | sh"

lacks() {
    echo "farblock: $*" >&2
    exit 1
}

# A shell that was started before the installation of rustup does not search ~/.cargo/bin yet.
if ! command -v "$cargo" >/dev/null 2>&1; then
    [ "$cargo" != cargo ] || [ ! -x "${HOME:-}/.cargo/bin/cargo" ] ||
        lacks "this shell does not find cargo, which is installed: run '. \"\$HOME/.cargo/env\"'" \
            "and then this command again."
    lacks "building needs Rust $wanted or later, and there is no $cargo: install it with" \
        "'$rustup', open a new shell, and run this command again."
fi
said=$("$cargo" --version 2>&1) ||
    lacks "$cargo does not run ($(echo "$said" | tail -n 1)): install Rust $wanted with" \
        "'rustup toolchain install $wanted && rustup default $wanted'."
version=$(echo "$said" | awk '{ print $2 }')
oldest=$(printf '%s\n%s\n' "$wanted" "${version%%-*}" | sort -V | head -n 1)
if [ "$oldest" != "$wanted" ]; then
    if command -v rustup >/dev/null 2>&1; then
        how="rustup update stable && rustup default stable"
    else
        how=$rustup
    fi
    lacks "building needs Rust $wanted or later, and this is Rust $version: install it with" \
        "'$how', open a new shell, and run this command again."
fi
if [ "${2:-}" = --compiler-later ] && command -v apt-get >/dev/null 2>&1; then
    exit 0
fi
# how_to FALLBACK PROGRAM:COMMAND...: prints the command of the first package manager that this
# machine has, or FALLBACK.
how_to() {
    fallback=$1
    shift
    for one in "$@"; do
        command -v "${one%%:*}" >/dev/null 2>&1 || continue
        echo "'${one#*:}' as root"
        return
    done
    echo "$fallback"
}
command -v cc >/dev/null 2>&1 || {
    how=$(how_to "the package gcc of your distribution" "apt-get:apt-get install gcc libc6-dev" \
        "dnf:dnf install gcc" "zypper:zypper install gcc" "apk:apk add build-base" \
        "pacman:pacman -S gcc")
    lacks "building needs a C compiler to link with, and there is no cc: install $how, and run" \
        "this command again."
}

# With protoc, the build generates the etcd client from .proto files.
[ "${2:-}" != --whole ] || command -v "${PROTOC:-protoc}" >/dev/null 2>&1 || {
    how=$(how_to "the Protocol Buffers compiler of your distribution" \
        "apt-get:apt-get install protobuf-compiler libprotobuf-dev" \
        "dnf:dnf install protobuf-compiler protobuf-devel" "zypper:zypper install protobuf-devel" \
        "apk:apk add protoc protobuf-dev" "pacman:pacman -S protobuf")
    lacks "building farblock needs protoc, and this machine has none: install $how, and run this" \
        "command again."
}
