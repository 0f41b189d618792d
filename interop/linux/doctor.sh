#!/bin/bash
# doctor.sh FARBLOCK: 'farblock doctor' says who has a disk, in a guest whose kernel mounts it, swaps
# to it, and makes other devices of it (jobs/doctor.sh). FARBLOCK is the binary. Run setup.sh once
# before. Exit code: 0 all holds, 1 something does not, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || die "usage: doctor.sh FARBLOCK"
[ -x "$1" ] || die "there is no program $1; build farblock."
work=$(mktemp -d "${TMPDIR:-/tmp}/farblock-doctor.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Without debugging information, which only takes time to copy.
strip -o "$work/farblock" "$1"
SHARE=$work TIMEOUT=900 "$linux_dir/guest.sh" "$linux_dir/jobs/doctor.sh"
echo "doctor.sh: all holds"
