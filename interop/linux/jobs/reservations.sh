# Guest job: two hosts (with their own names, identifiers and keys) share a namespace of the target
# at 10.0.2.2, whose port is in the file "port", and use nvme-cli's resv-* commands. Once, the job
# requests that reservations.sh, outside of the guest, kill the target (a line KILL), and waits for
# /host/restarted.
# shellcheck shell=bash disable=SC2016 # the dollars in single quotes are jq's
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

nqn=nqn.2024-01.farblock:reserved
port=$(cat port)
conflict='[Rr]eservation [Cc]onflict'

# Without multipath, so that each host has its own device.
modprobe nvme-core multipath=N
modprobe nvme-tcp

# connect_host NUMBER: sets device[NUMBER] and controller[NUMBER].
device=() controller=()
connect_host() {
    local id=0000000$1-1111-4222-8333-444444444444 path try
    nvme connect --transport=tcp --traddr=10.0.2.2 --trsvcid="$port" --nqn=$nqn \
        --hostnqn="nqn.2014-08.org.nvmexpress:uuid:$id" --hostid="$id" --nr-io-queues=2 ||
        fail "host $1 cannot connect"
    for ((try = 0; try < 200; try++)); do
        for path in /sys/class/nvme/nvme*; do
            [ "$(cat "$path/hostid" 2>/dev/null)" = "$id" ] || continue
            controller[$1]=${path##*/}
            device[$1]=$(echo "$path"/nvme*n1)
            device[$1]=/dev/${device[$1]##*/}
            [ ! -b "${device[$1]}" ] || return 0
        done
        sleep 0.1
    done
    fail "host $1 has no disk: $(ls /sys/class/nvme/*)"
}

# register HOST [OPTION...], acquire HOST TYPE [OPTION...]: use the host's number as the key.
register() { nvme resv-register "${device[$1]}" --nrkey="$1" --rrega=0 "${@:2}"; }
acquire() { nvme resv-acquire "${device[$1]}" --crkey="$1" --rtype="$2" "${@:3}"; }
# report TEXT HOST FILTER: the reservation report to the host must satisfy the jq filter.
report() {
    local output
    output=$(nvme resv-report "${device[$2]}" --eds --output-format=json) || fail "$1: $output"
    jq -e "$3" <<<"$output" >/dev/null || fail "$1: '$3' is false for $output"
    ok "$1"
}
# put HOST BYTE, get HOST: writes and reads block 0.
put() {
    head -c 4096 /dev/zero | tr '\0' "$2" >/run/data
    nvme write "${device[$1]}" --start-block=0 --block-count=7 --data=/run/data --data-size=4096
}
get() {
    nvme read "${device[$1]}" --start-block=0 --block-count=7 --data=/run/back --data-size=4096 \
        2>&1 || return
    head -c 1 /run/back
}

connect_host 1
connect_host 2
check "id-ns reports the reservation capabilities" sh -c \
    "nvme id-ns ${device[1]} --output-format=json | jq -e '.rescap == 255'"
check "id-ctrl reports support for reservations" sh -c \
    "nvme id-ctrl /dev/${controller[1]} --output-format=json | jq -e '(.oncs / 32 | floor) % 2 == 1'"

say "keys"
refused "acquiring without a key" "$conflict" acquire 1 1 --racqa=0
check "host 1 registers" register 1 --cptpl=3
check "host 2 registers" register 2
refused "registering another key" "$conflict" \
    nvme resv-register "${device[2]}" --nrkey=9 --rrega=0
report "both hosts are registered, and the registrations persist" 1 '.regctl == 2 and .rtype == 0 and .ptpls == 1'

say "write exclusive"
check "host 1 acquires" acquire 1 1 --racqa=0
check "host 1 writes" put 1 a
refused "host 2's write" "$conflict" put 2 b
equal "the data that host 2 reads" a "$(get 2 | tail -c 1)"
refused "host 2's acquiring" "$conflict" acquire 2 1 --racqa=0
report "host 1 holds it" 2 '.rtype == 1 and ([.. | .rcsts? // empty] | add) == 1'
check "host 1 releases" nvme resv-release "${device[1]}" --crkey=1 --rtype=1 --rrela=0
check "host 2 writes" put 2 c

say "exclusive access, registrants only"
check "host 2 acquires" acquire 2 4 --racqa=0
check "host 1 writes, being registered" put 1 d
check "host 1 unregisters its key" nvme resv-register "${device[1]}" --crkey=1 --rrega=1
refused "host 1's read" "$conflict" nvme read "${device[1]}" --start-block=0 --block-count=7 \
    --data=/run/back --data-size=4096
check "host 1 registers again" register 1

say "preempt under load"
dd if=/dev/zero of=/run/zeroes bs=1M count=4 2>/dev/null
# Write until the target refuses: the kernel has several of host 2's writes in flight.
(while dd if=/run/zeroes of="${device[2]}" bs=64k oflag=direct conv=notrunc 2>/dev/null; do :; done) &
writer=$!
sleep 2
kill -0 $writer || fail "host 2 does not write"
check "host 1 preempts and aborts" acquire 1 1 --prkey=2 --racqa=2
head -c 4194304 /dev/urandom >/run/random
check "host 1 writes at once" dd if=/run/random of="${device[1]}" bs=256k oflag=direct conv=notrunc
wait $writer
sleep 1
dd if="${device[1]}" bs=256k count=16 iflag=direct 2>/dev/null | cmp - /run/random ||
    fail "a write of the fenced host changed the disk after the fence"
ok "no write of the fenced host changed the disk after the fence"
report "host 2 is not registered" 1 '.regctl == 1 and .rtype == 1'
output=$(nvme resv-notif-log "/dev/${controller[2]}" --output-format=json)
[[ $output == *1* ]] || fail "host 2 got no notification: $output"
ok "host 2 was notified: $(tr -s ' \n' ' ' <<<"$output")"

say "the target is killed"
nvme disconnect --nqn=$nqn
echo KILL
for ((try = 0; try < 600; try++)); do [ ! -e /host/restarted ] || break; sleep 0.1; done
connect_host 1
connect_host 2
report "the namespace is still reserved" 2 '.regctl == 1 and .rtype == 1 and .ptpls == 1'
refused "host 2's write" "$conflict" put 2 e
check "host 1 writes" put 1 f
check "host 1 clears" nvme resv-release "${device[1]}" --crkey=1 --rrela=1
report "no host is registered" 2 '.regctl == 0 and .rtype == 0'
check "host 2 writes" put 2 g
say "done"
