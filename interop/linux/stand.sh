# shellcheck shell=bash
# Sourced, after place.sh, by what runs a target out here beside a guest: a folder for logs, which
# stays behind when something fails, and the processes to end. Sets name, logs, server and guest.

name=$(basename "$0" .sh)
server=
guest=

# stand [FOLDER]: makes the folder for logs, in FOLDER or where temporary files are.
stand() {
    logs=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/farblock-$name.XXXXXX")
    trap clean_up EXIT
}

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT
    # shellcheck disable=SC2086 # no word at all when there is none
    kill $server $guest 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$logs"; else echo "$name.sh: the logs are in $logs" >&2; fi
    exit $code
}

# fail TEXT...: something does not hold.
fail() {
    echo "FAIL: $*" >&2
    exit 1
}

# A port of this machine that nobody listens on.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# serve LOG ARGUMENTS...: starts farblock serve, in server; returns once it listens.
serve() {
    local log=$1 try
    shift
    # shellcheck disable=SC2154 # the caller's
    "$farblock" serve "$@" >"$log" 2>&1 </dev/null &
    server=$!
    for ((try = 0; try < 300; try++)); do
        ! grep -q '^listening' "$log" || return 0
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    fail "farblock serve does not listen: $(cat "$log")"
}
