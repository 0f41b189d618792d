# The two commands that do all set-up: `make demo` and `make test`. The rest is their parts, except
# for `make bench-peers`, which measures, for hours.

CARGO ?= cargo
BINARY = target/release/farblock

.PHONY: demo test needs packages build lint fix quick unit sanitize interop ceph spdk-rpc schemathesis package test-windows built-for-guests built-for-guests-and-windows bench-peers bench-fio bench-attach bench-counters bench-cost bench-network performance engines dashboard library released install uninstall header dist deb image

PREFIX ?= /usr/local

# A check of real peers that fails is repeated once; if it then passes, it is listed as flaky.
AGAIN = contrib/again.sh

# Without notes for a next build, which here rarely comes. With them it is another build, so each part
# by itself has to be as `make test` has it.
test lint unit sanitize interop ceph test-windows built-for-guests built-for-guests-and-windows: export CARGO_INCREMENTAL = 0

# Without debug information, which takes compilers time (decision 38): a panic names its line anyway.
# The sanitizers' reports need the lines.
test lint unit interop ceph test-windows built-for-guests built-for-guests-and-windows: export CARGO_PROFILE_DEV_DEBUG = 0
sanitize: export CARGO_PROFILE_DEV_DEBUG = line-tables-only

## Compares a disk with itself from afar: builds what is measured, and not the rest of farblock.
demo: needs
	$(CARGO) build --release --locked -p farblock-measure
	target/release/farblock-bench --runtime 1 --ramp-time 0.25 --until-known

## Everything: installs what the tests need, then lints, tests, and meets the real peers. Without
## link-time optimization, which takes as long as the rest of an optimized build (decision 38).
test: export CARGO_PROFILE_RELEASE_LTO = off
test:
	@contrib/needs.sh "$(CARGO)" --compiler-later
	contrib/stages.sh $(MAKE) packages +released lint unit sanitize build engines \
		+built-for-guests-and-windows dashboard spdk-rpc schemathesis package interop ceph test-windows
	@echo "make test: all passed"

## Says in a sentence what a build lacks, before anything is built.
needs:
	@contrib/needs.sh "$(CARGO)"

## Debian packages that the tests need (the guest's own are got by interop/linux/setup.sh).
packages:
	interop/packages.sh

build: needs
	$(CARGO) build --release --locked -p farblock

