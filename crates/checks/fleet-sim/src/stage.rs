//! The simulated machines: targets, and hosts with their disks.

use crate::error::{SimulationError, failure};
use crate::limits;
use crate::settings::Settings;
use farblock_backends::null::Null;
use farblock_block::{Completion, Namespace, Op, Queue};
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, HostId, Options, Url, discover};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os::{self, JoinHandle};
use farblock_reactor::sim::{EarlyFaults, NetFaults, Service, World, on_machine};
use farblock_reactor::{Config, EngineKind, Reactor, TaskId, Waker};
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const BLOCK_BYTES: u32 = 512;
const DISK_BYTES: u64 = 1 << 20;
/// The base address of the targets: target N has this address plus N + 1.
const TARGETS: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
const PORT: u16 = 4420;
/// The number of the first target's machine, which is above the numbers of all hosts.
const FIRST_TARGET: u32 = 1 << 20;
/// The maximum delay of data in the network.
const NET_DELAY: Duration = Duration::from_micros(100);
/// The pause before a host repeats a query that a discovery service has not answered.
const DISCOVERY_PAUSE: Duration = Duration::from_secs(1);
/// The number of operations in a probe of one disk: a read and a write.
const PROBES: u64 = 2;

/// The machine of a target.
struct Place {
    nqn: String,
    address: SocketAddr,
    /// The target; `None` while it is down.
    target: Option<Target>,
    /// The sum of the counts of earlier target processes on this machine.
    before: Counts,
}

