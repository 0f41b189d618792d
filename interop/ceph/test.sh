#!/usr/bin/env bash
# test.sh FARBLOCK [CARGO]: tests Ceph images shared by farblock, on a cluster of one OSD in its own
# network. Runs the tests of the crate rbd, the guide docs/ceph.md, and a verifying load over two
# targets with one image, while it kills the OSD and then a target. FARBLOCK is the binary. Exit
# code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { echo "usage: test.sh FARBLOCK [CARGO]" >&2; exit 2; }
if [ -z "${FARBLOCK_CEPH_INSIDE-}" ]; then
    # The PID namespace ends all processes, and the network namespace has its own ports.
    FARBLOCK_CEPH_INSIDE=1 exec unshare --map-root-user --net --pid --kill-child --fork \
        --mount-proc bash -c 'ip link set lo up && exec bash "$@"' - "$0" "$@"
fi
. "$here/cluster.sh"

farblock=$(realpath -- "$1")
cargo=${2:-cargo}

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

ends() {
    local code=$?
    trap - EXIT
    if [ $code != 0 ]; then
        tail -n 20 "$logs"/*.log "$logs"/guide/said >&2 2>/dev/null || true
        echo "test.sh: the logs are in $logs" >&2
        exit $code
    fi
    ends_cluster
    rm -rf "$logs"
}

# until_true COMMAND...: waits up to half a minute until the command succeeds.
until_true() {
    local try
    for ((try = 0; try < 300; try++)); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    fail "'$*' did not succeed within 30 s"
}

# until_ended PROCESS SECONDS: waits at most this long for the process to exit.
until_ended() {
    local try
    for ((try = 0; try < $2 * 10; try++)); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    fail "a process still runs after $2 s: $(tr '\0' ' ' <"/proc/$1/cmdline")"
}

# is_told WORDS COMMAND...: checks that the command fails, and that its error contains these words.
is_told() {
    local words=$1 said
    shift
    if said=$(timeout 30 "$@" 2>&1); then fail "'$*' succeeded, but must fail"; fi
    grep -F -- "$words" <<<"$said" >/dev/null || fail "$*: $said"
}

# Runs the guide's blocks as a reader would, and checks their results.
guide() {
    mkdir -p "$logs/guide/bin" "$logs/guide/runtime"
    ln -s "$farblock" "$logs/guide/bin/farblock"
    {
        echo 'set -eux -o pipefail'
        echo 'listens() { for _ in $(seq 300); do ! farblock id "$1" >/dev/null 2>&1 || return 0'
        echo '    sleep 0.1; done; echo "no target answers"; exit 1; }'
        awk '/^```sh$/ { inside = 1; port = 0; next }
            /^```$/ && inside { inside = 0; if (port) print "listens " begin port end }
            inside { print; if (/^farblock serve /) port = 4420 }
            inside && /--listen 127.0.0.1:4430/ { port = 4430 }' \
            begin=nvme+tcp://127.0.0.1: end="/nqn.2026-11.org.example:ceph?ns=1" \
            "$here/../../docs/ceph.md"
        echo 'size=$(farblock id "nvme+tcp://127.0.0.1/nqn.2026-11.org.example:ceph?ns=1" --json)'
        echo 'echo "$size"; grep -F 536870912 <<<"$size" >/dev/null'
        echo 'farblock detach --all; kill %1 %2; wait'
    } >"$logs/guide/run.sh"
    (
        cd "$logs/guide"
        PATH=$logs/guide/bin:$PATH FARBLOCK_RUNTIME_DIR=$logs/guide/runtime timeout 60 \
            bash run.sh >said 2>&1
    ) || fail "a command of docs/ceph.md failed"
    # Check that no client watches the image, because the target has closed it.
    ! rbd status rbd/disk | grep -F watcher= >/dev/null ||
        fail "the image is still open after its target has exited"
}

# target NUMBER PORT CNTLIDS: shares rbd/shared; its process is in targets[NUMBER].
targets=()
target() {
    "$farblock" serve rbd:rbd/shared --nqn "$nqn" --listen "127.0.0.1:$2" --cntlids "$3" \
        --control "$logs/control.$1" >"$logs/target.$1.log" 2>&1 &
    targets[$1]=$!
    until_true grep '^listening' "$logs/target.$1.log"
}

# Two targets share one image. Under an fio load, the test kills and restarts the OSD, and then a
# target.
faults() {
    local fio one two
    nqn=nqn.2026-11.org.farblock:ceph
    rbd create rbd/shared --size 64M --image-feature layering
    target 1 4440 1-999
    target 2 4441 1000-1999
    one="nvme+tcp://127.0.0.1:4440/$nqn?ns=1"
    two="nvme+tcp://127.0.0.1:4441/$nqn?ns=1"
    "$farblock" attach "$one" "$two" --iopolicy round-robin --as nbd --socket "$logs/nbd" \
        --keep-alive 1s --foreground >"$logs/attach.log" 2>&1 &
    until_true [ -S "$logs/nbd" ]
    fio --name=verify --ioengine=nbd "--uri=nbd+unix:///?socket=$logs/nbd" --rw=randrw --bs=4k \
        --size=32m --io_size=48m --iodepth=16 --verify=crc32c --verify_backlog=256 \
        --verify_fatal=1 --rate_iops=500,500 --output="$logs/fio.log" &
    fio=$!
    sleep 2
    kills_osd
    sleep 2
    kill -0 $fio 2>/dev/null || fail "fio ended while the OSD was away"
    begins_osd
    echo "ceph: the OSD was killed and restarted"
    sleep 2
    kill -9 "${targets[1]}"
    kill -0 $fio 2>/dev/null || fail "fio ended before a target was killed"
    until_ended $fio 60
    wait $fio || fail "fio failed, or read other data than it had written"
    grep -F 'err= 0' "$logs/fio.log" >/dev/null || fail "fio reports an error"
    echo "ceph: a target was killed, and no data was lost"
}

logs=$(mktemp -d "${TMPDIR:-/tmp}/farblock-ceph.XXXXXX")
trap ends EXIT
mkdir "$logs/ceph"
begins_cluster "$logs/ceph"
# Change to the logs, because fio leaves files in its working folder.
cd "$logs"
echo "ceph: the cluster is up"
is_told "the image does not exist" "$farblock" serve rbd:rbd/none
is_told "names no image" "$farblock" serve rbd:none
guide
echo "ceph: all commands of docs/ceph.md work"
# Use the build options of `make unit`, so that cargo need not build these tests again.
(cd "$here/../.." && "$cargo" test --locked --quiet --workspace --all-features --test cluster \
    --test older -- --include-ignored --test-threads 4)
faults
