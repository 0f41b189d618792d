#!/bin/bash
# fleet.sh FARBLOCK: a small farblock fleet with two QEMU guests, whose disks are vhost-user disks
# of the fleet's agents. The guests boot, run an fio load, and write, read and compare. In a second
# run a target is killed meanwhile. The run must name this target, and leave no process or folder.
# Runs setup.sh first. Prints each result. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || die "usage: fleet.sh FARBLOCK"
[ -x "$1" ] || die "there is no program $1; build farblock."
farblock=$(realpath -- "$1")

work=$(mktemp -d "${TMPDIR:-/tmp}/farblock-guests.XXXXXX")
export TMPDIR=$work
export FARBLOCK_RUNTIME_DIR=$work/run
run= # process id
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT
    [ -z "$run" ] || kill "$run" 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$work"; else echo "fleet.sh: the logs are in $work" >&2; fi
    exit $code
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

fail() {
    echo "FAIL: $*" >&2
    exit 1
}
ok() { echo "ok: $*"; }

"$linux_dir/setup.sh"

cat >"$work/plan.toml" <<'TOML'
drives_per_target = 2
drive = "mem:16MiB"
ramp_seconds = 0.2
runtime_seconds = 1.0
[[actions]]
load = "randrw,bs=4k,iodepth=4,numjobs=1,rwmixread=70"
vm = true
TOML

# The process IDs of QEMU for this folder.
qemu_of() { pgrep --full "qemu-system-x86_64.*$work/" || true; }

# nothing_left: checks that no guest runs, and that no folder of the run exists.
nothing_left() {
    local try
    for ((try = 0; try < 600; try++)); do
        [ -n "$(qemu_of)" ] || break
        sleep 0.1
    done
    [ -z "$(qemu_of)" ] || fail "these QEMU processes still run: $(qemu_of)"
    [ -z "$(find "$work" -maxdepth 1 -name 'farblock-fleet-*')" ] || fail "the run left a folder"
}

# has TEXT EXPRESSION: checks that the jq expression is true for the report.
has() {
    jq --exit-status "$2" "$work/report.json" >/dev/null || fail "$1: $(cat "$work/report.json")"
    ok "$1"
}

"$farblock" --quiet fleet run "$work/plan.toml" --guests 2 --json "$work/report.json" >/dev/null
has "virtual machines' disks and real guests are two rows" \
    '[.actions[] | [.pattern.name, .clients]] ==
        [["VM 4k random mixed", 1], ["guest 4k random mixed", 2]]'
has "guests read and wrote" '.actions[1].total | .reads > 0 and .writes > 0 and .iops > 0'
has "every I/O of the guests has a latency" \
    '.actions[1].total | .latency.p50_ns > 0 and .latency.max_ns >= .latency.p99_ns'
has "agents and QEMU used processor time" \
    '[.actions[1].cpu[] | select(.[1] > 0) | .[0]] | contains(["guest 1", "guest 2"])'
has "the guests' data were read back and compared" \
    '.guests | .count == 2 and .compared > 0 and .compared == .written'
nothing_left
ok "the run left no process or folder"

# Kill a target while guests boot. The error must name the target, not the guests.
"$farblock" --quiet fleet run "$work/plan.toml" --guests 2 --loopback 2>"$work/said" &
run=$!
for ((try = 0; try < 1200; try++)); do
    [ "$(qemu_of | wc -l)" != 2 ] || break
    kill -0 $run 2>/dev/null || fail "the run has ended: $(cat "$work/said")"
    sleep 0.1
done
target=$(pgrep --parent $run --full 'fleet agent' | head -n 1)
kill -9 "$target"
code=0
wait $run || code=$?
run=
[ $code = 1 ] || fail "the run ended with $code: $(cat "$work/said")"
grep -q '^error: target on node 1: the agent has exited' "$work/said" || fail "$(cat "$work/said")"
ok "the error names the target that was killed"
nothing_left
ok "the failed run left no process or folder"
echo "fleet.sh: all checks passed"
