#!/bin/bash
# Measures the benefit, under Wine, of receiving all waiting PDUs with one system call. Prints a
# table for docs/performance/gathered-calls-wine.csv.
#
#   calls.sh [SECONDS [ROUNDS]]
#
# The result includes the processor time of Wine's server, which executes the system calls. Runs
# setup.sh first.
set -Eeuo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() {
    echo "calls.sh: $*" >&2
    exit 1
}
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
cd "$here/../.."
environment=$("$here/setup.sh" --env)
# shellcheck disable=SC1090 # written by setup.sh
. "$environment"
export CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/windows
# shellcheck disable=SC2086 # words
exe=$(cargo build --release --locked $FARBLOCK_WINDOWS_CARGO --message-format json-render-diagnostics \
    -p farblock --example calls |
    jq -r 'select(.executable != null and .target.name == "calls").executable')
[ -n "$exe" ] || die "the example does not build for Windows."
# Start Wine's server in the foreground, so that the script knows its PID.
wineserver --wait
wineserver --foreground --persistent &
server=$!
trap 'wineserver --kill || true; wait "$server" || true' EXIT
wine "$exe" "${1:-3}" "${2:-3}" "Z:\\proc\\$server\\stat"
