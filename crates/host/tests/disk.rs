//! A disk over scripted targets: access states (ANA), changed namespaces, and targets that cannot
//! end a lost controller.

mod peer;

use farblock_block::{BlockError, Completion, Namespace, Op, Queue};
use farblock_host::disk::{Change, DiskOptions, DiskState};
use farblock_host::{Disk, Url};
use farblock_reactor::{Buffer, Reactor, TaskId};
use farblock_wire::Status;
use farblock_wire::log::AnaState;
use peer::{Capsule, Connection, Handled, Peer, SUBSYSTEM, Script, options};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KEEP_ALIVE: u8 = 0x18;
const EVENT_REQUEST: u8 = 0x0c;
const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;

/// What a scripted target says at the moment, and what it has seen.
struct Stage {
    access: AtomicU8,
    blocks: AtomicU64,
    /// Events to tell, as results of event requests.
    events: Mutex<Vec<u64>>,
    /// The event request that waits.
    held: Mutex<Option<u16>>,
    ios: AtomicUsize,
    /// Commands on I/O queues go unanswered.
    silent: AtomicBool,
}

impl Stage {
    fn new(access: AnaState) -> Arc<Stage> {
        Arc::new(Stage {
            access: AtomicU8::new(access.0),
            blocks: AtomicU64::new(Script::default().blocks),
            events: Mutex::default(),
            held: Mutex::default(),
            ios: AtomicUsize::new(0),
            silent: AtomicBool::new(false),
        })
    }

    fn set_access(&self, access: AnaState) {
        self.access.store(access.0, Ordering::SeqCst);
        self.events.lock().unwrap().push(0x000c_0302);
    }

    fn resize(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::SeqCst);
        self.events.lock().unwrap().push(0x0004_0002);
    }

    fn ios(&self) -> usize {
        self.ios.load(Ordering::SeqCst)
    }

    fn handle(&self, to: &mut Connection, qid: u16, capsule: &Capsule) -> io::Result<Handled> {
        let (sqe, cid) = (&capsule.sqe, capsule.cid());
        if sqe.opcode == 0x7f {
            return Ok(Handled::No);
        }
        if qid > 0 {
            return self.handle_io(to, capsule);
        }
        match sqe.opcode {
            EVENT_REQUEST => *self.held.lock().unwrap() = Some(cid),
            KEEP_ALIVE => {
                to.succeed(cid)?;
                let mut held = self.held.lock().unwrap();
                if held.is_some()
                    && let Some(event) = self.events.lock().unwrap().pop()
                {
                    to.respond(held.take().expect("looked at it"), Status::SUCCESS, event)?;
                }
            }
            GET_LOG_PAGE => self.push_log(to, capsule)?,
            IDENTIFY => return self.identify(to, capsule),
            _ => return Ok(Handled::No),
        }
        Ok(Handled::Yes)
    }

    fn handle_io(&self, to: &mut Connection, capsule: &Capsule) -> io::Result<Handled> {
        if self.silent.load(Ordering::SeqCst) {
            return Ok(Handled::Yes);
        }
        self.ios.fetch_add(1, Ordering::SeqCst);
        let status = match AnaState(self.access.load(Ordering::SeqCst)) {
            AnaState::INACCESSIBLE => Status::ANA_INACCESSIBLE,
            AnaState::PERSISTENT_LOSS => Status::ANA_PERSISTENT_LOSS,
            AnaState::CHANGE => Status::ANA_TRANSITION,
            _ => return Ok(Handled::No),
        };
        to.respond(capsule.cid(), status, 0)?;
        Ok(Handled::Yes)
    }

    fn push_log(&self, to: &mut Connection, capsule: &Capsule) -> io::Result<()> {
        let bytes = (capsule.sqe.cdw10.get() >> 16) as usize * 4 + 4;
        let mut page = vec![0; bytes.max(64)];
        match capsule.sqe.cdw10.get() as u8 {
            0x0c => {
                page[8] = 1;
                page[16] = 1;
                page[32] = self.access.load(Ordering::SeqCst);
            }
            _ => page[0] = 1,
        }
        to.push_all(capsule.cid(), &page[..bytes], 4096, true)
    }

    fn identify(&self, to: &mut Connection, capsule: &Capsule) -> io::Result<Handled> {
        let mut data = vec![0; 4096];
        let blocks = self.blocks.load(Ordering::SeqCst);
        let script = Script { blocks, oaes: 1 << 8 | 1 << 11, ..Script::default() };
        match capsule.sqe.cdw10.get() as u8 {
            0 => {
                peer::identify_namespace(&script, &mut data);
                data[92] = 1;
            }
            1 => {
                peer::identify_controller(&script, &mut data);
                // CMIC with ANA, and one group.
                data[76] = 0b1011;
                data[344] = 1;
                data[348] = 1;
            }
            _ => return Ok(Handled::No),
        }
        to.push_all(capsule.cid(), &data, 4096, true)?;
        Ok(Handled::Yes)
    }
}

