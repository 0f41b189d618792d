# Guest job of nodes.sh: on a machine with two NUMA nodes, a fleet makes a set on each node, and
# 'farblock serve' runs on its disk's node.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

cp /host/farblock .
modprobe nvme
# disk SERIAL NUMBER: finds the device by its serial number, since the kernel's order of controllers
# varies.
disk() {
    local controller
    controller=$(grep -lx "$1 *" /sys/class/nvme/*/serial)
    controller=${controller%/serial}
    echo "/dev/${controller##*/}n$2"
}
all_there() { for it in {node0,node1}\ {1,2}; do test -b "$(disk $it)" || return; done; }
eventually "four disks appear" all_there
near=("$(disk node0 1)" "$(disk node0 2)")
far=("$(disk node1 1)" "$(disk node1 2)")

say "a fleet"
cat >plan.toml <<TOML
drives = ["${near[0]}", "${far[0]}", "${far[1]}", "${near[1]}"]
sets_per_target = 2
sets_by_node = true
clients_per_node = 2
ramp_seconds = 0.1
runtime_seconds = 1.0
verify_seconds = 0.3
[[actions]]
load = "randread,bs=4k,iodepth=4,numjobs=1"
TOML
check "the fleet runs" ./farblock --quiet fleet run plan.toml --loopback --allow-writes --json report.json
sets=$(jq -c '[.sets[0].sets[] | [.node, .drives, .processors]]' report.json)
equal "the set of each node, and the processors that serve it" \
    "[[0,[\"${near[0]}\",\"${near[1]}\"],[0]],[1,[\"${far[0]}\",\"${far[1]}\"],[1]]]" "$sets"
check "both sets were read, written and compared" \
    jq -e '.actions[0].total.iops > 0 and .verified.writes > 0 and .verified.lost == 0' report.json

say "all disks on one node"
sed -i -e "s#^drives = .*#drives = [\"${far[0]}\", \"${far[1]}\"]#" \
    -e '/^verify_seconds/d' -e 's/^runtime_seconds.*/runtime_seconds = 0.3/' plan.toml
check "the fleet runs" ./farblock --quiet fleet run plan.toml --loopback --allow-writes --json report.json
equal "the reason why no node has its own set" '["all drives are at NUMA node 1",[1,1],[[1],[1]]]' \
    "$(jq -c '.sets[0] | [.not_by_node, [.sets[].node], [.sets[].processors]]' report.json)"

say "a target"
./farblock serve "${far[0]}" --listen 127.0.0.1:0 -v >/run/serve.out 2>&1 &
target=$!
eventually "the target listens" grep -q '^listening' /run/serve.out
grep -o 'disks and network cards .*' /run/serve.out >/run/where || fail "$(cat /run/serve.out)"
equal "the processors of the target" \
    'disks and network cards are on node 1: using its cores [1]' "$(cat /run/where)"
kill $target
wait $target
say "done"
