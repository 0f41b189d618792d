#!/usr/bin/env bash
# What test-systemd.sh has done where its systemd runs, with a Debian package.
set -Eeux -o pipefail
failed() {
    set +x
    journalctl --no-pager --unit farblock.service | grep -v ':   ' | tail -n 20
    echo "line $1 failed: $2"
}
trap 'failed $LINENO "$BASH_COMMAND"' ERR
nqn=nqn.2026-11.org.example:disks
url="nvme+tcp://127.0.0.1/$nqn?ns=1"
install() {
    dpkg --install --no-triggers /root/package.deb
}
process() {
    systemctl show --property MainPID --value farblock
}

# Images of containers forbid packages to start anything; here is a system as people have it.
rm -f /usr/sbin/policy-rc.d

# What it brings is neither enabled nor started.
install
for unit in farblock.socket farblock.service; do
    [ "$(systemctl is-enabled $unit || true)" = disabled ]
    [ "$(systemctl is-active $unit || true)" = inactive ]
done

mkdir -p /var/lib/farblock /etc/farblock/attach.d
truncate -s 32M /var/lib/farblock/disk.img
cat >/etc/farblock/farblock.toml <<TOML
[[subsystems]]
nqn = "$nqn"
allow_any_host = true

[[subsystems.namespaces]]
path = "limit:32MiB/s,/var/lib/farblock/disk.img"
TOML
cat >/etc/farblock/attach.d/data.toml <<TOML
urls = ["$url"]
as = "fuse"
no-device = true
TOML
systemctl enable --now farblock.socket farblock.service
systemctl enable --now farblock-attach@data
before=$(process)
attached=$(systemctl show --property MainPID --value farblock-attach@data)
[ "$before" != 0 ] && [ "$attached" != 0 ]

# An upgrade while somebody writes and compares: the target is the new version, hosts wait for it,
# and attached disks are served on.
writes() {
    farblock status --json | jq '.subsystems[0].writes'
}
head -c 32M /dev/urandom >/root/data
began=$(writes)
farblock --quiet copy /root/data "$url" --verify &
load=$!
until [ "$(writes)" -gt "$began" ]; do sleep 0.02; done
install
[ "$(process)" != "$before" ]
wait "$load"
systemctl is-active farblock.socket farblock.service farblock-attach@data
[ "$(systemctl show --property MainPID --value farblock-attach@data)" = "$attached" ]
systemctl stop farblock-attach@data

# Removed, nothing runs; what the administrator wrote stays, and is used by the next one.
dpkg --remove --no-triggers farblock
[ ! -e /usr/bin/farblock ]
for unit in farblock.socket farblock.service; do
    [ "$(systemctl is-active $unit || true)" = inactive ]
done
[ -s /etc/farblock/farblock.toml ]
install
systemctl start farblock.service
farblock id "$url"

# Purged, nothing of it is left but disks, and what others wrote.
dpkg --purge --no-triggers farblock
[ "$(systemctl is-active farblock.service || true)" = inactive ]
[ -z "$(find /etc/systemd /var/lib/systemd -name 'farblock*' -print)" ]
dpkg-query --show farblock && exit 1
[ -s /var/lib/private/farblock/disk.img ] && [ -s /etc/farblock/farblock.toml ]
