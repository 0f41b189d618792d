#!/usr/bin/env bash
# test-deb.sh RELEASE: makes the Debian package of the build in the folder RELEASE, runs lintian,
# checks its files, and lets dpkg install, upgrade, remove and purge it under a separate systemd.
set -Eeuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { echo "usage: test-deb.sh RELEASE" >&2; exit 2; }

die() {
    echo "test-deb.sh: $*" >&2
    exit 1
}
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
command -v lintian >/dev/null || die "install lintian (interop/packages.sh does)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DIST_DIR=$work/dist SOURCE_DATE_EPOCH=1700000000
deb=$("$here/deb.sh" "$1" | tail -n 1)
lintian --allow-root --fail-on error,warning "$deb" || die "lintian found errors or warnings"
dpkg-deb --extract "$deb" "$work/root"
for file in usr/bin/farblock lib/systemd/system/farblock{,-attach@}.service \
    lib/systemd/system/farblock.socket usr/share/man/man1/farblock-serve.1.gz \
    usr/share/doc/farblock/{farblock.toml,copyright,changelog{,.Debian}.gz,NOTICES.txt.gz}; do
    [ -f "$work/root/$file" ] || die "there is no $file"
done
grep -q 'Permission is hereby granted' "$work/root/usr/share/doc/farblock/copyright"
gzip -dc "$work/root/usr/share/doc/farblock/NOTICES.txt.gz" | grep '^=== clap ' >/dev/null
# Every relative link of a page must lead to a file of the package.
while IFS=$'\t' read -r page link; do
    [[ $link == *:* || -e $(dirname "$page")/$link ]] ||
        die "$page links to $link, which does not exist"
done < <(grep -oHE '\]\([^()# ]+' "$work/root/usr/share/doc/farblock" -r --include='*.md' |
    sed 's/:\](/\t/')
version=$("$work/root/usr/bin/farblock" --version | cut -d' ' -f2)
[ "$(dpkg-deb --field "$deb" Version)" = "$version-1" ]
dpkg-deb --field "$deb" Depends | grep '^libc6 (>= ' >/dev/null
"$here/test-systemd.sh" "$deb"
echo "deb: lintian accepts $(basename "$deb")"
