//! Namespaces that record the operations of the load generator.

#![allow(dead_code, reason = "no test uses all helpers")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farblock_block::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId};

/// The time at which a queue returns completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// At the first poll after the submission.
    AtOnce,
    /// After a poll of the event loop: all completions except for the oldest one, in reverse order.
    Later,
    Never,
}

/// The operations that a [`Fake`] has received, on all of its queues.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) queues: AtomicU64,
    pub(crate) ops: AtomicU64,
    /// The number of calls of `Queue::poll`.
    pub(crate) polls: AtomicU64,
    /// The maximum number of operations that one queue had in flight.
    pub(crate) deepest: AtomicU64,
    /// The number of operations by command and first block.
    pub(crate) addresses: Mutex<BTreeMap<(bool, u64), u64>>,
}

/// A namespace without data.
pub(crate) struct Fake {
    pub(crate) geometry: Geometry,
    pub(crate) when: When,
    pub(crate) seen: Arc<Seen>,
    /// Whether to record addresses, which allocates memory.
    pub(crate) keep_addresses: bool,
    /// A function that is called on the thread of the job when a queue is opened.
    pub(crate) on_open: fn(),
}

impl Fake {
    pub(crate) fn new(geometry: Geometry, when: When) -> Fake {
        Fake { geometry, when, seen: Arc::default(), keep_addresses: true, on_open: || {} }
    }
}

impl Namespace for Fake {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn describe(&self) -> String {
        "a fake disk".to_owned()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.seen.queues.fetch_add(1, Ordering::Relaxed);
        (self.on_open)();
        Ok(Box::new(FakeQueue {
            geometry: self.geometry,
            when: self.when,
            seen: Arc::clone(&self.seen),
            keep_addresses: self.keep_addresses,
            reactor: reactor.clone(),
            parent,
            pending: Vec::with_capacity(4096),
            asked: false,
        }))
    }
}

struct FakeQueue {
    geometry: Geometry,
    when: When,
    seen: Arc<Seen>,
    keep_addresses: bool,
    reactor: Reactor,
    parent: TaskId,
    pending: Vec<Op>,
    /// Whether the queue has requested another poll since the last completion.
    asked: bool,
}

impl Queue for FakeQueue {
    fn submit(&mut self, op: Op) {
        assert_eq!(op.check(&self.geometry), Ok(()), "an invalid operation was submitted");
        self.seen.ops.fetch_add(1, Ordering::Relaxed);
        if self.keep_addresses {
            let key = (op.command == Command::Write, op.lba);
            *self.seen.addresses.lock().unwrap().entry(key).or_default() += 1;
        }
        self.pending.push(op);
        self.seen.deepest.fetch_max(self.pending.len() as u64, Ordering::Relaxed);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.seen.polls.fetch_add(1, Ordering::Relaxed);
        match self.when {
            When::AtOnce => done.extend(self.pending.drain(..).map(|op| op.complete(Ok(())))),
            When::Never => {}
            When::Later if self.pending.is_empty() => {}
            When::Later if !self.asked => {
                self.reactor.notify(self.parent);
                self.asked = true;
            }
            When::Later => {
                self.asked = false;
                let keep = usize::from(self.pending.len() > 1);
                done.extend(self.pending.drain(keep..).rev().map(|op| op.complete(Ok(()))));
                self.poll_again();
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

impl FakeQueue {
    /// Requests another poll for the completions that the queue has not returned.
    fn poll_again(&mut self) {
        if !self.pending.is_empty() {
            self.reactor.notify(self.parent);
            self.asked = true;
        }
    }
}

impl Drop for FakeQueue {
    fn drop(&mut self) {
        self.pending.drain(..).for_each(|op| drop(op.abandon()));
    }
}
