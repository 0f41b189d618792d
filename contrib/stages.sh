#!/usr/bin/env bash
# stages.sh MAKE STAGE...: makes the stages in order. At the end, prints each stage's result,
# duration and share of the processors. After a failure, the next stages run too, so that one run
# reports all faults. Exit code: 0 all passed, 1 one failed, 2 misuse.
#
# A stage +GOAL starts to make a goal that later stages need, in the background at the lowest
# priority, to use idle processor time. The script ignores its result: a stage that needs the goal
# makes it again, and reports failures. The script stops this process before the next +GOAL.
set -uo pipefail
[ $# -ge 2 ] || { echo "usage: stages.sh MAKE STAGE..." >&2; exit 2; }
make=$1
shift

ahead=
finish_ahead() { [ -z "$ahead" ] || wait "$ahead"; ahead=; }
stop_ahead() { [ -z "$ahead" ] || kill -- "-$ahead" 2>/dev/null; }
trap 'stop_ahead; rm -f "${FARBLOCK_FLAKY:-}"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
begin_ahead() {
    finish_ahead
    # Start a process group, so that a kill of the group kills the children.
    set -m
    nice -n 19 "$make" --no-print-directory "$1" >/dev/null 2>&1 </dev/null &
    ahead=$!
    set +m
}

# Prints the seconds of processor time of all children that have exited.
used() { awk '{ print int(($16 + $17) / 100) }' "/proc/$$/stat"; }

# The names of flaky checks, one per line: checks that failed once and passed when repeated.
FARBLOCK_FLAKY=$(mktemp "${TMPDIR:-/tmp}/farblock-flaky.XXXXXX")
export FARBLOCK_FLAKY

table=
failed=0
SECONDS=0
for stage in "$@"; do
    case $stage in
        +*) begin_ahead "${stage#+}" && continue ;;
    esac
    began=$SECONDS
    before=$(used)
    echo "=== $stage, after $((began / 60)) min $((began % 60)) s"
    if "$make" --no-print-directory "$stage"; then
        outcome=passed
    else
        outcome=FAILED failed=1
    fi
    table+=$(printf '%-12s %-6s %4d s, processors %4d s' "$stage" $outcome $((SECONDS - began)) \
        $(($(used) - before)))$'\n'
done
printf '\n%s%-12s %-6s %4d s\n' "$table" all "" $SECONDS
if [ -s "$FARBLOCK_FLAKY" ]; then
    echo "flaky, because they failed once and then passed:"
    sed 's/^/    /' "$FARBLOCK_FLAKY"
fi
exit $failed
