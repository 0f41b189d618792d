#!/bin/bash
# ana.sh PATHS: farblock's host uses a disk over two ports of the kernel's target. The ports' ANA
# states change, and one port is removed and added again (jobs/ana.sh). PATHS is farblock-host's
# example `paths`, which keeps a verifying load on the disk. Run setup.sh once before. Exit code: 0
# success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || die "usage: ana.sh PATHS"
logs=$(mktemp -d "${TMPDIR:-/tmp}/farblock-ana.XXXXXX")
guest=
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT
    [ -z "$guest" ] || kill "$guest" 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$logs"; else echo "ana.sh: the logs are in $logs" >&2; fi
    exit $code
}
trap clean_up EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
one=$(free_port)
two=$(free_port)
FWD="$one:4420 $two:4421" TIMEOUT=200 "$linux_dir/guest.sh" "$linux_dir/jobs/ana.sh" \
    >"$logs/guest.log" 2>&1 &
guest=$!
for ((try = 0; try < 1200; try++)); do
    ! grep -q '^READY' "$logs/guest.log" || break
    kill -0 $guest 2>/dev/null || break
    sleep 0.1
done
grep -q '^READY' "$logs/guest.log" || { cat "$logs/guest.log" >&2; exit 1; }

url() { echo "nvme+tcp://127.0.0.1:$1/nqn.2024-01.farblock:kernel?ns=1"; }
"$1" 24 numa "$(url "$one")" "$(url "$two")" | tee "$logs/paths.log"
for state in "path 0 Live ANA Optimized" "path 0 Live ANA Inaccessible" \
    "path 0 Live ANA Non-Optimized" "path 1 Live ANA Non-Optimized" "path 1 Live ANA Change" \
    "path 1 Live ANA Optimized" "path 0 Reconnecting"; do
    grep -q "^seen: $state" "$logs/paths.log" || { echo "FAIL: never seen: $state" >&2; exit 1; }
done
wait $guest || { cat "$logs/guest.log" >&2; exit 1; }
guest=
echo "ana.sh: all checks passed"
