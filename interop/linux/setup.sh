#!/bin/bash
# Prepares the Linux guest that guest.sh boots: a Debian kernel and an initramfs with the Linux
# kernel's own NVMe/TCP host and target, nvme-cli, fio and a few more tools.
#
#   setup.sh            about a minute the first time (100 MB of packages), then under a second
#   setup.sh --systemd  also prepares the disk of a guest that boots Debian's systemd, which takes
#                       half a minute more
#
# FARBLOCK_VM_KERNEL=backports makes this script and guest.sh use the newest kernel that Debian
# builds for the release, instead of the release's own.
#
# The script stores all files in FARBLOCK_VM_DIR (default ~/.cache/farblock-vm). Remove this folder
# to start over or to get newer packages. Root is needed only if this machine lacks a package, such
# as QEMU. The guest's packages come from apt's Debian mirror, through a private apt state: the
# machine's own apt configuration does not change.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR

suite=trixie # the Debian release that the guest is made of: its kernel is the 6.12 series
case $guest_kernel in
stable) release=$suite ;;
backports) release=$suite-backports ;;
*) die "FARBLOCK_VM_KERNEL is stable or backports, not $guest_kernel." ;;
esac
guest_packages=(
    linux-image-amd64 libc-bin bash busybox-static coreutils kmod util-linux iproute2
    nvme-cli fio e2fsprogs jq diffutils nbd-client open-iscsi dmsetup
    ktls-utils drbd-utils sg3-utils
    rdma-core ibverbs-providers libibverbs1 librdmacm1
)
# The packages for the disk of the guest that boots systemd. apt adds their dependencies, but not
# the essential packages of Debian.
systemd_packages=(
    systemd-sysv systemd udev dbus kmod libc-bin base-files base-passwd
    bash dash coreutils findutils grep sed mawk tar util-linux mount hostname procps
    lvm2 mdadm cryptsetup-bin dmsetup e2fsprogs fdisk nvme-cli
)
# command on this machine : Debian package that has it
needs=(qemu-system-x86_64:qemu-system-x86 cpio:cpio depmod:kmod xz:xz-utils zstd:zstd jq:jq)

say() { echo "setup.sh: $*"; }

# Prints the packages that this machine lacks.
missing_packages() {
    local need
    for need in "${needs[@]}"; do
        command -v "${need%%:*}" >/dev/null || echo "${need#*:}"
    done
}

require_debian() {
    if ! grep -qx 'ID=debian' /etc/os-release 2>/dev/null || ! command -v apt-get >/dev/null; then
        die "this script needs Debian 12 or later, because it takes packages through apt:" \
            "run it there (a container will do), then copy FARBLOCK_VM_DIR over."
    fi
    [ "$(dpkg --print-architecture)" = amd64 ] ||
        die "this script needs an amd64 machine, because it unpacks amd64 tools for the guest."
}

# Updates the package lists, to install packages and to find the machine's mirror.
refresh_lists() {
    [ -z "$(find /var/lib/apt/lists -name '*_Packages*' -print -quit 2>/dev/null)" ] || return 0
    [ "$(id -u)" = 0 ] ||
        die "apt has no package lists: run 'apt-get update' as root, then start this script again."
    say "apt has no package lists; running apt-get update"
    # Ignore an unreachable third-party source: the installation reports missing packages.
    apt-get update -qq || true
}

# Fails if apt would remove packages of this machine, such as a QEMU from another source.
refuse_removals() {
    local removed
    removed=$(LC_ALL=C apt-get -s install --no-install-recommends "$@" 2>/dev/null |
        awk '$1 == "Remv" { print $2 }' | paste -sd ' ')
    [ -z "$removed" ] ||
        die "apt would remove $removed to install $*: install a version of $* that fits" \
            "this machine's packages, or run this script in a container."
}

