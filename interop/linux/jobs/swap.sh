# Guest job of swap.sh: swap on a ublk disk. /host has the program; the file "target" has the port
# and the NQN of the target outside.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

cp /host/farblock .
read -r port nqn <target
modprobe ublk_drv
export FARBLOCK_RUNTIME_DIR=/run/farblock
./farblock attach "nvme+tcp://10.0.2.2:$port/$nqn?ns=1" --as ublk --name data >attach.out 2>&1 ||
    fail "attach failed: $(cat attach.out)"
device=/dev/ublkb0
server() { sed -n 's/.*"server_pid":\([0-9]*\).*/\1/p' <(./farblock list --json | tr -d ' \n'); }
is_swapped_to() { grep -q "^$device " /proc/swaps; }
is_no_swap() { ! is_swapped_to; }
is_no_file() { ! grep -q '^/mnt/swap ' /proc/swaps; }

say "the memory that the disk's server has locked"
status=$(cat "/proc/$(server)/status")
locked=$(sed -n 's/^VmLck:[^0-9]*\([0-9]*\) kB/\1/p' <<<"$status")
[ "$locked" -gt 0 ] || fail "the server has locked no memory: $status"
ok "in memory: $(grep -E '^(VmRSS|RssAnon|VmLck)' <<<"$status" | tr -s '\n\t ' ' ')"

say "swap is refused"
check "mkswap" mkswap $device
check "swapon" swapon $device
eventually "swap on the disk is switched off" is_no_swap
grep -q "switched off swap on $device" /run/farblock/data/log || fail "$(cat /run/farblock/data/log)"
ok "the log reports the switched off swap"
check "detach" ./farblock detach data
./farblock attach "nvme+tcp://10.0.2.2:$port/$nqn?ns=1" --as ublk --name data >attach.out 2>&1 ||
    fail "attach failed: $(cat attach.out)"
grep -q "holds swap space" attach.out || fail "attach does not warn of swap space: $(cat attach.out)"
ok "attach warns of swap space"

say "a swap file on a file system of the disk"
check "mkfs.ext4" mkfs.ext4 -q -F $device
check "mount" mount $device /mnt
dd if=/dev/zero of=/mnt/swap bs=1M count=16 2>/dev/null
chmod 600 /mnt/swap
check "mkswap" mkswap /mnt/swap
check "swapon" swapon /mnt/swap
eventually "swap on the file is switched off" is_no_file
check "umount" umount /mnt

say "without a supervisor, list and doctor report swap that farblock cannot refuse"
check "mkswap" mkswap $device
kill -9 "$(cat /run/farblock/data/pid)"
check "swapon" swapon $device
is_swapped_to || fail "swap was switched off"
said=$(./farblock list)
[[ $said == *"swaps to $device"* ]] || fail "list does not report the swap: $said"
refused "doctor with swap on the disk" "PROBLEM +swap +the machine swaps to $device" ./farblock doctor data

check "swapoff" swapoff $device
check "detach" ./farblock detach data
say "done"
