# Guest job: compares iSCSI and iSER (the kernel's target, LIO) with NVMe/TCP and NVMe/RDMA
# (farblock's target). The kernel's hosts use all four; RDMA is soft-RoCE. LIO and farblock each
# share a memory disk of the same kind. The file "plan" has two words: rounds, and seconds of each
# measurement. /host has the program farblock.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

address=10.0.2.15
iqn=iqn.2026-11.org.farblock
nqn=nqn.2026-11.org.farblock:compare
lio=$configfs/target
read -r rounds seconds <plan
cp /host/farblock .
# Without the kernel's multipath, each NVMe transport has its own device.
modprobe nvme-core multipath=N
modprobe -a rdma_rxe rdma_ucm ib_uverbs nvme-tcp nvme-rdma sd_mod
modprobe -a iscsi_target_mod target_core_iblock ib_isert iscsi_tcp ib_iser
check "a soft-RoCE device" rdma link add rxe0 type rxe netdev eth0
eventually "the port of rxe0 is active" grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
memory_disk lio 64 512
memory_disk far 64 512

# iscsi_target NAME PORT: LIO shares its disk, for any initiator.
iscsi_target() {
    local group=$lio/iscsi/$iqn:$1/tpgt_1
    mkdir -p "$group"/{lun/lun_0,"np/$address:$2"}
    ln -s "$lio/core/iblock_0/disk" "$group/lun/lun_0/disk"
    for setting in authentication=0 generate_node_acls=1 demo_mode_write_protect=0; do
        echo "${setting#*=}" >"$group/attrib/${setting%=*}"
    done
    [ "$1" != iser ] || echo 1 >"$group/np/$address:$2/iser"
    echo 1 >"$group/enable"
}

# iscsi_disk SESSION_NAME: finds the disk of a session, e.g. /dev/sda.
iscsi_disk() {
    local session disk
    for session in /sys/class/iscsi_session/session*; do
        [ "$(cat "$session/targetname")" = "$1" ] || continue
        for disk in "$session"/device/target*/*:*/block/*; do
            found=/dev/${disk##*/}
            [ -b "$found" ] && return
        done
    done
    return 1
}

# nvme_disk TRANSPORT: finds the disk of the controller with this transport.
nvme_disk() {
    local controller
    for controller in /sys/class/nvme/nvme*; do
        [ "$(cat "$controller/transport")" = "$1" ] || continue
        found=/dev/${controller##*/}n1
        [ -b "$found" ] && return
    done
    return 1
}

declare -A disks
say "the kernel's iSCSI target"
mkdir -p "$lio/core/iblock_0/disk"
echo "udev_path=/dev/lio" >"$lio/core/iblock_0/disk/control"
echo 1 >"$lio/core/iblock_0/disk/enable"
iscsi_target tcp 3260
iscsi_target iser 3261
mkdir -p /etc/iscsi /var/lib/iscsi /run/lock/iscsi
echo "InitiatorName=$iqn:guest" >/etc/iscsi/initiatorname.iscsi
echo "node.startup = manual" >/etc/iscsi/iscsid.conf
iscsid -f >iscsid.log 2>&1 &
for path in tcp:3260:default iser:3261:iser; do
    IFS=: read -r transport port interface <<<"$path"
    node=(iscsiadm -m node -T "$iqn:$transport" -p "$address:$port" -I "$interface")
    "${node[@]}" -o new >/dev/null
    check "$transport: log in" "${node[@]}" --login
    eventually "$transport: the disk appears" iscsi_disk "$iqn:$transport"
    iscsi_disk "$iqn:$transport"
    disks[iscsi-$transport]=$found
    iscsiadm -m session >sessions
    grep -q "^$transport: .*$iqn:$transport" sessions || fail "not over $transport: $(cat sessions)"
    ok "the session is over $transport"
done

say "farblock's target"
./farblock serve /dev/far --listen "$address:4420" --listen "rdma:$address:4420" --nqn "$nqn" \
    --no-control >serve.log 2>&1 &
target=$!
eventually "the target listens" grep -q "listening on rdma:$address:4420" serve.log
for transport in tcp rdma; do
    # One queue, as an iSCSI session has.
    check "$transport: connect" nvme connect --transport=$transport --traddr=$address \
        --trsvcid=4420 --nqn=$nqn --nr-io-queues=1
    eventually "$transport: the disk appears" nvme_disk $transport
    nvme_disk $transport
    disks[nvme-$transport]=$found
done

paths=(iscsi-tcp iscsi-iser nvme-tcp nvme-rdma)
for path in "${paths[@]}"; do
    for sizes in 4k-64k 1M-1M; do
        verify "${disks[$path]}" $sizes >fio.log || fail "$path: $(cat fio.log)"
        ok "$path (${disks[$path]}): fio verifies $sizes"
    done
done

# The emulated processor's speed varies, so measure the four paths in turn.
for ((round = 1; round <= rounds; round++)); do
    line=0
    for pattern in "randread 4k" "randwrite 4k" "randread 64k" "randwrite 64k" \
        "read 1M" "write 1M"; do
        for depth in 1 16; do
            line=$((line + 1))
            for path in "${paths[@]}"; do
                fio --name="$path" --filename="${disks[$path]}" --direct=1 --ioengine=libaio \
                    --rw="${pattern% *}" --bs="${pattern#* }" --iodepth=$depth --time_based \
                    --runtime="$seconds" --output-format=json >fio.json ||
                    fail "$path $pattern: $(cat fio.json)"
                jq -r --arg key "$line $pattern $depth $path" \
                    '"\($key) \(.jobs[0] | .read.iops + .write.iops)"' fio.json >>results
            done
        done
        say "round $round: $pattern"
    done
done

# The table has the median of the rounds over iSCSI, and the other paths' ratios to it.
say "I/O per second over iSCSI, and the ratios of the others to it"
echo "| pattern | iSCSI | iSER | NVMe/TCP | NVMe/RDMA |"
echo "| --- | --- | --- | --- | --- |"
sort -k1,1n -k5,5 -k6,6n results | awk -v lines=$line '
    { name[$1] = $2 " " $3 " depth " $4; value[$1, $5, ++count[$1, $5]] = $6 }
    function median(line, path) { return value[line, path, int((count[line, path] + 1) / 2)] }
    END {
        for (line = 1; line <= lines; line++) {
            base = median(line, "iscsi-tcp")
            if (base == 0) exit 1
            printf "| %s | %d | %.2f | %.2f | %.2f |\n", name[line], base,
                median(line, "iscsi-iser") / base, median(line, "nvme-tcp") / base,
                median(line, "nvme-rdma") / base
        }
    }' || fail "no I/O over iSCSI: $(cat results)"

nvme disconnect --nqn=$nqn >/dev/null
iscsiadm -m node --logoutall=all >/dev/null
kill $target
wait $target || fail "the target ended with $?: $(tail serve.log)"
! grep -i panicked serve.log || fail "$(cat serve.log)"
say "done"
