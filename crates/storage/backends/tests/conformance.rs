//! Runs the conformance suite for every backend and decorator, on both engines.

mod support;

use std::sync::Arc;
use std::time::Duration;

use farblock_backends::concat::Concat;
use farblock_backends::delay::Delay;
use farblock_backends::fault::{Fault, Rule};
use farblock_backends::file::{FileDisk, FileOptions};
use farblock_backends::limit::Limit;
use farblock_backends::mem::Mem;
use farblock_backends::null::Null;
use farblock_backends::range::Range;
use farblock_backends::stripe::Stripe;
use farblock_block::conformance::{self, Contents, Growing, MIN_BYTES, Suite};
use farblock_block::{BlockError, Namespace};
use farblock_reactor::EngineKind;
use support::{Capped, Dir, on_both_engines};

type Decorate = fn(Arc<dyn Namespace>) -> Arc<dyn Namespace>;

fn mem(block_size: u32, bytes: u64) -> Arc<dyn Namespace> {
    Arc::new(Mem::new(block_size, bytes).unwrap())
}

fn stripe(
    children: usize,
    chunk_bytes: u64,
    make: impl Fn(usize) -> Arc<dyn Namespace>,
) -> Arc<dyn Namespace> {
    Arc::new(Stripe::new((0..children).map(make).collect(), chunk_bytes).unwrap())
}

