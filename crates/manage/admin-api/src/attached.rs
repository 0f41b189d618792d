//! The disks that are attached to a machine, and their paths.
//!
//! The daemon of a disk serves a socket in its own folder, for its own user only, and without HTTP.
//! The process that serves the dashboard queries the daemon and forwards the answer.

use serde::Serialize;
use std::sync::Arc;

/// The state of an attached disk.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct AttachedStatus {
    /// The name of the attachment.
    pub name: String,
    /// The place where programs can use the disk: a device, a file, a socket or a URL.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// The state of the disk as in `farblock list`: `live`, `degraded`, `reconnecting`, …
    pub state: String,
    /// The reason, if the state is bad.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The paths to the disk.
    pub paths: Vec<AttachedPath>,
}

/// The state of a path to an attached disk.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct AttachedPath {
    /// The URL of the path.
    pub url: String,
    /// `live`, `connecting`, `reconnecting` or `failed`.
    pub state: String,
    /// The time in this state, in seconds.
    pub since_seconds: u64,
    /// The ANA state of the path, as the target reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// The address of the target, while the path is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The number of reconnects.
    pub reconnects: u64,
    /// The reason for the last disconnect or failed connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A function that reads the states of all attached disks. It waits up to a second for each daemon
/// that does not answer.
pub type ReadAttached = Arc<dyn Fn() -> Vec<AttachedStatus> + Send + Sync>;
