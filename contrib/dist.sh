#!/bin/bash
# Builds the release archives: farblock-linux-x86_64.tar.gz, farblock-windows-x86_64.zip and their
# SHA256SUMS. With the same compilers, the same commit gives the same bytes on every machine.
#
#   dist.sh                   into dist in cargo's target directory, or into DIST_DIR
#   dist.sh --pack FOLDER     only packs the programs FOLDER/farblock and FOLDER/farblock.exe
#   dist.sh --notices         prints the licences of the code in the Linux program
#
# The archives are reproducible: file times are the commit's time (SOURCE_DATE_EPOCH), entries are
# sorted and have no owner, and the programs contain no path of this machine.
set -Eeuo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/.."
root=$PWD
target_dir=${CARGO_TARGET_DIR:-$root/target}
dist=${DIST_DIR:-$target_dir/dist}
linux=x86_64-unknown-linux-gnu
windows=x86_64-pc-windows-gnu

die() {
    echo "dist.sh: $*" >&2
    exit 1
}
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR

for need in tar gzip zip jq sha256sum python3; do
    command -v "$need" >/dev/null || die "install $need, then start this script again."
done
export LC_ALL=C TZ=UTC
umask 022
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) ||
        die "this is not a git repository: set SOURCE_DATE_EPOCH to the release's time."
fi
export SOURCE_DATE_EPOCH

# The files for users besides the pages of doc.sh, then the files for Linux only.
documents=(CHANGELOG.md LICENSE-APACHE LICENSE-MIT)
linux_documents=(contrib/systemd/farblock{-attach@.service,.service,.socket})

# build TARGET [ARGUMENT...]: builds the program without this machine's paths. If several mappings
# match a path, the compiler applies the last mapping.
build() {
    local target=$1 sysroot
    shift
    sysroot=$("${RUSTC:-rustc}" --print sysroot)
    local flags=(
        "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
        "--remap-path-prefix=$sysroot=/rust"
        "--remap-path-prefix=$root=/farblock"
        "--remap-path-prefix=$target_dir=/build"
    )
    # The linker would otherwise write the time into the program.
    [ "$target" != "$windows" ] || flags+=("-Clink-arg=-Wl,--no-insert-timestamp")
    # Ignore RUSTFLAGS and the developer's configuration.
    local separator=$'\x1f'
    CARGO_ENCODED_RUSTFLAGS=$(IFS=$separator && echo "${flags[*]}") \
        CARGO_PROFILE_RELEASE_STRIP=debuginfo CARGO_INCREMENTAL=0 \
        cargo build --release --locked -p farblock "$@" ||
        die "farblock does not build for $target; cargo's output is above."
}

