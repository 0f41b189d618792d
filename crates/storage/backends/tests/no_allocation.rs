//! Tests that operations do not allocate after warm-up.
//!
//! Counts allocations on the thread that submits and polls, which is the data path. Does not count
//! the allocations of the portable engine's file threads.

mod support;

use std::sync::Arc;

use farblock_backends::file::FileOptions;
use farblock_backends::mem::Mem;
use farblock_backends::null::Null;
use farblock_backends::stripe::Stripe;
use farblock_block::{Completion, Namespace, Op, Queue};
use farblock_reactor::{Buffer, Config, EngineKind, Reactor, TaskId};
use farblock_testkit::{Counting, allocations_here};
use support::{Dir, on_both_engines};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: u64 = 32;
const BLOCKS: u32 = 8;

struct Load {
    queue: Box<dyn Queue>,
    reactor: Reactor,
    ready: Vec<TaskId>,
    done: Vec<Completion>,
    buffers: Vec<Buffer>,
}

impl Load {
    fn new(namespace: &dyn Namespace, engine: EngineKind, skew: usize) -> Load {
        let reactor = Reactor::new(&Config { engine, ..Config::default() }).unwrap();
        let task = reactor.add_task();
        let queue = namespace.open(&reactor, task).unwrap();
        let length = namespace.geometry().bytes(BLOCKS);
        let buffer = |_| {
            let mut buffer = Buffer::new(skew + length);
            buffer.split_to(skew);
            buffer
        };
        let buffers = (0..DEPTH).map(buffer).collect();
        Load { queue, reactor, ready: Vec::new(), done: Vec::new(), buffers }
    }

    /// Submits operations up to the full queue depth, and waits for all completions.
    fn round(&mut self, round: u64) {
        for at in 0..DEPTH {
            let buffer = self.buffers.pop().expect("a buffer per operation");
            let lba = at * u64::from(BLOCKS) + round % 3;
            self.queue.submit(match (at + round) % 4 {
                0 | 1 => Op::read(lba, BLOCKS, buffer, at),
                _ => Op::write(lba, BLOCKS, buffer, at),
            });
        }
        self.queue.submit(Op::flush(DEPTH));
        self.queue.submit(Op::write_zeroes(2000, 8, true, DEPTH + 1));
        self.queue.submit(Op::deallocate(2000, 8, DEPTH + 1));
        while self.queue.in_flight() > 0 {
            self.queue.poll(&mut self.done);
            for done in self.done.drain(..) {
                assert_eq!(done.result, Ok(()));
                self.buffers.extend(done.buffer);
            }
            if self.queue.in_flight() > 0 {
                self.reactor.poll(None, &mut self.ready).unwrap();
                self.ready.clear();
            }
        }
    }
}

fn check(namespace: &dyn Namespace, engine: EngineKind, skew: usize) {
    let mut load = Load::new(namespace, engine, skew);
    // A vector grows when a batch of completions is larger than all batches before. So the test
    // fails only if every round allocates.
    let counts = [(); 8].map(|()| {
        let before = allocations_here();
        (0..100).for_each(|round| load.round(round));
        allocations_here() - before
    });
    let what = namespace.describe();
    assert!(counts.contains(&0), "all rounds of 3500 operations on {what} allocated: {counts:?}");
}

on_both_engines! {
    null(engine) {
        check(&Null::new(512, 16 << 20).unwrap(), engine, 0);
    }

    memory(engine) {
        check(&Mem::new(512, 16 << 20).unwrap(), engine, 0);
    }

    file_with_direct_io(engine) {
        check(&Dir::new().disk(16 << 20, &FileOptions::new(512)), engine, 0);
    }

    file_with_unaligned_buffers(engine) {
        check(&Dir::new().disk(16 << 20, &FileOptions::new(512)), engine, 72);
    }

    file_through_the_page_cache(engine) {
        check(&Dir::new().disk(16 << 20, &FileOptions::new(512).buffered()), engine, 0);
    }

    stripe(engine) {
        let mem = || Arc::new(Mem::new(512, 16 << 20).unwrap()) as Arc<dyn Namespace>;
        check(&Stripe::new(vec![mem(), mem(), mem()], 1024).unwrap(), engine, 0);
    }
}
