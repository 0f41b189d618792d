# shellcheck shell=bash
# Sourced by the jobs in test-systemd.sh's systemd. A failure ends the job, and prints the service's
# last log lines.
set -Eeux -o pipefail
failed() {
    set +x
    journalctl --no-pager --unit farblock.service | grep -v ':   ' | tail -n 20
    echo "line $1 failed: $2"
}
trap 'failed $LINENO "$BASH_COMMAND"' ERR
nqn=nqn.2026-11.org.example:disks
url="nvme+tcp://127.0.0.1/$nqn?ns=1"

# share MIB: makes a disk in /var/lib/farblock and its configuration in /etc/farblock, as in
# docs/guides/share.md. The disk has MIB MiB, and its limit is MIB MiB per second.
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

# Writes the file of farblock-attach@data.
attach() {
    mkdir -p /etc/farblock/attach.d
    cat >/etc/farblock/attach.d/data.toml <<TOML
urls = ["$url"]
as = "fuse"
no-device = true
TOML
}

# Prints the PID of a unit's process; 0 if there is none.
process() {
    systemctl show --property MainPID --value "$1"
}

# Prints the number of writes that the target has executed.
writes() {
    farblock status --json | jq '.subsystems[0].writes'
}
