#!/usr/bin/env bash
# Installs the Debian packages that the tests need, and opens FUSE to all users. Prints nothing if
# all of this is already done.
set -euo pipefail

needed=(gcc libc6-dev shellcheck jq e2fsprogs mount util-linux procps qemu-utils qemu-block-extra
    libiscsi-bin tgt libnbd-bin fio fuse3 g++ make pkg-config dpkg-dev zlib1g-dev python3 python3-venv
    systemd zip mandoc fish zsh lintian skopeo umoci chromium fonts-dejavu-core prometheus
    curl iproute2 openssl gnutls-bin libwolfssl-dev ceph-mon ceph-osd ceph-common librbd1
    libibverbs-dev librdmacm-dev protobuf-compiler libprotobuf-dev etcd-server)

die() {
    echo "packages.sh: $*" >&2
    exit 1
}

look() {
    local package
    missing=()
    for package in "${needed[@]}"; do
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null |
            grep '^install ok installed' >/dev/null ||
            missing+=("$package")
    done
}

install() {
    [ "$(id -u)" = 0 ] || die "as root, run: apt-get install ${missing[*]}"
    echo "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "${missing[@]}" \
        >/dev/null
}

packages() {
    look
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        die "install these with your package manager, then try again: ${missing[*]}"
    install
    # qemu-block-extra removes a qemu-utils of another version, such as one from the backports.
    look
    [ ${#missing[@]} = 0 ] || install
    look
    [ ${#missing[@]} = 0 ] ||
        die "these cannot be installed together with the others: ${missing[*]}"
}

# A udev rule lets every user open the device. On a machine without udev only root can open it.
fuse() {
    local mode
    mode=$(stat --format=%a /dev/fuse) ||
        die "there is no /dev/fuse: load the kernel's module 'fuse'."
    [ "$mode" != 666 ] || return 0
    chmod 666 /dev/fuse 2>/dev/null || die "as root, run: chmod 666 /dev/fuse"
}

packages
fuse
