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
eventually "namespace 1 by one port" is 1 "$one" optimized
eventually "and by the other" is 1 "$two" optimized
find_namespace $nqn 1
disk=$found
controller "$one"
first=$found
said=$(nvme id-ctrl "/dev/$first")
[[ $said =~ cmic[[:space:]]*:[[:space:]]*(0x)?(b|11)[[:space:]] ]] || fail "CMIC: $said"
said=$(nvme ana-log "/dev/$first")
[[ $said == *optimized* ]] || fail "the log page: $said"
equal "the controller's identifier" 100 "$(cat "/sys/class/nvme/$first/cntlid")"

load_begins "$disk"

say "states under load"
outside set_ana "$two" inaccessible
eventually "the second is inaccessible" is 1 "$two" inaccessible
outside set_ana "$two" non-optimized
eventually "it is non-optimized" is 1 "$two" non-optimized
outside set_ana "$one" inaccessible
eventually "the first is inaccessible: the load moves" is 1 "$one" inaccessible
outside set_ana "$two" change
eventually "a change begins: the load waits" is 1 "$two" change
sleep 1
outside set_ana "$two" optimized
eventually "it ends" is 1 "$two" optimized
outside set_ana "$one" persistent-loss
eventually "the first is lost" is 1 "$one" persistent-loss
outside set_ana "$one" optimized
eventually "and there again" is 1 "$one" optimized

say "groups"
outside group 2
eventually "namespace 2 is in a group of its own" group 2 "$one" 2
eventually "elsewhere, too" group 2 "$two" 2
outside set_ana "$one" inaccessible --group 2
eventually "which cannot be reached there" is 2 "$one" inaccessible
equal "namespace 1 there" optimized "$(state 1 "$one")"
equal "namespace 2 elsewhere" optimized "$(state 2 "$two")"
outside group 1
eventually "and back" is 2 "$one" optimized

load_ends "it"
said=$(dmesg)
[[ $said != *"I/O error"* ]] || fail "I/O failed: $said"
[[ $said != *reconnect* ]] || fail "a connection was lost: $said"
check "disconnect" nvme disconnect -n $nqn
say "done"
