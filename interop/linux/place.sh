# shellcheck shell=bash disable=SC2034
# Sourced by setup.sh, guest.sh and run.sh: the paths of the guest's kernel and image. The image's
# name contains a hash of all its sources, so guest.sh never boots an image from another version of
# these scripts.

linux_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vm_dir=${FARBLOCK_VM_DIR:-${HOME:?HOME is not set; set FARBLOCK_VM_DIR instead}/.cache/farblock-vm}
# FARBLOCK_VM_KERNEL: the release's own kernel (stable), or the newest one built for it (backports).
guest_kernel=${FARBLOCK_VM_KERNEL:-stable}
[ "$guest_kernel" = stable ] || vm_dir+=/$guest_kernel
export PATH=$PATH:/usr/sbin:/sbin

image_hash=$(cd "$linux_dir" && cat place.sh setup.sh initramfs.sh guest/* | sha256sum | cut -c1-12)
kernel=$vm_dir/vmlinux
image=$vm_dir/image-$image_hash.cpio
# The disk of the guest that boots systemd.
systemd_hash=$(cd "$linux_dir" && cat place.sh setup.sh systemd-disk.sh systemd/* | sha256sum |
    cut -c1-12)
systemd_disk=$vm_dir/systemd-$systemd_hash.ext4

# die TEXT...: one sentence on standard error, exit code 2.
die() {
    echo "${0##*/}: $*" >&2
    exit 2
}
