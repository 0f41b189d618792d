#!/bin/bash
# Extracts OpenSSL's libraries for Windows from a Python wheel. Use these libraries only for tests
# under Wine, because they get no updates.
#
#   openssl.sh FOLDER     puts libcrypto-3-x64.dll and libssl-3-x64.dll into the folder
set -Eeuo pipefail
wheel=mysql-connector-python==9.1.0
sum=30a8f0ba84f8adf15a4877e80b3f97f786ce35616d918b9310578a2bd22952d5
names=(libcrypto-3-x64.dll libssl-3-x64.dll)

die() {
    echo "openssl.sh: $*" >&2
    exit 2
}
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
[ $# = 1 ] || die "name a folder: openssl.sh target/windows-tools/openssl"
folder=$1

if [ "$(cat "$folder/sum" 2>/dev/null)" = "$sum" ]; then exit 0; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || die "python3 -m venv failed: apt-get install python3-venv"
echo "$wheel --hash=sha256:$sum" >"$work/wheel.txt"
"$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary=:all: --platform win_amd64 --python-version 3.12 --dest "$work" \
    --requirement "$work/wheel.txt" || die "pip could not get $wheel: is there a package index?"
python3 -m zipfile --extract "$work"/*.whl "$work/wheel"
mkdir -p "$folder"
for name in "${names[@]}"; do cp "$work/wheel/mysql/vendor/$name" "$folder/"; done
echo "$sum" >"$folder/sum"
