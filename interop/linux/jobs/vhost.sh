# Guest job: the Linux kernel's virtio-blk driver and farblock's vhost-user back end. Its disks are
# /dev/vd*, identified by their serial numbers. With lines that begin with "DO" the job makes
# requests to vhost.sh, which runs outside of the guest.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

# find_disk SERIAL: finds the device with this serial number.
find_disk() {
    local directory line
    for directory in /sys/block/vd*; do
        first_line "$directory/serial"
        [ "$line" = "$1" ] || continue
        found=/dev/${directory##*/}
        return
    done
    fail "no disk has the serial number $1: $(cat /sys/block/vd*/serial)"
}

queue() { cat "/sys/block/${1#/dev/}/queue/$2"; }

size_is() { [ "$(blockdev --getsize64 "$1")" = "$2" ]; }

for block in 512 4096; do
    label=remote-$block
    say "$label"
    find_disk "$label"
    disk=$found
    equal "$label: size" 67108864 "$(blockdev --getsize64 "$disk")"
    equal "$label: block size" "$block" "$(queue "$disk" logical_block_size)"
    equal "$label: writable" 0 "$(blockdev --getro "$disk")"
    equal "$label: queues" 2 \
        "$(find "/sys/block/${disk#/dev/}/mq" -mindepth 1 -maxdepth 1 | wc -l)"
    [ "$(queue "$disk" discard_max_bytes)" != 0 ] || fail "$label: the disk supports no discard"
    check "$label: fio verify" verify "$disk" "$block-64k"
    check "$label: fio verify, large blocks" verify "$disk" 1m-4m --iodepth=4
    check "$label: blkdiscard" blkdiscard -o 1048576 -l 4194304 "$disk"
    check "$label: blkdiscard -z" blkdiscard -z -o 8388608 -l 4194304 "$disk"
    equal "$label: the SHA-256 of zeroed blocks" \
        "$(head -c 4194304 /dev/zero | sha256sum | cut -d ' ' -f 1)" \
        "$(sum_of "$disk" 8388608 4194304)"
    file_system "$label" "$disk"
done

say "the cache"
find_disk remote-512
equal "a file has a cache" "write back" "$(queue "$found" write_cache)"
echo "write through" >"/sys/block/${found#/dev/}/cache_type"
equal "the cache can be switched off" "write through" "$(queue "$found" write_cache)"
check "fio verify without the cache" verify "$found" 4k-64k --size=8m
echo "write back" >"/sys/block/${found#/dev/}/cache_type"
equal "the cache can be switched on" "write back" "$(queue "$found" write_cache)"

say "read-only"
find_disk read-only
equal "read-only" 1 "$(blockdev --getro "$found")"
refused "a write" "." dd if=/dev/zero of="$found" bs=4096 count=1 oflag=direct
check "a read" dd if="$found" of=/dev/null bs=1M count=8 iflag=direct

say "another size"
find_disk local
echo "DO resize local 33554432"
eventually "the disk is smaller" size_is "$found" 33554432
echo "DO resize local 67108864"
eventually "the disk is larger" size_is "$found" 67108864

say "back ends and targets that are killed"
find_disk remote-512
disk=$found
find_disk remote-4096
file_system "before" "$found"
check "mount" mount "$found" /mnt
echo "DO kill"
# At this rate, fio writes for half a minute, and then reads the data back.
verify "$disk" 4k-4k --size=20m --rate_iops=150 >fio.out 2>&1 &
load=$!
fio --name=file --filename=/mnt/file --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite \
    --bsrange=4k-16k --size=24m --rate_iops=100 --verify=crc32c --verify_fatal=1 \
    --minimal >fio2.out 2>&1 &
load2=$!
wait $load || fail "fio failed on the disk: $(cat fio.out)"
wait $load2 || fail "fio failed in the file: $(cat fio2.out)"
echo "DONE"
ok "no error and no lost block"
check "umount" umount /mnt
check "e2fsck" e2fsck -fn "$found"

find_disk read-only
if dmesg | grep -E 'BUG:|WARNING:|Oops|I/O error' | grep -v "dev ${found#/dev/},"; then
    fail "the kernel logged errors (above)"
fi
say "done"
