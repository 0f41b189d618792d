#!/bin/bash
# iscsi.sh FARBLOCK: the Linux kernel's iSCSI initiator (open-iscsi), in a guest, uses the iSCSI
# targets of `farblock attach --as iscsi` on this machine. Their disks come from `farblock serve`.
# Under load, the test kills the iSCSI servers, and stops the NVMe target for some seconds. Runs
# setup.sh first. Prints each result. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || die "usage: iscsi.sh FARBLOCK"
[ -x "$1" ] || die "there is no program $1; build farblock."
farblock=$(realpath -- "$1")
nqn=nqn.2026-11.org.farblock:iscsi

work=$(mktemp -d "${TMPDIR:-/tmp}/farblock-iscsi.XXXXXX")
export FARBLOCK_RUNTIME_DIR=$work/run
target=
guest=
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$? name
    trap - EXIT
    for name in disk-512 disk-4096; do "$farblock" detach $name --force >/dev/null 2>&1 || true; done
    # shellcheck disable=SC2086 # if it is empty, there must be no argument
    kill $target $guest 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$work"; else echo "iscsi.sh: the logs are in $work" >&2; fi
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

# serve ADDRESS: starts a target with a subsystem for each block size, and sets address.
serve() {
    local log=$work/target.log try
    : >"$log"
    {
        echo "listeners = [\"$1\"]"
        for block in 512 4096; do
            printf '[[subsystems]]\nnqn = "%s-%s"\nallow_any_host = true\n' $nqn $block
            printf '[[subsystems.namespaces]]\npath = "disk-%s"\nblock_size = %s\n' $block $block
        done
    } >"$work/target.toml"
    "$farblock" serve --config "$work/target.toml" >>"$log" 2>&1 &
    target=$!
    for ((try = 0; try < 200; try++)); do
        address=$(sed -n 's#.*\(127\.0\.0\.1:[1-9][0-9]*\).*#\1#p' "$log" | head -n 1)
        [ -z "$address" ] || return 0
        sleep 0.1
    done
    cat "$log" >&2
    fail "the target does not start"
}

for block in 512 4096; do truncate -s 64M "$work/disk-$block"; done
serve 127.0.0.1:0

for block in 512 4096; do
    offer=$("$farblock" attach "nvme+tcp://$address/$nqn-$block?ns=1" --as iscsi --json \
        --name disk-$block --listen 127.0.0.1:0 --reconnect-delay 1)
    url=$(jq -r .use.path <<<"$offer")
    [[ $url =~ ^iscsi://127\.0\.0\.1:([0-9]+)/([^/]+)/0$ ]] || fail "attach says $offer"
    echo "$block ${BASH_REMATCH[1]} ${BASH_REMATCH[2]}" >>"$work/targets"
done

guest_log=$work/guest.log
: >"$guest_log"
CONSOLE=$work/console TIMEOUT=900 "$linux_dir/guest.sh" "$linux_dir/jobs/iscsi.sh" \
    "$work/targets" >"$guest_log" 2>&1 &
guest=$!
tail -n +1 -f "$guest_log" --pid=$guest &

# server NAME: prints the PID of the attachment's server, if one runs.
server() { "$farblock" list --json | jq -r ".[] | select(.name == \"$1\") | .server_pid // empty"; }

kill_servers() {
    local block killed next try
    for block in 512 4096; do
        killed=$(server disk-$block)
        kill -9 "$killed"
        for ((try = 0; try < 200; try++)); do
            next=$(server disk-$block)
            [ -z "$next" ] || [ "$next" = "$killed" ] || break
            sleep 0.1
        done
        [ -n "$next" ] && [ "$next" != "$killed" ] || fail "disk-$block has no new server"
    done
    echo "iscsi.sh: the servers were killed, and their successors serve"
}

cut() {
    kill -9 $target
    wait $target 2>/dev/null || true
    sleep 3
    serve "$address"
    echo "iscsi.sh: the target was killed and restarted"
}

refuse_detach() {
    local said
    ! said=$("$farblock" detach disk-512 2>&1) || fail "detach removed a disk in use"
    [[ $said == *"in use"* ]] || fail "detach says $said"
    echo "iscsi.sh: detach refuses a disk in use: $said"
}

# Serves the guest's requests until it exits.
done_lines=0
while kill -0 $guest 2>/dev/null; do
    mapfile -t lines < <(grep '^DO ' "$guest_log" | tr -d '\r' || true)
    for line in "${lines[@]:$done_lines}"; do
        done_lines=$((done_lines + 1))
        case $line in
        "DO kill") kill_servers ;;
        "DO cut") cut ;;
        "DO detach") refuse_detach ;;
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
for name in disk-512 disk-4096; do "$farblock" detach $name; done
if grep -i panicked "$work"/*.log "$work"/run/*/log 2>/dev/null; then exit 1; fi
echo "iscsi.sh: all $(grep -c '^ok: ' "$guest_log") checks passed"
