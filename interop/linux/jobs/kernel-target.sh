# Guest job: the Linux kernel's NVMe/TCP target for a host outside. On port 4420 it serves a
# subsystem with namespace 1 (512-byte blocks) and namespace 2 (4096-byte blocks), 32 MiB each, in
# memory.
# Prints READY when the target serves, and ends on request.
#
# Port 4499 takes one line per connection, so that the other side can compare with the kernel's view
# of the disks (bytes; multiples of 1 MiB):
#   sum NSID OFFSET LENGTH    answers the SHA-256 of these bytes
#   fill NSID OFFSET LENGTH   writes random bytes there and answers their SHA-256
#   stop                      ends the job
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

nqn=nqn.2024-01.farblock:kernel
memory_disk disk1 32 512
memory_disk disk2 32 4096
target_subsystem $nqn /dev/disk1 /dev/disk2
target_port 4420 $nqn

cat >/run/answer <<'A'
#!/bin/bash
. /lib.sh
read -r verb nsid offset length
case $verb in
fill)
    dd if=/dev/urandom of="/dev/disk$nsid" oflag=direct bs=1M seek=$((offset / 1048576)) \
        count=$((length / 1048576)) conv=notrunc 2>/dev/null
    sum_of "/dev/disk$nsid" "$offset" "$length"
    ;;
sum) sum_of "/dev/disk$nsid" "$offset" "$length" ;;
stop) touch /run/stop ;;
*) echo "no such verb: $verb" ;;
esac
A
chmod +x /run/answer
nc -ll -p 4499 -e /run/answer &

echo READY
until [ -e /run/stop ]; do sleep 0.1; done
if dmesg | grep -E 'nvmet.*(digest|error|fail|invalid|unexpected|bad)|WARNING:|BUG:' |
    grep -v -e 'invalid subsystem'; then
    fail "the kernel's target logged errors (above)"
fi
say "done"
