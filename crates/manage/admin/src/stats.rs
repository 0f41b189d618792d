//! A target's counters, for programs. Clients poll and compute differences.

use farblock_target::{
    AdmissionCounts, ByReason, CoreStats as Core, ErrorCounts, HostStats as Host, IoCounts,
    LATENCY_STEPS, LatencyCounts, Stats as Counted, SubsystemStats as Subsystem, latency_bound_us,
    status_name,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// Counters since the target started. They never decrease while the target runs, but counters of
/// removed objects disappear. After a restart all start at 0, and `uptime_ms` is smaller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// The time of this sample, in milliseconds since the target started. Rates are differences of
    /// counts divided by differences of this.
    pub uptime_ms: u64,
    /// The time of this sample, in milliseconds since 1970.
    pub time_ms: u64,
    /// The upper bound of each of a `Latency`'s counts, in microseconds. A further count has
    /// everything above the last bound.
    pub latency_bounds_us: Vec<u64>,
    /// Connections that the target accepted and refused.
    pub connections: ConnectionStats,
    /// Number of changes to ANA states of listeners and ANA groups of namespaces.
    #[serde(default)]
    pub ana_changes: u64,
    /// Failed I/O commands by status name. Statuses that never occurred are missing.
    #[serde(default)]
    pub errors_by_status: BTreeMap<String, u64>,
    /// All I/O.
    pub total: IoStats,
    /// By core.
    pub cores: Vec<CoreStats>,
    /// By subsystem.
    pub subsystems: Vec<SubsystemStats>,
    /// By host, including disconnected hosts.
    pub hosts: Vec<HostStats>,
    /// All hosts without an entry, because there were too many or newer hosts replaced them.
    pub other_hosts: IoStats,
}

/// Counts of I/O commands, updated as each is answered.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct IoStats {
    /// Read commands that succeeded.
    pub reads: u64,
    /// Write commands that succeeded.
    pub writes: u64,
    /// Other I/O commands that succeeded: Flush, Compare, deallocation and so on.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Failed I/O commands.
    pub errors: ErrorStats,
    /// Failed operations in the namespaces' storage: no space, media errors, lost disks.
    pub storage_errors: u64,
    /// Time that commands waited before processing.
    #[serde(default)]
    pub waited: Waits,
    /// Latency of successful reads.
    pub read_latency: Latency,
    /// Latency of successful writes.
    pub write_latency: Latency,
}

/// Failed commands by Status Code Type.
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

/// Total waiting time of commands in nanoseconds: ten commands that wait for one second add ten
/// seconds.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct Waits {
    /// For a limit of the namespace.
    pub namespace_limit_ns: u64,
    /// For a limit of the host.
    pub host_limit_ns: u64,
    /// Waiting time of connections for their host's turn on a core that several hosts saturate. It
    /// cannot be attributed to namespaces.
    pub turn_ns: u64,
}

/// Latency of commands at the target, from arrival to answer. Measured only while clients request
/// it: the first answer after a pause has no data of the pause.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    /// The sum of all latencies in nanoseconds.
    pub sum_ns: u64,
    /// For each bound in `latency_bounds_us`, the commands up to it and above the previous bound.
    /// Missing counts at the end are 0.
    pub counts: Vec<u64>,
}

/// Connections that the target accepted and refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ConnectionStats {
    /// Current connections.
    pub open: u64,
    /// Accepted connections.
    pub accepted: u64,
    /// Refused connections and queues, by reason: `host_not_allowed`, `no_subsystem`, `full`,
    /// `tls_missing`, `tls_wrong_key` and others.
    pub refused: BTreeMap<String, u64>,
    /// Protocol errors: `header_digest`, `data_digest`, and others as `protocol`.
    pub faults: BTreeMap<String, u64>,
    /// Queues that authenticated successfully.
    pub authenticated: u64,
    /// Queues that failed to authenticate, by reason: `failed` is a wrong secret.
    pub not_authenticated: BTreeMap<String, u64>,
}

/// Counters of a core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CoreStats {
    /// The core's number.
    pub core: u32,
    /// Current connections on it.
    pub connections: u64,
    /// Processor time of its thread in nanoseconds; none where the system does not report it.
    pub busy_ns: Option<u64>,
    /// I/O of its connections.
    pub io: IoStats,
}

