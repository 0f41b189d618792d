#!/usr/bin/env bash
# stages.sh MAKE STAGE...: makes one stage after the other, and says at the end how each ended and
# how long it took. A stage that fails does not keep the next ones from running: one run tells
# everything that is wrong. Exit code: 0 all passed, 1 one did not, 2 misuse.
set -uo pipefail
[ $# -ge 2 ] || { echo "usage: stages.sh MAKE STAGE..." >&2; exit 2; }
make=$1
shift

table=
failed=0
SECONDS=0
for stage in "$@"; do
    began=$SECONDS
    echo "=== $stage, after $((began / 60)) min $((began % 60)) s"
    if "$make" --no-print-directory "$stage"; then
        outcome=passed
    else
        outcome=FAILED failed=1
    fi
    table+=$(printf '%-10s %-6s %4d s' "$stage" $outcome $((SECONDS - began)))$'\n'
done
printf '\n%s%-10s %-6s %4d s\n' "$table" all "" $SECONDS
exit $failed
