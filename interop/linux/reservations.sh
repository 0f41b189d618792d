#!/bin/bash
# reservations.sh FARBLOCK: two hosts of the kernel share a disk of farblock's target and reserve it
# (jobs/reservations.sh). Meanwhile the target is killed and restarted. FARBLOCK is the binary. Run
# setup.sh once before. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$(dirname "$0")/stand.sh"

[ $# = 1 ] || die "usage: reservations.sh FARBLOCK"
farblock=$(realpath -- "$1")
# The target stores reservations in extended attributes, which some file systems at /tmp lack.
stand "${XDG_CACHE_HOME:-$HOME/.cache}"

mkdir "$logs/share"
truncate -s 64M "$logs/disk"
port=$(free_port)
echo "$port" >"$logs/port"

share_it() {
    serve "$logs/$1.log" "$logs/disk" --listen "127.0.0.1:$port" --nqn nqn.2024-01.farblock:reserved
}

: >"$logs/guest.log"
share_it server
SHARE=$logs/share TIMEOUT=400 "$linux_dir/guest.sh" "$linux_dir/jobs/reservations.sh" \
    "$logs/port" >"$logs/guest.log" 2>&1 &
guest=$!
while kill -0 $guest 2>/dev/null && ! grep -q '^KILL' "$logs/guest.log"; do sleep 0.1; done
if grep -q '^KILL' "$logs/guest.log"; then
    kill -KILL $server
    wait $server || true
    share_it successor
    touch "$logs/share/restarted"
fi
wait $guest || { cat "$logs/guest.log" >&2; exit 1; }
guest=
grep -v '^KILL' "$logs/guest.log"
! grep panicked "$logs/server.log" "$logs/successor.log" >&2 || fail "farblock serve panicked"
echo "reservations.sh: all checks passed"
