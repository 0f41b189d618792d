# Guest job: link down and up, kill -9 and cut paths under fio's verification, over soft-RoCE
# devices on a network of the guest whose cables the job pulls. The pairs: the kernel's host and
# target, each with farblock's, and farblock's both. The file "phases" names the parts of this job.
# /host has the program farblock.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

near=10.9.0.1
far=10.9.0.2
nqn=nqn.2026-11.org.farblock:rdma
cp /host/farblock .
truncate -s 64M disk
modprobe -a veth bridge rdma_rxe rdma_ucm ib_uverbs nvme-rdma nvme-tcp nvmet-rdma ublk_drv

# Two cables from a bridge to the machine itself. Packets between its two addresses take these
# cables, because the table of local addresses is asked only for packets that arrive.
ip link add bridge type bridge
ip link set bridge up
sysctl() { echo "$2" >"/proc/sys/net/ipv4/conf/$1"; }
sysctl all/rp_filter 0
ip rule add pref 100 lookup local
for end in near far; do
    ip link add $end type veth peer name $end-plug
    ip link set $end-plug master bridge up
    ip address add "${!end}/24" dev $end
    sysctl $end/rp_filter 0
    sysctl $end/accept_local 1
    sysctl $end/arp_ignore 1
    sysctl $end/arp_announce 2
    ip link set $end up
    ip rule add pref 10 iif $end lookup local
    check "a soft-RoCE device" rdma link add rxe-$end type rxe netdev $end
done
ip rule del pref 0
ip route add $far dev near src $near table 101
ip route add $near dev far src $far table 102
ip rule add pref 20 to $far lookup 101
ip rule add pref 21 to $near lookup 102
for end in near far; do
    eventually "its port is active" grep -q ACTIVE /sys/class/infiniband/rxe-$end/ports/1/state
done

plug_out() { ip link set near-plug down; say "the cable is out"; }
plug_in() { ip link set near-plug up; say "the cable is in"; }

# rounds: prints the number of rounds that the load has verified.
rounds() { if [ -e /run/rounds ]; then wc -l </run/rounds; else echo 0; fi; }
# continues SECONDS: whether the load verifies two more rounds in this time.
continues() {
    local before try
    before=$(rounds)
    for ((try = 0; try < $1 * 2; try++)); do
        [ ! -e /run/wrong ] || fail "an I/O error: $(cat /run/fio.log)"
        [ "$(rounds)" -lt $((before + 2)) ] || return 0
        sleep 0.5
    done
    return 1
}
# progress TEXT: the load must continue.
progress() {
    continues 60 || fail "$1: the load stands still: $(tail -n 20 serve.log /run/farblock/*/log)"
    say "$1: the load continues"
}
fresh_load() { rm -f /run/enough /run/rounds /run/wrong; load_begins "$1"; progress "start"; }

# pulls LABEL DEVICE PORT: pulls the cable under load, for a second and for twelve.
pulls() {
    local seconds
    fresh_load "$2"
    for seconds in 1 12; do
        plug_out
        sleep $seconds
        plug_in
        # After some cuts the kernel's target answers no connection request, also of the kernel's
        # host, until its port is enabled again.
        if [ "$3" = 4420 ] && ! continues 30; then
            say "the kernel's target listens again"
            kernel_listens
        fi
        progress "$1: $seconds s without a cable"
    done
    load_ends "$1"
}

connect() {
    check "connect $*" nvme connect --transport=rdma --traddr=$far --nqn=$nqn \
        --nr-io-queues=1 --reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=5 "$@"
    eventually "the namespace appears" find_namespace $nqn 1
}
attach() {
    check "attach $*" ./farblock attach --as ublk --name fb0 --keep-alive 5s \
        --reconnect-delay 1s --json "$@"
    found=/dev/ublkb0
    ls -l /dev/ublkb* || fail "no disk"
}
serve() {
    ./farblock serve disk --listen "rdma:$far:4421" --listen "$far:4421" --nqn "$nqn" \
        --control control >>serve.log 2>&1 &
    target=$!
    eventually "the target listens" ./farblock id "nvme+tcp://$far:4421/$nqn"
}

# disconnect HOST: removes the disk of the kernel's host or of farblock's.
disconnect() {
    case $1 in
    kernel) check "disconnect" nvme disconnect --nqn=$nqn ;;
    *) check "detach" ./farblock detach fb0 ;;
    esac
}
queue_pairs() { rdma resource show qp | grep -c "type RC" || true; }
has_queue_pairs() { [ "$(queue_pairs)" = "$1" ]; }
# both_paths HOST: a disk of this host with a path over RDMA and one over TCP.
both_paths() {
    case $1 in
    kernel)
        nvme connect --transport=tcp --traddr=$far --trsvcid=4421 --nqn=$nqn --nr-io-queues=1 \
            --reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=5 >/dev/null
        connect --trsvcid=4421
        ;;
    *) attach "nvme+rdma://$far:4421/$nqn?ns=1" "nvme+tcp://$far:4421/$nqn?ns=1" ;;
    esac
}
ctl() { ./farblock ctl --control control "$@"; }

