//! A cluster in a simulated world: nodes that share a disk, and fence each other with reservations.
//!
//! Each node has a [`Disk`] and an [agent](agent). One node is the leader. It uses the shared
//! blocks, and a [model](super::model) knows which data it may read. Each node also has its own
//! blocks. Now and then a node fences another one, or two nodes fence each other, with Preempt or
//! Preempt and Abort. Meanwhile connections break in every way that the simulated world offers. If
//! reservations persist, the process of the target also dies, or its machine loses power. A fenced
//! node continues to write as if it were not fenced, and later returns with a new identity. The
//! simulation checks that:
//!
//! - a fence is effective. After an agent has seen the completion of its Preempt, or a reservation
//!   report without the victim, no write of the victim reaches the disk. Each write contains the
//!   number of its node, and the simulated world reports all written data;
//! - operations of a fenced node fail, except for reads if the reservation type lets all hosts
//!   read;
//! - operations that the reservation type forbids to registrants fail;
//! - the target refuses no operation of a permitted node;
//! - of two nodes that fence each other, exactly one stays registered;
//! - the new leader reads the writes that were acknowledged to the old leader, and later its own.

mod agent;
mod kept;

pub(super) use kept::Kept;

use super::model::{BLOCK_BYTES, BLOCKS, Model, Wish, bytes_of};
use super::server::Server;
use super::{GONE_TIME, LONGEST, Named, Plan, WAIT_LIMIT, Wrong};
use super::{break_something, fewest, go_wrong, memory, options};
use agent::{Agent, Identity, Order};
use farblock_block::{BlockError, Command, Completion, Namespace, Op, Queue};
use farblock_host::{Disk, HostId};
use farblock_random::Random;
use farblock_reactor::sim::{Landed, Medium, World};
use farblock_reactor::{Config, EngineKind, Reactor, TaskId, os};
use farblock_wire::reservation::ReservationType;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// The number of each node's own blocks, at the end of the disk.
const OWN_BLOCKS: u64 = 16;
const SHARED_BLOCKS: u64 = BLOCKS - NODES as u64 * OWN_BLOCKS;
/// The number of a node's operations in flight.
const DEPTH: usize = 6;
/// The first number of writes to a node's own blocks. The model does not know these writes.
const UNKNOWN: u64 = 1 << 40;
/// The number of operations of a usual run.
pub const OPERATIONS: u64 = 250;
/// The run submits no more operations after this many steps.
const MOST_STEPS: u64 = 1_200;
/// One step in this many starts a fence.
const FENCE_ONE_IN: u64 = 25;

/// The results of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// A digest of the whole run.
    pub trace: u64,
    /// The number of operations that succeeded.
    pub succeeded: u64,
    /// The number of operations that failed.
    pub failed: u64,
    /// The number of nodes that were fenced.
    pub fenced: u64,
    /// The number of faults.
    pub faults: u64,
}

/// Runs the cluster of a seed.
///
/// # Panics
/// Panics if a check fails. The message contains the seed.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    let _named = Named { seed, test: "fenced_nodes_survive_random_faults" };
    run_as(seed, OPERATIONS, None)
}

/// Runs the cluster of a seed with this number of operations, and with a deliberate mistake in the
/// product.
///
/// # Panics
/// Panics if a check fails.
#[must_use]
pub fn run_as(seed: u64, operations: u64, mistake: Option<&'static str>) -> Outcome {
    let world = World::enter(seed);
    if let Some(mistake) = mistake {
        world.make_mistake(mistake);
    }
    let outcome = {
        let mut cluster = Cluster::new(&world, seed);
        cluster.run(operations);
        cluster.finish()
    };
    memory::check_end([0]);
    assert_eq!(world.threads(), Vec::<String>::new(), "threads are left");
    outcome
}

/// The smallest number of operations with which a failing seed still fails.
#[must_use]
pub fn shrink(seed: u64) -> u64 {
    fewest(OPERATIONS, |operations| {
        let _ = run_as(seed, operations, None);
    })
}

