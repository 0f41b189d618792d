#!/usr/bin/env bash
# install.sh RELEASE PREFIX: installs farblock from the folder RELEASE (target/release) below
# PREFIX: the program without symbols, systemd's units, manual pages, completions and libfarblock.
# install.sh --uninstall PREFIX: removes these files, and farblock's own folders if they are empty.
# DESTDIR is prepended to PREFIX.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() {
    echo "usage: install.sh RELEASE PREFIX, or install.sh --uninstall PREFIX" >&2
    exit 2
}

[ $# = 2 ] || usage
[[ $2 == /* ]] || {
    echo "install.sh: PREFIX must begin with /, but is $2" >&2
    exit 2
}
# The script copies PREFIX into units and pkg-config files, where other characters are syntax.
[[ $2 =~ ^[A-Za-z0-9/._+~-]+$ ]] || {
    echo "install.sh: PREFIX may contain only letters, digits and ._+~-/, but is $2" >&2
    exit 2
}
prefix=$2 root=${DESTDIR:-}$2

# Updates the dynamic loader's cache, in which programs find libfarblock. Does nothing for a staged
# installation (DESTDIR).
refresh_loader() {
    if [ -z "${DESTDIR:-}" ] && [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then
        ldconfig
    fi
}

library_is_found() {
    [ -n "${DESTDIR:-}" ] || ! command -v ldconfig >/dev/null ||
        ldconfig -p | grep -F " $prefix/lib/libfarblock.so" >/dev/null
}

uninstall() {
    local unit
    rm -f "$root/bin/farblock" "$root"/share/man/man1/farblock{,-*}.1 \
        "$root/share/bash-completion/completions/farblock" \
        "$root/share/zsh/site-functions/_farblock" \
        "$root/share/fish/vendor_completions.d/farblock.fish" \
        "$root"/lib/libfarblock.{a,so,so.*} "$root/include/farblock.h" \
        "$root"/lib/pkgconfig/farblock{,-static}.pc "$root/share/doc/farblock/farblock.toml"
    for unit in "$here"/systemd/*; do
        rm -f "$root/lib/systemd/system/${unit##*/}"
    done
    rmdir "$root/share/doc/farblock" 2>/dev/null || true
    refresh_loader
}

if [ "$1" = --uninstall ]; then
    uninstall
    exit
fi

program=$1/farblock
[ -x "$program" ] || {
    echo "install.sh: there is no $program: run cargo build --release -p farblock" >&2
    exit 2
}
"$here/../engines/install.sh" "$1" "$prefix"
install -D -s -m 755 "$program" "$root/bin/farblock"
for unit in "$here"/systemd/*; do
    to=$root/lib/systemd/system/${unit##*/}
    mkdir -p "${to%/*}"
    sed "s#/usr/bin/farblock#$prefix/bin/farblock#" "$unit" >"$to"
    chmod 644 "$to"
done
refresh_loader
library_is_found || echo "install.sh: programs do not find $prefix/lib/libfarblock.so yet: run" \
    "ldconfig as root, or set LD_LIBRARY_PATH=$prefix/lib" >&2
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$program" completions --manuals "$pages"
install -D -m 644 -t "$root/share/man/man1" "$pages"/*.1
"$program" completions bash >"$pages/farblock"
"$program" completions zsh >"$pages/_farblock"
"$program" completions fish >"$pages/farblock.fish"
install -D -m 644 -t "$root/share/bash-completion/completions" "$pages/farblock"
install -D -m 644 -t "$root/share/zsh/site-functions" "$pages/_farblock"
install -D -m 644 -t "$root/share/fish/vendor_completions.d" "$pages/farblock.fish"
install -D -m 644 -t "$root/share/doc/farblock" "$here/../crates/tools/cli/examples/farblock.toml"
