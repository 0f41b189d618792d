//! A scripted target whose state a test changes while it runs, and a user of the target's disk.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

use crate::peer::{self, Capsule, Connection, Handled, Peer, SUBSYSTEM, Script, options};
use farblock_block::{BlockError, Completion, Namespace, Op, Queue};
use farblock_host::disk::{ControllerLife, DiskOptions, KnownNamespace, Predecessor, Record};
use farblock_host::{Disk, Url};
use farblock_reactor::{Buffer, Reactor, TaskId};
use farblock_wire::Status;
use farblock_wire::fabrics::FabricsCommandType;
use farblock_wire::log::AnaState;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::origin::{ControllerOrigin, ProcessName};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const KEEP_ALIVE: u8 = 0x18;
pub const EVENT_REQUEST: u8 = 0x0c;
pub const GET_LOG_PAGE: u8 = 0x02;
pub const CROSS_CONTROLLER_RESET: u8 = AdminOpcode::CROSS_CONTROLLER_RESET.0;
pub const IDENTIFY: u8 = 0x06;
pub const WRITE: u8 = 0x01;

/// The current state of a scripted target, and counts of the commands that it received.
pub struct Stage {
    pub access: AtomicU8,
    pub blocks: AtomicU64,
    /// The byte that fills the namespace's UUID; 0: no UUID.
    pub uuid: AtomicU8,
    pub volatile_cache: AtomicBool,
    /// If set, the target replaces its namespace at the next Identify for identification
    /// descriptors (CNS 03h), and clears this flag.
    pub swaps_at_a_look: AtomicBool,
    /// Number of writes with FUA.
    pub durable: AtomicUsize,
    /// Asynchronous events to report, as results of event requests.
    pub events: Mutex<Vec<u64>>,
    /// The command identifier of the waiting event request.
    pub held: Mutex<Option<u16>>,
    pub ios: AtomicUsize,
    /// The origin that the target reports. With an origin, the target supports Cross-Controller
    /// Reset, but does not know any lost controller.
    pub origin: Mutex<Option<ControllerOrigin>>,
    /// The byte that fills the process name that the target reports with an origin; 0: no name.
    pub process: AtomicU8,
    /// The identifier of the target's controllers; 0: each target has its own.
    pub cntlid: AtomicU16,
    /// Whether to leave commands on I/O queues unanswered.
    pub silent: AtomicBool,
}

impl Stage {
    pub fn new(access: AnaState) -> Arc<Stage> {
        Arc::new(Stage {
            access: AtomicU8::new(access.0),
            blocks: AtomicU64::new(Script::<Connection>::default().blocks),
            uuid: AtomicU8::new(1),
            volatile_cache: AtomicBool::new(true),
            swaps_at_a_look: AtomicBool::new(false),
            durable: AtomicUsize::new(0),
            events: Mutex::default(),
            held: Mutex::default(),
            ios: AtomicUsize::new(0),
            origin: Mutex::default(),
            process: AtomicU8::new(0),
            cntlid: AtomicU16::new(0),
            silent: AtomicBool::new(false),
        })
    }

    pub fn set_access(&self, access: AnaState) {
        self.access.store(access.0, Ordering::SeqCst);
        self.events.lock().unwrap().push(0x000c_0302);
    }

