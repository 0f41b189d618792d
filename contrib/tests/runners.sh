#!/usr/bin/env bash
# runners.sh: tests suites.py, again.sh and stages.sh: which failures they repeat, name as flaky and
# report. Scripts simulate the test programs and make.
set -euo pipefail
contrib=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export FARBLOCK_FLAKY=$work/flaky
die() { echo "runners.sh: $*, in:" >&2; cat said >&2; exit 1; }
has() { grep -qxE -- "$1" said || die "no line '$1'"; }
# run EXIT-CODE COMMAND...: writes the output to the file said; the exit code must be this one.
run() {
    local expected=$1 code=0
    shift
    : >flaky
    "$@" >said 2>&1 || code=$?
    [ "$code" = "$expected" ] || die "$1 gave exit code $code instead of $expected"
}
flaky_are() { [ "$(sort flaky)" = "$(printf '%s\n' "$@")" ] || die "flaky: $(cat flaky)"; }

# program NAME SCRIPT: a test program. $1 is empty, or --exact if suites.py repeats a test alone.
program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$1"
    chmod +x "$1"
    echo "{\"executable\":\"$work/$1\",\"profile\":{\"test\":true},\"manifest_path\":\"$work/x/Cargo.toml\",\"target\":{\"name\":\"$1\",\"kind\":[\"test\"]}}" >>built
}
mkdir x
good='echo "test result: ok. 2 passed; 0 failed"'
failed='echo "test one ... ok"; echo "test two ... FAILED"; echo "test result: FAILED. 1 passed; 1 failed"; exit 101'
program good "$good"
program sometimes "[ \"\$1 \$2 \$3\" = '--exact two ' ] || { $failed; }; $good"
run 0 "$contrib/suites.py" built
has "again, alone - x/sometimes: two"
has "flaky - x/sometimes two: failed, then passed alone"
flaky_are "x/sometimes two"
program crashes "kill -SEGV \$\$"
program silent ":"
program never "$failed"
run 1 "$contrib/suites.py" built
has "not ok - x/crashes: FAILED, killed by SIGSEGV.*"
has "not ok - x/silent: FAILED, no result.*"
has "3 failed: x/crashes, x/never, x/silent"
flaky_are "x/sometimes two"

run 0 "$contrib/again.sh" once sh -c "[ -e once ] || { touch once; exit 7; }"
has "again.sh: once failed with exit code 7; running it once more"
flaky_are once
run 3 "$contrib/again.sh" twice sh -c "exit 3"
flaky_are ""

# shellcheck disable=SC2016 # the script expands them
program make 'echo "$2" >>made; [ "$2" != lint ] || exit 2; [ "$2" != unit ] || echo "x/a b" >>"$FARBLOCK_FLAKY"'
run 1 "$contrib/stages.sh" ./make lint unit +ahead interop
[ "$(grep -v ahead made | xargs)" = "lint unit interop" ] || die "stages were left out: $(cat made)"
has "lint +FAILED .*"
has "unit +passed .*"
has "interop +passed .*"
has "    x/a b"
run 0 "$contrib/stages.sh" ./make unit
