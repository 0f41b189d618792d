//! The status of a target, for people and programs.

use crate::{Confinement, LegStatus, MirrorStatus};
use farblock_state::{Limits, Transport};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A snapshot of a running target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Status {
    /// The addresses on which the target listens, with the prefix `rdma:` for NVMe/RDMA.
    pub listening: Vec<String>,
    /// The TLS policy of each address: `plain`, `allowed` or `required`.
    #[serde(default)]
    pub tls: BTreeMap<String, String>,
    /// The ANA states at each listener, by its address.
    #[serde(default)]
    pub ana: BTreeMap<String, AnaStatus>,
    /// The process ID.
    pub pid: u32,
    /// The time since the start of the target, in seconds.
    pub uptime_seconds: u64,
    /// The number of connections, including those whose host has not identified itself yet.
    pub connections: usize,
    /// Warnings for the administrator, one sentence each. For example, hosts may connect without
    /// authentication, or the target cannot listen on an address.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The rights that the process has dropped; missing if they are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
    /// The busy-polling mode of the event loops: `efficient`, `balanced`, `latency` or `always`.
    /// Empty from older versions, which do not report it.
    #[serde(default)]
    pub spin: String,
    /// The limits of the target on memory, cores and connections. Missing from older versions,
    /// which do not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetStatus>,
    /// The shared subsystems.
    pub subsystems: Vec<SubsystemStatus>,
    /// The controllers to which hosts are connected.
    pub controllers: Vec<ControllerStatus>,
}

/// The resource limits of a target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BudgetStatus {
    /// The memory for the buffers of all hosts together, in bytes. A host that needs more waits.
    pub buffer_bytes: u64,
    /// Whether the user set `buffer_bytes`.
    pub is_set: bool,
    /// The number of event loops.
    pub cores: usize,
    /// The maximum number of connections. The target closes further connections.
    pub connections: usize,
    /// The memory that the process may use, in bytes; missing if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_bytes: Option<u64>,
    /// The source of `allowed_bytes`: a file of a control group, a resource limit or the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
}

/// A subsystem, with its I/O since it was added.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SubsystemStatus {
    /// The NQN of the subsystem.
    pub nqn: String,
    /// Whether hosts that are not listed may connect.
    pub allow_any_host: bool,
    /// The NQNs of the listed hosts.
    pub hosts: Vec<String>,
    /// The hosts that must authenticate, with the fingerprints of their valid secrets.
    #[serde(default)]
    pub keys: BTreeMap<String, Vec<String>>,
    /// The hosts that must use TLS with their key.
    #[serde(default)]
    pub tls_hosts: Vec<String>,
    /// The authentication that a host must use: `auth`, `mutual` or `concat`. Hosts without such a
    /// setting are missing.
    #[serde(default)]
    pub demands: BTreeMap<String, String>,
    /// The I/O limits of each host, for all namespaces together. Hosts without limits are missing.
    #[serde(default)]
    pub host_limits: BTreeMap<String, Limits>,
    /// The number of read commands that succeeded.
    pub reads: u64,
    /// The number of write commands that succeeded.
    pub writes: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of bytes written.
    pub written_bytes: u64,
    /// The number of reads and writes that failed in the storage.
    pub media_errors: u64,
    /// The namespaces of the subsystem.
    pub namespaces: Vec<NamespaceStatus>,
}

/// A namespace as hosts see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NamespaceStatus {
    /// The ID of the namespace.
    pub nsid: u32,
    /// The size of the namespace in bytes.
    pub bytes: u64,
    /// The block size in bytes.
    pub block_size: u32,
    /// Whether the target refuses writes to the namespace.
    pub read_only: bool,
    /// The UUID of the namespace, which distinguishes it from all other disks.
    pub uuid: String,
    /// The ANA group of the namespace; 0 from an older version.
    #[serde(default)]
    pub ana_group: u32,
    /// The allowed hosts that see the namespace; missing if all of them do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible_to: Option<BTreeSet<String>>,
    /// The limits of the namespace, for all hosts together.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// The storage, in the syntax of `farblock serve`, without the key files of remote disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The health of the storage: `ok`, `failing`, `away` or `degraded`. `failing`: an operation
    /// failed within the last minute, or `trouble` is set. `away`: the storage or a part of it does
    /// not respond. `degraded`: a leg of the mirror is not in sync.
    #[serde(default)]
    pub health: String,
    /// The last error of the storage since the namespace was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// The present problem of the storage and the remedy. For example, another program has
    /// truncated the file, or the disk has become write-protected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The legs of the mirror, or the remote parts of the disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub legs: Vec<LegStatus>,
    /// The status of the mirror; missing if the storage is not a mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorStatus>,
}

/// The ANA states of the namespaces at a listener.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AnaStatus {
    /// The ANA state of the namespaces whose ANA group has no state of its own.
    pub state: String,
    /// The ANA states of the groups that have their own state, by ANA group ID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, String>,
}

/// The controller of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ControllerStatus {
    /// The ID of the controller.
    pub id: u16,
    /// The NQN of the subsystem; null for a discovery controller.
    pub subsystem: Option<String>,
    /// The NQN of the host.
    pub host_nqn: String,
    /// The ID of the host.
    pub host_id: String,
    /// The address of the host.
    pub address: Option<String>,
    /// The address of the target to which the host has connected.
    pub local_address: String,
    /// The transport of the host's connections: `tcp` or `rdma`.
    #[serde(default = "tcp")]
    pub transport: String,
    /// Whether the host has enabled the controller.
    pub ready: bool,
    /// The number of connected I/O queues.
    pub io_queues: usize,
    /// The number of refused commands.
    pub errors: u64,
}

/// The default transport, for targets whose version does not report one.
fn tcp() -> String {
    Transport::Tcp.to_string()
}

impl Status {
    /// The status without times, I/O counts and connection counts.
    #[must_use]
    pub fn without_counters(&self) -> Self {
        let mut still = Self { uptime_seconds: 0, connections: 0, ..self.clone() };
        for subsystem in &mut still.subsystems {
            (subsystem.reads, subsystem.writes) = (0, 0);
            (subsystem.read_bytes, subsystem.written_bytes) = (0, 0);
        }
        still
    }
}
