#!/bin/bash
# What it is worth under Wine that one call takes all the PDUs that there are: a table, for
# docs/performance.md.
#
#   calls.sh [SECONDS [ROUNDS]]
#
# Wine's server counts as well, since it carries the calls out. Needs what setup.sh prepares, and
# prepares it.
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
# A server of its own, in the foreground: its number is known.
wineserver --wait
wineserver --foreground --persistent &
server=$!
trap 'wineserver --kill || true; wait "$server" || true' EXIT
wine "$exe" "${1:-3}" "${2:-3}" "Z:\\proc\\$server\\stat"
