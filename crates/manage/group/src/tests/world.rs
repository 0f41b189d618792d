//! The simulated world: one queue of events in the world's time.

use super::disk::{Disk, DiskOp};
use super::etcd::Etcd;
use super::faults::Fault;
use super::hosts::{HOSTS, HostModel};
use super::process::{Condition, Cores, Links, Open, Process};
use crate::store::{
    StoreEvent, StoreReply, StoreRequest, StoreTrouble, Ticket, Txn, WatchEvent, Write,
};
use crate::{
    Action, AnaGroupRecord, FenceKind, Holder, Member, MemberConfig, MemberEvent, Record, Timing,
    Unknown, VERSION,
};
use farblock_random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) const MS: u64 = 1_000_000;
pub(super) const GROUP: &str = "gold";
/// The time after which a client gives up a request to the store.
const REQUEST_TIME: u64 = 400 * MS;
/// The longest time between a core's check of its permit and its system call.
const CORE_GAP: u64 = 5 * MS;
/// The longest duration of an operation on a disk without a hard fence.
const FLIGHT_MS: u64 = 600;
/// The interval at which a leader tries to open a disk, and the number of failures after which it
/// reports them.
const OPEN_AGAIN: u64 = 100 * MS;
const OPEN_FAILURES: u32 = 6;
pub(super) const NO_FENCE: FenceKind = FenceKind::None { flight_ms: FLIGHT_MS };

pub(super) fn timing() -> Timing {
    Timing {
        hold: Duration::from_secs(2),
        lease: Duration::from_secs(2),
        margin: Duration::from_millis(150),
        settle: Duration::from_secs(3),
        rank_step: Duration::from_millis(200),
        resume: Duration::from_secs(1),
        restart: Duration::from_millis(200),
    }
}

/// The name of a process: the number of the member, and of the start.
pub(super) type Pid = (usize, u64);

/// An event. The events from `Tick` on belong to a process: a stopped process sees them when it
/// continues, and a dead one never does.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    Expire,
    Host(usize),
    Propose,
    Fault,
    Heal(Fault),
    Start(usize),
    Watchdog(Pid),
    /// A process exits.
    End(Pid),
    /// The watchdog of an ended process, with its random number, checks the disks.
    Release(Pid, u64),
    /// The watchdog's transaction arrives at the store.
    Released(Txn),
    Arrive(Pid, Ticket, StoreRequest),
    Place(Pid, u32, u64, Vec<Holder>),
    Enter(Pid, u32, u64, Option<u64>),
    /// A leader tries to open a disk, after this number of failures.
    Open(Pid, u32, u64, u32),
    Land(Pid, DiskOp),
    Tick(Pid),
    Reply(Pid, Ticket, StoreReply),
    Watch(Pid, u64),
    Event(Pid, MemberEvent),
    Deliver(Pid, DiskOp),
    Submit(Pid, DiskOp),
    Complete(Pid, DiskOp, Option<u64>),
}

impl Happening {
    fn owner(&self) -> Option<Pid> {
        match self {
            Self::Tick(pid)
            | Self::Reply(pid, ..)
            | Self::Watch(pid, _)
            | Self::Open(pid, ..)
            | Self::Event(pid, _)
            | Self::Deliver(pid, _)
            | Self::Submit(pid, _)
            | Self::Complete(pid, ..) => Some(*pid),
            _ => None,
        }
    }
}

/// The counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    pub(super) done: u64,
    pub(super) takeovers: u64,
    pub(super) answers: u64,
    /// Proposed reservation changes that failed, because another change was first.
    pub(super) conflicts: u64,
    pub(super) refused: u64,
    pub(super) faults: u64,
    pub(super) held_over: u64,
    pub(super) released: u64,
    pub(super) suspicions: u64,
}

/// The step of a host's reservation command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The member reads the number of the last change. It must be at least `least`, which some
    /// member has already answered. `host`: the host to exclude, or to admit again.
    Consults { least: u64, host: usize },
    /// The member proposes to exclude these hosts.
    Proposes(BTreeSet<usize>),
}

