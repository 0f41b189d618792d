# Guest job of auth.sh: the kernel's host authenticates with 'farblock serve' outside; then
# farblock's host authenticates with the kernel's target. pairs.txt has the port of farblock's
# target, the host's NQN, and pairs of hash function and group. Prints READY when its target serves,
# and ends when a client connects to port 4499.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

# shellcheck source=outside.sh
. ./outside.sh
# shellcheck source=refusals.sh
. ./refusals.sh
read -r port host pairs <pairs.txt
modprobe -a nvme-tcp nvmet-tcp
id=${host##*:}

# connects NQN OPTION...: connects the kernel's host.
connects() {
    nvme connect -t tcp -a 10.0.2.2 -s "$port" -n "$1" -q "$host" -I "$id" -i 2 "${@:2}"
}

for key in plain host ctrl; do
    check "nvme-cli takes $key.key" nvme check-dhchap-key --key="$(cat $key.key)"
done
echo "nvme-cli made $(nvme gen-dhchap-key -m 2 -n "$host" | tail -n 1)"

secret=$(cat host.key)
for pair in $pairs; do
    nqn=nqn.2026-11.org.farblock:${pair/:/-}
    for way in one both; do
        options=(-S "$secret")
        [ $way = one ] || options+=(-C "$(cat ctrl.key)")
        dmesg -c >/dev/null
        check "$pair, $way" connects "$nqn" "${options[@]}"
        eventually "$pair, $way: the disk appears" find_namespace "$nqn" 1
        find_namespace "$nqn" 1
        check "$pair, $way: the disk is readable" dd if="$found" of=/dev/null bs=64k count=16 iflag=direct
        said=$(dmesg)
        [[ $said == *"authenticated with hash hmac(${pair%:*}) dhgroup ${pair#*:}"* ]] ||
            fail "$pair, $way: the kernel says $said"
        [ $way = one ] || [[ $said == *"controller authenticated"* ]] ||
            fail "$pair, $way: the controller did not authenticate: $said"
        check "$pair, $way: disconnect" nvme disconnect -n "$nqn"
    done
done
nqn=nqn.2026-11.org.farblock:sha256-null
refused_for "a host without a secret" "qid 0: no key" connects "$nqn"
refused_for "a wrong secret" "qid 0: authentication failed" connects "$nqn" -S "$(cat wrong.key)"
refused_for "a wrong secret of the controller" "qid 0: controller authentication failed" \
    connects "$nqn" -S "$secret" -C "$(cat wrong.key)"
check "the right secret still connects" connects "$nqn" -S "$secret"
check "disconnect after the refused secret" nvme disconnect -n "$nqn"

# --- farblock changes and removes the key while the kernel's host is connected

nqn=nqn.2026-11.org.farblock:steered
new=$(cat new.key)
# stays TEXT: checks that the controller is still the same, and that the disk is readable.
stays() {
    find_controller $nqn
    find_namespace $nqn 1
    equal "$1: the same controller, live" "$first" \
        "$found $(cat "/sys/class/nvme/$controller/cntlid" "/sys/class/nvme/$controller/state")"
    check "$1: the disk is readable" dd if="$found" of=/dev/null bs=64k count=16 iflag=direct
}
check "connect" connects $nqn -S "$secret"
eventually "the disk appears" find_namespace $nqn 1
find_controller $nqn
controller=${found##*/}
find_namespace $nqn 1
first="$found $(cat "/sys/class/nvme/$controller/cntlid" "/sys/class/nvme/$controller/state")"
outside add
eventually "an added namespace appears" find_namespace $nqn 2
outside accept new.key host.key
stays "after the new key became valid, too"
# With another secret, the kernel's host re-authenticates on its live queues, but it logs this only
# for the admin queue.
has_again() { [[ $(dmesg) == *"re-authenticating controller"*"qid 0: authenticated"* ]]; }
gives() {
    dmesg -c >/dev/null
    printf %s "$1" >"/sys/class/nvme/$controller/dhchap_secret"
}
gives "$new"
eventually "the host re-authenticates with the new key" has_again
stays "re-authenticated"
outside accept new.key
stays "after the old key became invalid"
check "disconnect" nvme disconnect -n $nqn
refused_for "a connection with the old key" "qid 0: authentication failed" connects $nqn -S "$secret"
check "a connection with the new key" connects $nqn -S "$new"
eventually "the disk appears again" find_namespace $nqn 1
outside disallow
gone() { ! find_namespace $nqn 1; }
eventually "a disallowed host has no disk" gone
nvme disconnect -n $nqn >/dev/null || true

# --- The kernel's target, with a host entry for each pair and direction

kernel=nqn.2024-01.farblock:kernel
memory_disk disk1 32 512
target_subsystem $kernel /dev/disk1
echo 0 >$configfs/nvmet/subsystems/$kernel/attr_allow_any_host
for pair in $pairs; do
    for way in "" -both; do
        name=nqn.host:${pair/:/-}$way
        folder=$configfs/nvmet/hosts/$name
        mkdir "$folder"
        cat "$([ -n "$way" ] && echo host.key || echo plain.key)" >"$folder/dhchap_key"
        [ -z "$way" ] || cat ctrl.key >"$folder/dhchap_ctrl_key"
        echo "hmac(${pair%:*})" >"$folder/dhchap_hash"
        echo "${pair#*:}" >"$folder/dhchap_dhgroup"
        ln -s "$folder" "$configfs/nvmet/subsystems/$kernel/allowed_hosts/$name"
    done
done
target_port 4420 $kernel
echo READY
nc -l -p 4499 >/dev/null </dev/null || true
say "done"
