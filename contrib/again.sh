#!/usr/bin/env bash
# again.sh NAME COMMAND...: runs a check, and repeats it once if it fails. A check that then passes
# is flaky: the script prints its name and appends it to the file $FARBLOCK_FLAKY, which stages.sh
# lists at the end of the run. Prints the duration and the processor time of each attempt. Exit code:
# the code of the last run.
set -uo pipefail
[ $# -ge 2 ] || { echo "usage: again.sh NAME COMMAND..." >&2; exit 2; }
name=$1
shift
TIMEFORMAT="$name: %0R s; processor time %0U s in user mode and %0S s in the kernel"

time "$@" && exit
code=$?
echo "again.sh: $name failed with exit code $code; running it once more"
time "$@" || exit
echo "flaky - $name: failed, then passed"
[ -z "${FARBLOCK_FLAKY:-}" ] || echo "$name" >>"$FARBLOCK_FLAKY"
