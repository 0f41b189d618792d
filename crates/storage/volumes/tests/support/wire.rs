//! A leg in memory for which the test determines how many writes succeed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use farblock_backends::mem::Mem;
use farblock_block::{
    Availability, BlockError, Change, Changes, Command, Completion, Geometry, Namespace, Op, Queue,
};
use farblock_reactor::{Reactor, TaskId};
use farblock_volumes::{LegSource, limits};

/// A power supply that several legs may share. It fails after a number of writes.
pub(crate) struct Power(AtomicI64, Changes, AtomicU64, AtomicBool);

impl Power {
    pub(crate) fn lasting(writes: i64) -> Arc<Power> {
        Arc::new(Power(
            AtomicI64::new(writes),
            Changes::new(),
            AtomicU64::new(0),
            AtomicBool::new(false),
        ))
    }

    pub(crate) fn lasts(&self, writes: i64) {
        self.0.store(writes, Ordering::SeqCst);
        self.1.tell(Change::Availability);
    }

    /// Simulates a power failure that is too short for the mirror to notice, and that loses
    /// unflushed data.
    pub(crate) fn blinks(&self) {
        self.1.tell(Change::Loss);
        self.lasts(i64::MAX);
    }

    /// Simulates that another process has replaced the target, too fast for the mirror to notice in
    /// another way.
    pub(crate) fn swaps(&self) {
        self.1.tell(Change::Contents);
    }

    pub(crate) fn fail_flush(&self) {
        self.2.store(1, Ordering::SeqCst);
    }

    /// Sets whether the caller of a failed flush gets no answer yet, although the leg has reported
    /// the failure.
    pub(crate) fn keeps_failure(&self, keeps: bool) {
        self.3.store(keeps, Ordering::SeqCst);
    }

    pub(crate) fn owes_flush(&self) -> bool {
        self.2.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn is_off(&self) -> bool {
        self.0.load(Ordering::SeqCst) <= 0
    }
}

pub(crate) struct Wired {
    name: String,
    inner: Arc<Mem>,
    power: Arc<Power>,
    /// The number of writes to the reserved part that fail.
    failing: Arc<AtomicU64>,
    /// The maximum number of blocks of a transfer; 0 means any number.
    max_blocks: u32,
}

impl Wired {
    pub(crate) fn new(name: &str, inner: &Arc<Mem>, power: &Arc<Power>) -> Wired {
        let (inner, power) = (Arc::clone(inner), Arc::clone(power));
        Wired { name: name.to_owned(), inner, power, failing: Arc::default(), max_blocks: 0 }
    }

    pub(crate) fn with_max_blocks(self, max_blocks: u32) -> Wired {
        Wired { max_blocks, ..self }
    }

    pub(crate) fn failing(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.failing)
    }
}

impl LegSource for Wired {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> Result<Arc<dyn Namespace>, String> {
        let (power, failing) = (Arc::clone(&self.power), Arc::clone(&self.failing));
        let (inner, max_blocks) = (Arc::clone(&self.inner), self.max_blocks);
        Ok(Arc::new(Line { inner, power, failing, max_blocks }))
    }
}

struct Line {
    inner: Arc<Mem>,
    power: Arc<Power>,
    failing: Arc<AtomicU64>,
    max_blocks: u32,
}

impl Namespace for Line {
    fn geometry(&self) -> Geometry {
        Geometry { max_blocks: self.max_blocks, ..self.inner.geometry() }
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn changes(&self) -> Option<&Changes> {
        Some(&self.power.1)
    }

    fn availability(&self) -> Availability {
        if self.power.is_off() { Availability::Waiting } else { Availability::Ready }
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let geometry = self.inner.geometry();
        let reserved = geometry.blocks - limits::RESERVED_BYTES / u64::from(geometry.block_size);
        Ok(Box::new(LineQueue {
            inner: self.inner.open(reactor, parent)?,
            power: Arc::clone(&self.power),
            failing: Arc::clone(&self.failing),
            reserved,
            held: Vec::new(),
            failed: Vec::new(),
            done: Vec::new(),
        }))
    }
}

struct LineQueue {
    inner: Box<dyn Queue>,
    power: Arc<Power>,
    failing: Arc<AtomicU64>,
    reserved: u64,
    held: Vec<Op>,
    failed: Vec<Completion>,
    done: Vec<Completion>,
}

impl Queue for LineQueue {
    fn submit(&mut self, op: Op) {
        if self.power.is_off() {
            return self.held.push(op);
        }
        if op.command == Command::Flush && self.power.2.swap(0, Ordering::SeqCst) > 0 {
            return self.failed.push(op.complete(Err(BlockError::WriteFailed)));
        }
        if op.command.writes() {
            let one_less = |left: u64| left.checked_sub(1);
            let (order, failing) = (Ordering::SeqCst, &self.failing);
            if op.lba >= self.reserved && failing.fetch_update(order, order, one_less).is_ok() {
                return self.done.push(op.complete(Err(BlockError::WriteFailed)));
            }
            self.power.0.fetch_sub(1, Ordering::SeqCst);
        }
        let is_write = op.command == Command::Write;
        self.inner.submit(op);
        if is_write {
            // The leg has all writes that were submitted while the power was on.
            self.inner.poll(&mut self.done);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if !self.power.is_off() {
            self.held.drain(..).for_each(|op| self.inner.submit(op));
        }
        if !self.power.3.load(Ordering::SeqCst) {
            done.append(&mut self.failed);
        }
        done.append(&mut self.done);
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.failed.len() + self.done.len() + self.inner.in_flight()
    }
}

impl Drop for LineQueue {
    fn drop(&mut self) {
        self.held.drain(..).for_each(|op| drop(op.abandon()));
    }
}
