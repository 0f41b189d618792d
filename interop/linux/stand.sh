# shellcheck shell=bash
# Sourced, after place.sh, by scripts that run a target beside a guest. Provides a folder for logs,
# which is kept after a failure, and stops processes. Sets name, logs, server and guest.

name=$(basename "$0" .sh)
server=
guest=

# stand [FOLDER]: makes the folder for logs, in FOLDER or in the temporary folder.
stand() {
    logs=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/farblock-$name.XXXXXX")
    trap clean_up EXIT
}

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT
    # shellcheck disable=SC2086 # if it is empty, there must be no argument
    kill $server $guest 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$logs"; else echo "$name.sh: the logs are in $logs" >&2; fi
    exit $code
}

# fail TEXT...: reports a failure and exits.
fail() {
    echo "FAIL: $*" >&2
    exit 1
}

# Prints a free port of this machine.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

# serve LOG ARGUMENTS...: starts farblock serve, sets server, and returns once it listens.
serve() {
    local log=$1 try
    shift
    # shellcheck disable=SC2154 # the caller's
    "$farblock" serve "$@" >"$log" 2>&1 </dev/null &
    server=$!
    for ((try = 0; try < 1200; try++)); do
        ! grep -qs '^listening' "$log" || return 0
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    fail "farblock serve does not listen: $(cat "$log")"
}

# said LOG TEXT...: checks that the log contains each of these texts.
said() {
    local log=$1 text
    shift
    for text in "$@"; do
        grep -qF -- "$text" "$log" || fail "farblock does not say '$text': $(tail -n 20 "$log")"
    done
}

# answer_guest SECONDS JOB FILE...: runs this job in a guest, and serves its requests
# (jobs/outside.sh). Prints the job's output; ctl.log has the output of the requests.
answer_guest() {
    local seconds=$1
    shift
    mkdir share
    # shellcheck disable=SC2154 # place.sh's
    SHARE=$logs/share TIMEOUT=$seconds "$linux_dir/guest.sh" "$@" "$linux_dir/jobs/outside.sh" \
        >guest.log 2>&1 &
    guest=$!
    answer_requests
    if ! wait $guest; then
        guest=
        cat guest.log ctl.log server.log >&2
        exit 1
    fi
    guest=
    cat guest.log
}

# answer_requests: serves the guest's requests in share/, until it exits.
answer_requests() {
    local request words code
    for ((request = 1; ; request++)); do
        while kill -0 $guest 2>/dev/null && [ ! -e "share/$request.ask" ]; do sleep 0.1; done
        [ -e "share/$request.ask" ] || break
        read -ra words <"share/$request.ask"
        echo "--- ${words[*]}" >>ctl.log
        if "${words[@]}" >>ctl.log 2>&1; then code=0; else code=$?; fi
        echo $code >"share/$request.part"
        mv "share/$request.part" "share/$request.done"
    done
}

# guest_is_ready: waits until the guest has printed READY to guest.log.
guest_is_ready() {
    local try
    for ((try = 0; try < 2400; try++)); do
        ! grep -q '^READY' guest.log || return 0
        kill -0 $guest 2>/dev/null || break
        sleep 0.1
    done
    cat guest.log serve.log >&2
    exit 1
}

# made_key_is_taken WHAT: checks that farblock accepts the key that nvme-cli made in the guest.
made_key_is_taken() {
    (umask 077 && sed -n 's/^nvme-cli made //p' guest.log >made.key)
    "$farblock" keys check made.key || fail "farblock does not accept $1 from nvme-cli"
}

# guest_ends PORT: connects to this port, which ends the guest's job, and waits for the guest.
guest_ends() {
    exec 3<>"/dev/tcp/127.0.0.1/$1"
    exec 3<&-
    wait $guest || { cat guest.log serve.log >&2; exit 1; }
    guest=
}
