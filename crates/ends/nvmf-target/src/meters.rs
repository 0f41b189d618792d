//! All I/O meters of a target: one per core and namespace, and one per core and host.
//!
//! A queue gets its meters when it connects and when it first uses a namespace. Counting a later
//! command takes no lock. Hosts choose their own names, so at most [`METERED_HOSTS`] hosts have
//! their own meters. If all these meters are taken, a new host takes the meter of a disconnected
//! host. The counts of that host are then added to `former_hosts`, so that no sum decreases.

use crate::by_namespace::ByNamespace;
use crate::by_status::ByStatus;
use crate::limits::METERED_HOSTS;
use crate::meter::{Answered, IoCounts, Meter, Wait};
use farblock_proto::controller::SubsystemId;
use farblock_proto::ids::NamespaceId;
use farblock_wire::Status;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The meters of one host or namespace: one for each core that has counted something.
type PerCore = BTreeMap<usize, Arc<Meter>>;

#[derive(Default)]
pub(crate) struct Meters {
    all: Mutex<All>,
    pub(crate) by_status: ByStatus,
    measures_latency: AtomicBool,
}

#[derive(Default)]
struct All {
    hosts: BTreeMap<String, PerCore>,
    /// The meters of all hosts that have no meter of their own.
    other_hosts: PerCore,
    /// The summed counts of hosts whose meters were removed, by core.
    former_hosts: BTreeMap<usize, IoCounts>,
    namespaces: HashMap<(SubsystemId, NamespaceId), PerCore>,
    former: HashMap<SubsystemId, Former>,
}

/// The counts of a subsystem's removed namespaces.
#[derive(Default)]
struct Former {
    counts: IoCounts,
    /// The meters of removed namespaces that queues still use.
    meters: Vec<Arc<Meter>>,
}

impl Former {
    fn settle(&mut self) {
        let counts = &mut self.counts;
        self.meters.retain(|meter| {
            let is_used = Arc::strong_count(meter) > 1;
            if !is_used {
                *counts += &meter.counts();
            }
            is_used
        });
    }

    fn sum(&self) -> IoCounts {
        let mut sum = self.counts;
        self.meters.iter().for_each(|meter| sum += &meter.counts());
        sum
    }
}

fn sum(meters: &PerCore) -> IoCounts {
    let mut sum = IoCounts::default();
    meters.values().for_each(|meter| sum += &meter.counts());
    sum
}

/// Returns the cores on which an open queue uses one of these meters.
fn in_use(meters: &PerCore) -> Vec<usize> {
    let is_used = |meter: &Arc<Meter>| Arc::strong_count(meter) > 1;
    meters.iter().filter(|(_, meter)| is_used(meter)).map(|(core, _)| *core).collect()
}

#[derive(Default)]
pub(crate) struct Readings {
    pub(crate) hosts: BTreeMap<String, IoCounts>,
    pub(crate) other_hosts: IoCounts,
    pub(crate) cores: BTreeMap<usize, IoCounts>,
    pub(crate) namespaces: HashMap<(SubsystemId, NamespaceId), IoCounts>,
    /// For each namespace, the cores with open queues that have used the namespace.
    pub(crate) used_on: HashMap<(SubsystemId, NamespaceId), Vec<usize>>,
    /// The counts of whole subsystems, including removed namespaces.
    pub(crate) subsystems: HashMap<SubsystemId, IoCounts>,
}

