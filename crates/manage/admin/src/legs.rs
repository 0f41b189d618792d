//! The status of mirror legs, and orders to mirrors.
//!
//! This module does not read the document: a change may lock it while it waits for slow disks.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The status of a part of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LegStatus {
    /// A file with its absolute path, or the URL of a remote disk.
    pub name: String,
    /// In a mirror `in_sync`, `catching_up` (missing data is being copied) or `out` (not used);
    /// elsewhere `ready` or `away`.
    pub state: String,
    /// Why it is out or away, or in sync and not used at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The name of a part for people and programs. If it is a URL, all parameters except the namespace
/// are removed, because they are only connection details.
#[must_use]
pub fn part_name(name: &str) -> String {
    let Some((place, parameters)) = name.split_once('?').filter(|_| name.contains("://")) else {
        return name.to_owned();
    };
    match parameters.split('&').find(|parameter| parameter.starts_with("ns=")) {
        Some(namespace) => format!("{place}?{namespace}"),
        None => place.to_owned(),
    }
}

/// The background work of a mirror.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MirrorStatus {
    /// Bytes that legs may lack, or in which they may differ.
    pub dirty_bytes: u64,
    /// Bytes copied to legs since the mirror was opened.
    pub copied_bytes: u64,
    /// Speed limit for copying and comparing, in bytes per second; 0: none.
    pub copy_bytes_per_second: u64,
    /// Whether a verify is running.
    pub verifying: bool,
    /// Bytes that the last or current verify compared on all legs in sync.
    pub verified_bytes: u64,
    /// Bytes that this verify could not compare: a leg in sync had a read error, or only one leg
    /// was in sync.
    #[serde(default)]
    pub uncompared_bytes: u64,
    /// Legs with a read error in this verify.
    #[serde(default)]
    pub unread_legs: Vec<String>,
    /// Bytes in which the legs in sync differ.
    pub differing_bytes: u64,
    /// The first places where they differ.
    pub differences: Vec<Difference>,
    /// Number of completed verifies.
    pub verifies: u64,
}

/// A run of blocks that differ between legs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Difference {
    /// The first block.
    pub lba: u64,
    /// Number of blocks.
    pub blocks: u32,
}

/// An order to a mirror.
#[derive(Clone, Default, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MirrorOrder {
    /// Compare all legs in sync, from the start.
    #[serde(default)]
    pub verify: bool,
    /// Speed limit for copying and comparing, in bytes per second, until the target exits; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bytes_per_second: Option<u64>,
}

/// A shared mirror, or another disk with remote parts.
pub trait Mirrored: Send + Sync {
    /// The status of its legs, and of the mirror if it is one; `None` once it is closed.
    fn status(&self) -> Option<(Vec<LegStatus>, Option<MirrorStatus>)>;

    /// Executes an order, if the disk is a mirror.
    fn order(&self, order: &MirrorOrder);
}

/// The legs of one namespace.
pub type Legs = Arc<dyn Mirrored>;

/// The legs of all namespaces that have some.
#[derive(Clone, Default)]
pub(crate) struct AllLegs(Arc<Mutex<BTreeMap<(String, u32), Legs>>>);

impl AllLegs {
    /// Sets the legs of a namespace.
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