install_packages() {
    local packages
    mapfile -t packages < <(missing_packages)
    [ ${#packages[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] ||
        die "packages are missing: run 'apt-get install --no-install-recommends ${packages[*]}'" \
            "as root, then start this script again."
    refuse_removals "${packages[@]}"
    say "installing ${packages[*]}"
    local log=$vm_dir/install.log
    install_once() {
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq -y \
            install --no-remove --no-install-recommends "${packages[@]}" >"$log" 2>&1 </dev/null
    }
    # Old lists may name versions that the mirror no longer has.
    install_once || { apt-get update -qq || true; install_once; } || {
        tail -n 20 "$log" >&2
        die "apt-get could not install ${packages[*]}; its output is above."
    }
}

# unpack NAME PACKAGE...: downloads these packages and all their dependencies, whatever this machine
# has installed, and unpacks them into $vm_dir/NAME, once for each list of packages. Fails without a
# message if that folder is up to date.
unpack() {
    local name=$1
    shift
    local wanted="$release $*" folder=$vm_dir/$name
    [ "$(cat "$folder.stamp" 2>/dev/null)" != "$wanted" ] || return 1
    refresh_lists
    local mirror apt=$vm_dir/apt
    # shellcheck disable=SC2016 # apt expands the name
    mirror=$(apt-get indextargets --format '$(REPO_URI)' \
        'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
    [ -n "$mirror" ] || die "apt knows no Debian mirror: add one to its sources, then run" \
        "'apt-get update' and this script again."
    rm -rf "$folder" "$folder.stamp" "$apt"
    mkdir -p "$apt"/{lists,cache/archives}/partial "$folder"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" \
        >"$apt/sources.list"
    if [ "$release" != "$suite" ]; then
        sed "s/ $suite main/ $release main/" "$apt/sources.list" >"$apt/more.list"
        cat "$apt/more.list" >>"$apt/sources.list"
        printf 'Package: linux-*\nPin: release n=%s\nPin-Priority: 990\n' "$release" \
            >"$apt/preferences"
    fi
    : >"$apt/status" # nothing is installed, so every dependency is fetched
    local options=(
        -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status"
        -o Dir::Etc::preferences="$apt/preferences" -o Dir::Etc::preferencesparts=/dev/null
        -o Dir::Cache="$apt/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)"
        -o Acquire::Languages=none -o Acquire::Retries=3
    )
    say "downloading packages of the guest ($name)"
    { apt-get "${options[@]}" -q update &&
        apt-get "${options[@]}" -q -y --no-install-recommends --download-only \
            install "$@"; } >"$apt/log" 2>&1 </dev/null || {
        tail -n 20 "$apt/log" >&2
        die "the guest's packages could not be downloaded; apt's output is above."
    }
    say "unpacking them"
    # Debian has a merged /usr, but packages still contain files under both names.
    mkdir -p "$folder"/usr/{bin,sbin,lib,lib64}
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$folder/$name"; done
    for name in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$name" "$folder"; done
    rm -rf "$apt"
}

unpack_guest_root() {
    if unpack root "${guest_packages[@]}"; then
        extract_kernel
        echo "$release ${guest_packages[*]}" >"$vm_dir/root.stamp"
    fi
}

# The disk has the modules of the kernel that guest.sh boots.
make_systemd_disk() {
    require_debian
    unpack_guest_root
    if unpack systemd "${systemd_packages[@]}"; then
        echo "$release ${systemd_packages[*]}" >"$vm_dir/systemd.stamp"
    fi
    say "making the disk of the guest that boots systemd"
    "$linux_dir/systemd-disk.sh" "$vm_dir/systemd" "$vm_dir/root/usr/lib/modules" \
        "$systemd_disk.new"
    mv "$systemd_disk.new" "$systemd_disk"
    keep_newest 'systemd-*.ext4'
}

# Debian's kernel file is a loader with the compressed kernel inside. QEMU can start the ELF kernel
# directly, which saves seconds of decompression under emulation. Header fields (Linux boot
# protocol): 0x1f1 setup sectors, 0x248 offset and 0x24c length of the payload, whose last 4 bytes
# are a size.
extract_kernel() {
    local file setup_sectors payload_offset payload_length magic unpack
    # Newer packages have the kernel beside the modules.
    file=$(find "$vm_dir"/root/{boot,usr/lib/modules} -name 'vmlinuz*' | head -n 1)
    [ -n "$file" ] || die "the kernel package has no vmlinuz file in /boot or beside its modules."
    setup_sectors=$(od -An -tu1 -j $((0x1f1)) -N 1 "$file")
    read -r payload_offset payload_length < <(od -An -tu4 -j $((0x248)) -N 8 "$file")
    payload_offset=$(((setup_sectors + 1) * 512 + payload_offset))
    magic=$(od -An -tx1 -j "$payload_offset" -N 4 "$file" | tr -d ' ')
    case $magic in
    28b52ffd) unpack="zstd -dcq" ;;
    fd377a58) unpack="xz -dc --single-stream" ;;
    *) die "the kernel $file is compressed in a way this script does not know ($magic)." ;;
    esac
    head -c $((payload_offset + payload_length - 4)) "$file" |
        tail -c +$((payload_offset + 1)) | $unpack >"$kernel.new"
    [ "$(od -An -tx1 -N 4 "$kernel.new" | tr -d ' ')" = 7f454c46 ] ||
        die "the contents of $file are not an ELF kernel."
    mv "$kernel.new" "$kernel"
}

# Keeps the newest three images, because other checkouts of this project may use them.
keep_newest() {
    find "$vm_dir" -maxdepth 1 -name "$1" -printf '%T@ %p\n' | sort -rn |
        tail -n +4 | cut -d ' ' -f 2- | xargs -r rm -f --
}

is_ready() {
    [ -s "$image" ] && [ -s "$kernel" ] && { [ -z "$with_systemd" ] || [ -s "$systemd_disk" ]; }
}

main() {
    with_systemd=
    case ${1:-} in
    '') ;;
    --systemd) with_systemd=1 needs+=(mke2fs:e2fsprogs) ;;
    *) die "usage: setup.sh [--systemd]" ;;
    esac
    # First check the usual case, which is fast.
    if is_ready && [ -z "$(missing_packages)" ]; then
        say "ready: $image"
        return
    fi
    mkdir -p "$vm_dir"
    exec 9>"$vm_dir/lock"
    flock 9 # a second setup.sh waits here until the first setup.sh exits
    if [ -n "$(missing_packages)" ]; then
        require_debian
        refresh_lists
        install_packages
    fi
    if [ ! -s "$image" ] || [ ! -s "$kernel" ]; then
        require_debian
        unpack_guest_root
        say "building the guest's image"
        "$linux_dir/initramfs.sh" "$vm_dir/root" "$image.new"
        mv "$image.new" "$image"
        keep_newest 'image-*.cpio'
    fi
    [ -z "$with_systemd" ] || [ -s "$systemd_disk" ] || make_systemd_disk
    say "ready: $image"
}

main "$@"
