//! A decorator that limits operations and bytes per second.
//!
//! All queues of the namespace, on any thread, share two budgets: operations and bytes. There is no
//! bucket to refill. Instead, each budget stores the time up to which it is spent (the "generic
//! cell rate algorithm"). An operation moves this time forward by its cost. The operation may start
//! [`Limit::burst`] before the old value of this time. So an operation needs one atomic update per
//! budget.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farblock_block::{
    Availability, BlockError, Changes, Completion, Geometry, Namespace, Op, Part, Queue,
};
use farblock_reactor::{Event, Reactor, TaskId};

use farblock_block::size::Size;

/// The default of [`Limit::burst`].
pub const DEFAULT_BURST: Duration = Duration::from_millis(20);

/// A namespace with limited operations and bytes per second.
///
/// Operations over budget wait, in order, before they reach the inner namespace. Every operation
/// counts as one; reads and writes also count their bytes.
pub struct Limit {
    inner: Arc<dyn Namespace>,
    rates: Rates,
    budget: Arc<Budget>,
}

#[derive(Clone, Copy)]
struct Rates {
    ops_per_second: Option<u64>,
    bytes_per_second: Option<u64>,
    burst: Duration,
}

struct Budget {
    epoch: Instant,
    /// The time up to which the budget of operations is spent, in nanoseconds since `epoch`.
    ops_spent: AtomicU64,
    /// The time up to which the budget of bytes is spent, in nanoseconds since `epoch`.
    bytes_spent: AtomicU64,
}

impl Limit {
    /// Wraps a namespace. It has no limit until one of the methods below sets it.
    pub fn new(inner: Arc<dyn Namespace>) -> Limit {
        let epoch = Instant::now();
        let budget = Budget { epoch, ops_spent: AtomicU64::new(0), bytes_spent: AtomicU64::new(0) };
        let rates = Rates { ops_per_second: None, bytes_per_second: None, burst: DEFAULT_BURST };
        Limit { inner, rates, budget: Arc::new(budget) }
    }

    /// Sets the maximum number of operations per second.
    ///
    /// # Panics
    /// Panics if `rate` is zero.
    pub fn ops_per_second(mut self, rate: u64) -> Limit {
        assert!(rate > 0, "the limit is zero");
        self.rates.ops_per_second = Some(rate);
        self
    }

    /// Sets the maximum number of bytes read and written per second.
    ///
    /// # Panics
    /// Panics if `rate` is zero.
    pub fn bytes_per_second(mut self, rate: u64) -> Limit {
        assert!(rate > 0, "the limit is zero");
        self.rates.bytes_per_second = Some(rate);
        self
    }

    /// Sets the longest burst. After a pause, operations may immediately spend the budget of this
    /// much time.
    pub fn burst(mut self, burst: Duration) -> Limit {
        self.rates.burst = burst;
        self
    }
}

impl Namespace for Limit {
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
        let mut text = self.inner.describe();
        if let Some(rate) = self.rates.ops_per_second {
            text.push_str(&format!(", at most {rate} operations per second"));
        }
        if let Some(rate) = self.rates.bytes_per_second {
            text.push_str(&format!(", at most {} per second", Size(rate)));
        }
        text
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        Ok(Box::new(LimitQueue {
            inner: self.inner.open(reactor, parent)?,
            rates: self.rates,
            budget: Arc::clone(&self.budget),
            reactor: reactor.clone(),
            task: reactor.add_child(parent),
            held: VecDeque::new(),
            events: Vec::new(),
        }))
    }
}

impl Budget {
    /// Charges an operation to both budgets, and returns the time at which the operation may start.
    fn book(&self, rates: &Rates, bytes: u64, now: Instant) -> Instant {
        let burst = rates.burst.as_nanos() as u64;
        let now_ns = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        let mut start = 0;
        if let Some(rate) = rates.ops_per_second {
            start = start.max(spend(&self.ops_spent, cost_ns(1, rate), now_ns, burst));
        }
        if let Some(rate) = rates.bytes_per_second
            && bytes > 0
        {
            start = start.max(spend(&self.bytes_spent, cost_ns(bytes, rate), now_ns, burst));
        }
        self.epoch + Duration::from_nanos(start)
    }
}

/// The cost of `amount`, in nanoseconds, at a limit of `per_second`.
fn cost_ns(amount: u64, per_second: u64) -> u64 {
    let cost = u128::from(amount) * 1_000_000_000 / u128::from(per_second);
    u64::try_from(cost).unwrap_or(u64::MAX)
}

/// Advances `spent` by `cost`, and returns the time at which the operation may start.
fn spend(spent: &AtomicU64, cost: u64, now: u64, burst: u64) -> u64 {
    // Unspent budget expires, except for one burst.
    let unspent = now.saturating_sub(burst);
    let found = spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spent| {
        Some(spent.max(unspent).saturating_add(cost))
    });
    found.unwrap_or_else(|spent| spent).max(unspent)
}

struct LimitQueue {
    inner: Box<dyn Queue>,
    rates: Rates,
    budget: Arc<Budget>,
    reactor: Reactor,
    /// The task whose timer fires when the next operation over budget may start.
    task: TaskId,
    /// The operations over budget, in order, with the earliest start of each.
    held: VecDeque<(Instant, Op)>,
    /// The queue keeps this vector to reuse its memory.
    events: Vec<Event>,
}

impl LimitQueue {
    /// Starts the operations that are due, and sets the timer for the next one.
    fn release(&mut self, now: Instant) {
        while let Some((start, op)) = self.held.pop_front() {
            if start > now {
                self.held.push_front((start, op));
                break;
            }
            self.inner.submit(op);
        }
        let next = self.held.front().map(|(start, _)| *start);
        self.reactor.set_timer(self.task, next);
    }
}

impl Queue for LimitQueue {
    fn submit(&mut self, op: Op) {
        let now = Instant::now();
        let bytes = op.buffer.as_ref().map_or(0, |buffer| buffer.len() as u64);
        let start = self.budget.book(&self.rates, bytes, now);
        if start <= now && self.held.is_empty() {
            return self.inner.submit(op);
        }
        // Later operations wait as well, even if their own cost is within the budget.
        self.held.push_back((start, op));
        if self.held.len() == 1 {
            self.reactor.set_timer(self.task, Some(start));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.reactor.take_events(self.task, &mut self.events);
        self.events.clear(); // the reactor reports only timers to this task
        if !self.held.is_empty() {
            self.release(Instant::now());
        }
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }
}

impl Drop for LimitQueue {
    fn drop(&mut self) {
        for (_, op) in self.held.drain(..) {
            op.abandon();
        }
        self.reactor.remove_task(self.task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_start_as_the_budget_allows() {
        let spent = AtomicU64::new(0);
        let at = |now, cost| spend(&spent, cost, now, 100);
        // At time 1000, the burst allows a start as early as 900.
        assert_eq!([at(1000, 60), at(1000, 60), at(1000, 60)], [900, 960, 1020]);
        assert_eq!(at(1100, 10), 1080);
        // After a long pause, the unspent budget of only one burst is left.
        assert_eq!([at(9000, 50), at(9000, 50), at(9000, 50)], [8900, 8950, 9000]);
    }

    #[test]
    fn the_cost_is_the_size_divided_by_the_rate() {
        assert_eq!(cost_ns(1, 1000), 1_000_000);
        assert_eq!(cost_ns(1 << 20, 1 << 20), 1_000_000_000);
        assert_eq!(cost_ns(u64::MAX, 1), u64::MAX);
    }
}
