#!/usr/bin/env bash
# Installs the Debian packages that the tests need; says nothing and does nothing when they are there.
set -euo pipefail

needed=(gcc libc6-dev shellcheck jq e2fsprogs mount util-linux procps qemu-utils qemu-block-extra libiscsi-bin libnbd-bin fio fuse3
    g++ make pkg-config dpkg-dev zlib1g-dev python3 python3-venv systemd)
missing=()
for package in "${needed[@]}"; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' ||
        missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "packages.sh: install these with your package manager, then try again: ${missing[*]}" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "packages.sh: as root, run: apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "installing ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "${missing[@]}" >/dev/null
