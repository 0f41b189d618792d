# `make demo` and `make test` do all set-up. The other goals are parts of these two, except for the
# benchmarks: `make bench-peers` measures for hours.

CARGO ?= cargo

# The build profile of the product for the checks with real peers: optimized, or in `make test` the
# tests' profile, which shares all libraries with `make unit` (decision 38).
FARBLOCK_PROFILE ?= release
BUILT = target/$(FARBLOCK_PROFILE:dev=debug)
BINARY = $(BUILT)/farblock
PRODUCT = $(CARGO) build --profile $(FARBLOCK_PROFILE) --locked

.PHONY: demo test needs needs-of-whole packages build lint fix quick unit sanitize interop ceph spdk-rpc schemathesis package test-windows built-for-guests built-for-guests-and-windows bench-peers bench-fio bench-attach bench-counters bench-cost bench-network performance engines dashboard library released install uninstall header dist deb image

PREFIX ?= /usr/local

# Repeats a failed check with real peers once. If the check then passes, lists it as flaky.
AGAIN = contrib/again.sh

# Incremental builds cost time, and here a second build is rare. All goals must use the same setting
# as `make test`: otherwise cargo would build everything again.
test lint unit sanitize build released interop ceph test-windows built-for-guests built-for-guests-and-windows: export CARGO_INCREMENTAL = 0

# Debug information costs compile time (decision 38), and panics name their line without it. Only
# the sanitizers' reports need line tables.
test lint unit build released interop ceph test-windows built-for-guests built-for-guests-and-windows: export CARGO_PROFILE_DEV_DEBUG = 0
sanitize: export CARGO_PROFILE_DEV_DEBUG = line-tables-only

## Compares a local disk with the same disk over loopback. Builds only the measured crates.
demo: needs
	$(CARGO) build --release --locked -p farblock-measure
	target/release/farblock-bench --runtime 1 --ramp-time 0.25 --until-known

## Runs all checks: installs the packages that the tests need, then lints, and runs the tests and
## the checks with real peers. Does not make the optimized build that users get, which would compile
## all libraries once more (decision 38). Lints while it compiles: clippy-driver is rustc with
## clippy's lints, and `cargo clippy` would check all crates and libraries once more.
test: export FARBLOCK_PROFILE = dev
test: export RUSTC_WORKSPACE_WRAPPER = clippy-driver
test: export CLIPPY_ARGS = -Dwarnings__CLIPPY_HACKERY__
test:
	@contrib/needs.sh "$(CARGO)" --compiler-later
	@contrib/tests/lints.sh
	contrib/stages.sh $(MAKE) packages lint unit +released sanitize build engines \
		+built-for-guests-and-windows dashboard spdk-rpc schemathesis package interop ceph test-windows
	@echo "make test: all passed"

## Reports the programs that a build needs and this machine lacks.
needs:
	@contrib/needs.sh "$(CARGO)"

## Like `make needs`, and also reports protoc, which only the complete program needs.
needs-of-whole:
	@contrib/needs.sh "$(CARGO)" --whole

## Installs the Debian packages that the tests need. interop/linux/setup.sh downloads the guest's
## packages.
packages:
	interop/packages.sh

build: needs-of-whole
	$(PRODUCT) -p farblock

