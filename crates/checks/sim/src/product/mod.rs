//! The product in a simulated world: a `Disk` over one or two paths, a `Target` on one or two
//! cores, and a disk that may lose unflushed data. All of it runs on the calling thread and depends
//! on one seed.
//!
//! [`run`] is a function of its seed. For a while it injects all faults that the
//! [world](farblock_reactor::sim) offers. Connections break, and may deliver their data later.
//! Addresses do not answer, or delay the data of one side. The process of the target dies, or its
//! machine loses power. The process of the host dies and gets a successor. Clocks jump ahead on
//! either side. The disk is slow or fails. Then all faults end, and every operation must complete.
//! The run checks that:
//!
//! - a read returns data that the [model] allows;
//! - every operation completes once, and fails only if the disk may fail;
//! - each operation completes [in the time](deadlines) that the options allow;
//! - no data of a dead [host process](host) reaches the disk after data of its successor;
//! - if hosts must use authentication, TLS or concatenation (in seven of sixteen seeds), a host
//!   with a wrong or revoked key gets no queue;
//! - the [memory] charged to the target's peers is within the limits, which are small in a third of
//!   the seeds;
//! - at the end no thread, connection or buffer is left on either side.
//!
//! [`fenced`] tests clusters whose nodes fence each other. [`mirrored`] tests mirrors whose legs
//! change below them.

mod deadlines;
pub mod fenced;
mod host;
mod keys;
mod memory;
pub mod mirrored;
mod model;
mod server;

use deadlines::Deadlines;
use farblock_block::{BlockError, Command, Completion, Op};
use farblock_host::disk::{DiskOptions, Policy};
use farblock_host::{Disk, HostId, Options, TcpOptions};
use farblock_random::Random;
use farblock_reactor::sim::{Break, DiskFaults, EarlyFaults, NetFaults, Side, World};
use farblock_reactor::{Config, EngineKind, Reactor, TaskId, os};
use host::{HOSTS, Host, Witness};
use keys::{Change, Keys, Proof};
use model::{BLOCK_BYTES, BLOCKS, Model, Wish};
use server::{Server, TARGET};
use std::ops::Range;
use std::panic::{RefUnwindSafe, catch_unwind};
use std::time::Duration;

/// The NQN of the disk's host.
const HOST_NQN: &str = "nqn.2014-08.org.example:simulated";
/// The number of operations of a usual run.
pub const OPERATIONS: u64 = 250;
/// The run submits no more operations after this many steps.
const MOST_STEPS: u64 = 2_000;
/// The maximum number of operations in flight.
const DEPTH: usize = 12;
const MOST_BLOCKS: u64 = 20;
/// The time within which all operations complete after all faults have ended.
const WAIT_LIMIT: Duration = Duration::from_secs(600);
/// The maximum duration of a fault, except for a lasting fault.
const LONGEST: Duration = Duration::from_secs(4);
/// One fault in this many lasts up to [`LASTING`], without other faults meanwhile.
const LASTING_ONE_IN: u64 = 5;
const LASTING: Duration = Duration::from_secs(40);
const JUMP: Duration = Duration::from_secs(20);
/// One fault in this many is the death of the host's process.
const DIES_ONE_IN: u64 = 8;

/// The time within which the target drops its last connection: the TCP timeout of an abandoned
/// connection.
const GONE_TIME: Duration = Duration::from_secs(150);

/// The results of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// A digest of the whole run.
    pub trace: u64,
    /// The virtual time of the run.
    pub elapsed: Duration,
    /// The number of operations that succeeded.
    pub succeeded: u64,
    /// The number of operations that failed.
    pub failed: u64,
    /// The number of faults.
    pub faults: u64,
}

