//! The hosts of a busy core share it by their weights, regardless of the number and depth of their
//! queues. The tests check this by the order in which the disk receives commands.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::{BlockError, Completion, Geometry, Namespace, Op, Queue as BlockQueue};
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::host_end::Transfer;
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::{EngineKind, Reactor, TaskId};
use farblock_target::{Export, Rates, Subsystem, Target, TargetConfig};
use farblock_wire::fabrics::{ConnectCommand, ConnectData, PropertySetCommand, PropertySize};
use farblock_wire::property::offset;
use farblock_wire::{SglDescriptor, Status};
use rig::scripted::*;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};

/// The number of a block. A read of this block blocks the core until the test releases it.
const STALL: u64 = BLOCKS - 1;
/// The number of outstanding commands per queue.
const DEEP: u16 = 62;

#[derive(Default)]
struct Log {
    order: Vec<u64>,
    is_stalled: bool,
    goes_on: bool,
}

struct Recorder {
    inner: Mem,
    log: Arc<(Mutex<Log>, Condvar)>,
}

struct RecorderQueue {
    inner: Box<dyn BlockQueue>,
    log: Arc<(Mutex<Log>, Condvar)>,
}

impl Namespace for Recorder {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn BlockQueue>, BlockError> {
        let (inner, log) = (self.inner.open(reactor, parent)?, Arc::clone(&self.log));
        Ok(Box::new(RecorderQueue { inner, log }))
    }
}

impl BlockQueue for RecorderQueue {
    fn submit(&mut self, op: Op) {
        let (log, changed) = &*self.log;
        let mut log = log.lock().expect("not poisoned");
        if op.lba == STALL {
            log.order.clear();
            log.is_stalled = true;
            changed.notify_all();
            log = changed.wait_while(log, |log| !log.goes_on).expect("not poisoned");
        } else {
            log.order.push(op.lba);
        }
        drop(log);
        self.inner.submit(op);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

/// Returns a target with one core, and the log of its disk.
fn serve(engine: EngineKind) -> (Target, Arc<(Mutex<Log>, Condvar)>) {
    let log = Arc::<(Mutex<Log>, Condvar)>::default();
    let inner = Mem::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("a size");
    let namespace = Arc::new(Recorder { inner, log: Arc::clone(&log) });
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let export = Export { namespace, identity: "disk".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec!["127.0.0.1:0".parse().expect("an address")],
        cores: vec![0],
        engine,
        ..TargetConfig::default()
    };
    (Target::start(&config).expect("the target starts"), log)
}

fn name(number: u8) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-0000000000{number:02}")
}

/// A host, and the first of the blocks that it uses.
struct Host {
    _admin: Queue,
    queues: Vec<Queue>,
    lba: u64,
}

impl Host {
    fn new(number: u8, address: SocketAddr, queues: u16) -> Self {
        let name = name(number);
        let data = |cntlid| ConnectData::new([number; 16], cntlid, NQN, &name);
        let mut admin = Queue::new(address, Digests::NONE);
        let answer = admin.connect(ConnectCommand::new(0, 0, 31, 0), data(0xffff));
        assert_eq!(answer.status, Status::SUCCESS);
        let enable = 1 | 6 << 16 | 4 << 20;
        let set = PropertySetCommand::new(0, offset::CC, PropertySize::Four, enable).to_sqe();
        assert_eq!(admin.run(set, Transfer::None, &[]).status, Status::SUCCESS);
        let controller = answer.result as u16;
        let queues = (1..=queues).map(|id| {
            let mut queue = Queue::new(address, Digests::NONE);
            let mut command = ConnectCommand::new(0, id, 63, 0);
            command.cattr = 4;
            assert_eq!(queue.connect(command, data(controller)).status, Status::SUCCESS);
            queue
        });
        Self { queues: queues.collect(), _admin: admin, lba: u64::from(number - 1) * BLOCKS / 2 }
    }

    /// Returns host `number`, which uses only its own quarter of the blocks.
    fn part(number: u8, address: SocketAddr, queues: u16) -> Self {
        Self { lba: u64::from(number - 1) * BLOCKS / 4, ..Self::new(number, address, queues) }
    }

    /// Sends this many reads on each queue, without waiting for the responses.
    fn send(&mut self, count: u16) {
        for queue in &mut self.queues {
            let mut out = Vec::new();
            for slot in 1..=count {
                let sqe = blocks(2, self.lba, 1, SglDescriptor::transport(BLOCK as u32));
                let transfer = Transfer::FromController(BLOCK as u32);
                queue.end.submit(SlotId(slot), &sqe, transfer, &mut out);
            }
            queue.stream.write_all(&out).expect("sent");
        }
    }

