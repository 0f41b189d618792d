//! A namespace that records all operations, and holds them back until the test opens it.

#![allow(unreachable_pub, reason = "only one test binary uses this module")]

use farblock_block::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId, Waker};
use std::sync::{Arc, Mutex, PoisonError};

/// A namespace that holds operations back until the test opens it.
pub struct Gate {
    inner: Arc<dyn Namespace>,
    geometry: Geometry,
    state: Arc<Mutex<GateState>>,
}

#[derive(Default)]
struct GateState {
    is_open: bool,
    wakers: Vec<Waker>,
    /// The received commands, each with its FUA flag.
    seen: Vec<(Command, bool)>,
}

impl Gate {
    /// Makes a closed gate. `change` may change the geometry, but not the size.
    pub fn new(inner: Arc<dyn Namespace>, change: impl FnOnce(&mut Geometry)) -> Gate {
        let mut geometry = inner.geometry();
        change(&mut geometry);
        Gate { inner, geometry, state: Arc::default() }
    }

    pub fn open_up(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_open = true;
        state.wakers.iter().for_each(Waker::wake);
    }

    pub fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_open = false;
    }

    pub fn seen(&self) -> Vec<(Command, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).seen.clone()
    }
}

impl Namespace for Gate {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn describe(&self) -> String {
        "a gate".to_owned()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.inner.open(reactor, parent)?;
        let state = Arc::clone(&self.state);
        state.lock().expect("a lock").wakers.push(reactor.waker(parent));
        Ok(Box::new(GateQueue { inner, state, held: Vec::new() }))
    }
}

struct GateQueue {
    inner: Box<dyn Queue>,
    state: Arc<Mutex<GateState>>,
    held: Vec<Op>,
}

impl Queue for GateQueue {
    fn submit(&mut self, op: Op) {
        self.state.lock().expect("a lock").seen.push((op.command, op.fua));
        self.held.push(op);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.state.lock().expect("a lock").is_open {
            // A namespace may complete operations in any order, so release them in reverse order.
            self.held.drain(..).rev().for_each(|op| self.inner.submit(op));
        }
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.inner.in_flight()
    }
}

impl Drop for GateQueue {
    fn drop(&mut self) {
        self.held.drain(..).for_each(|op| drop(op.abandon()));
    }
}