/// The settings of a run, which depend on its seed.
#[derive(Clone, Copy, Debug)]
struct Plan {
    paths: usize,
    cores: usize,
    is_memory: bool,
    /// One step in this many has a fault; 0 means no faults.
    fault_one_in: u64,
    net: NetFaults,
    disk: DiskFaults,
    digests: (bool, bool),
    policy: Policy,
    /// The time after which operations fail if there is no path.
    fast_fail: Option<Duration>,
    io_timeout: Duration,
    /// The memory that peers may use per core, if the limit is small. Writes then wait for memory.
    core_buffer_bytes: Option<usize>,
    /// Whether the process of the host dies now and then, and gets a successor.
    is_succeeded: bool,
    /// Whether the clocks of hosts jump, too.
    hosts_jump: bool,
}

impl Plan {
    fn new(random: &mut Random) -> Plan {
        let micros = |random: &mut Random, most: u64| Duration::from_micros(random.below(most + 1));
        let is_memory = random.one_in(6);
        Plan {
            paths: 1 + random.below(2) as usize,
            cores: 1 + random.below(2) as usize,
            is_memory,
            fault_one_in: [0, 15, 30, 60][random.below(4) as usize],
            net: NetFaults {
                delay: micros(random, 3_000),
                split_one_in: random.below(6),
                early: EarlyFaults::default(),
            },
            disk: DiskFaults {
                delay: micros(random, 5_000),
                late_one_in: random.below(30),
                late: Duration::from_millis(random.below(1500)),
                fail_one_in: if random.one_in(3) { 40 } else { 0 },
                atomic_bytes: BLOCK_BYTES,
            },
            digests: (random.one_in(3), random.one_in(3)),
            fast_fail: random.one_in(4).then(|| Duration::from_millis(100 + random.below(900))),
            policy: [Policy::Numa, Policy::RoundRobin, Policy::QueueDepth]
                [random.below(3) as usize],
            io_timeout: Duration::from_secs([3, 8, 30][random.below(3) as usize]),
            core_buffer_bytes: random.one_in(3).then(|| 64 << (10 + random.below(2))),
            is_succeeded: random.one_in(2),
            hosts_jump: true,
        }
    }
}

/// Runs the simulated world of a seed.
///
/// # Panics
/// Panics if a check fails. The message contains the seed.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    let _named = Named { seed, test: "disks_survive_random_faults" };
    run_as(seed, &Variant::default())
}

/// The differences between a run and the usual run.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// A deliberate mistake in the product.
    pub mistake: Option<&'static str>,
    /// The number of operations to submit while faults happen.
    pub operations: u64,
}

impl Default for Variant {
    fn default() -> Variant {
        Variant { mistake: None, operations: OPERATIONS }
    }
}

/// Runs the simulated world of a seed with these differences.
///
/// # Panics
/// Panics if a check fails.
#[must_use]
pub fn run_as(seed: u64, variant: &Variant) -> Outcome {
    let proof = Proof::of(seed);
    proof.iter().for_each(|proof| proof.prepare());
    let world = World::enter(seed);
    if let Some(mistake) = variant.mistake {
        world.make_mistake(mistake);
    }
    let mut random = Random::new(!seed);
    let plan = Plan::new(&mut random);
    world.set_net_faults(plan.net);
    let keys = proof.map(|proof| Keys::new(seed, proof));
    let server = Server::start(&world, &plan, keys.as_ref().map(Keys::of_target), None);
    let (outcome, machines) = {
        let mut client = Client::new(&world, plan, random, server, keys);
        client.run(variant.operations);
        client.finish()
    };
    memory::check_end(machines);
    assert_eq!(world.threads(), Vec::<String>::new(), "threads are left");
    outcome
}

/// The smallest number of operations with which a failing seed still fails.
#[must_use]
pub fn shrink(seed: u64) -> u64 {
    fewest(OPERATIONS, |operations| {
        let _ = run_as(seed, &Variant { operations, ..Variant::default() });
    })
}

