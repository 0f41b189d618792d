#!/bin/bash
# reservations.sh FARBLOCK: two hosts of the kernel share a disk of farblock's target and reserve it
# (jobs/reservations.sh); meanwhile the target is killed, and another takes its place. FARBLOCK is
# the binary. Run setup.sh once before. Exit code: 0 all holds, 1 something does not, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || die "usage: reservations.sh FARBLOCK"
farblock=$(realpath -- "$1")
# Reservations are kept in extended attributes, which not every /tmp has.
logs=$(mktemp -d "${XDG_CACHE_HOME:-$HOME/.cache}/farblock-reservations.XXXXXX")
guest='' server=''
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT
    # shellcheck disable=SC2086 # no word at all when there is none
    kill $server $guest 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$logs"; else echo "reservations.sh: the logs are in $logs" >&2; fi
    exit $code
}
trap clean_up EXIT

mkdir "$logs/share"
truncate -s 64M "$logs/disk"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
echo "$port" >"$logs/port"

# Sets server, once it listens.
serve() {
    local try
    "$farblock" serve "$logs/disk" --listen "127.0.0.1:$port" --nqn nqn.2024-01.farblock:reserved \
        >>"$logs/server.log" 2>&1 </dev/null &
    server=$!
    for ((try = 0; try < 300; try++)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
        sleep 0.1
    done
    cat "$logs/server.log" >&2
    exit 1
}

: >"$logs/guest.log"
serve
SHARE=$logs/share TIMEOUT=400 "$linux_dir/guest.sh" "$linux_dir/jobs/reservations.sh" \
    "$logs/port" >"$logs/guest.log" 2>&1 &
guest=$!
while kill -0 $guest 2>/dev/null && ! grep -q '^KILL' "$logs/guest.log"; do sleep 0.1; done
if grep -q '^KILL' "$logs/guest.log"; then
    kill -KILL $server
    wait $server || true
    serve
    touch "$logs/share/restarted"
fi
wait $guest || { cat "$logs/guest.log" >&2; exit 1; }
guest=
grep -v '^KILL' "$logs/guest.log"
if grep -q panicked "$logs/server.log"; then
    cat "$logs/server.log" >&2
    exit 1
fi
echo "reservations.sh: all holds"