/// A reservation command whose answer a host awaits.
pub(super) struct Asked {
    pub(super) group: u32,
    pub(super) pid: Pid,
    pub(super) step: Step,
}

/// The time, the queue of events, and the random numbers.
pub(super) struct Course {
    pub(super) now: u64,
    number: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    /// The events for stopped processes, which get them when they continue.
    deferred: Vec<Happening>,
    pub(super) random: Random,
    /// See [`Timing::hold`].
    hold: Duration,
}

impl Course {
    pub(super) fn after(&mut self, delay: u64, happening: Happening) {
        self.number += 1;
        self.queue.insert((self.now + delay, self.number), happening);
    }

    pub(super) fn delay(&mut self, most: u64) -> u64 {
        1 + self.random.below(most)
    }
}

pub(super) struct World {
    pub(super) course: Course,
    pub(super) etcd: Etcd,
    pub(super) disks: BTreeMap<u32, Disk>,
    pub(super) processes: Vec<Process>,
    pub(super) hosts: Vec<HostModel>,
    /// The reservation commands, by the number of the question or proposal.
    pub(super) asked: BTreeMap<u64, Asked>,
    pub(super) faults: Vec<Fault>,
    pub(super) counts: Counts,
    last_token: u64,
    /// The first wrong result that the oracle found at a disk or host.
    pub(super) wrong: Option<String>,
    pub(super) has_trace: bool,
    /// Whether the world starts no new faults.
    pub(super) is_calm: bool,
}

