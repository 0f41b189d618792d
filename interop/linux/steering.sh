#!/bin/bash
# steering.sh FARBLOCK: the kernel's host sees changes by 'farblock ctl', 'farblock reload' and
# SIGHUP without a rescan, while it writes to another namespace and reads back. A restart of the
# target is only a pause (jobs/steering.sh). FARBLOCK is the binary. Run setup.sh once before. Exit
# code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"
. "$(dirname "$0")/stand.sh"

[ $# = 1 ] || die "usage: steering.sh FARBLOCK"
farblock=$(realpath -- "$1")
stand
cd "$logs"

nqn=nqn.2026-11.org.farblock:steered
port=$(free_port)
echo "$port" >port
truncate -s 32M one.img
truncate -s 16M two.img
truncate -s 24M other.img

# configure [NSID PATH]: writes a configuration with the first namespace and an optional second.
configure() {
    {
        echo "listeners = [\"127.0.0.1:$port\"]"
        printf '[[subsystems]]\nnqn = "%s"\nallow_any_host = true\n' $nqn
        printf '[[subsystems.namespaces]]\nnsid = 1\npath = "one.img"\n'
        [ $# = 0 ] || printf '[[subsystems.namespaces]]\nnsid = %s\npath = "%s"\n' "$1" "$2"
    } >farblock.toml.new
    mv farblock.toml.new farblock.toml
}
# The commands that the guest may request by name.
ctl() { "$farblock" ctl --control "$logs/control" "$@"; }
add() { ctl add-namespace $nqn two.img --nsid 2; }
resize() { ctl resize $nqn 2 20MiB; }
read_only() { ctl read-only $nqn 2 "$1"; }
remove() { ctl remove-namespace $nqn 2; }
hide() { ctl visible-to $nqn 2 nqn.2026-11.org.farblock:another-host; }
show() { ctl visible-to $nqn 2 "$1"; }
grow() { truncate -s 40M other.img; }
reload() { configure "$@" && "$farblock" reload --control "$logs/control"; }
hangup() { configure "$@" && kill -HUP $server; }
restart() {
    kill $server
    wait $server
    serve again.log --config farblock.toml --control "$logs/control"
}
broken() { echo 'listeners = "' >farblock.toml && kill -HUP $server; }

configure
serve server.log --config farblock.toml --control "$logs/control"

answer_guest 400 "$linux_dir/jobs/steering.sh" port
if ! grep -q 'SIGHUP: nothing changed' server.log || grep -q panicked ./*.log; then
    cat server.log again.log >&2
    exit 1
fi
echo "steering.sh: all checks passed"
