//! After warm-up, I/O allocates no memory on any thread, from the host's queue to the disk and
//! back.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::conformance::Driver;
use farblock_block::{Namespace, Op};
use farblock_host::Disk;
use farblock_reactor::{Buffer, EngineKind};
use farblock_testkit::{Counting, allocations};
use rig::{BLOCK, any, engines, options, serve_as, url};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: usize = 8;
/// The bytes of one round, which takes some milliseconds. A round has at most [`MOST`] I/Os.
const ROUND_BYTES: usize = 8 << 20;
const MOST: usize = 300;
/// At least one of this many rounds must allocate no memory: then I/Os do not allocate. Some rounds
/// allocate because a list grows, or because another thread allocates about once a second.
const ROUNDS: usize = 50;

fn settle(engine: EngineKind, digests: bool) {
    let disk = Arc::new(Mem::new(BLOCK as u32, 64 << 20).expect("a size"));
    let target = serve_as(disk, "disk", &[any()], engine);
    let mut options = options(engine);
    options.connection.tcp.header_digest = digests;
    options.connection.tcp.data_digest = digests;
    let disk = Disk::connect(&[url(target.addresses()[0])], &options).expect("connected");
    let disk: Arc<dyn Namespace> = Arc::new(disk);
    let mut driver = Driver::with(&disk, engine);
    // These sizes cover every way in which data travel: copied, complete in one receive, in the
    // capsule but received directly, requested by the target, and in several chunks.
    for blocks in [1u32, 8, 32, 128, 256, 2048] {
        let bytes = blocks as usize * BLOCK;
        let total = MOST.min(ROUND_BYTES / bytes) as u64;
        let settles = |driver: &mut Driver, make: &dyn Fn(Buffer, u64) -> Op| {
            (0..ROUNDS).any(|_| driver.keep_busy(make, DEPTH, bytes, total, &allocations) == 0)
        };
        let write = |buffer, at: u64| Op::write(at * 7 % 100, blocks, buffer, at);
        let read = |buffer, at: u64| Op::read(at * 7 % 100, blocks, buffer, at);
        let what = format!("{engine}, digests {digests}, {blocks} blocks");
        assert!(settles(&mut driver, &write), "{what}: writes still allocate");
        assert!(settles(&mut driver, &read), "{what}: reads still allocate");
    }
}

/// A single test runs everything, since allocations of a parallel test would count as well.
#[test]
fn a_target_and_its_host_allocate_nothing_per_io() {
    for engine in engines() {
        for digests in [false, true] {
            settle(engine, digests);
        }
    }
}
