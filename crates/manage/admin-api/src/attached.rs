//! The states of the disks that are attached to a machine, and of their paths.
//!
//! Each disk's daemon has a control socket, without HTTP, in a folder that only its user can open.
//! The process that serves the dashboard queries the daemons, and forwards the answers.

use serde::Serialize;
use std::sync::Arc;

/// The state of an attached disk.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct AttachedStatus {
    /// The name of the attachment.
    pub name: String,
    /// The device, file, socket or URL at which programs use the disk.
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

/// A function that queries the states of all attached disks. It waits at most a second for each
/// daemon.
pub type ReadAttached = Arc<dyn Fn() -> Vec<AttachedStatus> + Send + Sync>;
