#!/bin/bash
# nodes.sh FARBLOCK: a guest has two NUMA nodes, each with a processor and an NVMe controller with
# two disks. Tests a fleet's sets per node (`sets_by_node`), and the node on which 'farblock serve'
# runs (jobs/nodes.sh). FARBLOCK is the binary. Run setup.sh once before. Exit code: 0 success, 1 a
# test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || die "usage: nodes.sh FARBLOCK"
[ -x "$1" ] || die "there is no program $1; build farblock."
work=$(mktemp -d "${TMPDIR:-/tmp}/farblock-nodes.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/host"
# Strip debug information, so that the copy to the guest takes less time.
strip -o "$work/host/farblock" "$1"

# Adds a PCI bus with a controller to the node.
machine=
for node in 0 1; do
    machine+=" -object memory-backend-ram,id=memory$node,size=768M"
    machine+=" -numa node,nodeid=$node,cpus=$node,memdev=memory$node"
    machine+=" -device pxb-pcie,id=bus$node,bus=pcie.0,bus_nr=$((64 + 64 * node)),numa_node=$node"
    machine+=" -device pcie-root-port,id=port$node,bus=bus$node,chassis=$((node + 1))"
    machine+=" -device nvme,id=nvme$node,bus=port$node,serial=node$node"
    for disk in 1 2; do
        truncate -s 64M "$work/$node-$disk"
        machine+=" -blockdev driver=file,node-name=disk$node$disk,filename=$work/$node-$disk"
        machine+=" -device nvme-ns,bus=nvme$node,drive=disk$node$disk,nsid=$disk"
    done
done
QEMU_ARGS=$machine MEM=1536 SHARE=$work/host TIMEOUT=900 \
    "$linux_dir/guest.sh" "$linux_dir/jobs/nodes.sh"
echo "nodes.sh: all checks passed"