fn target(stage: &Arc<Stage>) -> Peer {
    let stage = Arc::clone(stage);
    Peer::with_hook(move |connection, qid, capsule| stage.handle(connection, qid, capsule))
}

fn disk(peers: &[&Peer], options: &DiskOptions) -> Disk {
    let url = |peer: &&Peer| format!("nvme+tcp://{}/{SUBSYSTEM}?ns=1", peer.address());
    let urls: Vec<Url> = peers.iter().map(|peer| url(peer).parse().expect("a URL")).collect();
    Disk::connect(&urls, options).expect("connected")
}

fn usual() -> DiskOptions {
    let mut connection = options();
    connection.path_timeout = Some(Duration::from_secs(1));
    // For this long a controller that was lost may have writes under way.
    connection.keep_alive = Duration::from_secs(5);
    DiskOptions { connection, reconnect_delay: Duration::from_millis(50), ..Default::default() }
}

struct User {
    queue: Box<dyn Queue>,
    reactor: Reactor,
    done: Vec<Completion>,
    ready: Vec<TaskId>,
}

impl User {
    fn new(disk: &Disk) -> User {
        let reactor = Reactor::new(&farblock_reactor::Config::default()).expect("an engine");
        let task = reactor.add_task();
        let queue = disk.open(&reactor, task).expect("a queue");
        User { queue, reactor, done: Vec::new(), ready: Vec::new() }
    }

    fn turn(&mut self, time: Duration) -> Vec<Completion> {
        let deadline = Instant::now() + time;
        loop {
            self.queue.poll(&mut self.done);
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.done.is_empty() || left.is_zero() {
                return std::mem::take(&mut self.done);
            }
            self.reactor.poll(Some(left), &mut self.ready).expect("the loop goes on");
        }
    }

    fn one(&mut self) -> Result<(), BlockError> {
        let done = self.turn(Duration::from_secs(60));
        assert_eq!(done.len(), 1, "completions");
        done[0].result
    }

    fn write(&mut self, lba: u64) -> Result<(), BlockError> {
        self.queue.submit(Op::write(lba, 1, Buffer::new(512), 1));
        self.one()
    }

    /// Writes, and tells whether that target got it.
    fn goes_to(&mut self, stage: &Stage) -> bool {
        let before = stage.ios();
        assert_eq!(self.write(0), Ok(()));
        stage.ios() > before
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn access(disk: &Disk) -> Vec<Option<AnaState>> {
    disk.paths().iter().map(|path| path.access).collect()
}

#[test]
fn access_states_choose_the_path() {
    let stages = [Stage::new(AnaState::NON_OPTIMIZED), Stage::new(AnaState::OPTIMIZED)];
    let peers = [target(&stages[0]), target(&stages[1])];
    let disk = disk(&[&peers[0], &peers[1]], &usual());
    until("both paths", || disk.state() == DiskState::Live);
    let mut user = User::new(&disk);
    until("the optimized path is used", || user.goes_to(&stages[1]));
    let before = stages[0].ios();
    (0..5).for_each(|lba| assert_eq!(user.write(lba), Ok(())));
    assert_eq!(stages[0].ios(), before, "the optimized path is the second");
    // The answer says so before the event does, and the operation goes elsewhere at once.
    stages[1].set_access(AnaState::INACCESSIBLE);
    assert_eq!(user.write(0), Ok(()));
    assert!(stages[0].ios() > before);
    let inaccessible = Some(AnaState::INACCESSIBLE);
    until("it is known", || access(&disk) == [Some(AnaState::NON_OPTIMIZED), inaccessible]);
    let before = stages[1].ios();
    (0..5).for_each(|lba| assert_eq!(user.write(lba), Ok(())));
    assert_eq!(stages[1].ios(), before);
    // And back, which only the event tells.
    stages[1].set_access(AnaState::OPTIMIZED);
    until("it is known", || access(&disk)[1] == Some(AnaState::OPTIMIZED));
    // A queue that was busy elsewhere looks around first.
    until("it is used again", || user.goes_to(&stages[1]));
    let before = stages[0].ios();
    (0..5).for_each(|lba| assert_eq!(user.write(lba), Ok(())));
    assert_eq!(stages[0].ios(), before, "back on the optimized path");
    // A better path appears.
    stages[0].set_access(AnaState::OPTIMIZED);
    until("it is known", || access(&disk)[0] == Some(AnaState::OPTIMIZED));
    until("it is used", || user.goes_to(&stages[0]));
}

#[test]
fn operations_wait_while_access_changes() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let disk = disk(&[&peer], &usual());
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    stage.set_access(AnaState::CHANGE);
    user.queue.submit(Op::write(0, 1, Buffer::new(512), 1));
    assert!(user.turn(Duration::from_millis(500)).is_empty());
    stage.set_access(AnaState::NON_OPTIMIZED);
    assert_eq!(user.one(), Ok(()));
    // What is lost for good is not waited for.
    stage.set_access(AnaState::PERSISTENT_LOSS);
    assert_eq!(user.write(0), Err(BlockError::Disconnected));
}

#[test]
fn an_inaccessible_path_is_waited_for_as_long_as_a_lost_one() {
    let stage = Stage::new(AnaState::INACCESSIBLE);
    let peer = target(&stage);
    let fast_io_fail_timeout = Some(Duration::from_millis(200));
    let disk = disk(&[&peer], &DiskOptions { fast_io_fail_timeout, ..usual() });
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Err(BlockError::Disconnected));
    stage.set_access(AnaState::OPTIMIZED);
    until("it is known", || access(&disk) == [Some(AnaState::OPTIMIZED)]);
    assert_eq!(user.write(0), Ok(()));
}

