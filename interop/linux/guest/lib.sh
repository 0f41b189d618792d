# Sourced by every job as /lib.sh: strict mode, checks with error messages, and helpers for the
# Linux kernel's NVMe host and target.
# shellcheck shell=bash
set -Eeuo pipefail
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR

configfs=/sys/kernel/config

# say TEXT...: prints a progress line with the guest's time.
say() { printf '[%s] %s\n' "$(cut -d ' ' -f 1 /proc/uptime)" "$*"; }

# ok TEXT...: reports a success.
ok() { echo "ok: $*"; }

# fail TEXT...: ends the job, and prints the kernel's last messages as a hint.
fail() {
    trap - ERR
    echo "FAIL: $*"
    echo "--- the kernel's last messages:"
    dmesg | tail -n 15
    exit 1
}

# check TEXT COMMAND...: the command must succeed. Prints its output only if it fails.
check() {
    local text=$1 output
    shift
    output=$("$@" 2>&1) || fail "$text: '$*' gave $output"
    ok "$text"
}

# equal TEXT EXPECTED ACTUAL: the two values must be equal.
equal() {
    [ "$2" = "$3" ] || fail "$1: expected '$2', got '$3'"
    ok "$1 is $2"
}

# refused TEXT PATTERN COMMAND...: the command must fail, with output that matches PATTERN.
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

# sum_of DEVICE [OFFSET LENGTH]: prints the SHA-256 of the device's bytes, read without the page
# cache. Offset and length are in bytes, and multiples of 1 MiB.
sum_of() {
    local skip=$((${2:-0} / 1048576)) count=()
    [ $# -lt 3 ] || count=(count=$(($3 / 1048576)))
    dd if="$1" iflag=direct bs=1M skip=$skip "${count[@]}" 2>/dev/null | sha256sum |
        cut -d ' ' -f 1
}

# --- Loads for a disk

# The number of bytes that the next two functions write; a job may choose fewer.
load_bytes=20000000

# verify DEVICE SIZES [OPTION...]: fio writes blocks of these sizes at random, and reads them back.
verify() {
    local device=$1 sizes=$2
    shift 2
    fio --name=verify --filename="$device" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite \
        --bsrange="$sizes" --size="$load_bytes" --verify=crc32c --verify_fatal=1 --minimal "$@"
}

# load_begins DEVICE: starts fio, which writes and verifies in rounds until load_ends.
load_begins() {
    load_bytes=2000000
    while [ ! -e /run/enough ]; do
        verify "$1" 512-64k >/run/fio.log 2>&1 || { touch /run/wrong; break; }
        echo >>/run/rounds
    done &
    load=$!
}

# load_ends TEXT: stops the load, which must have completed a round without an error.
load_ends() {
    touch /run/enough
    wait $load
    [ ! -e /run/wrong ] || fail "the load failed: $(cat /run/fio.log)"
    [ -e /run/rounds ] || fail "the load completed no round"
    ok "$1 was written and verified $(wc -l </run/rounds) times meanwhile"
}

# file_system TEXT DEVICE: makes, uses and checks a file system on the device.
file_system() {
    local sum
    check "$1: mkfs.ext4" mkfs.ext4 -q -F "$2"
    check "$1: mount" mount -o discard "$2" /mnt
    head -c "$load_bytes" /dev/urandom >/mnt/random
    sum=$(sha256sum </mnt/random)
    check "$1: copy" cp /mnt/random /mnt/copy
    check "$1: delete" rm /mnt/random
    check "$1: fstrim" fstrim /mnt
    check "$1: umount" umount /mnt
    echo 3 >/proc/sys/vm/drop_caches
    check "$1: e2fsck" e2fsck -fn "$2"
    check "$1: mount again" mount -o ro "$2" /mnt
    equal "$1: the file's checksum" "$sum" "$(sha256sum </mnt/copy)"
    check "$1: umount again" umount /mnt
}

# --- The kernel's host. These functions find controllers and devices by the subsystem's NQN.

# These functions read sysfs with the shell alone, because starting a process is slow on an emulated
# processor. They return their result in 'found'. Files may vanish meanwhile, because other jobs
# connect and disconnect.

# first_line FILE: sets 'line' to the file's first line, or to an empty string.
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
        [[ $found =~ ^/dev/nvme[0-9]+n[0-9]+$ && -b $found ]] || continue # skip hidden paths
        first_line "$directory/device/subsysnqn"
        [ "$line" = "$1" ] || continue
        first_line "$directory/nsid"
        [ "$line" = "$2" ] || continue
        return
    done
    return 1
}

# --- The kernel's target, which folders in configfs configure.

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

# target_subsystem NQN DEVICE...: creates a subsystem with a namespace per device, for any host.
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
