#!/bin/bash
# guest.sh JOB.sh [FILE...]: runs a bash script in a temporary Linux guest. Prints the script's
# output, and exits with its exit code. Run setup.sh once before.
#
# QEMU emulates the guest, so it needs neither /dev/kvm nor root. Use it to test behaviour, not
# speed. JOB may be - (standard input). FILEs and folders are copied into the job's working folder.
# '. /lib.sh' (guest/lib.sh) gives the job helpers. The guest reaches this machine's 127.0.0.1 as
# 10.0.2.2, and no other network.
#
# Environment:
#   FWD="14420:4420 ..."  this machine's 127.0.0.1:14420 leads to the guest's port 4420
#   TIMEOUT=300           seconds until guest.sh kills the guest
#   CPUS=2 MEM=1536       processors; memory in MiB
#   SHARE=FOLDER          a folder of this machine that the guest sees at /host
#   SYSTEMD=1             boots Debian's systemd from a disk (setup.sh --systemd). Changes of this
#                         disk are lost. The job must power the guest off ('systemctl poweroff').
#   CONSOLE=FILE          the file for the kernel's messages
#   QEMU_ARGS="..."       more arguments for QEMU
#   ACCEL=tcg,thread=single  QEMU's accelerator: 'kvm' is faster where it works
# Exit code: the job's own; 124 after TIMEOUT; 125 the guest died before the job ended; 2 misuse. On
# any failure, the kernel's last messages follow on standard error.
set -euo pipefail
. "$(dirname "$0")/place.sh"

[ $# -ge 1 ] || die "no job given; usage: guest.sh JOB.sh [FILE...]"
if [ ! -s "$image" ] || [ ! -s "$kernel" ]; then
    die "there is no guest image of this version of the scripts; run setup.sh first."
fi
job=$1
shift
timeout=${TIMEOUT:-300}

# The PID of QEMU; empty if QEMU does not run.
qemu=
scratch=$(mktemp -d "${TMPDIR:-/tmp}/farblock-guest.XXXXXX")
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

if [ "$job" = - ]; then
    job=$scratch/job
    cat >"$job"
fi
[ -r "$job" ] || die "there is no job $job."
console=${CONSOLE:-$scratch/console}
: >"$scratch/exit-code"

network=user,id=net,ipv6=off
for forward in ${FWD:-}; do
    network+=,hostfwd=tcp:127.0.0.1:${forward%%:*}-10.0.2.15:${forward##*:}
done
# Emulation is slow, so disable self-tests, mitigations and audit. 'quiet' still prints warnings.
# 'norandmaps' loads each program at the same address every time, so QEMU translates its code once.
command_line="console=ttyS0 quiet panic=-1 nokaslr mitigations=off audit=0 apparmor=0"
command_line+=" cryptomgr.notests=1 random.trust_cpu=on no_timer_check tsc=reliable"
command_line+=" rcupdate.rcu_expedited=1 lpj=4000000"
command_line+=" norandmaps"
# One thread runs all of the guest's processors. With one thread each, QEMU 7.2 sometimes still runs
# code that the kernel has patched, and the kernel dies ("Oops: int3").
# shellcheck disable=SC2054 # the commas are QEMU's
arguments=(
    -accel "${ACCEL:-tcg,thread=single}" -cpu max -machine q35,usb=off,vmport=off
    -nodefaults -no-user-config
    -smp "${CPUS:-2}" -m "${MEM:-1536}" -display none -no-reboot
    -kernel "$kernel" -initrd "$image"
    -chardev "file,id=console,path=$console" -serial chardev:console
    -chardev stdio,id=output,signal=off -serial chardev:output
    -chardev "file,id=code,path=$scratch/exit-code" -serial chardev:code
    -device isa-debug-exit,iobase=0x501,iosize=1 -device virtio-rng-pci
    -netdev "$network" -device virtio-net-pci,netdev=net,romfile=
    -fw_cfg "name=opt/farblock/job,file=$job"
)
if [ $# -gt 0 ]; then
    # Each FILE appears in the working folder under its own name.
    for file in "$@"; do
        [ -e "$file" ] || die "there is no file $file."
        tar -rf "$scratch/files.tar" -C "$(dirname "$file")" "$(basename "$file")"
    done
    arguments+=(-fw_cfg "name=opt/farblock/tar,file=$scratch/files.tar")
fi
if [ -n "${SHARE:-}" ]; then
    command_line+=" guest.share"
    arguments+=(-virtfs "local,path=$SHARE,mount_tag=share,security_model=none,multidevs=remap")
fi

if [ -n "${SYSTEMD:-}" ]; then
    [ -s "$systemd_disk" ] || die "there is no disk with systemd; run 'setup.sh --systemd' first."
    command_line+=" guest.systemd net.ifnames=0"
    # shellcheck disable=SC2054 # the commas are QEMU's
    arguments+=(-drive "file=$systemd_disk,format=raw,if=none,id=system,snapshot=on,cache=unsafe"
        -device virtio-blk-pci,drive=system)
fi

# shellcheck disable=SC2086 # QEMU_ARGS is a list of words
timeout -k 5 "$timeout" qemu-system-x86_64 "${arguments[@]}" -append "$command_line" \
    ${QEMU_ARGS:-} </dev/null &
qemu=$!
status=0
wait "$qemu" || status=$?
qemu=

code=$(tr -dc '0-9' <"$scratch/exit-code")
if [ "$status" = 124 ] || [ "$status" = 137 ]; then
    # A guest with systemd may have completed its job, but hang in its shutdown.
    code=124
    echo "guest.sh: the guest's job did not end within $timeout s." >&2
elif [ -z "$code" ]; then
    code=125
    echo "guest.sh: the guest died before the job ended." >&2
fi
if [ "$code" != 0 ] && [ -s "$console" ]; then
    echo "guest.sh: the kernel's last messages:" >&2
    tail -n 30 "$console" >&2
fi
exit "$code"
