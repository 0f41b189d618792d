#!/usr/bin/env bash
# test.sh RELEASE: tests the C library, Python and fio as a user would install them, against
# `farblock serve` from the folder RELEASE (target/release: farblock, libfarblock.so,
# libfarblock.a). Prints each result. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
here=$(cd "$(dirname "$0")" && pwd)

[ $# = 1 ] || { echo "usage: test.sh RELEASE" >&2; exit 2; }
release=$(realpath -- "$1")
for file in farblock libfarblock.so libfarblock.a; do
    [ -f "$release/$file" ] || { echo "test.sh: no $release/$file: make engines builds it" >&2; exit 2; }
done

work=$(mktemp -d "${TMPDIR:-/tmp}/farblock-engines.XXXXXX")
servers=()
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT
    [ ${#servers[@]} = 0 ] || kill "${servers[@]}" 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$work"; else echo "test.sh: failed; the logs are in $work" >&2; fi
    exit $code
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# quietly LABEL COMMAND...: runs a command and prints its label, or its output if it fails.
quietly() {
    local label=$1
    shift
    if "$@" >"$work/output" 2>&1; then echo "ok   $label"; else
        cat "$work/output" >&2
        echo "FAIL $label: $*" >&2
        exit 1
    fi
}

# serve ARGUMENT...: starts a target with two RAM disks of 64 MiB and sets $address.
nqn=nqn.2026-11.org.farblock:engines
serve() {
    local try log=$work/serve-${#servers[@]}.log
    : >"$log"
    "$release/farblock" serve mem:64MiB mem:64MiB --listen 127.0.0.1:0 --nqn $nqn --json "$@" >"$log" 2>&1 &
    servers+=($!)
    address=
    for ((try = 0; try < 100; try++)); do
        address=$(sed -n 's/^{"listening":\["\([^"]*\)".*/\1/p' "$log")
        [ -z "$address" ] || return 0
        sleep 0.1
    done
    cat "$log" >&2
    echo "test.sh: the target is not ready" >&2
    exit 1
}
serve --read-only
read_only="nvme+tcp://$address/$nqn?ns=1"
serve
url="nvme+tcp://$address/$nqn?ns=1"
second="nvme+tcp://$address/$nqn?ns=2"

# serve_file NAME [ADDRESS]: starts a target with a file of 64 MiB, and sets $address and $served.
serve_file() {
    local try log=$work/serve-$1.log
    : >"$log"
    truncate --size=64M "$work/$1"
    "$release/farblock" serve "$work/$1" --listen "${2:-127.0.0.1:0}" --nqn $nqn --json >"$log" 2>&1 &
    served=$!
    servers+=("$served")
    address=
    for ((try = 0; try < 100; try++)); do
        address=$(sed -n 's/^{"listening":\["\([^"]*\)".*/\1/p' "$log")
        [ -z "$address" ] || return 0
        sleep 0.1
    done
    cat "$log" >&2
    echo "test.sh: the target is not ready" >&2
    exit 1
}

# survives LABEL NAME COMMAND...: runs a command that takes some seconds. Meanwhile kills and
# restarts twice the target that `serve_file NAME` started last. The command must succeed.
survives() {
    local label=$1 name=$2 running cut try
    shift 2
    "$@" >"$work/output" 2>&1 &
    running=$!
    # Wait before the first kill: on a busy machine, the command may connect and write late.
    for ((try = 0; try < 300 && $(stat --format=%b "$work/$name") < 256; try++)); do sleep 0.1; done
    for cut in 1 2; do
        sleep 1
        kill -KILL "$served"
        wait "$served" 2>/dev/null || true
        sleep 0.5
        if ! kill -0 $running 2>/dev/null; then
            cat "$work/output" >&2
            echo "FAIL $label: it ended before cut $cut was over" >&2
            exit 1
        fi
        serve_file "$name" "$address"
    done
    if wait $running; then echo "ok   $label"; else
        cat "$work/output" >&2
        echo "FAIL $label: $*" >&2
        exit 1
    fi
}

# C: install the library, find it with pkg-config, and link both ways.
quietly "the C library is installed" "$here/install.sh" "$release" "$work/prefix"
export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
read -ra flags < <(pkg-config --cflags --libs farblock)
warnings=(-std=c11 -Wall -Wextra -Wpedantic -Werror)
quietly "the example builds" gcc "${warnings[@]}" "$here/examples/disk.c" "${flags[@]}" -o "$work/disk"
quietly "the example runs" env "LD_LIBRARY_PATH=$work/prefix/lib" "$work/disk" "$url"
serve_file disk-c
survives "the example survives a target that is killed" disk-c env "LD_LIBRARY_PATH=$work/prefix/lib" "$work/disk" \
    "nvme+tcp://$address/$nqn" 6
grep -q 'live, connected again [12] times' "$work/output" || {
    cat "$work/output" >&2
    echo "FAIL the example did not reconnect" >&2
    exit 1
}
read -ra flags < <(pkg-config --cflags --libs farblock-static)
quietly "the example links statically" gcc "${warnings[@]}" "$here/examples/disk.c" -o "$work/disk-static" "${flags[@]}"
quietly "the static example runs without the shared library" "$work/disk-static" "$url"
quietly "the header compiles as C++" g++ -std=c++17 "${warnings[@]:1}" -fsyntax-only -x c++ "$here/include/farblock.h"
if "$work/disk-static" "$read_only" >"$work/output" 2>&1 || ! grep -q 'read-only' "$work/output"; then
    echo "FAIL the example does not report a read-only disk: $(cat "$work/output")" >&2
    exit 1
fi
echo "ok   the example reports a read-only disk"

# Python: in a virtual environment.
quietly "Python creates a virtual environment" python3 -m venv "$work/venv"
quietly "pip installs the package" env "FARBLOCK_LIBRARY=$release/libfarblock.so" \
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check "$here/python"
quietly "the Python tests pass" env "FARBLOCK=$release/farblock" "FARBLOCK_URL=$url" "FARBLOCK_READ_ONLY_URL=$read_only" \
    "$work/venv/bin/python" -m unittest discover -s "$here/python/tests"

# The wheel must not depend on the version of Python that built it.
quietly "pip builds a wheel" env "FARBLOCK_LIBRARY=$release/libfarblock.so" \
    "$work/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps \
    --wheel-dir "$work/wheel" "$here/python"
[[ $(echo "$work"/wheel/*.whl) == *-py3-none-*.whl ]] || {
    echo "FAIL the wheel $(ls "$work/wheel") does not support every Python version" >&2
    exit 1
}
quietly "mypy is installed" "$work/venv/bin/pip" install --quiet --disable-pip-version-check mypy
# The C library in the package has a module's file name, but is no module.
echo farblock.libfarblock >"$work/no-module"
quietly "Python's type hints match the code" \
    env -C "$work" "$work/venv/bin/python" -m mypy.stubtest farblock --allowlist "$work/no-module"
quietly "mypy accepts correct calls" \
    env -C "$work" "$work/venv/bin/python" -m mypy --strict "$here/python/tests/typed.py"
if "$work/venv/bin/python" -m mypy --strict -c 'import farblock; farblock.connect(1).read("0", 512)' >"$work/output" 2>&1 ||
    [ "$(grep -c 'error: Argument 1' "$work/output")" != 2 ]; then
    echo "FAIL mypy does not reject wrong types: $(cat "$work/output")" >&2
    exit 1
fi
echo "ok   mypy rejects wrong types"

# fio: the job of the documentation, and the engine's errors.
quietly "fio's engine builds" "$here/fio/build.sh" "$release"
name() { sed 's/:/\\:/g' <<<"$1"; }
fio() {
    (cd "$work" && timeout 120 fio "--ioengine=external:$release/libfarblock-fio.so" --name=job --bs=4k --iodepth=32 \
        --group_reporting "$@")
}
disk=--filename=$(name "$url") both=--filename=$(name "$url"):$(name "$second")
quietly "fio, 16 processes" fio "$disk" --rw=randread --numjobs=16 --runtime=2 --time_based
quietly "fio, 16 threads" fio "$disk" --rw=randread --numjobs=16 --runtime=2 --time_based --thread
quietly "fio verifies" fio "$disk" --rw=randwrite --verify=crc32c --verify_fatal=1 --size=64m --end_fsync=1
quietly "fio verifies two disks" fio "$both" --rw=randwrite --bsrange=512-256k --bs_unaligned=0 --blockalign=512 \
    --verify=crc32c --verify_fatal=1 --size=64m --fsync=64
quietly "fio verifies with digests" fio "--filename=$(name "$url&data-digest=1&header-digest=1")" --rw=write --bs=128k \
    --verify=crc32c --verify_fatal=1 --size=64m --sync=1
serve_file disk-fio
survives "fio verifies while its target is killed and restarted" disk-fio \
    fio "--filename=$(name "nvme+tcp://$address/$nqn?ns=1")" \
    --rw=randwrite --rate_iops=4k --verify=crc32c --verify_fatal=1 --size=64m --fsync=256 --reconnect_delay=1 --ctrl_loss_tmo=60
serve_file disk-paths
other=${address/127.0.0.1/localhost}
survives "fio verifies over two paths while its target is killed and restarted" disk-paths \
    fio "--filename=$(name "nvme+tcp://$address/$nqn nvme+tcp://$other/$nqn?ns=1")" \
    --rw=randwrite --rate_iops=2k --verify=crc32c --verify_fatal=1 --numjobs=2 --size=32m --offset_increment=32m \
    --iopolicy=round-robin --reconnect_delay=1
quietly "fio trims" fio "$disk" --rw=randtrimwrite --size=16m
quietly "fio runs at a limited rate" fio "$disk" --rw=randrw --runtime=2 --time_based --rate_iops=500 \
    --output="$work/rate" --output-format=json
# At a limited rate, operations must start at once and complete within milliseconds, instead of
# waiting until the depth is reached.
quietly "operations at a limited rate start at once" \
    jq --exit-status '.jobs[0] | .read.clat_ns.mean < 10e6 and .read.total_ios > 800' "$work/rate"
# bad WORDS ARGUMENT...: fio must fail with an error that contains WORDS.
bad() {
    local words=$1
    shift
    if fio "$@" >"$work/output" 2>&1 || ! grep -q "$words" "$work/output"; then
        cat "$work/output" >&2
        echo "FAIL fio does not report '$words': $*" >&2
        exit 1
    fi
    echo "ok   fio reports '$words'"
}
bad 'the disk is read-only' "--filename=$(name "$read_only")" --rw=write
bad 'bs=1000 is not a multiple' "$disk" --rw=read --bs=1000
bad 'fio splits filename at colons' "--filename=$url" --rw=read
bad 'start with nvme+tcp://' --filename=/dev/null --rw=read
bad 'failed parsing iopolicy' "$disk" --rw=read --iopolicy=fastest
bad 'min value out of range' "$disk" --rw=read --reconnect_delay=0
bad 'different namespaces' "--filename=$(name "$url $second")" --rw=read
bad 'cannot connect to' "--filename=$(name "nvme+tcp://127.0.0.1:1/$nqn?ns=1")" --rw=read
echo "test.sh: all tests passed"
