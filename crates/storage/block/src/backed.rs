//! A namespace with what has to be there for as long as it is.

use crate::{Availability, BlockError, Changes, Geometry, Namespace, Queue};
use farblock_reactor::{Reactor, TaskId};

/// A namespace and what it lives on, such as the target that serves it: the one goes before the
/// other.
pub struct Backed<N, B> {
    /// What is used.
    pub namespace: N,
    /// What it lives on.
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

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.namespace.open(reactor, parent)
    }
}
