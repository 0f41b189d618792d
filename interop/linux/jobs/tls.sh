# Guest job of tls.sh: the kernel's host uses TLS with 'farblock serve' outside, and so does
# farblock's own host in the guest, with a key in the kernel's keyring. Then farblock's host on the
# outer machine uses TLS with the kernel's target. /host has the program. names.txt has the port of
# farblock's target and the names of the host and of both subsystems. Prints READY when its target
# serves, and ends when a client connects to port 4499.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

# shellcheck source=outside.sh
. ./outside.sh
# shellcheck source=refusals.sh
. ./refusals.sh
read -r port host nqn kernel <names.txt
modprobe -a nvme-tcp nvmet-tcp tls
id=${host##*:}
cat >/etc/tlshd.conf <<T
[debug]
loglevel=1
tls=0
nl=0
[authenticate]
keyrings=.nvme
[authenticate.client]
[authenticate.server]
T
tlshd --stderr --config /etc/tlshd.conf >/root/tlshd.log 2>&1 &

# insert FILE VERSION SUBSYSTEM: puts a key into the kernel's keyring, and sets 'serial'.
insert() {
    local said
    said=$(nvme check-tls-key --insert --identity="$2" --hostnqn="$host" --subsysnqn="$3" \
        --keydata="$(cat "$1")" 2>&1)
    [[ $said =~ ([0-9a-f]{7,8})$ ]] || fail "nvme-cli does not say where it put $1: $said"
    serial=$((16#${BASH_REMATCH[1]}))
}

# connects OPTION...: connects the kernel's host.
connects() { nvme connect -t tcp -a 10.0.2.2 -s "$port" -n "$nqn" -q "$host" -I "$id" -i 2 "$@"; }

echo "nvme-cli made $(nvme gen-tls-key --hmac=2 --hostnqn="$host" --subsysnqn="$nqn")"
# With Debian 13's tlshd the handshake fails for SHA-384 keys, so this job uses none.
for version in 0 1; do
    insert short.key $version "$nqn"
    check "identity version $version" connects --tls --tls_key="$serial"
    find_controller "$nqn"
    first_line "/sys/class/nvme/$found/tls_key"
    [ -n "$line" ] || fail "version $version: the kernel does not say that it uses TLS"
    eventually "version $version: the disk appears" find_namespace "$nqn" 1
    find_namespace "$nqn" 1
    check "version $version: the disk is writable" \
        dd if=/dev/urandom of="$found" bs=64k count=16 oflag=direct
    check "version $version: the disk is readable" dd if="$found" of=/dev/null bs=1M count=2 iflag=direct
    check "version $version: disconnect" nvme disconnect -n "$nqn"
done
refused_for "a connection without TLS" "failed to receive icresp" connects
insert wrong.key 0 "$nqn"
refused_for "a wrong key" "TLS handshake complete, error -13" connects --tls --tls_key="$serial"

# --- farblock's host in the guest, with a key that nvme-cli makes and puts into the keyring

other=nqn.2014-08.org.nvmexpress:uuid:7c3f4a56-6e5a-4b7e-9f5b-0d2f3a1b4c5d
said=$(nvme gen-tls-key --insert --hmac=1 --identity=1 --hostnqn="$other" --subsysnqn="$nqn" 2>&1)
[[ $said =~ (NVMeTLSkey-1:[^[:space:]]+) ]] || fail "nvme-cli makes no key: $said"
echo "${BASH_REMATCH[1]}" >/host/made.key
outside take_made_key $other
url="nvme+tcp://10.0.2.2:$port/$nqn?ns=1&hostnqn=$other"
[ -n "$(grep -F ' psk ' /proc/keys)" ] || fail "the key is no 'psk': $(cat /proc/keys)"
cp /host/farblock .
check "farblock's host with a key in the keyring" \
    ./farblock --quiet read "$url" --tls-key keyring: --length 1MiB --output /dev/null
number=$((16#$(sed -n "s/^\([0-9a-f]*\) .* psk *NVMe1R01 $other $nqn .*/\1/p" /proc/keys)))
check "farblock's host with the key's number" \
    ./farblock --quiet read "$url" --tls-key keyring:$number --length 1MiB --output /dev/null
refused "a host that has no key in the keyring" "keyring" \
    ./farblock --quiet read "${url%=*}=nqn.2026-11.org.farblock:nobody" --tls-key keyring: \
    --length 1MiB --output /dev/null
modprobe ublk_drv
check "farblock attach with that key" ./farblock attach "$url" --name keyed --as ublk --tls-key keyring:
device=$(./farblock list --json | jq -r '.[0].use.path')
check "the disk is written" dd if=/dev/urandom of="$device" bs=64k count=16 oflag=direct
check "the disk is read" dd if="$device" of=/dev/null bs=1M count=2 iflag=direct
check "farblock detach" ./farblock detach keyed

# --- The kernel's target, whose keyring has each key under nvme-cli's identities

memory_disk disk1 32 512
target_subsystem "$kernel" /dev/disk1
for version in 0 1; do insert short.key $version "$kernel"; done
folder=$configfs/nvmet/ports/4420
mkdir "$folder"
echo tcp >"$folder/addr_trtype"
echo ipv4 >"$folder/addr_adrfam"
echo 0.0.0.0 >"$folder/addr_traddr"
echo 4420 >"$folder/addr_trsvcid"
echo tls1.3 >"$folder/addr_tsas"
echo required >"$folder/addr_treq"
ln -s "$configfs/nvmet/subsystems/$kernel" "$folder/subsystems/$kernel"
echo READY
nc -l -p 4499 >/dev/null </dev/null || true
say "done"
