//! Checks of many simultaneous operations, of several queues, and of dropped queues.

use farblock_random::Random;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use farblock_reactor::{Buffer, EngineKind, os};

use super::{Contents, Context, Driver, WAIT_LIMIT};
use crate::{Geometry, Namespace, Op};

/// The number of operations in flight at the same time.
const DEPTH: u32 = 128;
/// The number of blocks in each operation.
const STRIDE: u32 = 3;

/// Submits `DEPTH` writes of adjacent ranges from `first`, with tokens 0 to `DEPTH - 1`.
fn submit_writes(context: &mut Context<'_>, driver: &mut Driver, geometry: Geometry, first: u64) {
    for at in 0..DEPTH {
        let buffer = context.filled(geometry, STRIDE);
        let lba = first + u64::from(at * STRIDE);
        driver.submit(0, Op::write(lba, STRIDE, buffer, u64::from(at)));
    }
}

pub(super) fn full_depth_completes_once(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    submit_writes(context, &mut driver, geometry, 10);
    let done = driver.wait(0, DEPTH as usize);
    let mut model = vec![Vec::new(); DEPTH as usize];
    for done in done {
        assert_eq!(done.result, Ok(()));
        let data = done.buffer.expect("a write's buffer").to_vec();
        let slot = &mut model[done.token as usize];
        assert!(slot.is_empty(), "token {} completed twice", done.token);
        *slot = data;
    }
    let mut order: Vec<u32> = (0..DEPTH).collect();
    context.random.shuffle(&mut order);
    for at in order {
        let buffer = Buffer::new(geometry.bytes(STRIDE));
        driver.submit(0, Op::read(10 + u64::from(at * STRIDE), STRIDE, buffer, u64::from(at)));
    }
    let mut seen = vec![false; DEPTH as usize];
    for done in driver.wait(0, DEPTH as usize) {
        assert_eq!(done.result, Ok(()));
        let at = done.token as usize;
        assert!(!std::mem::replace(&mut seen[at], true), "token {at} completed twice");
        let read = done.buffer.expect("a read's buffer");
        context.expect(&read, &model[at], &format!("read {at} of many"));
    }
    assert_eq!(driver.queue(0).in_flight(), 0);
}

/// The usual load of a queue: the queue stays full, and each completion leads to a new operation.
pub(super) fn a_full_queue_completes_every_operation(context: &mut Context<'_>) {
    const OPERATIONS: u64 = 2000;
    const IN_FLIGHT: u64 = 32;
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let mut last = vec![Vec::new(); IN_FLIGHT as usize];
    let mut submitted = 0;
    let mut completed = 0;
    let mut free: Vec<u64> = (0..IN_FLIGHT).collect();
    while completed < OPERATIONS {
        while submitted < OPERATIONS
            && let Some(slot) = free.pop()
        {
            let expected: &mut Vec<u8> = &mut last[slot as usize];
            let op = if expected.is_empty() || context.random.within(0..2) == 0 {
                let buffer = context.filled(geometry, 8);
                *expected = buffer.to_vec();
                Op::write(slot * 8, 8, buffer, slot)
            } else {
                Op::read(slot * 8, 8, Buffer::new(geometry.bytes(8)), slot | 1 << 32)
            };
            driver.submit(0, op);
            submitted += 1;
        }
        let one = driver.wait_some(0);
        completed += one.len() as u64;
        for done in one {
            assert_eq!(done.result, Ok(()));
            let slot = done.token & 0xffff_ffff;
            if done.token != slot {
                let read = done.buffer.expect("a read's buffer");
                context.expect(&read, &last[slot as usize], &format!("slot {slot}"));
            }
            free.push(slot);
        }
    }
}

