#!/bin/bash
# run.sh [--verbose] FARBLOCK: farblock against the Linux kernel, in both directions:
#   1. 'farblock serve' on this machine, the kernel's host and nvme-cli in a guest
#      (jobs/kernel-host.sh);
#   2. the kernel's target in a guest (jobs/kernel-target.sh), farblock as host on this machine.
# Each part runs with the io_uring engine and with the portable engine. FARBLOCK is the binary.
#
# run.sh [--verbose] --self-check: runs the kernel's host against the kernel's target, to
# distinguish a broken harness from a broken farblock.
#
# Runs setup.sh first. Prints progress, or with --verbose every check. After a failure it keeps the
# logs and names their folder. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

verbose=no
if [ "${1:-}" = --verbose ]; then
    verbose=yes
    shift
fi
[ $# = 1 ] || die "usage: run.sh [--verbose] FARBLOCK | --self-check"
if [ "$1" != --self-check ]; then
    farblock=$(realpath -- "$1")
    if [ ! -f "$farblock" ] || [ ! -x "$farblock" ]; then
        die "$1 is not a program; give the path of the farblock binary."
    fi
fi

logs=$(mktemp -d "${TMPDIR:-/tmp}/farblock-interop.XXXXXX")
log=$logs/run.log
guest_seconds=600 # far more than a guest needs, for busy machines
servers=() # process ids of farblock serve; index as in labels
guest=     # process id of guest.sh

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT ERR
    # shellcheck disable=SC2086 # if it is empty, there must be no argument
    kill "${servers[@]}" $guest 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$logs"; else echo "run.sh: the logs are in $logs" >&2; fi
    exit $code
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR

# --- Output. 'ok' lines go to the log, and with --verbose to the terminal.

# Prints the lines of a stream that matter to the reader, and logs all of them.
show() {
    if [ $verbose = yes ]; then
        tee -a "$log"
    else
        tee -a "$log" | grep --line-buffered -v -e '^ok: ' -e '^data: ' || true
    fi
}
say() { echo "[$SECONDS s] $*" | show; }
ok() { echo "ok: $*" | show; }
fail() {
    trap - ERR
    echo "FAIL: $*" | show
    exit 1
}

# check TEXT COMMAND...: the command must succeed. Prints its output only if it fails.
check() {
    local text=$1 output
    shift
    output=$("$@" 2>&1) || fail "$text: '$*' gave exit code $?: $output"
    ok "$text"
}

# refused TEXT COMMAND...: the command must fail with an exit code below 100, and without a panic.
refused() {
    local text=$1 output code=0
    shift
    output=$("$@" 2>&1) || code=$?
    [ $code != 0 ] || fail "$text: '$*' succeeded: $output"
    if [ $code -ge 100 ] || [[ $output == *panicked* ]]; then
        fail "$text: '$*' crashed with exit code $code: $output"
    fi
    ok "$text is refused: ${output##*$'\n'}"
}

equal() {
    [ "$2" = "$3" ] || fail "$1: expected $2, got $3"
    ok "$1"
}

# --- Ports of this machine's loopback

chosen=" "
# Sets 'port' to a free port.
choose_port() {
    local hexadecimal
    while :; do
        port=$((RANDOM % 20000 + 12000))
        hexadecimal=$(printf ':%04X ' $port)
        [[ $chosen == *" $port "* ]] || grep -q "$hexadecimal" /proc/net/tcp /proc/net/tcp6 || break
    done
    chosen+="$port "
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# --- 1: farblock's target, the kernel's host

# serve LABEL ENGINE BLOCK CHECKS SIZE...: starts farblock serve with one file per SIZE in MiB, and
# adds it to the guest's list of targets.
labels=()
serve() {
    local label=$1 engine=$2 block=$3 checks=$4 nqn=nqn.2024-01.farblock:$1
    local files=() sizes='' number=0 options=() port size try
    shift 4
    for size in "$@"; do
        number=$((number + 1))
        files+=("$logs/$label-$number.disk")
        truncate -s "${size}M" "${files[-1]}"
        sizes+=,$((size * 1048576))
    done
    if [ "$checks" = read-only ]; then
        options+=(--read-only)
        head -c "$1M" /dev/urandom >"${files[0]}"
    fi
    choose_port
    "$farblock" --engine "$engine" serve "${files[@]}" --listen "127.0.0.1:$port" --nqn "$nqn" \
        --block-size "$block" "${options[@]}" >"$logs/$label.log" 2>&1 </dev/null &
    servers+=($!)
    labels+=("$label")
    for ((try = 0; try < 100; try++)); do
        listens "$port" && break
        kill -0 "${servers[-1]}" 2>/dev/null || break
        sleep 0.1
    done
    listens "$port" ||
        fail "farblock serve ($label) does not listen: $(tail -n 5 "$logs/$label.log")"
    ok "$label: farblock serve listens on port $port"
    echo "label=$label lane=$engine address=10.0.2.2 port=$port nqn=$nqn block=$block" \
        "sizes=${sizes#,} checks=$checks model=farblock" >>"$logs/targets"
}

# Stops the servers with SIGTERM. They must exit with 0 within ten seconds, without a panic.
stop_servers() {
    local number label code try
    for number in "${!servers[@]}"; do kill -TERM "${servers[number]}" || true; done
    for number in "${!servers[@]}"; do
        label=${labels[number]}
        for ((try = 0; try < 100; try++)); do
            kill -0 "${servers[number]}" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "${servers[number]}" 2>/dev/null || true
        code=0
        wait "${servers[number]}" || code=$?
        unset "servers[number]"
        [ $code = 0 ] || fail "$label: farblock serve ended with $code after SIGTERM:" \
            "$(tail -n 5 "$logs/$label.log")"
        ! grep -q panicked "$logs/$label.log" || fail "$label: farblock serve panicked:" \
            "$(grep -m 1 -A 3 panicked "$logs/$label.log")"
        ok "$label: SIGTERM ends farblock serve with exit code 0, without a panic"
    done
}

kernel_host() {
    local engine label nsid sum
    say "1: farblock's target, the kernel's host"
    for engine in uring portable; do
        serve $engine-512 $engine 512 all 48 36
        serve $engine-4096 $engine 4096 data 36
    done
    serve uring-read-only uring 512 read-only 4
    run_guest jobs/kernel-host.sh "$logs/targets"
    stop_servers
    # The files must hold the data that the kernel saw last.
    [ "$(grep -c '^data: ' "$log")" = 7 ] || fail "the guest did not report all 7 namespaces"
    while read -r _ label nsid sum; do
        equal "$label: the file of namespace $nsid holds what the kernel read last" "$sum" \
            "$(sha256sum <"$logs/$label-$nsid.disk" | cut -d ' ' -f 1)"
        rm "$logs/$label-$nsid.disk"
    done < <(grep '^data: ' "$log")
}

# run_guest JOB FILE...: runs a guest whose job must succeed.
run_guest() {
    local code=0 output=$logs/guest.log shower number
    : >"$output"
    TIMEOUT=$guest_seconds "$linux_dir/guest.sh" "$linux_dir/$1" "${@:2}" >>"$output" 2>&1 &
    guest=$!
    tail -n +1 -f --pid=$guest -s 0.2 "$output" | show &
    shower=$!
    wait $guest || code=$? # unlike a pipeline, 'wait' lets signals through
    wait $shower
    guest=
    [ $code = 0 ] && return
    for number in "${!servers[@]}"; do
        kill -0 "${servers[number]}" 2>/dev/null || echo "${labels[number]}: farblock serve is" \
            "gone: $(tail -n 5 "$logs/${labels[number]}.log")" | show
    done
    fail "the guest's job $1 ended with $code"
}

# --- 2: the kernel's target, farblock's host

kernel_nqn=nqn.2024-01.farblock:kernel # as in jobs/kernel-target.sh
disk_bytes=33554432

# ask WORDS...: sends a question to the guest's job, and prints its answer.
ask() {
    local answer
    exec 3<>"/dev/tcp/127.0.0.1/$control_port"
    echo "$*" >&3
    read -r -t 60 answer <&3 || true # 'stop' has no answer
    exec 3<&-
    echo "${answer:-no answer}"
}

sum_file() { sha256sum <"$1" | cut -d ' ' -f 1; }

url() { echo "nvme+tcp://127.0.0.1:$target_port/$kernel_nqn?ns=$1"; }

# run ENGINE COMMAND...: runs farblock, for at most a minute.
run() { timeout 60 "$farblock" --engine "$@"; }

# transfers ENGINE NSID DIGEST-OPTIONS...: checks that farblock and the kernel transfer the same
# data.
transfers() {
    local engine=$1 nsid=$2 text back=$logs/back small=$logs/small big=$logs/big
    shift 2
    text="$engine: namespace $nsid${*:+, }$*"
    head -c 4M /dev/urandom >"$big"
    head -c 70001 /dev/urandom >"$small"
    check "$text: write 4 MiB" run "$engine" write "$(url "$nsid")" --input "$big" "$@"
    equal "$text: the kernel reads the written 4 MiB" "$(sum_file "$big")" "$(ask sum "$nsid" 0 4194304)"
    check "$text: read 4 MiB" run "$engine" read "$(url "$nsid")" --length 4194304 \
        --output "$back" "$@"
    check "$text: the read data are the written data" cmp "$big" "$back"
    check "$text: write 70001 bytes at 1000003" run "$engine" write "$(url "$nsid")" \
        --offset 1000003 --input "$small" "$@"
    dd if="$small" of="$big" oflag=seek_bytes seek=1000003 conv=notrunc 2>/dev/null
    equal "$text: the kernel reads these bytes, and the rest unchanged" "$(sum_file "$big")" \
        "$(ask sum "$nsid" 0 4194304)"
    local filled
    filled=$(ask fill "$nsid" 16777216 2097152)
    check "$text: read 2 MiB at 16 MiB" run "$engine" read "$(url "$nsid")" --offset 16777216 \
        --length 2097152 --output "$back" "$@"
    equal "$text: the read data are the kernel's" "$filled" "$(sum_file "$back")"
}

whole_disks() {
    local engine=$1 image=$logs/image back=$logs/back
    head -c $disk_bytes /dev/urandom >"$image"
    check "$engine: copy a file to namespace 1" run "$engine" copy "$image" "$(url 1)"
    equal "$engine: the kernel reads the file from namespace 1" "$(sum_file "$image")" \
        "$(ask sum 1 0 $disk_bytes)"
    check "$engine: copy namespace 1 to namespace 2" run "$engine" copy "$(url 1)" "$(url 2)"
    equal "$engine: the kernel reads the file from namespace 2" "$(sum_file "$image")" \
        "$(ask sum 2 0 $disk_bytes)"
    check "$engine: copy namespace 2 to a file" run "$engine" copy "$(url 2)" "$back"
    check "$engine: the copied file equals the first file" cmp "$image" "$back"
}

describes() {
    local engine=$1 output
    output=$(run "$engine" discover "127.0.0.1:$target_port") ||
        fail "$engine: discover failed: $output"
    [[ $output == *"$kernel_nqn"* ]] || fail "$engine: discover does not list $kernel_nqn: $output"
    ok "$engine: discover lists the subsystem"
    output=$(run "$engine" id "$(url 1)" --json) || fail "$engine: id failed: $output"
    jq -e --arg nqn $kernel_nqn '[.. | strings] |
        any(. == $nqn) and any(startswith("Linux"))' >/dev/null <<<"$output" ||
        fail "$engine: id --json names neither the subsystem nor the model Linux: $output"
    ok "$engine: id --json names the subsystem and the model"
    refused "$engine: a wrong name" run "$engine" id \
        "nvme+tcp://127.0.0.1:$target_port/$kernel_nqn.wrong"
    refused "$engine: a missing namespace" run "$engine" read "$(url 9)" --length 4096 \
        --output /dev/null
    refused "$engine: a read past the end" run "$engine" read "$(url 1)" --offset $disk_bytes \
        --length 4096 --output /dev/null
}

kernel_target() {
    local port control_port target_port engine digests try code=0
    say "2: the kernel's target, farblock's host"
    choose_port
    target_port=$port
    choose_port
    control_port=$port
    FWD="$target_port:4420 $control_port:4499" TIMEOUT=$guest_seconds \
        "$linux_dir/guest.sh" "$linux_dir/jobs/kernel-target.sh" >"$logs/target.log" 2>&1 &
    guest=$!
    for ((try = 0; try < 600; try++)); do
        ! grep -q '^READY' "$logs/target.log" || break
        kill -0 $guest 2>/dev/null || break
        sleep 0.1
    done
    grep -q '^READY' "$logs/target.log" || fail "the guest is not ready: $(cat "$logs/target.log")"
    for engine in uring portable; do
        say "$engine engine"
        describes $engine
        for digests in "" --header-digest --data-digest "--header-digest --data-digest"; do
            # shellcheck disable=SC2086 # options are separate words
            transfers $engine 1 $digests
        done
        transfers $engine 2
        transfers $engine 2 --header-digest --data-digest
        whole_disks $engine
    done
    ask stop >/dev/null
    wait $guest || code=$?
    guest=
    [ $code = 0 ] || fail "the guest's job ended with $code: $(tail -n 20 "$logs/target.log")"
    ok "the kernel's target has logged no error"
}

# --- The self-check of the harness

self_check() {
    say "the kernel's host with the kernel's target"
    truncate -s 36M "$logs/disk"
    local arguments="-drive file=$logs/disk,format=raw,if=none,id=disk"
    arguments+=" -device nvme-subsys,id=subsystem -device nvme,subsys=subsystem,serial=disk"
    arguments+=" -device nvme-ns,drive=disk"
    QEMU_ARGS=$arguments run_guest jobs/self-check.sh "$linux_dir/jobs/kernel-host.sh"
}

"$linux_dir/setup.sh" | show
if [ "$1" = --self-check ]; then
    self_check
else
    kernel_host
    kernel_target
fi
say "all $(grep -c '^ok: ' "$log") checks passed"
