#!/usr/bin/env bash
# again.sh NAME COMMAND...: runs a check, and repeats it once if it fails. A check that then passes
# is flaky: the script prints its name and appends it to the file $FARBLOCK_FLAKY, which stages.sh
# lists at the end of the run. Exit code: the code of the last run.
set -uo pipefail
[ $# -ge 2 ] || { echo "usage: again.sh NAME COMMAND..." >&2; exit 2; }
name=$1
shift

"$@" && exit
echo "again.sh: $name failed with exit code $?; running it once more"
"$@" || exit
echo "flaky - $name: failed, then passed"
[ -z "${FARBLOCK_FLAKY:-}" ] || echo "$name" >>"$FARBLOCK_FLAKY"
