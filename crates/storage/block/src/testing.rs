//! Namespaces for the tests of what uses them.

use crate::{BlockError, Change, Changes, Geometry, Namespace, Queue};
use farblock_reactor::{Reactor, TaskId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A disk that can be given another size, of the blocks of another one.
pub struct Elastic {
    inner: Arc<dyn Namespace>,
    blocks: AtomicU64,
    changes: Changes,
}

impl Elastic {
    /// With all blocks of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Namespace>) -> Arc<Elastic> {
        let blocks = AtomicU64::new(inner.geometry().blocks);
        Arc::new(Elastic { inner, blocks, changes: Changes::new() })
    }

    /// Has so many blocks from now on, and tells nobody of it.
    pub fn resize_silently(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::Relaxed);
    }

    /// Has so many blocks from now on, and tells of it.
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
        self.inner.open(reactor, parent)
    }
}