/// Searches for the smallest number of operations with which a run panics. A run with `known`
/// operations panics.
fn fewest(known: u64, run: impl Fn(u64) + RefUnwindSafe) -> u64 {
    let fails = |operations| catch_unwind(|| run(operations)).is_err();
    // This binary search is cheap, but may miss the smallest number: a run may fail with some
    // number of operations, succeed with fewer, and fail with even fewer.
    let (mut passes, mut known) = (0, known);
    while passes + 1 < known {
        let middle = passes.midpoint(known);
        if fails(middle) { known = middle } else { passes = middle }
    }
    known
}

/// Prints how to repeat a run that panics.
struct Named {
    seed: u64,
    test: &'static str,
}

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Named { seed, test } = self;
            eprintln!(
                "repeat it with SIM_SEED={seed} cargo test -p farblock-sim --test product {test}"
            );
        }
    }
}

fn options(plan: &Plan, keys: Option<&Keys>) -> DiskOptions {
    let mut connection = Options {
        tcp: TcpOptions {
            header_digest: plan.digests.0,
            data_digest: plan.digests.1,
            ..TcpOptions::default()
        },
        hostnqn: Some(HOST_NQN.to_owned()),
        hostid: Some(HostId(*b"farblock-testing")),
        keep_alive: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(1),
        queue_depth: 8,
        queues: 2,
        io_timeout: plan.io_timeout,
        in_capsule: plan.core_buffer_bytes.is_none(),
        engine: EngineKind::Sim,
        ..Options::default()
    };
    if let Some(keys) = keys {
        keys.give(&mut connection);
    }
    DiskOptions {
        connection,
        reconnect_delay: Duration::from_millis(500),
        ctrl_loss_timeout: None,
        fast_io_fail_timeout: plan.fast_fail,
        policy: plan.policy,
        ..DiskOptions::default()
    }
}

/// Uses the disk, and injects faults.
struct Client<'a> {
    world: &'a World,
    plan: Plan,
    random: Random,
    server: Server,
    keys: Option<Keys>,
    model: Model,
    host: Host,
    witness: Witness,
    deadlines: Deadlines,
    reactor: Reactor,
    ready: Vec<TaskId>,
    done: Vec<Completion>,
    submitted: u64,
    succeeded: u64,
    failed: u64,
    faults: u64,
    is_mended: bool,
}

