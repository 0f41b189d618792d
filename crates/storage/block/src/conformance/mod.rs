//! The conformance suite: many small named checks of the [`Namespace`] contract.
//!
//! The test of a backend passes to the suite a function that creates a new namespace, and the
//! engine for the namespace:
//!
//! ```ignore
//! #[test]
//! fn conforms() {
//!     for &engine in EngineKind::HERE {
//!         conformance::run(&|block_size| Arc::new(Mem::new(block_size, MIN_BYTES)), engine);
//!     }
//! }
//! ```
//!
//! Each check runs on a new namespace with 512-byte blocks, and again with 4096-byte blocks. The
//! message of a failure contains the check, the engine, the block size and the seed. Set
//! `FARBLOCK_SEED` to this seed to repeat the run. An operation that does not complete within
//! [`WAIT_LIMIT`] is a failure, so the suite never hangs.

mod at_once;
mod changes;
mod driver;
mod limits;
mod model;
mod queues;
mod transfers;

use farblock_random::Random;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use farblock_reactor::{Buffer, EngineKind};

pub use changes::Growing;
pub use driver::Driver;

use crate::{Geometry, Namespace};

/// The smallest capacity of a namespace for the suite, in bytes.
pub const MIN_BYTES: u64 = 16 << 20;
/// The smallest [`Geometry::max_blocks`](crate::Geometry::max_blocks) that the suite supports,
/// except 0 (no limit).
pub const MIN_MAX_BLOCKS: u32 = 16;
/// The time limit for an operation.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Whether a namespace keeps written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Reads return the written data, as with every real disk.
    Kept,
    /// The namespace discards written data, and reads return zeroes, as with the null device. The
    /// suite then expects zeroes where it would otherwise expect written data.
    Discarded,
}

/// A function that creates a new namespace with the given block size in bytes.
pub type Make<'a> = &'a dyn Fn(u32) -> Arc<dyn Namespace>;

/// Runs all checks on writable namespaces of at least [`MIN_BYTES`] that keep written data.
pub fn run(make: Make<'_>, engine: EngineKind) {
    Suite::new(engine).run(make);
}

/// Runs the checks for a read-only namespace of at least [`MIN_BYTES`] with any contents.
pub fn run_read_only(make: Make<'_>, engine: EngineKind) {
    Suite::new(engine).run_read_only(make);
}

/// The suite with its options.
pub struct Suite {
    engine: EngineKind,
    contents: Contents,
    block_sizes: Vec<u32>,
    seed: u64,
}

type Check = (&'static str, fn(&mut Context<'_>));

const WRITABLE: &[Check] = &[
    ("the_geometry_is_valid", limits::the_geometry_is_valid),
    ("ranges_beyond_the_end_are_refused", limits::ranges_beyond_the_end_are_refused),
    ("operations_on_zero_blocks_succeed", limits::operations_on_zero_blocks_succeed),
    ("more_than_max_blocks_is_refused", limits::more_than_max_blocks_is_refused),
    ("a_write_changes_no_neighbour", transfers::a_write_changes_no_neighbour),
    ("the_first_and_last_block_are_usable", transfers::the_first_and_last_block_are_usable),
    ("odd_ranges_are_read_back", transfers::odd_ranges_are_read_back),
    ("large_transfers_are_read_back", transfers::large_transfers_are_read_back),
    ("a_buffer_may_have_any_address", transfers::a_buffer_may_have_any_address),
    ("completions_return_the_buffers", transfers::completions_return_the_buffers),
    ("completions_return_the_tokens", transfers::completions_return_the_tokens),
    ("write_zeroes_changes_only_its_range", transfers::write_zeroes_changes_only_its_range),
    ("large_ranges_become_zero", transfers::large_ranges_become_zero),
    ("deallocated_reads_are_stable", transfers::deallocated_reads_are_stable),
    ("flushes_complete_among_writes", transfers::flushes_complete_among_writes),
    ("durable_writes_are_read_back", transfers::durable_writes_are_read_back),
    ("borrowed_reads_do_not_change", at_once::borrowed_reads_do_not_change),
    ("borrowed_buffers_outlive_their_queue", at_once::borrowed_buffers_outlive_their_queue),
    ("inline_writes_are_read_back", at_once::inline_writes_are_read_back),
    ("immediate_operations_check_ranges", at_once::immediate_operations_check_ranges),
    ("random_transfers", model::random_transfers),
    ("random_commands", model::random_commands),
    ("full_depth_completes_once", queues::full_depth_completes_once),
    ("a_full_queue_completes_every_operation", queues::a_full_queue_completes_every_operation),
    ("in_flight_counts_outstanding_operations", queues::in_flight_counts_outstanding_operations),
    ("poll_without_completions_returns_nothing", queues::poll_without_completions_returns_nothing),
    ("queues_on_one_reactor_share_contents", queues::queues_on_one_reactor_share_contents),
    ("queues_on_two_reactors_share_contents", queues::queues_on_two_reactors_share_contents),
    ("contents_outlive_a_queue", queues::contents_outlive_a_queue),
    ("a_queue_can_be_dropped_in_flight", queues::a_queue_can_be_dropped_in_flight),
    ("a_reactor_can_be_dropped_in_flight", queues::a_reactor_can_be_dropped_in_flight),
    ("writes_do_not_notify_watchers", changes::writes_do_not_notify_watchers),
];

