//! The status of a fleet: hosts on several machines that put load on targets for a test.

use serde::{Deserialize, Serialize};

/// The status of a fleet.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct FleetStatus {
    /// The name of the plan.
    pub plan: String,
    /// The current phase, described in words.
    pub phase: String,
    /// The progress within the phase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// The status of each agent, a process that runs some of the hosts.
    pub hosts: Vec<FleetHost>,
    /// The reason, if the fleet has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The status of the hosts of one agent.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct FleetHost {
    /// The name of the agent.
    pub name: String,
    /// The IOPS of all clients of the agent.
    pub iops: f64,
    /// The mean latency of the operations in flight, in microseconds. While the fleet verifies
    /// data, the longest latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
    /// Whether the agent has finished the phase.
    pub is_done: bool,
    /// The number of failed operations.
    pub failed: u64,
    /// The number of blocks that did not contain the acknowledged data.
    pub lost: u64,
    /// The number of connected paths, and the number that should be connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<[u64; 2]>,
}
