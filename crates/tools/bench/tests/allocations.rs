//! A job does not allocate per I/O: a hundred times as many I/Os need the same number of
//! allocations.

mod namespaces;

use std::sync::Arc;
use std::time::Duration;

use farblock_bench::{Cancel, Pattern, Plan, Rw, Side, Silent, compare};
use farblock_block::{Geometry, Namespace};
use farblock_reactor::{Config, EngineKind};

use farblock_testkit::{Counting, allocations_marked, mark};
use namespaces::{Fake, When};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocations that vary with timing. For example, a channel may allocate for a
/// thread that waits at the start.
const STARTUP_NOISE: u64 = 16;

/// The number of allocations of two jobs with this number of I/Os each.
fn allocations(engine: EngineKind, when: When, max_blocks: u32, rw: Rw, ios: u64) -> u64 {
    let geometry = Geometry { max_blocks, ..Geometry::new(512, 80_000) };
    let mut fake = Fake::new(geometry, when);
    fake.keep_addresses = false;
    fake.on_open = mark;
    let plan = Plan {
        patterns: vec![Pattern::new(rw, 4096, 2, 16)],
        runtime: Duration::from_secs(3600),
        ramp: Duration::ZERO,
        io_size: Some(ios * 4096),
        max_jobs: Some(2),
        reactor: Config { engine, ..Config::default() },
        ..Plan::quick()
    };
    let namespace: Arc<dyn Namespace> = Arc::new(fake);
    let side = Side::new(namespace).scratch();
    let before = allocations_marked();
    let report =
        compare(&plan, Some(&side), None, &Cancel::new(), &mut Silent).expect("the benchmark runs");
    assert!(!report.has_errors());
    allocations_marked() - before
}

/// There is only one test here, because the counter covers the whole process.
#[test]
fn ios_allocate_nothing() {
    for engine in [EngineKind::Auto, EngineKind::Portable] {
        for when in [When::AtOnce, When::Later] {
            for (rw, max_blocks) in [(Rw::RandRead, 0), (Rw::RandRw, 0), (Rw::Write, 3)] {
                let few = allocations(engine, when, max_blocks, rw, 300);
                let many = allocations(engine, when, max_blocks, rw, 30_000);
                assert!(few > 0, "the counter counts nothing");
                let more = many.saturating_sub(few);
                let which = format!("{engine} {when:?} {rw} {max_blocks}");
                assert!(more <= STARTUP_NOISE, "{which}: {more} more for 59,400 more I/Os");
            }
        }
    }
}