pub(super) fn in_flight_counts_outstanding_operations(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    assert_eq!(driver.queue(0).in_flight(), 0);
    for count in 1..=40 {
        let op = match count % 4 {
            0 => Op::flush(count),
            1 => Op::write(count, 1, context.filled(geometry, 1), count),
            2 => Op::read(u64::MAX, 1, Buffer::new(geometry.bytes(1)), count), // out of range
            _ => Op::read(0, 5, Buffer::new(geometry.bytes(5)), count),
        };
        driver.submit(0, op);
        assert_eq!(driver.queue(0).in_flight() as u64, count);
    }
    let mut left = 40;
    while left > 0 {
        left -= driver.wait_some(0).len();
        assert_eq!(driver.queue(0).in_flight(), left);
    }
}

pub(super) fn poll_without_completions_returns_nothing(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let mut driver = context.driver_of(&namespace);
    let mut done = Vec::new();
    driver.queue(0).poll(&mut done);
    driver.turn(Duration::ZERO);
    driver.queue(0).poll(&mut done);
    assert!(done.is_empty(), "completions without operations: {done:?}");
    // `poll` must append to `done` and keep the entries that are already there.
    done.push(Op::flush(77).complete(Ok(())));
    driver.must(0, Op::flush(1));
    driver.queue(0).poll(&mut done);
    assert_eq!(done.iter().map(|done| done.token).collect::<Vec<_>>(), [77]);
}

pub(super) fn queues_on_one_reactor_share_contents(context: &mut Context<'_>) {
    const QUEUES: usize = 4;
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = Driver::new(context.engine);
    for _ in 0..QUEUES {
        driver.open(&namespace);
    }
    let mut model = vec![Vec::new(); QUEUES];
    for (queue, data) in model.iter_mut().enumerate() {
        for at in 0..16 {
            let buffer = context.filled(geometry, 4);
            data.extend_from_slice(&buffer);
            let lba = (queue as u64 * 16 + at) * 4;
            driver.submit(queue, Op::write(lba, 4, buffer, queue as u64 * 100 + at));
        }
    }
    for queue in 0..QUEUES {
        assert_eq!(driver.queue(queue).in_flight(), 16);
        let mut tokens: Vec<u64> = driver.wait(queue, 16).iter().map(|done| done.token).collect();
        tokens.sort_unstable();
        let first = queue as u64 * 100;
        assert_eq!(
            tokens,
            (first..first + 16).collect::<Vec<_>>(),
            "the completions have tokens of another queue"
        );
    }
    for (queue, data) in model.iter().enumerate() {
        let reader = (queue + 1) % QUEUES;
        let read = driver.read(reader, geometry, queue as u64 * 64, 64);
        context.expect(&read, data, "blocks that another queue wrote");
    }
}

pub(super) fn queues_on_two_reactors_share_contents(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let contents = context.contents;
    let engine = context.engine;
    let meeting = Arc::new(Meeting::default());
    let seeds = [context.random.bits(), context.random.bits()];
    let work = |me: usize| {
        let namespace = Arc::clone(&namespace);
        let meeting = Arc::clone(&meeting);
        move || {
            let mut side = Side::new(&namespace, engine, seeds[me], me as u64);
            meeting.wait_for(2);
            side.write_all();
            meeting.wait_for(4);
            let other = Side::expected(namespace.geometry(), seeds[1 - me]);
            side.check(1 - me as u64, &other, contents);
        }
    };
    let spawn = |me| os::spawn(format!("side-{me}"), work(me)).expect("the thread starts");
    for thread in [spawn(0), spawn(1)] {
        thread.join().expect("one of two threads failed");
    }
}

/// A point where threads wait for each other: a barrier that also works in a simulation.
#[derive(Default)]
struct Meeting {
    arrivals: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    /// Reports an arrival, and waits until `count` threads have arrived in total.
    fn wait_for(&self, count: usize) {
        *self.arrivals.lock().expect("no holder panics") += 1;
        self.changed.notify_all();
        os::wait_while(&self.arrivals, &self.changed, WAIT_LIMIT, |arrivals| *arrivals < count);
    }
}

/// One of the two threads of a check with two reactors. Side 0 uses the even blocks, and side 1
/// uses the odd blocks.
struct Side {
    driver: Driver,
    geometry: Geometry,
    me: u64,
    data: Vec<u8>,
}

