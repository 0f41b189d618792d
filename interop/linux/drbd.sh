#!/bin/bash
# drbd.sh FARBLOCK: two guests replicate a disk with DRBD (8.4, the kernel's own). A farblock target
# in each guest shares it. The kernel's host in one guest, and farblock's host on this machine,
# write and verify. Meanwhile the primary role moves as in docs/guides/drbd.md, and one guest is
# killed and boots again (jobs/drbd-node.sh, jobs/drbd-host.sh). FARBLOCK is the binary. Run
# setup.sh once before. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$(dirname "$0")/stand.sh"

[ $# = 1 ] || die "usage: drbd.sh FARBLOCK"
if [ -z "${FARBLOCK_DRBD_INSIDE-}" ]; then
    # The guests' network is multicast on their own loopback. The PID namespace ends all processes.
    FARBLOCK_DRBD_INSIDE=1 exec unshare --map-root-user --net --pid --kill-child --fork --mount-proc \
        bash -c 'ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo && exec bash "$@"' \
        - "$0" "$@"
fi
farblock=$(realpath -- "$1")
stand
cd "$logs"

# shellcheck disable=SC2317 # called by the trap
ends() {
    local code=$?
    touch enough
    # shellcheck disable=SC2086 # if it is empty, there must be no argument
    kill $node_a $ours 2>/dev/null || true
    set +e
    (exit $code)
    clean_up
}
trap ends EXIT

nqn=nqn.2026-11.org.farblock:drbd
node_a=
ours=
commands=0

# --- Configuration of both nodes

cat >drbd.conf <<END
global { usage-count no; }
resource r0 {
    device /dev/drbd0;
    disk /dev/vda;
    meta-disk internal;
    net {
        protocol C;
        # DRBD notices a dead peer within seconds, but does not take a slow guest for dead.
        timeout 60; ping-int 3; ping-timeout 20; connect-int 3;
    }
    on a { address 10.9.0.1:7789; }
    on b { address 10.9.0.2:7789; }
}
END
# configuration CNTLIDS: prints the configuration of the target that shares the device.
configuration() {
    cat <<END
listeners = ["0.0.0.0:4420"]
ana = "inaccessible"
cntlids = "$1"

[[subsystems]]
nqn = "$nqn"
allow_any_host = true

[[subsystems.namespaces]]
path = "/dev/drbd0"
uuid = "6e1f7a52-3f0b-4b0a-9d0e-5a3d8c1b2f47"
END
}
mkdir a b share-a
strip -o share-a/farblock "$farblock"
configuration 1-999 >a/farblock.toml
configuration 1000-1999 >b/farblock.toml
echo a 10.9.0.1 >a/node
echo b 10.9.0.2 >b/node
truncate -s 32M a/disk b/disk
script=$linux_dir/../../contrib/drbd/farblock-drbd

# network NODE LAST: prints QEMU's arguments for the node's network and disk.
network() {
    echo "-netdev socket,id=lan,mcast=230.0.0.1:7790,localaddr=127.0.0.1" \
        "-device virtio-net-pci,netdev=lan,mac=52:54:00:12:34:0$2,romfile=" \
        "-drive file=$logs/$1/disk,if=none,id=disk,format=raw,cache=writeback" \
        "-device virtio-blk-pci,drive=disk"
}

# --- The commands that node b may request by name

start_a() {
    local known=()
    rm -f share-a/*.cmd share-a/*.out share-a/*.done
    commands=0
    [ ! -e a/known ] || known=(a/known)
    SHARE=$logs/share-a TIMEOUT=600 FWD="4421:4420" CPUS=1 MEM=768 QEMU_ARGS=$(network a 1) \
        "$linux_dir/guest.sh" "$linux_dir/jobs/drbd-node.sh" a/node a/farblock.toml drbd.conf \
        "$script" "$linux_dir/jobs/asked.sh" "${known[@]}" >>a.log 2>&1 &
    node_a=$!
    touch a/known
}
on_a() {
    commands=$((commands + 1))
    echo "$*" >share-a/part
    mv share-a/part share-a/$commands.cmd
    until [ -e share-a/$commands.done ]; do
        kill -0 "$node_a" 2>/dev/null || { echo "node a is gone"; return 1; }
        sleep 0.1
    done
    cat share-a/$commands.out
    return "$(cat share-a/$commands.done)"
}
# Simulates a power loss: the guest closes no connection, and notifies no peer.
kill_a() {
    pkill -KILL -P "$(pgrep -P "$node_a" timeout)"
    wait "$node_a" || true
}

# farblock's own host uses the disk over both nodes, in another part of it than the kernel's host.
ours_begins() {
    "$farblock" attach "nvme+tcp://127.0.0.1:4421/$nqn?ns=1" "nvme+tcp://127.0.0.1:4422/$nqn?ns=1" \
        --as nbd --socket "$logs/ours.sock" --keep-alive 3s --foreground >attach.log 2>&1 </dev/null &
    ours=$!
    until [ -S ours.sock ]; do kill -0 $ours && sleep 0.1; done
    while [ ! -e enough ]; do
        fio --name=ours --ioengine=nbd "--uri=nbd+unix:///?socket=$logs/ours.sock" --rw=randrw \
            --offset=8m --size=1m --bs=4k --iodepth=4 --verify=crc32c --verify_fatal=1 \
            --output-format=json --output=fio.json >fio.log 2>&1 || { touch wrong; break; }
        jq '[.jobs[] | .read.clat_ns.max, .write.clat_ns.max] | max / 1000000 | floor' fio.json >>waits
    done &
    load=$!
}
ours_ends() {
    touch enough
    wait "$load"
    [ ! -e wrong ] || { cat attach.log fio.log fio.json; return 1; }
    # fio must have run at least once in each phase of the test.
    [ "$(wc -l <waits)" -ge 5 ]
    kill "$ours"
    wait "$ours" || true
}
# Both disks must begin with the data that the kernel read last. DRBD's metadata follow.
same_on_both() {
    local bytes sum node
    read -r bytes sum <share/sum
    for node in a b; do
        head -c "$bytes" $node/disk | sha256sum | grep -F "$sum" >/dev/null ||
            { echo "the disk of $node holds other data"; return 1; }
    done
}

: >a.log
mkdir share
ln share-a/farblock share/farblock
start_a
SHARE=$logs/share TIMEOUT=600 FWD="4422:4420" CPUS=1 MEM=768 QEMU_ARGS=$(network b 2) \
    "$linux_dir/guest.sh" "$linux_dir/jobs/drbd-node.sh" b/node b/farblock.toml drbd.conf "$script" \
    "$linux_dir/jobs/drbd-host.sh" "$linux_dir/jobs/outside.sh" "$linux_dir/jobs/paths.sh" \
    >guest.log 2>&1 &
guest=$!
answer_requests
if ! wait $guest; then
    guest=
    tail -n 40 guest.log ctl.log a.log attach.log >&2
    exit 1
fi
guest=
wait "$node_a"
cat guest.log
echo "farblock's own disk: $(wc -l <waits) times verified, the longest operation took" \
    "$(sort -n waits | tail -n 1) ms"
echo "drbd.sh: all checks passed"
