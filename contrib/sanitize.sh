#!/usr/bin/env bash
# Runs tests under AddressSanitizer: sanitize.sh [CARGO]. First it has a program read what it has
# freed, to see that the sanitizer does work here.
#
# ThreadSanitizer would need a standard library built for it; threads are loom's (`tests/wakes.rs` of
# the reactor).
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${1:-cargo}
target=$(rustc -vV | sed -n 's/^host: //p')
runtime=$(rustc --print sysroot)/lib/rustlib/$target/lib
if ! compgen -G "$runtime/librustc-*_rt.asan.a" >/dev/null; then
    echo "sanitize.sh: this toolchain has no AddressSanitizer for $target: install one by rustup" >&2
    exit 1
fi
# Sanitizers are flags that only a nightly compiler takes, or one that is told that it is one.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-1}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize

self_check=$(mktemp -d)
trap 'rm -rf "$self_check"' EXIT
cat >"$self_check/freed.rs" <<'RUST'
fn main() {
    let freed = Box::into_raw(Box::new(1_u8));
    drop(unsafe { Box::from_raw(freed) });
    std::process::exit(i32::from(std::hint::black_box(unsafe { freed.read_volatile() }) == 2));
}
RUST
rustc --target "$target" $RUSTFLAGS -o "$self_check/freed" "$self_check/freed.rs"
if "$self_check/freed" 2>"$self_check/log" || ! grep -q 'heap-use-after-free' "$self_check/log"; then
    echo "sanitize.sh: AddressSanitizer does not find what it has to" >&2
    exit 1
fi

# Not the long runs of chaos, loom and the conformance suite, nor documentation: rustdoc links without the sanitizer.
"$cargo" test --locked --target "$target" -p farblock-mem -p farblock-block -p farblock-backends --lib
"$cargo" test --locked --target "$target" -p farblock-reactor --lib \
    --test tasks --test streams --test files
echo "sanitize.sh: all passed"
