# Guest job of concat.sh: the kernel's host uses TLS concatenation with 'farblock serve' outside;
# then farblock's host does so with the kernel's target. names.txt has the port of farblock's
# target, the names of the host, of farblock's subsystems (without the hash function at their end)
# and of the kernel's, and the hash functions. Prints READY when its target serves, and ends when a
# client connects to port 4499.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

# shellcheck source=refusals.sh
. ./refusals.sh

read -r port host nqn kernel hashes <names.txt
uname -sr
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

# connects NQN OPTION...: connects the kernel's host.
connects() {
    nvme connect -t tcp -a 10.0.2.2 -s "$port" -n "$1" -q "$host" -I "$id" -i 2 "${@:2}"
}

secret=$(cat host.key)
for hash in $hashes; do
    # With Debian 13's tlshd the handshake fails for SHA-384 keys (GnuTLS before 3.8.11).
    if [ "$hash" != sha256 ]; then
        refused_for "$hash" "authenticated with hash hmac.$hash.*TLS handshake complete, error -13" \
            connects "$nqn-$hash" --concat -S "$secret"
        continue
    fi
    for way in one both; do
        options=(-S "$secret")
        [ $way = one ] || options+=(-C "$(cat ctrl.key)")
        check "$hash, $way" connects "$nqn-$hash" --concat "${options[@]}"
        find_controller "$nqn-$hash"
        first_line "/sys/class/nvme/$found/tls_mode"
        equal "$hash, $way: the kernel's TLS mode" concat "$line"
        eventually "$hash, $way: the disk appears" find_namespace "$nqn-$hash" 1
        find_namespace "$nqn-$hash" 1
        check "$hash, $way: the disk is writable" \
            dd if=/dev/urandom of="$found" bs=64k count=16 oflag=direct
        check "$hash, $way: the disk is readable" dd if="$found" of=/dev/null bs=1M count=2 iflag=direct
        check "$hash, $way: disconnect" nvme disconnect -n "$nqn-$hash"
    done
    refused_for "a connection without TLS" "secure concatenation is not supported" connects "$nqn-$hash" -S "$secret"
    refused_for "a wrong secret" "qid 0: authentication failed" \
        connects "$nqn-$hash" --concat -S "$(cat wrong.key)"
    # With --concat, Linux 7.3 does not authenticate the controller, even with its secret (-C): the
    # sequence number of its challenge is 0. So it does not detect a wrong secret.
done

# --- The kernel's target

memory_disk disk1 32 512
target_subsystem "$kernel" /dev/disk1
echo 0 >"$configfs/nvmet/subsystems/$kernel/attr_allow_any_host"
folder=$configfs/nvmet/hosts/$host
mkdir "$folder"
cat host.key >"$folder/dhchap_key"
cat ctrl.key >"$folder/dhchap_ctrl_key"
echo "hmac(sha256)" >"$folder/dhchap_hash"
echo ffdhe2048 >"$folder/dhchap_dhgroup"
ln -s "$folder" "$configfs/nvmet/subsystems/$kernel/allowed_hosts/$host"
folder=$configfs/nvmet/ports/4420
mkdir "$folder"
echo tcp >"$folder/addr_trtype"
echo ipv4 >"$folder/addr_adrfam"
echo 0.0.0.0 >"$folder/addr_traddr"
echo 4420 >"$folder/addr_trsvcid"
echo tls1.3 >"$folder/addr_tsas"
echo "not required" >"$folder/addr_treq"
ln -s "$configfs/nvmet/subsystems/$kernel" "$folder/subsystems/$kernel"
echo READY
nc -l -p 4499 >/dev/null </dev/null || true
say "done"