/// The required result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Must {
    Succeed,
    Fail,
    /// The result depends on concurrent events, so success and failure are both right.
    Either,
}

struct Flight {
    must: Must,
    command: Command,
    /// Whether the model knows the operation.
    is_known: bool,
}

/// The state of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// The node is registered.
    In,
    /// The node was fenced, and continues until this time as if it were not fenced.
    Fenced { until: Duration },
    /// The node is down until this time.
    Away { until: Duration },
    /// The node is up, and will be registered soon.
    Joining,
}

struct Node {
    identity: Identity,
    agent: Agent,
    /// The number of starts of the node. Its key and its writes contain this number.
    life: u64,
    standing: Standing,
    disk: Option<Disk>,
    queue: Option<Box<dyn Queue>>,
    flights: BTreeMap<u64, Flight>,
}

impl Node {
    fn key(&self) -> u64 {
        u64::from(self.identity.hostid[0]) << 32 | self.life
    }
}

/// A fence of one node by another, and its result.
struct Fence {
    by: usize,
    victim: usize,
    rtype: ReservationType,
    outcome: Option<agent::Outcome>,
}

struct Cluster<'a> {
    world: &'a World,
    /// The time at which the simulated world started.
    epoch: Instant,
    plan: Plan,
    persist: bool,
    /// Whether writes send in-capsule data, or wait for R2T.
    in_capsule: bool,
    random: Random,
    server: Server,
    kept: Kept,
    reactor: Reactor,
    ready: Vec<TaskId>,
    model: Model,
    nodes: Vec<Node>,
    leader: usize,
    rtype: ReservationType,
    /// The fences in progress: one, or two in which the same nodes fence each other.
    contest: Vec<Fence>,
    /// The author of each write: the node, and the number of its start.
    authors: BTreeMap<u64, (usize, u64)>,
    /// For each start of a fenced node, the time from which none of its writes may reach the disk.
    fences: BTreeMap<(usize, u64), Duration>,
    next: u64,
    outcome: Outcome,
}

fn any_type(random: &mut Random) -> ReservationType {
    ReservationType(1 + random.below(6) as u8)
}

