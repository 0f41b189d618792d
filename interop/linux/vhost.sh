#!/bin/bash
# vhost.sh FARBLOCK FOLDER: farblock's vhost-user back end and the Linux kernel's virtio-blk driver,
# in a QEMU guest. FARBLOCK is the program; FOLDER has vhost_serve (make built-for-guests). The
# disks with 512 and 4096-byte blocks are namespaces of `farblock serve` that `farblock attach`
# attaches. Under load, the test kills their server processes, and then the targets. Runs setup.sh
# first. Prints each result. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 2 ] || die "usage: vhost.sh FARBLOCK FOLDER"
[ -x "$1" ] || die "there is no program $1; build farblock."
[ -x "$2/vhost_serve" ] || die "there is no $2/vhost_serve; build farblock-attach's examples."
farblock=$(realpath -- "$1")
vhost_serve=$(realpath -- "$2")/vhost_serve
nqn=nqn.2026-11.org.farblock:vhost

work=$(mktemp -d "${TMPDIR:-/tmp}/farblock-vhost.XXXXXX")
export FARBLOCK_RUNTIME_DIR=$work/run
declare -A targets  # process ids by block size
declare -A backends # process ids by label
guest=              # process id
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT
    [ -z "$guest" ] || kill "$guest" 2>/dev/null || true
    for block in 512 4096; do "$farblock" detach remote-$block --force 2>/dev/null || true; done
    kill "${targets[@]}" "${backends[@]}" 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$work"; else echo "vhost.sh: the logs are in $work" >&2; fi
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

# until_line FILE EXPRESSION: waits for a line, and prints sed's result for it.
until_line() {
    local try line
    for ((try = 0; try < 200; try++)); do
        line=$(sed -n "$2" "$1" | head -n 1)
        [ -z "$line" ] || break
        sleep 0.1
    done
    [ -n "$line" ] || { cat "$1" >&2; fail "$1 does not say $2"; }
    echo "$line"
}

# target BLOCK ADDRESS: serves a file of 64 MiB, and sets address.
target() {
    truncate -s 64M "$work/disk-$1"
    : >"$work/target-$1.log"
    "$farblock" serve "$work/disk-$1" --listen "$2" --nqn "$nqn-$1" --block-size "$1" \
        >>"$work/target-$1.log" 2>&1 &
    targets[$1]=$!
    address=$(until_line "$work/target-$1.log" 's#.*\(127\.0\.0\.1:[1-9][0-9]*\).*#\1#p')
}

# start LABEL DISK ARGUMENT...: starts a back end with the label as serial number.
start() {
    local label=$1 disk=$2
    shift 2
    [ -p "$work/$label.in" ] || mkfifo "$work/$label.in"
    : >"$work/$label.log"
    # Open for reading and writing, so that the server's input stays open while this script runs.
    "$vhost_serve" "$disk" "$work/$label.sock" --serial "$label" --queues 2 "$@" \
        <>"$work/$label.in" >>"$work/$label.log" 2>&1 &
    backends[$label]=$!
    until_line "$work/$label.log" '/^ready/p' >/dev/null
}

# attach BLOCK ADDRESS ENGINE: starts a back end with `farblock attach`.
attach() {
    local label=remote-$1
    "$farblock" attach "nvme+tcp://$2/$nqn-$1?ns=1" --as vhost-user --name "$label" --engine "$3" \
        --socket "$work/$label.sock" --threads 2 --reconnect-delay 1 --foreground \
        >"$work/$label.log" 2>&1 &
    backends[$label]=$!
    until_line "$work/$label.log" "/^$label: /p" >/dev/null
}

# server LABEL: prints the PID of the back end's server, if one runs.
server() { "$farblock" list --json | jq -r ".[] | select(.name == \"$1\") | .server_pid // empty"; }

declare -A addresses engines=([512]=uring [4096]=portable)
for block in 512 4096; do
    target $block 127.0.0.1:0
    addresses[$block]=$address
    attach $block "$address" ${engines[$block]}
done
start read-only mem:64MiB --read-only
start local mem:64MiB --block 4096

memory=1536
arguments="-object memory-backend-memfd,id=mem,size=${memory}M,share=on -machine memory-backend=mem"
for label in remote-512 remote-4096 read-only local; do
    arguments+=" -chardev socket,id=$label,path=$work/$label.sock,reconnect=1"
    arguments+=" -device vhost-user-blk-pci,chardev=$label,num-queues=2"
done
guest_log=$work/guest.log
MEM=$memory QEMU_ARGS=$arguments TIMEOUT=900 "$linux_dir/guest.sh" "$linux_dir/jobs/vhost.sh" \
    >"$guest_log" 2>&1 &
guest=$!
tail -n +1 -f "$guest_log" --pid=$guest &

# kill_servers ROUND: kills the servers of both remote disks in turn. The supervisors start
# successors.
kill_servers() {
    local block killed next try
    for block in 512 4096; do
        sleep 2
        ! grep -q '^DONE' "$guest_log" || fail "the load ended before kill $1"
        killed=$(server remote-$block)
        kill -9 "$killed"
        for ((try = 0; try < 200; try++)); do
            next=$(server remote-$block)
            [ -z "$next" ] || [ "$next" = "$killed" ] || break
            sleep 0.1
        done
        [ -n "$next" ] && [ "$next" != "$killed" ] || fail "remote-$block has no new server"
        echo "vhost.sh: round $1: the server of remote-$block was killed, and its successor serves"
    done
}

# Kills both targets, and restarts them after three seconds.
cut() {
    local block
    sleep 2
    ! grep -q '^DONE' "$guest_log" || fail "the load ended before the targets were killed"
    for block in 512 4096; do
        kill -9 "${targets[$block]}"
        wait "${targets[$block]}" 2>/dev/null || true
    done
    sleep 3
    for block in 512 4096; do target $block "${addresses[$block]}"; done
    echo "vhost.sh: the targets were killed and are back"
    sleep 2
    ! grep -q '^DONE' "$guest_log" || fail "the load ended before the targets were back"
}

# Serves the guest's requests until it exits.
done_lines=0
while kill -0 $guest 2>/dev/null; do
    mapfile -t lines < <(grep '^DO ' "$guest_log" | tr -d '\r' || true)
    for line in "${lines[@]:$done_lines}"; do
        done_lines=$((done_lines + 1))
        case $line in
        "DO resize "*)
            read -r _ _ label bytes <<<"$line"
            echo "resize $bytes" >"$work/$label.in"
            ;;
        "DO kill")
            for round in 1 2 3; do kill_servers $round; done
            cut
            ;;
        *) fail "the guest makes an unknown request: '$line'" ;;
        esac
    done
    sleep 0.1
done
code=0
wait $guest || code=$?
guest=
[ $code = 0 ] || fail "the guest's job ended with $code"
[ $done_lines = 3 ] || fail "the guest made $done_lines requests, not 3"

# detached LABEL: detaches the disk, and retries for some seconds.
detached() {
    local try
    for try in {1..50}; do
        "$farblock" detach "$1" && return
        sleep 0.1
    done
    return 1
}
for label in "${!backends[@]}"; do
    case $label in
    # QEMU has exited, but the server may still execute its requests.
    remote-*) detached "$label" || fail "$label could not be detached" ;;
    *) echo >"$work/$label.in" ;;
    esac
    wait "${backends[$label]}" || {
        cat "$work/$label.log" >&2
        fail "$label exited with an error"
    }
done
backends=()
if grep -i panicked "$work"/*.log; then exit 1; fi
echo "vhost.sh: all $(grep -c '^ok: ' "$guest_log") checks passed"
