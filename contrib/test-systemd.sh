#!/usr/bin/env bash
# test-systemd.sh RELEASE|PACKAGE.deb: installs the build in the folder RELEASE under a separate
# systemd, which runs in namespaces, without a virtual machine. It starts, changes and restarts
# farblock.service while fio uses a disk of farblock-attach@.service. With a Debian package, dpkg
# installs, upgrades, removes and purges it there.
set -Eeuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { echo "usage: test-systemd.sh RELEASE|PACKAGE.deb" >&2; exit 2; }

die() {
    echo "test-systemd.sh: $*" >&2
    exit 1
}
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
[ "$(id -u)" = 0 ] || die "only root can start a second systemd: run this script as root"
for need in systemctl script jq setpriv fio; do
    command -v "$need" >/dev/null || die "install the command $need (interop/packages.sh does)"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/root" "$work/groups" "$work/out"
cp "$here/tests/job-begins.sh" "$work/"
if [ -d "$1" ]; then
    DESTDIR=$work/installed "$here/install.sh" "$1" /usr/local
    cp "$here/tests/systemd-job.sh" "$work/job.sh"
else
    cp "$1" "$work/package.deb"
    cp "$here/tests/deb-job.sh" "$work/job.sh"
fi

# Give the second systemd a control group of its own, below which it creates all its groups.
cat >"$work/outer.sh" <<'OUTER'
set -e
work=$1
mount --make-rprivate /
mount -t cgroup2 cgroup2 "$work/groups"
group=$work/groups/farblock-test-$$
mkdir "$group"
echo $$ >"$group/cgroup.procs"
code=0
unshare --pid --kill-child --fork --cgroup --uts --ipc --net --mount \
    bash "$work/inner.sh" "$work" || code=$?
echo $$ >"$work/groups/cgroup.procs"
find "$group" -depth -type d -exec rmdir {} \;
exit "$code"
OUTER

# The root folder of that systemd has this machine's programs, read-only, and no other files of the
# machine.
cat >"$work/inner.sh" <<'INNER'
set -e
work=$1
mount -t tmpfs -o mode=755 tmpfs "$work/root"
cd "$work/root"
mkdir -p usr etc/systemd/system/multi-user.target.wants proc sys dev run tmp var/lib root out old
# over FOLDER: mounts this machine's folder, and discards writes to it.
over() {
    mkdir -p "$1" ".over/$1/new" ".over/$1/work"
    mount -t overlay overlay "$1" \
        -o "lowerdir=/$1,upperdir=$PWD/.over/$1/new,workdir=$PWD/.over/$1/work"
}
if [ -e "$work/package.deb" ]; then
    over usr
    over var/lib/dpkg
    mount -t tmpfs -o mode=755 tmpfs usr/local
    mkdir -p var/log
    cp "$work/package.deb" root/
else
    mount --bind /usr usr
    mount -o remount,bind,ro usr
    mount --bind "$work/installed/usr/local" usr/local
fi
mount --bind "$work/out" out
for link in bin sbin lib lib64; do ln -s usr/$link $link; done
for file in passwd group nsswitch.conf ld.so.cache ld.so.conf ld.so.conf.d alternatives; do
    cp -a /etc/$file etc/
done
tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty fuse; do
    touch dev/$device
    mount --bind /dev/$device dev/$device
done
touch dev/console
mount --bind "$(tty)" dev/console
ln -s /proc/self/fd dev/fd
cp "$work/job.sh" "$work/job-begins.sh" root/
cat >etc/systemd/system/job.service <<UNIT
[Service]
Type=oneshot
ExecStart=/bin/bash /root/job.sh
ExecStopPost=/bin/sh -c 'echo \$EXIT_STATUS >/out/code; systemctl exit 0'
StandardOutput=file:/out/said
StandardError=inherit
Environment=HOME=/root PATH=/usr/local/bin:/usr/bin:/usr/sbin
TimeoutStartSec=300
UNIT
# console-getty.service would hang up the terminal, and so kill this script.
ln -s /dev/null etc/systemd/system/console-getty.service
ln -s /etc/systemd/system/job.service etc/systemd/system/multi-user.target.wants/
pivot_root . old
cd /
umount -l old
# Credentials reach services by mount propagation.
mount --make-rshared /
exec env -i container=farblock PATH=/usr/bin:/usr/sbin /lib/systemd/systemd --log-target=console \
    --unit=multi-user.target </dev/console >/dev/console 2>&1
INNER

# The console is a terminal without input, which stays open until systemd exits.
mkfifo "$work/typed"
exec 9<>"$work/typed"
timeout 400 script --quiet --flush --command "unshare --mount bash '$work/outer.sh' '$work'" \
    "$work/console" <&9 >/dev/null 2>&1 || true
[ "$(cat "$work/out/code" 2>/dev/null)" = 0 ] ||
    die "the job failed: $(tail -n 30 "$work/console" "$work/out/said" 2>/dev/null)"
if [ -d "$1" ]; then
    [ "$(cat "$work/out/attach" 2>/dev/null)" = "success
unmounted" ] || die "a disk in use was not detached at shutdown: $(cat "$work/out/attach"; \
        tail -n 30 "$work/console")"
    pause=$(sed -n 's/^longest pause: //p' "$work/out/said")
    echo "systemd: farblock.service starts, reloads, restarts under load and reads keys; a disk of" \
        "farblock-attach@ that fio verified waited for $pause at most, and at shutdown it is unmounted"
else
    echo "deb: dpkg installs, upgrades, removes and purges it"
fi