impl<'a> Cluster<'a> {
    fn new(world: &'a World, seed: u64) -> Cluster<'a> {
        let mut random = Random::new(Random::mix(&[seed, 16]));
        let plan = Plan::new(&mut random);
        // Clocks must not jump, because nodes wait by their own clocks until none of their data can
        // be in transit. The memory limit must not be small, because some operations here need
        // more.
        let core_buffer_bytes = None;
        let plan = Plan { is_memory: false, hosts_jump: false, core_buffer_bytes, ..plan };
        let (persist, in_capsule) = (!random.one_in(3), random.one_in(2));
        world.set_net_faults(plan.net);
        let kept = Kept::default();
        let server = Server::start(world, &plan, None, persist.then(|| kept.clone()));
        let config = Config { engine: EngineKind::Sim, ..Config::default() };
        let reactor = Reactor::new(&config).expect("a loop");
        let mut cluster = Cluster {
            world,
            epoch: os::now() - world.elapsed(),
            plan,
            persist,
            in_capsule,
            server,
            kept,
            reactor,
            ready: Vec::new(),
            model: Model::default(),
            nodes: Vec::new(),
            leader: 0,
            rtype: any_type(&mut random),
            random,
            contest: Vec::new(),
            authors: BTreeMap::new(),
            fences: BTreeMap::new(),
            next: UNKNOWN,
            outcome: Outcome { trace: 0, succeeded: 0, failed: 0, fenced: 0, faults: 0 },
        };
        let _ = world.take_landed(cluster.medium());
        (0..NODES).for_each(|at| cluster.add_node(at));
        cluster.nodes[0].agent.order(Order::Acquire(cluster.rtype));
        cluster.obeyed(0);
        cluster.server.set_faults(world, plan.disk);
        cluster.kept.set_fails(true);
        cluster
    }

    fn medium(&self) -> Medium {
        self.server.medium().expect("the server has a disk")
    }

    fn add_node(&mut self, at: usize) {
        let identity = Identity {
            hostid: [at as u8 + 1; 16],
            hostnqn: format!("nqn.2014-08.org.example:node{at}"),
        };
        let agent = Agent::start(identity.clone(), self.server.addresses(), self.persist);
        let node = Node {
            identity,
            agent,
            life: 1,
            standing: Standing::Joining,
            disk: None,
            queue: None,
            flights: BTreeMap::new(),
        };
        self.nodes.push(node);
        assert!(self.open(at), "no fault occurs yet");
        self.obeyed(at);
        self.nodes[at].standing = Standing::In;
    }

    /// Waits until the agent of a node has executed its order.
    fn obeyed(&mut self, at: usize) {
        let until = self.world.elapsed() + WAIT_LIMIT;
        while self.nodes[at].agent.outcome().is_none() {
            assert!(self.world.elapsed() < until, "an agent does not execute its order");
            self.turn(Duration::from_millis(1));
        }
    }

    /// Connects the disk of a node, and registers the node. Returns false if no target is
    /// reachable.
    fn open(&mut self, at: usize) -> bool {
        let node = &mut self.nodes[at];
        let mut options = options(&self.plan, None);
        options.connection.hostnqn = Some(node.identity.hostnqn.clone());
        options.connection.hostid = Some(HostId(node.identity.hostid));
        options.connection.in_capsule &= self.in_capsule;
        let Ok(disk) = Disk::connect(&self.server.urls(), &options) else { return false };
        let task = self.reactor.add_task();
        node.queue = Some(disk.open(&self.reactor, task).expect("a disk's queue"));
        node.disk = Some(disk);
        node.agent.order(Order::Register(node.key()));
        true
    }

    fn run(&mut self, operations: u64) {
        let mut steps = 0;
        while self.outcome.succeeded + self.outcome.failed < operations && steps < MOST_STEPS {
            steps += 1;
            for at in 0..NODES {
                for _ in 0..self.random.below(3) {
                    self.submit(at);
                }
            }
            if self.random.one_in(self.plan.fault_one_in) {
                self.outcome.faults += 1;
                self.go_wrong();
            }
            if self.contest.is_empty() && self.random.one_in(FENCE_ONE_IN) {
                self.begin_contest();
            }
            self.tend_nodes();
            let wait = match self.random.below(8) {
                0 => Duration::from_millis(self.random.below(400)),
                1..5 => Duration::from_micros(self.random.below(3_000)),
                _ => Duration::ZERO,
            };
            self.turn(wait);
        }
    }

    fn go_wrong(&mut self) {
        let Cluster { world, plan, random, server, .. } = self;
        let longest = Duration::from_millis(random.below(LONGEST.as_millis() as u64) + 1);
        if !self.persist {
            // A power failure would lose the reservations, so inject another fault.
            return break_something(world, random, longest);
        }
        if go_wrong(world, plan, random, server, longest) == Wrong::Power {
            self.model.power_cut();
        }
    }

    /// Starts a fence of one node by another. In some cases the victim fences the other node, too.
    fn begin_contest(&mut self) {
        let is_in = |at: &usize| self.nodes[*at].standing == Standing::In;
        let mut able: Vec<usize> = (0..NODES).filter(is_in).collect();
        if able.len() < 2 {
            return;
        }
        self.random.shuffle(&mut able);
        let mut pairs = vec![(able[0], able[1])];
        if self.random.one_in(4) {
            pairs.push((able[1], able[0]));
        }
        for (by, victim) in pairs {
            let rtype = any_type(&mut self.random);
            let abort = self.random.one_in(2);
            let victims = self.nodes[victim].key();
            self.nodes[by].agent.order(Order::Fence { victim: victims, rtype, abort });
            self.contest.push(Fence { by, victim, rtype, outcome: None });
        }
        // Data in transit may reach the disk before or after the fence. A fenced node may still
        // read if the new reservation type lets all hosts read. So the results are uncertain.
        for node in &mut self.nodes {
            let is_fenced = node.standing != Standing::In;
            let hangs_on_it = |flight: &&mut Flight| !is_fenced || !flight.command.writes();
            let flights = node.flights.values_mut().filter(hangs_on_it);
            flights.for_each(|flight| flight.must = Must::Either);
        }
    }

    fn tend_contest(&mut self) {
        for at in 0..self.contest.len() {
            let fence = &mut self.contest[at];
            if fence.outcome.is_some() {
                continue;
            }
            fence.outcome = self.nodes[fence.by].agent.outcome();
            let (by, victim, rtype) = (fence.by, fence.victim, fence.rtype);
            if let Some(agent::Outcome::Done(since)) = fence.outcome {
                self.fenced(by, victim, rtype, since);
            }
        }
        if self.contest.iter().all(|fence| fence.outcome.is_some()) {
            let is_won = |fence: &Fence| fence.outcome != Some(agent::Outcome::Fenced);
            let won = self.contest.iter().filter(|fence| is_won(fence)).count();
            assert!(self.contest.is_empty() || won == 1, "{won} nodes fenced another node");
            self.contest.clear();
        }
    }

    /// Registers that node `by` has fenced `victim`: from now on, no write of `victim` may reach
    /// the disk.
    fn fenced(&mut self, by: usize, victim: usize, rtype: ReservationType, since: Instant) {
        let since = since.saturating_duration_since(self.epoch);
        let more = Duration::from_millis(self.random.below(3_000));
        let node = &mut self.nodes[victim];
        self.fences.insert((victim, node.life), since);
        node.standing = Standing::Fenced { until: self.world.elapsed() + more };
        // Each operation of the victim either took effect before the fence, or never will. The
        // result is unknown.
        for (token, flight) in &mut node.flights {
            flight.must = Must::Either;
            if std::mem::take(&mut flight.is_known) {
                let _ = self.model.complete(*token, Err(BlockError::Aborted), &[]);
            }
        }
        self.outcome.fenced += 1;
        if self.leader == victim {
            self.leader = by;
            // A Preempt changes the type of the reservation, unless all registrants hold the
            // reservation.
            if self.rtype.0 < ReservationType::WRITE_EXCLUSIVE_ALL.0 {
                self.rtype = rtype;
            }
        }
    }

    /// Finishes fences, and restarts nodes that were fenced.
    fn tend_nodes(&mut self) {
        self.server.tend(self.world);
        self.tend_contest();
        for at in 0..NODES {
            let now = self.world.elapsed();
            let node = &mut self.nodes[at];
            match node.standing {
                Standing::Fenced { until } if until <= now && self.contest.is_empty() => {
                    node.flights.clear();
                    node.queue = None;
                    node.disk = None;
                    node.life += 1;
                    // Wait until no data of the node is in transit.
                    let until = self.world.elapsed() + agent::STRAY_TIME;
                    node.standing = Standing::Away { until };
                }
                Standing::Away { until } if until <= now => {
                    let is_there = self.open(at);
                    let later = self.world.elapsed() + Duration::from_secs(1);
                    self.nodes[at].standing = match is_there {
                        true => Standing::Joining,
                        false => Standing::Away { until: later },
                    };
                }
                Standing::Joining => {
                    if let Some(outcome) = node.agent.outcome() {
                        assert_ne!(
                            outcome,
                            agent::Outcome::Fenced,
                            "a node was fenced before it joined"
                        );
                        node.standing = Standing::In;
                    }
                }
                _ => {}
            }
        }
    }

    /// The required result of an operation that a node starts now.
    fn must(&self, at: usize, command: Command) -> Must {
        use ReservationType as Type;
        let rtype = self.rtype;
        let hides = matches!(
            rtype,
            Type::EXCLUSIVE_ACCESS
                | Type::EXCLUSIVE_ACCESS_REGISTRANTS
                | Type::EXCLUSIVE_ACCESS_ALL
        );
        let is_fenced = !matches!(self.nodes[at].standing, Standing::In);
        if is_fenced {
            // The result is certain for a write: another node may change the reservation type, but
            // no type lets this node write.
            let is_certain = command.writes() || (hides && self.contest.is_empty());
            return if is_certain { Must::Fail } else { Must::Either };
        }
        let is_alone = matches!(rtype, Type::WRITE_EXCLUSIVE | Type::EXCLUSIVE_ACCESS);
        match (at == self.leader, command.writes()) {
            _ if !self.contest.is_empty() => Must::Either,
            (true, _) => Must::Succeed,
            (false, true) if is_alone => Must::Fail,
            (false, false) if is_alone && hides => Must::Fail,
            _ => Must::Succeed,
        }
    }

    fn submit(&mut self, at: usize) {
        let node = &self.nodes[at];
        let is_there = matches!(node.standing, Standing::In | Standing::Fenced { .. });
        if !is_there || node.flights.len() >= DEPTH {
            return;
        }
        let is_leader = at == self.leader && node.standing == Standing::In;
        let command = match self.random.below(8) {
            0..3 => Command::Read,
            3 => Command::WriteZeroes { deallocate: self.random.one_in(2) },
            _ => Command::Write,
        };
        // A former leader does not know that another node has replaced it. It must not write zeroes
        // to shared blocks: zeroes do not show who wrote them, so the check could not tell them
        // from the leader's.
        let is_shared = is_leader || command == Command::Read;
        let is_shared = is_shared || (command == Command::Write && !self.is_in(at));
        let (first, count) = match is_shared {
            true => (0, SHARED_BLOCKS),
            false => (SHARED_BLOCKS + at as u64 * OWN_BLOCKS, OWN_BLOCKS),
        };
        let blocks = match self.random.one_in(12) {
            true => count,
            false => 1 + self.random.below(OWN_BLOCKS),
        };
        let lba = first + self.random.below(count - blocks + 1);
        let wish = Wish { command, lba, blocks, is_durable: command.writes() };
        if !is_leader || !self.model.overlaps(&wish) {
            self.start(at, &wish, is_leader);
        }
    }

    fn is_in(&self, at: usize) -> bool {
        self.nodes[at].standing == Standing::In
    }

    fn start(&mut self, at: usize, wish: &Wish, is_known: bool) {
        let Wish { command, lba, blocks, is_durable } = *wish;
        let must = self.must(at, command);
        let (token, data) = if is_known {
            self.model.submit(wish)
        } else {
            self.next += 1;
            (self.next, (lba..lba + blocks).flat_map(|lba| bytes_of(self.next, lba)).collect())
        };
        let node = &mut self.nodes[at];
        self.authors.insert(token, (at, node.life));
        let buffer = command.moves_data().then(|| {
            let mut buffer = self.reactor.buffers().take(blocks as usize * BLOCK_BYTES);
            buffer.copy_from_slice(&data);
            buffer
        });
        let op = Op::with(command, lba, blocks as u32, buffer, token);
        let op = if is_durable { op.durable() } else { op };
        node.flights.insert(token, Flight { must, command, is_known });
        node.queue.as_mut().expect("an open queue").submit(op);
    }

    /// Advances time, and handles completions.
    fn turn(&mut self, wait: Duration) {
        (0..self.nodes.len()).for_each(|at| self.take_done(at));
        self.reactor.poll(Some(wait), &mut self.ready).expect("the loop works");
        (0..self.nodes.len()).for_each(|at| self.take_done(at));
        self.check_landed();
    }

    fn take_done(&mut self, at: usize) {
        let mut all = Vec::new();
        if let Some(queue) = &mut self.nodes[at].queue {
            queue.poll(&mut all);
        }
        for Completion { token, result, buffer } in all {
            let flight = self.nodes[at].flights.remove(&token).expect("one completion");
            match result {
                Ok(()) => {
                    self.outcome.succeeded += 1;
                    assert_ne!(
                        flight.must,
                        Must::Fail,
                        "at {:?}, {:?} of node {at} succeeded, although it must fail: {}",
                        self.world.elapsed(),
                        flight.command,
                        self.describe()
                    );
                }
                Err(error) => {
                    self.outcome.failed += 1;
                    assert!(
                        flight.must != Must::Succeed || self.plan.may_fail(error),
                        "at {:?}, {:?} of node {at} failed, although it must succeed: {error}; {}",
                        self.world.elapsed(),
                        flight.command,
                        self.describe()
                    );
                }
            }
            let data = buffer.as_ref().map_or(&[][..], |buffer| &buffer[..]);
            if flight.is_known
                && let Err(wrong) = self.model.complete(token, result, data)
            {
                panic!("at {:?}, operation {token}: {wrong}", self.world.elapsed());
            }
            if let Some(buffer) = buffer {
                self.reactor.buffers().give(buffer);
            }
        }
    }

    fn describe(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.standing).collect();
        format!("{:?}, node {} leads; {nodes:?}", self.rtype, self.leader)
    }

