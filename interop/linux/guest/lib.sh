# Sourced by every job as /lib.sh: strictness, checks that say what they found, and helpers for the
# Linux kernel's NVMe host and target.
# shellcheck shell=bash
set -Eeuo pipefail
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR

configfs=/sys/kernel/config

# say TEXT...: a progress line, with the guest's clock.
say() { printf '[%s] %s\n' "$(cut -d ' ' -f 1 /proc/uptime)" "$*"; }

# ok TEXT...: one more thing that holds.
ok() { echo "ok: $*"; }

# fail TEXT...: ends the job, with the kernel's last words as a hint.
fail() {
    trap - ERR
    echo "FAIL: $*"
    echo "--- the kernel's last messages:"
    dmesg | tail -n 15
    exit 1
}

# check TEXT COMMAND...: the command must succeed; its output is shown only when it does not.
check() {
    local text=$1 output
    shift
    output=$("$@" 2>&1) || fail "$text: '$*' gave $output"
    ok "$text"
}

# equal TEXT EXPECTED ACTUAL
equal() {
    [ "$2" = "$3" ] || fail "$1: expected '$2', got '$3'"
    ok "$1 is $2"
}

# refused TEXT PATTERN COMMAND...: the command must fail, and say something that matches PATTERN.
refused() {
    local text=$1 pattern=$2 output
    shift 2
    if output=$("$@" 2>&1); then fail "$text: '$*' succeeded: $output"; fi
    [[ $output =~ $pattern ]] || fail "$text: '$*' failed with '$output', expected '$pattern'"
    ok "$text is refused: ${BASH_REMATCH[0]}"
}

# eventually TEXT COMMAND...: the command must succeed within ten seconds.
eventually() {
    local text=$1 try
    shift
    for ((try = 0; try < 100; try++)); do
        if "$@" >/dev/null 2>&1; then
            ok "$text"
            return
        fi
        sleep 0.1
    done
    fail "$text: '$*' did not succeed within 10 s"
}

# sum_of DEVICE [OFFSET LENGTH]: SHA-256 of its bytes, read past the page cache; both in bytes,
# multiples of 1 MiB.
sum_of() {
    local skip=$((${2:-0} / 1048576)) count=()
    [ $# -lt 3 ] || count=(count=$(($3 / 1048576)))
    dd if="$1" iflag=direct bs=1M skip=$skip "${count[@]}" 2>/dev/null | sha256sum |
        cut -d ' ' -f 1
}

# --- The kernel's host. The functions below find things by the subsystem's NQN.

# Every process costs an emulated processor dear, so these read sysfs without starting any, and
# answer in the variable 'found'. Files may vanish while we look: others connect and disconnect.

# first_line FILE: its first line in 'line', or nothing.
first_line() {
    line=
    { read -r line <"$1"; } 2>/dev/null || true
}

# find_controller NQN: finds the controller's name, e.g. nvme0.
find_controller() {
    local file line
    for file in /sys/class/nvme/*/subsysnqn; do
        first_line "$file"
        [ "$line" = "$1" ] || continue
        file=${file%/subsysnqn}
        found=${file##*/}
        return
    done
    return 1
}

# find_namespace NQN NSID: finds the namespace's device, e.g. /dev/nvme0n1.
find_namespace() {
    local directory line
    for directory in /sys/block/nvme*n*; do
        found=/dev/${directory##*/}
        [[ $found =~ ^/dev/nvme[0-9]+n[0-9]+$ && -b $found ]] || continue # no hidden paths
        first_line "$directory/device/subsysnqn"
        [ "$line" = "$1" ] || continue
        first_line "$directory/nsid"
        [ "$line" = "$2" ] || continue
        return
    done
    return 1
}

# --- The kernel's target, made of folders in configfs.

# memory_disk NAME SIZE_MIB BLOCK_SIZE: makes /dev/NAME (a null_blk disk that keeps its data).
memory_disk() {
    local directory=$configfs/nullb/$1
    [ -d "$configfs/nullb" ] || modprobe null_blk nr_devices=0
    mkdir "$directory"
    echo 1 >"$directory/memory_backed"
    echo "$2" >"$directory/size"
    echo "$3" >"$directory/blocksize"
    echo 1 >"$directory/discard"
    echo 1 >"$directory/power"
}

# target_subsystem NQN DEVICE...: a subsystem open to any host, one namespace per device.
target_subsystem() {
    local directory=$configfs/nvmet/subsystems/$1 nsid=1 device
    modprobe nvmet-tcp
    mkdir "$directory"
    echo 1 >"$directory/attr_allow_any_host"
    shift
    for device in "$@"; do
        mkdir "$directory/namespaces/$nsid"
        echo -n "$device" >"$directory/namespaces/$nsid/device_path"
        echo 1 >"$directory/namespaces/$nsid/enable"
        nsid=$((nsid + 1))
    done
}

# target_port PORT NQN...: serves the subsystems over TCP on every address of the guest.
target_port() {
    local directory=$configfs/nvmet/ports/$1 nqn
    mkdir "$directory"
    echo tcp >"$directory/addr_trtype"
    echo ipv4 >"$directory/addr_adrfam"
    echo 0.0.0.0 >"$directory/addr_traddr"
    echo "$1" >"$directory/addr_trsvcid"
    shift
    for nqn in "$@"; do ln -s "$configfs/nvmet/subsystems/$nqn" "$directory/subsystems/$nqn"; done
}
