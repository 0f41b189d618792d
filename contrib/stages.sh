#!/usr/bin/env bash
# stages.sh MAKE STAGE...: makes one stage after the other, and says at the end how each ended, how
# long it took and how much of the processors it had. A stage that fails does not keep the next ones
# from running: one run tells everything that is wrong. Exit code: 0 all passed, 1 one did not, 2
# misuse.
#
# +GOAL among the stages begins a goal that later ones need, and goes on without waiting for it: at
# the lowest priority, for the time in which stages wait. What becomes of it does not count; a stage
# that needs it makes it, and says why it cannot. What one stage has begun ends before the next +GOAL.
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
    # A group of its own, so that it ends with what it has started.
    set -m
    nice -n 19 "$make" --no-print-directory "$1" >/dev/null 2>&1 </dev/null &
    ahead=$!
    set +m
}

# Seconds of processor time that what has ended has had.
used() { awk '{ print int(($16 + $17) / 100) }' "/proc/$$/stat"; }

# The names of flaky checks, one a line: checks that failed, and passed when they were repeated.
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
    table+=$(printf '%-12s %-6s %4d s, of processors %4d s' "$stage" $outcome $((SECONDS - began)) \
        $(($(used) - before)))$'\n'
done
printf '\n%s%-12s %-6s %4d s\n' "$table" all "" $SECONDS
if [ -s "$FARBLOCK_FLAKY" ]; then
    echo "flaky, because they failed once and then passed:"
    sed 's/^/    /' "$FARBLOCK_FLAKY"
fi
exit $failed
