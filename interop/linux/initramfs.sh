#!/bin/bash
# initramfs.sh ROOT OUTPUT: builds the guest's initramfs from ROOT, a tree of unpacked Debian
# packages. The cpio archive and its modules are uncompressed, since emulated decompression is slow.
# Keep the image small: an emulated processor copies each megabyte. setup.sh calls this script.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
root=$1 output=$2
build=$(mktemp -d "$output.XXXXXX")
chmod 755 "$build" # a job may run as another user than root
trap 'rm -rf "$build"' EXIT

modules=(
    # NVMe: host and target over TCP, and the PCI host for QEMU's own emulated disk
    nvme-tcp nvmet-tcp nvme tls
    # disks that the kernel's target serves
    null_blk brd loop
    # the guest's own devices
    virtio_net virtio_blk virtio-rng 9p 9pnet_virtio qemu_fw_cfg
    # file systems
    ext4 fuse
    # drivers with which farblock attaches a namespace as a disk
    ublk_drv nbd iscsi_tcp sd_mod dm-multipath dm-round-robin dm-service-time
    # DRBD, with which two guests replicate a disk
    drbd
    # soft-RoCE, and NVMe host and target over RDMA
    rdma_rxe ib_uverbs rdma_ucm nvme-rdma nvmet-rdma
    # the kernel's iSCSI target, and iSER at both ends
    iscsi_target_mod target_core_iblock ib_isert ib_iser
    # a network of the guest whose cable a job can pull
    veth bridge
)
# Modules that the kernel loads by alias: checksums of digests, ext4 and soft-RoCE, and TLS's
# cipher. Some kernels have these built in.
old_modules=(crc32c_generic crc32c-intel crc32_generic gcm ctr ghash-generic aesni-intel)
tools=(
    bash nvme fio mkfs.ext4 e2fsck jq cmp ip kmod nbd-client iscsid iscsiadm sg_compare_and_write dmsetup
    blockdev blkdiscard lsblk losetup mount umount timeout flock setpriv tlshd
    drbdadm drbdsetup drbdmeta rdma
)

# All commands of busybox. The real tools replace some of them.
mkdir -p "$build"/{dev,etc/nvme,host,mnt,proc,root,run,sys,tmp,var,usr/{bin,sbin,lib,lib64}}
for name in bin sbin lib lib64; do ln -s "usr/$name" "$build/$name"; done
ln -s ../run "$build/var/run"
ln -s /proc/mounts "$build/etc/mtab"
cp -L "$root/usr/bin/busybox" "$build/usr/bin/busybox"
for name in $("$build/usr/bin/busybox" --list); do
    [ "$name" = busybox ] || ln -s busybox "$build/usr/bin/$name"
done

# Copies one file of ROOT to the same place in the image.
copy() {
    mkdir -p "$build/${1%/*}"
    cp -L --remove-destination "$root/$1" "$build/$1"
}

# The libraries of a program, as paths inside ROOT, found by ROOT's dynamic loader.
libraries=$root/usr/lib/x86_64-linux-gnu
libraries_of() {
    "$root/lib64/ld-linux-x86-64.so.2" --library-path "$libraries:$libraries/ceph" --list "$1" |
        sed -n "s#.* => $root/\([^ ]*\) .*#\1#p"
}

# Copies a program and its libraries.
program() {
    local library
    copy "$1"
    for library in $(libraries_of "$root/$1"); do
        [ -e "$build/$library" ] || copy "$library"
    done
}

copy usr/lib64/ld-linux-x86-64.so.2
for tool in "${tools[@]}"; do
    # Skip links to places outside of the tree.
    path=$(cd "$root" && find -L usr/bin usr/sbin -maxdepth 1 -name "$tool" ! -type l -print -quit)
    [ -n "$path" ] || die "no package in setup.sh's list has the tool $tool."
    rm -f "$build/usr/bin/$tool"
    program "$path"
done
# drbdadm runs these programs with the kernel's own module (8.4).
program usr/lib/drbd/drbdadm-84
program usr/lib/drbd/drbdsetup-84
# Programs load these libraries at run time: the verbs libraries, and their soft-RoCE provider.
program usr/lib/x86_64-linux-gnu/librdmacm.so.1
program "$(cd "$root" && echo usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so)"
copy etc/libibverbs.d/rxe.driver
for name in modprobe insmod rmmod lsmod modinfo depmod; do
    rm -f "$build/usr/bin/$name"
    ln -s ../bin/kmod "$build/usr/sbin/$name" # the kernel itself calls /sbin/modprobe
done

# Modules and their dependencies. modprobe prints "insmod FILE" or "builtin NAME" lines.
release=$(cd "$root/usr/lib/modules" && echo *)
depmod -b "$root" "$release"
for module in "${modules[@]}"; do
    modprobe -d "$root" -S "$release" --show-depends "$module" ||
        die "the kernel $release has no module $module."
done >"$build/modules.all"
for module in "${old_modules[@]}"; do
    modprobe -d "$root" -S "$release" --show-depends "$module" 2>/dev/null || true
done >>"$build/modules.all"
sed -n 's#^insmod \([^ ]*\).*#\1#p' "$build/modules.all" | sort -u >"$build/modules"
while read -r file; do
    target=$build/usr/${file##*"$root"/}
    mkdir -p "${target%/*}"
    case $file in
    *.ko.xz) xz -dc "$file" >"${target%.xz}" ;;
    *.ko.zst) zstd -dcq "$file" >"${target%.zst}" ;;
    *) cp "$file" "$target" ;;
    esac
done <"$build/modules"
rm "$build/modules" "$build/modules.all"
cp "$root/usr/lib/modules/$release"/modules.{builtin,builtin.modinfo,order} \
    "$build/usr/lib/modules/$release/"
depmod -b "$build" "$release"

echo 'root:x:0:0:root:/root:/bin/bash' >"$build/etc/passwd"
echo 'root:x:0:' >"$build/etc/group"
echo '127.0.0.1 localhost' >"$build/etc/hosts"
install -m 755 "$linux_dir/guest/init" "$build/init"
install -m 644 "$linux_dir/guest/lib.sh" "$build/lib.sh"

(cd "$build" && find . -print0 | cpio --quiet -o -0 -H newc -R 0:0) >"$output"
echo "initramfs.sh: kernel $release, $(find "$build" -name '*.ko' | wc -l) modules," \
    "$(($(stat -c %s "$output") / 1000000)) MB"
