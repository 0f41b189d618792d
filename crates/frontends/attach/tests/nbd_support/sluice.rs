//! A disk that holds back writes until a test releases them.

use farblock_block::{BlockError, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId, Waker};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A disk that holds back writes.
pub struct Sluice {
    inner: Arc<dyn Namespace>,
    shared: Arc<SluiceShared>,
}

#[derive(Default)]
struct SluiceShared {
    /// The number of further writes that the disk will hold back.
    hold: AtomicUsize,
    /// The number of writes that the disk holds back now.
    held: AtomicUsize,
    /// True if held writes count as not started: their queue can withdraw them.
    unbegun: AtomicBool,
    /// The number of withdrawn writes.
    abandoned: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
}

impl Sluice {
    pub fn new(inner: Arc<dyn Namespace>) -> Arc<Sluice> {
        Arc::new(Sluice { inner, shared: Arc::default() })
    }

    /// Holds back the next `writes` writes. With `begun`, they count as started, so that their
    /// queue cannot withdraw them.
    pub fn hold(&self, writes: usize, begun: bool) {
        self.shared.unbegun.store(!begun, Ordering::SeqCst);
        self.shared.hold.store(writes, Ordering::SeqCst);
    }

    /// The number of writes that the disk holds back now.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// The number of withdrawn writes.
    pub fn abandoned(&self) -> usize {
        self.shared.abandoned.load(Ordering::SeqCst)
    }

    /// Releases the held writes.
    pub fn open(&self) {
        self.shared.hold.store(usize::MAX, Ordering::SeqCst);
        self.shared.wakers.lock().expect("no panic").iter().for_each(Waker::wake);
    }
}

impl Namespace for Sluice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        format!("a sluice before {}", self.inner.describe())
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.inner.open(reactor, parent)?;
        let waker = reactor.waker(reactor.add_child(parent));
        self.shared.wakers.lock().expect("no panic").push(waker);
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(SluiceQueue { inner, shared, held: Vec::new(), done: Vec::new() }))
    }
}

struct SluiceQueue {
    inner: Box<dyn Queue>,
    shared: Arc<SluiceShared>,
    held: Vec<Op>,
    done: Vec<Completion>,
}

impl SluiceQueue {
    fn is_open(&self) -> bool {
        self.shared.hold.load(Ordering::SeqCst) == usize::MAX
    }
}

impl Queue for SluiceQueue {
    fn submit(&mut self, op: Op) {
        let hold = &self.shared.hold;
        let less = |left: usize| (left != usize::MAX).then(|| left.checked_sub(1)).flatten();
        let kept = op.command.writes()
            && hold.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        if kept {
            self.shared.held.fetch_add(1, Ordering::SeqCst);
            self.held.push(op);
        } else {
            self.inner.submit(op);
        }
    }

    fn abandon(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        if !self.shared.unbegun.load(Ordering::SeqCst) {
            return;
        }
        let unwanted = self.held.extract_if(.., |op| unwanted(op.token.value()));
        for op in unwanted {
            self.shared.held.fetch_sub(1, Ordering::SeqCst);
            self.shared.abandoned.fetch_add(1, Ordering::SeqCst);
            self.done.push(op.complete(Err(BlockError::Aborted)));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.is_open() {
            for op in self.held.drain(..) {
                self.shared.held.fetch_sub(1, Ordering::SeqCst);
                self.inner.submit(op);
            }
        }
        done.append(&mut self.done);
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.done.len() + self.inner.in_flight()
    }
}