impl Meters {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().expect("no holder panics")
    }

    pub(crate) fn measures_latency(&self) -> bool {
        self.measures_latency.load(Ordering::Relaxed)
    }

    pub(crate) fn measure_latency(&self, measure: bool) {
        self.measures_latency.store(measure, Ordering::Relaxed);
    }

    fn host(&self, core: usize, nqn: &str) -> Arc<Meter> {
        let mut all = self.lock();
        if !all.hosts.contains_key(nqn) && all.hosts.len() >= METERED_HOSTS && !all.make_room() {
            return Arc::clone(all.other_hosts.entry(core).or_default());
        }
        Arc::clone(all.hosts.entry(nqn.to_owned()).or_default().entry(core).or_default())
    }

    fn namespace(&self, core: usize, subsystem: SubsystemId, nsid: NamespaceId) -> Arc<Meter> {
        let mut all = self.lock();
        let meters = all.namespaces.entry((subsystem, nsid)).or_default();
        Arc::clone(meters.entry(core).or_default())
    }

    /// Removes a namespace's meters, and keeps their counts in the subsystem's sums.
    pub(crate) fn forget_namespace(&self, subsystem: SubsystemId, nsid: NamespaceId) {
        let mut all = self.lock();
        if let Some(meters) = all.namespaces.remove(&(subsystem, nsid)) {
            let former = all.former.entry(subsystem).or_default();
            former.meters.extend(meters.into_values());
            former.settle();
        }
    }

    pub(crate) fn forget_subsystem(&self, subsystem: SubsystemId) {
        let mut all = self.lock();
        all.namespaces.retain(|(of, _), _| *of != subsystem);
        all.former.remove(&subsystem);
    }

    pub(crate) fn subsystems(&self) -> HashMap<SubsystemId, IoCounts> {
        self.lock().subsystems()
    }

    pub(crate) fn read(&self) -> Readings {
        let mut all = self.lock();
        all.former.values_mut().for_each(Former::settle);
        let mut other_hosts = sum(&all.other_hosts);
        all.former_hosts.values().for_each(|counts| other_hosts += counts);
        let mut cores = all.former_hosts.clone();
        for (core, meter) in all.hosts.values().chain([&all.other_hosts]).flatten() {
            *cores.entry(*core).or_default() += &meter.counts();
        }
        Readings {
            hosts: all.hosts.iter().map(|(nqn, meters)| (nqn.clone(), sum(meters))).collect(),
            other_hosts,
            cores,
            namespaces: all.namespaces.iter().map(|(key, meters)| (*key, sum(meters))).collect(),
            used_on: all.namespaces.iter().map(|(key, meters)| (*key, in_use(meters))).collect(),
            subsystems: all.subsystems(),
        }
    }
}

impl All {
    /// Removes the meters of a host that is not connected. Returns false if every host with meters
    /// is connected.
    fn make_room(&mut self) -> bool {
        let is_idle = |meters: &PerCore| meters.values().all(|meter| Arc::strong_count(meter) == 1);
        let Some(gone) = self.hosts.iter().find(|(_, meters)| is_idle(meters)) else {
            return false;
        };
        let gone = gone.0.clone();
        for (core, meter) in self.hosts.remove(&gone).unwrap_or_default() {
            *self.former_hosts.entry(core).or_default() += &meter.counts();
        }
        true
    }

    fn subsystems(&self) -> HashMap<SubsystemId, IoCounts> {
        let mut sums: HashMap<_, _> =
            self.former.iter().map(|(id, former)| (*id, former.sum())).collect();
        for ((subsystem, _), meters) in &self.namespaces {
            *sums.entry(*subsystem).or_default() += &sum(meters);
        }
        sums
    }
}

pub(crate) struct QueueMeters {
    meters: Arc<Meters>,
    core: usize,
    subsystem: SubsystemId,
    host: Arc<Meter>,
    namespaces: ByNamespace<Arc<Meter>>,
}

impl QueueMeters {
    pub(crate) fn new(
        meters: &Arc<Meters>,
        core: usize,
        subsystem: SubsystemId,
        host: &str,
    ) -> Self {
        let host = meters.host(core, host);
        Self {
            meters: Arc::clone(meters),
            core,
            subsystem,
            host,
            namespaces: ByNamespace::default(),
        }
    }

    /// Counts a command for its host, and also for `namespace` if that is set.
    pub(crate) fn count(&mut self, namespace: Option<NamespaceId>, answered: &Answered) {
        self.host.count(answered);
        if answered.status.code() != Status::SUCCESS.code() {
            self.meters.by_status.count(answered.status);
        }
        if let Some(nsid) = namespace {
            self.namespace(nsid).count(answered);
        }
    }

    pub(crate) fn count_storage_error(&mut self, nsid: NamespaceId, is_media_error: bool) {
        self.host.count_storage_error(is_media_error);
        self.namespace(nsid).count_storage_error(is_media_error);
    }

    /// Counts a wait for the host, and also for `namespace` if that is set.
    pub(crate) fn count_wait(&mut self, namespace: Option<NamespaceId>, wait: Wait, ns: u64) {
        self.host.count_wait(wait, ns);
        if let Some(nsid) = namespace {
            self.namespace(nsid).count_wait(wait, ns);
        }
    }

