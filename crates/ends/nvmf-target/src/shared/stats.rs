//! Everything that a running target counts, at one moment.

use super::TargetShared;
use crate::admissions::AdmissionCounts;
use crate::meter::IoCounts;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os;
use farblock_wire::Status;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a target has counted since it started. No count ever becomes less, but those of what is
/// not there any more are gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    /// How long the target has been running: the time of these counts.
    pub uptime: Duration,
    /// Whether it is measured how long commands take.
    pub measures_latency: bool,
    /// Connections, those of which nothing is known yet included.
    pub connections: usize,
    /// Who came, and who was not let in.
    pub admissions: AdmissionCounts,
    /// How often an ANA state of a listener, or the ANA group of a namespace, became another.
    pub ana_changes: u64,
    /// I/O commands that did not succeed, by Status Code Type and Status Code.
    pub by_status: BTreeMap<u16, u64>,
    /// All I/O.
    pub total: IoCounts,
    /// By core.
    pub cores: Vec<CoreStats>,
    /// By subsystem.
    pub subsystems: Vec<SubsystemStats>,
    /// By host, those that have gone included.
    pub hosts: Vec<HostStats>,
    /// Of hosts that are too many to be told apart, or whose place others needed.
    pub other_hosts: IoCounts,
}

/// What a core did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreStats {
    /// Connections that it serves at the moment.
    pub connections: usize,
    /// Processor time of its thread, where the system tells that.
    pub processor_time: Option<Duration>,
    /// I/O of its connections.
    pub io: IoCounts,
}

/// What was done in a subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubsystemStats {
    /// Its name.
    pub nqn: String,
    /// All of it, namespaces that it had before included.
    pub io: IoCounts,
    /// By namespace.
    pub namespaces: Vec<(NamespaceId, IoCounts)>,
    /// By namespace, in the same order, the cores whose queues have used it and may do so still.
    pub used_on: Vec<Vec<usize>>,
}

/// What a host did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostStats {
    /// Its name.
    pub nqn: String,
    /// Controllers that it has at the moment.
    pub controllers: usize,
    /// I/O queues that it has at the moment.
    pub io_queues: usize,
    /// All its I/O.
    pub io: IoCounts,
}

/// The name of a status, by its Status Code Type and Status Code.
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
            let (connections, processor_time) = self.cores_seen.look(core);
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
