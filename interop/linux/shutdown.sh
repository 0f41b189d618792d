#!/bin/bash
# shutdown.sh FARBLOCK: a guest with Debian's systemd attaches disks with farblock-attach@, puts
# LVM, RAID, LUKS and loop devices on them, writes, and shuts down. The shutdown must not detach any
# disk by force. A second guest must find clean file systems and all data (jobs/shutdown*.sh).
# FARBLOCK is the binary. Runs setup.sh first. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$linux_dir/stand.sh"

[ $# = 1 ] || die "usage: shutdown.sh FARBLOCK"
[ -x "$1" ] || die "there is no program $1; build farblock."
farblock=$(realpath -- "$1")
nqn=nqn.2026-11.org.farblock:shutdown
# Each name is the name of an attachment and of its service. Its position in this list is the ID of
# the attached namespace.
disks=(lvm raid1 raid2 luks plain direct apart file)
"$linux_dir/setup.sh" --systemd
stand
cd "$logs"
for disk in "${disks[@]}"; do truncate -s 128M "$disk.img"; done
port=$(free_port)
serve server.log "${disks[@]/%/.img}" --listen "127.0.0.1:$port" --nqn $nqn
mkdir share
# Strip debug information, so that the copy to the guest takes less time.
strip -o share/farblock "$farblock"
echo "$port $nqn ${disks[*]}" >target
unit=$linux_dir/../../contrib/systemd/farblock-attach@.service

# boot JOB: runs a job in a guest that then shuts down, and checks that its services stopped well.
boot() {
    local disk result
    rm -f share/result-* share/log-*
    SYSTEMD=1 MEM=2048 SHARE=$logs/share CONSOLE=$logs/console-$1 TIMEOUT=1200 \
        "$linux_dir/guest.sh" "$linux_dir/jobs/$1.sh" target "$unit" "$linux_dir/jobs/attached.sh" &
    guest=$! # the trap kills it
    wait $guest
    guest=
    for disk in "${disks[@]}"; do
        result=$(cat "share/result-$disk" 2>/dev/null) || fail "the service of $disk did not stop"
        [ "$result" = success ] || fail "the service of $disk: $result: $(cat "share/log-$disk")"
        ! grep "by force" "share/log-$disk" || fail "$disk was detached by force"
    done
    echo "ok: the guest shut down, and no disk was detached by force"
}

boot shutdown
boot shutdown-check
echo "shutdown.sh: all checks passed"