    pub(crate) fn knows(&self, nsid: NamespaceId) -> bool {
        self.namespaces.find(nsid).is_some()
    }

    /// Drops the cached namespace meters, since the namespaces or their stores have changed.
    pub(crate) fn forget(&mut self) {
        self.namespaces.clear();
    }

    fn namespace(&mut self, nsid: NamespaceId) -> &Meter {
        let (meters, core, subsystem) = (&self.meters, self.core, self.subsystem);
        self.namespaces.find_or_insert(nsid, || meters.namespace(core, subsystem, nsid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::MeterKind;

    const READ: Answered =
        Answered { kind: MeterKind::Read, bytes: 512, status: Status::SUCCESS, took: None };

    fn subsystem() -> SubsystemId {
        let mut registry = farblock_proto::controller::Registry::new();
        let config = crate::Subsystem::new("nqn.2026-11.org.farblock:one").config;
        registry.add_subsystem(config).expect("a new subsystem")
    }

    #[test]
    fn totals_keep_the_counts_of_removed_namespaces_and_hosts() {
        let (meters, subsystem) = (Arc::new(Meters::default()), subsystem());
        let mut first = QueueMeters::new(&meters, 0, subsystem, "first");
        let mut second = QueueMeters::new(&meters, 1, subsystem, "second");
        first.count(Some(NamespaceId(1)), &READ);
        second.count(Some(NamespaceId(1)), &READ);
        second.count(None, &Answered { status: Status::INVALID_NAMESPACE, ..READ });
        meters.forget_namespace(subsystem, NamespaceId(1));
        // The queues still use the meters of the removed namespace.
        second.count(Some(NamespaceId(1)), &READ);
        assert_eq!(meters.read().subsystems[&subsystem].reads, 3);
        first.forget();
        second.forget();
        let read = meters.read();
        assert_eq!(read.subsystems[&subsystem].reads, 3);
        assert!(read.namespaces.is_empty());
        assert_eq!((read.hosts["first"].reads, read.hosts["second"].reads), (1, 2));
        assert_eq!(read.hosts["second"].errors.generic, 1);
        assert_eq!((read.cores[&0].reads, read.cores[&1].reads), (1, 2));
        first.count_wait(Some(NamespaceId(2)), Wait::HostLimit, 7);
        first.count_wait(None, Wait::Turn, 5);
        let read = meters.read();
        let key = (subsystem, NamespaceId(2));
        assert_eq!(read.namespaces[&key].waited.host_limit_ns, 7);
        assert_eq!(read.namespaces[&key].waited.turn_ns, 0);
        let waited = read.hosts["first"].waited;
        assert_eq!((waited.host_limit_ns, waited.turn_ns), (7, 5));
        assert_eq!(read.used_on[&key], [0]);
        first.forget();
        assert!(meters.read().used_on[&key].is_empty());
    }

    #[test]
    fn the_number_of_metered_host_names_is_bounded() {
        let (meters, subsystem) = (Arc::new(Meters::default()), subsystem());
        let mut stays = QueueMeters::new(&meters, 0, subsystem, "0 stays");
        stays.count(None, &READ);
        for number in 0..2 * METERED_HOSTS {
            let name = format!("{number:09}");
            QueueMeters::new(&meters, 0, subsystem, &name).count(None, &READ);
        }
        let read = meters.read();
        assert_eq!(read.hosts.len(), METERED_HOSTS);
        assert_eq!(read.hosts["0 stays"].reads, 1);
        assert_eq!(read.other_hosts.reads as usize, METERED_HOSTS + 1);
        assert_eq!(read.cores[&0].reads as usize, 2 * METERED_HOSTS + 1);
        let all: Vec<_> = (0..METERED_HOSTS)
            .map(|number| QueueMeters::new(&meters, 0, subsystem, &format!("{number:09}")))
            .collect();
        let mut more = QueueMeters::new(&meters, 0, subsystem, "more");
        more.count(None, &READ);
        let read = meters.read();
        assert!(!read.hosts.contains_key("more") && read.hosts.len() == METERED_HOSTS);
        assert_eq!(read.cores[&0].reads as usize, 2 * METERED_HOSTS + 2);
        drop(all);
    }
}
