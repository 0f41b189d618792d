# The two commands that do all set-up: `make demo` and `make test`. The rest is their parts, except
# for `make bench-peers`, which measures, for hours.

CARGO ?= cargo
BINARY = target/release/farblock

.PHONY: demo test packages build lint unit sanitize fuzz-replay interop test-windows bench-peers bench-fio bench-attach engines library install header dist

PREFIX ?= /usr/local

## Builds farblock and compares a disk with itself from afar.
demo: build
	$(BINARY) bench

## Everything: installs what the tests need, then lints, tests, and meets the real peers.
test: packages lint unit sanitize engines interop test-windows
	@echo "make test: all passed"

## Debian packages that the tests need (the guest's own are got by interop/linux/setup.sh).
packages:
	interop/packages.sh

build:
	$(CARGO) build --release --locked -p farblock

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	shellcheck --external-sources --source-path=SCRIPTDIR --severity=warning interop/*.sh interop/linux/*.sh interop/linux/jobs/*.sh interop/linux/guest/*.sh \
		interop/windows/*.sh contrib/*.sh \
		engines/*.sh engines/fio/*.sh

unit:
	FARBLOCK_NEED_URING=1 $(CARGO) test --locked --workspace --all-features --no-fail-fast
	$(CARGO) bench --locked -p farblock-proto --benches -- --test

## Memory, loops and storage under AddressSanitizer, whose run-time Rust's toolchain has: what is freed
## and used, beyond its end, or never freed.
sanitize:
	contrib/sanitize.sh $(CARGO)

## libfarblock, for C and what can call C.
library:
	$(CARGO) build --release --locked -p farblock-capi

## Installs libfarblock, its header and its pkg-config file; DESTDIR= and PREFIX= say where.
install: library
	engines/install.sh $(dir $(BINARY)) $(PREFIX)

## Makes engines/include/farblock.h anew; `make unit` fails when it is out of date.
header:
	FARBLOCK_WRITE_HEADER=1 $(CARGO) test --locked -p farblock-capi header

## The C library, Python and fio's engine against this build.
engines: build library
	engines/test.sh $(dir $(BINARY))

## The Linux kernel's host and target in a guest, against this build.
interop: build
	interop/linux/run.sh $(BINARY)
	interop/linux/auth.sh $(BINARY)
	interop/linux/steering.sh $(BINARY)
	$(CARGO) build --release --locked -p farblock-attach --examples
	interop/linux/nbd.sh $(BINARY) $(dir $(BINARY))examples
	interop/linux/vhost.sh $(BINARY) $(dir $(BINARY))examples
	interop/linux/ublk.sh $(BINARY) $(dir $(BINARY))examples
	interop/linux/iscsi.sh $(BINARY)
	interop/linux/reservations.sh $(BINARY)
	$(CARGO) build --release --locked -p farblock-host --example paths
	interop/linux/ana.sh $(dir $(BINARY))examples/paths

## farblock.exe, built here and run by Wine: the portable tests, and against this build, both ways.
test-windows: build
	interop/windows/test.sh $(BINARY)

## What people download, for Linux and Windows, with SHA256SUMS: the same bytes of the same commit.
dist:
	contrib/dist.sh

## farblock, SPDK (FARBLOCK_SPDK=directory of a build), iSCSI, NBD and bare sockets side by side.
## OPTIONS="--quick --only mem-4k" measures less; see `target/release/xtask bench-peers --help`.
bench-peers: build
	$(CARGO) build --release --locked -p xtask
	target/release/xtask bench-peers --markdown docs/performance.md --json docs/performance.json $(OPTIONS)

## The six patterns through fio: farblock's engine beside SPDK's plugin (FARBLOCK_SPDK=directory of a build).
bench-fio: build library
	$(CARGO) build --release --locked -p xtask
	engines/fio/build.sh $(dir $(BINARY))
	target/release/xtask bench-fio --markdown docs/performance.md $(OPTIONS)

## The ways to attach a disk beside each other: FUSE, a loop device, NBD.
bench-attach: build
	$(CARGO) build --release --locked -p xtask
	$(CARGO) build --release --locked -p farblock-attach --examples
	target/release/xtask bench-attach --markdown docs/performance.md $(OPTIONS)
