//! Namespaces for the tests of other crates.

use crate::{BlockError, Change, Changes, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A disk of variable size on top of another disk. It refuses operations beyond its own end, even
/// if the other disk has blocks there.
pub struct Elastic {
    inner: Arc<dyn Namespace>,
    blocks: Arc<AtomicU64>,
    changes: Changes,
}

impl Elastic {
    /// Creates a disk with all blocks of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Namespace>) -> Arc<Elastic> {
        let blocks = Arc::new(AtomicU64::new(inner.geometry().blocks));
        Arc::new(Elastic { inner, blocks, changes: Changes::new() })
    }

    /// Changes the number of blocks without a notification.
    pub fn resize_silently(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::Relaxed);
    }

    /// Changes the number of blocks and notifies the watchers.
    pub fn resize(&self, blocks: u64) {
        self.resize_silently(blocks);
        self.changes.tell(Change::Geometry);
    }
}

impl Namespace for Elastic {
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Relaxed), ..self.inner.geometry() }
    }

    fn changes(&self) -> Option<&Changes> {
        Some(&self.changes)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let (inner, geometry) = (self.inner.open(reactor, parent)?, self.inner.geometry());
        let blocks = Arc::clone(&self.blocks);
        Ok(Box::new(ElasticQueue { inner, geometry, blocks, refused: Vec::new() }))
    }
}

struct ElasticQueue {
    inner: Box<dyn Queue>,
    geometry: Geometry,
    blocks: Arc<AtomicU64>,
    refused: Vec<Completion>,
}

impl Queue for ElasticQueue {
    fn submit(&mut self, op: Op) {
        let blocks = self.blocks.load(Ordering::Relaxed);
        match op.check(&Geometry { blocks, ..self.geometry }) {
            Ok(()) => self.inner.submit(op),
            Err(error) => self.refused.push(op.complete(Err(error))),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.refused);
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.refused.len()
    }
}
