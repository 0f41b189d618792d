# Sourced by the jobs of shutdown.sh, in the guest with systemd: attaches the disks with
# farblock-attach@. The file "target" has the target's port, its NQN and its disks; /host has the
# program.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh || exit 1

read -r port nqn disks <target
modprobe -a 9p 9pnet_virtio fuse loop ublk_drv dm_mod dm_crypt raid1
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /host
cp /host/farblock /usr/bin/farblock
cp farblock-attach@.service /etc/systemd/system/
mkdir -p /etc/systemd/system/farblock-attach@.service.d /etc/farblock/attach.d
# Each service reports to shutdown.sh, outside of the guest, how it stopped.
cat >/etc/systemd/system/farblock-attach@.service.d/log.conf <<'UNIT'
[Unit]
RequiresMountsFor=/host
[Service]
StandardOutput=append:/host/log-%i
StandardError=append:/host/log-%i
ExecStopPost=/bin/sh -c 'echo "$SERVICE_RESULT" >/host/result-%i'
UNIT
systemctl daemon-reload

number=0
for disk in $disks; do
    number=$((number + 1))
    case $disk in raid1) way=ublk ;; *) way=fuse ;; esac
    {
        echo "urls = [\"nvme+tcp://10.0.2.2:$port/$nqn?ns=$number\"]"
        echo "as = \"$way\""
        [ "$disk" != file ] || echo "no-device = true"
    } >"/etc/farblock/attach.d/$disk.toml"
done
# shellcheck disable=SC2086,SC2046 # a list of words
check "the disks are attached" systemctl start $(printf 'farblock-attach@%s ' $disks)

# device DISK: the disk's device or file.
device() { sed -n 's/.*"path": *"\([^"]*\)".*/\1/p' "/run/farblock/$1/state.json" | head -n 1; }

# The file systems that the job makes on the disks, and the places of their data.
# shellcheck disable=SC2034 # the job uses this
places="lvm raid luks plain inner direct apart inner-apart file"