    pub fn resize(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::SeqCst);
        self.events.lock().unwrap().push(0x0004_0002);
    }

    /// Replaces the namespace by another one with this UUID.
    pub fn swap(&self, uuid: u8) {
        self.uuid.store(uuid, Ordering::SeqCst);
        self.events.lock().unwrap().push(0x0004_0002);
    }

    pub fn ios(&self) -> usize {
        self.ios.load(Ordering::SeqCst)
    }

    pub fn handle(&self, to: &mut Connection, qid: u16, capsule: &Capsule) -> io::Result<Handled> {
        let (sqe, cid) = (&capsule.sqe, capsule.cid());
        if sqe.opcode == 0x7f {
            if sqe.fctype() != FabricsCommandType::CONNECT.0 {
                return Ok(Handled::No);
            }
            to.respond(cid, Status::SUCCESS, self.cntlid(to).into())?;
            return Ok(Handled::Yes);
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
                    to.respond(held.take().expect("a held command"), Status::SUCCESS, event)?;
                }
            }
            GET_LOG_PAGE => self.push_log(to, capsule)?,
            IDENTIFY => return self.identify(to, capsule),
            CROSS_CONTROLLER_RESET if self.origin.lock().unwrap().is_some() => {
                to.respond(cid, Status::INVALID_FIELD.with_dnr(), 0)?;
            }
            _ => return Ok(Handled::No),
        }
        Ok(Handled::Yes)
    }

    fn cntlid(&self, of: &Connection) -> u16 {
        match self.cntlid.load(Ordering::SeqCst) {
            0 => of.stream.local_addr().map_or(1, |address| address.port().min(0xffef)),
            id => id,
        }
    }

    pub fn handle_io(&self, to: &mut Connection, capsule: &Capsule) -> io::Result<Handled> {
        if self.silent.load(Ordering::SeqCst) {
            return Ok(Handled::Yes);
        }
        self.ios.fetch_add(1, Ordering::SeqCst);
        if capsule.sqe.opcode == WRITE && capsule.sqe.cdw12.get() & 1 << 30 != 0 {
            self.durable.fetch_add(1, Ordering::SeqCst);
        }
        let status = match AnaState(self.access.load(Ordering::SeqCst)) {
            AnaState::INACCESSIBLE => Status::ANA_INACCESSIBLE,
            AnaState::PERSISTENT_LOSS => Status::ANA_PERSISTENT_LOSS,
            AnaState::CHANGE => Status::ANA_TRANSITION,
            _ => return Ok(Handled::No),
        };
        to.respond(capsule.cid(), status, 0)?;
        Ok(Handled::Yes)
    }

    pub fn push_log(&self, to: &mut Connection, capsule: &Capsule) -> io::Result<()> {
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

    pub fn identify(&self, to: &mut Connection, capsule: &Capsule) -> io::Result<Handled> {
        let mut data = vec![0; 4096];
        let blocks = self.blocks.load(Ordering::SeqCst);
        let vwc = self.volatile_cache.load(Ordering::SeqCst);
        let script: Script = Script { blocks, vwc, oaes: 1 << 8 | 1 << 11, ..Script::default() };
        match capsule.sqe.cdw10.get() as u8 {
            0 => {
                peer::identify_namespace(&script, &mut data);
                data[92] = 1;
            }
            1 => {
                peer::identify_controller(&script, &mut data);
                data[78..80].copy_from_slice(&self.cntlid(to).to_le_bytes());
                // The field CMIC announces ANA, and there is one ANA group.
                data[76] = 0b1011;
                data[344] = 1;
                data[348] = 1;
                if let Some(origin) = *self.origin.lock().unwrap() {
                    // The fields CIU, CIRN and CCRL.
                    (data[135], data[136], data[1807]) = (1, 1, 1);
                    origin.emit(&mut data[3072..]);
                    ProcessName([self.process.load(Ordering::SeqCst); 16]).emit(&mut data[3072..]);
                }
            }
            3 => {
                let uuid = self.uuid.load(Ordering::SeqCst);
                if self.swaps_at_a_look.swap(false, Ordering::SeqCst) {
                    self.uuid.store(uuid + 1, Ordering::SeqCst);
                    let event = self.held.lock().unwrap().take().expect("a request for events");
                    to.respond(event, Status::SUCCESS, 0x0004_0002)?;
                }
                if uuid != 0 {
                    data[..4].copy_from_slice(&[3, 16, 0, 0]);
                    data[4..20].fill(uuid);
                }
            }
            _ => return Ok(Handled::No),
        }
        to.push_all(capsule.cid(), &data, 4096, true)?;
        Ok(Handled::Yes)
    }
}

pub fn target(stage: &Arc<Stage>) -> Peer {
    let stage = Arc::clone(stage);
    Peer::with_hook(move |connection, qid, capsule| stage.handle(connection, qid, capsule))
}

pub fn urls(peers: &[&Peer]) -> Vec<Url> {
    let url = |peer: &&Peer| format!("nvme+tcp://{}/{SUBSYSTEM}?ns=1", peer.address());
    peers.iter().map(|peer| url(peer).parse().expect("a URL")).collect()
}

