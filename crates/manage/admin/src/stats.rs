//! What a target has counted, for programs. A client asks again and again and takes differences.

use farblock_target::{
    AdmissionCounts, ByReason, CoreStats as Core, ErrorCounts, HostStats as Host, IoCounts,
    LATENCY_STEPS, LatencyCounts, Stats as Counted, SubsystemStats as Subsystem, latency_bound_us,
    status_name,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// What a target has counted since it started. Counts never become less, except that those of what
/// is not there any more are left out, and that all begin with 0 when the target is started anew:
/// `uptime_ms` is less then.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// When this was counted, in milliseconds since the target started: rates are differences of
    /// counts, divided by those of this.
    pub uptime_ms: u64,
    /// When this was counted, in milliseconds since 1970.
    pub time_ms: u64,
    /// The most that something took that is in each of a `Latency`'s counts, in microseconds. There
    /// may be one count more than these, of all that took longer.
    pub latency_bounds_us: Vec<u64>,
    /// Who came, and who was not let in.
    pub connections: ConnectionStats,
    /// How often an ANA state of a listener, or the ANA group of a namespace, became another.
    #[serde(default)]
    pub ana_changes: u64,
    /// I/O commands that did not succeed, by the name of their status; those that there were.
    #[serde(default)]
    pub errors_by_status: BTreeMap<String, u64>,
    /// All I/O.
    pub total: IoStats,
    /// By core.
    pub cores: Vec<CoreStats>,
    /// By subsystem.
    pub subsystems: Vec<SubsystemStats>,
    /// By host, those that have gone included.
    pub hosts: Vec<HostStats>,
    /// Of hosts that are too many to be told apart, or whose place others needed.
    pub other_hosts: IoStats,
}

/// I/O commands: each is counted when it is answered.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct IoStats {
    /// Read commands that succeeded.
    pub reads: u64,
    /// Write commands that succeeded.
    pub writes: u64,
    /// Other I/O commands that succeeded: Flush, Compare, deallocation and so on.
    pub others: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// I/O commands that did not succeed.
    pub errors: ErrorStats,
    /// Operations that failed in what stores the namespaces: no space, media errors, lost disks.
    pub storage_errors: u64,
    /// What they waited for before anything was done.
    #[serde(default)]
    pub waited: Waits,
    /// How long reads took that succeeded.
    pub read_latency: Latency,
    /// How long writes took that succeeded.
    pub write_latency: Latency,
}

/// Commands by Status Code Type.
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
    /// Vendor Specific, and reserved types.
    pub vendor: u64,
}

/// How long commands waited, all of them together, in nanoseconds: a second in which ten wait is
/// ten.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct Waits {
    /// For a limit of their namespace.
    pub namespace_limit_ns: u64,
    /// For a limit of their host.
    pub host_limit_ns: u64,
    /// Connections, for the turn of their host on a core that several hosts fill. It is not known
    /// for which namespaces.
    pub turn_ns: u64,
}

/// How long commands took at the target, from their arrival to their answer. This is measured while
/// somebody asks for it: the first answer in a while has nothing of the time before.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
    /// How many took no longer than each of `latency_bounds_us`, and longer than the one before.
    /// What is missing at the end is 0.
    pub counts: Vec<u64>,
}

/// Who came, and who was not let in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ConnectionStats {
    /// Connections at the moment.
    pub open: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections and queues that were refused, by reason: `host_not_allowed`, `no_subsystem`,
    /// `full`, `tls_missing`, `tls_wrong_key` and others.
    pub refused: BTreeMap<String, u64>,
    /// `header_digest`, `data_digest`, and other breaches of the `protocol`.
    pub faults: BTreeMap<String, u64>,
    /// Queues whose hosts have authenticated.
    pub authenticated: u64,
    /// Queues whose hosts could not, by reason: `failed` is a wrong secret.
    pub not_authenticated: BTreeMap<String, u64>,
}

/// What a core did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CoreStats {
    /// Its number.
    pub core: u32,
    /// Connections that it serves at the moment.
    pub connections: u64,
    /// Processor time of its thread, in nanoseconds: how busy it is. None where the system does not
    /// tell.
    pub busy_ns: Option<u64>,
    /// I/O of its connections.
    pub io: IoStats,
}

/// What was done in a subsystem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SubsystemStats {
    /// Its name.
    pub nqn: String,
    /// All of it, namespaces that it had before included.
    pub io: IoStats,
    /// By namespace.
    pub namespaces: Vec<NamespaceStats>,
}

/// What was done in a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NamespaceStats {
    /// Its identifier.
    pub nsid: u32,
    /// Its I/O.
    pub io: IoStats,
    /// The cores that serve queues which have used it.
    #[serde(default)]
    pub cores: Vec<u32>,
}

/// What a host did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HostStats {
    /// Its name.
    pub nqn: String,
    /// Controllers that it has at the moment; none if it has gone.
    pub controllers: u64,
    /// I/O queues that it has at the moment.
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