#[test]
fn a_namespace_that_changes_its_size() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let disk = disk(&[&peer], &usual());
    let mut user = User::new(&disk);
    let blocks = Script::default().blocks;
    assert_eq!(disk.geometry().blocks, blocks);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let _watch = disk.on_change(move |change| tell.lock().unwrap().push(change));
    assert_eq!(user.write(blocks - 1), Ok(()));
    stage.resize(100);
    until("it is known", || disk.geometry().blocks == 100);
    assert_eq!(user.write(100), Err(BlockError::OutOfRange));
    assert_eq!(user.write(99), Ok(()));
    stage.resize(blocks);
    until("it is known", || disk.geometry().blocks == blocks);
    assert_eq!(user.write(blocks - 1), Ok(()));
    let sizes: Vec<u64> = told
        .lock()
        .unwrap()
        .iter()
        .filter_map(|change| match change {
            Change::Geometry(geometry) => Some(geometry.blocks),
            Change::Paths => None,
        })
        .collect();
    assert_eq!(sizes, [100, blocks]);
}

/// Such a target gets the time that the options say before a write is sent again; a read need not
/// wait.
#[test]
fn a_target_that_cannot_end_a_lost_controller() {
    let long = Duration::from_secs(3);
    for (quiesce, reading) in [(Duration::ZERO, false), (long, false), (long, true)] {
        let stage = Stage::new(AnaState::OPTIMIZED);
        let peers = [target(&stage), target(&stage)];
        let disk = disk(&[&peers[0], &peers[1]], &DiskOptions { quiesce, ..usual() });
        until("both paths", || disk.state() == DiskState::Live);
        let mut user = User::new(&disk);
        assert_eq!(user.write(0), Ok(()));
        assert!(user.turn(Duration::from_millis(100)).is_empty());
        stage.silent.store(true, Ordering::SeqCst);
        let op = match reading {
            true => Op::read(0, 1, Buffer::new(512), 1),
            false => Op::write(0, 1, Buffer::new(512), 1),
        };
        user.queue.submit(op);
        assert!(user.turn(Duration::from_millis(100)).is_empty());
        stage.silent.store(false, Ordering::SeqCst);
        peers[0].cut();
        let start = Instant::now();
        assert_eq!(user.one(), Ok(()));
        let (took, waits) = (start.elapsed(), !reading && !quiesce.is_zero());
        assert_eq!(took >= long - Duration::from_millis(50), waits, "{quiesce:?}: {took:?}");
    }
}

/// Controllers that come and go without being of use are no hope, and are not tried without a
/// pause.
#[test]
fn a_target_that_refuses_queues() {
    let controllers = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&controllers);
    let peer = Peer::with_hook(move |_, qid, capsule| {
        if capsule.sqe.opcode == 0x7f && capsule.sqe.fctype() == 1 {
            if qid > 0 {
                return Ok(Handled::Close);
            }
            counter.fetch_add(1, Ordering::SeqCst);
        }
        Ok(Handled::No)
    });
    let options = DiskOptions {
        fast_io_fail_timeout: Some(Duration::from_millis(500)),
        ctrl_loss_timeout: Some(Duration::from_secs(3)),
        reconnect_delay: Duration::from_millis(300),
        ..usual()
    };
    let disk = disk(&[&peer], &options);
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Err(BlockError::Disconnected));
    until("it is given up", || disk.state() == DiskState::Dead);
    let count = controllers.load(Ordering::SeqCst);
    assert!((3..20).contains(&count), "{count} controllers");
}
