# Guest job of namespaces.sh: the kernel's host uses a target with many namespaces. The file
# "target" has the target's port and NQN, and the number of namespaces.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

read -r port nqn number <target
# Disable multipath, which would make two devices for each namespace.
modprobe nvme-core multipath=N
modprobe nvme-tcp
check "connect" nvme connect --transport=tcp --traddr=10.0.2.2 --trsvcid="$port" --nqn="$nqn" \
    --nr-io-queues=1
find_controller "$nqn" || fail "there is no controller"
controller=$found

# disks: sets 'disks' to the number of the controller's disks.
disks() {
    local all=(/sys/class/nvme/"$controller"/nvme*n*)
    disks=${#all[@]}
}
disks=0 before=-1
# The kernel scans in the background, and each disk takes some time under emulation.
while disks && [ "$disks" -lt "$number" ]; do
    [ "$disks" != $before ] || fail "after $before of $number disks the kernel finds no more"
    before=$disks
    say "$disks disks"
    sleep 20
done
equal "the number of disks" "$number" "$disks"

for nsid in 1 1024 1025 "$number"; do
    find_namespace "$nqn" "$nsid" || fail "there is no namespace $nsid"
    printf 'disk %06d' "$nsid" >block
    truncate -s 4096 block
    check "namespace $nsid ($found): write" dd if=block of="$found" oflag=direct bs=4096 count=1
    check "namespace $nsid: read" dd if="$found" of=read iflag=direct bs=4096 count=1
    check "namespace $nsid: compare" cmp block read
done
check "disconnect" nvme disconnect -n "$nqn"
say "done"
