#!/bin/bash
# schemathesis.sh FARBLOCK: schemathesis, from the Python package index, sends valid and invalid
# requests to the HTTP interface as docs/openapi.json describes, and checks the answers against it.
# FARBLOCK is the binary. The package is kept in ~/.cache/farblock-schemathesis (or
# FARBLOCK_SCHEMATHESIS_DIR). Takes half a minute. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail

. "$(dirname "$0")/python.sh"

binary "$@"
cache=${FARBLOCK_SCHEMATHESIS_DIR:-${HOME:?}/.cache/farblock-schemathesis}
environment schemathesis 4.32.5 schemathesis "$cache"
# Relative file names in random requests refer to this folder.
work=$(mktemp -d)
server=
end() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi
    wait
    rm -rf "$work"
}
trap end EXIT
cd "$work"
token=0123456789abcdef0123456789abcdef
(umask 077 && echo $token >token)
"$farblock" serve --listen 127.0.0.1:0 --nqn nqn.2026-11.org.farblock:schema --no-control \
    --ui 127.0.0.1:0 --ui-token token --ui-steer mem:1MiB >said 2>server.log &
server=$!
url=
for ((try = 0; try < 600 && ${#url} == 0; try++)); do
    sleep 0.1
    kill -0 "$server" 2>/dev/null || break
    url=$(sed -n 's|^dashboard at \(http://[^/]*\)/.*|\1|p' said)
done
[ -n "$url" ] || { cat said server.log >&2; exit 1; }

# The event stream is excluded, since it never ends. A schema cannot express every rule,
# for example which subsystems and disks exist. So the target may refuse requests that fit the
# schema, and positive_data_acceptance is excluded, too.
failed=0
"$venv/bin/schemathesis" run "$here/../docs/openapi.json" --url "$url" --no-color \
    --header "Authorization: Bearer $token" --exclude-path /v1/events \
    --exclude-checks positive_data_acceptance --phases coverage,fuzzing \
    --max-examples 10 --max-time 30 --seed 1 --generation-database none >report 2>&1 || failed=1
kill -0 "$server" 2>/dev/null || { echo "schemathesis.sh: the target has ended" >&2; failed=1; }
if [ $failed = 1 ] || grep panicked server.log >/dev/null; then
    cat report server.log >&2
    exit 1
fi
tail -n 12 report
echo "schemathesis.sh: all checks passed"