const READ_ONLY: &[Check] = &[
    ("the_geometry_is_valid", limits::the_geometry_is_valid),
    ("a_read_only_namespace_refuses_changes", limits::a_read_only_namespace_refuses_changes),
    ("a_read_only_namespace_can_be_read", limits::a_read_only_namespace_can_be_read),
    (
        "a_read_only_namespace_refuses_inline_writes",
        at_once::a_read_only_namespace_refuses_inline_writes,
    ),
];

impl Suite {
    /// Returns the default options. The namespace keeps written data, and blocks have 512 and 4096
    /// bytes. The seed is new each time unless `FARBLOCK_SEED` is set.
    pub fn new(engine: EngineKind) -> Suite {
        let block_sizes = vec![512, 4096];
        Suite { engine, contents: Contents::Kept, block_sizes, seed: fresh_seed() }
    }

    /// Sets whether the namespace keeps written data.
    pub fn contents(mut self, contents: Contents) -> Suite {
        self.contents = contents;
        self
    }

    /// Sets the block sizes with which the checks run, in bytes.
    pub fn block_sizes(mut self, sizes: &[u32]) -> Suite {
        self.block_sizes = sizes.to_vec();
        self
    }

    /// Runs all checks for a writable namespace.
    pub fn run(&self, make: Make<'_>) {
        self.run_checks(WRITABLE, make);
    }

    /// Runs the checks for a read-only namespace.
    pub fn run_read_only(&self, make: Make<'_>) {
        self.run_checks(READ_ONLY, make);
    }

    fn story(&self, name: &'static str, block_size: u32) -> Story<'_> {
        Story { name, suite: self, block_size }
    }

    fn run_checks(&self, checks: &[Check], make: Make<'_>) {
        for &block_size in &self.block_sizes {
            for &(name, check) in checks {
                let _story = self.story(name, block_size);
                let mut context = Context {
                    make,
                    engine: self.engine,
                    contents: self.contents,
                    block_size,
                    random: Random::new(self.seed),
                };
                check(&mut context);
            }
        }
    }
}

/// If the check panics, prints how to repeat it.
struct Story<'a> {
    name: &'static str,
    suite: &'a Suite,
    block_size: u32,
}

impl Drop for Story<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "conformance check {} failed: engine {}, {}-byte blocks, FARBLOCK_SEED={}",
                self.name, self.suite.engine, self.block_size, self.suite.seed
            );
        }
    }
}

fn fresh_seed() -> u64 {
    if let Ok(seed) = std::env::var("FARBLOCK_SEED") {
        return seed.parse().expect("FARBLOCK_SEED is not a number");
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}

/// The namespace factory, the engine, the options and the random numbers of a check.
struct Context<'a> {
    make: Make<'a>,
    engine: EngineKind,
    contents: Contents,
    block_size: u32,
    random: Random,
}

impl Context<'_> {
    fn namespace(&self) -> Arc<dyn Namespace> {
        let namespace = (self.make)(self.block_size);
        let capacity = namespace.geometry().capacity_bytes();
        assert!(capacity >= MIN_BYTES, "the suite needs {MIN_BYTES} bytes, not {capacity}");
        let limit = namespace.geometry().max_blocks;
        assert!(
            limit == 0 || limit >= MIN_MAX_BLOCKS,
            "a transfer limit of {limit} blocks is too small for the suite"
        );
        namespace
    }

    /// Creates one queue, which has number 0, on a new reactor.
    fn driver_of(&self, namespace: &Arc<dyn Namespace>) -> Driver {
        Driver::with(namespace, self.engine)
    }

    /// Creates a buffer of random bytes.
    fn filled(&mut self, geometry: Geometry, blocks: u32) -> Buffer {
        let mut buffer = Buffer::new(geometry.bytes(blocks));
        self.random.fill(&mut buffer);
        buffer
    }

    /// Compares read data with the written data. If the namespace discards writes, compares with
    /// zeroes.
    #[track_caller]
    fn expect(&self, read: &[u8], written: &[u8], place: &str) {
        assert_eq!(read.len(), written.len(), "length of {place}");
        let zeroes;
        let right = match self.contents {
            Contents::Kept => written,
            Contents::Discarded => {
                zeroes = vec![0; written.len()];
                &zeroes
            }
        };
        if read == right {
            return; // comparing each byte takes long without optimisation
        }
        if let Some(at) = (0..read.len()).find(|&at| read[at] != right[at]) {
            panic!("{place}: byte {at} reads {:#04x}, not {:#04x}", read[at], right[at]);
        }
    }
}