## Lints. The checks that take seconds run first. `make test` runs clippy later, with the builds.
## The tidy tests use the features of `make unit`, so that cargo builds them and their libraries
## once. The fuzz targets are only compiled, not linked, so libFuzzer is not built.
TIDY = $(patsubst crates/checks/tidy/tests/%.rs,--test %,$(wildcard crates/checks/tidy/tests/*.rs))
lint:
	contrib/tests/needs.sh
	contrib/tests/runners.sh
	$(CARGO) fmt --all --check
	$(CARGO) test --quiet $(EVERYTHING) $(TIDY)
	shellcheck --external-sources --source-path=SCRIPTDIR --severity=warning interop/*.sh interop/ceph/*.sh interop/linux/*.sh interop/linux/jobs/*.sh interop/linux/guest/*.sh interop/linux/systemd/job-begins \
		interop/windows/*.sh contrib/*.sh contrib/tests/*.sh contrib/git-hooks/* contrib/deb/scripts/* contrib/drbd/* contrib/pacemaker/* \
		engines/*.sh engines/fio/*.sh dashboard/*.sh crates/tools/fleet/src/guests/*.sh
	$(if $(RUSTC_WORKSPACE_WRAPPER),,$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings)
	CUSTOM_LIBFUZZER_PATH=/dev/null RUSTFLAGS="-D warnings" $(CARGO) check --manifest-path fuzz/Cargo.toml --target-dir target/fuzz

## Repairs formatting, and the lints that clippy can fix.
fix:
	$(CARGO) clippy --fix --allow-dirty --allow-staged --locked --workspace --all-targets --all-features
	$(CARGO) fmt --all

## Runs the tests of one crate: make quick CRATE=host. TEST=NAME selects tests with NAME in their
## name.
quick:
	$(CARGO) test --locked -p farblock-$(CRATE) -- $(TEST)

## Runs the tests of all crates, several programs at a time, since most tests mostly wait. Runs each
## bench once, built like the tests: an optimized build of the benches would take too long.
EVERYTHING = --locked --workspace --all-features
TESTS = $(CARGO) test $(EVERYTHING) --no-run --message-format json-render-diagnostics
unit:
	mkdir -p target
	$(TESTS) >target/suites.json
	$(TESTS) --bench pure >>target/suites.json
	FARBLOCK_NEED_URING=1 contrib/suites.py target/suites.json \
		--with "documentation=$(CARGO) test $(EVERYTHING) --doc --no-fail-fast"

## Tests mem, reactor, block and backends with AddressSanitizer, which finds use after free,
## overflows and leaks. Tests mem and reactor with ThreadSanitizer, which finds data races.
sanitize:
	contrib/sanitize.sh $(CARGO)

## Builds libfarblock, for C and for languages that can call C.
library: needs
	$(CARGO) build --release --locked -p farblock-capi

## Builds the program and libfarblock with the same features, so that cargo builds shared crates
## once.
released: needs-of-whole
	$(PRODUCT) -p farblock -p farblock-capi

## Installs the program, systemd's units, manual pages, completions and libfarblock, below PREFIX in
## DESTDIR.
install: released
	contrib/install.sh $(dir $(BINARY)) $(PREFIX)

uninstall:
	contrib/install.sh --uninstall $(PREFIX)

## Tests the packages and the installation of this build, as users have them.
package: released
	$(AGAIN) test-install contrib/test-install.sh $(dir $(BINARY))
	$(AGAIN) test-systemd contrib/test-systemd.sh $(dir $(BINARY))
	$(AGAIN) test-deb contrib/test-deb.sh $(dir $(BINARY))
	$(AGAIN) test-image contrib/test-image.sh $(dir $(BINARY))
	$(AGAIN) test-guides contrib/test-guides.sh $(dir $(BINARY))

## Generates engines/include/farblock.h. `make unit` fails if this file is out of date.
header:
	FARBLOCK_WRITE_HEADER=1 $(CARGO) test --locked -p farblock-capi header

## Tests the C library, the Python package and fio's engine with this build.
engines: released
	$(AGAIN) engines engines/test.sh $(dir $(BINARY))

## Tests the dashboard in Chromium. Checks that the committed page is built from the current
## sources.
dashboard: build
	$(AGAIN) dashboard dashboard/test.sh $(BINARY)

## Tests this build with the Linux kernel's host and target, in QEMU guests. A guest keeps one
## processor busy, so two guests run at a time, the longest jobs first. make prints a job's output
## at its end.
GUEST_EXAMPLES = nbd_kernel nbd_serve nvme_attach paths ublk_serve verbs_suite vhost_serve
GUESTS = rdma ublk run drbd vhost nbd iscsi ana auth tls concat steering ceph-multipath fence fleet reservations target-ana doctor swap nodes
interop: build built-for-guests
	interop/linux/setup.sh
	$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target $(GUESTS:%=guest-%)

## Builds the examples for the guests with the features of `make unit`, which shares these builds.
## An optimized build would compile all crates once more.
built-for-guests:
	$(CARGO) build $(EVERYTHING) $(GUEST_EXAMPLES:%=--example %)

EXAMPLES = target/debug/examples
guest-nbd guest-vhost guest-ublk: guest-%:
	$(AGAIN) guest-$* interop/linux/$*.sh $(BINARY) $(EXAMPLES)
guest-ana:
	$(AGAIN) guest-ana interop/linux/ana.sh $(EXAMPLES)/paths
guest-rdma:
	$(AGAIN) guest-rdma interop/linux/rdma.sh $(EXAMPLES)/verbs_suite $(BINARY)
guest-%:
	$(AGAIN) guest-$* interop/linux/$*.sh $(BINARY)

## Tests this build with images of a Ceph cluster of one OSD, on loopback.
ceph: build
	$(AGAIN) ceph interop/ceph/test.sh $(BINARY) $(CARGO)

## Tests this build with SPDK's own client, from the Python package index.
spdk-rpc: build
	$(AGAIN) spdk-rpc interop/spdk-rpc.sh $(BINARY)

## Tests the HTTP interface against its description, with schemathesis from the Python package
## index.
schemathesis: build
	$(AGAIN) schemathesis interop/schemathesis.sh $(BINARY)

## Builds farblock.exe, and runs it with Wine: the portable tests, and tests with this build in both
## directions.
test-windows: build
	interop/windows/test.sh $(BINARY)

built-for-guests-and-windows: built-for-guests
	FARBLOCK_WINDOWS_ONLY=build interop/windows/test.sh $(BINARY)

## Builds the release archives for Linux and Windows, with SHA256SUMS. The build is reproducible.
dist:
	contrib/dist.sh

## Makes the Debian package of this build, in target/dist.
deb: released
	contrib/deb.sh $(dir $(BINARY))

## Makes an OCI image of this build, in target/dist/farblock-oci.
image: build
	contrib/image.sh $(dir $(BINARY))

## Measures farblock, SPDK (FARBLOCK_SPDK=directory of a build), iSCSI, NBD and bare sockets.
## OPTIONS="--quick" measures less; see `target/release/xtask bench-peers --help`. Replaces the data
## files in DATA: with --only, set another directory.
DATA ?= docs/performance
bench-peers: build
	$(CARGO) build --release --locked -p xtask
	target/release/xtask bench-peers --data $(DATA) --json target/peers.json $(OPTIONS)

## Measures the six patterns with fio: farblock's engine and SPDK's plugin
## (FARBLOCK_SPDK=directory).
bench-fio: released
	$(CARGO) build --release --locked -p xtask
	engines/fio/build.sh $(dir $(BINARY))
	target/release/xtask bench-fio --data $(DATA) $(OPTIONS)

## Measures the ways to attach a disk: FUSE, a loop device, NBD.
bench-attach: build
	$(CARGO) build --release --locked -p xtask
	$(CARGO) build --release --locked -p farblock-attach --examples
	target/release/xtask bench-attach --data $(DATA) $(OPTIONS)

## Measures the cost of counters and histograms, with and without requests for them.
bench-counters: build
	$(CARGO) build --release --locked -p xtask
	target/release/xtask bench-counters --data $(DATA) $(OPTIONS)

## Measures the cost of limits, ANA, reservations and sets of disks, in use and not in use.
bench-cost: build
	$(CARGO) build --release --locked -p xtask
	target/release/xtask bench-cost --data $(DATA) $(OPTIONS)

## Measures a disk file locally, over loopback, and over a veth pair with added delay (needs root).
bench-network: build
	$(CARGO) build --release --locked -p xtask
	target/release/xtask bench-network --data $(DATA) $(OPTIONS)

## Generates the tables and charts of docs/performance.md from the data files in docs/performance.
performance:
	$(CARGO) run --quiet --locked -p xtask -- performance
