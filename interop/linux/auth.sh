#!/bin/bash
# auth.sh FARBLOCK: tests in-band authentication (DH-HMAC-CHAP) against the Linux kernel, in both
# directions: the kernel's host with 'farblock serve', and farblock's host with the kernel's target
# (jobs/auth.sh). It authenticates one side and both sides, with several hash functions and groups,
# and with wrong secrets. It also changes and removes the key of the connected kernel's host, and
# re-authenticates farblock's host. FARBLOCK is the binary. Run setup.sh once before. Exit code: 0
# success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$(dirname "$0")/stand.sh"

[ $# = 1 ] || die "usage: auth.sh FARBLOCK"
farblock=$(realpath -- "$1")
stand

host=nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349
cd "$logs"
"$farblock" keys new --output plain.key
"$farblock" keys new --hash sha256 --output host.key
"$farblock" keys new --hash sha512 --output ctrl.key
"$farblock" keys new --output wrong.key
"$farblock" keys new --output new.key

# --- farblock serve: a subsystem for each hash function and group

port=$(free_port)
pairs=
for hash in sha256 sha384 sha512; do
    for group in null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192; do
        pairs+=" $hash:$group"
    done
done
echo "listeners = [\"127.0.0.1:$port\"]" >farblock.toml
for pair in $pairs; do
    cat >>farblock.toml <<T
[[subsystems]]
nqn = "nqn.2026-11.org.farblock:${pair/:/-}"
[[subsystems.hosts]]
nqn = "$host"
dhchap_key = "host.key"
dhchap_ctrl_key = "ctrl.key"
dhchap_hashes = ["${pair%:*}"]
dhchap_dhgroups = ["${pair#*:}"]
[[subsystems.namespaces]]
path = "mem:4MiB"
T
done
steered=nqn.2026-11.org.farblock:steered
cp host.key steered.key
cat >>farblock.toml <<T
[[subsystems]]
nqn = "$steered"
[[subsystems.hosts]]
nqn = "$host"
dhchap_key = "steered.key"
[[subsystems.namespaces]]
path = "mem:4MiB"
T
serve serve.log --config farblock.toml --control "$logs/control"

# The commands that the guest may request by name.
ctl() { "$farblock" ctl --control "$logs/control" "$@"; }
add() { ctl add-namespace $steered mem:8MiB; }
accept() { cat "$@" >steered.key && "$farblock" reload --control "$logs/control"; }
disallow() { ctl disallow-host $steered "$host"; }

# --- The guest: first its host, then its target

target=$(free_port)
control=$(free_port)
echo "$port $host $pairs" >pairs.txt
mkdir share
SHARE=$logs/share FWD="$target:4420 $control:4499" TIMEOUT=500 "$linux_dir/guest.sh" \
    "$linux_dir/jobs/auth.sh" pairs.txt plain.key host.key ctrl.key wrong.key new.key \
    "$linux_dir/jobs/outside.sh" "$linux_dir/jobs/refusals.sh" >guest.log 2>&1 &
guest=$!
answer_requests &
guest_is_ready
made_key_is_taken "a secret"

reads() {
    local url="nvme+tcp://127.0.0.1:$target/nqn.2024-01.farblock:kernel?ns=1&hostnqn=$1"
    "$farblock" --quiet read "$url" --length 1MiB --output /dev/null "${@:2}"
}
refused() {
    local text=$1 sentence=$2 output
    shift 2
    ! output=$(reads "$@" 2>&1) || fail "$text: the kernel's target admitted the host"
    [[ $output == *"$sentence"* ]] || fail "$text: $output"
}
for pair in $pairs; do
    reads "nqn.host:${pair/:/-}" --dhchap-secret plain.key ||
        fail "the kernel's target refused the host ($pair, one way)"
    reads "nqn.host:${pair/:/-}-both" --dhchap-secret host.key --dhchap-ctrl-secret ctrl.key ||
        fail "the kernel's target refused the host ($pair, both ways)"
done
some=nqn.host:sha256-null
refused "no secret" "give --dhchap-secret" $some
refused "a wrong secret" "compare the secrets" $some --dhchap-secret wrong.key
refused "a wrong secret of the controller" "does not match the secret" $some-both \
    --dhchap-secret host.key --dhchap-ctrl-secret wrong.key
# An attached disk re-authenticates on its live admin queue.
attached() { "$farblock" --quiet "$1" "${@:2}" --runtime-dir "$logs/run"; }
again() {
    local url="nvme+tcp://127.0.0.1:$target/nqn.2024-01.farblock:kernel?ns=1"
    attached attach "$url&hostnqn=nqn.host:sha256-ffdhe2048-both" --name again --as nbd --no-device \
        --dhchap-secret host.key --dhchap-ctrl-secret ctrl.key >/dev/null &&
        attached authenticate again && attached authenticate again &&
        [[ $(attached list --json) == *'"reconnects": 0'* ]]
}
again || failed="an attached disk does not re-authenticate: $(attached list --json)"
attached detach again --force || true
[ -z "${failed-}" ] || fail "$failed"
guest_ends "$control"
kill -TERM $server
wait $server || fail "farblock serve: $(tail -n 5 serve.log)"
server=
said serve.log "the host's proof does not match any secret" "it refused the target's challenge"
! grep -q panicked serve.log || fail "farblock serve panicked: $(cat serve.log)"
! grep -rqF "$(cut -d : -f 3 host.key)" serve.log || fail "a secret is in the log"
echo "auth.sh: all checks passed ($(grep -c '^ok: ' guest.log) in the guest)"
