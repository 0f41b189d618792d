#!/bin/bash
# target-ana.sh FARBLOCK: the kernel's host uses two listeners of a farblock target as two ports of
# one subsystem. 'farblock ctl set-ana' changes their ANA states while the host writes and verifies
# (jobs/target-ana.sh). FARBLOCK is the binary. Run setup.sh once before. Exit code: 0 success, 1 a
# test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$(dirname "$0")/stand.sh"

[ $# = 1 ] || die "usage: target-ana.sh FARBLOCK"
farblock=$(realpath -- "$1")
stand
cd "$logs"

nqn=nqn.2026-11.org.farblock:ana
one=$(free_port)
two=$(free_port)
echo "$one $two" >ports
truncate -s 32M one.img
truncate -s 16M two.img

# The commands that the guest may request by name: set_ana PORT STATE [OPTION...].
ctl() { "$farblock" ctl --control "$logs/control" "$@"; }
set_ana() { ctl set-ana "127.0.0.1:$1" "${@:2}"; }
group() { ctl ana-group $nqn 2 "$1"; }

serve server.log one.img two.img --nqn $nqn --listen "127.0.0.1:$one" --listen "127.0.0.1:$two" \
    --control "$logs/control" --cntlids 100-199
answer_guest 400 "$linux_dir/jobs/target-ana.sh" ports
if grep -q panicked server.log; then
    cat server.log >&2
    exit 1
fi
echo "target-ana.sh: all checks passed"
