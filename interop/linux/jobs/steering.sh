# Guest job of steering.sh: the kernel's host connects to the target at 10.0.2.2, whose port is in
# the file "port". The job sends requests in /host/N.ask and gets answers in /host/N.done. It never
# rescans, so the kernel sees only changes that the target announced.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

nqn=nqn.2026-11.org.farblock:steered
port=$(cat port)
host_id=9d2cb1f6-5f0f-4c0b-8f51-2b6b5f0c7e01
host=nqn.2014-08.org.nvmexpress:uuid:$host_id
modprobe nvme-tcp
# shellcheck source=outside.sh
. ./outside.sh

# is_there NSID MIB, is_gone NSID, is_read_only NSID 0|1: check the kernel's state in sysfs.
is_there() {
    local sectors
    find_namespace $nqn "$1" || return 1
    read -r sectors <"/sys/block/${found#/dev/}/size" && [ "$sectors" = $(($2 * 2048)) ]
}
is_gone() { ! find_namespace $nqn "$1"; }
is_read_only() {
    local flag
    find_namespace $nqn "$1" && read -r flag <"/sys/block/${found#/dev/}/ro" && [ "$flag" = "$2" ]
}
# stored TEXT NSID: writes data, and checks that reads return them.
stored() {
    find_namespace $nqn "$2" || fail "$1: there is no namespace $2"
    head -c 1048576 /dev/urandom >/run/data
    check "$1: a write succeeds" dd if=/run/data of="$found" bs=64k oflag=direct conv=notrunc
    dd if="$found" bs=64k count=16 iflag=direct 2>/dev/null | cmp - /run/data ||
        fail "$1: reads return different data than was written"
    ok "$1: reads return the written data"
}

check "connect" nvme connect -t tcp -a 10.0.2.2 -s "$port" -n $nqn -i 2 \
    --hostnqn=$host --hostid=$host_id
eventually "namespace 1 appears" is_there 1 32
find_namespace $nqn 1
first=$found
find_controller $nqn
controller=$found
load_begins "$first"

say "farblock ctl"
outside add
eventually "an added namespace appears" is_there 2 16
stored "the added one" 2
outside resize
eventually "a resized namespace has its new size" is_there 2 20
stored "the longer one" 2
outside read_only on
eventually "a namespace becomes read-only" is_read_only 2 1
find_namespace $nqn 2
refused "a write to the read-only namespace" "." \
    dd if=/run/data of="$found" bs=64k oflag=direct conv=notrunc
dd if="$found" bs=64k count=16 iflag=direct 2>/dev/null | cmp - /run/data ||
    fail "a refused write changed the namespace"
outside read_only off
eventually "a namespace becomes writable" is_read_only 2 0
stored "the writable one" 2
outside hide
eventually "a namespace hidden from this host disappears" is_gone 2
outside show $host
eventually "a namespace shown to this host appears again" is_there 2 20
stored "the namespace that appeared again" 2
outside remove
eventually "a removed namespace disappears" is_gone 2

say "the configuration file"
outside reload 3 two.img
eventually "reload: an added namespace appears" is_there 3 20
stored "the namespace that reload added" 3
outside broken
check "a reload of a broken file removes nothing" is_there 3 20
outside hangup 3 other.img
eventually "SIGHUP: another disk replaces the namespace's disk" is_there 3 24
stored "the other disk" 3
outside grow
eventually "a namespace grows with its file" is_there 3 40
outside hangup
eventually "SIGHUP: a removed namespace disappears" is_gone 3

load_ends "namespace 1"
find_controller $nqn
equal "the controller has not changed" "$controller" "$found"
check "namespace 1 still exists" is_there 1 32
said=$(dmesg)
[[ $said != *"error, dev ${first#/dev/}"* ]] || fail "I/O to namespace 1 failed: $said"
[[ $said != *reconnect* ]] || fail "the connection was lost: $said"
check "disconnect" nvme disconnect -n $nqn

say "restarts"
# The kernel's default is ten seconds between two attempts.
check "connect" nvme connect -t tcp -a 10.0.2.2 -s "$port" -n $nqn -i 2 --reconnect-delay=1 \
    --hostnqn=$host --hostid=$host_id
eventually "namespace 1 appears" is_there 1 32
find_namespace $nqn 1
# written: prints the number of writes that the kernel has completed.
written() {
    local numbers
    read -ra numbers <"/sys/block/${found#/dev/}/stat"
    echo "${numbers[4]}"
}
# goes_on TEXT: checks that the load continues to write.
goes_on() {
    local before try
    before=$(written)
    for ((try = 0; try < 600; try++)); do
        [ "$(written)" -le $((before + 50)) ] || { ok "$1"; return; }
        sleep 0.1
    done
    fail "$1: the load writes nothing"
}
fio --name=restarted --filename="$found" --direct=1 --rw=randwrite --bs=4k --size=8M --time_based \
    --runtime=30 --verify=crc32c --verify_backlog=64 --verify_fatal=1 --minimal >/run/restarted &
load=$!
for time in first second; do
    goes_on "before the $time restart"
    outside restart
    goes_on "after the $time restart"
done
wait $load || fail "the load failed during restarts: $(cat /run/restarted)"
# The limit for the longest write, in microseconds. It is generous, since the machine may be busy.
pause=$(cut -d';' -f56 /run/restarted)
[ "$pause" -lt 30000000 ] || fail "a write took $pause µs"
ok "I/O paused for $((pause / 1000)) ms at most, and none failed"
check "disconnect again" nvme disconnect -n $nqn
say "done"
