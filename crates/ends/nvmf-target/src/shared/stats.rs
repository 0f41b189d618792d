//! A snapshot of all counters of a running target.

use super::TargetShared;
use crate::admissions::AdmissionCounts;
use crate::meter::IoCounts;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os;
use farblock_wire::Status;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A target's counters since its start. A counter never decreases. When a subsystem, namespace or
/// host is removed, its counters disappear.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    /// The time from the target's start to this snapshot.
    pub uptime: Duration,
    /// Whether the target measures command latency.
    pub measures_latency: bool,
    /// The number of connections, including those that have not completed Connect.
    pub connections: usize,
    /// Counters of accepted and refused connections.
    pub admissions: AdmissionCounts,
    /// The number of changes of listeners' ANA states and of namespaces' ANA groups.
    pub ana_changes: u64,
    /// The number of failed I/O commands, by Status Code Type and Status Code.
    pub by_status: BTreeMap<u16, u64>,
    /// The I/O of all hosts.
    pub total: IoCounts,
    /// The counters by core.
    pub cores: Vec<CoreStats>,
    /// The counters by subsystem.
    pub subsystems: Vec<SubsystemStats>,
    /// The counters by host, including disconnected hosts.
    pub hosts: Vec<HostStats>,
    /// The I/O of hosts without counters, and of former hosts whose counters newer hosts have taken
    /// over.
    pub other_hosts: IoCounts,
}

/// The counters of a core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreStats {
    /// The current number of connections.
    pub connections: usize,
    /// The processor time of the core's thread, where the system reports it.
    pub processor_time: Option<Duration>,
    /// The I/O of the core's connections.
    pub io: IoCounts,
}

/// The counters of a subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubsystemStats {
    /// The subsystem's name.
    pub nqn: String,
    /// All I/O of the subsystem, including removed namespaces.
    pub io: IoCounts,
    /// The counters by namespace.
    pub namespaces: Vec<(NamespaceId, IoCounts)>,
    /// The cores whose open queues have used each namespace, in the order of `namespaces`.
    pub used_on: Vec<Vec<usize>>,
}

/// The counters of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostStats {
    /// The host's name.
    pub nqn: String,
    /// The current number of controllers.
    pub controllers: usize,
    /// The current number of I/O queues.
    pub io_queues: usize,
    /// All I/O of the host.
    pub io: IoCounts,
}

/// Returns the name of a status, given by its Status Code Type and Status Code.
#[must_use]
pub fn status_name(code: u16) -> String {
    Status(code).to_string()
}

impl TargetShared {
    pub(crate) fn stats(&self) -> Stats {
        let mut hosts: HashMap<String, (usize, usize)> = HashMap::new();
        let management = self.lock();
        for summary in management.registry.controllers().filter(|one| one.subsystem.is_some()) {
            let host = hosts.entry(summary.host_nqn.to_owned()).or_default();
            *host = (host.0 + 1, host.1 + summary.io_queues);
        }
        let subsystems = management.registry.subsystems();
        let subsystems: Vec<_> = subsystems
            .map(|(id, config)| (id, config.nqn.clone(), config.namespaces.keys().copied()))
            .map(|(id, nqn, namespaces)| (id, nqn, namespaces.collect::<Vec<_>>()))
            .collect();
        drop(management);
        let mut read = self.meters.read();
        let subsystems = subsystems.into_iter().map(|(id, nqn, namespaces)| {
            let cores = namespaces.iter().map(|nsid| read.used_on.remove(&(id, *nsid)));
            let used_on = cores.map(Option::unwrap_or_default).collect();
            let mut counts = |nsid| (nsid, read.namespaces.remove(&(id, nsid)).unwrap_or_default());
            let namespaces = namespaces.into_iter().map(&mut counts).collect();
            let io = read.subsystems.remove(&id).unwrap_or_default();
            SubsystemStats { nqn, io, namespaces, used_on }
        });
        let subsystems = subsystems.collect();
        let hosts = read.hosts.into_iter().map(|(nqn, io)| {
            let (controllers, io_queues) = hosts.get(&nqn).copied().unwrap_or_default();
            HostStats { nqn, controllers, io_queues, io }
        });
        let mut total = IoCounts::default();
        read.cores.values().for_each(|counts| total += counts);
        let cores = (0..self.mailboxes().len()).map(|core| {
            let (connections, processor_time) = self.core_states.look(core);
            CoreStats {
                connections,
                processor_time,
                io: read.cores.remove(&core).unwrap_or_default(),
            }
        });
        let cores = cores.collect();
        Stats {
            uptime: os::elapsed(self.epoch),
            measures_latency: self.meters.measures_latency(),
            connections: self.connections.load(Ordering::Relaxed),
            admissions: self.admissions.counts(),
            ana_changes: self.ana_changes.load(Ordering::Relaxed),
            by_status: self.meters.by_status.counts(),
            total,
            cores,
            subsystems,
            hosts: hosts.collect(),
            other_hosts: read.other_hosts,
        }
    }
}