## The checks that take seconds run first. The tidy tests are built with the features that `make unit`
## uses, so they and their libraries are built once. Fuzz targets are compiled and not linked, so
## libFuzzer itself is not.
TIDY = $(patsubst crates/checks/tidy/tests/%.rs,--test %,$(wildcard crates/checks/tidy/tests/*.rs))
lint:
	contrib/tests/needs.sh
	$(CARGO) fmt --all --check
	$(CARGO) test --quiet $(EVERYTHING) $(TIDY)
	shellcheck --external-sources --source-path=SCRIPTDIR --severity=warning interop/*.sh interop/ceph/*.sh interop/linux/*.sh interop/linux/jobs/*.sh interop/linux/guest/*.sh interop/linux/systemd/job-begins \
		interop/windows/*.sh contrib/*.sh contrib/tests/*.sh contrib/git-hooks/* contrib/deb/scripts/* contrib/drbd/* contrib/pacemaker/* \
		engines/*.sh engines/fio/*.sh dashboard/*.sh crates/tools/fleet/src/guests/*.sh
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	CUSTOM_LIBFUZZER_PATH=/dev/null RUSTFLAGS="-D warnings" $(CARGO) check --manifest-path fuzz/Cargo.toml --target-dir target/fuzz

## Repairs what a program can repair: formatting, and what clippy knows how to change.
fix:
	$(CARGO) clippy --fix --allow-dirty --allow-staged --locked --workspace --all-targets --all-features
	$(CARGO) fmt --all

## The tests of one crate: make quick CRATE=host. TEST=NAME runs only the tests with NAME in their name.
quick:
	$(CARGO) test --locked -p farblock-$(CRATE) -- $(TEST)

## Every crate's tests; the programs side by side, since most of them wait most of the time. The
## benches run once each, built like the tests: an optimized build of their own takes as long as all
## suites of a crate.
EVERYTHING = --locked --workspace --all-features
TESTS = $(CARGO) test $(EVERYTHING) --no-run --message-format json-render-diagnostics
unit:
	mkdir -p target
	$(TESTS) >target/suites.json
	$(TESTS) --bench pure >>target/suites.json
	FARBLOCK_NEED_URING=1 contrib/suites.py target/suites.json \
		--with "documentation=$(CARGO) test $(EVERYTHING) --doc --no-fail-fast"

## mem, reactor, block and backends under AddressSanitizer, whose run-time Rust's toolchain has: what is
## freed and used, beyond its end, or never freed. mem and reactor under ThreadSanitizer: what two
## threads use at once.
sanitize:
	contrib/sanitize.sh $(CARGO)

## libfarblock, for C and what can call C.
library: needs
	$(CARGO) build --release --locked -p farblock-capi

## Both, with one set of features: what they share is built once.
released: needs
	$(CARGO) build --release --locked -p farblock -p farblock-capi

## Installs the program, systemd's units, manual pages, completions and libfarblock; DESTDIR= and
## PREFIX= say where.
install: released
	contrib/install.sh $(dir $(BINARY)) $(PREFIX)

uninstall:
	contrib/install.sh --uninstall $(PREFIX)

## What is installed, as users have it, of this build.
package: released
	$(AGAIN) test-install contrib/test-install.sh $(dir $(BINARY))
	$(AGAIN) test-systemd contrib/test-systemd.sh $(dir $(BINARY))
	$(AGAIN) test-deb contrib/test-deb.sh $(dir $(BINARY))
	$(AGAIN) test-image contrib/test-image.sh $(dir $(BINARY))
	$(AGAIN) test-guides contrib/test-guides.sh $(dir $(BINARY))

## Makes engines/include/farblock.h anew; `make unit` fails when it is out of date.
header:
	FARBLOCK_WRITE_HEADER=1 $(CARGO) test --locked -p farblock-capi header

## The C library, Python and fio's engine against this build.
engines: released
	$(AGAIN) engines engines/test.sh $(dir $(BINARY))

## The dashboard: that the page in the tree is what its sources give, and the page in Chromium.
dashboard: build
	$(AGAIN) dashboard dashboard/test.sh $(BINARY)

## The Linux kernel's host and target in guests, against this build. A guest keeps one processor
## busy, so two run at a time, the longest first; each one's output comes when it has ended.
GUEST_EXAMPLES = nbd_kernel nbd_serve nvme_attach paths ublk_serve verbs_suite vhost_serve
GUESTS = ublk run drbd vhost nbd iscsi ana auth tls concat steering ceph-multipath fence fleet reservations target-ana doctor swap nodes rdma
interop: build built-for-guests
	interop/linux/setup.sh
	$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target $(GUESTS:%=guest-%)

## As `make unit` builds them, with the features of tests: an optimized build of what they need would be
## one more of everything.
built-for-guests:
	$(CARGO) build $(EVERYTHING) $(GUEST_EXAMPLES:%=--example %)

EXAMPLES = target/debug/examples
guest-nbd guest-vhost guest-ublk: guest-%:
	$(AGAIN) guest-$* interop/linux/$*.sh $(BINARY) $(EXAMPLES)
guest-ana:
	$(AGAIN) guest-ana interop/linux/ana.sh $(EXAMPLES)/paths
guest-rdma:
	$(AGAIN) guest-rdma interop/linux/rdma.sh $(EXAMPLES)/verbs_suite
guest-%:
	$(AGAIN) guest-$* interop/linux/$*.sh $(BINARY)

## Images of a Ceph cluster on loopback, one OSD, against this build.
ceph: build
	$(AGAIN) ceph interop/ceph/test.sh $(BINARY) $(CARGO)

## SPDK's own client, from the Python package index, against this build.
spdk-rpc: build
	$(AGAIN) spdk-rpc interop/spdk-rpc.sh $(BINARY)

## The HTTP interface against its description, by schemathesis from the Python package index.
schemathesis: build
	$(AGAIN) schemathesis interop/schemathesis.sh $(BINARY)

## farblock.exe, built here and run by Wine: the portable tests, and against this build, both ways.
test-windows: build
	interop/windows/test.sh $(BINARY)

built-for-guests-and-windows: built-for-guests
	FARBLOCK_WINDOWS_ONLY=build interop/windows/test.sh $(BINARY)

## What people download, for Linux and Windows, with SHA256SUMS: the same bytes of the same commit.
dist:
	contrib/dist.sh

## The Debian package of this build, in target/dist.
deb: released
	contrib/deb.sh $(dir $(BINARY))

## An OCI image of this build, in target/dist/farblock-oci.
image: build
	contrib/image.sh $(dir $(BINARY))

## farblock, SPDK (FARBLOCK_SPDK=directory of a build), iSCSI, NBD and bare sockets side by side.
## OPTIONS="--quick" measures less; see `target/release/xtask bench-peers --help`. The data files go to
## DATA, in place of older ones: use another directory with --only.
DATA ?= docs/performance
bench-peers: build
	$(CARGO) build --release --locked -p xtask
	target/release/xtask bench-peers --data $(DATA) --json target/peers.json $(OPTIONS)

## The six patterns through fio: farblock's engine beside SPDK's plugin (FARBLOCK_SPDK=directory of a build).
bench-fio: released
	$(CARGO) build --release --locked -p xtask
	engines/fio/build.sh $(dir $(BINARY))
	target/release/xtask bench-fio --data $(DATA) $(OPTIONS)

## The ways to attach a disk beside each other: FUSE, a loop device, NBD.
bench-attach: build
	$(CARGO) build --release --locked -p xtask
	$(CARGO) build --release --locked -p farblock-attach --examples
	target/release/xtask bench-attach --data $(DATA) $(OPTIONS)

## What counters and histograms cost, asked for and not.
bench-counters: build
	$(CARGO) build --release --locked -p xtask
	target/release/xtask bench-counters --data $(DATA) $(OPTIONS)

## What limits, ANA, reservations and sets of disks cost, used and not.
bench-cost: build
	$(CARGO) build --release --locked -p xtask
	target/release/xtask bench-cost --data $(DATA) $(OPTIONS)

## A disk file locally, over loopback and across a veth pair, with time added on the way (root).
bench-network: build
	$(CARGO) build --release --locked -p xtask
	target/release/xtask bench-network --data $(DATA) $(OPTIONS)

## The tables and charts of docs/performance.md, from the data files in docs/performance.
performance:
	$(CARGO) run --quiet --locked -p xtask -- performance
