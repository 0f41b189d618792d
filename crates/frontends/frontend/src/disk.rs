//! The namespace that a server serves.

use farblock_block::{Geometry, Namespace};
use std::sync::Arc;

/// A namespace, and whether the server refuses writes to it.
#[derive(Clone)]
pub struct Disk {
    namespace: Arc<dyn Namespace>,
    read_only: bool,
}

impl Disk {
    /// Wraps a namespace. With `read_only`, the server refuses writes even if the namespace is
    /// writable.
    #[must_use]
    pub fn new(namespace: Arc<dyn Namespace>, read_only: bool) -> Disk {
        Disk { namespace, read_only }
    }

    /// The wrapped namespace.
    #[must_use]
    pub fn namespace(&self) -> &Arc<dyn Namespace> {
        &self.namespace
    }

    /// The namespace's current geometry. It is read-only if the server refuses writes.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        let mut geometry = self.namespace.geometry();
        geometry.read_only |= self.read_only;
        geometry
    }
}
