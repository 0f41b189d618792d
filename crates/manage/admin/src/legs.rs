//! What the legs of mirrors are at the moment, and what can be asked of a mirror.
//!
//! It is asked without the document, which a change may keep to itself for as long as its disks
//! take.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Part of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LegStatus {
    /// A file, or the URL of a remote disk.
    pub name: String,
    /// In a mirror `in_sync`, `catching_up` (what it lacks is being copied) or `out` (not used);
    /// elsewhere `ready` or `away`.
    pub state: String,
    /// Why it is out, or away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a mirror does besides its users' work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MirrorStatus {
    /// What legs may differ in, or lack.
    pub dirty_bytes: u64,
    /// Copied to legs since the mirror was opened.
    pub copied_bytes: u64,
    /// The most bytes a second that are copied or compared; 0: any.
    pub copy_bytes_per_second: u64,
    /// The legs are being compared.
    pub verifying: bool,
    /// Compared on all legs in sync by the last or present verify.
    pub verified_bytes: u64,
    /// Not compared by it: a leg in sync could not be read there, or there was one only.
    #[serde(default)]
    pub uncompared_bytes: u64,
    /// The legs that it could not read everywhere.
    #[serde(default)]
    pub unread_legs: Vec<String>,
    /// In how much the legs in sync differ.
    pub differing_bytes: u64,
    /// The first places where they do.
    pub differences: Vec<Difference>,
    /// Verifies that were brought to an end.
    pub verifies: u64,
}

/// Blocks of which at least one is not the same on all legs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Difference {
    /// The first one.
    pub lba: u64,
    /// How many.
    pub blocks: u32,
}

/// What is asked of a mirror.
#[derive(Clone, Default, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MirrorOrder {
    /// Have all legs in sync compared, from the beginning.
    #[serde(default)]
    pub verify: bool,
    /// The most bytes a second that are copied to legs that catch up, or compared, until the target
    /// ends; 0: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bytes_per_second: Option<u64>,
}

/// A mirror that is shared, or another disk with remote parts.
pub trait Mirrored: Send + Sync {
    /// What it is at the moment, and what it does if it is a mirror; none once it is closed.
    fn status(&self) -> Option<(Vec<LegStatus>, Option<MirrorStatus>)>;

    /// Does what is asked, if it is a mirror.
    fn order(&self, order: &MirrorOrder);
}

/// What one namespace is made of.
pub type Legs = Arc<dyn Mirrored>;

/// Those of all namespaces that have some.
#[derive(Clone, Default)]
pub(crate) struct AllLegs(Arc<Mutex<BTreeMap<(String, u32), Legs>>>);

impl AllLegs {
    /// What a namespace is stored in now.
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
