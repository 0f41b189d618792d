# Guest job of target-ana.sh: the kernel's host, with its own multipath, connects to the target at
# 10.0.2.2 over the two ports in the file "ports". The target must announce each change, and no
# connection may be lost.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

nqn=nqn.2026-11.org.farblock:ana
read -r one two <ports
modprobe nvme-tcp
# shellcheck source=outside.sh
. ./outside.sh
equal "the kernel's multipath" Y "$(cat /sys/module/nvme_core/parameters/multipath)"

# controller PORT: finds the controller with this port.
controller() {
    local path line
    for path in /sys/class/nvme/nvme*; do
        first_line "$path/address"
        [[ $line == *"trsvcid=$1"* ]] || continue
        found=${path##*/}
        return
    done
    return 1
}
# path NSID PORT: finds the kernel's path to the namespace. The numbers in device names are not
# NSIDs: the kernel scans namespaces in parallel, and may find the second one first.
path() {
    local directory line
    controller "$2" || return 1
    for directory in "/sys/class/nvme/$found/nvme"*c*n*; do
        first_line "$directory/nsid"
        [ "$line" = "$1" ] || continue
        found=$directory
        return
    done
    return 1
}
# state NSID PORT: the kernel's ANA state of the path.
state() {
    local line
    path "$1" "$2" || return 1
    first_line "$found/ana_state"
    echo "$line"
}
is() { [ "$(state "$1" "$2")" = "$3" ]; }
# group NSID PORT GROUP: whether the kernel lists the path in this ANA group.
group() {
    local line
    path "$1" "$2" || return 1
    first_line "$found/ana_grpid"
    [ "$line" = "$3" ]
}

for port in $one $two; do
    check "connect by $port" nvme connect -t tcp -a 10.0.2.2 -s "$port" -n $nqn -i 2
done
eventually "namespace 1 is optimized over port $one" is 1 "$one" optimized
eventually "namespace 1 is optimized over port $two" is 1 "$two" optimized
find_namespace $nqn 1
disk=$found
controller "$one"
first=$found
said=$(nvme id-ctrl "/dev/$first")
[[ $said =~ cmic[[:space:]]*:[[:space:]]*(0x)?(b|11)[[:space:]] ]] || fail "CMIC: $said"
said=$(nvme ana-log "/dev/$first")
[[ $said == *optimized* ]] || fail "the ANA log page lacks the state optimized: $said"
equal "the controller's identifier" 100 "$(cat "/sys/class/nvme/$first/cntlid")"

load_begins "$disk"

say "states under load"
outside set_ana "$two" inaccessible
eventually "the path over port $two is inaccessible" is 1 "$two" inaccessible
outside set_ana "$two" non-optimized
eventually "the path over port $two is non-optimized" is 1 "$two" non-optimized
outside set_ana "$one" inaccessible
eventually "the path over port $one is inaccessible: the load moves" is 1 "$one" inaccessible
outside set_ana "$two" change
eventually "the path over port $two is in state change: the load waits" is 1 "$two" change
sleep 1
outside set_ana "$two" optimized
eventually "the path over port $two is optimized again" is 1 "$two" optimized
outside set_ana "$one" persistent-loss
eventually "the path over port $one has the state persistent loss" is 1 "$one" persistent-loss
outside set_ana "$one" optimized
eventually "the path over port $one is optimized again" is 1 "$one" optimized

say "groups"
outside group 2
eventually "namespace 2 is in another ANA group" group 2 "$one" 2
eventually "the path over port $two has namespace 2 in that ANA group, too" group 2 "$two" 2
outside set_ana "$one" inaccessible --group 2
eventually "the other ANA group is inaccessible over port $one" is 2 "$one" inaccessible
equal "the state of namespace 1 over port $one" optimized "$(state 1 "$one")"
equal "the state of namespace 2 over port $two" optimized "$(state 2 "$two")"
outside group 1
eventually "namespace 2 is optimized over port $one again" is 2 "$one" optimized

load_ends "the disk"
said=$(dmesg)
[[ $said != *"I/O error"* ]] || fail "I/O failed: $said"
[[ $said != *reconnect* ]] || fail "a connection was lost: $said"
check "disconnect" nvme disconnect -n $nqn
say "done"
