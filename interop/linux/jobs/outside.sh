# shellcheck shell=bash
# Sourced by jobs that make requests to the script that started the guest. That script reads a
# request from /host/N.ask, and answers in /host/N.done (answer_guest of stand.sh).

requests=0

# outside WORDS...: sends this request, and waits for the answer.
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
    [ "$code" = 0 ] || fail "the request '$*' ended with $code"
}
