#!/bin/bash
# Prepares this machine to build farblock for Windows and to run it: mingw-w64, Wine, and Rust's
# standard library for x86_64-pc-windows-gnu.
#
#   setup.sh            half a minute the first time, then well under a second
#   . "$(setup.sh --env)"   afterwards: sets the environment that cargo and Wine need
#   setup.sh --toolchain   only copies the toolchain with the library's source, prints the path
#
# The script stores all files in FARBLOCK_WINDOWS_DIR (default: windows-tools in cargo's target
# directory). Remove this folder to start over. Root is needed only if this machine lacks a package.
#
# If `rustup target add x86_64-pc-windows-gnu` has installed the standard library, the script uses
# it. Otherwise a copy of the toolchain builds the library with -Zbuild-std, from Debian's rust-src
# of exactly the compiler's version, so that rustup's toolchain stays unchanged.
# FARBLOCK_WINDOWS_STD=source always builds the library.
set -Eeuo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=x86_64-pc-windows-gnu
linker=x86_64-w64-mingw32-gcc-posix
cd "$here/../.."
dir=${FARBLOCK_WINDOWS_DIR:-${CARGO_TARGET_DIR:-target}/windows-tools}
# Debian releases to search for rust-src; the backports have versions close to Rust's latest.
suites=(trixie-backports forky sid trixie)

die() {
    echo "setup.sh: $*" >&2
    exit 2
}
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
say() { echo "setup.sh: $*" >&2; }

# command or file on this machine : Debian package that has it
needs=("$linker:gcc-mingw-w64-x86-64-posix" wine:wine /usr/lib/wine/wine64:wine64)

missing_packages() {
    local need
    for need in "${needs[@]}"; do
        command -v "${need%%:*}" >/dev/null || echo "${need#*:}"
    done
}

