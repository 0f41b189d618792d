# Guest job of shutdown.sh: uses the disks with LVM, RAID, LUKS and loop devices, and shuts down.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=attached.sh
. ./attached.sh || exit 1

# make_file_system PLACE DEVICE: makes a file system and mounts it at /srv/PLACE.
make_file_system() {
    mkdir -p "/srv/$1"
    check "$1: mkfs.ext4" mkfs.ext4 -q -F "$2"
    check "$1: mount" mount "$2" "/srv/$1"
}
# loop_on FILE: makes a loop device of the file, and sets 'loop'.
loop_on() { loop=$(losetup -f --show "$1") || fail "losetup made no loop device on $1"; }

say "the host's name"
whoami() { farblock whoami --json | tr -d ' \n'; }
service() { systemd-run --quiet --wait --pipe /usr/bin/farblock whoami --json | tr -d ' \n'; }
first=$(service)
equal "a service's name at its second start" "$first" "$(service)"
equal "the name in a shell" "$first" "$(HOME=/root whoami)"

say "LVM"
lvm=$(device lvm)
check "pvcreate" pvcreate -q -y "$lvm"
check "vgcreate" vgcreate -q vg "$lvm"
check "lvcreate" lvcreate -q -y -l 90%VG -n lv vg
make_file_system lvm /dev/vg/lv

say "RAID 1 over two disks"
check "mdadm" mdadm --create /dev/md0 --run --level=1 --raid-devices=2 --metadata=1.2 \
    --assume-clean "$(device raid1)" "$(device raid2)"
make_file_system raid /dev/md0

say "LUKS"
echo -n secret >/run/key
check "luksFormat" cryptsetup luksFormat --batch-mode --type luks2 --pbkdf pbkdf2 \
    --pbkdf-force-iterations 1000 "$(device luks)" /run/key
check "luksOpen" cryptsetup open --key-file /run/key "$(device luks)" secret
make_file_system luks /dev/mapper/secret

say "a loop device on a file on a loop device"
make_file_system plain "$(device plain)"
truncate -s 64M /srv/plain/inner.img
loop_on /srv/plain/inner.img
make_file_system inner "$loop"

say "a loop device on the disk itself"
loop_on "$(device direct)"
make_file_system direct "$loop"
# Retry, because a busy emulated server may answer late.
is_listed() { farblock list --json | grep -F "$loop is a loop device on $(device direct)" >/dev/null; }
eventually "farblock list names the loop device" is_listed

say "a loop device on the disk's file"
loop_on "$(device file)"
make_file_system file "$loop"

say "mounts and a loop device in another mount namespace, which a process keeps until the end"
cat >/run/apart.sh <<'SCRIPT'
set -e
trap '' TERM HUP
mkdir -p /run/apart
mount -t tmpfs tmpfs /run/apart
mkdir /run/apart/outer /run/apart/inner
mkfs.ext4 -q -F "$1"
mount "$1" /run/apart/outer
truncate -s 64M /run/apart/outer/disk.img
loop=$(losetup -f --show /run/apart/outer/disk.img)
mkfs.ext4 -q -F "$loop"
mount "$loop" /run/apart/inner
head -c 8M /dev/urandom | tee /run/apart/outer/data | sha256sum >/run/sum-apart
head -c 8M /dev/urandom | tee /run/apart/inner/data | sha256sum >/run/sum-inner-apart
touch /run/ready
while :; do sleep 3600; done
SCRIPT
check "the unit apart starts" systemd-run --quiet --unit=apart -p PrivateMounts=yes -p KillMode=none \
    bash /run/apart.sh "$(device apart)"
eventually "the mounts of the unit are ready" test -e /run/ready
[ ! -e /run/apart/outer ] || fail "mounts of the other namespace are visible here"

say "a shell in the disk's directory, and a service that writes"
systemd-run --quiet --scope --unit=shell bash -c 'cd /srv/plain; while :; do sleep 3600; done' \
    </dev/null >/dev/null 2>&1 &
cat >/run/writer.sh <<'SCRIPT'
cd /srv/luks
for ((n = 1; ; n++)); do
    echo $n >>lines
    sync lines
    echo $n >/host/acknowledged
done
SCRIPT
check "the unit writer starts" systemd-run --quiet --unit=writer bash /run/writer.sh
eventually "a write is acknowledged" test -s /host/acknowledged

say "a file on each file system; only two of the files are synced"
for place in $places; do
    case $place in
    *apart) cp "/run/sum-$place" /host/ ;;
    *) head -c 8M /dev/urandom | tee "/srv/$place/data" | sha256sum >"/host/sum-$place" ;;
    esac
    case $place in lvm | inner) sync -f "/srv/$place/data" ;; esac
done
farblock list >/host/list
say "shutdown"
systemctl poweroff --no-block
