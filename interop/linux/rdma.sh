#!/bin/bash
# rdma.sh SUITE: farblock's RDMA verbs over soft-RoCE in a guest (jobs/rdma.sh). SUITE is the
# example verbs_suite of farblock-verbs. Runs setup.sh first. Exit code: 0 success, 1 a test failed,
# 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || die "usage: rdma.sh SUITE"
[ -x "$1" ] || die "there is no program $1; build farblock-verbs's examples with all features."
"$linux_dir/setup.sh"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/farblock-rdma.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# Strip debug information, so that the copy to the guest takes less time.
strip -o "$scratch/verbs_suite" "$1"
TIMEOUT=300 "$linux_dir/guest.sh" "$linux_dir/jobs/rdma.sh" "$scratch/verbs_suite"
echo "rdma.sh: all holds"
