//! The namespace as it is served.

use farblock_block::{Geometry, Namespace};
use std::sync::Arc;

/// A namespace, and whether it is served read-only.
#[derive(Clone)]
pub struct Disk {
    namespace: Arc<dyn Namespace>,
    read_only: bool,
}

impl Disk {
    /// The namespace; with `read_only` it is not written, even if it could be.
    #[must_use]
    pub fn new(namespace: Arc<dyn Namespace>, read_only: bool) -> Disk {
        Disk { namespace, read_only }
    }

    /// The namespace itself.
    #[must_use]
    pub fn namespace(&self) -> &Arc<dyn Namespace> {
        &self.namespace
    }

    /// As of now, and as writable as it is to be.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        let mut geometry = self.namespace.geometry();
        geometry.read_only |= self.read_only;
        geometry
    }
}
