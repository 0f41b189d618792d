# Guest job of doctor.sh: checks 'farblock doctor' for block devices that the kernel uses.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

cp /host/farblock .
memory_disk nullb0 64 4096
disk=/dev/nullb0

# has TEXT DISK PATTERN: doctor must find a problem that matches PATTERN.
has() { refused "$1" "$3" ./farblock doctor "$2"; }
# free TEXT DISK: doctor must find no problem.
free() {
    local said
    said=$(./farblock doctor "$2") || fail "$1: $said"
    [[ $said =~ no\ other\ program\ uses\ $2 ]] || fail "$1: $said"
    ok "$1: ${BASH_REMATCH[0]}"
}

say "a disk of the kernel"
free "an unused disk" $disk

say "a mounted disk"
check "mkfs.ext4" mkfs.ext4 -q -F $disk
check "mount" mount $disk /mnt
has "a mounted disk" $disk "PROBLEM  users .*in use by the system: $disk is mounted at /mnt"
refused "farblock serve on a mounted disk" "in use" ./farblock serve $disk --listen 127.0.0.1:0
mkdir -p "/run/a place"
check "mount --bind" mount --bind /mnt "/run/a place"
check "umount" umount /mnt
has "another mount of the disk" $disk "is mounted at /run/a place"
check "umount" umount "/run/a place"
free "an unmounted disk" $disk

say "in a mount namespace of another process"
mkfifo /run/hold
unshare -m sh -c "mount $disk /mnt && echo mounted >/run/mounted && read -r _ </run/hold" &
apart=$!
eventually "the disk is mounted in that namespace" test -s /run/mounted
has "a disk that another namespace has mounted" $disk "\(process [0-9]+\) has the disk mounted at /mnt in a"
echo >/run/hold
wait $apart
eventually "the disk is free again" ./farblock doctor $disk

say "swap on the disk"
check "mkswap" mkswap $disk
check "swapon" swapon $disk
has "a disk that is a swap area" $disk "in use by the system: $disk is a swap area"
check "swapoff" swapoff $disk
free "the disk after swapoff" $disk

say "a file"
truncate -s 16M /run/file
free "an unused file" /run/file
modprobe loop
loop=$(losetup -f --show /run/file) || fail "losetup made no loop device"
has "the file of a loop device" /run/file "in use by the system: $loop is a loop device on /run/file"
free "the loop device itself" $loop
check "mkfs.ext4" mkfs.ext4 -q -F $loop
check "mount" mount $loop /mnt
has "a mounted loop device" $loop "$loop is mounted at /mnt"
check "umount" umount /mnt
check "losetup -d" losetup -d $loop
free "the file after losetup -d" /run/file

say "a partition"
loop=$(losetup -P -f --show /run/file) || fail "losetup made no loop device with partitions"
printf 'n\np\n1\n\n\nw\n' | fdisk $loop >/run/fdisk.out 2>&1 || true
eventually "the loop device has a partition" test -b ${loop}p1
check "mkfs.ext4" mkfs.ext4 -q -F ${loop}p1
check "mount" mount ${loop}p1 /mnt
has "the disk of a mounted partition" $loop "${loop}p1 is mounted at /mnt"
has "the partition" ${loop}p1 "${loop}p1 is mounted at /mnt"
check "umount" umount /mnt
check "losetup -d" losetup -d $loop

say "the device mapper"
modprobe dm-mod
check "dmsetup" dmsetup create whole --table "0 65536 linear $disk 0"
has "a disk under a device-mapper device" $disk "in use by the system: $disk is a part of /dev/dm-[0-9]"
# This guest has no udev, so create the device's link here.
mkdir -p /dev/mapper
ln -sf ../dm-0 /dev/mapper/whole
check "mkfs.ext4" mkfs.ext4 -q -F /dev/mapper/whole
check "mount" mount /dev/mapper/whole /mnt
has "a device-mapper device by its name" /dev/mapper/whole "is mounted at /mnt"
check "umount" umount /mnt
check "dmsetup remove" dmsetup remove whole

say "programs that open the disk"
sh -c "exec 3<>$disk; echo ready >/run/ready; read -r _ </run/hold" &
program=$!
eventually "a program has the disk open" test -s /run/ready
said=$(./farblock doctor $disk) || fail "doctor reports a problem for an open disk: $said"
[[ $said =~ hint.*"process $program) has $disk open" ]] || fail "a program that has the disk open: $said"
ok "a program that has the disk open: ${BASH_REMATCH[0]}"
echo >/run/hold
wait $program
./farblock serve $disk --listen 127.0.0.1:0 >/run/serve.out 2>&1 &
target=$!
eventually "farblock shares the disk" grep -q '^listening' /run/serve.out
has "a disk that farblock shares" $disk "farblock \(process $target\) has $disk open"
kill $target
wait $target
free "the disk after its last use" $disk
say "done"
