#!/usr/bin/env bash
# The job of test-systemd.sh for a Debian package, inside its systemd.
# shellcheck source=job-begins.sh
. "$(dirname "$0")/job-begins.sh"
install() {
    dpkg --install --no-triggers /root/package.deb
}

# Container images forbid packages to start services, but a user's system allows it.
rm -f /usr/sbin/policy-rc.d

# The package neither enables nor starts its units.
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

# Upgrade during writes. The target must then run the new version. Hosts must wait for it, and
# attached disks must keep their servers.
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

# After removal no process may run. The administrator's files must stay, and the next installation
# must use them.
dpkg --remove --no-triggers farblock
[ ! -e /usr/bin/farblock ]
for unit in farblock.socket farblock.service; do
    [ "$(systemctl is-active $unit || true)" = inactive ]
done
[ -s /etc/farblock/farblock.toml ]
install
systemctl start farblock.service
farblock id "$url"

# After purging, only disks and other programs' files may remain.
dpkg --purge --no-triggers farblock
[ "$(systemctl is-active farblock.service || true)" = inactive ]
[ -z "$(find /etc/systemd /var/lib/systemd -name 'farblock*' -print)" ]
dpkg-query --show farblock && exit 1
[ -s /var/lib/private/farblock/disk.img ] && [ -s /etc/farblock/farblock.toml ]
