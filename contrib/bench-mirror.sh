#!/bin/bash
# bench-mirror.sh FARBLOCK: measures how long a mirror takes to copy its data to a new leg (to fill
# it), with and without I/O, and how a dying leg affects I/O. One leg is a local file, the other is
# at a target on loopback. Takes half a minute, and removes all its files.
set -euo pipefail
farblock=$(realpath "${1:-target/release/farblock}")
gib=${GIB:-1}
dir=$(mktemp -d /dev/shm/bench-mirror.XXXXXX)
cd "$dir"
mirror='' leg=''
trap 'kill -9 $mirror $leg 2>/dev/null || true; rm -rf "$dir"' EXIT

# serve LOG ARGUMENTS...: starts a target and waits until it listens. Sets $serving to its PID.
serve() {
    local log=$1
    "$farblock" serve --no-sandbox --quiet --json "${@:2}" >"$log" 2>&1 &
    local process=$!
    until grep -q listening "$log"; do
        kill -0 "$process" 2>/dev/null || { cat "$log" >&2; exit 1; }
        sleep 0.05
    done
    serving=$process
}

# field EXPRESSION FILE: prints the value of a Python expression on the JSON document `found`.
field() { python3 -c "import json, sys; found = json.load(open('$2')); print($1)"; }

# load SECONDS OUT: writes 4 KiB blocks to the mirror, one at a time, and the report to OUT.
load() {
    "$farblock" bench "nvme+tcp://127.0.0.1:14981/nqn.2026-11.org.example:mirror?ns=1" --allow-writes \
        --rw randwrite --bs 4k --iodepth 1 --runtime "$1" --ramp-time 0 --quiet --json "$2" >/dev/null 2>load.log || { cat load.log >&2; return 1; }
}

start_leg() {
    serve leg.log b.img --nqn nqn.2026-11.org.example:leg --listen 127.0.0.1:14982 --no-control
    leg=$serving
}

# until_filled: prints the seconds until all legs are in sync, and the MiB copied meanwhile.
until_filled() {
    local began=$EPOCHREALTIME
    until "$farblock" status --control control --json >status.json 2>/dev/null &&
        [ "$(field "found['subsystems'][0]['namespaces'][0]['health']" status.json)" = ok ]; do
        sleep 0.02
    done
    python3 - "$began" "$EPOCHREALTIME" "$(cat copied 2>/dev/null || echo 0)" <<'PY'
import json, sys
began, ended, before = map(float, sys.argv[1:])
mirror = json.load(open('status.json'))['subsystems'][0]['namespaces'][0]['mirror']
open('copied', 'w').write(str(mirror['copied_bytes']))
copied = (mirror['copied_bytes'] - before) / 2**20
print(f"{copied:.0f} MiB in {ended - began:.2f} s, {copied / (ended - began):.0f} MiB/s")
PY
}

# fresh: stops the previous mirror, and starts one whose second leg is new and must be filled.
fresh() {
    [ -z "$mirror" ] || kill "$mirror"
    [ -z "$leg" ] || kill "$leg"
    wait
    rm -f -- *.img copied
    cp random a.img
    truncate -s +1M a.img
    truncate -s "$((gib * 1024 + 1))M" b.img
    start_leg
    serve mirror.log "mirror:a.img,nvme+tcp://127.0.0.1:14982/nqn.2026-11.org.example:leg?create" \
        --nqn nqn.2026-11.org.example:mirror --listen 127.0.0.1:14981 --control control
    mirror=$serving
}

what() { field "'%.0f IOPS, mean %.0f us, longest %.1f ms, %d errors' % (found['patterns'][0]['remote']['iops'], found['patterns'][0]['remote']['latency']['mean_ns'] / 1e3, found['patterns'][0]['remote']['latency']['max_ns'] / 1e6, len(found.get('errors') or []))" "$1"; }

# Use random data, since the mirror does not copy blocks that are zero on both legs.
head -c "${gib}G" /dev/urandom >random
fresh
echo "filling a leg without I/O:     $(until_filled)"
load 3 alone.json
echo "4k writes, all legs in sync:   $(what alone.json)"
fresh
load 2 beside.json &
writer=$!
echo "filling a leg during writes:   $(until_filled)"
wait "$writer"
echo "4k writes, first 2 s of that:  $(what beside.json)"
load 4 killed.json &
writer=$!
sleep 1.5
kill -9 "$leg"
wait "$writer"
echo "4k writes, the leg's target killed: $(what killed.json)"
start_leg
echo "filling the returned leg:      $(until_filled)"
