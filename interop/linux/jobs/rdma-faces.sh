# Guest job over soft-RoCE: RDMA listeners that a configuration or farblock ctl adds, farblock
# doctor, and a host with two paths.
# /host has the program farblock.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

address=10.0.2.15
nqn=nqn.2026-11.org.farblock:rdma
url="nvme+rdma://$address:4420/$nqn?ns=1"
cp /host/farblock .
truncate -s 16M disk
head -c $((16 << 20)) /dev/urandom >data
cat >farblock.toml <<TOML
listeners = ["$address:4420", "rdma:$address:4420"]
[[subsystems]]
nqn = "$nqn"
allow_any_host = true
[[subsystems.namespaces]]
path = "disk"
TOML

say "without a device"
check "the configuration is valid" ./farblock serve --check farblock.toml
refused "a listener without a device" "cannot listen on rdma:$address:4420" \
    ./farblock serve --config farblock.toml --control control
refused "doctor without a device" "no RDMA device" ./farblock doctor "$url"

modprobe -a rdma_rxe rdma_ucm ib_uverbs nvme-rdma nvme-tcp
check "a soft-RoCE device" rdma link add rxe0 type rxe netdev eth0
eventually "the port of rxe0 is active" grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state

say "a configuration"
./farblock serve --config farblock.toml --control control --spdk-rpc spdk >serve.log 2>&1 &
target=$!
eventually "the target listens" grep -q "listening on rdma:$address:4420" serve.log
ctl() { ./farblock ctl --control control "$@"; }
check "write over RDMA" ./farblock write "$url" --input data
check "read over TCP" ./farblock read "nvme+tcp://$address:4420/$nqn?ns=1" --output copy
cmp data copy || fail "the data read over TCP differ from the data written over RDMA"
check "doctor" ./farblock doctor "$url"

say "two paths"
for transport in rdma tcp; do
    check "connect by $transport" nvme connect --transport=$transport --traddr=$address \
        --trsvcid=4420 --nqn=$nqn
done
./farblock status --control control >shown
for transport in rdma tcp; do
    grep -q " $transport " shown || fail "the status lacks $transport: $(cat shown)"
done
ok "the status names both transports"
eventually "the namespace appears" find_namespace $nqn 1
load_begins "$found"
sleep 2
check "cut the path over RDMA" ctl remove-listener "rdma:$address:4420"
sleep 3
check "listen again" ctl add-listener "rdma:$address:4420"
sleep 2
load_ends "the disk"
check "an ANA state" ctl set-ana "rdma:$address:4420" inaccessible
nvme disconnect --nqn=$nqn >/dev/null

say "reload"
sed -i "s/, \"rdma:$address:4420\"/, \"rdma:$address:4421\"/" farblock.toml
kill -HUP $target
eventually "a host connects to the other port" ./farblock id "nvme+rdma://$address:4421/$nqn"
check "stop" kill $target
wait $target || fail "the target ended with $?: $(cat serve.log)"
! grep -i panicked serve.log || fail "$(cat serve.log)"
say "done"