pub fn disk(peers: &[&Peer], options: &DiskOptions) -> Disk {
    Disk::connect(&urls(peers), options).expect("connected")
}

pub fn usual() -> DiskOptions {
    let mut connection = options();
    connection.path_timeout = Some(Duration::from_secs(1));
    // The disk waits for a multiple of this time before it repeats writes of a lost controller.
    connection.keep_alive = Duration::from_secs(5);
    DiskOptions { connection, reconnect_delay: Duration::from_millis(50), ..Default::default() }
}

/// Options for targets that execute no command after its connection is lost: the disk need not
/// wait.
pub fn quick() -> DiskOptions {
    DiskOptions { quiesce: Some(Duration::ZERO), ..usual() }
}

/// Options with a short wait for a lost controller that its target cannot close. `None`: 4 s.
pub fn impatient(quiesce: Option<Duration>) -> DiskOptions {
    let mut options = DiskOptions { quiesce, ..usual() };
    // The host rounds this up to 2 s, and waits for twice as long.
    options.connection.keep_alive = Duration::from_millis(1500);
    options
}

pub struct User {
    pub queue: Box<dyn Queue>,
    pub reactor: Reactor,
    pub done: Vec<Completion>,
    pub ready: Vec<TaskId>,
}

impl User {
    pub fn new(disk: &Disk) -> User {
        let reactor = Reactor::new(&farblock_reactor::Config::default()).expect("an engine");
        let task = reactor.add_task();
        let queue = disk.open(&reactor, task).expect("a queue");
        User { queue, reactor, done: Vec::new(), ready: Vec::new() }
    }

    pub fn turn(&mut self, time: Duration) -> Vec<Completion> {
        let deadline = Instant::now() + time;
        loop {
            self.queue.poll(&mut self.done);
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.done.is_empty() || left.is_zero() {
                return std::mem::take(&mut self.done);
            }
            self.reactor.poll(Some(left), &mut self.ready).expect("the loop continues");
        }
    }

    pub fn one(&mut self) -> Result<(), BlockError> {
        let done = self.turn(Duration::from_secs(60));
        assert_eq!(done.len(), 1, "one operation must complete");
        done[0].result
    }

    pub fn flush(&mut self) -> Result<(), BlockError> {
        self.queue.submit(Op::flush(1));
        self.one()
    }

    pub fn write(&mut self, lba: u64) -> Result<(), BlockError> {
        self.queue.submit(Op::write(lba, 1, Buffer::new(512), 1));
        self.one()
    }

    /// Writes one block. Returns whether this target received the write.
    pub fn goes_to(&mut self, stage: &Stage) -> bool {
        let before = stage.ios();
        assert_eq!(self.write(0), Ok(()));
        stage.ios() > before
    }
}

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within the time limit");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn access(disk: &Disk) -> Vec<Option<AnaState>> {
    disk.paths().iter().map(|path| path.access).collect()
}
/// A record of the state for a disk's successor. Tests can make it fail.
#[derive(Clone, Default)]
pub struct Notes(pub Arc<Mutex<(Predecessor, bool)>>);

impl Notes {
    pub fn read(&self) -> Predecessor {
        self.0.lock().unwrap().0.clone()
    }

    pub fn fill_up(&self, full: bool) {
        self.0.lock().unwrap().1 = full;
    }

    pub fn note(&self, note: impl FnOnce(&mut Predecessor)) -> Result<(), String> {
        let (notes, full) = &mut *self.0.lock().unwrap();
        if *full {
            return Err("no space left".to_owned());
        }
        note(notes);
        Ok(())
    }
}

impl Record for Notes {
    fn namespace(&self, known: &KnownNamespace) -> Result<(), String> {
        self.note(|notes| notes.namespace = Some(known.clone()))
    }

    fn controllers(&self, lives: &[ControllerLife]) -> Result<(), String> {
        self.note(|notes| notes.controllers = lives.to_vec())
    }
}

pub fn error(disk: &Disk, path: usize) -> String {
    disk.paths()[path].error.clone().unwrap_or_default()
}