on_both_engines! {
    null(engine) {
        let make = |block_size| Arc::new(Null::new(block_size, MIN_BYTES).unwrap()) as Arc<_>;
        Suite::new(engine).contents(Contents::Discarded).run(&make);
        let make =
            |block_size| Arc::new(Null::new(block_size, MIN_BYTES).unwrap().read_only()) as Arc<_>;
        conformance::run_read_only(&make, engine);
    }

    memory(engine) {
        conformance::run(&|block_size| mem(block_size, MIN_BYTES), engine);
        let sizes = [1024, 8192];
        Suite::new(engine).block_sizes(&sizes).run(&|block_size| mem(block_size, 1 << 40));
        let make =
            |block_size| Arc::new(Mem::new(block_size, MIN_BYTES).unwrap().read_only()) as Arc<_>;
        conformance::run_read_only(&make, engine);
    }

    file_with_direct_io(engine) {
        let dir = Dir::new();
        let make = |block_size| {
            let disk = dir.disk(MIN_BYTES, &FileOptions::new(block_size));
            assert!(disk.is_direct(), "the build directory has no direct I/O: {}", disk.describe());
            Arc::new(disk) as Arc<_>
        };
        conformance::run(&make, engine);
    }

    file_through_the_page_cache(engine) {
        let dir = Dir::new();
        let make = |block_size| {
            let disk = dir.disk(MIN_BYTES, &FileOptions::new(block_size).buffered());
            assert!(!disk.is_direct());
            Arc::new(disk) as Arc<_>
        };
        conformance::run(&make, engine);
    }

    growing_file(engine) {
        let dir = Dir::new();
        let decorators: [Decorate; 4] = [
            |disk| disk,
            |disk| Arc::new(Delay::new(disk, Duration::ZERO)),
            |disk| Arc::new(Stripe::new(vec![disk], 64 << 10).unwrap()),
            |disk| Arc::new(Concat::new(vec![disk]).unwrap()),
        ];
        for decorate in decorators {
            Suite::new(engine).run_growing(&|block_size| {
                let path = dir.file(MIN_BYTES);
                let disk = FileDisk::open(&path, &FileOptions::new(block_size)).unwrap();
                let grow = move |blocks| {
                    let file = std::fs::File::options().write(true).open(&path).unwrap();
                    file.set_len(blocks * u64::from(block_size)).unwrap();
                };
                Growing { namespace: decorate(Arc::new(disk)), grow: Box::new(grow) }
            });
        }
    }

    file_read_only(engine) {
        let dir = Dir::new();
        let path = dir.noise(MIN_BYTES);
        let make = |block_size| {
            Arc::new(FileDisk::open(&path, &FileOptions::new(block_size).read_only()).unwrap())
                as Arc<_>
        };
        conformance::run_read_only(&make, engine);
    }

    stripe_of_memory(engine) {
        for (children, chunk_bytes) in [(1, 65536), (2, 65536), (3, 4096), (5, 12288)] {
            let make = |block_size| {
                // The first disk is larger. The stripe set does not use the excess.
                stripe(children, chunk_bytes, |child| {
                    mem(block_size, MIN_BYTES + if child == 0 { 8192 } else { 0 })
                })
            };
            conformance::run(&make, engine);
        }
    }

    stripe_of_files(engine) {
        let dir = Dir::new();
        let make = |block_size| {
            stripe(2, 65536, |_| {
                Arc::new(dir.disk(MIN_BYTES / 2, &FileOptions::new(block_size)))
            })
        };
        conformance::run(&make, engine);
        let make = |block_size| {
            stripe(2, 65536, |_| {
                let path = dir.noise(MIN_BYTES / 2);
                let options = FileOptions::new(block_size).read_only();
                Arc::new(FileDisk::open(path, &options).unwrap())
            })
        };
        conformance::run_read_only(&make, engine);
    }

    stripe_of_disks_with_a_limit_per_operation(engine) {
        let make = |block_size| {
            stripe(2, 65536, |_| Arc::new(Capped::new(mem(block_size, MIN_BYTES), 5)))
        };
        conformance::run(&make, engine);
    }

    stripe_of_stripes(engine) {
        let make = |block_size| {
            stripe(2, 65536, |_| {
                stripe(3, 8192, |_| mem(block_size, MIN_BYTES / 2))
            })
        };
        conformance::run(&make, engine);
    }

    concatenation(engine) {
        let part = |block_size, part: u64| mem(block_size, MIN_BYTES / 4 * part);
        let make = |block_size| {
            let capped = Arc::new(Capped::new(part(block_size, 1), 5)) as Arc<dyn Namespace>;
            let parts = vec![capped, part(block_size, 2), part(block_size, 1)];
            Arc::new(Concat::new(parts).unwrap()) as Arc<dyn Namespace>
        };
        conformance::run(&make, engine);
        let make = |block_size| {
            let fixed = Mem::new(block_size, MIN_BYTES).unwrap().read_only();
            let parts: Vec<Arc<dyn Namespace>> = vec![part(block_size, 1), Arc::new(fixed)];
            Arc::new(Concat::new(parts).unwrap()) as Arc<dyn Namespace>
        };
        conformance::run_read_only(&make, engine);
    }

    range(engine) {
        let make = |block_size| {
            let whole = mem(block_size, 3 * MIN_BYTES);
            Arc::new(Range::new(whole, MIN_BYTES, MIN_BYTES).unwrap()) as Arc<dyn Namespace>
        };
        conformance::run(&make, engine);
        let make = |block_size| {
            Arc::new(Range::read_only(mem(block_size, MIN_BYTES))) as Arc<dyn Namespace>
        };
        conformance::run_read_only(&make, engine);
    }

    disk_with_a_limit_per_operation(engine) {
        let make = |block_size| {
            Arc::new(Capped::new(mem(block_size, MIN_BYTES), 16)) as Arc<dyn Namespace>
        };
        conformance::run(&make, engine);
    }

    delay(engine) {
        let make = |block_size| {
            let delay = Delay::new(mem(block_size, MIN_BYTES), Duration::from_micros(10));
            Arc::new(delay.jitter(Duration::from_micros(50), 7)) as Arc<_>
        };
        conformance::run(&make, engine);
    }

    fault_without_faults(engine) {
        let make = |block_size| {
            let rules = vec![Rule::new(BlockError::Aborted)];
            let fault = Fault::new(mem(block_size, MIN_BYTES), rules, 1);
            fault.set_enabled(false);
            Arc::new(fault) as Arc<_>
        };
        conformance::run(&make, engine);
    }

    limit(engine) {
        let dir = Dir::new();
        let make = |block_size| {
            let disk = dir.disk(MIN_BYTES, &FileOptions::new(block_size));
            let limit = Limit::new(Arc::new(disk)).ops_per_second(20_000);
            Arc::new(limit.bytes_per_second(2 << 30).burst(Duration::from_millis(1))) as Arc<_>
        };
        conformance::run(&make, engine);
    }
}

/// Runs each check in a simulation, on simulated files.
#[test]
fn a_simulated_file_conforms() {
    use farblock_reactor::sim::World;
    for seed in 0..2 {
        let world = World::enter(seed);
        let make = |block_size| {
            let medium = world.disk(MIN_BYTES as usize);
            let blocks = MIN_BYTES / u64::from(block_size);
            Arc::new(FileDisk::simulated(medium, block_size, blocks)) as Arc<_>
        };
        conformance::run(&make, EngineKind::Sim);
    }
}

#[test]
fn two_engines_share_a_namespace() {
    let namespace = mem(512, MIN_BYTES);
    let mut one = conformance::Driver::with(&namespace, EngineKind::Portable);
    let mut other = conformance::Driver::with(&namespace, EngineKind::HERE[0]);
    one.write(0, namespace.geometry(), 7, &[9; 1024]);
    assert_eq!(other.read(0, namespace.geometry(), 7, 2), [9; 1024]);
}