impl World {
    /// A world with random members, disks and faults.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(Random::mix(&[seed, 41]));
        let members = if random.one_in(4) { random.within(6..17) } else { random.within(3..6) };
        let groups = 1 + random.below(4);
        let any = |random: &mut Random| match random.below(4) {
            0 => FenceKind::BlockList,
            1 => FenceKind::PersistentReservation,
            2 => FenceKind::MirrorGeneration,
            _ => NO_FENCE,
        };
        let kinds: Vec<_> = (0..groups).map(|_| any(&mut random)).collect();
        let mut world = Self::quiet(random, members as usize, &kinds);
        // With a longer hold, a lease may end before the permits. Members must still never write
        // together.
        if world.course.random.one_in(2) {
            world.course.hold = Duration::from_secs(3);
        }
        world.etcd.ppm = world.course.random.below(20_001) as i64 - 10_000;
        world.course.after(3_000 * MS, Happening::Propose);
        world.course.after(3_000 * MS, Happening::Fault);
        world
    }

    /// A world without faults and reservations.
    pub(super) fn quiet(random: Random, members: usize, kinds: &[FenceKind]) -> Self {
        let course = Course {
            now: 0,
            number: 0,
            queue: BTreeMap::new(),
            deferred: Vec::new(),
            random,
            hold: timing().hold,
        };
        let mut world = Self {
            course,
            etcd: Etcd::default(),
            disks: BTreeMap::new(),
            processes: Vec::new(),
            hosts: (0..HOSTS).map(|_| HostModel::default()).collect(),
            asked: BTreeMap::new(),
            faults: Vec::new(),
            counts: Counts::default(),
            last_token: 0,
            wrong: None,
            has_trace: std::env::var_os("GROUP_TRACE").is_some(),
            is_calm: false,
        };
        for (group, kind) in (1..).zip(kinds) {
            let record = AnaGroupRecord {
                version: VERSION,
                fences: vec![*kind],
                namespaces: Vec::new(),
                unknown: Unknown::new(),
            };
            world.etcd.put(&format!("farblock/{GROUP}/ana/{group}"), record.to_value());
            world.disks.insert(group, Disk::new(*kind));
        }
        for number in 0..members {
            let process = world.process(number, 0);
            world.processes.push(process);
            world.processes[number].condition = Condition::Dead;
            let delay = world.course.delay(500 * MS);
            world.course.after(delay, Happening::Start(number));
        }
        for host in 0..HOSTS {
            world.course.after(1, Happening::Host(host));
        }
        world.course.after(3_000 * MS, Happening::Expire);
        world
    }

    fn process(&mut self, number: usize, life: u64) -> Process {
        let random = &mut self.course.random;
        let clock = (random.below(1 << 40), random.below(1_001) as i64 - 500);
        let (clock, links) = match self.processes.get(number) {
            Some(old) => (old.clock, old.links),
            None => (clock, Links::default()),
        };
        let old = self.processes.get(number).map(|old| old.member.config());
        let mut predecessors = old.map(|old| old.predecessors.clone()).unwrap_or_default();
        predecessors.extend(old.map(|old| old.process));
        let config = MemberConfig {
            group: GROUP.to_owned(),
            name: format!("m{number}"),
            process: self.course.random.bits() >> 1,
            addresses: vec![format!("m{number}.example:4420")],
            weight: 1,
            program: "1".to_owned(),
            predecessors,
            timing: Timing { hold: self.course.hold, ..timing() },
        };
        let mut process = Process {
            member: Member::new(config, farblock_proto::time::Instant(0)),
            life,
            condition: Condition::Running,
            clock,
            links,
            cores: Cores::default(),
            awaited: BTreeSet::new(),
            watch: None,
            watches: 0,
            tick_at: None,
        };
        let now = process.local(self.course.now);
        let config = process.member.config().clone();
        process.member = Member::new(config, now);
        process
    }

    /// Runs until this time, or until the oracle finds a wrong result.
    pub(super) fn run(&mut self, until: u64) {
        while self.wrong.is_none() {
            let Some(entry) = self.course.queue.first_entry() else { break };
            if entry.key().0 > until {
                break;
            }
            let ((at, _), happening) = entry.remove_entry();
            self.course.now = at;
            if let Some((number, life)) = happening.owner() {
                let process = &self.processes[number];
                if process.life != life || process.condition == Condition::Dead {
                    continue;
                }
                if process.condition == Condition::Stopped {
                    self.course.deferred.push(happening);
                    continue;
                }
            }
            if self.has_trace && !matches!(happening, Happening::Tick(_) | Happening::Expire) {
                eprintln!("{:.3} {happening:?}", at as f64 / MS as f64);
            }
            self.happen(happening);
        }
        self.course.now = self.course.now.max(until);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Expire => {
                self.etcd.expire(self.course.now);
                self.course.after(200 * MS, Happening::Expire);
            }
            Happening::Host(host) => self.host(host),
            Happening::Propose => self.propose(),
            Happening::Fault => self.fault(),
            Happening::Heal(fault) => self.heal(fault),
            Happening::Start(number) => self.start(number),
            Happening::Watchdog((number, life)) => {
                let process = &self.processes[number];
                if process.life == life && process.condition == Condition::Stopped {
                    self.kill(number);
                }
            }
            Happening::End((number, life)) => {
                let process = &self.processes[number];
                if process.life == life && process.condition != Condition::Dead {
                    self.kill(number);
                }
            }
            Happening::Release(pid, process) => self.release(pid, process),
            Happening::Released(txn) => {
                let reply = self.etcd.execute(self.course.now, &StoreRequest::Txn(txn));
                if matches!(reply, StoreReply::Done(done) if done.succeeded) {
                    self.counts.released += 1;
                }
            }
            Happening::Arrive(pid, ticket, request) => self.arrive(pid, ticket, &request),
            Happening::Place(pid, group, epoch, victims) => self.place(pid, group, epoch, &victims),
            Happening::Enter(pid, group, epoch, barrier) => self.enter(pid, group, epoch, barrier),
            Happening::Open(pid, group, epoch, failures) => {
                self.open(pid, group, epoch, failures);
            }
            Happening::Land(pid, op) => self.land(pid, op),
            Happening::Tick((number, _)) => {
                self.processes[number].tick_at = None;
                self.with(number, Member::tick);
            }
            Happening::Reply((number, _), ticket, reply) => {
                if self.processes[number].awaited.remove(&ticket) {
                    let event = MemberEvent::Store(StoreEvent::Reply(ticket, reply));
                    self.with(number, |member, now| member.handle(now, event));
                }
            }
            Happening::Watch((number, _), watch) => self.watch(number, watch),
            Happening::Event((number, _), event) => {
                self.with(number, |member, now| member.handle(now, event));
            }
            Happening::Deliver((number, _), op) => self.deliver(number, op),
            Happening::Submit(pid, op) => self.submit(pid, op),
            Happening::Complete((number, _), op, value) => self.complete(number, &op, value),
        }
    }

    fn start(&mut self, number: usize) {
        if self.processes[number].condition == Condition::Dead {
            let life = self.processes[number].life + 1;
            self.processes[number] = self.process(number, life);
            self.with(number, Member::tick);
        }
    }

    /// Kills a process, and starts the next one a while later.
    pub(super) fn kill(&mut self, number: usize) {
        let delay = self.course.delay(4_000 * MS);
        self.kill_for(number, delay);
    }

    pub(super) fn kill_for(&mut self, number: usize, time: u64) {
        let pid = self.pid(number);
        let process = self.processes[number].member.config().process;
        self.processes[number].condition = Condition::Dead;
        self.course.after(time, Happening::Start(number));
        if !self.course.random.one_in(4) {
            let delay = self.course.delay(30 * MS);
            self.course.after(delay, Happening::Release(pid, process));
        }
    }

    pub(super) fn pid(&self, number: usize) -> Pid {
        (number, self.processes[number].life)
    }

    /// Whether an operation is on its way to a core.
    pub(super) fn is_delivering(&self, token: u64) -> bool {
        let is_it = |it: &Happening| matches!(it, Happening::Deliver(_, op) if op.token == token);
        self.course.queue.values().any(is_it)
    }

    /// Whether a core of a process is between its check of the permit and the system call of a
    /// write.
    pub(super) fn is_submitting(&self, number: usize) -> bool {
        self.course.queue.values().any(|happening| match happening {
            Happening::Submit(pid, op) => pid.0 == number && op.write.is_some(),
            _ => false,
        })
    }

    /// The ANA groups with operations of a process in flight.
    pub(super) fn flying(&self, pid: Pid) -> BTreeSet<u32> {
        let all = self.course.queue.values();
        all.filter_map(|happening| match happening {
            Happening::Land(its, op) => (*its == pid).then_some(op.group),
            _ => None,
        })
        .collect()
    }

    /// Continues a stopped process (SIGCONT).
    pub(super) fn resume(&mut self, number: usize) {
        if self.processes[number].condition != Condition::Stopped {
            return;
        }
        self.processes[number].condition = Condition::Running;
        let all = std::mem::take(&mut self.course.deferred);
        let is_its = |it: &Happening| it.owner().is_some_and(|pid| pid.0 == number);
        let (its, others) = all.into_iter().partition(is_its);
        self.course.deferred = others;
        for happening in its {
            self.course.after(0, happening);
        }
    }

    /// Runs a function of a member, and carries out its actions.
    pub(super) fn with(
        &mut self,
        number: usize,
        run: impl FnOnce(&mut Member, farblock_proto::time::Instant),
    ) {
        let now = self.processes[number].local(self.course.now);
        // The wall clock jumps by up to an hour at any time.
        let wall = self.course.random.below(7_200_000);
        self.processes[number].member.set_wall_ms(wall);
        run(&mut self.processes[number].member, now);
        while let Some(action) = self.processes[number].member.poll_action() {
            self.act(number, action);
        }
        self.settle(number);
        let pid = self.pid(number);
        let process = &mut self.processes[number];
        if let Some(deadline) = process.member.deadline() {
            assert!(deadline > now, "a member that is due does nothing: {:?}", process.member);
            let at = process.world(deadline, self.course.now);
            if process.tick_at.is_none_or(|tick| at < tick) {
                process.tick_at = Some(at);
                self.course.after(at - self.course.now, Happening::Tick(pid));
            }
        }
    }

    fn settle(&mut self, number: usize) {
        let pid = self.pid(number);
        for (group, index) in self.processes[number].cores.take_applied() {
            let event = MemberEvent::Applied { namespace: format!("ns-{group}"), index };
            self.course.after(1, Happening::Event(pid, event));
        }
        for (group, epoch) in self.processes[number].cores.take_stopped() {
            self.course.after(1, Happening::Event(pid, MemberEvent::Stopped { group, epoch }));
        }
    }

    fn act(&mut self, number: usize, action: Action) {
        let pid = self.pid(number);
        if self.has_trace {
            eprintln!("{:.3}   {pid:?} {action:?}", self.course.now as f64 / MS as f64);
        }
        match action {
            Action::Store(ticket, request) => self.send(number, ticket, request),
            Action::Fence { group, epoch, victims } => {
                let delay = self.course.delay(20 * MS);
                self.course.after(delay, Happening::Place(pid, group, epoch, victims));
            }
            Action::Enter { group, epoch, barrier } => {
                let delay = self.course.delay(20 * MS);
                self.course.after(delay, Happening::Enter(pid, group, epoch, barrier));
            }
            Action::Begin { group, epoch } => {
                let open = self.processes[number].cores.open.get(&group);
                let open = open.expect("the member has entered the epoch before");
                assert_eq!(open.epoch, epoch, "the member begins the epoch that it entered");
                self.open(pid, group, epoch, 0);
            }
            Action::Publish { group, permit } => {
                let cores = &mut self.processes[number].cores;
                match permit {
                    Some(permit) => cores.permits.insert(group, permit),
                    None => cores.permits.remove(&group),
                };
                let parked = std::mem::take(&mut cores.parked);
                parked.into_iter().for_each(|op| self.deliver(number, op));
            }
            Action::Stop { group, .. } => {
                let cores = &mut self.processes[number].cores;
                cores.permits.remove(&group);
                let open = cores.open.get_mut(&group).expect("only an open group stops");
                open.is_stopping = true;
                let parked = std::mem::take(&mut cores.parked);
                parked.into_iter().for_each(|op| self.deliver(number, op));
            }
            Action::Apply { namespace, record } => {
                let group = namespace[3..].parse().expect("a namespace name has the form ns-GROUP");
                let index = record.index;
                let hosts = record.state.split(',').filter_map(|host| host.parse().ok()).collect();
                let cores = &mut self.processes[number].cores;
                cores.reservations.insert(group, (index, hosts));
                cores.applying.insert(group, index);
            }
            Action::Answer { proposal, outcome } => self.answer(number, proposal, &outcome),
            Action::Report(crate::Report::HoldsOver { .. }) => self.counts.held_over += 1,
            Action::Report(_) => {}
        }
    }

    fn send(&mut self, number: usize, ticket: Ticket, request: StoreRequest) {
        let pid = self.pid(number);
        let delay = match self.course.random.one_in(60) {
            true => self.course.delay(1_000 * MS),
            false => self.course.delay(3 * MS),
        };
        let process = &mut self.processes[number];
        if let StoreRequest::Watch { from, .. } = request {
            process.watches += 1;
            process.watch = Some((from, process.watches));
            self.course.after(delay, Happening::Watch(pid, process.watches));
            return;
        }
        process.awaited.insert(ticket);
        let silence = StoreReply::Failed(StoreTrouble::Silent);
        self.course.after(REQUEST_TIME, Happening::Reply(pid, ticket, silence));
        let is_lost = match &request {
            StoreRequest::Renew(_) => !process.links.renewals,
            StoreRequest::Txn(txn) => !process.links.refutations && deletes_suspicion(txn),
            _ => false,
        };
        if process.links.to_store && !is_lost {
            self.course.after(delay, Happening::Arrive(pid, ticket, request));
        }
    }

    fn arrive(&mut self, pid: Pid, ticket: Ticket, request: &StoreRequest) {
        let now = self.course.now;
        let links = self.processes[pid.0].links;
        let reply = match request {
            // A stale leader confirms renewals.
            StoreRequest::Renew(_) if links.is_minority => StoreReply::Renewed(true),
            _ if links.is_minority => StoreReply::Failed(StoreTrouble::NoQuorum),
            _ => self.etcd.execute(now, request),
        };
        if matches!(request, StoreRequest::Txn(txn) if puts_suspicion(txn)) {
            self.counts.suspicions += 1;
        }
        if links.from_store {
            let late = self.course.random.one_in(20);
            let delay = self.course.delay(if late { REQUEST_TIME } else { 3 * MS });
            self.course.after(delay, Happening::Reply(pid, ticket, reply));
        }
    }

    fn watch(&mut self, number: usize, watch: u64) {
        let pid = self.pid(number);
        let process = &mut self.processes[number];
        let Some((from, _)) = process.watch.filter(|(_, current)| *current == watch) else {
            return;
        };
        let links = process.links;
        let is_silent = !links.from_store || links.is_minority || self.etcd.has_no_quorum;
        let event = match is_silent {
            true if self.course.random.one_in(20) => WatchEvent::Lost,
            true => WatchEvent::Changed(Vec::new()),
            false => self.etcd.watch(from),
        };
        let late = self.course.random.one_in(100);
        let delay = self.course.delay(if late { 1_000 * MS } else { 20 * MS });
        match &event {
            WatchEvent::Changed(changes) => {
                let next = changes.last().map_or(from, |last| last.revision + 1);
                process.watch = Some((next, watch));
                let is_empty = changes.is_empty();
                self.course.after(delay, Happening::Watch(pid, watch));
                if is_empty {
                    return;
                }
            }
            _ => process.watch = None,
        }
        let event = MemberEvent::Store(StoreEvent::Watch(event));
        self.with(number, |member, now| member.handle(now, event));
    }

    fn place(&mut self, pid: Pid, group: u32, epoch: u64, victims: &[Holder]) {
        let victims: Vec<_> = victims.iter().map(|victim| victim.identity.clone()).collect();
        let disk = self.disks.get_mut(&group).expect("every group has a disk");
        let has_link = self.processes[pid.0].links.disks;
        let placed = has_link.then(|| disk.fence(epoch, &victims)).flatten();
        let event = match placed {
            Some(barrier) => MemberEvent::FencePlaced { group, epoch, barrier },
            None => MemberEvent::FenceFailed { group, epoch },
        };
        let delay = self.course.delay(5 * MS);
        self.course.after(delay, Happening::Event(pid, event));
    }

    fn enter(&mut self, pid: Pid, group: u32, epoch: u64, barrier: Option<u64>) {
        let identity = format!("m{}/{}/{epoch}", pid.0, pid.1);
        let disk = self.disks.get_mut(&group).expect("every group has a disk");
        let client_epoch = disk.enter(&identity, barrier);
        let open = Open {
            epoch,
            identity: identity.clone(),
            client_epoch,
            has_begun: false,
            is_stopping: false,
        };
        if self.processes[pid.0].life == pid.1 {
            self.processes[pid.0].cores.open.insert(group, open);
        }
        let event = MemberEvent::Entered { group, epoch, identity };
        self.course.after(MS, Happening::Event(pid, event));
    }

    /// Lets a leader open a disk, and try again later if it cannot.
    fn open(&mut self, pid: Pid, group: u32, epoch: u64, failures: u32) {
        let process = &mut self.processes[pid.0];
        let open = process.cores.open.get_mut(&group);
        let Some(open) = open.filter(|open| open.epoch == epoch && !open.is_stopping) else {
            return;
        };
        if process.links.opens {
            open.has_begun = true;
            let disk = self.disks.get_mut(&group).expect("every group has a disk");
            disk.begun = disk.begun.max(epoch);
            self.counts.takeovers += 1;
            return;
        }
        self.course.after(OPEN_AGAIN, Happening::Open(pid, group, epoch, failures + 1));
        if failures == OPEN_FAILURES {
            let problem = "no such disk".to_owned();
            let event = MemberEvent::OpenFailed { group, epoch, problem };
            let delay = self.course.delay(5 * MS);
            self.course.after(delay, Happening::Event(pid, event));
        } else if failures > 2 * OPEN_FAILURES {
            self.wrong = Some(format!("{pid:?} keeps group {group}, but cannot open its disk"));
        }
    }

    pub(super) fn token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    fn submit(&mut self, pid: Pid, op: DiskOp) {
        let disk = &self.disks[&op.group];
        if op.epoch < disk.begun && !disk.kind.is_complete() && op.write.is_some() {
            self.wrong = Some(format!("two writers: {pid:?} submits {op:?} in {}", disk.begun));
        }
        if !self.processes[pid.0].links.disks {
            self.course.after(1_000 * MS, Happening::Complete(pid, op, None));
            return;
        }
        let now = self.course.now;
        let lands = (now + self.course.delay(5 * MS)).max(disk.stalled_until);
        let limit = match disk.kind {
            FenceKind::None { flight_ms } => now + flight_ms * MS,
            _ => u64::MAX,
        };
        self.course.after(lands.min(limit) - now, Happening::Land(pid, op));
    }

    fn land(&mut self, pid: Pid, op: DiskOp) {
        let disk = self.disks.get_mut(&op.group).expect("every group has a disk");
        match disk.execute(&op) {
            Ok(value) => {
                self.counts.refused += u64::from(value.is_none());
                let delay = self.course.delay(MS);
                self.course.after(delay, Happening::Complete(pid, op, value));
            }
            Err(wrong) => self.wrong = Some(format!("{wrong} from {pid:?}")),
        }
    }

    /// Lets a core check an operation that has arrived, or that was parked.
    fn deliver(&mut self, number: usize, mut op: DiskOp) {
        let pid = self.pid(number);
        let process = &mut self.processes[number];
        let now = process.local(self.course.now);
        let cores = &mut process.cores;
        let open = cores.open.get(&op.group).filter(|open| open.has_begun && !open.is_stopping);
        let Some(open) = open.filter(|open| op.epoch == 0 || op.epoch == open.epoch) else {
            self.failed(op.host, op.token);
            return;
        };
        op.epoch = open.epoch;
        op.identity.clone_from(&open.identity);
        op.client_epoch = open.client_epoch;
        if op.write.is_some() && cores.excludes(op.group, op.host) {
            self.hosts[op.host].op = None;
            return;
        }
        let permit = cores.permits.get(&op.group).filter(|permit| permit.epoch == op.epoch);
        if permit.is_some_and(|permit| now < permit.until) {
            cores.flying.insert(op.token, op.clone());
            let gap = self.course.delay(CORE_GAP);
            self.course.after(gap, Happening::Submit(pid, op));
        } else {
            cores.parked.push(op);
        }
    }

    fn complete(&mut self, number: usize, op: &DiskOp, value: Option<u64>) {
        self.processes[number].cores.flying.remove(&op.token);
        if self.processes[number].links.hosts {
            match value {
                Some(value) => self.finished(op.host, op.token, value),
                None => self.failed(op.host, op.token),
            }
        }
        self.settle(number);
    }
}

fn puts_suspicion(txn: &Txn) -> bool {
    let is_it =
        |write: &Write| matches!(write, Write::Put { key, .. } if key.contains("/suspect/"));
    txn.writes.iter().any(is_it)
}

fn deletes_suspicion(txn: &Txn) -> bool {
    let is_it = |write: &Write| matches!(write, Write::Delete { key } if key.contains("/suspect/"));
    txn.writes.iter().any(is_it)
}
