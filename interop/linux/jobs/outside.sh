# shellcheck shell=bash
# Sourced by jobs that have things done outside: what is asked for in /host/N.ask is answered in
# /host/N.done (answer_guest of stand.sh).

requests=0

# outside WORDS...: has it done.
outside() {
    local code try
    requests=$((requests + 1))
    echo "$*" >/host/part
    mv /host/part /host/$requests.ask
    for ((try = 0; try < 600; try++)); do
        [ ! -e /host/$requests.done ] || break
        sleep 0.1
    done
    read -r code </host/$requests.done
    [ "$code" = 0 ] || fail "outside: $* ended with $code"
}
