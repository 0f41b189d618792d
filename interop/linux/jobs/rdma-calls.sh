# Guest job: counts the system calls of farblock's target and host for an I/O over soft-RoCE, with
# the kernel as the peer. The kernel's trace events count them by thread. Memory holds the target's
# disk, so all counted calls belong to the transport. /host has the program farblock:
# SHARE=target/release interop/linux/guest.sh interop/linux/jobs/rdma-calls.sh
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

address=10.0.2.15
nqn=nqn.2026-11.org.farblock:rdma
trace=/sys/kernel/debug/tracing
trigger=$trace/events/raw_syscalls/sys_enter/trigger
histogram=$trace/events/raw_syscalls/sys_enter/hist
keys=hist:keys=common_pid,id.syscall:size=4096
cp /host/farblock .
modprobe nvme-core multipath=N
modprobe -a rdma_rxe rdma_ucm ib_uverbs nvme-rdma nvmet-rdma
check "a soft-RoCE device" rdma link add rxe0 type rxe netdev eth0
eventually "the port of rxe0 is active" grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state

count_begins() { echo "$keys" >"$trigger"; }
# count_ends: stops counting, and stores lines THREAD CALL COUNT in the file "counted".
count_ends() {
    sed -n 's/^{ common_pid: *\([0-9]*\), id: \(sys_[^ ]*\) .*hitcount: *\([0-9]*\).*/\1 \2 \3/p' \
        "$histogram" >counted
    echo "!$keys" >"$trigger"
}

# per_io LABEL IOS PROCESS: prints the calls of a process for an I/O.
per_io() {
    local label=$1 ios=$2 process=$3 threads
    threads=$(ls "/proc/$process/task" | tr '\n' ' ')
    awk -v label="$label" -v ios="$ios" -v threads="$threads" '
        BEGIN { split(threads, list); for (each in list) mine[list[each]] }
        $1 in mine { calls[$2] += $3; all += $3 }
        END {
            line = ""
            for (call in calls)
                if (calls[call] / ios >= 0.005)
                    line = line sprintf(" %s %.2f", call, calls[call] / ios)
            printf "calls: %s: %d I/Os, %.2f for each:%s\n", label, ios, all / ios, line
            if (all < ios / 20) exit 1
        }' counted || fail "$label: nothing was counted: $(cat counted)"
}

say "farblock's target"
./farblock serve mem:16MiB --block-size 4096 --listen "rdma:$address" --nqn $nqn \
    --spin efficient --no-control >serve.log 2>&1 &
target=$!
eventually "the target listens" grep -q "listening on rdma:$address:4420" serve.log
check "connect" nvme connect --transport=rdma --traddr=$address --trsvcid=4420 --nqn=$nqn \
    --nr-io-queues=1
eventually "the namespace appears" find_namespace $nqn 1
find_namespace $nqn 1
for pattern in randread randwrite; do
    for depth in 1 32; do
        load=(fio --name=load --filename="$found" --direct=1 --ioengine=libaio "--rw=$pattern"
            --bs=4k "--iodepth=$depth" --number_ios=2000 --size=16M --io_size=16M)
        count_begins
        "${load[@]}" --output-format=json >fio.json || fail "$(cat fio.json)"
        count_ends
        per_io "target, $pattern, depth $depth" \
            "$(jq '.jobs[0] | .read.total_ios + .write.total_ios' fio.json)" $target
    done
done
check "disconnect" nvme disconnect --nqn=$nqn
kill $target
wait $target || fail "the target ended with $?: $(cat serve.log)"

say "farblock's host"
memory_disk nullb-512 64 512
target_subsystem "$nqn" /dev/nullb-512
directory=$configfs/nvmet/ports/1
mkdir "$directory"
echo rdma >"$directory/addr_trtype"
echo ipv4 >"$directory/addr_adrfam"
echo $address >"$directory/addr_traddr"
echo 4420 >"$directory/addr_trsvcid"
ln -s "$configfs/nvmet/subsystems/$nqn" "$directory/subsystems/$nqn"

# bench SECONDS OPTION...: runs a load, and sets ios and calls.
bench() {
    count_begins
    ./farblock bench "nvme+rdma://$address:4420/$nqn?ns=1" --allow-writes --runtime "$1" \
        --ramp-time 0s --quiet --floor none --json bench.json "${@:2}" >bench.log 2>&1 ||
        fail "$(cat bench.log)"
    count_ends
    ios=$(jq '.patterns[0].remote | .reads + .writes' bench.json)
}
for depth in 1 32; do
    options=(--rw randread --bs 4k "--iodepth=$depth" --spin efficient)
    # The difference of two runs has no calls of start and end.
    bench 1s "${options[@]}"
    first=$ios
    cp counted first
    bench 4s "${options[@]}"
    sed 's/$/ first/' first >>counted
    awk -v label="host, randread, depth $depth" -v ios=$((ios - first)) '
        { calls[$2] += $4 == "first" ? -$3 : $3 }
        END {
            for (call in calls)
                if (calls[call] / ios >= 0.005)
                    line = line sprintf(" %s %.2f", call, calls[call] / ios)
            printf "calls: %s: %d I/Os, for each:%s\n", label, ios, line
            if (ios < 1) exit 1
        }' counted || fail "the host had no I/O: $(cat bench.log)"
done
say "done"
