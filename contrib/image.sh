#!/usr/bin/env bash
# image.sh RELEASE: makes an OCI image of the build in the folder RELEASE (target/release), without
# Docker. Writes it to target/dist/farblock-oci, or to DIST_DIR; skopeo, podman and other tools can
# read it (oci:FOLDER:VERSION). The image contains only the program, its shared libraries and
# OpenSSL's libraries, not even a shell. The program runs as an unprivileged user, and shares the
# disks that its arguments name.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { echo "usage: image.sh RELEASE" >&2; exit 2; }
release=$(cd "$1" && pwd)
dist=${DIST_DIR:-${release%/*}/dist}
image=$dist/farblock-oci
for need in umoci ldd strip; do
    command -v "$need" >/dev/null || { echo "image.sh: install $need, then try again" >&2; exit 1; }
done
: "${SOURCE_DATE_EPOCH:=$(git -C "$here" log -1 --format=%ct)}"
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
version=$("$release/farblock" --version | cut -d' ' -f2)
user=65532

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$image"
mkdir -p "$dist"
umoci init --layout "$image"
umoci new --image "$image:$version"
rootless=()
[ "$(id -u)" = 0 ] || rootless=(--rootless)
umoci unpack "${rootless[@]}" --image "$image:$version" "$work/bundle"
root=$work/bundle/rootfs
install -D -m 755 "$release/farblock" "$root/usr/bin/farblock"
strip "$root/usr/bin/farblock"
# Copy the libraries under the names that the loader searches, and OpenSSL's libraries, which the
# program loads when it needs TLS.
tls=$(ldconfig -p | sed -n 's/^[[:space:]]*libssl\.so\.3 (libc6,x86-64.*=> //p' | head -n 1)
[ "$(uname -m)" = x86_64 ] || tls=$(ldconfig -p | sed -n 's/.*libssl\.so\.3 .*=> //p' | head -n 1)
[ -n "$tls" ] || { echo "image.sh: install libssl3, then try again" >&2; exit 1; }
{ ldd "$release/farblock" "$tls" | grep -o '/[^ :]*' && echo "$tls"; } | sort -u |
    while read -r library; do
        [ "$library" -ef "$release/farblock" ] || install -D -m 755 "$library" "$root$library"
    done
mkdir -p "$root/etc" "$root/data" "$root/run/farblock-serve" "$root/tmp"
echo "farblock:x:$user:$user::/data:/sbin/nologin" >"$root/etc/passwd"
echo "farblock:x:$user:" >"$root/etc/group"
chmod 1777 "$root/tmp"
# farblock creates its control socket in this folder, and may run as any user.
chmod 1777 "$root/run/farblock-serve"
chmod 777 "$root/data"
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
umoci repack --image "$image:$version" --history.created "$created" \
    --history.created_by contrib/image.sh "$work/bundle"
umoci config --image "$image:$version" --created "$created" --author "The farblock contributors" \
    --config.user "$user:$user" --config.workingdir /data --config.entrypoint /usr/bin/farblock \
    --config.cmd --help --config.exposedports 4420/tcp --config.volume /data \
    --config.env FARBLOCK_RUNTIME_DIR=/run/farblock --config.env HOME=/data \
    --config.stopsignal SIGTERM \
    --config.label "org.opencontainers.image.title=farblock" \
    --config.label "org.opencontainers.image.version=$version" \
    --config.label "org.opencontainers.image.licenses=MIT OR Apache-2.0" \
    --no-history
umoci gc --layout "$image"
echo "$image:$version"
