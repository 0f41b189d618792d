//! Tests which leg a mirror reads from. The legs have scripted read durations, in virtual time.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farblock_backends::mem::Mem;
use farblock_block::conformance::Driver;
use farblock_block::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::sim::World;
use farblock_reactor::{Buffer, EngineKind, Event, Reactor, TaskId, os};
use farblock_volumes::{LegSource, Mirror, MirrorOptions, Taking, limits};

const LEG_BYTES: u64 = limits::MIN_REGION_BYTES * 2 + limits::RESERVED_BYTES;

/// The duration of reads from the first half of a leg, and the number of reads.
#[derive(Default)]
struct Script {
    micros: AtomicU64,
    fails: AtomicU64,
    reads: AtomicU64,
}

struct Scripted {
    name: &'static str,
    is_local: bool,
    inner: Arc<Mem>,
    script: Arc<Script>,
}

impl LegSource for Scripted {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn is_local(&self) -> bool {
        self.is_local
    }

    fn open(&self) -> Result<Arc<dyn Namespace>, String> {
        Ok(Arc::new(Slow { inner: Arc::clone(&self.inner), script: Arc::clone(&self.script) }))
    }
}

/// A leg that counts requests. Unlike with a `Delay` or `Fault`, the test can change its speed and
/// failures while the mirror has it open.
struct Slow {
    inner: Arc<Mem>,
    script: Arc<Script>,
}

impl Namespace for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        Ok(Box::new(SlowQueue {
            inner: self.inner.open(reactor, parent)?,
            script: Arc::clone(&self.script),
            reactor: reactor.clone(),
            task: reactor.add_child(parent),
            held: Vec::new(),
            events: Vec::new(),
            failed: Vec::new(),
        }))
    }
}

struct SlowQueue {
    inner: Box<dyn Queue>,
    script: Arc<Script>,
    reactor: Reactor,
    task: TaskId,
    held: Vec<(Instant, Op)>,
    events: Vec<Event>,
    failed: Vec<Completion>,
}

impl Queue for SlowQueue {
    fn submit(&mut self, op: Op) {
        if op.command != Command::Read {
            return self.inner.submit(op);
        }
        self.script.reads.fetch_add(1, Ordering::SeqCst);
        let time = Duration::from_micros(self.script.micros.load(Ordering::SeqCst));
        self.held.push((os::now() + time, op));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.reactor.take_events(self.task, &mut self.events);
        self.events.clear();
        let now = os::now();
        for (_, op) in self.held.extract_if(.., |(due, _)| *due <= now) {
            match self.script.fails.load(Ordering::SeqCst) {
                0 => self.inner.submit(op),
                _ => self.failed.push(op.complete(Err(BlockError::ReadFailed))),
            }
        }
        let next = self.held.iter().map(|(due, _)| *due).min();
        self.reactor.set_timer(self.task, next);
        done.append(&mut self.failed);
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.failed.len() + self.inner.in_flight()
    }
}

impl Drop for SlowQueue {
    fn drop(&mut self) {
        self.held.drain(..).for_each(|(_, op)| drop(op.abandon()));
        self.reactor.remove_task(self.task);
    }
}

/// A mirror in sync whose first leg is remote.
struct Stand {
    driver: Driver,
    mirror: Arc<Mirror>,
    scripts: [Arc<Script>; 2],
    _world: World,
}

impl Stand {
    fn new() -> Stand {
        let world = World::enter(7);
        let scripts = [(); 2].map(|()| Arc::new(Script::default()));
        let source = |name, leg: usize| {
            let inner = Arc::new(Mem::new(512, LEG_BYTES).unwrap());
            let script = Arc::clone(&scripts[leg]);
            Arc::new(Scripted { name, is_local: leg == 1, inner, script }) as Arc<dyn LegSource>
        };
        let options = MirrorOptions {
            taking: Taking::Empty,
            engine: EngineKind::Sim,
            ..MirrorOptions::default()
        };
        let mirror = Mirror::open(vec![source("remote", 0), source("local", 1)], options).unwrap();
        let (mirror, mut driver) = (Arc::new(mirror), Driver::new(EngineKind::Sim));
        while !support::is_whole(&mirror) || mirror.status().suspect_bytes > 0 {
            driver.turn(Duration::from_millis(10));
        }
        let mut stand = Stand { driver, mirror, scripts, _world: world };
        stand.open();
        stand
    }

