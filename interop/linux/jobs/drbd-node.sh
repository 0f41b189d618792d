# shellcheck shell=bash
# A node of drbd.sh: in the file "node" its name and its address. Has the resource r0, and what
# shares its device. Node a then does what it is asked for in /host/N.cmd; node b goes on with
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

# What starts and stops services here; the machine of the guide has systemd.
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

# A node that was here before has what DRBD keeps on its disk.
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