impl<'a> Client<'a> {
    fn new(
        world: &'a World,
        plan: Plan,
        random: Random,
        server: Server,
        keys: Option<Keys>,
    ) -> Client<'a> {
        let options = options(&plan, keys.as_ref());
        let config = Config { engine: EngineKind::Sim, ..Config::default() };
        let reactor = Reactor::new(&config).expect("a loop");
        let host = Host::start(server.urls(), &options, &reactor, plan.is_succeeded);
        if let Some(medium) = server.medium() {
            // Discard the writes so far, so that later calls report only new ones.
            let _ = world.take_landed(medium);
        }
        server.set_faults(world, plan.disk);
        Client {
            world,
            plan,
            random,
            server,
            keys,
            model: Model::default(),
            host,
            witness: Witness::default(),
            deadlines: Deadlines::new(&plan, &options),
            reactor,
            ready: Vec::new(),
            done: Vec::new(),
            submitted: 0,
            succeeded: 0,
            failed: 0,
            faults: 0,
            is_mended: false,
        }
    }

    fn run(&mut self, operations: u64) {
        let mut steps = 0;
        self.spoil_beginnings();
        // Under constant faults, operations may complete only after the faults have ended, so limit
        // the steps.
        while self.submitted < operations && steps < MOST_STEPS {
            steps += 1;
            for _ in 0..self.random.below(4) {
                self.submit();
            }
            if self.random.one_in(self.plan.fault_one_in) {
                self.faults += 1;
                self.go_wrong();
            }
            self.change_keys(operations);
            self.tend();
            let wait = match self.random.below(8) {
                0 => Duration::from_millis(self.random.below(400)),
                1..4 => Duration::from_micros(self.random.below(3_000)),
                _ => Duration::ZERO,
            };
            self.turn(wait);
        }
    }

    /// Injects a fault. During a lasting fault, injects no other fault until all operations in
    /// flight have completed.
    fn go_wrong(&mut self) {
        let lasts = self.random.one_in(LASTING_ONE_IN) && !self.is_restless();
        let most = if lasts { LASTING } else { LONGEST };
        let longest = Duration::from_millis(self.random.below(most.as_millis() as u64) + 1);
        if self.host.is_succeeded() && self.random.one_in(DIES_ONE_IN) {
            let pause = self.random.time(LONGEST);
            self.host.die(self.world, pause, longest);
            self.witness.died(self.model.abandon());
            self.deadlines.forget();
        } else {
            let Client { world, plan, random, server, .. } = self;
            match go_wrong(world, plan, random, server, longest) {
                Wrong::Power => self.model.power_cut(),
                // TCP retransmits lost data within twice the time for which data was lost.
                Wrong::Network => self.deadlines.change(self.world.elapsed() + longest * 2),
                Wrong::Address | Wrong::Process => {}
            }
            if !self.server.is_running() {
                self.deadlines.begin_anew(self.server.lucid_at());
            }
        }
        self.deadlines.change(self.world.elapsed());
        while lasts && self.model.in_flight() > 0 && self.has_hope() {
            self.tend();
            self.turn(Duration::from_millis(50));
        }
    }

    /// Whether the run makes new connections break; see [`Client::spoil_beginnings`].
    fn is_restless(&self) -> bool {
        self.keys.is_some() && self.plan.fault_one_in != 0
    }

    /// Whether operations in flight must complete soon: a path is usable, or operations fail fast
    /// without one.
    fn has_hope(&self) -> bool {
        self.server.is_usable() || self.plan.fast_fail.is_some()
    }

    /// Restarts dead processes when they are due.
    fn tend(&mut self) {
        let options = options(&self.plan, self.keys.as_ref());
        let is_changed = self.server.tend(self.world);
        if self.host.tend(self.world, &options, &self.reactor) || is_changed {
            self.deadlines.change(self.world.elapsed());
        }
    }

    /// Ends all faults, and waits until no operation is in flight.
    fn finish(mut self) -> (Outcome, Range<u32>) {
        self.server.mend(self.world);
        self.is_mended = true;
        self.deadlines.change(self.world.elapsed());
        self.world.set_net_faults(self.plan.net);
        self.faults += self.world.early_faults();
        self.settle();
        let flush = Wish { command: Command::Flush, lba: 0, blocks: 0, is_durable: false };
        self.start(&flush);
        self.settle();
        for lba in (0..BLOCKS).step_by(MOST_BLOCKS as usize) {
            let blocks = MOST_BLOCKS.min(BLOCKS - lba);
            self.start(&Wish { command: Command::Read, lba, blocks, is_durable: false });
            self.settle();
        }
        let Client { world, host, reactor, server, plan, keys, .. } = self;
        let Client { succeeded, failed, faults, .. } = self;
        let machines = host.machines();
        drop(host);
        drop(reactor);
        // Wait until the remaining threads have closed connections and files, and abandoned
        // connections have timed out.
        os::sleep(GONE_TIME);
        if let Some(keys) = &keys {
            turn_strangers_away(&server, &plan, keys);
            os::sleep(GONE_TIME);
        }
        assert_eq!(server.connections(), 0, "the target keeps unused connections");
        memory::check(world, &plan);
        server.stop();
        if keys.is_some() {
            // Let the authentication thread of the target notice that the target has ended. No
            // other code waits for this thread.
            os::sleep(Duration::from_millis(1));
        }
        let (trace, elapsed) = (world.trace(), world.elapsed());
        (Outcome { trace, elapsed, succeeded, failed, faults }, machines)
    }

    /// With authentication, makes many new connections break, within or between their first
    /// messages. With TLS, also corrupts bytes.
    fn spoil_beginnings(&self) {
        let Some(keys) = &self.keys else { return };
        if self.plan.fault_one_in != 0 {
            let damage_one_in = if keys.proof().is_sealed() { 3 } else { 0 };
            let early = EarlyFaults { cut_one_in: 3, damage_one_in, bytes: 4_000 };
            self.world.set_net_faults(NetFaults { early, ..self.plan.net });
        }
    }

    /// Changes the key of the host: the target accepts a new key, then the host uses it, and later
    /// the target revokes the old key.
    fn change_keys(&mut self, operations: u64) {
        let Some(keys) = &mut self.keys else { return };
        let thirds = 3 * self.submitted / operations.max(1);
        if thirds >= 1 && keys.go_on(Change::UnderWay) {
            self.server.take(keys.of_target());
            keys.renew();
        } else if thirds >= 2 && keys.go_on(Change::Over) {
            self.server.take(keys.of_target());
        }
    }

    fn submit(&mut self) {
        let blocks = 1 + self.random.below(MOST_BLOCKS);
        let lba = self.random.below(BLOCKS - blocks + 1);
        let command = match self.random.below(20) {
            0..8 => Command::Read,
            8..10 => Command::Flush,
            10 => Command::WriteZeroes { deallocate: self.random.one_in(2) },
            11 => Command::Deallocate,
            _ => Command::Write,
        };
        let is_durable = command == Command::Write && self.random.one_in(4);
        let (lba, blocks) = if command == Command::Flush { (0, 0) } else { (lba, blocks) };
        let wish = Wish { command, lba, blocks, is_durable };
        if self.host.queue().is_none() {
            return;
        }
        if self.model.in_flight() < DEPTH && !self.model.overlaps(&wish) {
            self.submitted += 1;
            self.start(&wish);
        }
    }

    fn start(&mut self, wish: &Wish) {
        let (token, data) = self.model.submit(wish);
        self.deadlines.begin(token, self.world.elapsed());
        let Wish { command, lba, blocks, is_durable } = *wish;
        let buffer = command.moves_data().then(|| {
            let mut buffer = self.reactor.buffers().take(blocks as usize * BLOCK_BYTES);
            match command {
                Command::Write => buffer.copy_from_slice(&data),
                _ => buffer.fill(0xa5),
            }
            buffer
        });
        let op = Op::with(command, lba, blocks as u32, buffer, token);
        let op = if is_durable { op.durable() } else { op };
        self.host.queue().expect("the queue is open").submit(op);
    }

    /// Lets virtual time pass, and handles completions.
    fn turn(&mut self, wait: Duration) {
        self.poll();
        self.reactor.poll(Some(wait), &mut self.ready).expect("the loop works");
        self.poll();
        if let Some(medium) = self.server.medium() {
            self.witness.see(self.world.take_landed(medium));
        }
        let now = self.world.elapsed();
        if self.is_restless() && !self.is_mended {
            self.deadlines.change(now);
        }
        if self.has_hope()
            && let Some((token, age)) = self.deadlines.overdue(now, self.server.is_running())
        {
            panic!("operation {token} has taken {age:?}; {}", self.describe());
        }
    }

    fn poll(&mut self) {
        if let Some(queue) = self.host.queue() {
            queue.poll(&mut self.done);
            self.take_done();
        }
    }

    fn describe(&self) -> String {
        let (waits, paths) = (self.model.describe(), self.host.describe());
        format!("under way: {waits}; paths: {paths}; {:?}", self.plan)
    }

    fn take_done(&mut self) {
        for done in std::mem::take(&mut self.done) {
            let token = done.token;
            let buffer = done.buffer;
            let data = buffer.as_ref().map_or(&[][..], |buffer| &buffer[..]);
            match done.result {
                Ok(()) => {
                    self.succeeded += 1;
                    self.witness.acknowledge(token, self.world.elapsed());
                }
                Err(error) => {
                    assert!(
                        self.plan.may_fail(error) || self.model.may_have_lost(token),
                        "operation {token} failed: {error}; {}",
                        self.describe()
                    );
                    self.failed += 1;
                }
            }
            self.deadlines.end(token);
            if let Err(wrong) = self.model.complete(token, done.result, data) {
                panic!("at {:?}, operation {token}: {wrong}", self.world.elapsed());
            }
            if let Some(buffer) = buffer {
                self.reactor.buffers().give(buffer);
            }
        }
    }

    /// Waits until no operation is in flight.
    fn settle(&mut self) {
        let until = self.world.elapsed() + WAIT_LIMIT;
        while self.model.in_flight() > 0 || self.host.queue().is_none() {
            assert!(
                self.world.elapsed() < until,
                "the faults have ended, but the run does not end: {}",
                self.describe()
            );
            self.tend();
            self.turn(Duration::from_millis(50));
        }
    }
}

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    /// The target is unreachable at one of its addresses.
    Address,
    /// The target's process is not running.
    Process,
    /// The target's machine has lost power.
    Power,
    /// Data in transit is lost or late.
    Network,
}

