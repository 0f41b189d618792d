# shellcheck shell=bash
# A node of fence.sh, whose name is in the file "node". Its kernel's host connects to the target at
# 10.0.2.2, at the port in the file "port"; then it runs the requested commands.
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh
# shellcheck source=asked.sh
. ./asked.sh

nqn=nqn.2026-11.org.farblock:fenced
read -r node <node
read -r port <port
hostname "$node"
modprobe nvme-tcp
id=${node}0000000-1111-4222-8333-444444444444
check "$node connects" nvme connect -t tcp -a 10.0.2.2 -s "$port" -n $nqn -i 2 --hostid="$id" \
    --hostnqn="nqn.2014-08.org.nvmexpress:uuid:$id" --reconnect-delay=1
eventually "$node has the disk" find_namespace $nqn 1
[ "$found" = /dev/nvme0n1 ] || fail "the disk is $found"
cp fence_nvme_resv /usr/bin/

# fill BYTE: fills the whole disk with this byte, with 16 writes in flight.
cat >/usr/bin/fill <<'END'
#!/bin/bash
exec fio --name=fill --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite \
    --bs=64k --buffer_pattern="$1" --minimal
END
# keep_filling BYTE: fills the disk repeatedly until the target refuses a write, then creates
# /run/refused.
cat >/usr/bin/keep_filling <<'END'
#!/bin/bash
rm -f /run/refused
while said=$(fill "$1" 2>&1); do echo >>/run/filled; done
echo "$said" >/run/refused
END
chmod +x /usr/bin/fill /usr/bin/keep_filling
do_what_is_asked