/// The counts of the connections that targets have accepted and refused so far.
#[derive(Clone, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) accepted: u64,
    pub(crate) refused: BTreeMap<String, u64>,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.accepted += other.accepted;
        for (reason, count) in &other.refused {
            *self.refused.entry(reason.clone()).or_default() += count;
        }
    }

    pub(crate) fn since(&self, before: &Counts) -> Counts {
        let was = |reason: &String| before.refused.get(reason).copied().unwrap_or(0);
        let refused = self.refused.iter().map(|(name, count)| (name.clone(), count - was(name)));
        Counts {
            accepted: self.accepted - before.accepted,
            refused: refused.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl Place {
    fn new(number: u32) -> Place {
        let ip = Ipv4Addr::from_bits(TARGETS.to_bits() + 1 + number);
        Place {
            nqn: format!("nqn.2026-11.org.farblock:target-{number}"),
            address: SocketAddr::from((ip, PORT)),
            target: None,
            before: Counts::default(),
        }
    }

    /// The counts of this machine, including the counts of its current target.
    fn current(&self, world: &World) -> Counts {
        let mut counts = Counts::default();
        if let Some(target) = &self.target {
            let admissions = target.control().stats().admissions;
            counts.accepted = admissions.accepted;
            let named = admissions.refused.iter().map(|(name, &count)| ((*name).into(), count));
            counts.refused = named.collect();
        }
        // The machine, not the target, refuses these connections, even while no target runs.
        counts.refused.insert("backlog".to_owned(), world.overflows(self.address));
        counts
    }

    fn counts(&self, world: &World) -> Counts {
        let mut counts = self.current(world);
        counts.add(&self.before);
        counts
    }

    fn start(&mut self) -> Result<(), SimulationError> {
        let failed = |why: &dyn ToString| failure(&self.nqn, why.to_string());
        let null = Null::new(BLOCK_BYTES, DISK_BYTES).map_err(|error| failed(&error))?;
        let mut subsystem = Subsystem::new(&self.nqn);
        subsystem.config.allow_any_host = true;
        let export = Export { namespace: Arc::new(null), identity: self.nqn.clone() };
        subsystem.exports.insert(NamespaceId(1), export);
        let config = TargetConfig {
            subsystems: vec![subsystem],
            listeners: vec![self.address],
            cores: vec![0],
            engine: EngineKind::Sim,
            ..TargetConfig::default()
        };
        self.target = Some(Target::start(&config).map_err(|error| failed(&error))?);
        Ok(())
    }
}

/// A disk of a host, and an open queue on it.
struct Used {
    /// The disk, which must live as long as its queue.
    _disk: Disk,
    queue: Box<dyn Queue>,
    target: u32,
}

/// A host that has started: its number, and its disks, each with the number of its target.
type Arrival = (u32, Vec<(u32, Disk)>);

struct Host {
    disks: Vec<Used>,
    /// The number of operations that have not completed.
    pending: u64,
}

/// The shared state of the threads that start hosts.
#[derive(Clone)]
struct Starters {
    settings: Settings,
    next: Arc<AtomicU32>,
    places: Arc<Vec<(SocketAddr, String)>>,
    sender: Sender<Arrival>,
    waker: Waker,
    failure: Arc<Mutex<Option<String>>>,
}

/// The simulated machines.
pub(crate) struct Stage {
    settings: Settings,
    places: Vec<Place>,
    hosts: Vec<Host>,
    by_task: HashMap<TaskId, usize>,
    done: Vec<Completion>,
    ready: Vec<TaskId>,
    reactor: Reactor,
    arrivals: Option<Receiver<Arrival>>,
    starters: Vec<JoinHandle<()>>,
    failure: Arc<Mutex<Option<String>>>,
    pub(crate) failed: u64,
    world: World,
}

impl Stage {
    /// Creates a world with the targets, but without hosts.
    pub(crate) fn new(settings: Settings) -> Result<Stage, SimulationError> {
        let world = World::enter(settings.seed);
        let early = EarlyFaults::default();
        world.set_net_faults(NetFaults { delay: NET_DELAY, split_one_in: 0, early });
        let config = Config { engine: EngineKind::Sim, ..Config::default() };
        let reactor = Reactor::new(&config).map_err(|error| failure("the simulation", error))?;
        let mut stage = Stage {
            settings,
            places: (0..settings.targets).map(Place::new).collect(),
            hosts: (0..settings.hosts).map(|_| Host { disks: Vec::new(), pending: 0 }).collect(),
            by_task: HashMap::new(),
            done: Vec::new(),
            ready: Vec::new(),
            reactor,
            arrivals: None,
            starters: Vec::new(),
            failure: Arc::default(),
            failed: 0,
            world,
        };
        let service = Service {
            accept: Duration::from_micros(settings.accept_us.into()),
            piece: Duration::from_micros(settings.message_us.into()),
            backlog: limits::BACKLOG,
        };
        for number in 0..settings.targets {
            stage.world.set_service(stage.places[number as usize].address, service);
            stage.start_target(number)?;
        }
        Ok(stage)
    }

    pub(crate) fn start_target(&mut self, number: u32) -> Result<(), SimulationError> {
        let place = &mut self.places[number as usize];
        on_machine(FIRST_TARGET + number, || place.start())
    }

    /// Kills the process of a target. The machine of the target resets the connections.
    pub(crate) fn kill_target(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        let Some(target) = &place.target else { return };
        let admissions = target.control().stats().admissions;
        place.before.accepted += admissions.accepted;
        for (reason, count) in admissions.refused {
            *place.before.refused.entry(reason.to_owned()).or_default() += count;
        }
        self.world.kill(place.address);
        let target = place.target.take();
        // Drop the target on another thread. Its connections are closed already, so it can no
        // longer reach any peer.
        on_machine(FIRST_TARGET + number, || {
            os::spawn("dying".to_owned(), move || drop(target)).expect("the world starts a thread");
        });
    }

    pub(crate) fn cut_hosts(&self, count: u32, time: Duration) {
        self.world.cut(1..count + 1, time);
    }

    /// The virtual time since the start of the world.
    pub(crate) fn now(&self) -> Duration {
        self.world.elapsed()
    }

    /// A digest of all events.
    pub(crate) fn trace(&self) -> u64 {
        self.world.trace()
    }

    pub(crate) fn counts(&self) -> Vec<Counts> {
        self.places.iter().map(|place| place.counts(&self.world)).collect()
    }

    /// Starts all hosts, as many in parallel as the limit allows.
    pub(crate) fn bring_hosts_up(&mut self) {
        let (sender, arrivals) = channel();
        let places = self.places.iter().map(|place| (place.address, place.nqn.clone()));
        let task = self.reactor.add_task();
        let starters = Starters {
            settings: self.settings,
            next: Arc::default(),
            places: Arc::new(places.collect()),
            sender,
            waker: self.reactor.waker(task),
            failure: Arc::clone(&self.failure),
        };
        self.arrivals = Some(arrivals);
        for number in 0..limits::STARTS.min(self.settings.hosts) {
            let starters = starters.clone();
            let thread = os::spawn(format!("starter-{number}"), move || starters.run());
            self.starters.push(thread.expect("the world starts a thread"));
        }
        self.hosts.iter_mut().for_each(|host| host.pending = 1);
    }

    fn take_arrivals(&mut self) -> Result<(), SimulationError> {
        let failed = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(why) = failed {
            return Err(failure("a simulated host", why));
        }
        let Some(arrivals) = &self.arrivals else { return Ok(()) };
        let arrived: Vec<_> = arrivals.try_iter().collect();
        for (number, disks) in arrived {
            let task = self.reactor.add_task();
            self.by_task.insert(task, number as usize);
            let host = &mut self.hosts[number as usize];
            host.pending = 0;
            for (target, disk) in disks {
                let queue = disk
                    .open(&self.reactor, task)
                    .map_err(|error| failure(&format!("simulated host {number}"), error))?;
                host.disks.push(Used { _disk: disk, queue, target });
            }
            self.probe(number, |_| true);
        }
        if self.hosts.iter().all(|host| !host.disks.is_empty()) {
            self.arrivals = None;
            self.starters.drain(..).for_each(|thread| drop(thread.join()));
        }
        Ok(())
    }

    /// Makes a host read from and write to its disks on the targets for which `is_meant` returns
    /// true. Returns false if the host has no disk on such a target.
    pub(crate) fn probe(&mut self, number: u32, is_meant: impl Fn(u32) -> bool) -> bool {
        let host = &mut self.hosts[number as usize];
        let mut submitted = 0;
        for used in host.disks.iter_mut().filter(|used| is_meant(used.target)) {
            let mut buffer = self.reactor.buffers().take(BLOCK_BYTES as usize);
            buffer.fill(0);
            used.queue.submit(Op::read(0, 1, buffer, 0));
            let mut buffer = self.reactor.buffers().take(BLOCK_BYTES as usize);
            buffer.fill(0);
            used.queue.submit(Op::write(1, 1, buffer, 1));
            used.queue.poll(&mut self.done);
            submitted += PROBES;
        }
        host.pending += submitted;
        self.settle(number as usize);
        submitted > 0
    }

    /// Whether the host has operations in flight, or has not started.
    pub(crate) fn waits(&self, number: u32) -> bool {
        self.hosts[number as usize].pending > 0
    }

    /// Lets virtual time pass until an event, or until `until`. Returns the hosts with completions.
    pub(crate) fn turn(&mut self, until: Duration) -> Result<Vec<u32>, SimulationError> {
        let left = until.saturating_sub(self.now());
        let mut ready = std::mem::take(&mut self.ready);
        let polled = self.reactor.poll(Some(left), &mut ready);
        polled.map_err(|error| failure("the simulation", error))?;
        let mut ended = Vec::new();
        for task in ready.drain(..) {
            let Some(&number) = self.by_task.get(&task) else {
                self.take_arrivals()?;
                continue;
            };
            for used in &mut self.hosts[number].disks {
                used.queue.poll(&mut self.done);
            }
            self.settle(number);
            ended.push(number as u32);
        }
        self.ready = ready;
        Ok(ended)
    }

    fn settle(&mut self, number: usize) {
        for completion in self.done.drain(..) {
            self.failed += u64::from(completion.result.is_err());
            self.hosts[number].pending -= 1;
            completion.buffer.into_iter().for_each(|it| self.reactor.buffers().give(it));
        }
    }

    /// Closes all hosts and targets, like programs that exit.
    pub(crate) fn finish(self) -> Result<(), SimulationError> {
        let Stage { hosts, places, reactor, world, .. } = self;
        // Close the disks in groups. Each disk is closed by a separate thread, and a large fleet
        // has more disks than a process can have threads.
        let mut hosts = hosts.into_iter();
        while hosts.len() > 0 {
            drop(hosts.by_ref().take(limits::ENDS).collect::<Vec<_>>());
            os::sleep(limits::END);
        }
        drop(reactor);
        for target in places.into_iter().filter_map(|place| place.target) {
            target.stop().map_err(|error| failure("a target", error))?;
        }
        // Give threads that are still closing disks and targets the time to end.
        os::sleep(Duration::from_secs(1));
        match world.threads().first() {
            None => Ok(()),
            Some(name) => Err(failure("the simulation", format!("{name} is left"))),
        }
    }

    /// Leaks all simulated machines, because closing all hosts and targets would take minutes.
    pub(crate) fn abandon(self) {
        std::mem::forget(self);
    }
}

impl Starters {
    /// Starts one host after the other, until no host is left to start.
    fn run(self) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.settings.hosts {
                return;
            }
            match on_machine(1 + number, || self.bring_up(number)) {
                Ok(disks) => drop(self.sender.send((number, disks))),
                Err(why) => {
                    let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(why);
                }
            }
            self.waker.wake();
        }
    }

    fn bring_up(&self, number: u32) -> Result<Vec<(u32, Disk)>, String> {
        let options = options(number, &self.settings);
        let Settings { targets, disks, .. } = self.settings;
        let mut all = Vec::new();
        for disk in 0..disks {
            // Distribute the disks over all targets, so that hosts with similar numbers do not
            // share all targets.
            let target = (number + disk * (targets / disks)) % targets;
            let (address, nqn) = &self.places[target as usize];
            while !is_offered(*address, nqn, &options.connection) {
                os::sleep(DISCOVERY_PAUSE);
            }
            let url: Url = format!("nvme+tcp://{address}/{nqn}?ns=1")
                .parse()
                .map_err(|error| format!("host {number}: {error}"))?;
            let connected = Disk::connect(&[url], &options);
            all.push((target, connected.map_err(|error| format!("host {number}: {error}"))?));
        }
        Ok(all)
    }
}

/// Whether the discovery service of the target offers the subsystem to this host.
fn is_offered(address: SocketAddr, nqn: &str, options: &Options) -> bool {
    let found = discover(&address.to_string(), options);
    found.is_ok_and(|entries| entries.iter().any(|entry| entry.subnqn == nqn))
}

/// The options of a host: the defaults, but with fewer queues, because each queue takes memory.
fn options(number: u32, settings: &Settings) -> DiskOptions {
    let mut id = *b"farblock-sim\0\0\0\0";
    id[12..].copy_from_slice(&number.to_be_bytes());
    let connection = Options {
        hostnqn: Some(format!("nqn.2014-08.org.example:host-{number}")),
        hostid: Some(HostId(id)),
        queues: 1,
        queue_depth: limits::DEPTH,
        engine: EngineKind::Sim,
        ..Options::default()
    };
    DiskOptions {
        connection,
        connect_wait: limits::WAIT_LIMIT,
        reconnect_delay: settings.reconnect_delay(),
        ..DiskOptions::default()
    }
}