    /// Checks that no write of a fenced node reaches the disk.
    fn check_landed(&mut self) {
        for Landed { at, offset, bytes } in self.world.take_landed(self.medium()) {
            for (lba, block) in (offset / BLOCK_BYTES..).zip(bytes.chunks(BLOCK_BYTES)) {
                let content = u64::from_le_bytes(block[..8].try_into().expect("a block"));
                let author = match self.authors.get(&content) {
                    Some(author) => *author,
                    // Skip zeroes in shared blocks: they do not show who wrote them. Only the
                    // leader writes them, in any of its starts.
                    None if (lba as u64) < SHARED_BLOCKS => continue,
                    None => {
                        let node = (lba - SHARED_BLOCKS as usize) / OWN_BLOCKS as usize;
                        (node, self.nodes[node].life)
                    }
                };
                let since = self.fences.get(&author);
                assert!(
                    since.is_none_or(|since| at <= *since),
                    "node {}, which was fenced at {since:?}, wrote block {lba} at {at:?}; \
                     {}",
                    author.0,
                    self.describe()
                );
            }
        }
    }

    /// Waits until no operation is in flight.
    fn settle(&mut self) {
        let until = self.world.elapsed() + WAIT_LIMIT;
        let is_over = |cluster: &Cluster| {
            cluster.contest.is_empty()
                && cluster.nodes.iter().all(|node| node.flights.is_empty())
                && cluster.nodes.iter().all(|node| node.standing != Standing::Joining)
        };
        while !is_over(self) {
            assert!(self.world.elapsed() < until, "the run does not end: {}", self.describe());
            self.tend_nodes();
            self.turn(Duration::from_millis(50));
        }
    }

    /// Ends all faults, and waits until no operation is in flight.
    fn finish(mut self) -> Outcome {
        self.server.mend(self.world);
        self.kept.set_fails(false);
        self.settle();
        let leader = self.leader;
        for (command, is_durable) in [(Command::Read, false), (Command::Write, true)] {
            self.start(leader, &Wish { command, lba: 0, blocks: SHARED_BLOCKS, is_durable }, true);
            self.settle();
        }
        let Cluster { world, nodes, reactor, server, outcome, plan, .. } = self;
        drop(nodes);
        drop(reactor);
        os::sleep(GONE_TIME);
        assert_eq!(server.connections(), 0, "the target keeps unused connections");
        memory::check(world, &plan);
        server.stop();
        Outcome { trace: world.trace(), ..outcome }
    }
}
