#!/bin/bash
# rdma.sh SUITE [FARBLOCK]: farblock's RDMA verbs over soft-RoCE in a guest (jobs/rdma.sh). SUITE is
# the example verbs_suite of farblock-verbs. With the program FARBLOCK, it also tests farblock's
# target and host, each with the Linux kernel as its peer (jobs/rdma-target.sh, jobs/rdma-host.sh),
# listeners from a configuration and added at run time (jobs/rdma-faces.sh), the features that a
# transport must not change (jobs/rdma-features.sh), and cut cables, cut paths and killed ends under
# load (jobs/rdma-faults.sh). Runs setup.sh first. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 1 ] || [ $# = 2 ] || die "usage: rdma.sh SUITE [FARBLOCK]"
[ -x "$1" ] || die "there is no program $1; build farblock-verbs's examples with all features."
[ $# = 1 ] || [ -x "$2" ] || die "there is no program $2; build farblock."
"$linux_dir/setup.sh"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/farblock-rdma.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# Strip debug information, so that the copy to the guest takes less time.
strip -o "$scratch/verbs_suite" "$1"
TIMEOUT=300 "$linux_dir/guest.sh" "$linux_dir/jobs/rdma.sh" "$scratch/verbs_suite"
if [ $# = 2 ]; then
    mkdir "$scratch/share"
    strip -o "$scratch/share/farblock" "$2"
    for job in rdma-target rdma-host rdma-faces rdma-features; do
        SHARE=$scratch/share TIMEOUT=900 "$linux_dir/guest.sh" "$linux_dir/jobs/$job.sh"
    done
    for phases in "discovers-kernel kf fk ff" \
        "cuts-kernel cuts-farblock kills-kernel kills-farblock"; do
        echo "$phases" >"$scratch/phases"
        SHARE=$scratch/share TIMEOUT=600 "$linux_dir/guest.sh" "$linux_dir/jobs/rdma-faults.sh" \
            "$scratch/phases"
    done
fi
echo "rdma.sh: all checks passed"
