#!/bin/bash
# namespaces.sh FARBLOCK: a guest's kernel connects to a target with more namespaces than one
# Identify command lists (1,024). The guest writes and reads the first and last namespaces, and the
# namespaces next to that limit (jobs/namespaces.sh). FARBLOCK is the binary. Runs setup.sh first.
# NAMESPACES=2000 sets the number of namespaces. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$linux_dir/stand.sh"

[ $# = 1 ] || die "usage: namespaces.sh FARBLOCK"
[ -x "$1" ] || die "there is no program $1; build farblock."
farblock=$(realpath -- "$1")
number=${NAMESPACES:-2000}
[[ $number =~ ^[0-9]+$ && $number -gt 1025 ]] || die "set NAMESPACES to a number above 1025."
nqn=nqn.2026-11.org.farblock:namespaces
"$linux_dir/setup.sh"
stand
cd "$logs"
port=$(free_port)
mkdir disks
{
    echo "listeners = [\"127.0.0.1:$port\"]"
    printf '[[subsystems]]\nnqn = "%s"\nallow_any_host = true\n' $nqn
    for ((nsid = 1; nsid <= number; nsid++)); do
        truncate -s 64K disks/$nsid
        printf '[[subsystems.namespaces]]\nnsid = %s\npath = "disks/%s"\n' $nsid $nsid
    done
} >farblock.toml
serve server.log --config farblock.toml --control "$logs/control"
echo "$port $nqn $number" >target
MEM=2048 CONSOLE=$logs/console TIMEOUT=1800 \
    "$linux_dir/guest.sh" "$linux_dir/jobs/namespaces.sh" target &
guest=$! # the trap kills it
wait $guest
guest=
# The target's files must hold the guest's data.
for nsid in 1 1024 1025 "$number"; do
    [ "$(head -c 11 disks/"$nsid")" = "$(printf 'disk %06d' "$nsid")" ] ||
        fail "the file of namespace $nsid differs from the guest's data"
done
[ "$(cat disks/2 | tr -d '\0' | wc -c)" = 0 ] || fail "a disk that was not written has data"
! grep -q panicked server.log || fail "$(cat server.log)"
echo "namespaces.sh: all checks passed"
