# Guest job: farblock's NVMe/RDMA host with the Linux kernel's target and with farblock's, over
# soft-RoCE. /host has the program farblock.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

address=10.0.2.15
nqn=nqn.2026-11.org.farblock:rdma
cp /host/farblock .

# Random data that fill the whole disk.
disk_bytes=$((64 << 20))
head -c $disk_bytes /dev/urandom >data

say "without a device"
refused "a connection without a device" "load the driver of the RDMA device" \
    ./farblock id "nvme+rdma://$address/$nqn"

modprobe -a rdma_rxe rdma_ucm ib_uverbs
check "a soft-RoCE device" rdma link add rxe0 type rxe netdev eth0
eventually "the port of rxe0 is active" grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
refused "a port without a listener" "nothing listens" \
    ./farblock id "nvme+rdma://$address:4499/$nqn"
refused "an address that no device reaches" "no RDMA device|timed out" \
    ./farblock id "nvme+rdma://192.0.2.1/$nqn"
refused "digests over RDMA" "neither digests nor TLS" \
    ./farblock id "nvme+rdma://$address/$nqn?data-digest=1"

# moves LABEL PORT BLOCK: writes, reads and measures a disk of a target.
moves() {
    local url="nvme+rdma://$address:$2/$nqn?ns=1" block=$3
    check "$1: discovery" ./farblock discover "rdma:$address:$2"
    ./farblock discover "rdma:$address:$2" >discovered
    grep -q "$nqn" discovered || fail "$1: the discovery log lacks $nqn: $(cat discovered)"
    check "$1: identify" ./farblock id "nvme+rdma://$address:$2/$nqn"
    check "$1: write" ./farblock write "$url" --input data
    check "$1: read" ./farblock read "$url" --output copy
    cmp data copy || fail "$1: reads return different data than was written"
    ok "$1: the data are the same"
    check "$1: a mixed load" ./farblock bench "$url" --rw randrw --allow-writes --bs "$block" \
        --iodepth 16 --runtime 2s
    check "$1: write again" ./farblock write "$url" --input data
    check "$1: read again" ./farblock read "$url" --output copy
    cmp data copy || fail "$1: the data differ after the load"
}

say "the kernel's target"
memory_disk nullb-512 64 512
modprobe nvmet-rdma
target_subsystem "$nqn" /dev/nullb-512
directory=$configfs/nvmet/ports/1
mkdir "$directory"
echo rdma >"$directory/addr_trtype"
echo ipv4 >"$directory/addr_adrfam"
echo $address >"$directory/addr_traddr"
echo 4420 >"$directory/addr_trsvcid"
ln -s "$configfs/nvmet/subsystems/$nqn" "$directory/subsystems/$nqn"
moves nvmet 4420 512
rm "$directory/subsystems/$nqn"

say "farblock's target"
truncate -s $disk_bytes disk
./farblock serve disk --block-size 4096 --listen 127.0.0.1:0 --listen "rdma:$address:4421" \
    --nqn "$nqn" --no-control >serve.log 2>&1 &
target=$!
eventually "the target listens" grep -q "listening on rdma:$address:4421" serve.log
moves farblock 4421 4096
cmp disk copy || fail "the target's file lacks the written data"
ok "the target's file has the written data"

say "closed and lost connections"
queue_pairs() { rdma resource show qp | grep -c "type RC" || true; }
has_queue_pairs() { [ "$(queue_pairs)" = "$1" ]; }
eventually "no queue pair is left" has_queue_pairs 0
url="nvme+rdma://$address:4421/$nqn?ns=1"
./farblock bench "$url" --rw randread --iodepth 4 --runtime 60s >bench.log 2>&1 &
host=$!
sleep 4
[ "$(queue_pairs)" -ge 4 ] || fail "the load does not run: $(cat bench.log)"
kill -9 $host
wait $host 2>/dev/null || true
eventually "the target closes the queue pairs of a killed host" has_queue_pairs 0
check "another host connects" ./farblock id "nvme+rdma://$address:4421/$nqn"
./farblock bench "$url" --rw randread --iodepth 4 --runtime 60s >bench.log 2>&1 &
host=$!
sleep 4
kill -9 $target
for ((try = 0; try < 300; try++)); do
    kill -0 $host 2>/dev/null || break
    sleep 0.1
done
! kill -0 $host 2>/dev/null || fail "the host does not notice that its target was killed"
! wait $host || fail "the host reports success: $(cat bench.log)"
ok "a host notices that its target was killed: $(tail -n 1 bench.log)"
! grep -i panicked ./*.log || exit 1
say "done"
