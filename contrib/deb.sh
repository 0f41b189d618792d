#!/usr/bin/env bash
# deb.sh RELEASE: makes farblock_VERSION_ARCHITECTURE.deb from the build in the folder RELEASE
# (target/release), in the folder dist beside it, or in DIST_DIR. Builds cargo-deb once, in
# ~/.cache/farblock-tools (or FARBLOCK_TOOLS_DIR).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { echo "usage: deb.sh RELEASE" >&2; exit 2; }
release=$(cd "$1" && pwd)
dist=${DIST_DIR:-${release%/*}/dist}
tools=${FARBLOCK_TOOLS_DIR:-${HOME:?set FARBLOCK_TOOLS_DIR}/.cache/farblock-tools}
# Do not lint cargo-deb, which is not our code.
unset RUSTC_WORKSPACE_WRAPPER
cargo_deb=3.8.0

[ "$("$tools/bin/cargo-deb" --version 2>/dev/null)" = "$cargo_deb" ] ||
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --no-default-features --features lzma cargo-deb \
        --version "$cargo_deb" --root "$tools"

# Install the files of `make install`, except for libfarblock: a library for other programs belongs
# in a separate package. Then move the files to Debian's folders.
stage=$release/deb
rm -rf "$stage"
DESTDIR=$stage "$here/install.sh" "$release" /usr
rm -rf "$stage/usr/include" "$stage"/usr/lib/{libfarblock*,pkgconfig}
mkdir -p "$stage/usr/share/zsh/vendor-completions" "$stage/src"
mv "$stage"/usr/share/zsh/{site-functions,vendor-completions}/_farblock
"$here/doc.sh" "$stage/usr/share/doc/farblock"
install -m 644 "$here/../CHANGELOG.md" "$stage/usr/share/doc/farblock/changelog"
"$here/dist.sh" --notices >"$stage/usr/share/doc/farblock/NOTICES.txt"
gzip --no-name -9 "$stage"/usr/share/man/man1/*.1 \
    "$stage"/usr/share/doc/farblock/{NOTICES.txt,changelog}

version=$("$release/farblock" --version | cut -d' ' -f2)
: "${SOURCE_DATE_EPOCH:=$(git -C "$here" log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
cat >"$stage/changelog" <<CHANGELOG
farblock ($version-1) unstable; urgency=medium

  * See changelog.gz for the changes of this version.

 -- The farblock contributors <farblock@example.org>  \
$(LC_ALL=C date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
CHANGELOG
sed -i -e :a -e '/\\$/N; s/\\\n//; ta' "$stage/changelog"
sed -e 's/^$/./; s/^/ /' -e 1,4d "$here/../LICENSE-MIT" >"$stage/mit"
sed -e "/@MIT@/{r $stage/mit" -e 'd}' "$here/deb/copyright" >"$stage/copyright"
sed "s/@VERSION@/$version/" "$here/deb/Cargo.toml.in" >"$stage/Cargo.toml"
cp -r "$here/deb/overrides" "$here/deb/scripts" "$stage/"
chmod 755 "$stage"/scripts/*
echo 'fn main() {}' >"$stage/src/main.rs"
mkdir -p "$dist"
rm -f "$dist"/farblock_*.deb
"$tools/bin/cargo-deb" --manifest-path "$stage/Cargo.toml" --no-build --no-strip --quiet \
    --output "$dist/"
ls "$dist"/farblock_"$version"*.deb
