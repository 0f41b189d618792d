#!/bin/bash
# systemd-disk.sh ROOT MODULES OUTPUT: makes the disk of the guest that boots Debian's systemd, from
# ROOT, a tree of unpacked Debian packages, and MODULES, the folder of the kernel's modules. Called
# by setup.sh. Does the work of the packages' install scripts, as far as the guest's jobs need it.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
root=$1 modules=$2 output=$3

# An older version of this script may have left units there.
rm -rf "$root/etc/systemd/system" "$output"
mkdir -p "$root"/{dev,proc,sys,run,tmp,host,srv,root,var/lib,var/log,etc/systemd/system}
chmod 1777 "$root/tmp"
cp -a "$modules" "$root/usr/lib/"
depmod -b "$root" "$(basename "$modules"/*)"
for name in passwd group; do cp "$root/usr/share/base-passwd/$name.master" "$root/etc/$name"; done
[ -e "$root/usr/bin/sh" ] || ln -s dash "$root/usr/bin/sh"
[ -e "$root/usr/bin/awk" ] || ln -s mawk "$root/usr/bin/awk"
echo 'guest' >"$root/etc/hostname"
echo '127.0.0.1 localhost guest' >"$root/etc/hosts"
# Without a machine ID, systemd would consider this the first boot, and enable all its services.
echo 'fa4b10c5fa4b10c5fa4b10c5fa4b10c5' >"$root/etc/machine-id"
: >"$root/etc/fstab"
install -D -m 755 "$linux_dir/systemd/job-begins" "$root/usr/lib/guest/job-begins"
install -m 644 "$linux_dir/guest/lib.sh" "$root/lib.sh"
install -m 644 "$linux_dir/systemd/job.service" "$root/etc/systemd/system/"
units=$root/etc/systemd/system
mkdir -p "$units"/{default.target.wants,sysinit.target.wants}
ln -sf /usr/lib/systemd/system/multi-user.target "$units/default.target"
ln -sf ../job.service "$units/default.target.wants/"
# Disable services that jobs do not need: they take time under emulation. udev would load all
# drivers.
for name in systemd-udev-trigger.service systemd-tpm2-setup.service \
    systemd-tpm2-setup-early.service systemd-random-seed.service systemd-firstboot.service \
    systemd-hwdb-update.service systemd-journal-flush.service \
    systemd-update-utmp.service systemd-tmpfiles-clean.timer apt-daily.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer getty@tty1.service serial-getty@ttyS0.service \
    console-getty.service systemd-timesyncd.service systemd-networkd.service; do
    ln -sf /dev/null "$units/$name"
done

make=(mke2fs -q -t ext4 -L guest -E root_owner=0:0 -d "$root" "$output" 1200M)
[ "$(id -u)" = 0 ] || make=(unshare --map-root-user "${make[@]}")
"${make[@]}" >/dev/null
echo "systemd-disk.sh: $(($(du -k "$output" | cut -f 1) / 1024)) MiB"
