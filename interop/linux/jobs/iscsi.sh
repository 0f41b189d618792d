# Guest job: the kernel's iSCSI initiator. The file "targets" lists farblock's iSCSI targets outside
# of the guest, one per line: BLOCK_SIZE PORT NAME. With the lines "DO kill", "DO cut" and "DO
# detach" the job makes requests to iscsi.sh, which runs outside.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

load_bytes=12000000

queue() { cat "/sys/block/${1#/dev/}/queue/$2"; }

# --- The initiator's daemon and its settings

mkdir -p /etc/iscsi /var/lib/iscsi /run/lock/iscsi
echo "InitiatorName=iqn.2026-11.org.farblock:guest" >/etc/iscsi/initiatorname.iscsi
cat >/etc/iscsi/iscsid.conf <<'CONF'
node.startup = manual
node.session.timeo.replacement_timeout = 120
node.conn[0].timeo.noop_out_interval = 5
node.conn[0].timeo.noop_out_timeout = 5
node.conn[0].iscsi.HeaderDigest = CRC32C,None
node.conn[0].iscsi.DataDigest = CRC32C,None
CONF
modprobe -a iscsi_tcp sd_mod
iscsid -f >iscsid.log 2>&1 &

# find_disk NAME: finds the disk of a session, e.g. /dev/sda.
find_disk() {
    local session disk
    for session in /sys/class/iscsi_session/session*; do
        [ "$(cat "$session/targetname")" = "$1" ] || continue
        for disk in "$session"/device/target*/*:*/block/*; do
            found=/dev/${disk##*/}
            [ -b "$found" ] && return
        done
    done
    return 1
}

# compare_and_write BLOCK DISK: tests COMPARE AND WRITE with sg3-utils. The command must write if
# the blocks have the expected contents, and otherwise change nothing.
compare_and_write() {
    local block=$1 disk=$2 blocks=2 lba=$((16777216 / $1)) name code command there
    for name in A B; do
        head -c $((blocks * block)) /dev/zero | tr '\0' $name >"$block.$name"
    done
    # The expected and the new contents.
    cat "$block.A" "$block.B" >"$block.both"
    dd if="$block.A" of="$disk" bs="$block" seek=$lba oflag=direct 2>/dev/null
    command=(sg_compare_and_write "--lba=$lba" "--num=$blocks" "--in=$block.both"
        "--xferlen=$((2 * blocks * block))" --quiet)
    check "$block: COMPARE AND WRITE" "${command[@]}" "$disk"
    for name in "" --fua; do
        code=0
        "${command[@]}" $name "$disk" 2>/dev/null || code=$?
        equal "$block: a second COMPARE AND WRITE $name is a miscompare" 14 $code
        there=$(dd if="$disk" bs="$block" skip=$lba count=$blocks iflag=direct 2>/dev/null | sha256sum)
        equal "$block: the data of the first COMPARE AND WRITE remain" "$(sha256sum <"$block.B")" "$there"
    done
}

declare -A disks
while read -r block port name; do
    say "blocks of $block bytes"
    node=(iscsiadm -m node -T "$name" -p "10.0.2.2:$port")
    discovered=$(iscsiadm -m discovery -t sendtargets -p "10.0.2.2:$port" 2>&1) ||
        fail "discovery failed: $discovered"
    [[ $discovered == *"$name"* ]] || fail "discovery does not find $name: $discovered"
    ok "$block: discovery finds $name"
    # The target reports its loopback address. In the guest, that address is the guest's own.
    "${node[@]}" -o new >/dev/null
    check "$block: log in" "${node[@]}" --login
    eventually "$block: the disk of the session appears" find_disk "$name"
    find_disk "$name"
    disk=$found
    disks[$block]=$disk
    equal "$block: size" 67108864 "$(blockdev --getsize64 "$disk")"
    equal "$block: block size" "$block" "$(queue "$disk" logical_block_size)"
    equal "$block: writable" 0 "$(blockdev --getro "$disk")"
    [ "$(queue "$disk" discard_max_bytes)" != 0 ] || fail "$block: the disk supports no discard"
    check "$block: fio verify" verify "$disk" "$block-64k"
    check "$block: blkdiscard" blkdiscard -o 1048576 -l 4194304 "$disk"
    check "$block: blkdiscard -z" blkdiscard -z -o 8388608 -l 4194304 "$disk"
    equal "$block: the SHA-256 of zeroed blocks" \
        "$(head -c 4194304 /dev/zero | sha256sum | cut -d ' ' -f 1)" \
        "$(sum_of "$disk" 8388608 4194304)"
    compare_and_write "$block" "$disk"
    file_system "$block" "$disk"
done <targets

# --- Killed servers, stopped targets, and detaching a disk in use

say "under load"
for block in 512 4096; do
    verify "${disks[$block]}" 4k-16k --rate_iops=60 >"fio.$block" 2>&1 &
    loads+=($!)
done
sleep 2
echo "DO kill"
sleep 10
echo "DO cut"
sleep 10
echo "DO detach"
for load in "${loads[@]}"; do
    wait "$load" || fail "fio failed: $(tail -n 5 fio.*)"
done
ok "every byte is there after the servers and the target were killed"

while read -r block port name; do
    check "$block: log out" iscsiadm -m node -T "$name" -p "10.0.2.2:$port" --logout
done <targets
