#!/bin/bash
# doctor.sh FARBLOCK: 'farblock doctor' names the users of a disk. In a guest, the kernel mounts the
# disk, swaps to it, and builds other devices on it (jobs/doctor.sh). FARBLOCK is the binary. Run
# setup.sh once before. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || die "usage: doctor.sh FARBLOCK"
[ -x "$1" ] || die "there is no program $1; build farblock."
work=$(mktemp -d "${TMPDIR:-/tmp}/farblock-doctor.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Strip debug information, so that the copy to the guest takes less time.
strip -o "$work/farblock" "$1"
SHARE=$work TIMEOUT=900 "$linux_dir/guest.sh" "$linux_dir/jobs/doctor.sh"
echo "doctor.sh: all checks passed"
