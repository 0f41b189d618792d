//! A simulated leg that can become unavailable. While it is unavailable, operations wait. They run
//! some time after the leg's return, even after newer operations, as with a remote disk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farblock_backends::file::FileDisk;
use farblock_block::{
    Availability, BlockError, Change, Changes, Completion, Geometry, Namespace, Op, Queue,
};
use farblock_reactor::sim::Medium;
use farblock_reactor::{Event, Reactor, TaskId, Waker, os};
use farblock_volumes::LegSource;

/// The delay between the return of a leg and the start of its held operations.
const HELD: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Line {
    away: AtomicBool,
    gone: AtomicBool,
    back: Mutex<Option<Instant>>,
    changes: Changes,
    wakers: Mutex<Vec<Waker>>,
}

impl Line {
    fn tell(&self) {
        self.changes.tell(Change::Availability);
        self.wakers.lock().unwrap().iter().for_each(Waker::wake);
    }
}

struct Node {
    medium: Medium,
    line: Arc<Line>,
}

/// The source of one leg, which the test controls.
pub(crate) struct Leg {
    name: String,
    blocks: u64,
    node: Mutex<Node>,
}

impl Leg {
    pub(crate) fn new(name: &str, medium: Medium, blocks: u64) -> Arc<Leg> {
        let node = Mutex::new(Node { medium, line: Arc::default() });
        Arc::new(Leg { name: name.to_owned(), blocks, node })
    }

    pub(crate) fn medium(&self) -> Medium {
        self.node.lock().unwrap().medium
    }

    pub(crate) fn is_away(&self) -> bool {
        self.node.lock().unwrap().line.away.load(Ordering::SeqCst)
    }

    pub(crate) fn set_away(&self, away: bool) {
        let line = Arc::clone(&self.node.lock().unwrap().line);
        *line.back.lock().unwrap() = Some(os::now());
        line.away.store(away, Ordering::SeqCst);
        line.tell();
    }

    /// Simulates a failure of the leg's machine: the mirror loses its connection to the leg, and
    /// finds the contents of `medium` when it opens the leg again.
    pub(crate) fn replace(&self, medium: Medium, away: bool) {
        let line = Line { away: AtomicBool::new(away), ..Line::default() };
        let next = Node { medium, line: Arc::new(line) };
        let before = std::mem::replace(&mut *self.node.lock().unwrap(), next);
        before.line.gone.store(true, Ordering::SeqCst);
        before.line.tell();
    }
}

impl LegSource for Leg {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> Result<Arc<dyn Namespace>, String> {
        if self.is_away() {
            return Err("nobody answers".to_owned());
        }
        let node = self.node.lock().unwrap();
        let inner = Arc::new(FileDisk::simulated(node.medium, 512, self.blocks));
        Ok(Arc::new(Switch { inner, line: Arc::clone(&node.line) }))
    }
}

struct Switch {
    inner: Arc<FileDisk>,
    line: Arc<Line>,
}

impl Namespace for Switch {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn changes(&self) -> Option<&Changes> {
        Some(&self.line.changes)
    }

    fn availability(&self) -> Availability {
        if self.line.gone.load(Ordering::SeqCst) {
            Availability::Gone
        } else if self.line.away.load(Ordering::SeqCst) {
            Availability::Waiting
        } else {
            Availability::Ready
        }
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.inner.open(reactor, parent)?;
        let task = reactor.add_child(parent);
        self.line.wakers.lock().unwrap().push(reactor.waker(task));
        let line = Arc::clone(&self.line);
        let reactor = reactor.clone();
        Ok(Box::new(SwitchQueue {
            inner,
            line,
            reactor,
            task,
            held: Vec::new(),
            events: Vec::new(),
        }))
    }
}

struct SwitchQueue {
    inner: Box<dyn Queue>,
    line: Arc<Line>,
    reactor: Reactor,
    task: TaskId,
    held: Vec<Op>,
    events: Vec<Event>,
}

impl Queue for SwitchQueue {
    fn submit(&mut self, op: Op) {
        if self.line.away.load(Ordering::SeqCst) || self.line.gone.load(Ordering::SeqCst) {
            self.held.push(op);
        } else {
            self.inner.submit(op);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.reactor.take_events(self.task, &mut self.events);
        self.events.clear();
        if self.line.gone.load(Ordering::SeqCst) {
            done.extend(self.held.drain(..).map(|op| op.complete(Err(BlockError::Disconnected))));
        } else if !self.line.away.load(Ordering::SeqCst) && !self.held.is_empty() {
            let due = self.line.back.lock().unwrap().map(|back| back + HELD);
            if due.is_none_or(|due| due <= os::now()) {
                self.held.drain(..).for_each(|op| self.inner.submit(op));
            } else {
                self.reactor.set_timer(self.task, due);
            }
        }
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.inner.in_flight()
    }
}

impl Drop for SwitchQueue {
    fn drop(&mut self) {
        self.held.drain(..).for_each(|op| drop(op.abandon()));
        self.reactor.remove_task(self.task);
    }
}