install_packages() {
    local packages
    mapfile -t packages < <(missing_packages)
    [ ${#packages[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        die "install mingw-w64's gcc (as $linker) and 64-bit Wine with your package manager," \
            "then start this script again."
    [ "$(id -u)" = 0 ] ||
        die "packages are missing: run 'apt-get install --no-install-recommends ${packages[*]}'" \
            "as root, then start this script again."
    say "installing ${packages[*]}"
    local log=$dir/install.log
    install_once() {
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq -y \
            install --no-install-recommends "${packages[@]}" >"$log" 2>&1 </dev/null
    }
    # Old lists may name versions that the mirror no longer has, and new machines have no lists.
    install_once || { apt-get update -qq || true; install_once; } || {
        tail -n 20 "$log" >&2
        die "apt-get could not install ${packages[*]}; its output is above."
    }
}

# Whether the toolchain has the target's standard library.
has_library() {
    [ "${FARBLOCK_WINDOWS_STD:-}" != source ] &&
        compgen -G "$(rustc --print target-libdir --target "$target")/libstd-*.rlib" >/dev/null
}

# Prints apt's Debian mirror.
debian_mirror() {
    local mirror
    # shellcheck disable=SC2016 # apt expands the name
    mirror=$(apt-get indextargets --format '$(REPO_URI)' \
        'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
    [ -n "$mirror" ] || die "apt knows no Debian mirror: add one to its sources, then run" \
        "'apt-get update' and this script again."
    echo "$mirror"
}

# Downloads rust-src of version $1 into $2, through a private apt state: the machine's own apt
# configuration does not change.
download_source() {
    local version=$1 into=$2 mirror apt=$dir/apt suite found
    command -v apt-get >/dev/null ||
        die "run 'rustup target add $target', then this script again: there is no apt here to" \
            "get the standard library's source from."
    mirror=$(debian_mirror)
    rm -rf "$apt" "$into"
    mkdir -p "$apt"/{lists,cache/archives}/partial "$into"
    for suite in "${suites[@]}"; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" \
            >"$apt/sources.list"
        local options=(
            -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
            -o Dir::Etc::preferencesparts=/dev/null -o Dir::State::lists="$apt/lists"
            -o Dir::Cache="$apt/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)"
            -o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::Check-Valid-Until=false
        )
        say "looking for rust-src $version in Debian's $suite"
        apt-get "${options[@]}" -qq update >"$apt/log" 2>&1 </dev/null || continue
        found=$(apt-cache "${options[@]}" madison rust-src | cut -d '|' -f 2 | tr -d ' ' |
            grep -E "^${version//./\\.}\+" | head -n 1) || continue
        (cd "$into" && apt-get "${options[@]}" -qq download "rust-src=$found") && return 0
    done
    die "Debian has no rust-src of this compiler's version, $version: run 'rustup target add" \
        "$target', or use a compiler of the version that Debian has, then start this script again."
}

# Makes a copy of the toolchain, with the standard library's source.
copy_toolchain() {
    local version sysroot source=$dir/source toolchain=$dir/toolchain
    version=$(rustc --version | cut -d ' ' -f 2)
    sysroot=$(rustc --print sysroot)
    # A copy without its own cargo would run rustup's cargo, which lacks the source.
    [ "$(cat "$toolchain/copied" 2>/dev/null)" = "$version" ] && [ -x "$toolchain/bin/cargo" ] &&
        [ -e "$toolchain/lib/rustlib/src/rust/library" ] && return 0
    download_source "$version" "$source"
    dpkg-deb --fsys-tarfile "$source"/rust-src_*.deb |
        tar -x -C "$source" "./usr/src/rustc-$version/library"
    rm -rf "$toolchain"
    cp -al "$sysroot" "$toolchain" 2>/dev/null || cp -a "$sysroot" "$toolchain"
    # Omit an installed standard library of the target, which would conflict with the built one.
    rm -rf "$toolchain/lib/rustlib/src" "$toolchain/lib/rustlib/$target"
    mkdir -p "$toolchain/lib/rustlib/src"
    ln -sn "../../../../source/usr/src/rustc-$version" "$toolchain/lib/rustlib/src/rust"
    rm -rf "$dir/apt"
    echo "$version" >"$toolchain/copied"
}

# Prints the linker. If the toolchain has Rust's lld, this is a script that lets gcc call lld instead
# of GNU ld: a test program links in half the processor time. gcc's -fuse-ld would search only
# /usr/bin.
choose_linker() {
    local lld
    lld=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-lld
    [ -x "$lld" ] || { echo "$linker" && return; }
    cat >"$dir/lld" <<SH
#!/bin/sh
[ "\${1##*/}" = collect2 ] || exec "\$@"
shift
exec '$lld' -flavor gnu "\$@"
SH
    printf '#!/bin/sh\nexec %s -wrapper "%s" "$@"\n' "$linker" "$dir/lld" >"$dir/gcc"
    chmod +x "$dir/lld" "$dir/gcc"
    echo "$dir/gcc"
}

# The environment in which `cargo $FARBLOCK_WINDOWS_CARGO` builds and runs programs for Windows.
write_environment() {
    local chosen
    chosen=$(choose_linker)
    {
        if ! has_library; then
            # Stable compilers accept -Zbuild-std only with this setting.
            echo "export RUSTC_BOOTSTRAP=1 RUSTC=$dir/toolchain/bin/rustc"
            echo "export PATH=$dir/toolchain/bin:\$PATH"
            echo "FARBLOCK_WINDOWS_CARGO='-Zbuild-std=std,panic_unwind,test --target=$target'"
        else
            echo "FARBLOCK_WINDOWS_CARGO=--target=$target"
        fi
        echo "export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=$chosen"
        echo "export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=wine"
        echo "export WINEPREFIX=$dir/wine WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml="
    } >"$dir/env.sh.new"
    # Replace the file atomically, since another process may be reading it.
    mv "$dir/env.sh.new" "$dir/env.sh"
}

# Wine's files. Wine before 9 lacks a library that gives Rust random numbers, so this builds a
# substitute.
boot_wine() {
    local system=$dir/wine/drive_c/windows/system32
    [ ! -e "$system/bcryptprimitives.dll" ] || return 0
    say "booting Wine for the first time"
    rm -rf "$dir/wine"
    (. "$dir/env.sh" && wineboot --init && wineserver --wait) >"$dir/wineboot.log" 2>&1 </dev/null ||
        die "Wine does not start; its output is in $dir/wineboot.log."
    [ ! -e "$system/bcryptprimitives.dll" ] || return 0
    cat >"$dir/bcryptprimitives.c" <<'C'
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE p, SIZE_T n) { return SystemFunction036(p, (ULONG)n); }
C
    "$linker" -shared -O2 -o "$dir/bcryptprimitives.dll" "$dir/bcryptprimitives.c" -ladvapi32
    cp "$dir/bcryptprimitives.dll" "$system/"
}

main() {
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd)
    exec 9>"$dir/lock"
    flock 9 # a second setup.sh waits here until the first setup.sh exits
    if [ "${1:-}" = --toolchain ]; then
        copy_toolchain
        echo "$dir/toolchain"
        return 0
    fi
    install_packages
    has_library || copy_toolchain
    write_environment
    boot_wine 9>&-
    if [ "${1:-}" = --env ]; then echo "$dir/env.sh"; else say "ready: $dir"; fi
}

main "$@"
