//! The shared code of disk tests: a target whose backend can hold back operations, a network that
//! can be cut, and a thread that uses the disk.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

#[cfg(target_os = "linux")]
pub mod besieged;
pub mod dirt;
pub mod gate;
pub mod keys;
pub mod proxy;
pub mod scripted;
#[cfg(target_os = "linux")]
pub mod stranger;
pub mod turns;

use farblock_block::{Completion, Namespace, Op, Queue};
use farblock_host::disk::{DiskOptions, PathState};
use farblock_host::{Disk, HostId, Options, Url};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::{Config, EngineKind, Reactor, TaskId};
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const NQN: &str = "nqn.2026-11.org.farblock:disk";
pub const BLOCK: usize = 512;
/// A timeout that is longer than any step on a busy machine.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

pub fn engines() -> Vec<EngineKind> {
    let works = |engine: &EngineKind| {
        Reactor::new(&Config { engine: *engine, ..Config::default() }).is_ok()
    };
    let engines: Vec<_> =
        [EngineKind::Portable, EngineKind::Uring].into_iter().filter(works).collect();
    assert!(engines.contains(&EngineKind::Portable));
    engines
}

pub fn serve(namespace: Arc<dyn Namespace>, listeners: &[SocketAddr]) -> Target {
    serve_as(namespace, "disk", listeners, EngineKind::Auto)
}

pub fn serve_as(
    namespace: Arc<dyn Namespace>,
    identity: &str,
    listeners: &[SocketAddr],
    engine: EngineKind,
) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    subsystem.exports.insert(NamespaceId(1), Export { namespace, identity: identity.to_owned() });
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: listeners.to_vec(),
        engine,
        ..TargetConfig::default()
    };
    // A port may stay in use for a moment after its close, so retry.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match Target::start(&config) {
            Ok(target) => return target,
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

pub fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

pub fn url(address: SocketAddr) -> Url {
    format!("nvme+tcp://{address}/{NQN}?ns=1").parse().expect("a URL")
}

/// Returns options that do not depend on files of this machine.
pub fn options(engine: EngineKind) -> DiskOptions {
    let connection = Options {
        hostnqn: Some("nqn.2014-08.org.example:tester".to_owned()),
        hostid: Some(HostId(*b"farblock-testing")),
        queue_depth: 32,
        engine,
        ..Options::default()
    };
    DiskOptions {
        connection,
        reconnect_delay: Duration::from_millis(100),
        ..DiskOptions::default()
    }
}

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within the time limit");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn live_paths(disk: &Disk) -> usize {
    disk.paths().iter().filter(|path| path.state == PathState::Live).count()
}

/// A thread's queue into a disk, and the reactor that polls the queue.
pub struct User {
    // This field is first, because dropping the queue deregisters it from the reactor.
    pub queue: Box<dyn Queue>,
    pub reactor: Reactor,
    done: Vec<Completion>,
    ready: Vec<TaskId>,
}

impl User {
    pub fn new(disk: &dyn Namespace, engine: EngineKind) -> User {
        let reactor = Reactor::new(&Config { engine, ..Config::default() }).expect("an engine");
        let task = reactor.add_task();
        let queue = disk.open(&reactor, task).expect("a queue");
        User { queue, reactor, done: Vec::new(), ready: Vec::new() }
    }

    pub fn write(&mut self, lba: u64, blocks: u32, value: u8, token: u64) {
        let mut buffer = self.reactor.buffers().take(blocks as usize * BLOCK);
        buffer.fill(value);
        self.queue.submit(Op::write(lba, blocks, buffer, token));
    }

    pub fn read(&mut self, lba: u64, blocks: u32, token: u64) {
        let buffer = self.reactor.buffers().take(blocks as usize * BLOCK);
        self.queue.submit(Op::read(lba, blocks, buffer, token));
    }

    /// Polls until operations complete or `time` has passed. Returns the completions.
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

    /// Waits for exactly one completion, and returns it.
    pub fn one(&mut self) -> Completion {
        let mut done = self.turn(Duration::from_secs(60));
        assert_eq!(done.len(), 1, "one operation must complete");
        done.pop().expect("counted")
    }

    pub fn value(&mut self, lba: u64) -> u8 {
        self.read(lba, 1, 0);
        let done = self.one();
        assert_eq!(done.result, Ok(()));
        let buffer = done.buffer.expect("the buffer of the read");
        assert!(buffer.iter().all(|byte| *byte == buffer[0]), "a torn block");
        buffer[0]
    }
}