# Prints the licences of all code in the program, from its sources.
notices() {
    local target=$1 name version licence folder file sum
    # Many crates have the same licence text: print each text once.
    local -A seen=()
    echo "farblock is made of the following, besides its own code and Rust's standard library"
    echo "(MIT OR Apache-2.0, https://www.rust-lang.org)."
    if [ "$target" = "$windows" ]; then
        echo
        echo "farblock.exe contains start-up code and libraries of mingw-w64 (under the licences"
        echo "that https://www.mingw-w64.org names) and of GCC (GPL with the runtime library"
        echo "exception, https://gcc.gnu.org)."
    fi
    cargo metadata --locked --format-version 1 --filter-platform "$target" >"$work/metadata.json"
    cargo tree --locked -p farblock --edges normal --target "$target" --prefix none \
        --format '{p}' | awk '{ sub("^v", "", $2); print $1, $2 }' | sort -u >"$work/packages"
    local -A licences=() folders=()
    while IFS=$'\t' read -r name version licence folder; do
        licences[$name $version]=$licence
        folders[$name $version]=$folder
    done < <(jq -r '.packages[] | select(.source != null)
        | [.name, .version, .license // "see below", (.manifest_path | rtrimstr("/Cargo.toml"))]
        | @tsv' "$work/metadata.json")
    while read -r name version; do
        # farblock's own packages are not in these lists, because they have no source registry.
        licence=${licences[$name $version]:-} folder=${folders[$name $version]:-}
        [ -n "$folder" ] || continue
        printf '\n=== %s %s: %s\n' "$name" "$version" "$licence"
        for file in "$folder"/{LICENSE,LICENCE,license,COPYING,NOTICE,UNLICENSE}*; do
            [ -f "$file" ] || continue
            sum=$(tr -d '\r' <"$file" | sha256sum)
            printf -- '--- %s' "${file##*/}"
            if [ -n "${seen[$sum]:-}" ]; then
                printf ', as of %s\n' "${seen[$sum]}"
            else
                seen[$sum]="$name $version"
                echo
                tr -d '\r' <"$file"
            fi
        done
    done <"$work/packages"
}

# stage FOLDER TARGET PROGRAM DOCUMENT...: collects the pages and files to pack, with fixed times
# and permissions.
stage() {
    local folder=$1 target=$2 program=$3 file
    shift 3
    mkdir -p "$folder"
    "$here/doc.sh" "$folder"
    for file in "$@"; do
        mkdir -p "$folder/$(dirname "$file")"
        cp "$file" "$folder/$file"
    done
    notices "$target" >"$folder/NOTICES.txt"
    cp "$program" "$folder/"
    find "$folder" -type d -exec chmod 755 {} +
    find "$folder" -type f -exec chmod 644 {} +
    chmod 755 "$folder/${program##*/}"
    find "$folder" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

pack() {
    local programs=$1 name
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$dist"
    name=farblock-linux-x86_64
    stage "$work/$name" "$linux" "$programs/farblock" "${documents[@]}" "${linux_documents[@]}"
    tar --create --directory="$work" --sort=name --format=ustar --owner=0 --group=0 \
        --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" "$name" |
        gzip --no-name -9 >"$dist/$name.tar.gz"
    name=farblock-windows-x86_64
    stage "$work/$name" "$windows" "$programs/farblock.exe" "${documents[@]}"
    rm -f "$dist/$name.zip"
    # -X omits the extra fields, which contain user IDs of this machine.
    (cd "$work" && find "$name" -type f | sort | zip -X -q -9 "$dist/$name.zip" -@)
    (cd "$dist" && sha256sum farblock-linux-x86_64.tar.gz farblock-windows-x86_64.zip >SHA256SUMS)
    echo "in $dist:"
    cat "$dist/SHA256SUMS"
}

# Fails if a program contains a path of this machine.
check() {
    local program=$1 place
    for place in "$root" "$target_dir" "${CARGO_HOME:-$HOME/.cargo}"; do
        ! grep -q -a -F "$place" "$program" ||
            die "$program contains a path of this machine: $place"
    done
}

case ${1:-} in
--pack)
    [ $# = 2 ] || die "name the folder with the programs: dist.sh --pack FOLDER"
    pack "$(cd "$2" && pwd)"
    ;;
--notices)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    notices "$linux"
    ;;
"")
    build "$linux" --target "$linux"
    (
        environment=$("$root/interop/windows/setup.sh" --env)
        # shellcheck disable=SC1090 # written by setup.sh
        . "$environment"
        # Use a separate folder, as for the tests (decision 38).
        target_dir=$target_dir/windows
        export CARGO_TARGET_DIR=$target_dir
        # shellcheck disable=SC2086 # words
        build "$windows" $FARBLOCK_WINDOWS_CARGO
    )
    programs=$(mktemp -d)
    cp "$target_dir/$linux/release/farblock" \
        "$target_dir/windows/$windows/release/farblock.exe" "$programs/"
    # The symbols of Windows imports contain the folder's name, with underscores.
    x86_64-w64-mingw32-strip --preserve-dates --wildcard --strip-symbol='*_dll_imports_lib' \
        --strip-symbol='*_dll_imports_lib_iname' "$programs/farblock.exe"
    check "$programs/farblock"
    check "$programs/farblock.exe"
    pack "$programs"
    rm -rf "$programs"
    ;;
*) die "there is no option $1: dist.sh, dist.sh --pack FOLDER, or dist.sh --notices" ;;
esac
