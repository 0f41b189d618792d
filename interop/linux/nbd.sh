#!/bin/bash
# nbd.sh FARBLOCK FOLDER: farblock's NBD server and the Linux kernel's NBD client, in a guest.
# FARBLOCK is the program, FOLDER has nbd_serve and nbd_kernel (make built-for-guests).
#   1. servers on this machine, nbd-client in the guest;
#   2. servers in the guest, devices by netlink;
#   3. farblock attach --as nbd; each of its processes is killed under load.
# Runs setup.sh first. Prints each result. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
. "$(dirname "$0")/place.sh"

[ $# = 2 ] || die "usage: nbd.sh FARBLOCK FOLDER"
[ -x "$1" ] || die "there is no program $1; build farblock."
for program in nbd_serve nbd_kernel; do
    [ -x "$2/$program" ] || die "there is no $2/$program; make built-for-guests builds it."
done
farblock=$(realpath -- "$1")
programs=$(realpath -- "$2")

work=$(mktemp -d "${TMPDIR:-/tmp}/farblock-nbd.XXXXXX")
servers=() # process ids
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local code=$?
    trap - EXIT
    [ ${#servers[@]} = 0 ] || kill "${servers[@]}" 2>/dev/null || true
    wait
    if [ $code = 0 ]; then rm -rf "$work"; else echo "nbd.sh: the logs are in $work" >&2; fi
    exit $code
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

"$linux_dir/setup.sh"

# serve LABEL ARGUMENT...: starts a server of 64 MiB, and adds it to the file "targets".
serve() {
    local label=$1 try log=$work/$1.log port
    shift
    mkfifo "$work/$label.in"
    : >"$log" # The loop below reads this file at once.
    # Open for reading and writing, so that the server's input stays open while this script runs.
    "$programs/nbd_serve" mem:64MiB 127.0.0.1:0 --export disk --threads 2 "$@" \
        <>"$work/$label.in" >"$log" 2>&1 &
    servers+=($!)
    for ((try = 0; try < 100; try++)); do
        port=$(sed -n 's#^ready nbd://127.0.0.1:\([0-9]*\)/disk$#\1#p' "$log")
        [ -z "$port" ] || break
        sleep 0.1
    done
    [ -n "$port" ] || { cat "$log" >&2; echo "nbd.sh: the server $label is not ready" >&2; exit 1; }
    echo "$label $port $*" >>"$work/targets"
}
serve uring-512 --engine uring --block 512
serve portable-4096 --engine portable --block 4096
serve read-only --read-only

# Strip debug information, so that the copy to the guest takes less time.
strip -o "$work/nbd_kernel" "$programs/nbd_kernel"
# Copying a file into the guest is slow, so share this large program through SHARE instead.
mkdir "$work/share"
strip -o "$work/share/farblock" "$farblock"
SHARE=$work/share TIMEOUT=900 "$linux_dir/guest.sh" "$linux_dir/jobs/nbd.sh" \
    "$work/targets" "$work/nbd_kernel"

for label in uring-512 portable-4096 read-only; do
    echo >"$work/$label.in"
done
for server in "${servers[@]}"; do
    wait "$server" || { cat "$work"/*.log >&2; echo "nbd.sh: a server exited with an error" >&2; exit 1; }
done
servers=()
if grep -i panicked "$work"/*.log; then exit 1; fi
echo "nbd.sh: all checks passed"
