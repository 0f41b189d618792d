#!/usr/bin/env bash
# The job of test-systemd.sh, inside its systemd.
# shellcheck source=job-begins.sh
. "$(dirname "$0")/job-begins.sh"

share 64
systemctl is-active farblock.socket farblock.service
systemctl status --no-pager farblock | grep 'sharing 1 namespace at 127.0.0.1:4420'
journalctl --no-pager --unit farblock | grep 'uring engine'
pid=$(process farblock)
[ "$(stat --format %u "/proc/$pid")" != 0 ]
[ "$(stat --format %u /var/lib/private/farblock/disk.img)" = "$(stat --format %u "/proc/$pid")" ]

# Change the configuration at run time. An invalid configuration must change nothing.
cat >>/etc/farblock/farblock.toml <<TOML

[[subsystems.namespaces]]
path = "mem:1MiB"
TOML
systemctl reload farblock
[ "$(farblock status --json | jq '.subsystems[0].namespaces | length')" = 2 ]
cp /etc/farblock/farblock.toml /root/good.toml
echo 'nonsense = 1' >>/etc/farblock/farblock.toml
systemctl reload farblock && exit 1
systemctl is-active farblock
cp /root/good.toml /etc/farblock/farblock.toml
[ "$(process farblock)" = "$pid" ]

# Restart the target during writes and comparisons. Connected hosts must notice only a pause.
for _ in 1 2 3; do
    head -c 64M /dev/urandom >/root/data
    before=$(writes)
    farblock --quiet copy /root/data "$url" --verify &
    load=$!
    until [ "$(writes)" -gt "$before" ]; do sleep 0.02; done
    systemctl restart farblock
    wait "$load"
done
[ "$(process farblock)" != "$pid" ]
farblock --quiet read "$url" --length 64MiB | cmp - /root/data

# Attach a disk at boot. Restart the target while fio writes and verifies: no operation may fail.
# The time limit of one operation is generous, since the machine may be busy.
most_seconds=30
attach
systemctl start farblock-attach@data
systemctl is-active farblock-attach@data
attached=$(farblock list --json | jq -r '.[0].use.path')
[ -f "$attached" ]
fio --name=load --filename="$attached" --size=32M --rw=randwrite --bs=4k --time_based --runtime=15 \
    --verify=crc32c --verify_backlog=256 --verify_fatal=1 --output-format=json --output=/root/fio &
load=$!
for _ in 1 2 3; do
    before=$(writes)
    until [ "$(writes)" -gt "$((before + 200))" ]; do sleep 0.1; done
    # systemd limits the starts of a service in ten seconds: reset its count.
    systemctl reset-failed farblock
    systemctl restart farblock
done
wait "$load"
[ "$(jq '.jobs[0].error' /root/fio)" = 0 ]
pause=$(jq '.jobs[0].write.clat_ns.max / 1e6 | round' /root/fio)
echo "longest pause: $pause ms"
[ "$pause" -lt $((most_seconds * 1000)) ]
[ "$(farblock list --json | jq -r '.[0].state')" = live ]

# Kill the main process. systemd then kills the server process, and programs that use the disk wait.
# Before Linux 6.9, systemd cannot keep the FUSE descriptor for the next process, and the mount
# breaks.
is_live() {
    [ "$(farblock list --json | jq -r '.[0].state')" = live ]
}
if printf '6.9\n%s\n' "$(uname -r)" | sort --version-sort --check=quiet; then
    server=$(farblock list --json | jq '.[0].server_pid')
    exec 7<>"$attached"
    kill -KILL "$(process farblock-attach@data)"
    while [ -e "/proc/$server" ]; do sleep 0.1; done
    printf waited >&7
    exec 7>&-
    # systemd restarts the service after five seconds. The new process must connect to the target.
    deadline=$((SECONDS + 60))
    until is_live; do
        [ "$SECONDS" -lt "$deadline" ]
        sleep 0.1
    done
    [ "$(head -c 6 "$attached")" = waited ]
    [ "$(systemctl show --property NRestarts --value farblock-attach@data)" = 1 ]
else
    echo "skipped: an attached disk survives its service only since Linux 6.9; this is $(uname -r)"
fi
systemctl stop farblock-attach@data
[ "$(systemctl show --property Result --value farblock-attach@data)" = success ]
[ "$(farblock list --json | jq length)" = 0 ]

# Test a host that must authenticate, with a secret that only root can read.
mkdir -m 700 /etc/farblock/keys
(umask 077 && farblock keys new >/etc/farblock/keys/host.key)
host=nqn.2026-11.org.example:host
cat >/etc/farblock/farblock.toml <<TOML
[[subsystems]]
nqn = "$nqn"

[[subsystems.hosts]]
nqn = "$host"
dhchap_key = "credential:keys_host.key"

[[subsystems.namespaces]]
path = "/var/lib/farblock/disk.img"
TOML
systemctl restart farblock
as="nvme+tcp://127.0.0.1/$nqn?ns=1&hostnqn=$host"
farblock id "$as" --dhchap-secret /etc/farblock/keys/host.key
farblock id "$as" && exit 1
farblock status | grep 127.0.0.1:4420
systemctl stop farblock.socket farblock.service
[ "$(systemctl show --property Result --value farblock)" = success ]

# Shut down while a manually mounted file system is on a disk. The disk's service must unmount the
# file system, since systemd would unmount it only after stopping the service. test-systemd.sh
# checks the result.
cp /root/good.toml /etc/farblock/farblock.toml
systemctl start farblock.socket farblock.service
mknod /dev/loop-control c 10 237
for number in $(seq 0 31); do [ -e "/dev/loop$number" ] || mknod "/dev/loop$number" b 7 "$number"; done
sed -i '/no-device/d' /etc/farblock/attach.d/data.toml
mkdir -p /etc/systemd/system/farblock-attach@data.service.d /root/mnt
cat >/etc/systemd/system/farblock-attach@data.service.d/end.conf <<'UNIT'
[Service]
ExecStopPost=/bin/sh -c 'echo "$SERVICE_RESULT" >/out/attach'
ExecStopPost=/bin/sh -c '! grep -q /root/mnt /proc/self/mounts && echo unmounted >>/out/attach'
ExecStopPost=-/bin/sh -c 'journalctl --no-pager -u farblock-attach@data | grep "by force" >>/out/attach'
UNIT
systemctl daemon-reload
systemctl start farblock-attach@data
device=$(farblock list --json | jq -r '.[0].use.path')
[ -b "$device" ]
mkfs.ext4 -q "$device"
mount "$device" /root/mnt
head -c 4M /dev/urandom >/root/mnt/written
