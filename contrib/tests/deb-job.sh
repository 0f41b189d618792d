#!/usr/bin/env bash
# What test-systemd.sh has done where its systemd runs, with a Debian package.
# shellcheck source=job-begins.sh
. "$(dirname "$0")/job-begins.sh"
install() {
    dpkg --install --no-triggers /root/package.deb
}

# Images of containers forbid packages to start anything; here is a system as people have it.
rm -f /usr/sbin/policy-rc.d

# What it brings is neither enabled nor started.
install
for unit in farblock.socket farblock.service; do
    [ "$(systemctl is-enabled $unit || true)" = disabled ]
    [ "$(systemctl is-active $unit || true)" = inactive ]
done

share 32
attach
systemctl enable --now farblock-attach@data
before=$(process farblock)
attached=$(process farblock-attach@data)
[ "$before" != 0 ] && [ "$attached" != 0 ]

# An upgrade while somebody writes and compares: the target is the new version, hosts wait for it,
# and attached disks are served on.
head -c 32M /dev/urandom >/root/data
began=$(writes)
farblock --quiet copy /root/data "$url" --verify &
load=$!
until [ "$(writes)" -gt "$began" ]; do sleep 0.02; done
install
[ "$(process farblock)" != "$before" ]
wait "$load"
systemctl is-active farblock.socket farblock.service farblock-attach@data
[ "$(process farblock-attach@data)" = "$attached" ]
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
