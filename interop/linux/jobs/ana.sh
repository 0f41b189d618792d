# Guest job: the Linux kernel's target with one namespace on ports 4420 and 4421. The job changes
# the ports' ANA states, and removes and adds one port. Prints READY when the target serves.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

nqn=nqn.2024-01.farblock:kernel
memory_disk disk1 32 512
target_subsystem $nqn /dev/disk1
target_port 4420 $nqn
target_port 4421 $nqn

access() {
    echo "$2" >"$configfs/nvmet/ports/$1/ana_groups/1/ana_state"
    say "port $1 is $2"
}

access 4421 non-optimized
echo READY
sleep 4
access 4420 inaccessible
sleep 2
access 4421 optimized
sleep 2
say "both paths change"
access 4421 change
sleep 1
access 4420 non-optimized
sleep 2
access 4421 optimized
access 4420 optimized
sleep 2
say "port 4420 goes away"
rm "$configfs/nvmet/ports/4420/subsystems/$nqn"
sleep 3
ln -s "$configfs/nvmet/subsystems/$nqn" "$configfs/nvmet/ports/4420/subsystems/$nqn"
say "port 4420 is back"
sleep 12
say "done"
