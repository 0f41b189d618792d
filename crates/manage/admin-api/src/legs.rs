//! The status of a mirror's legs (its copies of the data), and orders to mirrors.

use serde::{Deserialize, Serialize};

/// The status of a leg of a mirror, or of a part of another composed disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LegStatus {
    /// The absolute path of a file, or the URL of a remote disk.
    pub name: String,
    /// The state. In a mirror: `in_sync`, `catching_up` (the mirror copies missing data) or `out`
    /// (not used). In other disks: `ready` or `away` (not available).
    pub state: String,
    /// The reason why the part is `out` or `away`, or why an `in_sync` leg is not used at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Shortens the name of a part for display. Removes all parameters of a URL except the namespace,
/// because they are connection details.
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

/// The status of the background work of a mirror.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MirrorStatus {
    /// The bytes in regions where a leg may lack data, or legs may differ.
    pub dirty_bytes: u64,
    /// The bytes copied to legs since the mirror was opened.
    pub copied_bytes: u64,
    /// The speed limit for copies and comparisons, in bytes per second; 0 means no limit.
    pub copy_bytes_per_second: u64,
    /// Whether a verify is running.
    pub verifying: bool,
    /// The bytes that the current or last verify has compared on all legs in sync.
    pub verified_bytes: u64,
    /// The bytes that this verify could not compare: a leg in sync had a read error, or only one
    /// leg was in sync.
    #[serde(default)]
    pub uncompared_bytes: u64,
    /// The names of the legs with read errors in this verify.
    #[serde(default)]
    pub unread_legs: Vec<String>,
    /// The bytes in which the legs in sync differ.
    pub differing_bytes: u64,
    /// The first runs of blocks in which the legs differ.
    pub differences: Vec<Difference>,
    /// The number of completed verifies.
    pub verifies: u64,
}

/// A run of blocks that differ between legs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Difference {
    /// The first block of the run.
    pub lba: u64,
    /// The number of blocks.
    pub blocks: u32,
}

/// An order to a mirror.
#[derive(Clone, Default, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MirrorOrder {
    /// Whether to start a verify, which compares all legs in sync from the first block on.
    #[serde(default)]
    pub verify: bool,
    /// The speed limit for copies and comparisons, in bytes per second; 0 means no limit. It
    /// applies until the target exits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bytes_per_second: Option<u64>,
}