impl Side {
    const BLOCKS: u64 = 512;

    fn new(namespace: &Arc<dyn Namespace>, engine: EngineKind, seed: u64, me: u64) -> Side {
        let geometry = namespace.geometry();
        let driver = Driver::with(namespace, engine);
        Side { driver, geometry, me, data: Side::expected(geometry, seed) }
    }

    fn expected(geometry: Geometry, seed: u64) -> Vec<u8> {
        let mut data = vec![0; geometry.bytes(Side::BLOCKS as u32)];
        Random::new(seed).fill(&mut data);
        data
    }

    fn block(geometry: Geometry, data: &[u8], at: u64) -> &[u8] {
        &data[geometry.bytes(at as u32)..geometry.bytes(at as u32 + 1)]
    }

    fn write_all(&mut self) {
        for at in 0..Side::BLOCKS {
            let mut buffer = Buffer::new(self.geometry.bytes(1));
            buffer.copy_from_slice(Side::block(self.geometry, &self.data, at));
            self.driver.submit(0, Op::write(at * 2 + self.me, 1, buffer, at));
            if at % 64 == 63 {
                let done = self.driver.wait(0, 64);
                assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
            }
        }
    }

    fn check(&mut self, side: u64, data: &[u8], contents: Contents) {
        for at in 0..Side::BLOCKS {
            let read = self.driver.read(0, self.geometry, at * 2 + side, 1);
            let right = match contents {
                Contents::Kept => read == Side::block(self.geometry, data, at),
                Contents::Discarded => read.iter().all(|&byte| byte == 0),
            };
            assert!(right, "block {at} that another thread wrote is wrong");
        }
    }
}

pub(super) fn contents_outlive_a_queue(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let data = context.filled(geometry, 32).to_vec();
    let mut driver = context.driver_of(&namespace);
    driver.write(0, geometry, 99, &data);
    driver.close(0);
    let again = driver.open(&namespace);
    let read = driver.read(again, geometry, 99, 32);
    context.expect(&read, &data, "blocks that a closed queue wrote");
    drop(driver);
    let read = context.driver_of(&namespace).read(0, geometry, 99, 32);
    context.expect(&read, &data, "blocks that a queue on another reactor wrote");
}

pub(super) fn a_queue_can_be_dropped_in_flight(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    for turns in 0..3 {
        let mut driver = context.driver_of(&namespace);
        let other = driver.open(&namespace);
        let data = context.filled(geometry, 16).to_vec();
        driver.write(other, geometry, 0, &data);
        submit_writes(context, &mut driver, geometry, 16);
        driver.submit(0, Op::flush(1));
        driver.submit(0, Op::write_zeroes(2000, 3, true, 1));
        driver.submit(0, Op::read(0, 16, Buffer::new(geometry.bytes(16)), 1));
        for _ in 0..turns {
            driver.turn(Duration::ZERO);
        }
        driver.close(0);
        for _ in 0..10 {
            driver.turn(Duration::from_millis(1));
        }
        // The other queue must still work, and its blocks must be unchanged.
        let read = driver.read(other, geometry, 0, 16);
        context.expect(&read, &data, "blocks beside the blocks of a dropped queue");
        driver.must(other, Op::flush(1));
        let third = driver.open(&namespace);
        let read = driver.read(third, geometry, 0, 16);
        context.expect(&read, &data, "the same blocks through a third queue");
    }
}

pub(super) fn a_reactor_can_be_dropped_in_flight(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let data = context.filled(geometry, 16).to_vec();
    context.driver_of(&namespace).write(0, geometry, 0, &data);
    for turns in 0..3 {
        let mut driver = context.driver_of(&namespace);
        submit_writes(context, &mut driver, geometry, 16);
        for _ in 0..turns {
            driver.turn(Duration::ZERO);
        }
        drop(driver);
        let read = context.driver_of(&namespace).read(0, geometry, 0, 16);
        context.expect(&read, &data, "blocks beside the blocks of a dropped reactor");
    }
}
