# shellcheck shell=bash
# A node of drbd.sh; the file "node" has its name and address. Starts the resource r0, and the
# target that shares its device. Node a then runs the commands in /host/N.cmd; node b continues with
# drbd-host.sh.
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

read -r node address <node
hostname "$node"
ip addr add "$address/24" dev eth1
ip link set eth1 up
modprobe drbd
mkdir -p /run/drbd /var/lib/drbd /var/lock
cp drbd.conf /etc/drbd.conf
cp /host/farblock farblock-drbd /usr/bin/

# Replaces systemctl: the guide assumes systemd, which this guest lacks.
cat >/usr/bin/systemctl <<'END'
#!/bin/bash
case $1 in
start)
    cd /root
    farblock serve --config farblock.toml >>/run/farblock.log 2>&1 </dev/null &
    echo $! >/run/farblock.pid
    until farblock status >/dev/null 2>&1; do
        kill -0 $! 2>/dev/null || { cat /run/farblock.log; exit 1; }
        sleep 0.1
    done
    ;;
stop)
    read -r pid </run/farblock.pid
    kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    ;;
esac
END
chmod +x /usr/bin/systemctl

# After a restart of the node, the disk has DRBD's metadata already.
[ -e known ] || check "$node: create-md" drbdadm create-md --force r0
check "$node: up" drbdadm up r0

if [ "$node" = b ]; then
    # shellcheck source=drbd-host.sh
    . ./drbd-host.sh
    exit 0
fi
# shellcheck source=asked.sh
. ./asked.sh
do_what_is_asked
