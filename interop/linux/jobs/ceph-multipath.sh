# Guest job of ceph-multipath.sh: the kernel's host connects to two targets at 10.0.2.2, over the
# two ports in the file "ports". The targets share one Ceph image. The kernel's own multipath keeps
# the disk usable while ceph-multipath.sh, outside of the guest, kills the targets in turn.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh
# shellcheck source=outside.sh
. ./outside.sh
# shellcheck source=paths.sh
. ./paths.sh

nqn=nqn.2026-11.org.farblock:ceph
read -r one two <ports
modprobe nvme-tcp
equal "the kernel's multipath" Y "$(cat /sys/module/nvme_core/parameters/multipath)"

for port in $one $two; do
    check "connect by $port" nvme connect -t tcp -a 10.0.2.2 -s "$port" -n $nqn -i 2 \
        --keep-alive-tmo=2 --reconnect-delay=1
done
eventually "one path to the image" access optimized "trsvcid=$one"
eventually "the other path to the image" access optimized "trsvcid=$two"
find_namespace $nqn 1
disk=$found
disks=(/sys/block/nvme*n1)
equal "the image is one disk" 1 "$(printf '%s\n' "${disks[@]}" | grep -cv 'c[0-9]*n1$')"
echo round-robin >"/sys/block/${disk##*/}/device/iopolicy"

rounds_begin "$disk"
goes_on "with two targets"
for port in $one $two; do
    outside kill_target "$port"
    eventually "the path over port $port is lost" way connecting "trsvcid=$port"
    goes_on "without the target at $port"
    outside start_target "$port"
    eventually "the path over port $port is live again" way live "trsvcid=$port"
    goes_on "with two targets"
done
say "both targets are killed at once"
outside kill_both "$one" "$two"
eventually "the path over port $one is lost" way connecting "trsvcid=$one"
eventually "the path over port $two is lost" way connecting "trsvcid=$two"
outside start_target "$two"
goes_on "with only the target at $two"
outside start_target "$one"
eventually "the path over port $one is live again" way live "trsvcid=$one"
goes_on "with both targets again"
rounds_end
said=$(dmesg)
[[ $said != *"I/O error, dev ${disk##*/}"* ]] || fail "I/O failed: $said"
sum_of "$disk" >/host/sum
check "disconnect" nvme disconnect -n $nqn
outside same_in_ceph
say "done"
