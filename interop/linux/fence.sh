#!/bin/bash
# fence.sh FARBLOCK: two guests share a disk of farblock's target, and
# contrib/pacemaker/fence_nvme_resv fences one of them, as Pacemaker does. It fences the guest while
# the guest writes, and while the guest hangs with writes in flight and resumes later. None of the
# guest's later writes may reach the disk, even if the target restarts (jobs/fence-node.sh).
# FARBLOCK is the binary. Run setup.sh once before. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$(dirname "$0")/stand.sh"

[ $# = 1 ] || die "usage: fence.sh FARBLOCK"
farblock=$(realpath -- "$1")
# The target stores reservations in extended attributes, which some file systems at /tmp lack.
stand "${XDG_CACHE_HOME:-$HOME/.cache}"
cd "$logs"

declare -A guests asked=([a]=0 [b]=0)
# shellcheck disable=SC2317 # called by the trap
ends() {
    local code=$?
    kill -CONT "${guests[@]}" 2>/dev/null || true
    kill "${guests[@]}" 2>/dev/null || true
    [ $code = 0 ] || tail -n 20 ./*.log >&2
    set +e
    (exit $code)
    clean_up
}
trap ends EXIT

port=$(free_port)
echo "$port" >port
truncate -s 8M disk
share_it() {
    serve "$1.log" disk --listen "127.0.0.1:$port" --nqn nqn.2026-11.org.farblock:fenced \
        --block-size 4096
}

begins() {
    mkdir -p "$1/share"
    echo "$1" >"$1/node"
    SHARE=$logs/$1/share TIMEOUT=300 CPUS=1 MEM=512 "$linux_dir/guest.sh" \
        "$linux_dir/jobs/fence-node.sh" "$1/node" port "$linux_dir/jobs/asked.sh" \
        "$linux_dir/../../contrib/pacemaker/fence_nvme_resv" >"$1.log" 2>&1 &
    guests[$1]=$!
}

# ask NODE COMMAND: starts the command on the node.
# answered NODE: waits until the node's command exits, and returns its exit code.
ask() {
    asked[$1]=$((asked[$1] + 1))
    echo "$2" >"$1/share/part"
    mv "$1/share/part" "$1/share/${asked[$1]}.cmd"
}
answered() {
    local answer=$1/share/${asked[$1]}
    until [ -e "$answer.done" ]; do
        kill -0 "${guests[$1]}" 2>/dev/null || fail "the guest of node $1 has exited"
        sleep 0.1
    done
    said=$(cat "$answer.out")
    return "$(cat "$answer.done")"
}
# on NODE CODE COMMAND: runs the command on the node, and checks its exit code.
on() {
    local code=0
    ask "$1" "$3"
    answered "$1" || code=$?
    [ $code = "$2" ] || fail "on $1: '$3' ended with $code: $said"
    echo "ok: on $1: $3 (exit code $code)"
}
# agent NODE CODE ACTION PLUG: runs the fence agent as Pacemaker does, and checks its exit code.
agent() {
    on "$1" "$2" "printf 'action=%s\nplug=%s\ndevices=/dev/nvme0n1\n' $3 $4 | fence_nvme_resv"
}
# only BYTE: checks that the disk holds no other byte.
only() {
    local other
    other=$(tr -d "$1" <disk | wc -c)
    [ "$other" = 0 ] || fail "$other bytes on the disk are not from $1"
    echo "ok: the disk holds only data from $1"
}
# freeze b: makes node b hang. thaw b: resumes it.
qemu_of() { pgrep -P "$(pgrep -P "${guests[$1]}" timeout)"; }
freeze() { kill -STOP "$(qemu_of "$1")"; }
thaw() { kill -CONT "$(qemu_of "$1")"; }
# Node b writes without end.
b_writes() {
    on b 0 'rm -f /run/filled; keep_filling 0x42 >/dev/null 2>&1 & until [ -e /run/filled ]; do sleep 0.1; done'
}
b_is_refused() {
    on b 0 'until [ -e /run/refused ]; do sleep 0.1; done; cat /run/refused'
    on b 0 '! fill 0x42 && dd if=/dev/nvme0n1 iflag=direct bs=4096 count=1 2>/dev/null | head -c 1'
    [ "${said: -1}" = A ] || fail "b reads other data: $said"
}

share_it server
begins a
begins b
# Without a reservation, both nodes can write.
agent b 0 status b
agent a 1 off b
for node in a b; do
    agent $node 0 on $node
    agent $node 0 on $node
    agent $node 0 monitor $node
done
agent a 0 status b
agent a 1 off a

echo "--- a fences b while b writes"
b_writes
agent a 0 off b
on a 0 'fill 0x41'
b_is_refused
only A
agent a 2 status b
agent b 1 off a

echo "--- the target is killed and restarted, and b is still fenced"
kill -KILL "$server"
wait "$server" || true
share_it successor
on b 0 '! fill 0x42'
only A
on a 0 'fill 0x41'

echo "--- b is unfenced, hangs while it writes, is fenced, and resumes"
agent b 0 on b
b_writes
freeze b
agent a 0 off b
on a 0 'fill 0x41'
thaw b
b_is_refused
only A
agent b 0 on b
on b 0 'fill 0x42'
only B

for node in a b; do ask $node exit; done
wait "${guests[@]}"
! grep panicked server.log successor.log >&2 || fail "farblock serve panicked"
echo "fence.sh: all checks passed"
