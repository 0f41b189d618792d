# Guest job: the Linux kernel's NVMe/RDMA host with farblock's target, over soft-RoCE. /host has the
# program farblock.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

address=10.0.2.15
nqn=nqn.2026-11.org.farblock:rdma
cp /host/farblock .
truncate -s 64M disk-512
load_bytes=4000000

# serve: starts the target, and waits until it listens.
serve() {
    ./farblock serve disk-512 --listen 127.0.0.1:0 --listen "rdma:$address" --nqn "$nqn" \
        --no-control >serve.log 2>&1 &
    target=$!
    eventually "the target listens" grep -q "listening on rdma:$address:4420" serve.log
}

# connect [OPTION...]: connects, and sets disk.
connect() {
    check "connect $*" nvme connect --transport=rdma --traddr=$address --trsvcid=4420 \
        --nqn=$nqn "$@"
    eventually "the namespace appears" find_namespace $nqn 1
    disk=$found
}

disconnect() { check "disconnect" nvme disconnect --nqn=$nqn; }
queue_pairs() { rdma resource show qp | grep -c "type RC" || true; }
has_queue_pairs() { [ "$(queue_pairs)" = "$1" ]; }

say "without a device"
refused "a listener without a device" \
    "cannot listen on rdma:$address:4420: .*load the driver of the RDMA device" \
    ./farblock serve disk-512 --listen rdma:$address --no-control

modprobe -a rdma_rxe rdma_ucm ib_uverbs nvme-rdma
check "a soft-RoCE device" rdma link add rxe0 type rxe netdev eth0
eventually "the port of rxe0 is active" grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
refused "another machine's address" "no RDMA device has this address" \
    ./farblock serve disk-512 --listen rdma:192.0.2.1 --no-control

say "discovery"
serve
nvme discover --transport=rdma --traddr=$address --trsvcid=4420 >discovered ||
    fail "discovery failed: $(cat discovered serve.log)"
grep -q "trtype:  rdma" discovered && grep -q "subnqn:  $nqn" discovered &&
    grep -q "rdma_cms:    rdma-cm" discovered || fail "the discovery log lacks rdma-cm: $(cat discovered)"
ok "discovery finds the subsystem"

say "data"
connect --nr-io-queues=2
[ "$(queue_pairs)" = 6 ] || fail "not three queue pairs at each end: $(rdma resource show qp)"
verify "$disk" 512-64k >fio.log || fail "$(cat fio.log)"
ok "fio verifies 512 bytes to 64 KiB"
verify "$disk" 1M-1M --iodepth=4 >fio.log || fail "$(cat fio.log)"
ok "fio verifies 1 MiB"
check "flush" nvme flush "$disk"
file_system "ext4" "$disk"
disconnect
eventually "no queue pair is left" has_queue_pairs 0

say "queue sizes"
for size in 16 128; do
    connect --nr-io-queues=1 --queue-size=$size
    verify "$disk" 4k-16k --iodepth=$size --size=1000000 >fio.log || fail "$(cat fio.log)"
    ok "fio verifies with queues of $size entries"
    disconnect
done

say "the target is killed under load"
connect --nr-io-queues=1 --reconnect-delay=1 --ctrl-loss-tmo=60
load_begins "$disk"
for round in 1 2; do
    sleep 3
    kill -9 $target
    wait $target 2>/dev/null || true
    sleep 1
    serve
    ok "killed and restarted: $round"
done
sleep 5
load_ends "the disk"
disconnect
eventually "no queue pair is left" has_queue_pairs 0

say "the target stops"
connect --nr-io-queues=1
kill $target
wait $target || fail "the target ended with $?: $(cat serve.log)"
nvme disconnect --nqn=$nqn >/dev/null 2>&1 || true
! grep -i panicked serve.log || fail "$(cat serve.log)"
rdma resource show
say "done"
