#!/bin/bash
# swap.sh FARBLOCK: swap on a disk that 'farblock attach --as ublk' made in a guest, with a target
# on this machine (jobs/swap.sh). The disk's supervisor must switch off swap. If the supervisor is
# dead, 'farblock list' and 'farblock doctor' must report the swap. FARBLOCK is the binary. Runs
# setup.sh first. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$linux_dir/stand.sh"

[ $# = 1 ] || die "usage: swap.sh FARBLOCK"
[ -x "$1" ] || die "there is no program $1; build farblock."
farblock=$(realpath -- "$1")
nqn=nqn.2026-11.org.farblock:swap
"$linux_dir/setup.sh"
stand
cd "$logs"
truncate -s 1G disk
port=$(free_port)
serve server.log disk --listen "127.0.0.1:$port" --nqn $nqn
mkdir share
# Strip debug information, so that the copy to the guest takes less time.
strip -o share/farblock "$farblock"
echo "$port $nqn" >target
MEM=512 SHARE=$logs/share CONSOLE=$logs/console TIMEOUT=600 \
    "$linux_dir/guest.sh" "$linux_dir/jobs/swap.sh" target
echo "swap.sh: all checks passed"