fn go_wrong(
    world: &World,
    plan: &Plan,
    random: &mut Random,
    server: &mut Server,
    longest: Duration,
) -> Wrong {
    match random.below(16) {
        0 => {
            let at = random.below(plan.paths as u64) as usize;
            server.hide(world, at, longest);
            return Wrong::Address;
        }
        1 => {
            server.die(world, longest, false);
            return Wrong::Process;
        }
        2 if !plan.is_memory => {
            server.die(world, longest, true);
            return Wrong::Power;
        }
        3 | 4 => {
            let at = random.below(plan.paths as u64) as usize;
            let side = if random.one_in(2) { Side::Client } else { Side::Server };
            server.darken(world, at, side, longest);
        }
        5 | 6 => {
            // Also break connections, as when a suspended machine resumes after its peers have
            // dropped them.
            break_something(world, random, longest);
            let target = TARGET..TARGET + 1;
            let machines = if plan.hosts_jump && random.one_in(2) { HOSTS } else { target };
            world.jump(machines, random.time(JUMP));
        }
        _ => break_something(world, random, longest),
    }
    Wrong::Network
}

fn break_something(world: &World, random: &mut Random, longest: Duration) {
    let connections = world.connections();
    if connections.is_empty() {
        return;
    }
    let side = if random.one_in(2) { Side::Client } else { Side::Server };
    let how = match random.below(8) {
        0 => Break::Reset,
        1 => Break::HalfOpen(side),
        2 => Break::Silence,
        3 => Break::Stall(side, longest),
        _ => Break::Stray(longest),
    };
    let first = random.below(connections.len() as u64) as usize;
    // Break one connection, or all of them.
    let count = if random.one_in(3) { connections.len() } else { 1 };
    for connection in connections.into_iter().cycle().skip(first).take(count) {
        world.break_connection(connection, how);
    }
}

/// Checks that the target refuses peers with other keys, even without faults.
fn turn_strangers_away(server: &Server, plan: &Plan, keys: &Keys) {
    let good = options(plan, Some(keys));
    for (connection, why) in keys.strangers(&good.connection) {
        let before = server.authenticated();
        let stranger = DiskOptions { connection, ..good.clone() };
        let error = Disk::connect(&server.urls(), &stranger).err();
        let error = error.expect("a host with another key has a disk").to_string();
        assert!(error.contains(why), "the error states the reason: {error}");
        assert_eq!(server.authenticated(), before, "a host with another key has a queue");
    }
}

impl Plan {
    fn may_fail(&self, error: BlockError) -> bool {
        match error {
            BlockError::ReadFailed | BlockError::WriteFailed => {
                self.disk.fail_one_in != 0 && !self.is_memory
            }
            BlockError::Disconnected => self.fast_fail.is_some(),
            _ => false,
        }
    }
}
