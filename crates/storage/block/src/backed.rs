//! A namespace and a backing object that must outlive it.

use crate::{Availability, BlockError, Changes, Geometry, Namespace, Part, Queue};
use farblock_reactor::{Reactor, TaskId};
use std::sync::Arc;

/// A namespace and its backing object, for example the target that serves it. The namespace is
/// dropped before the backing object.
pub struct Backed<N, B> {
    /// The namespace.
    pub namespace: N,
    /// The object that must outlive the namespace.
    pub backing: B,
}

impl<N: Namespace, B: Send + Sync> Namespace for Backed<N, B> {
    fn geometry(&self) -> Geometry {
        self.namespace.geometry()
    }

    fn describe(&self) -> String {
        self.namespace.describe()
    }

    fn changes(&self) -> Option<&Changes> {
        self.namespace.changes()
    }

    fn availability(&self) -> Availability {
        self.namespace.availability()
    }

    fn trouble(&self) -> Option<String> {
        self.namespace.trouble()
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        self.namespace.parts()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.namespace.open(reactor, parent)
    }
}
