# Guest job of shutdown.sh, in a second guest: checks that the disks have clean file systems and all
# data.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=attached.sh
. ./attached.sh || exit 1

# examine PLACE DEVICE: checks that the file system is clean, and mounts it.
examine() {
    local found
    mkdir -p "/srv/$1"
    found=$(dumpe2fs -h "$2" 2>/dev/null) || fail "$1: there is no file system on $2"
    [[ $found =~ 'Filesystem state:'\ +clean && $found != *needs_recovery* ]] || fail "$1: $found"
    check "$1 is clean" fsck.ext4 -fn "$2"
    check "$1: mount" mount -o ro,noload "$2" "/srv/$1"
    equal "$1: the data of the file system" "$(cat "/host/sum-$1")" "$(sha256sum <"/srv/$1/data")"
}
# loop_on FILE: makes a loop device of the file, and sets 'loop'.
loop_on() { loop=$(losetup -f -r --show "$1") || fail "losetup made no loop device on $1"; }

for disk in raid1 raid2; do
    found=$(mdadm --examine "$(device $disk)" 2>&1) || fail "$disk: $found"
    [[ $found =~ State\ :\ clean ]] || fail "$disk: $found"
done
ok "the RAID's parts are clean"
# udev may have assembled the RAID and the volume group already.
vgchange -q -ay vg >/dev/null 2>&1 || true
eventually "the logical volume appears" test -e /dev/vg/lv
mdadm --assemble /dev/md0 "$(device raid1)" "$(device raid2)" >/dev/null 2>&1 || true
md() { found=(/dev/md[0-9]*) && [ -b "${found[0]}" ]; }
eventually "the RAID appears" md
echo -n secret >/run/key
check "luksOpen" cryptsetup open --key-file /run/key "$(device luks)" secret
examine lvm /dev/vg/lv
examine raid "${found[0]}"
examine luks /dev/mapper/secret
examine plain "$(device plain)"
loop_on /srv/plain/inner.img
examine inner "$loop"
loop_on "$(device direct)"
examine direct "$loop"
loop_on "$(device file)"
examine file "$loop"
examine apart "$(device apart)"
loop_on /srv/apart/disk.img
examine inner-apart "$loop"

acknowledged=$(cat /host/acknowledged)
lines=$(wc -l </srv/luks/lines)
[ "$lines" -ge "$acknowledged" ] || fail "$acknowledged writes were acknowledged, and $lines exist"
equal "the contents of the lines" "$(seq "$lines" | sha256sum)" "$(sha256sum </srv/luks/lines)"
ok "the service wrote $lines lines, $acknowledged of which it knew to be safe"
say "shutdown"
systemctl poweroff --no-block
