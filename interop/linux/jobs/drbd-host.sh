# shellcheck shell=bash
# Sourced by drbd-node.sh on node b: the kernel's host uses both nodes' targets while the primary
# role moves, and while node a is killed and boots again.
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
# shellcheck source=outside.sh
. ./outside.sh
# shellcheck source=paths.sh
. ./paths.sh

nqn=nqn.2026-11.org.farblock:drbd
a=traddr=10.9.0.1
b=traddr=10.9.0.2
modprobe nvme-tcp

# drbd_is TEXT: whether /proc/drbd contains this text.
drbd_is() {
    local text
    text=$(</proc/drbd)
    [[ $text == *"$1"* ]]
}
# in_a_minute TEXT COMMAND...: like eventually, but waits longer, since the machine emulates two
# guests.
in_a_minute() {
    local try
    for ((try = 0; try < 600; try++)); do
        ! "${@:2}" || { ok "$1"; return; }
        sleep 0.1
    done
    fail "$1: not true within a minute: $(cat /proc/drbd)"
}
# milliseconds COMMAND...: sets 'took' to the command's duration in milliseconds.
milliseconds() {
    local begin=${EPOCHREALTIME/./}
    "$@"
    took=$(((${EPOCHREALTIME/./} - begin) / 1000))
}
to_a() {
    farblock-drbd demote r0
    outside on_a farblock-drbd promote r0
}
to_b() {
    outside on_a farblock-drbd demote r0
    farblock-drbd promote r0
}

in_a_minute "the nodes are connected" drbd_is cs:Connected
check "DRBD copies nothing, since both disks are empty" drbdadm new-current-uuid --clear-bitmap r0
in_a_minute "both disks are up to date" drbd_is ds:UpToDate/UpToDate

say "both are secondary"
outside on_a systemctl start farblock
check "the target starts although its device is secondary" systemctl start farblock
for address in $a $b; do
    check "connect by $address" nvme connect -t tcp -a "${address#*=}" -s 4420 -n $nqn -i 2 \
        --keep-alive-tmo=5 --reconnect-delay=1
    in_a_minute "the path to $address is inaccessible" access inaccessible $address
done

say "a becomes primary"
outside on_a farblock-drbd promote r0
in_a_minute "the path to a is optimized" access optimized $a
find_namespace $nqn 1
disk=$found
rounds_begin "$disk"
outside ours_begins
goes_on "a is primary"

say "the primary role moves"
milliseconds to_b
in_a_minute "the path to b is optimized" access optimized $b
equal "the ANA state of the path to a" inaccessible "$(access inaccessible $a && echo inaccessible)"
goes_on "the primary role moved to b within $took ms"
milliseconds to_a
in_a_minute "the path to a is optimized" access optimized $a
goes_on "the primary role moved to a within $took ms"

say "a dies"
outside kill_a
milliseconds farblock-drbd promote r0
in_a_minute "the path to b is optimized" access optimized $b
goes_on "b was made primary within $took ms"

say "a is back"
outside start_a
in_a_minute "DRBD has copied the differences" drbd_is ds:UpToDate/UpToDate
dmesg | sed -n 's/.*drbd0: \(Began resync.*\|Resync done.*\)/    \1/p'
outside on_a systemctl start farblock
in_a_minute "the path to a is connected again" way live $a
to_a
in_a_minute "the path to a is optimized" access optimized $a
goes_on "the primary role moved to a again"
rounds_end
outside ours_ends

say "the data on both disks are compared"
[[ $(dmesg) != *"I/O error, dev ${disk##*/}"* ]] || fail "I/O failed: $(dmesg)"
echo "$(blockdev --getsize64 "$disk") $(sum_of "$disk")" >/host/sum
check "disconnect" nvme disconnect -n $nqn
outside on_a systemctl stop farblock
check "stop" systemctl stop farblock
! grep panicked /run/farblock.log || fail "farblock serve panicked"
outside on_a drbdadm down r0
check "down" drbdadm down r0
sync
outside same_on_both
outside on_a exit
say "done"
