# shellcheck shell=bash
# Sourced by jobs with two paths to a disk, one of which is lost: functions to find a path by its
# address, and a load that measures how long I/O waits.

# controller ADDRESS: finds the controller whose address contains this text, such as trsvcid=4420.
controller() {
    local path line
    for path in /sys/class/nvme/nvme*; do
        first_line "$path/address"
        [[ ,$line, == *[,]"$1"[,]* ]] || continue
        found=${path##*/}
        return
    done
    return 1
}

# way STATE ADDRESS: whether the controller at this address has this state: live, connecting, ...
way() {
    local line
    controller "$2" || return 1
    first_line "/sys/class/nvme/$found/state"
    [ "$line" = "$1" ]
}

# access STATE ADDRESS: whether the kernel sees this ANA state for the controller's only namespace.
access() {
    local line path
    controller "$2" || return 1
    for path in "/sys/class/nvme/$found/nvme"*c*n*; do
        first_line "$path/ana_state"
        [ "$line" = "$1" ] && return
    done
    return 1
}

# rounds_begin DEVICE: fio writes and verifies repeatedly, until rounds_end.
rounds_begin() {
    local device=$1 round
    # shellcheck disable=SC2034 # for verify
    load_bytes=1000000
    for ((round = 1; ; round++)); do
        [ ! -e /run/enough ] || break
        verify "$device" 4k-16k --iodepth=4 --output-format=json --output=/run/fio.json \
            >/run/fio.log 2>&1 || { touch /run/wrong; break; }
        jq '[.jobs[] | .read.clat_ns.max, .write.clat_ns.max] | max / 1000000 | floor' \
            /run/fio.json >>/run/waits
        echo $round >/run/round
    done &
    load=$!
}

# round_of_load: prints the number of the last completed round; 0 before the first.
round_of_load() {
    local line
    first_line /run/round
    echo "${line:-0}"
}

# goes_on TEXT: checks that the load continues: waits until a round succeeds that started after this
# call. Prints the longest duration of an operation since the last call, in ms.
goes_on() {
    local from waits try
    from=$(round_of_load)
    for ((try = 0; try < 1200; try++)); do
        [ ! -e /run/wrong ] || fail "$1: $(cat /run/fio.log /run/fio.json)"
        [ "$(round_of_load)" -lt $((from + 2)) ] || break
        sleep 0.1
    done
    [ "$(round_of_load)" -ge $((from + 2)) ] || fail "$1: the load has stopped"
    waits=$(sort -n /run/waits | tail -n 1)
    : >/run/waits
    ok "$1: the load continues, the longest operation took $waits ms"
}

# rounds_end: stops the load, which must have found no error.
rounds_end() {
    touch /run/enough
    wait $load
    [ ! -e /run/wrong ] || fail "the load failed: $(cat /run/fio.log /run/fio.json)"
    ok "the written data were read $(round_of_load) times"
}
