# shellcheck shell=bash
# Sourced by tests with a Ceph cluster: one monitor and one OSD on loopback. The OSD's data is in a
# sparse file, which remains when the OSD is killed. Sets ceph_dir (the folder with ceph.conf) and
# CEPH_CONF. ends_cluster stops the cluster and removes the folder.

ceph_dir=
monitor=
osd=

# begins_cluster FOLDER: starts a cluster in this folder, with the pool rbd; takes about 10 s.
begins_cluster() {
    local tool port fsid
    for tool in ceph ceph-mon ceph-osd ceph-authtool monmaptool rbd; do
        command -v $tool >/dev/null || {
            echo "cluster.sh: $tool is missing: run interop/packages.sh" >&2
            return 2
        }
    done
    ceph_dir=$1
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
    fsid=$(cat /proc/sys/kernel/random/uuid)
    configure "$port" "$fsid"
    export CEPH_CONF=$ceph_dir/ceph.conf
    mkdir "$ceph_dir/mon.a" "$ceph_dir/osd.0"
    ceph-authtool --create-keyring "$ceph_dir/keyring" --gen-key -n mon. --cap mon 'allow *' \
        >/dev/null
    ceph-authtool "$ceph_dir/keyring" --gen-key -n client.admin --cap mon 'allow *' \
        --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
    monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$port]" "$ceph_dir/monmap" >/dev/null
    ceph-mon --mkfs -i a --monmap "$ceph_dir/monmap" --keyring "$ceph_dir/keyring"
    ceph-mon -i a -f >"$ceph_dir/mon.out" 2>&1 &
    monitor=$!
    fsid=$(cat /proc/sys/kernel/random/uuid)
    timeout 60 ceph osd new "$fsid" >/dev/null
    ceph auth get-or-create osd.0 mon 'allow *' osd 'allow *' -o "$ceph_dir/osd.0/keyring"
    ceph-osd -i 0 --mkfs --osd-uuid "$fsid" >"$ceph_dir/osd-mkfs.out" 2>&1
    begins_osd
    ceph osd pool create rbd 8 8 >/dev/null 2>&1
    ceph osd pool application enable rbd rbd >/dev/null 2>&1
    # Image creation fails until the pool exists.
    rbd pool init rbd
}

configure() {
    cat >"$ceph_dir/ceph.conf" <<END
[global]
fsid = $2
mon host = v2:127.0.0.1:$1
mon initial members = a
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv4 = true
ms bind ipv6 = false
ms bind msgr1 = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg autoscale mode = off
mon allow pool size one = true
osd crush chooseleaf type = 0
osd objectstore = bluestore
bluestore block size = 2147483648
bluestore block create = true
bluestore fsck on mount = false
osd memory target = 1073741824
osd heartbeat grace = 5
run dir = $ceph_dir
log file = $ceph_dir/\$name.log
mon cluster log file = $ceph_dir/cluster.log
mon data = $ceph_dir/mon.a
mon data avail warn = 1
mon data avail crit = 1
osd data = $ceph_dir/osd.0
keyring = $ceph_dir/keyring
crash dir = $ceph_dir
[mon]
admin socket = $ceph_dir/\$name.asok
[osd]
admin socket = $ceph_dir/\$name.asok
[osd.0]
keyring = $ceph_dir/osd.0/keyring
END
}

begins_osd() {
    local try
    ceph-osd -i 0 -f >>"$ceph_dir/osd.out" 2>&1 &
    osd=$!
    for ((try = 0; try < 300; try++)); do
        ! ceph osd stat 2>/dev/null | grep '1 up' >/dev/null || return 0
        kill -0 $osd 2>/dev/null || break
        sleep 0.2
    done
    cat "$ceph_dir/osd.out" >&2
    echo "cluster.sh: the OSD does not start" >&2
    return 1
}

# Kills the OSD. This simulates a power cut of its machine.
kills_osd() {
    kill -9 $osd
    wait $osd 2>/dev/null || true
    osd=
}

ends_cluster() {
    # shellcheck disable=SC2086 # if it is empty, there must be no argument
    kill -9 $osd $monitor 2>/dev/null || true
    [ -z "$ceph_dir" ] || rm -rf "$ceph_dir"
}