    /// Waits for `count` completions on each queue.
    fn finish(&mut self, count: u16) {
        for queue in &mut self.queues {
            assert_eq!(queue.completions(count.into()), usize::from(count) * BLOCK);
        }
    }
}

/// Blocks the core until the test releases it.
fn stall((log, changed): &(Mutex<Log>, Condvar), host: &mut Host) {
    let mut out = Vec::new();
    let sqe = blocks(2, STALL, 1, SglDescriptor::transport(BLOCK as u32));
    let queue = &mut host.queues[0];
    queue.end.submit(SlotId(0), &sqe, Transfer::FromController(BLOCK as u32), &mut out);
    log.lock().expect("no panic").is_stalled = false;
    queue.stream.write_all(&out).expect("sent");
    let is_not_yet = |log: &mut Log| !log.is_stalled;
    drop(changed.wait_while(log.lock().expect("no panic"), is_not_yet).expect("no panic"));
}

/// Blocks the core until both hosts have sent their reads. Then returns, for each command in the
/// order in which the disk receives it, whether the second host sent it.
fn order_of(
    log: &(Mutex<Log>, Condvar),
    (greedy, other): (&mut Host, &mut Host),
    (many, few): (u16, u16),
) -> Vec<bool> {
    // Make both hosts count as active.
    for host in [&mut *other, &mut *greedy] {
        host.send(1);
        host.finish(1);
    }
    stall(log, greedy);
    let (log, changed) = log;
    greedy.send(many);
    other.send(few);
    log.lock().expect("no panic").goes_on = true;
    changed.notify_all();
    assert_eq!(
        greedy.queues[0].completions(1 + usize::from(many)),
        (1 + usize::from(many)) * BLOCK
    );
    for queue in &mut greedy.queues[1..] {
        queue.completions(many.into());
    }
    other.finish(few);
    let order = &log.lock().expect("no panic").order;
    order.iter().map(|lba| *lba >= BLOCKS / 2).collect()
}

#[test]
fn a_host_at_queue_depth_one_does_not_wait_behind_a_thousand_commands() {
    for &engine in EngineKind::HERE {
        let (target, log) = serve(engine);
        let address = target.addresses()[0];
        let (mut greedy, mut modest) = (Host::new(1, address, 16), Host::new(2, address, 1));
        let order = order_of(&log, (&mut greedy, &mut modest), (DEEP, 1));
        assert_eq!(order.len(), 16 * usize::from(DEEP) + 1);
        let before =
            order.iter().position(|is_modest| *is_modest).expect("the command was executed");
        assert!(before <= 3 * 32, "{engine:?}: the host waited for {before} other commands");
        drop((greedy, modest));
        target.stop().expect("the target stops");
    }
}

#[test]
fn hosts_share_a_core_by_weight() {
    for &engine in EngineKind::HERE {
        let (target, log) = serve(engine);
        let address = target.addresses()[0];
        let rates = Rates { weight: 300, ..Rates::default() };
        target.control().set_host_rates(NQN, &name(1), &rates).expect("the subsystem exists");
        let (mut heavy, mut light) = (Host::new(1, address, 8), Host::new(2, address, 8));
        let order = order_of(&log, (&mut heavy, &mut light), (DEEP, DEEP));
        let of_light = order[..384].iter().filter(|is_light| **is_light).count();
        // The light host has a quarter of the commands, within the tolerance of a round.
        assert!((64..=128).contains(&of_light), "{engine:?}: {of_light} of 384");
        let stats = target.control().stats();
        let light = stats.hosts.iter().find(|host| host.nqn == name(2)).expect("a known host");
        assert!(light.io.waited.turn_ns > 0, "{engine:?}: the wait is not counted");
        drop((heavy, light));
        target.stop().expect("the target stops");
    }
}

/// Three hosts with three weights disconnect and reconnect in turn. Each host keeps its weight on
/// new connections, whatever other connections open and close.
#[test]
fn three_hosts_keep_their_shares_across_reconnects() {
    for &engine in EngineKind::HERE {
        let (target, log) = serve(engine);
        let address = target.addresses()[0];
        for (number, weight) in [(1, 400), (2, 200), (3, 100)] {
            let rates = Rates { weight, ..Rates::default() };
            target.control().set_host_rates(NQN, &name(number), &rates).expect("a subsystem");
        }
        let mut hosts = [1, 2, 3].map(|number| Host::part(number, address, 6));
        for gone in 0..3 {
            hosts[gone] = Host::part(gone as u8 + 1, address, 6);
            let order = thirds(&log, &mut hosts);
            // Count the first 512 commands, during which every host still has waiting commands.
            let counts =
                [0, 1, 2].map(|host| order[..512].iter().filter(|it| **it == host).count());
            let [heavy, middle, light] = counts;
            let is_fair = (224..=352).contains(&heavy)
                && (96..=208).contains(&middle)
                && (32..=128).contains(&light);
            assert!(is_fair, "{engine:?}: {counts:?} when {gone} restarted");
        }
        // When one host disconnects, the other hosts get its share by weight.
        let [heavy, _, light] = &mut hosts;
        heavy.lba = 0;
        light.lba = BLOCKS / 2;
        log.0.lock().expect("no panic").goes_on = false;
        let order = order_of(&log, (heavy, light), (DEEP, DEEP));
        let of_light = order[..320].iter().filter(|is_light| **is_light).count();
        assert!((32..=128).contains(&of_light), "{engine:?}: {of_light} of 320");
        drop(hosts);
        target.stop().expect("the target stops");
    }
}

/// Like [`order_of`], for three hosts. Returns, for each command, the index of its host.
fn thirds(log: &(Mutex<Log>, Condvar), hosts: &mut [Host; 3]) -> Vec<u64> {
    log.0.lock().expect("no panic").goes_on = false;
    for host in &mut *hosts {
        host.send(1);
        host.finish(1);
    }
    stall(log, &mut hosts[0]);
    for host in &mut *hosts {
        host.send(DEEP);
    }
    log.0.lock().expect("no panic").goes_on = true;
    log.1.notify_all();
    let deep = usize::from(DEEP);
    assert_eq!(hosts[0].queues[0].completions(1 + deep), (1 + deep) * BLOCK);
    for queue in &mut hosts[0].queues[1..] {
        queue.completions(deep);
    }
    hosts[1..].iter_mut().for_each(|host| host.finish(DEEP));
    let order = &log.0.lock().expect("no panic").order;
    order.iter().map(|lba| lba / (BLOCKS / 4)).collect()
}
