//! A backend (a gate) that holds back the next writes, or reads, until the test releases them.

use farblock_block::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId, Waker};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct GateState {
    /// The number of operations to hold.
    budget: AtomicUsize,
    /// If set, the gate holds only operations that start at this block.
    place: Mutex<Option<u64>>,
    kept: AtomicUsize,
    durable: AtomicUsize,
    /// The first blocks of all operations, in order of arrival.
    seen: Mutex<Vec<u64>>,
    wakers: Mutex<Vec<Waker>>,
    generation: AtomicUsize,
}

pub struct Gate {
    inner: Arc<dyn Namespace>,
    command: Command,
    state: Arc<GateState>,
}

impl Gate {
    /// Returns a gate that holds writes.
    pub fn new(inner: Arc<dyn Namespace>) -> Gate {
        Gate::of(Command::Write, inner)
    }

    pub fn of(command: Command, inner: Arc<dyn Namespace>) -> Gate {
        Gate { inner, command, state: Arc::default() }
    }

    /// Holds the next `count` operations.
    pub fn keep(&self, count: usize) {
        self.state.budget.store(count, Ordering::SeqCst);
    }

    /// Holds the next operation that starts at this block.
    pub fn keep_at(&self, lba: u64) {
        *self.state.place.lock().unwrap() = Some(lba);
        self.keep(1);
    }

    /// Returns the number of held operations.
    pub fn kept(&self) -> usize {
        self.state.kept.load(Ordering::SeqCst)
    }

    /// Returns the first block of each operation that has arrived, held or not, in order.
    pub fn seen(&self) -> Vec<u64> {
        self.state.seen.lock().unwrap().clone()
    }

    pub fn durable(&self) -> usize {
        self.state.durable.load(Ordering::SeqCst)
    }

    /// Releases all held operations.
    pub fn open_up(&self) {
        self.state.budget.store(0, Ordering::SeqCst);
        self.state.generation.fetch_add(1, Ordering::SeqCst);
        self.state.wakers.lock().unwrap().iter().for_each(Waker::wake);
    }
}

impl Namespace for Gate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        format!("gate before {}", self.inner.describe())
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.state.wakers.lock().unwrap().push(reactor.waker(parent));
        let inner = self.inner.open(reactor, parent)?;
        let seen = self.state.generation.load(Ordering::SeqCst);
        let state = Arc::clone(&self.state);
        Ok(Box::new(GateQueue { inner, command: self.command, state, kept: Vec::new(), seen }))
    }
}

struct GateQueue {
    inner: Box<dyn Queue>,
    command: Command,
    state: Arc<GateState>,
    kept: Vec<Op>,
    seen: usize,
}

impl Queue for GateQueue {
    fn submit(&mut self, op: Op) {
        self.state.durable.fetch_add(usize::from(op.fua), Ordering::SeqCst);
        if op.command == self.command {
            self.state.seen.lock().unwrap().push(op.lba);
        }
        let is_there = self.state.place.lock().unwrap().is_none_or(|lba| lba == op.lba);
        let keep = op.command == self.command
            && is_there
            && self
                .state
                .budget
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok();
        if keep {
            self.state.kept.fetch_add(1, Ordering::SeqCst);
            self.kept.push(op);
        } else {
            self.inner.submit(op);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let generation = self.state.generation.load(Ordering::SeqCst);
        if std::mem::replace(&mut self.seen, generation) != generation {
            self.state.kept.fetch_sub(self.kept.len(), Ordering::SeqCst);
            self.kept.drain(..).for_each(|op| self.inner.submit(op));
        }
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.kept.len()
    }
}
