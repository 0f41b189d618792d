#!/bin/bash
# ceph-multipath.sh FARBLOCK: one Ceph image behind two farblock targets, as two ports of one
# subsystem. The kernel's host in a guest uses both with its own multipath. It writes and verifies
# while the targets are killed (-9) and restarted (jobs/ceph-multipath.sh). The cluster is one OSD
# on the loopback of its own network. FARBLOCK is the binary. Run setup.sh and packages.sh once
# before. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$(dirname "$0")/stand.sh"
. "$(dirname "$0")/../ceph/cluster.sh"

[ $# = 1 ] || die "usage: ceph-multipath.sh FARBLOCK"
if [ -z "${FARBLOCK_CEPH_INSIDE-}" ]; then
    # The PID namespace ends all processes, and the network namespace has its own ports.
    FARBLOCK_CEPH_INSIDE=1 exec unshare --map-root-user --net --pid --kill-child --fork \
        --mount-proc bash -c 'ip link set lo up && exec bash "$@"' - "$0" "$@"
fi
farblock=$(realpath -- "$1")
stand
cd "$logs"

nqn=nqn.2026-11.org.farblock:ceph
one=4420
two=4421
declare -A targets

# The commands that the guest may request by name, each with a port.
start_target() {
    local first=$(((($1 - one) * 1000) + 1))
    serve "server.log.new" rbd:rbd/shared --nqn $nqn --listen "127.0.0.1:$1" \
        --cntlids $first-$((first + 998)) --control "$logs/control.$1"
    targets[$1]=$server
    server=
    cat server.log.new >>server.log
}
kill_target() {
    kill -9 "${targets[$1]}"
    wait "${targets[$1]}" || true
}
kill_both() {
    kill -9 "${targets[$1]}" "${targets[$2]}"
    wait "${targets[$1]}" "${targets[$2]}" || true
}
# The cluster must hold the data that the kernel read last.
same_in_ceph() {
    local sum
    sum=$(rbd export --no-progress rbd/shared - | sha256sum | cut -d ' ' -f 1)
    [ "$sum" = "$(cat share/sum)" ] ||
        fail "the image differs from the data that the kernel read: $sum"
}

# shellcheck disable=SC2317 # called by the trap
ends() {
    local code=$?
    {
        kill -9 "${targets[@]}" || true
        ends_cluster
        wait
    } 2>/dev/null
    set +e
    (exit $code)
    clean_up
}
trap ends EXIT

mkdir ceph
begins_cluster "$logs/ceph"
rbd create rbd/shared --size 16M --image-feature layering
start_target $one
start_target $two
echo "$one $two" >ports
answer_guest 400 "$linux_dir/jobs/ceph-multipath.sh" ports "$linux_dir/jobs/paths.sh"
if grep -q panicked server.log; then
    cat server.log >&2
    exit 1
fi
echo "ceph-multipath.sh: all checks passed"
