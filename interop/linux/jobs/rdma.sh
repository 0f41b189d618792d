# Guest job of rdma.sh: the suite of farblock's verbs over a soft-RoCE device. The file
# "verbs_suite" is the program.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR source=../guest/lib.sh
. /lib.sh

address=10.0.2.15

say "without a device"
refused "the suite without a device" "load the driver of the RDMA device" ./verbs_suite $address

say "with a device"
modprobe -a rdma_rxe rdma_ucm ib_uverbs
check "a soft-RoCE device" rdma link add rxe0 type rxe netdev eth0
eventually "the port of rxe0 is active" grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
RUST_BACKTRACE=1 ./verbs_suite $address || fail "the suite failed (above)"

say "leftover queue pairs"
rdma resource show | tee resources
equal "queue pairs of programs" 0 "$(rdma resource show qp | grep -c verbs_suite || true)"
say "done"
