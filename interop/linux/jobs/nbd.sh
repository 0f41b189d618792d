# Guest job: the Linux kernel's NBD client and farblock's server. The file "targets" lists servers
# outside, one per line: LABEL PORT OPTIONS. "nbd_kernel" makes devices by netlink and serves them
# inside the guest, as /host/farblock does when it attaches disks.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

queue() { cat "/sys/block/${1#/dev/}/queue/$2"; }

# --- Without the nbd module: prevent the kernel from loading it

mkdir -p /etc/modprobe.d
echo "install nbd /bin/false" >/etc/modprobe.d/nbd.conf
refused "a device without the module" "modprobe nbd" ./nbd_kernel mem:1MiB
rm /etc/modprobe.d/nbd.conf
modprobe nbd

# --- Servers outside, nbd-client

device=/dev/nbd0
attach() {
    local label=$1 port=$2
    shift 2
    check "$label: nbd-client $*" nbd-client 10.0.2.2 "$port" $device -N disk "$@"
    eventually "$label: the size of the device" test "$(blockdev --getsize64 $device)" = 67108864
}
detach() { check "$1: nbd-client -d" nbd-client -d $device; }

while read -r label port options; do
    say "$label"
    if [ "$label" = read-only ]; then
        attach "$label" "$port"
        equal "$label: read-only" 1 "$(blockdev --getro $device)"
        refused "$label: a write" "." dd if=/dev/zero of=$device bs=4096 count=1 oflag=direct
        check "$label: a read" dd if=$device of=/dev/null bs=1M count=8 iflag=direct
        detach "$label"
        continue
    fi
    block=${options##*--block }
    attach "$label" "$port" -b "$block" -C 4
    equal "$label: block size" "$block" "$(queue $device logical_block_size)"
    [ "$(queue $device discard_max_bytes)" != 0 ] || fail "$label: the disk supports no discard"
    check "$label: fio verify" verify $device "$block-64k"
    check "$label: blkdiscard" blkdiscard -o 1048576 -l 4194304 $device
    check "$label: blkdiscard -z" blkdiscard -z -o 8388608 -l 4194304 $device
    equal "$label: the SHA-256 of zeroed blocks" \
        "$(head -c 4194304 /dev/zero | sha256sum | cut -d ' ' -f 1)" \
        "$(sum_of $device 8388608 4194304)"
    file_system "$label" $device
    detach "$label"
    # Blocks smaller than the disk's blocks.
    attach "$label" "$port" -b 512
    check "$label: fio verify in 512-byte blocks" verify $device 512-8k
    detach "$label"
done <targets

# --- Devices by netlink, served inside the guest

# start NAME ARGUMENT...: runs nbd_kernel; sets 'device', and 'server' to its PID.
start() {
    local name=$1 try
    shift
    [ -p "$name.in" ] || mkfifo "$name.in"
    ./nbd_kernel "$@" <>"$name.in" >"$name.out" 2>&1 &
    server=$!
    for ((try = 0; try < 200; try++)); do
        device=$(grep -m 1 '^/dev/nbd' "$name.out") && break
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    [ -b "$device" ] || fail "$name: nbd_kernel $*: $(cat "$name.out")"
    ok "$name: nbd_kernel $*"
}

for engine in uring portable; do
    say "netlink, $engine"
    start "$engine" mem:64MiB --engine $engine --block 4096 --connections 3 --threads 2
    equal "$engine: size" 67108864 "$(blockdev --getsize64 "$device")"
    equal "$engine: block size" 4096 "$(queue "$device" logical_block_size)"
    equal "$engine: memory has no cache" "write through" "$(queue "$device" write_cache)"
    # One queue for each connection, but at most one for each processor.
    equal "$engine: queues" 2 "$(find "/sys/block/${device#/dev/}/mq" -mindepth 1 -maxdepth 1 | wc -l)"
    check "$engine: fio verify" verify "$device" 4k-64k
    file_system "$engine" "$device"
    refused "$engine: a device in use" "is in use" \
        ./nbd_kernel mem:1MiB --index "${device#/dev/nbd}"
    echo "resize 33554432" >"$engine.in"
    smaller() { [ "$(blockdev --getsize64 "$device")" = 33554432 ]; }
    eventually "$engine: the device is smaller" smaller
    # The server's input ends when its last writer closes it. An unknown line also stops the server,
    # but without a disconnect.
    kill $server
    wait $server || true
    check "$engine: disconnect" nbd-client -d "$device"
done

# --- farblock attach: a target, a supervisor and a server, all inside the guest

nqn=nqn.2026-11.org.farblock:nbd
url="nvme+tcp://127.0.0.1:4420/$nqn?ns=1"
# says KEY: prints the value for the only attached disk in `farblock list`.
says() { ./farblock list --json | sed -n "s/^ *\"$1\": \"\?\([^\",]*\).*/\1/p" | head -n 1; }
is_served_anew() { local pid; pid=$(says server_pid) && [ -n "$pid" ] && [ "$pid" != null ] && [ "$pid" != "$server" ]; }
# Find the broker, a child process of the server.
broker() { grep -l "^PPid:[[:space:]]$(says server_pid)\$" /proc/[0-9]*/status | cut -d / -f 3; }
is_live() { [ "$(says state)" = live ]; }
is_lost() { [ "$(says state)" = reconnecting ]; }
start_target() {
    : >target.out
    ./farblock serve /run/disk --listen 127.0.0.1:4420 --nqn $nqn --block-size 4096 >target.out 2>&1 &
    target=$!
    eventually "the target listens" grep -q '^listening' target.out
}

say "farblock attach"
cp /host/farblock .
truncate -s 64M /run/disk
start_target
check "attach" ./farblock attach "$url" --as nbd --name disk --reconnect-delay 200ms
device=$(says path)
case $device in /dev/nbd*) ;; *) fail "the device is not an NBD device: $device" ;; esac
equal "the size of the device" 67108864 "$(blockdev --getsize64 "$device")"
equal "the block size of the device" 4096 "$(queue "$device" logical_block_size)"
equal "a file has a cache" "write back" "$(queue "$device" write_cache)"
equal "the server of the device is confined" true "$(says sandboxed)"
if [[ $(./farblock list --json) == *sys_admin* ]]; then fail "the server has sys_admin"; fi
equal "the device's backend" farblock-disk "$(cat "/sys/block/${device#/dev/}/backend")"
verify "$device" 4k-16k >fio.out 2>&1 &
load=$!
fio --name=load --filename="$device" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite \
    --bs=4k --offset=32m --size=16m --verify=crc32c --verify_fatal=1 --time_based --runtime=45 \
    --minimal >fio2.out 2>&1 &
load2=$!
for round in server broker both; do
    sleep 1
    kill -0 $load2 || fail "the load ended before the $round was killed: $(cat fio2.out)"
    server=$(says server_pid)
    case $round in
        server) kill -9 "$server" ;;
        broker) kill -9 "$(broker)" ;;
        both) kill -9 "$(broker)" "$server" ;;
    esac
    eventually "killed, $round: the next server serves" is_served_anew
    equal "killed, $round: the next server is confined" true "$(says sandboxed)"
