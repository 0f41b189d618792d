#!/bin/bash
# concat.sh FARBLOCK: tests secure channel concatenation (TLS from an authentication, TP 8018)
# against the newest Linux kernel for the guest, in both directions: the kernel's host with
# 'farblock serve', and farblock's host with the kernel's target (jobs/concat.sh). Covers hosts that
# also authenticate the controller and hosts that do not, wrong secrets, and hosts that try to
# continue without TLS. Linux 6.18 is the first kernel that derives keys as specified. FARBLOCK is
# the binary. Runs setup.sh first. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
export FARBLOCK_VM_KERNEL=backports
. "$(dirname "$0")/place.sh"
. "$(dirname "$0")/stand.sh"

[ $# = 1 ] || die "usage: concat.sh FARBLOCK"
farblock=$(realpath -- "$1")
"$linux_dir/setup.sh"
stand

host=nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349
nqn=nqn.2026-11.org.farblock:concat
kernel=nqn.2024-01.farblock:kernel
cd "$logs"
"$farblock" keys new --hash sha256 --output host.key
"$farblock" keys new --hash sha256 --output ctrl.key
"$farblock" keys new --output wrong.key

# --- farblock serve: both hash functions of TLS, each with its cipher suite

port=$(free_port)
echo "listeners = [\"127.0.0.1:$port\"]" >farblock.toml
hashes="sha256 sha384"
for hash in $hashes; do
    cat >>farblock.toml <<T
[[subsystems]]
nqn = "$nqn-$hash"
[[subsystems.hosts]]
nqn = "$host"
dhchap_key = "host.key"
dhchap_ctrl_key = "ctrl.key"
dhchap_hashes = ["$hash"]
dhchap_dhgroups = ["ffdhe2048"]
demand = "concat"
[[subsystems.namespaces]]
path = "mem:4MiB"
T
done
serve serve.log --config farblock.toml

# --- The guest: first its host, then its target

target=$(free_port)
control=$(free_port)
echo "$port $host $nqn $kernel $hashes" >names.txt
FWD="$target:4420 $control:4499" TIMEOUT=400 "$linux_dir/guest.sh" "$linux_dir/jobs/concat.sh" \
    names.txt host.key ctrl.key wrong.key "$linux_dir/jobs/refusals.sh" >guest.log 2>&1 &
guest=$!
guest_is_ready

reads() {
    local url="nvme+tcp://127.0.0.1:$target/$kernel?ns=1&hostnqn=$host"
    "$farblock" --quiet read "$url" --length 1MiB --output /dev/null --concat "$@"
}
refused() {
    local text=$1 sentence=$2 output
    shift 2
    ! output=$(reads "$@" 2>&1) || fail "$text: the kernel's target admitted the host"
    [[ $output == *"$sentence"* ]] || fail "$text: $output"
}
reads --dhchap-secret host.key || fail "cannot read from the kernel's target"
# Linux 7.3 makes no key when both ends authenticate (nvmet_auth_insert_psk: EINVAL).
refused "authentication in both directions with the kernel's target" "closed the connection during the TLS handshake" \
    --dhchap-secret host.key --dhchap-ctrl-secret ctrl.key
refused "a wrong secret" "compare the secrets" --dhchap-secret wrong.key
refused "a wrong secret of the controller" "does not match the secret" \
    --dhchap-secret host.key --dhchap-ctrl-secret wrong.key
guest_ends "$control"
said serve.log "the host's proof does not match any secret" \
    "TLS failed: bad extension; GnuTLS before 3.8.11"
! grep -q panicked serve.log || fail "farblock serve panicked: $(cat serve.log)"
grep -m 1 '^Linux' guest.log
echo "concat.sh: all checks passed ($(grep -c '^ok: ' guest.log) in the guest, and 4 outside)"