/// Counters of a subsystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SubsystemStats {
    /// The subsystem's NQN.
    pub nqn: String,
    /// All its I/O, including removed namespaces.
    pub io: IoStats,
    /// By namespace.
    pub namespaces: Vec<NamespaceStats>,
}

/// Counters of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NamespaceStats {
    /// The namespace ID.
    pub nsid: u32,
    /// Its I/O.
    pub io: IoStats,
    /// The cores whose queues have used it.
    #[serde(default)]
    pub cores: Vec<u32>,
}

/// Counters of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HostStats {
    /// The host's NQN.
    pub nqn: String,
    /// Current controllers of the host; none if it has disconnected.
    pub controllers: u64,
    /// Current I/O queues of the host.
    pub io_queues: u64,
    /// All its I/O.
    pub io: IoStats,
}

impl Stats {
    pub(crate) fn of(counted: &Counted) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            uptime_ms: ms(counted.uptime),
            time_ms: ms(since),
            latency_bounds_us: (0..LATENCY_STEPS).filter_map(latency_bound_us).collect(),
            connections: connections(counted.connections, &counted.admissions),
            ana_changes: counted.ana_changes,
            errors_by_status: by_status(&counted.by_status),
            total: io(&counted.total),
            cores: (0..).zip(&counted.cores).map(core).collect(),
            subsystems: counted.subsystems.iter().map(subsystem).collect(),
            hosts: counted.hosts.iter().map(host).collect(),
            other_hosts: io(&counted.other_hosts),
        }
    }
}

fn by_status(counts: &BTreeMap<u16, u64>) -> BTreeMap<String, u64> {
    let mut named = BTreeMap::new();
    for (code, count) in counts {
        *named.entry(status_name(*code)).or_default() += count;
    }
    named
}

fn connections(open: usize, counts: &AdmissionCounts) -> ConnectionStats {
    let named = |counts: &ByReason| {
        counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
    };
    ConnectionStats {
        open: open as u64,
        accepted: counts.accepted,
        refused: named(&counts.refused),
        faults: named(&counts.faults),
        authenticated: counts.authenticated,
        not_authenticated: named(&counts.not_authenticated),
    }
}

fn io(counts: &IoCounts) -> IoStats {
    let ErrorCounts { generic, command_specific, media, path, vendor } = counts.errors;
    IoStats {
        reads: counts.reads,
        writes: counts.writes,
        others: counts.others,
        read_bytes: counts.read_bytes,
        written_bytes: counts.written_bytes,
        errors: ErrorStats { generic, command_specific, media, path, vendor },
        storage_errors: counts.storage_errors,
        waited: waits(counts.waited),
        read_latency: latency(&counts.read_latency),
        write_latency: latency(&counts.write_latency),
    }
}

fn waits(counts: farblock_target::WaitCounts) -> Waits {
    let farblock_target::WaitCounts { namespace_limit_ns, host_limit_ns, turn_ns } = counts;
    Waits { namespace_limit_ns, host_limit_ns, turn_ns }
}

fn latency(counts: &LatencyCounts) -> Latency {
    let used = counts.counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    Latency { sum_ns: counts.sum_ns, counts: counts.counts[..used].to_vec() }
}

fn core((number, core): (u32, &Core)) -> CoreStats {
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    CoreStats {
        core: number,
        connections: core.connections as u64,
        busy_ns: core.processor_time.map(ns),
        io: io(&core.io),
    }
}

fn subsystem(subsystem: &Subsystem) -> SubsystemStats {
    let namespaces = subsystem.namespaces.iter().zip(&subsystem.used_on);
    let numbers = |cores: &Vec<usize>| cores.iter().map(|core| *core as u32).collect();
    SubsystemStats {
        nqn: subsystem.nqn.clone(),
        io: io(&subsystem.io),
        namespaces: namespaces
            .map(|((nsid, counts), used_on)| NamespaceStats {
                nsid: nsid.0,
                io: io(counts),
                cores: numbers(used_on),
            })
            .collect(),
    }
}

fn host(host: &Host) -> HostStats {
    HostStats {
        nqn: host.nqn.clone(),
        controllers: host.controllers as u64,
        io_queues: host.io_queues as u64,
        io: io(&host.io),
    }
}
