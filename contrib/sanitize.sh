#!/usr/bin/env bash
# sanitize.sh [CARGO]: runs tests under AddressSanitizer and ThreadSanitizer. First each sanitizer
# must find a deliberate fault, to prove that it works on this machine.
#
# ThreadSanitizer needs a standard library that was built for it; otherwise it reports a race for
# every Arc. ThreadSanitizer does not see system calls without libc, so rustix must use libc;
# otherwise it reports a race for memory that is unmapped and mapped again.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${1:-cargo}
target=$(rustc -vV | sed -n 's/^host: //p')
runtime=$(rustc --print sysroot)/lib/rustlib/$target/lib
for kind in asan:Address tsan:Thread; do
    if ! compgen -G "$runtime/librustc-*_rt.${kind%:*}.a" >/dev/null; then
        echo "sanitize.sh: this toolchain has no ${kind#*:}Sanitizer for $target: install a toolchain that has it, via rustup" >&2
        exit 1
    fi
done
# `make test` sets this to clippy-driver, which belongs to another compiler than the one below.
unset RUSTC_WORKSPACE_WRAPPER
# Only a nightly compiler, or one in nightly mode, accepts the sanitizer flags.
export RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-line-tables-only}
built=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)

self_check=$(mktemp -d)
trap 'rm -rf "$self_check"' EXIT

# finds WHAT PROGRAM: in one of 20 runs, the program must fail, and the sanitizer must report WHAT.
# On a busy machine, ThreadSanitizer misses about every second race.
finds() {
    for _ in {1..20}; do
        if ! "$2" 2>"$self_check/log" && grep -q "$1" "$self_check/log"; then
            return
        fi
    done
    echo "sanitize.sh: the sanitizer did not report $1 in the self-check" >&2
    exit 1
}

# --- Memory
export RUSTFLAGS=-Zsanitizer=address
cat >"$self_check/freed.rs" <<'RUST'
fn main() {
    let freed = Box::into_raw(Box::new(1_u8));
    drop(unsafe { Box::from_raw(freed) });
    std::process::exit(i32::from(std::hint::black_box(unsafe { freed.read_volatile() }) == 2));
}
RUST
rustc --target "$target" $RUSTFLAGS -o "$self_check/freed" "$self_check/freed.rs"
finds heap-use-after-free "$self_check/freed"
# Skip the slow tests (chaos, loom, conformance). Skip documentation tests, because rustdoc links
# without the sanitizer.
# Use one command, so that cargo builds shared crates once. Only the reactor crate has these tests.
CARGO_TARGET_DIR=$built/sanitize "$cargo" test --locked --target "$target" \
    -p farblock-mem -p farblock-block -p farblock-backends -p farblock-reactor --lib \
    --test tasks --test streams --test files

# --- Threads
toolchain=$(interop/windows/setup.sh --toolchain)
export PATH=$toolchain/bin:$PATH RUSTC=$toolchain/bin/rustc
export RUSTFLAGS="-Zsanitizer=thread --cfg rustix_use_libc" CARGO_TARGET_DIR=$built/sanitize-threads
threads=('-Zbuild-std=std,panic_unwind,test' --target "$target" --locked)
mkdir -p "$self_check/raced/src"
cat >"$self_check/raced/Cargo.toml" <<'TOML'
[package]
name = "raced"
edition = "2024"
[workspace]
# Use the same setting as farblock's profile: otherwise cargo would build the standard library
# twice.
[profile.dev.package."*"]
debug = false
TOML
cat >"$self_check/raced/src/main.rs" <<'RUST'
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
static mut SHARED: u8 = 0;
static STARTED: AtomicU8 = AtomicU8::new(0);
fn main() {
    let write = || {
        STARTED.fetch_add(1, Relaxed);
        while STARTED.load(Relaxed) < 2 {}
        // On a busy machine, the sanitizer may miss a single race.
        for _ in 0..100_000 {
            unsafe { (&raw mut SHARED).write_volatile(1) }
        }
    };
    std::thread::scope(|scope| (scope.spawn(write), scope.spawn(write)).1.join().unwrap());
}
RUST
(cd "$self_check/raced" && "$cargo" generate-lockfile --offline && "$cargo" build "${threads[@]}")
finds 'data race' "$CARGO_TARGET_DIR/$target/debug/raced"
"$cargo" test "${threads[@]}" -p farblock-mem -p farblock-reactor --lib --test tasks --test streams \
    --test files
echo "sanitize.sh: all passed"
