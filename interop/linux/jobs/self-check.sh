# Guest job: kernel-host.sh against the kernel's own target, to test the harness without farblock:
# once with memory disks, and once with QEMU's emulated PCI disk, which adds some commands. Started
# by 'run.sh --self-check'.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

name=nqn.2024-01.farblock:self

# target LABEL PORT NQN BLOCK SIZES MODEL LACKS: adds a line to kernel-host.sh's list, with a lane
# for each target.
target() {
    echo "label=$1 lane=$1 address=127.0.0.1 port=$2 nqn=$3 block=$4 sizes=$5 model=$6 lacks=$7" \
        "checks=all" >>targets
}

memory_disk small 48 512
memory_disk small2 36 512
memory_disk large 36 4096
target_subsystem $name-512 /dev/small /dev/small2
target_subsystem $name-4096 /dev/large
target_port 4420 $name-512 $name-4096
lacks=compare,verify,list-ctrl,supported-logs,lba-range,copy
target kernel-512 4420 $name-512 512 50331648,37748736 Linux $lacks
target kernel-4096 4420 $name-4096 4096 37748736 Linux $lacks

# The disk that run.sh attached to QEMU.
modprobe nvme
eventually "QEMU's disk appears" test -b /dev/nvme0n1
subsystem=$configfs/nvmet/subsystems/$name-pass
mkdir "$subsystem"
echo 1 >"$subsystem/attr_allow_any_host"
echo -n /dev/nvme0 >"$subsystem/passthru/device_path"
echo 1 >"$subsystem/passthru/enable"
target_port 4421 $name-pass
target passthrough 4421 $name-pass 512 37748736 QEMU_NVMe_Ctrl \
    list-ctrl,supported-logs,identifiers,verify-bit,feature-status

. ./kernel-host.sh
