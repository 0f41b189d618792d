#!/usr/bin/env bash
# lints.sh: checks that the compiler wrapper of `make test` (clippy-driver) refuses code that clippy
# refuses.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
compiles() {
    echo "$1" | "$RUSTC_WORKSPACE_WRAPPER" rustc --edition 2024 --crate-type lib --out-dir "$out" - \
        2>"$out/said"
}
compiles 'pub fn one() -> u8 { 1 }' || { cat "$out/said" >&2; exit 1; }
if compiles 'pub fn one() -> u8 { return 1; }' || ! grep -q needless_return "$out/said"; then
    echo "lints.sh: $RUSTC_WORKSPACE_WRAPPER accepts a needless return:" >&2
    cat "$out/said" >&2
    exit 1
fi
echo "lints.sh: the compiler refuses a crate that breaks a clippy lint"