# paths_are HOST WORD WORD: whether the two paths of this host's disk have these states (live), or
# these access states (optimized and others), in any order.
paths_are() {
    local seen
    case $1 in
    kernel) seen=$(cat /sys/class/nvme/nvme*/state /sys/class/nvme/nvme*/nvme*c*n*/ana_state) ;;
    *) seen=$(./farblock list --json | jq -r '.[0].paths[] | .state, .access') ;;
    esac
    seen=$(grep -E '^(live|optimized|inaccessible)$' <<<"$seen" | sort)
    if [ "$2" = live ]; then
        [ "$(grep -c live <<<"$seen")" = 2 ]
    else
        [ "$(grep -v live <<<"$seen")" = "$(printf '%s\n' "$2" "$3")" ]
    fi
}

# cuts HOST: ends and blocks each path in turn, under load.
cuts() {
    local listener
    both_paths "$1"
    fresh_load "$found"
    for listener in "rdma:$far:4421" "$far:4421"; do
        check "cut $listener" ctl remove-listener "$listener"
        progress "$1: without $listener"
        check "listen again" ctl add-listener "$listener"
        eventually "both paths are live" paths_are "$1" live live
        check "$listener is inaccessible" ctl set-ana "$listener" inaccessible
        eventually "the host sees it" paths_are "$1" inaccessible optimized
        progress "$1: $listener inaccessible"
        check "$listener is optimized" ctl set-ana "$listener" optimized
        eventually "the host sees it" paths_are "$1" optimized optimized
    done
    load_ends "$1: two paths"
    disconnect "$1"
}

# kills HOST: kills the target under load, and then farblock's host.
kills() {
    case $1 in
    kernel) connect --trsvcid=4421 ;;
    *) attach "nvme+rdma://$far:4421/$nqn?ns=1" ;;
    esac
    fresh_load "$found"
    kill -9 "$target"
    wait "$target" 2>/dev/null || true
    serve
    progress "$1: the target was killed"
    if [ "$1" = farblock ]; then
        kill -9 "$(./farblock list --json | jq '.[0].server_pid')"
        progress "$1: the host was killed"
    fi
    load_ends "$1"
    disconnect "$1"
    eventually "no queue pair is left" has_queue_pairs 0
    rdma resource show
}

# discovers: the kernel's host connects by discovery over RDMA.
discovers() {
    check "connect-all" nvme connect-all --transport=rdma --traddr=$far --trsvcid=4421
    eventually "the namespace appears" find_namespace $nqn 1
    grep -q rdma /sys/class/nvme/nvme*/transport || fail "no path over RDMA"
    disconnect kernel
}

# kernel_target: serves a disk with the kernel's target.
kernel_target() {
    local directory=$configfs/nvmet/ports/1
    memory_disk nullb-512 64 512
    target_subsystem "$nqn" /dev/nullb-512
    mkdir $directory
    echo rdma >$directory/addr_trtype
    echo ipv4 >$directory/addr_adrfam
    echo $far >$directory/addr_traddr
    echo 4420 >$directory/addr_trsvcid
    kernel_listens
}
kernel_listens() {
    local link=$configfs/nvmet/ports/1/subsystems/$nqn
    [ ! -e "$link" ] || rm "$link"
    ln -s "$configfs/nvmet/subsystems/$nqn" "$link"
}

# pair LABEL HOST PORT: pulls the cable of a host and the target at this port.
pair() {
    say "$1"
    case $2 in
    kernel) connect --trsvcid="$3" ;;
    *) attach "nvme+rdma://$far:$3/$nqn?ns=1" ;;
    esac
    pulls "$1" "$found" "$3"
    disconnect "$2"
}

read -ra parts <phases
for phase in "${parts[@]}"; do
    case $phase in
    kk | fk) [ -d $configfs/nvmet/ports/1 ] || kernel_target ;;
    *) [ -n "${target:-}" ] || serve ;;
    esac
    case $phase in
    kk) pair "the kernel's host and target" kernel 4420 ;;
    kf) pair "the kernel's host, farblock's target" kernel 4421 ;;
    fk) pair "farblock's host, the kernel's target" farblock 4420 ;;
    ff) pair "farblock's host and target" farblock 4421 ;;
    *)
        say "$phase"
        "${phase%-*}" "${phase#*-}"
        ;;
    esac
done
say "done"