    fn open(&mut self) -> usize {
        let namespace: Arc<dyn Namespace> = Arc::clone(&self.mirror) as _;
        self.driver.open(&namespace)
    }

    fn take(&self, micros: [u64; 2]) {
        for (script, micros) in self.scripts.iter().zip(micros) {
            script.micros.store(micros, Ordering::SeqCst);
        }
    }

    /// Executes `reads` reads, `depth` at a time. Returns the number of reads from each leg.
    fn read(&mut self, queue: usize, reads: u64, depth: u64) -> [u64; 2] {
        let had = |stand: &Stand| {
            stand.scripts.each_ref().map(|script| script.reads.load(Ordering::SeqCst))
        };
        let before = had(self);
        let (mut given, mut done) = (0, Vec::new());
        let mut ended = 0;
        while ended < reads {
            while given < reads.min(ended + depth) {
                given += 1;
                self.driver.submit(queue, Op::read(0, 1, Buffer::new(512), given));
            }
            self.driver.queue(queue).poll(&mut done);
            if done.is_empty() {
                self.driver.turn(Duration::from_secs(1));
            }
            for done in done.drain(..) {
                assert_eq!(done.result, Ok(()));
                ended += 1;
            }
        }
        let had = had(self);
        [had[0] - before[0], had[1] - before[1]]
    }
}

#[test]
fn single_reads_use_the_local_leg_at_any_position() {
    let mut stand = Stand::new();
    stand.take([200, 100]);
    for _ in 0..10 {
        let queue = stand.open();
        assert_eq!(stand.read(queue, 1, 1), [0, 1]);
    }
    assert_eq!(stand.read(0, 50, 1), [0, 50]);
}

#[test]
fn reads_leave_a_slow_local_leg_and_return_when_it_is_fast() {
    let mut stand = Stand::new();
    stand.take([200, 8000]);
    stand.read(0, 1000, 1);
    let [remote, local] = stand.read(0, 20_000, 1);
    assert!(local >= 1 && local < remote / 100, "{remote} remote reads, {local} local ones");
    stand.take([200, 50]);
    stand.read(0, 20_000, 1);
    let [remote, local] = stand.read(0, 1000, 1);
    assert!(local > 900, "{remote} remote reads, {local} local ones");
}

#[test]
fn concurrent_reads_are_spread_by_the_speed_of_the_legs() {
    let mut stand = Stand::new();
    stand.take([100, 100]);
    stand.read(0, 1000, 16);
    let [remote, local] = stand.read(0, 4000, 16);
    assert!(remote.abs_diff(local) < 400, "{remote} remote reads, {local} local ones");
    stand.take([400, 100]);
    stand.read(0, 1000, 16);
    let [remote, local] = stand.read(0, 4000, 16);
    assert!(remote > 100 && remote * 2 < local, "{remote} remote reads, {local} local ones");
}

#[test]
fn a_leg_that_fails_reads_quickly_gets_few_reads() {
    let mut stand = Stand::new();
    stand.take([400, 100]);
    stand.scripts[1].fails.store(1, Ordering::SeqCst);
    let [remote, local] = stand.read(0, 1000, 1);
    assert!(remote == 1000 && local < 20, "{remote} remote reads, {local} local ones");
    stand.scripts[1].fails.store(0, Ordering::SeqCst);
    stand.read(0, 50_000, 1);
    let [remote, local] = stand.read(0, 1000, 1);
    assert!(local > 900, "{remote} remote reads, {local} local ones");
}
