#!/bin/bash
# tls.sh FARBLOCK: tests TLS with pre-shared keys against the Linux kernel, in both directions: the
# kernel's host with 'farblock serve', and farblock's host with the kernel's target (jobs/tls.sh).
# It uses both versions of identities, the derivation of the guest's nvme-cli, wrong keys, and no
# key. farblock's host in the guest also uses a key that nvme-cli has put into the kernel's keyring.
# FARBLOCK is the binary. Run setup.sh once before. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$(dirname "$0")/stand.sh"

[ $# = 1 ] || die "usage: tls.sh FARBLOCK"
farblock=$(realpath -- "$1")
stand

host=nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349
nqn=nqn.2026-11.org.farblock:tls
kernel=nqn.2024-01.farblock:kernel
cd "$logs"
"$farblock" keys new --tls --output short.key
"$farblock" keys new --tls --output wrong.key

# --- farblock serve

port=$(free_port)
serve serve.log mem:4MiB --nqn "$nqn" --listen "127.0.0.1:$port" --tls-key "$host=short.key" \
    --control "$logs/control"

# The command that the guest may request by name: it gives a host the key that nvme-cli made.
take_made_key() {
    (umask 077 && cp share/made.key keyring.key)
    "$farblock" ctl --control "$logs/control" allow-host "$nqn" "$1" --tls-key "$logs/keyring.key"
}

# --- The guest: first its host, then its target

target=$(free_port)
control=$(free_port)
echo "$port $host $nqn $kernel" >names.txt
mkdir share
strip -o share/farblock "$farblock"
SHARE=$logs/share FWD="$target:4420 $control:4499" TIMEOUT=400 "$linux_dir/guest.sh" \
    "$linux_dir/jobs/tls.sh" names.txt short.key wrong.key "$linux_dir/jobs/outside.sh" \
    "$linux_dir/jobs/refusals.sh" >guest.log 2>&1 &
guest=$!
answer_requests &
guest_is_ready
made_key_is_taken "a key"

reads() { "$farblock" --quiet read "nvme+tcp://127.0.0.1:$target/$kernel?ns=1&hostnqn=$host" \
    --length 1MiB --output /dev/null "$@"; }
refused() {
    local text=$1 sentence=$2 output
    shift 2
    ! output=$(reads "$@" 2>&1) || fail "$text: the kernel's target admitted the host"
    [[ $output == *"$sentence"* ]] || fail "$text: $output"
}
reads --tls-key short.key || fail "cannot read from the kernel's target"
refused "no key" "TLS"
refused "a wrong key" "TLS" --tls-key wrong.key
guest_ends "$control"
said serve.log "connected without TLS, which this listener requires" \
    "the peer has another key for the identity \"NVMe0R01 $host $nqn\""
! grep -q panicked serve.log || fail "farblock serve panicked: $(cat serve.log)"
grep -c 'ok:' guest.log | sed 's/$/ checks in the guest, and 5 outside/'
