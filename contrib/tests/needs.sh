#!/usr/bin/env bash
# needs.sh: tests contrib/needs.sh on machines without Rust, with an older Rust, and without a C
# compiler or protoc. A folder of programs simulates each machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
for tool in sh sed head awk sort tail dirname printf; do
    ln -s "$(command -v "$tool" || echo "/usr/bin/$tool")" "$work/bin/$tool"
done
program() { printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"; chmod +x "$work/bin/$1"; }
# says EXPECTED [OPTION]: needs.sh must fail, and print one line that contains EXPECTED.
says() {
    local said needs=("$here/../needs.sh" cargo ${2:+"$2"})
    ! said=$(env -i PATH="$work/bin" HOME="$work" "$work/bin/sh" "${needs[@]}" 2>&1) ||
        { echo "needs.sh: reports nothing, instead of '$1'" >&2; exit 1; }
    [ "$(wc -l <<<"$said")" = 1 ] && grep -qF -- "$1" <<<"$said" ||
        { echo "needs.sh: '$1' is not in: $said" >&2; exit 1; }
}
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -n 1)
says "building needs Rust $wanted or later, and there is no cargo: install it with"
program cargo 'echo "cargo 1.63.0 (fd9c4297c 2022-07-01)"'
says "this is Rust 1.63.0"
program cargo 'echo "error: rustup could not choose a version of cargo to run" >&2; exit 1'
says "rustup default $wanted"
program cargo "echo 'cargo $wanted.0'"
says "there is no cc: install"
program apt-get :
says "'apt-get install gcc libc6-dev' as root"
program cc :
env -i PATH="$work/bin" HOME="$work" "$work/bin/sh" "$here/../needs.sh" cargo
says "'apt-get install protobuf-compiler libprotobuf-dev' as root" --whole
program protoc :
env -i PATH="$work/bin" HOME="$work" "$work/bin/sh" "$here/../needs.sh" cargo --whole
