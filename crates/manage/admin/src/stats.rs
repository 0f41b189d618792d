//! Converts the target's counters to the format of the interface.

use farblock_admin_api::{
    ConnectionStats, CoreStats, ErrorStats, HostStats, IoStats, Latency, NamespaceStats, Stats,
    SubsystemStats, Waits,
};
use farblock_target::{
    AdmissionCounts, ByReason, CoreStats as Core, ErrorCounts, HostStats as Host, IoCounts,
    LATENCY_STEPS, LatencyCounts, Stats as Counted, SubsystemStats as Subsystem, latency_bound_us,
    status_name,
};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn of(counted: &Counted) -> Stats {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Stats {
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