done
kill -9 $target
wait $target 2>/dev/null || true
eventually "the target is lost" is_lost
start_target
eventually "the target is back" is_live
kill -0 $load2 || fail "the load ended before the target was back"
wait $load || fail "the first load failed: $(cat fio.out)"
wait $load2 || fail "the second load failed: $(cat fio2.out)"
ok "no error and no lost block in three kills and a lost target"
file_system "attached" "$device"
check "mount" mount "$device" /mnt
refused "detach of a mounted disk" "mounted at /mnt" ./farblock detach disk
check "umount" umount /mnt
check "detach" ./farblock detach disk
is_gone() { [ ! -e "/sys/block/${device#/dev/}/pid" ]; }
eventually "the device is removed" is_gone
equal "nothing is attached" "nothing is attached" "$(./farblock list)"

say "the supervisor and the server are killed"
check "attach" ./farblock attach "$url" --as nbd --name disk
device=$(says path)
check "mkfs.ext4" mkfs.ext4 -q -F "$device"
check "mount" mount "$device" /mnt
supervisor=$(says pid)
server=$(says server_pid)
kill -9 "$supervisor" "$server"
dd if=/dev/urandom of=/mnt/file bs=1M count=4 conv=fsync 2>dd.out &
writer=$!
is_stale() { [ "$(says state)" = stale ]; }
eventually "the attachment is stale" is_stale
kill -0 $writer || fail "the writer does not wait: $(cat dd.out)"
check "attach takes over the device" ./farblock attach "$url" --as nbd --name disk
wait $writer || fail "the writer failed: $(cat dd.out)"
check "umount" umount /mnt
check "e2fsck" e2fsck -fn "$device"
truncate -s 80M /run/disk
check "the target's disk grows" ./farblock ctl resize "$nqn" 1 83886080
is_larger() { [ "$(blockdev --getsize64 "$device")" = 83886080 ]; }
eventually "the device is larger" is_larger
check "detach" ./farblock detach disk

say "the broker is killed, and no supervisor starts another"
check "attach" ./farblock attach "$url" --as nbd --name disk
device=$(says path)
kill -9 "$(says pid)"
kill -9 "$(broker)"
tells() { [[ $(./farblock list) == *'detach the disk with --force'* ]]; }
eventually "list gives advice" tells
refused "detach without --force" "detach the disk with --force" ./farblock detach disk
check "detach --force" ./farblock detach disk --force
eventually "the device is removed" is_gone
equal "nothing is attached" "nothing is attached" "$(./farblock list)"
kill $target
wait $target || fail "the target failed: $(cat target.out)"

if dmesg | grep -E 'BUG:|WARNING:|Oops'; then fail "the kernel logged errors (above)"; fi
say "done"
