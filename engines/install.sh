#!/usr/bin/env bash
# install.sh RELEASE PREFIX: installs libfarblock from the folder RELEASE (target/release) below
# PREFIX: lib/libfarblock.so and .a, include/farblock.h, lib/pkgconfig/farblock.pc and
# farblock-static.pc. DESTDIR is prepended to PREFIX.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 2 ] || { echo "usage: install.sh RELEASE PREFIX" >&2; exit 2; }
release=$1 prefix=$2 root=${DESTDIR:-}$2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -n 1)
for file in libfarblock.so libfarblock.a; do
    [ -f "$release/$file" ] || { echo "install.sh: no $release/$file: cargo build --release -p farblock-capi" >&2; exit 2; }
done
# Below version 1.0, an incompatible change increases the second number of the version. So the
# library's name contains the first two numbers.
case $version in 0.*) abi=$(cut -d. -f1,2 <<<"$version") ;; *) abi=${version%%.*} ;; esac
install -D -m 755 "$release/libfarblock.so" "$root/lib/libfarblock.so.$version"
ln -sf "libfarblock.so.$version" "$root/lib/libfarblock.so.$abi"
ln -sf "libfarblock.so.$abi" "$root/lib/libfarblock.so"
install -D -m 644 "$release/libfarblock.a" "$root/lib/libfarblock.a"
install -D -m 644 "$here/include/farblock.h" "$root/include/farblock.h"
mkdir -p "$root/lib/pkgconfig"
sed -e "s#@PREFIX@#$prefix#" -e "s#@VERSION@#$version#" "$here/farblock.pc.in" >"$root/lib/pkgconfig/farblock.pc"
# pkg-config --static adds the archive's dependencies, but the linker still prefers the shared
# library.
sed -e "s#-L.*-lfarblock#\${libdir}/libfarblock.a -lpthread -ldl -lm#" -e '/^Libs.private/d' \
    "$root/lib/pkgconfig/farblock.pc" >"$root/lib/pkgconfig/farblock-static.pc"
