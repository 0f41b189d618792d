//! A decorator that delays the completions of any namespace.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as MemoryOrder};
use std::time::{Duration, Instant};

use farblock_block::{
    Availability, BlockError, Changes, Completion, Geometry, Namespace, Op, Part, Queue,
};
use farblock_reactor::{Event, Reactor, TaskId};

use farblock_random::Random;

/// A namespace that returns each completion late: `fixed` plus a random time of up to `jitter`.
///
/// The delay starts when the inner namespace has completed the operation. Jitter can reorder
/// completions. The seed determines one sequence of delays. Each completion of any queue takes the
/// next delay from it.
pub struct Delay {
    inner: Arc<dyn Namespace>,
    fixed: Duration,
    jitter: Duration,
    dice: Arc<Dice>,
}

struct Dice {
    seed: u64,
    rolled: AtomicU64,
}

impl Delay {
    /// Returns a namespace that delays every completion by `fixed`.
    pub fn new(inner: Arc<dyn Namespace>, fixed: Duration) -> Delay {
        let dice = Arc::new(Dice { seed: 0, rolled: AtomicU64::new(0) });
        Delay { inner, fixed, jitter: Duration::ZERO, dice }
    }

    /// Adds a random delay of up to `jitter`, evenly distributed, to the fixed delay.
    pub fn jitter(mut self, jitter: Duration, seed: u64) -> Delay {
        self.jitter = jitter;
        self.dice = Arc::new(Dice { seed, rolled: AtomicU64::new(0) });
        self
    }
}

impl Namespace for Delay {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn changes(&self) -> Option<&Changes> {
        self.inner.changes()
    }

    fn availability(&self) -> Availability {
        self.inner.availability()
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        self.inner.parts()
    }

    fn describe(&self) -> String {
        let inner = self.inner.describe();
        match self.jitter {
            Duration::ZERO => format!("{inner}, delayed by {:?}", self.fixed),
            jitter => format!("{inner}, delayed by {:?} to {:?}", self.fixed, self.fixed + jitter),
        }
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        Ok(Box::new(DelayQueue {
            inner: self.inner.open(reactor, parent)?,
            fixed: self.fixed,
            jitter: self.jitter,
            dice: Arc::clone(&self.dice),
            reactor: reactor.clone(),
            task: reactor.add_child(parent),
            held: BinaryHeap::new(),
            sequence: 0,
            arrived: Vec::new(),
            events: Vec::new(),
        }))
    }
}

struct DelayQueue {
    inner: Box<dyn Queue>,
    fixed: Duration,
    jitter: Duration,
    dice: Arc<Dice>,
    reactor: Reactor,
    /// The task whose timer fires when the next delayed completion is due.
    task: TaskId,
    held: BinaryHeap<Reverse<Held>>,
    sequence: u64,
    /// Empty between polls. The queue keeps this vector and `events` to reuse their memory.
    arrived: Vec<Completion>,
    events: Vec<Event>,
}

/// A delayed completion. The order is by due time, then by arrival.
struct Held {
    due: Instant,
    sequence: u64,
    completion: Completion,
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> Ordering {
        (self.due, self.sequence).cmp(&(other.due, other.sequence))
    }
}

impl DelayQueue {
    fn delay(&self) -> Duration {
        let span = self.jitter.as_nanos() as u64;
        if span == 0 {
            return self.fixed;
        }
        let index = self.dice.rolled.fetch_add(1, MemoryOrder::Relaxed);
        let part = Random::nth(self.dice.seed, index) % (span + 1);
        self.fixed + Duration::from_nanos(part)
    }
}

impl Queue for DelayQueue {
    fn submit(&mut self, op: Op) {
        self.inner.submit(op);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.reactor.take_events(self.task, &mut self.events);
        self.events.clear(); // the reactor reports only timers to this task
        let now = Instant::now();
        let mut arrived = std::mem::take(&mut self.arrived);
        self.inner.poll(&mut arrived);
        for completion in arrived.drain(..) {
            let due = now + self.delay();
            self.sequence += 1;
            self.held.push(Reverse(Held { due, sequence: self.sequence, completion }));
        }
        self.arrived = arrived;
        while let Some(Reverse(first)) = self.held.peek() {
            if first.due > now {
                break;
            }
            done.extend(self.held.pop().map(|Reverse(first)| first.completion));
        }
        let next = self.held.peek().map(|Reverse(first)| first.due);
        self.reactor.set_timer(self.task, next);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }
}

impl Drop for DelayQueue {
    fn drop(&mut self) {
        self.reactor.remove_task(self.task);
    }
}
