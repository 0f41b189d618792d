//! The disks with parts: mirrors, and disks with remote parts.
//!
//! This module does not read the configuration document, since a change may lock the document while
//! it waits for slow disks.

use farblock_admin_api::{LegStatus, MirrorOrder, MirrorStatus};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A shared disk that is a mirror or has remote parts.
pub trait Mirrored: Send + Sync {
    /// The status of the disk's parts and, if the disk is a mirror, of the mirror. `None` once the
    /// disk is closed.
    fn status(&self) -> Option<(Vec<LegStatus>, Option<MirrorStatus>)>;

    /// Executes an order, if the disk is a mirror.
    fn order(&self, order: &MirrorOrder);
}

/// A disk with parts, which a namespace uses.
pub type Legs = Arc<dyn Mirrored>;

/// The parts of all disks that have parts, by subsystem and namespace.
#[derive(Clone, Default)]
pub(crate) struct AllLegs(Arc<Mutex<BTreeMap<(String, u32), Legs>>>);

impl AllLegs {
    /// Sets or removes the disk with parts that a namespace uses.
    pub(crate) fn set(&self, nqn: &str, nsid: u32, legs: Option<&Legs>) {
        let key = (nqn.to_owned(), nsid);
        match legs {
            Some(legs) => self.lock().insert(key, Arc::clone(legs)),
            None => self.lock().remove(&key),
        };
    }

    pub(crate) fn find(&self, nqn: &str, nsid: u32) -> Option<Legs> {
        self.lock().get(&(nqn.to_owned(), nsid)).cloned()
    }

    pub(crate) fn of(
        &self,
        nqn: &str,
        nsid: u32,
    ) -> Option<(Vec<LegStatus>, Option<MirrorStatus>)> {
        self.find(nqn, nsid).and_then(|mirror| mirror.status())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, u32), Legs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
