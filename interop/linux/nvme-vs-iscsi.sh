#!/bin/bash
# nvme-vs-iscsi.sh FARBLOCK: in a guest, compares iSCSI and iSER of the Linux kernel's target with
# NVMe/TCP and NVMe/RDMA of farblock's target (jobs/nvme-vs-iscsi.sh). RDMA is soft-RoCE. Verifies
# data on each path, then prints each pattern's I/O per second over iSCSI and the other paths'
# ratios to it. Emulation distorts them. Give an optimized FARBLOCK: the kernel's target is
# optimized, too. ROUNDS (3) measurements of SECONDS_EACH (2). Runs setup.sh first. Exit code:
# 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || die "usage: nvme-vs-iscsi.sh FARBLOCK"
[ -x "$1" ] || die "there is no program $1; build farblock."
"$linux_dir/setup.sh"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/farblock-iscsi.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/share"
strip -o "$scratch/share/farblock" "$1"
echo "${ROUNDS:-3} ${SECONDS_EACH:-2}" >"$scratch/plan"
SHARE=$scratch/share TIMEOUT=3600 "$linux_dir/guest.sh" "$linux_dir/jobs/nvme-vs-iscsi.sh" \
    "$scratch/plan"
echo "nvme-vs-iscsi.sh: all checks passed"
