#!/bin/bash
# ublk.sh FARBLOCK FOLDER: farblock's block devices by ublk, and devices of the kernel's own NVMe
# host, in a guest. FARBLOCK is the program; FOLDER has ublk_serve and nvme_attach (make
# built-for-guests). `farblock serve` shares the disks on this machine. Under load, the test kills
# and restarts the ublk servers in the guest and the targets on this machine. Runs setup.sh first.
# Prints each result. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 2 ] || die "usage: ublk.sh FARBLOCK FOLDER"
[ -x "$1" ] || die "there is no program $1; build farblock."
for program in ublk_serve nvme_attach; do
    [ -x "$2/$program" ] || die "there is no $2/$program; build farblock-attach's examples."
done
farblock=$(realpath -- "$1")
programs=$(realpath -- "$2")
nqn=nqn.2026-11.org.farblock:ublk

work=$(mktemp -d "${TMPDIR:-/tmp}/farblock-ublk.XXXXXX")
declare -A targets # process ids by block size
guest=             # process id
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT
    # shellcheck disable=SC2086 # if it is empty, there must be no argument
    kill "${targets[@]}" $guest 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$work"; else echo "ublk.sh: the logs are in $work" >&2; fi
    exit $code
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

"$linux_dir/setup.sh"

# target BLOCK ADDRESS: serves a file of 64 MiB, and sets address.
target() {
    local log=$work/target-$1.log try
    truncate -s 64M "$work/disk-$1"
    : >"$log"
    "$farblock" serve "$work/disk-$1" --listen "$2" --nqn "$nqn-$1" --block-size "$1" \
        >>"$log" 2>&1 &
    targets[$1]=$!
    for ((try = 0; try < 200; try++)); do
        address=$(sed -n 's#.*\(127\.0\.0\.1:[1-9][0-9]*\).*#\1#p' "$log" | head -n 1)
        [ -z "$address" ] || return 0
        sleep 0.1
    done
    cat "$log" >&2
    fail "the target with blocks of $1 bytes does not start"
}

declare -A addresses
for block in 512 4096; do
    target $block 127.0.0.1:0
    addresses[$block]=$address
    echo "$block ${address#*:} $nqn-$block" >>"$work/targets"
done

# Share the programs, without debug information, because copying files into the guest is slow.
mkdir "$work/share"
for program in ublk_serve nvme_attach; do
    strip -o "$work/share/$program" "$programs/$program"
done
strip -o "$work/share/farblock" "$farblock"
guest_log=$work/guest.log
: >"$guest_log"
SHARE=$work/share CONSOLE=$work/console TIMEOUT=1200 "$linux_dir/guest.sh" \
    "$linux_dir/jobs/ublk.sh" "$work/targets" >>"$guest_log" 2>&1 &
guest=$!
tail -n +1 -f "$guest_log" --pid=$guest &

# Kills both targets, and restarts them after five seconds.
cut() {
    local block
    for block in 512 4096; do
        kill -9 "${targets[$block]}"
        wait "${targets[$block]}" 2>/dev/null || true
    done
    sleep 5
    for block in 512 4096; do target $block "${addresses[$block]}"; done
    echo "ublk.sh: the targets were killed and are back"
}

# Serves the guest's requests until it exits.
done_lines=0
while kill -0 $guest 2>/dev/null; do
    mapfile -t lines < <(grep '^DO ' "$guest_log" | tr -d '\r' || true)
    for line in "${lines[@]:$done_lines}"; do
        done_lines=$((done_lines + 1))
        case $line in
        "DO cut") cut ;;
        "DO pause") kill -STOP "${targets[512]}" ;;
        "DO continue") kill -CONT "${targets[512]}" ;;
        *) fail "the guest makes an unknown request: '$line'" ;;
        esac
    done
    sleep 0.1
done
code=0
wait $guest || code=$?
guest=
[ $code = 0 ] || fail "the guest's job ended with $code"
[ $done_lines = 4 ] || fail "the guest made $done_lines requests, not 4"
if grep -i panicked "$work"/*.log; then exit 1; fi
echo "ublk.sh: all $(grep -c '^ok: ' "$guest_log") checks passed"
