# Guest job: the Linux kernel's NVMe/TCP host and nvme-cli against the targets listed in the file
# "targets", which comes with the job. One target per line, as words NAME=VALUE:
#   label    name in the output                    address, port, nqn   the subsystem to connect to
#   block    block size in bytes                   sizes   bytes of namespaces 1, 2, ..., by commas
#   checks   all; data (no administration, no single commands, fewer digests); or read-only
#   model    expected model number
#   lacks    features that the target lacks, with commas (for targets other than farblock):
#            compare verify list-ctrl supported-logs lba-range identifiers verify-bit
#            feature-status copy
#   lane     the job checks targets of one lane one after the other, and lanes in parallel
# Prints "ok: ..." for each success, and "data: LABEL NSID SHA256" for each namespace's final
# contents, which run.sh compares with the targets' files. Ends at the first failure.
# shellcheck shell=bash disable=SC2016 # the dollars in single quotes are jq's
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

host_nqn=nqn.2014-08.org.nvmexpress:uuid:6f61c8a4-2c0f-4d0e-9d5b-0d3b8f6a1c11
host_id=6f61c8a4-2c0f-4d0e-9d5b-0d3b8f6a1c11

# Sets label, address, ... from a line of "targets".
read_target() {
    local word
    label='' address='' port='' nqn='' block='' sizes='' checks='' model='' lacks='' lane=''
    for word in $1; do printf -v "${word%%=*}" %s "${word#*=}"; done
    model=${model//_/ }
    IFS=, read -r -a size_of <<<"0,$sizes" # size_of[NSID]
    nsids=$((${#size_of[@]} - 1))
}

has() { [[ ,$lacks, != *,$1,* ]]; }

# json TEXT FILTER COMMAND...: the command's JSON output must satisfy the jq filter, with the jq
# options of the array jq_options.
jq_options=()
json() {
    local text=$1 filter=$2 output
    shift 2
    output=$("$@" --output-format=json) || fail "$text: '$*' gave $output"
    jq -e "${jq_options[@]}" "$filter" <<<"$output" >/dev/null ||
        fail "$text: '$*' does not satisfy '$filter': $output"
    ok "$text"
}

# --- Connections

# These commands read all of /sys/class/nvme, so the lanes run them one at a time.
alone() { flock /run/alone "$@"; }

connect_only() {
    alone nvme connect --transport=tcp --traddr="$address" --trsvcid="$port" --nqn="$nqn" \
        --hostnqn=$host_nqn --hostid=$host_id "$@"
}

# Connects and waits for every namespace; sets controller and the array namespace[NSID].
connect() {
    local nsid line queue
    check "$label: connect${*:+ }$*" connect_only "$@"
    find_controller "$nqn" || fail "$label: there is no controller after nvme connect"
    controller=$found
    namespace=()
    for ((nsid = 1; nsid <= nsids; nsid++)); do
        eventually "$label: namespace $nsid appears" find_namespace "$nqn" $nsid
        namespace[nsid]=$found
        queue=/sys/block/${found##*/}
        first_line "$queue/size" # always in units of 512 bytes
        equal "$label: size of namespace $nsid" "${size_of[nsid]}" $((line * 512))
        first_line "$queue/queue/logical_block_size"
        equal "$label: block size of namespace $nsid" "$block" "$line"
    done
}

disconnect() { check "$label: disconnect" alone nvme disconnect --nqn="$nqn"; }

is_live() {
    local line
    first_line "/sys/class/nvme/$controller/state"
    [ "$line" = live ]
}

# --- Identify data of the controller

check_discovery() {
    jq_options=(--arg nqn "$nqn" --arg port "$port")
    json "$label: discover lists the subsystem" '[.records[] | select(.subnqn == $nqn
        and .trtype == "tcp" and .adrfam == "ipv4" and .trsvcid == $port
        and .subtype == "nvme subsystem")] | length == 1' \
        alone nvme discover --transport=tcp --traddr="$address" --trsvcid="$port" \
        --hostnqn=$host_nqn --hostid=$host_id
    jq_options=()
}

check_controller() {
    local device=/dev/$controller identify wrong
    identify=$(nvme id-ctrl "$device" --output-format=json)
    wrong=$(jq -r --arg model "$model" --arg nqn "$nqn" --arg lacks ",$lacks," \
        --argjson id "$(cat "/sys/class/nvme/$controller/cntlid")" --argjson nsids "$nsids" '
        def bit($number): (. / pow(2; $number) | floor) % 2 == 1;
        def has($feature): $lacks | contains("," + $feature + ",") | not;
        {
            mn: (.mn | sub(" +$"; "") == $model),
            sn: (.sn | test("[!-~]")),
            fr: (.fr | test("[!-~]")),
            subnqn: (.subnqn == $nqn),
            cntlid: (.cntlid == $id and $id > 0 and $id < 65520),
            cntrltype: (.cntrltype == 1),
            ver: (.ver >= 66304),           # 1.3: namespace identification descriptors
            sqes: (.sqes == 102), cqes: (.cqes == 68),
            maxcmd: (.maxcmd >= 16),
            nn: (.nn >= $nsids),
            kas: (.kas > 0),
            ioccsz: (.ioccsz >= 4), iorcsz: (.iorcsz >= 1), icdoff: (.icdoff == 0),
            sgls: (.sgls % 4 > 0),          # bits 1:0: SGLs are supported
            oncs: (.oncs | bit(2) and bit(3) and (bit(0) or (has("compare") | not))
                and (bit(7) or (has("verify") and has("verify-bit") | not))),
            vwc: (.vwc | bit(0))
        } | to_entries[] | select(.value | not) | .key' <<<"$identify")
    [ -z "$wrong" ] || fail "$label: id-ctrl: these fields are wrong:" "$wrong" "in $identify"
    ok "$label: id-ctrl: mn, sn, fr, subnqn, cntlid, ver, kas, ioccsz, oncs, sgls, vwc and more"

    # Run this without concurrent connections, because nvme list reads all of them.
    json "$label: list shows model, size and block size" "[.Devices[] |
        select(.DevicePath == (\"${namespace[*]}\" | split(\" \")[])) |
        select(.ModelNumber == \"$model\" and .SectorSize == $block) | .PhysicalSize] | sort ==
        ([${sizes}] | sort)" alone nvme list
    json "$label: list-ns" "[.nsid_list[].nsid] == [range(1; $((nsids + 1)))]" \
        nvme list-ns "$device"
    if has list-ctrl; then
        local id
        id=$(cat "/sys/class/nvme/$controller/cntlid")
        json "$label: list-ctrl" "[.ctrl_list[].ctrl_id] | index($id) != null" \
            nvme list-ctrl "$device"
        json "$label: list-ctrl of a namespace" "[.ctrl_list[].ctrl_id] | index($id) != null" \
            nvme list-ctrl "$device" --namespace-id=1
    fi
}

# check_namespace NSID: checks the namespace's Identify data and names.
check_namespace() {
    local device=${namespace[$1]} blocks=$((size_of[$1] / block)) name
    json "$label: id-ns $1" ".nsze == $blocks and .ncap == $blocks and .nuse <= $blocks
        and (.lbafs[.flbas % 16] | pow(2; .ds) == $block and .ms == 0)" nvme id-ns "$device"
    has identifiers || return 0
    json "$label: ns-descs $1 name it" '[."ns-descs"[] |
        (.uuid, .nguid, .eui64) | strings | select(test("[1-9a-f]"))] | length > 0' \
        nvme ns-descs "$device"
    # The kernel's name for the disk must come from its identifiers, not from the serial number.
    name=$(cat "/sys/block/${device##*/}/wwid")
    [[ $name =~ ^(uuid|eui)\. ]] || fail "$label: wwid of namespace $1 is $name"
    [ "$name" != "${previous_name:-}" ] || fail "$label: two namespaces share the wwid $name"
    previous_name=$name
    ok "$label: wwid of namespace $1 is $name"
}

check_logs_and_features() {
    local device=/dev/$controller
    json "$label: smart-log" '.critical_warning == 0 and has("host_read_commands")' \
        nvme smart-log "$device"
    json "$label: error-log" '.errors | length > 0' nvme error-log "$device"
    check "$label: fw-log" nvme fw-log "$device"
    json "$label: effects-log" '[.. | objects | keys[]] |
        any(test("Flush")) and any(test("Write\\)")) and any(test("Read\\)")) and
        any(test("Identify"))' nvme effects-log "$device"
    check "$label: changed-ns-list-log" nvme changed-ns-list-log "$device"
    if has supported-logs; then
        local output page
        output=$(nvme supported-log-pages "$device")
        for page in 0x1 0x2 0x3 0x4 0x5; do
            [[ $output == *"LID $page - "* ]] ||
                fail "$label: supported-log-pages lacks $page: $output"
        done
        ok "$label: supported-log-pages has pages 1 to 5"
    fi
    refused "$label: an unknown log page" 'Invalid (Field|Log Page)' \
        nvme get-log "$device" --log-id=0xbf --log-len=512
    check "$label: get-feature volatile write cache" nvme get-feature "$device" --feature-id=6
    check "$label: get-feature number of queues" nvme get-feature "$device" --feature-id=7
    check "$label: get-feature asynchronous events" nvme get-feature "$device" --feature-id=0xb
    check "$label: get-feature keep alive timer" nvme get-feature "$device" --feature-id=0xf
    if has feature-status; then
        refused "$label: an unknown feature" 'Invalid Field' \
            nvme get-feature "$device" --feature-id=0xbf
    fi
    json "$label: show-regs" '.cap > 0 and .vs >= 66304 and .cc % 2 == 1 and .csts % 2 == 1' \
        nvme show-regs "$device"
}

# --- Passthrough commands of nvme-cli

# fields of a command on blocks START..START+COUNT-1: --block-count is 0's-based
at() { echo "--start-block=$1 --block-count=$(($2 - 1))"; }

check_commands() {
    local device=${namespace[$1]} text="$label: namespace $1"
    local blocks=$((size_of[$1] / block)) few=$((4096 / block)) many=$((131072 / block))
    local first=$scratch/first second=$scratch/second back=$scratch/back zeros=$scratch/zeros
    head -c 131072 /dev/urandom >"$first"
    head -c 131072 /dev/urandom >"$second"
    head -c 131072 /dev/zero >"$zeros"

    # io VERB START COUNT FILE OPTIONS...: 'at' must split into several words
    io() {
        # shellcheck disable=SC2046
        nvme "$1" "$device" $(at "$2" "$3") --data="$4" --data-size=$(($3 * block)) "${@:5}"
    }
    # plain VERB START COUNT: a command without data
    # shellcheck disable=SC2046,SC2317
    plain() { nvme "$1" "$device" $(at "$2" "$3"); }
    # reads_back TEXT START COUNT FILE: the blocks must hold the first bytes of FILE
    reads_back() {
        rm -f "$back"
        io read "$2" "$3" "$back" >/dev/null 2>&1 ||
            fail "$text: $1: the blocks cannot be read back"
        cmp -n $(($3 * block)) "$back" "$4" || fail "$text: $1: other data were read back"
        ok "$text: $1: reads back"
    }

    # A 4 KiB write has its data in the capsule; for 128 KiB the controller sends an R2T.
    check "$text: write 128 KiB" io write 0 $many "$first"
    reads_back "write 128 KiB" 0 $many "$first"
    check "$text: write 4 KiB" io write 3 $few "$second"
    reads_back "write 4 KiB" 3 $few "$second"
    check "$text: write one block at the end" io write $((blocks - 1)) 1 "$second"
    reads_back "write one block at the end" $((blocks - 1)) 1 "$second"
    check "$text: write, force unit access" io write 0 $many "$first" --force-unit-access
    check "$text: read, force unit access" io read 0 $many "$back" --force-unit-access
    cmp "$first" "$back" || fail "$text: force unit access: other data were read back"
    check "$text: flush" nvme flush "$device"

    if has compare; then
        check "$text: compare 128 KiB" io compare 0 $many "$first"
        check "$text: compare 4 KiB" io compare 0 $few "$first"
        refused "$text: compare of other data" 'Compare Failure' io compare 0 $many "$second"
    fi
    if has verify; then check "$text: verify" plain verify 0 $many; fi
    if has copy; then check_copy "$1"; fi

    check "$text: write zeroes" plain write-zeroes $few $few
    reads_back "write zeroes" $few $few "$zeros"
    reads_back "write zeroes does not change the blocks before" 0 $few "$first"
    check "$text: deallocate" nvme dsm "$device" --ad --slbs=0 --blocks=$many
    check "$text: read deallocated blocks" io read 0 $many "$back"

    if has lba-range; then
        refused "$text: read past the end" 'LBA Out of Range' io read "$blocks" 1 "$back"
        refused "$text: read across the end" 'LBA Out of Range' io read $((blocks - 1)) 2 "$back"
        refused "$text: read at the greatest address" 'LBA Out of Range' \
            io read 0xffffffffffffffff 1 "$back"
        refused "$text: write past the end" 'LBA Out of Range' io write "$blocks" $many "$first"
        refused "$text: write zeroes past the end" 'LBA Out of Range' \
            plain write-zeroes "$blocks" 1
        if has compare; then
            refused "$text: compare past the end" 'LBA Out of Range' io compare "$blocks" 1 "$first"
        fi
    fi
    refused "$text: an unknown command" 'Invalid Command Opcode' \
        nvme io-passthru "$device" --opcode=0x70 --namespace-id="$1"
    reads_back "the last block after these commands" $((blocks - 1)) 1 "$second"
}

# Copy commands; uses the data and the functions of check_commands for namespace NSID.
check_copy() {
    local enabled=$scratch/enabled said
    # copy TO STARTS COUNTS OPTIONS...: the counts are 0's-based
    copy() { nvme copy "$device" --sdlba="$1" --slbs="$2" --blocks="$3" "${@:4}"; }
    check "$text: copy" copy $((2 * many)) 0 $((many - 1))
    reads_back "copy" $((2 * many)) $many "$first"
    check "$text: copy two ranges" copy $((4 * many)) $((2 * many)),$((3 * many - 1)) \
        $((many - 2)),0 --force-unit-access
    reads_back "copy two ranges" $((4 * many)) $many "$first"
    refused "$text: copy onto itself" 'Overlapping I/O Range|0x4187' \
        copy $((many / 2)) 0 $((many - 1))
    refused "$text: copy past the end" 'LBA Out of Range' copy $((blocks - 1)) 0 1
    refused "$text: copy of another namespace, which is not enabled" 'Invalid Field' \
        copy $((2 * many)) 0 0 --format=2 --snsids="$1"
    # Host Behavior Support: CDFE is bytes 5:4.
    head -c 512 /dev/zero >"$enabled"
    printf '\004' | dd of="$enabled" bs=1 seek=4 conv=notrunc status=none
    if ! said=$(nvme set-feature "/dev/$controller" --feature-id=0x16 --data-len=512 \
        --data="$enabled" 2>&1); then
        # Since 6.12.117, the kernel refuses nvme-cli's changes of features that its driver manages,
        # so the host cannot enable this feature. The target's own tests cover it.
        [[ $said = *'Permission denied' ]] ||
            fail "$text: copies of other namespaces are not enabled: $said"
        refused "$text: copy of another namespace, which this kernel cannot enable" \
            'Invalid Field' copy $((2 * many)) 0 0 --format=2 --snsids="$1"
        return 0
    fi
    ok "$text: enable copies of other namespaces"
    [ "$nsids" -ge 2 ] || return 0
    nvme copy "${namespace[2]}" --sdlba=0 --slbs=0 --blocks=$((many - 1)) --format=2 \
        --snsids="$1" >/dev/null || fail "$text: the copy to namespace 2 failed"
    nvme read "${namespace[2]}" --start-block=0 --block-count=$((many - 1)) --data="$back" \
        --data-size=131072 >/dev/null || fail "$text: namespace 2 cannot be read"
    cmp "$back" "$first" || fail "$text: copy to namespace 2: other data were read back"
    ok "$text: copy to namespace 2"
}

# --- The kernel's block layer and file systems on top

# verified_load TEXT JOB-OPTIONS...: random writes of mixed sizes; then fio reads everything back
# and checks each block's CRC. Each --name among the options starts another job in parallel.
verified_load() {
    local text=$1
    shift
    check "$text" fio --rw=randwrite --direct=1 --ioengine=libaio --iodepth=16 --randrepeat=0 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --size=4m --thread \
        --bssplit="$block/20:$((block * 3))/10:4k/30:64k/20:256k/20" "$@"
}

# Megabytes 16 to 23 of each namespace hold random bytes, which each connection checks. Each write
# uses another part of the file, so that a lost write shows. generation[NSID] counts the writes.
pattern=/run/pattern
generation=()

# pattern_of NSID: prints the bytes that the namespace should hold there.
pattern_of() { dd if=$pattern bs=1M skip=$((generation[$1] * 2 + $1)) count=8 2>/dev/null; }

write_pattern() {
    generation[$1]=$((${generation[$1]:-0} + 1))
    pattern_of "$1" >"$scratch/piece"
    check "$label: namespace $1: write 8 MiB of random bytes" \
        dd if="$scratch/piece" of="${namespace[$1]}" bs=1M seek=16 oflag=direct conv=notrunc
}

check_pattern() {
    dd if="${namespace[$1]}" bs=1M skip=16 count=8 iflag=direct 2>/dev/null |
        cmp - <(pattern_of "$1") ||
        fail "$label: namespace $1: the 8 MiB of random bytes have changed"
    ok "$label: namespace $1: the 8 MiB of random bytes are unchanged"
}

check_block_layer() {
    local device=${namespace[$1]} text="$label: namespace $1"
    [ "$(cat "/sys/block/${device##*/}/queue/discard_max_bytes")" -gt 0 ] ||
        fail "$text: the kernel sees no discard"
    write_pattern "$1"
    check_pattern "$1"
    check "$text: discard 4 MiB" blkdiscard --offset=4M --length=4M "$device"
    check "$text: zero 4 MiB" blkdiscard --zeroout --offset=8M --length=4M "$device"
    dd if="$device" bs=1M skip=8 count=4 iflag=direct 2>/dev/null | cmp -n 4194304 - /dev/zero ||
        fail "$text: zeroed blocks are not zero"
    ok "$text: zeroed blocks read as zero"
}

check_file_system() {
    local device=${namespace[$1]} text="$label: namespace $1: ext4" mount=$scratch/mount
    mkdir -p "$mount"
    check "$text: mkfs" mkfs.ext4 -q -F "$device"
    check "$text: mount" mount -o discard "$device" "$mount"
    verified_load "$text: random writes of mixed sizes verify" \
        --name=file --directory="$mount" --fsync=64
    cp /bin/bash "$mount/copy"
    check "$text: umount" umount "$mount"
    check "$text: e2fsck -f" e2fsck -f -n "$device"
    check "$text: mount again" mount -o ro "$device" "$mount"
    check "$text: a copied file is the same" cmp "$mount/copy" /bin/bash
    check "$text: umount again" umount "$mount"
}

# --- The whole sequence

each_namespace() {
    local nsid
    for ((nsid = 1; nsid <= nsids; nsid++)); do "$@" $nsid; done
}

# Two namespaces at a time, because SHA-256 is slow on an emulated processor.
print_data() {
    local nsid
    for ((nsid = 1; nsid <= nsids; nsid++)); do
        sum_of "${namespace[nsid]}" >"$scratch/sum-$nsid" &
    done
    wait
    for ((nsid = 1; nsid <= nsids; nsid++)); do
        echo "data: $label $nsid $(cat "$scratch/sum-$nsid")"
    done
}

check_raw_load() {
    local nsid jobs=()
    for ((nsid = 1; nsid <= nsids; nsid++)); do
        jobs+=("--name=namespace-$nsid" "--filename=${namespace[nsid]}" --offset=32m)
    done
    verified_load "$label: all namespaces: random writes of mixed sizes verify" "${jobs[@]}"
}

check_writable() {
    local digests
    say "$label: one connection without digests"
    connect
    if [ "$checks" = all ]; then
        check_discovery
        check_controller
        each_namespace check_namespace
        check_logs_and_features
        say "$label: single commands"
        check_commands 1
        check_wrong_name
    fi
    say "$label: file system and block layer"
    check_file_system 1
    generation=()
    each_namespace check_block_layer
    check "$label: reset" nvme reset "/dev/$controller"
    eventually "$label: live after the reset" is_live
    each_namespace check_pattern
    check_raw_load
    disconnect
    for digests in --hdr-digest --data-digest "--hdr-digest --data-digest"; do
        [ "$checks" = all ] || [[ $digests == *" "* ]] || continue
        say "$label: a new connection with $digests"
        # shellcheck disable=SC2086 # options are separate words
        connect $digests
        each_namespace check_pattern
        check_raw_load
        each_namespace write_pattern
        disconnect
    done
    say "$label: the last connection, with one short queue"
    connect --nr-io-queues=1 --queue-size=16
    check_raw_load
    each_namespace check_pattern
    print_data
    disconnect
}

check_read_only() {
    local text="$label: namespace 1"
    say "$label: a read-only namespace"
    check_discovery
    connect
    check_controller
    equal "$text: the kernel's read-only flag" 1 "$(blockdev --getro "${namespace[1]}")"
    json "$text: id-ns says write protected" '.nsattr % 2 == 1' nvme id-ns "${namespace[1]}"
    head -c 4096 /dev/urandom >"$scratch/first"
    refused "$text: write" 'Write Protected|Read.Only' nvme write "${namespace[1]}" \
        --start-block=0 --block-count=$((4096 / block - 1)) --data="$scratch/first" --data-size=4096
    refused "$text: write zeroes" 'Write Protected|Read.Only' \
        nvme write-zeroes "${namespace[1]}" --start-block=0 --block-count=0
    print_data
    disconnect
}

check_wrong_name() {
    refused "$label: a wrong name" 'could not add new controller' \
        alone nvme connect --transport=tcp --traddr="$address" --trsvcid="$port" \
        --nqn="$nqn.wrong" --hostnqn=$host_nqn --hostid=$host_id
    dmesg | grep "Connect Invalid Data Parameter, subsysnqn \"$nqn.wrong\"" >/dev/null ||
        fail "$label: a wrong name was not refused with Connect Invalid Data Parameter"
}

check_target() { if [ "$checks" = read-only ]; then check_read_only; else check_writable; fi; }

check_still_live() {
    find_controller "$nqn" || fail "$label: the controller is gone after 5 s of silence"
    controller=$found
    is_live || fail "$label: $controller is $(cat "/sys/class/nvme/$controller/state")"
    find_namespace "$nqn" 1
    check "$label: a read after 5 s of silence" \
        dd if="$found" of=/dev/null bs=64k count=1 iflag=direct
    disconnect
}

# for_all LANE COMMAND...: runs the command for each target of the lane (or of 'any'), with the
# target's variables set.
for_all() {
    local line wanted=$1
    shift
    scratch=/run/lane-$wanted
    mkdir -p "$scratch"
    while read -r -u 4 line; do
        read_target "$line"
        if [ "$wanted" = any ] || [ "$wanted" = "$lane" ]; then "$@"; fi
    done 4< <(grep -v '^#' targets)
}

modprobe nvme-tcp
head -c 25165824 /dev/urandom >$pattern
lanes=$(grep -o ' lane=[^ ]*' targets | sort -u)
for lane in $lanes; do for_all "${lane#*=}" check_target & done
for lane in $lanes; do wait -n || exit 1; done # the first failure ends the job
say "all targets at once, keep-alive timeout 2 s, 5 s of silence"
for_all any connect --keep-alive-tmo=2
sleep 5
for_all any check_still_live
# The tests above must not have caused errors in the host's transport.
stumbles='I/O timeout|timeout, |digest error|econnecting|error recovery|WARNING:|BUG:'
if dmesg | grep -E "$stumbles"; then
    fail "the kernel logged errors (above)"
fi
say "done"
