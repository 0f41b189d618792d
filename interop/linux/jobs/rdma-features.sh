# Guest job: over soft-RoCE, the features that a transport must not change: reservations,
# DH-HMAC-CHAP, sizes and depths, with the kernel's host and farblock's. /host has the program
# farblock.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

address=10.0.2.15
nqn=nqn.2026-11.org.farblock:rdma
secured=nqn.2026-11.org.farblock:secured
conflict='[Rr]eservation [Cc]onflict'
cp /host/farblock .
# Without the kernel's multipath, each host and each path has its own device.
modprobe nvme-core multipath=N
modprobe -a rdma_rxe rdma_ucm ib_uverbs nvme-rdma
check "a soft-RoCE device" rdma link add rxe0 type rxe netdev eth0
eventually "the port of rxe0 is active" grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state

host_id() { echo "0000000$1-1111-4222-8333-444444444444"; }
host_nqn() { echo "nqn.2014-08.org.nvmexpress:uuid:$(host_id "$1")"; }
./farblock keys new --hash sha256 --output host.key >/dev/null
./farblock keys new --hash sha256 --output wrong.key >/dev/null
truncate -s 64M disk-512 disk-4096
cat >farblock.toml <<TOML
listeners = ["$address:4420", "rdma:$address:4420"]
[[subsystems]]
nqn = "$nqn"
allow_any_host = true
[[subsystems.namespaces]]
path = "disk-512"
block_size = 512
[[subsystems.namespaces]]
path = "disk-4096"
block_size = 4096
[[subsystems]]
nqn = "$secured"
[[subsystems.hosts]]
nqn = "$(host_nqn 1)"
dhchap_key = "host.key"
[[subsystems.namespaces]]
path = "mem:16MiB"
TOML

serve() {
    ./farblock serve --config farblock.toml --control control >>serve.log 2>&1 &
    target=$!
    eventually "the target answers" ./farblock status --control control
}
serve

# connect HOST NQN [OPTION...]: connects the kernel's host with this number, and sets device.
connect() {
    local id path try
    id=$(host_id "$1")
    nvme connect --transport=rdma --traddr=$address --trsvcid=4420 --nqn="$2" \
        --hostnqn="$(host_nqn "$1")" --hostid="$id" --nr-io-queues=1 "${@:3}" || return
    for ((try = 0; try < 200; try++)); do
        for path in /sys/class/nvme/nvme*; do
            [ "$(cat "$path/hostid" 2>/dev/null)" = "$id" ] || continue
            device=$(echo "$path"/nvme*n1)
            device=/dev/${device##*/}
            [ ! -b "$device" ] || return 0
        done
        sleep 0.1
    done
    fail "host $1 has no disk"
}
put() {
    head -c 4096 /dev/zero | tr '\0' "$2" >/run/data
    nvme write "$1" --start-block=0 --block-count=7 --data=/run/data --data-size=4096
}

say "reservations"
connect 1 $nqn
first=$device
connect 2 $nqn
second=$device
check "host 1 registers" nvme resv-register "$first" --nrkey=1 --rrega=0
check "host 2 registers" nvme resv-register "$second" --nrkey=2 --rrega=0
check "host 1 acquires" nvme resv-acquire "$first" --crkey=1 --rtype=1 --racqa=0
check "host 1 writes" put "$first" a
refused "host 2's write" "$conflict" put "$second" b
check "host 2 preempts" nvme resv-acquire "$second" --crkey=2 --prkey=1 --rtype=1 --racqa=1
refused "host 1's write" "$conflict" put "$first" c
check "host 2 clears" nvme resv-release "$second" --crkey=2 --rrela=1
check "host 1 writes again" put "$first" d
nvme disconnect --nqn=$nqn >/dev/null

say "DH-HMAC-CHAP"
refused "a host without a secret" "." connect 1 $secured
refused "a host with a wrong secret" "." connect 1 $secured --dhchap-secret="$(cat wrong.key)"
check "a host with the right secret" connect 1 $secured --dhchap-secret="$(cat host.key)"
nvme disconnect --nqn=$secured >/dev/null
secret_url="nvme+rdma://$address:4420/$secured?ns=1&hostnqn=$(host_nqn 1)&hostid=$(host_id 1)"
refused "farblock's host without a secret" "secret" ./farblock id "$secret_url"
check "farblock's host with the secret" ./farblock id "$secret_url&dhchap-secret=host.key"

say "sizes and depths"
for size in 512 4096; do
    nsid=$((size == 512 ? 1 : 2))
    url="nvme+rdma://$address:4420/$nqn?ns=$nsid"
    head -c $((32 << 20)) /dev/urandom >data
    check "$size: write 32 MiB" ./farblock write "$url" --input data
    check "$size: read 32 MiB" ./farblock read "$url" --length $((32 << 20)) --output copy
    cmp data copy || fail "$size: the data differ"
    # An emulated processor needs seconds for a block of 32 MiB.
    for load in 6M:1:8 32M:1:20 4k:1:3 4k:1024:20; do
        IFS=: read -r bytes depth seconds <<<"$load"
        check "$size: blocks of $bytes, depth $depth" ./farblock bench "$url" --rw randread \
            --bs "$bytes" --iodepth "$depth" --runtime "${seconds}s" --ramp-time 0s --quiet
    done
done
connect 1 $nqn --queue-size=16
for bytes in 6M 32M; do
    check "the kernel reads blocks of $bytes" \
        dd if="$device" of=copy bs=$bytes iflag=direct count=1 conv=notrunc
done
check "the kernel verifies blocks of 6 MiB" verify "$device" 6M-6M --iodepth=2
nvme disconnect --nqn=$nqn >/dev/null

kill $target
wait $target || fail "the target ended with $?: $(tail serve.log)"
! grep -i panicked serve.log || fail "$(cat serve.log)"
modinfo siw >/dev/null 2>&1 && ok "this kernel has siw" || ok "this kernel has no siw"
say "done"
