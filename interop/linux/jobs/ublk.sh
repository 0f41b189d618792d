# Guest job: block devices by ublk, devices of the Linux kernel's own NVMe host, and both by
# `farblock attach`. /host has the programs. The file "targets" lists targets outside, one per line:
# BLOCK_SIZE PORT NQN. With the line "DO cut" the job requests that ublk.sh, outside of the guest,
# kill and restart these targets; "DO pause" and "DO continue" suspend and resume the first target.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

load_bytes=8000000
cp /host/* .
declare -A ports nqns
while read -r block port nqn; do
    ports[$block]=$port
    nqns[$block]=$nqn
done <targets

# Processes that wait for a server would prevent the guest's shutdown.
# shellcheck disable=SC2317 # called by the trap
let_go() {
    local node
    for node in /dev/ublkc*; do
        [ ! -e "$node" ] || timeout 60 ./ublk_serve --detach "${node#/dev/ublkc}" --force || true
    done
}
trap let_go EXIT

queue() { cat "/sys/block/${1#/dev/}/queue/$2"; }
hardware_queues() { find "/sys/block/${1#/dev/}/mq" -mindepth 1 -maxdepth 1 | wc -l; }
size_is() { [ "$(blockdev --getsize64 "$1")" = "$2" ]; }

# start NAME ARGUMENT...: runs ublk_serve; sets device, id and server.
start() {
    local name=$1 try line
    shift
    [ -p "$name.in" ] || mkfifo "$name.in"
    # Empty the file before the process starts, so that the checks below do not read the output of
    # the previous process.
    : >"$name.out"
    ./ublk_serve "$@" <>"$name.in" >>"$name.out" 2>&1 &
    server=$!
    for ((try = 0; try < 1200; try++)); do
        first_line "$name.out"
        [[ ! $line =~ ^ready\ (/dev/ublkb([0-9]+)) ]] || break
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    device=${BASH_REMATCH[1]:-} id=${BASH_REMATCH[2]:-}
    [ -b "$device" ] || fail "$name: ublk_serve $*: $(cat "$name.out")"
    ok "$name: ublk_serve $*"
}

# tell NAME LINE EXPECTED: sends a line to a server. The answer must be EXPECTED.
tell() {
    local before
    before=$(wc -l <"$1.out")
    echo "$2" >"$1.in"
    eventually "$1: '$2' is answered" answered "$1.out" "$before"
    said=$(tail -n +$((before + 1)) "$1.out")
    [[ $said =~ $3 ]] || fail "$1: '$2' is answered by '$said', not '$3'"
    ok "$1: $said"
}
answered() { [ "$(wc -l <"$1")" -gt "$2" ]; }

# stop NAME [force]: stops a server, which removes its device.
stop() {
    echo "${2:-stop}" >"$1.in"
    wait $server || fail "$1: the server exited with an error: $(cat "$1.out")"
    [ ! -e "$device" ] || fail "$1: $device still exists"
    ok "$1: stopped, and $device is gone"
}

# until_true TEXT COMMAND...: like eventually, with more time for a machine under load.
until_true() {
    local text=$1 try
    shift
    for ((try = 0; try < 600; try++)); do
        if "$@" >/dev/null 2>&1; then
            ok "$text"
            return
        fi
        sleep 0.2
    done
    fail "$text: '$*' did not succeed within two minutes"
}

# url BLOCK: the URL of the disk with this block size.
url() { echo "nvme+tcp://10.0.2.2:${ports[$1]}/${nqns[$1]}?ns=1"; }

say "missing kernel modules, and a device for other users"
mkdir -p /etc/modprobe.d
echo "install ublk_drv /bin/false" >/etc/modprobe.d/ublk.conf
echo "install nvme_tcp /bin/false" >/etc/modprobe.d/nvme.conf
refused "a device without the module" "modprobe ublk_drv" ./ublk_serve mem:1MiB
refused "a connection without the module" "modprobe nvme-tcp" ./nvme_attach 10.0.2.2 1 nqn.a 1
refused "attaching without the module" "modprobe ublk_drv" ./farblock attach "$(url 512)" --as ublk
refused "attaching without nvme-tcp" "modprobe nvme-tcp" ./farblock attach "$(url 512)" --as nvme
equal "the list of attached disks" "[]" "$(./farblock list --json)"
rm /etc/modprobe.d/*.conf
modprobe ublk_drv
chmod 755 /root
refused "a device for other users" "only root" \
    setpriv --reuid=1000 --regid=1000 --clear-groups ./ublk_serve mem:1MiB
refused "large blocks" "at most 4096 bytes" ./ublk_serve mem:1MiB --block 65536

declare -A engines=([512]=uring [4096]=portable)
for block in 512 4096; do
    label=remote-$block
    say "$label, ${engines[$block]}"
    start $label "$(url $block)" --engine ${engines[$block]}
    equal "$label: size" 67108864 "$(blockdev --getsize64 "$device")"
    equal "$label: block size" "$block" "$(queue "$device" logical_block_size)"
    equal "$label: writable" 0 "$(blockdev --getro "$device")"
    equal "$label: queues" 2 "$(hardware_queues "$device")"
    equal "$label: a file has a cache" "write back" "$(queue "$device" write_cache)"
    equal "$label: FUA" 1 "$(queue "$device" fua)"
    [ "$(queue "$device" discard_max_bytes)" != 0 ] || fail "$label: the disk supports no discard"
    equal "$label: the physical block size of a file" 4096 "$(queue "$device" physical_block_size)"
    check "$label: fio verify" verify "$device" "$block-64k" --size=4m
    check "$label: fio verify, large blocks" verify "$device" 1m-4m --iodepth=4
    check "$label: blkdiscard" blkdiscard -o 1048576 -l 4194304 "$device"
    check "$label: blkdiscard -z" blkdiscard -z -o 8388608 -l 4194304 "$device"
    equal "$label: the SHA-256 of zeroed blocks" \
        "$(head -c 4194304 /dev/zero | sha256sum | cut -d ' ' -f 1)" \
        "$(sum_of "$device" 8388608 4194304)"
    [ $block = 4096 ] || file_system "$label" "$device"
    # Data in the page cache must reach the disk, too.
    head -c 1048576 /dev/urandom >random
    cat random >"$device"
    stop $label
    start $label "$(url $block)" --queues 1 --depth 1 --id 5
    equal "$label: the requested device number" /dev/ublkb5 "$device"
    equal "$label: one queue" 1 "$(hardware_queues "$device")"
    equal "$label: the disk has the data written last" "$(sha256sum <random)" \
        "$(dd if="$device" bs=1M count=1 iflag=direct 2>/dev/null | sha256sum)"
    check "$label: fio verify, one at a time" verify "$device" "$block-64k" --size=1m --sync=dsync
    refused "a device number in use" "choose another number" ./ublk_serve mem:1MiB --id 5
    stop $label
done

say "read-only, and without a cache"
start read-only mem:64MiB --read-only
equal "read-only" 1 "$(blockdev --getro "$device")"
equal "memory has no cache" "write through" "$(queue "$device" write_cache)"
refused "a write" "." dd if=/dev/zero of="$device" bs=4096 count=1 oflag=direct
check "a read" dd if="$device" of=/dev/null bs=1M count=8 iflag=direct
stop read-only

say "errors"
start faulty fault:1,mem:64MiB
refused "a write that fails" "Input/output error" \
    dd if=/dev/zero of="$device" bs=4096 count=1 oflag=direct
refused "a read that fails" "Input/output error" \
    dd if="$device" of=/dev/null bs=4096 count=1 iflag=direct
stop faulty

say "another size"
start sized mem:64MiB --block 4096
major=$(uname -r | cut -d . -f 1) minor=$(uname -r | cut -d . -f 2)
if [ $((major * 100 + minor)) -ge 616 ]; then
    tell sized "resize 33554432" "^resized$"
    eventually "the device is smaller" size_is "$device" 33554432
    tell sized "resize 67108864" "^resized$"
    eventually "the device is larger" size_is "$device" 67108864
else
    tell sized "resize 33554432" "cannot resize a ublk device.* Linux 6.16"
    check "the size is unchanged" size_is "$device" 67108864
fi
tell sized "resize 33554432" "."
refused "a read beyond the end" "." \
    dd if="$device" of=/dev/null bs=4096 skip=16000 count=1 iflag=direct
check "a read before the end" dd if="$device" of=/dev/null bs=4096 skip=8000 count=1 iflag=direct
stop sized

say "disks in use"
start used mem:64MiB
check "mkfs.ext4" mkfs.ext4 -q -F "$device"
check "mount" mount "$device" /mnt
tell used stop "refused: $device is in use: $device is mounted at /mnt"
check "the file system still accepts writes" dd if=/dev/zero of=/mnt/file bs=1M count=8 conv=fsync
check "umount" umount /mnt
exec 7<"$device"
tell used stop "refused: .* has $device open"
exec 7<&-
check "make a mapping of the device" dmsetup create above --table "0 1024 linear $device 0"
tell used stop "refused: .*$device is a part of /dev/dm-0"
check "remove the mapping" dmsetup remove above
check "mount" mount "$device" /mnt
stop used force
refused "a write to the removed device" "." dd if=/dev/zero of=/mnt/file2 bs=1M count=8 conv=fsync
umount /mnt || fail "the file system of the removed device cannot be unmounted"

say "a target that does not answer"
start slow "$(url 512)"
echo "DO pause"
sleep 1
dd if="$device" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null &
reader=$!
sleep 1
stop slow force
if wait $reader; then fail "a read of the removed device succeeded"; fi
ok "the read in flight failed"
echo "DO continue"

say "a server that is killed under load"
options=(--identifier test --depth 32)
start disk "$(url 512)" "${options[@]}"
disk=$device disk_id=$id disk_server=$server
start files "$(url 4096)" --identifier files
files=$device files_id=$id files_server=$server
check "mkfs.ext4" mkfs.ext4 -q -F "$files"
check "mount" mount "$files" /mnt
# load_runs TEXT: checks that both loads still run.
load_runs() { kill -0 $load $load2 || fail "the load ended $1: $(cat fio.out fio2.out)"; }
# again OUTPUT COMMAND...: repeats the command until the file "enough" exists.
again() {
    while [ ! -e enough ]; do "${@:2}" >"$1" 2>&1 || exit 1; done
}
begin_load() {
    again fio.out verify "$disk" 4k-16k --rate_iops=60 &
    load=$!
    again fio2.out fio --name=file --filename=/mnt/file --direct=1 --ioengine=libaio --iodepth=8 \
        --rw=randwrite --bsrange=4k-16k --size=8m --rate_iops=60 --verify=crc32c \
        --verify_fatal=1 --minimal &
    load2=$!
    sleep 2
}
end_load() {
    : >enough
    wait $load || fail "fio failed on the disk: $(cat fio.out)"
    wait $load2 || fail "fio failed in the file: $(cat fio2.out)"
    ok "no error and no lost block: $1"
}
# ask_for_cut: requests that the outer script kill and restart the targets, and waits for that.
ask_for_cut() {
    echo "DO cut"
    until_true "the targets are closed" is_gone "${ports[512]}" "${ports[4096]}"
    until_true "the first target is back" connects "${ports[512]}"
    until_true "the second target is back" connects "${ports[4096]}"
}
connects() { (exec 3<>"/dev/tcp/10.0.2.2/$1") 2>/dev/null; }
is_gone() { ! connects "$1" && ! connects "$2"; }
begin_load
for round in 1 2 3; do
    load_runs "before kill $round"
    kill -9 $disk_server $files_server
    wait $disk_server $files_server 2>/dev/null || true
    ok "round $round: killed"
    if [ $round = 1 ]; then
        refused "a disk with another identifier" "another identifier" \
            ./ublk_serve "$(url 512)" --identifier other --recover "$disk_id"
    fi
    sleep 0.3
    start disk "$(url 512)" "${options[@]}" --recover "$disk_id"
    disk_server=$server
    equal "the same device" "$disk" "$device"
    start files "$(url 4096)" --identifier files --recover "$files_id"
    files_server=$server
    sleep 1
done
load_runs "after the last kill"
refused "a disk that another process serves" "process $disk_server serves" \
    ./ublk_serve "$(url 512)" "${options[@]}" --recover "$disk_id"
say "targets that are killed under the same load"
ask_for_cut
load_runs "before the targets were back"
end_load "three servers and two targets were killed"

say "a successor that dies before it serves"
# Each attempt may open one file more, so it gets one step further. In one attempt, the process
# takes over the device, but then cannot open it. The kernel must not refuse the next attempt.
start early mem:64MiB --queues 1
kill -9 $server
wait $server 2>/dev/null || true
for ((allowed = 5; allowed < 64; allowed++)); do
    if (ulimit -n "$allowed" && exec ./ublk_serve mem:64MiB --recover "$id") </dev/null >>tries 2>&1
    then
        break
    fi
done
check "one of $(wc -l <tries) attempts failed to open the device" grep "open a ublk device: Too many" tries
check "the last attempt served the device" grep "^ready $device " tries
check "detach the device" ./ublk_serve --detach "$id"

say "a server that exits, and a killed server without a successor"
echo leave >disk.in
wait $disk_server || fail "the server exited with an error: $(cat disk.out)"
[ -b "$disk" ] || fail "the device of the exited server is gone"
start disk "$(url 512)" "${options[@]}" --recover "$disk_id"
check "another server took over" verify "$disk" 4k-64k --size=2m
server=$server device=$disk
stop disk
kill -9 $files_server
wait $files_server 2>/dev/null || true
refused "detaching a mounted disk" "is mounted at /mnt" ./ublk_serve --detach "$files_id"
check "detaching a mounted disk by force" ./ublk_serve --detach "$files_id" --force
umount /mnt || fail "the file system of the removed device cannot be unmounted"
[ ! -e "$files" ] || fail "$files still exists"
refused "detaching a removed device" "does not exist" ./ublk_serve --detach "$files_id"
# The target must have every acknowledged write.
start files "$(url 4096)"
# e2fsck exits with 1 after corrections, for example of counters that only umount writes.
repaired() { e2fsck -fy "$1" || [ $? = 1 ]; }
check "e2fsck repairs the file system" repaired "$device"
check "e2fsck finds no further error" e2fsck -fn "$device"
stop files

say "a user other than root"
chmod 666 /dev/ublk-control
# The guest has no udev, so change the owner here, as the udev rule would.
give() { until chown 1000:1000 /dev/ublkc0 2>/dev/null; do sleep 0.1; done; }
give &
mkfifo own.in
chmod 666 own.in
setpriv --reuid=1000 --regid=1000 --clear-groups \
    ./ublk_serve mem:64MiB --id 0 <>own.in >own.out 2>&1 &
server=$! device=/dev/ublkb0
until_true "the server is ready" grep -q "^ready /dev/ublkb0 .*recoverable=false" own.out
# Before farblock stops the device, it must check that no other process has the device open.
chown 1000:1000 "$device"
check "fio verify" verify "$device" 4k-64k --size=2m
stop own
chmod 600 /dev/ublk-control

say "the kernel's own NVMe host"
nvme=(./nvme_attach 10.0.2.2)
refused "a comma in a name" "nqn cannot be" "${nvme[@]}" 4420 "nqn.a,trsvcid=1" 1
refused "a port without a target" "cannot connect to" "${nvme[@]}" 1 nqn.a 1
modprobe nvme-tcp
nqn=${nqns[512]}
refused "another subsystem" "cannot connect to" "${nvme[@]}" "${ports[512]}" "$nqn-x" 1
options=(--hostnqn nqn.2026-11.org.farblock:guest --nr-io-queues 2 --queue-size 32
    --hostid 01234567-89ab-cdef-0123-456789abcdef --keep-alive-tmo 5 --reconnect-delay 1
    --ctrl-loss-tmo 600 --fast-io-fail-tmo 500 --hdr-digest --data-digest)
answer=$("${nvme[@]}" "${ports[512]}" "$nqn" 1 "${options[@]}") || fail "$answer"
read -r instance device <<<"$answer"
[ -b "$device" ] || fail "there is no block device '$device': $answer"
ok "$nqn is $device"
controller=/sys/class/nvme/nvme$instance
equal "reconnect_delay" 1 "$(cat "$controller/reconnect_delay")"
equal "ctrl_loss_tmo" 600 "$(cat "$controller/ctrl_loss_tmo")"
equal "fast_io_fail_tmo" 500 "$(cat "$controller/fast_io_fail_tmo")"
equal "queues" 3 "$(cat "$controller/queue_count")"
equal "size" 67108864 "$(blockdev --getsize64 "$device")"
equal "block size" 512 "$(queue "$device" logical_block_size)"
refused "a second connection to one subsystem" "the kernel is already connected to $nqn at that address" \
    "${nvme[@]}" "${ports[512]}" "$nqn" 1 "${options[@]}"
check "mkfs.ext4" mkfs.ext4 -q -F "$device"
check "mount" mount "$device" /mnt
detach=(./nvme_attach --detach "$instance" "$nqn" 1 "$device")
refused "detaching a mounted disk" "$device is mounted at /mnt" "${detach[@]}"
check "umount" umount /mnt
refused "detaching another subsystem" "no connection to nqn.other" \
    ./nvme_attach --detach "$instance" nqn.other 1 "$device"
verify "$device" 4k-4k --rate_iops=100 >fio.out 2>&1 &
load=$!
sleep 1
ask_for_cut
kill -0 $load || fail "the load ended before the target was back: $(cat fio.out)"
wait $load || fail "the load failed: $(cat fio.out)"
ok "no error and no lost block: a target was killed"
check "detach" "${detach[@]}"
[ ! -e "$device" ] || fail "$device still exists"
refused "a second detach" "no connection" "${detach[@]}"
refused "a missing namespace" "no namespace 7" "${nvme[@]}" "${ports[512]}" "${nqns[512]}" 7
[ -z "$(ls /sys/class/nvme)" ] || fail "a connection was left: $(ls /sys/class/nvme)"

say "farblock attach --as ublk"
# listed FIELD: prints the field's value for the only disk in `farblock list`.
listed() { ./farblock list --json | jq -r "if length == 1 then .[0].$1 else length end"; }
is_listed() { [ "$(listed "$1")" = "$2" ]; }
# attach WAY [OPTION...]: attaches the first target's disk, and sets device.
attach() {
    check "farblock attach --as $*" ./farblock attach "$(url 512)" --name disk --as "$@"
    ./farblock list --json >listed
    equal "farblock list shows the disk" "disk $1 live 67108864" \
        "$(jq -r '.[0] | "\(.name) \(.way) \(.state) \(.size_bytes)"' listed)"
    device=$(jq -r '.[0].use.path' listed)
    [ -b "$device" ] || fail "there is no block device '$device'"
}
# detaches: checks that detaching fails while the disk is mounted, and succeeds afterwards.
detaches() {
    check "mkfs.ext4" mkfs.ext4 -q -F "$device"
    check "mount" mount "$device" /mnt
    refused "farblock detach" "$device is mounted at /mnt" ./farblock detach disk
    check "the file system still accepts writes" dd if=/dev/zero of=/mnt/file bs=1M count=2 conv=fsync
    check "umount" umount /mnt
    check "farblock detach" ./farblock detach disk
    [ ! -e "$device" ] || fail "$device still exists"
    equal "the list of attached disks" "[]" "$(./farblock list --json)"
}
# served_by_another THAN: sets 'now' to the PID of the server; true if it differs from THAN.
served_by_another() {
    now=$(listed server_pid)
    [[ $now =~ ^[0-9]+$ ]] && [ "$now" != "$1" ] && is_listed state live
}
attach ublk
verify "$device" 4k-4k --size=12m --rate_iops=100 >fio.out 2>&1 &
load=$!
for round in 1 2; do
    before=$(listed server_pid)
    sleep 1
    kill -0 $load || fail "the load ended before kill $round: $(cat fio.out)"
    kill -9 "$before"
    until_true "round $round: the supervisor has started another server" served_by_another "$before"
done
kill -0 $load || fail "the load ended after the last kill: $(cat fio.out)"
wait $load || fail "the load failed: $(cat fio.out)"
ok "no error and no lost block: two servers were killed"
detaches

say "farblock attach --as nvme"
attach nvme
[[ $device =~ ^/dev/nvme[0-9]+n[0-9]+$ ]] || fail "$device is not a device of the kernel's host"
check "fio verify" verify "$device" 4k-64k
before=$(listed server_pid)
kill -9 "$before"
until_true "the supervisor has started another server" served_by_another "$before"
equal "the device of the next server" "$device" "$(listed use.path)"
detaches
[ -z "$(ls /sys/class/nvme)" ] || fail "a connection was left: $(ls /sys/class/nvme)"

if dmesg | grep -E 'BUG:|WARNING:|Oops'; then fail "the kernel logged errors (above)"; fi
say "done"
