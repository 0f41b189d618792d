#!/usr/bin/env bash
# build.sh FOLDER: builds FOLDER/libfarblock-fio.so, farblock's engine for fio, with the static
# library FOLDER/libfarblock.a (cargo build --release -p farblock-capi). No package contains fio's
# headers, so the script uses the source of the installed fio. The source is FIO_SOURCE (a
# configured tree), or else Debian's source package, which the script keeps in ~/.cache/farblock-fio
# (or FARBLOCK_FIO_DIR).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

die() {
    echo "build.sh: $*" >&2
    exit 2
}

[ $# = 1 ] || die "usage: build.sh FOLDER"
[ -f "$1/libfarblock.a" ] || die "there is no $1/libfarblock.a: cargo build --release -p farblock-capi"
out=$(realpath -- "$1")
command -v fio >/dev/null || die "fio is not installed"

# get VERSION FOLDER: fetches and configures the source of Debian's fio.
get() {
    local work
    work=$(mktemp -d "$cache/get.XXXXXX")
    # Use separate package lists: the machine's own lists may lack source packages, and must not
    # change.
    mkdir -p "$work/lists/partial"
    cat >"$work/fio.sources" <<EOF
Types: deb-src
URIs: http://deb.debian.org/debian
Suites: $(. /etc/os-release && echo "${VERSION_CODENAME:?}")
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
    local apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/fio.sources" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root)
    (
        cd "$work" && "${apt[@]}" update && "${apt[@]}" source --download-only "fio=$1" >/dev/null &&
            mkdir fio && tar xf fio_*.orig.tar.?z --strip-components=1 -C fio &&
            cd fio && ./configure >configure.log
    ) || die "cannot fetch and configure the source of fio $1; the files are in $work"
    rm -rf "$2"
    mv "$work/fio" "$2"
    rm -rf "$work"
}

source=${FIO_SOURCE:-}
if [ -z "$source" ]; then
    version=$(dpkg-query --show --showformat='${Version}' fio) || die "fio is not installed from a package: set FIO_SOURCE"
    cache=${FARBLOCK_FIO_DIR:-${HOME:?set FARBLOCK_FIO_DIR}/.cache/farblock-fio}
    source=$cache/fio-$version
    mkdir -p "$cache"
    [ -f "$source/config-host.h" ] || get "$version" "$source"
fi
[ -f "$source/config-host.h" ] || die "$source has no config-host.h: run ./configure there"

# Export only the engine's entry point, so that no other symbol can collide with fio's symbols.
echo '{ global: ioengine; local: *; };' >"$out/libfarblock-fio.map"
gcc -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -std=gnu11 -D_GNU_SOURCE -fPIC -shared \
    -include "$source/config-host.h" -isystem "$source" -I "$here/../include" \
    -Wl,--version-script="$out/libfarblock-fio.map" -Wl,-z,defs,-z,nodelete -Wl,--unresolved-symbols=ignore-in-object-files \
    -o "$out/libfarblock-fio.so" "$here/farblock.c" "$out/libfarblock.a" -lpthread -ldl -lm
echo "$out/libfarblock-fio.so"
