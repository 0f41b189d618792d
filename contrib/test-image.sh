#!/usr/bin/env bash
# test-image.sh RELEASE: makes the OCI image of the build in the folder RELEASE, reads the image
# with skopeo, and runs its program as the image's unprivileged user.
set -Eeuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { echo "usage: test-image.sh RELEASE" >&2; exit 2; }

die() {
    echo "test-image.sh: $*" >&2
    exit 1
}
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
for need in skopeo umoci jq setpriv; do
    command -v "$need" >/dev/null || die "install the command $need (interop/packages.sh does)"
done
[ "$(id -u)" = 0 ] || die "only root can change the root folder: run this script as root"
work=$(mktemp -d)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
export DIST_DIR=$work/dist
name=$("$here/image.sh" "$1" | tail -n 1)

skopeo inspect --config "oci:$name" >"$work/config.json"
jq -e '.config | .User == "65532:65532" and .Entrypoint == ["/usr/bin/farblock"]
    and (.ExposedPorts | has("4420/tcp"))' "$work/config.json" >/dev/null ||
    die "the image has another configuration: $(cat "$work/config.json")"
# skopeo checks the digests of all parts.
skopeo copy --quiet "oci:$name" "dir:$work/copy"

umoci unpack --image "$name" "$work/bundle"
root=$work/bundle/rootfs
[ ! -e "$root/bin/sh" ] || die "the image contains a shell"
cat >"$work/run.sh" <<'RUN'
set -e
root=$1
ip link set lo up
mkdir "$root/proc"
mount -t proc proc "$root/proc"
inside=(env -i FARBLOCK_RUNTIME_DIR=/run/farblock HOME=/data /usr/sbin/chroot
    --userspec=65532:65532 "$root" /usr/bin/farblock)
"${inside[@]}" serve mem:1MiB --nqn nqn.2026-11.org.example:disk --listen 0.0.0.0:4420 &
server=$!
for _ in $(seq 600); do
    ! "${inside[@]}" status >/dev/null 2>&1 || break
    sleep 0.1
done
"${inside[@]}" status
url='nvme+tcp://127.0.0.1/nqn.2026-11.org.example:disk?ns=1'
echo hello | "${inside[@]}" write "$url"
[ "$("${inside[@]}" read "$url" --length 5)" = hello ]
# The program must find OpenSSL's libraries for TLS.
(umask 077; "${inside[@]}" keys new --tls >"$root/data/tls.key")
chown 65532:65532 "$root/data/tls.key"
host=nqn.2014-08.org.nvmexpress:uuid:11111111-0000-4000-8000-000000000001
"${inside[@]}" serve mem:1MiB --nqn nqn.2026-11.org.example:tls --listen 127.0.0.1:4421 \
    --tls-key "$host=/data/tls.key" &
secured=$!
secured_url="nvme+tcp://127.0.0.1:4421/nqn.2026-11.org.example:tls?ns=1&hostnqn=$host"
for _ in $(seq 600); do
    ! "${inside[@]}" id "$secured_url" --tls-key /data/tls.key >/dev/null 2>&1 || break
    sleep 0.1
done
"${inside[@]}" id "$secured_url" --tls-key /data/tls.key
kill "$secured"
wait "$secured"
grep -x "Uid:.65532.65532.65532.65532" "/proc/$server/status"
grep -x "CapEff:.0*" "/proc/$server/status"
kill "$server"
wait "$server"
RUN
timeout 120 unshare --mount --net --pid --kill-child --fork --mount-proc bash "$work/run.sh" \
    "$root" >"$work/said" 2>&1 || die "its program failed: $(tail -n 20 "$work/said")"
echo "image: $(basename "$name"), $(du -sm "$DIST_DIR/farblock-oci" | cut -f1) MiB, runs as nobody"
