//! The counters of a target. Clients poll them, and compute rates from the differences.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Counters since the target started. They never decrease while the target runs, but the counters
/// of removed objects disappear. After a restart, all start at 0 again; a smaller `uptime_ms` shows
/// this.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// The time of this sample, in milliseconds since the target started. A rate is the difference
    /// of two counts divided by the difference of their `uptime_ms`.
    pub uptime_ms: u64,
    /// The time of this sample, in milliseconds since 1970.
    pub time_ms: u64,
    /// The upper bounds of the counts in a `Latency`, in microseconds. One more count follows, for
    /// the commands above the last bound.
    pub latency_bounds_us: Vec<u64>,
    /// The counts of accepted and refused connections.
    pub connections: ConnectionStats,
    /// The number of changes of listeners' ANA states and of namespaces' ANA groups.
    #[serde(default)]
    pub ana_changes: u64,
    /// The number of failed I/O commands by the name of their status. Statuses that never occurred
    /// are missing.
    #[serde(default)]
    pub errors_by_status: BTreeMap<String, u64>,
    /// The counters of all I/O.
    pub total: IoStats,
    /// The counters by core.
    pub cores: Vec<CoreStats>,
    /// The counters by subsystem.
    pub subsystems: Vec<SubsystemStats>,
    /// The counters by host, including disconnected hosts.
    pub hosts: Vec<HostStats>,
    /// The sum for all hosts that have no entry in `hosts`, because there are too many hosts.
    pub other_hosts: IoStats,
}

/// Counts of I/O commands. The target updates them when it answers a command.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct IoStats {
    /// The number of read commands that succeeded.
    pub reads: u64,
    /// The number of write commands that succeeded.
    pub writes: u64,
    /// The number of other I/O commands that succeeded: Flush, Compare, deallocation and so on.
    pub others: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of bytes written.
    pub written_bytes: u64,
    /// The numbers of failed I/O commands.
    pub errors: ErrorStats,
    /// The number of operations that failed in the namespaces' storage: no space, media errors,
    /// lost disks.
    pub storage_errors: u64,
    /// The time for which commands waited before the target executed them.
    #[serde(default)]
    pub waited: Waits,
    /// The latency of successful reads.
    pub read_latency: Latency,
    /// The latency of successful writes.
    pub write_latency: Latency,
}

/// The numbers of failed commands by Status Code Type.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorStats {
    /// Generic Command Status.
    pub generic: u64,
    /// Command Specific Status.
    pub command_specific: u64,
    /// Media and Data Integrity Errors.
    pub media: u64,
    /// Path Related Status.
    pub path: u64,
    /// Vendor Specific and reserved types.
    pub vendor: u64,
}

/// The total waiting time of commands, in nanoseconds. Ten commands that wait for one second each
/// add ten seconds.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct Waits {
    /// The time that commands waited for a limit of their namespace.
    pub namespace_limit_ns: u64,
    /// The time that commands waited for a limit of their host.
    pub host_limit_ns: u64,
    /// The time that connections waited for their host's turn on a core that several hosts
    /// saturate. It belongs to no namespace.
    pub turn_ns: u64,
}

/// The latency of commands at the target, from arrival to answer. The target measures it only while
/// clients poll these counters, so the time of a pause in polling is missing.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    /// The sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
    /// For each bound in `latency_bounds_us`, the number of commands up to this bound and above the
    /// previous one. Zero counts at the end are omitted.
    pub counts: Vec<u64>,
}

/// The counts of accepted and refused connections.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ConnectionStats {
    /// The number of present connections.
    pub open: u64,
    /// The number of accepted connections.
    pub accepted: u64,
    /// The number of refused connections and queues by reason: `host_not_allowed`, `no_subsystem`,
    /// `full`, `tls_missing`, `tls_wrong_key` and others.
    pub refused: BTreeMap<String, u64>,
    /// The number of protocol errors of hosts by kind: `header_digest`, `data_digest`, and
    /// `protocol` for all others.
    pub faults: BTreeMap<String, u64>,
    /// The number of queues that authenticated successfully.
    pub authenticated: u64,
    /// The number of queues that failed to authenticate by reason. `failed` means a wrong secret.
    pub not_authenticated: BTreeMap<String, u64>,
}

/// The counters of a core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CoreStats {
    /// The number of the core.
    pub core: u32,
    /// The number of present connections on the core.
    pub connections: u64,
    /// The processor time of the core's thread, in nanoseconds; null if the system does not report
    /// it.
    pub busy_ns: Option<u64>,
    /// The I/O of the connections on the core.
    pub io: IoStats,
}

/// The counters of a subsystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SubsystemStats {
    /// The NQN of the subsystem.
    pub nqn: String,
    /// The I/O of the subsystem, including removed namespaces.
    pub io: IoStats,
    /// The counters by namespace.
    pub namespaces: Vec<NamespaceStats>,
}

/// The counters of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NamespaceStats {
    /// The ID of the namespace.
    pub nsid: u32,
    /// The I/O of the namespace.
    pub io: IoStats,
    /// The cores whose queues have used the namespace.
    #[serde(default)]
    pub cores: Vec<u32>,
}

/// The counters of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HostStats {
    /// The NQN of the host.
    pub nqn: String,
    /// The number of present controllers of the host; 0 if it has disconnected.
    pub controllers: u64,
    /// The number of present I/O queues of the host.
    pub io_queues: u64,
    /// The I/O of the host.
    pub io: IoStats,
}
