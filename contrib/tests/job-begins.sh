# shellcheck shell=bash
# What jobs in the systemd of test-systemd.sh begin with; sourced by them. What fails ends the job,
# with the service's last words.
set -Eeux -o pipefail
failed() {
    set +x
    journalctl --no-pager --unit farblock.service | grep -v ':   ' | tail -n 20
    echo "line $1 failed: $2"
}
trap 'failed $LINENO "$BASH_COMMAND"' ERR
nqn=nqn.2026-11.org.example:disks
url="nvme+tcp://127.0.0.1/$nqn?ns=1"

# share MIB: what docs/guides/share.md says: a disk in /var/lib/farblock, and what is shared in
# /etc/farblock. So many MiB a second at most, and as many in all.
share() {
    mkdir -p /var/lib/farblock /etc/farblock
    truncate -s "$1M" /var/lib/farblock/disk.img
    cat >/etc/farblock/farblock.toml <<TOML
[[subsystems]]
nqn = "$nqn"
allow_any_host = true

[[subsystems.namespaces]]
path = "limit:$1MiB/s,/var/lib/farblock/disk.img"
TOML
    systemctl enable --now farblock.socket farblock.service
}

# What farblock-attach@data is to attach.
attach() {
    mkdir -p /etc/farblock/attach.d
    cat >/etc/farblock/attach.d/data.toml <<TOML
urls = ["$url"]
as = "fuse"
no-device = true
TOML
}

# The process of a unit; 0 if there is none.
process() {
    systemctl show --property MainPID --value "$1"
}

# How many writes the target has done.
writes() {
    farblock status --json | jq '.subsystems[0].writes'
}
