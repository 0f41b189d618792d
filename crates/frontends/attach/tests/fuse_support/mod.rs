//! A mounted disk for tests, and a namespace that records its operations.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use farblock_attach::fuse::{Config, Server, loop_device};
use farblock_backends::Spec;
use farblock_block::testing::Elastic;
use farblock_block::{BlockError, Changes, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{EngineKind, Reactor, TaskId};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Portable];

/// Opens the disk that a specification describes.
pub fn disk(spec: &str, block_size: u32) -> Arc<dyn Namespace> {
    Spec::parse(spec).expect("a disk").open(block_size, false).expect("the disk opens")
}

/// A running FUSE server and its mountpoint. The first field is dropped first: the server.
pub struct Served {
    pub server: Server,
    pub folder: TempDir,
}

impl Served {
    pub fn new(engine: EngineKind, namespace: Arc<dyn Namespace>) -> Served {
        Served::with(namespace, |config| config.engine = engine)
    }

    pub fn with(namespace: Arc<dyn Namespace>, change: impl FnOnce(&mut Config)) -> Served {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::new(folder.path().into());
        config.threads = 2;
        change(&mut config);
        let server = Server::start(&config, namespace).expect("the server starts");
        Served { server, folder }
    }

    pub fn path(&self) -> &Path {
        self.server.path()
    }

    /// Stops the server, whose disk must have no users.
    pub fn stop(mut self) {
        // Retry: a child process of another test shares this process's descriptors until it
        // executes a program.
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = self.server.stop(false) {
            assert!(Instant::now() < deadline, "the device is still in use: {error}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!mounted(self.folder.path()), "the file system is still mounted");
    }
}

pub fn mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts.split_whitespace().any(|word| Path::new(word) == path)
}

/// A loop device. Dropping this value detaches the device.
pub struct Loop(pub PathBuf, PathBuf);

impl Loop {
    pub fn new(file: &Path, block_size: u32, read_only: bool) -> Loop {
        let device = loop_device::attach(file, block_size, read_only);
        Loop(device.expect("root may create loop devices"), file.into())
    }

    pub fn name(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }

    /// The first line of this file in `/sys/block/loopN/`.
    pub fn says(&self, what: &str) -> String {
        let folder = Path::new("/sys/block").join(self.0.file_name().expect("a name"));
        std::fs::read_to_string(folder.join(what)).expect("an attribute").trim().into()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A successful test has already detached the device, and another test may use it now.
        let folder = Path::new("/sys/block").join(self.0.file_name().expect("a name"));
        let file = std::fs::read_to_string(folder.join("loop/backing_file")).unwrap_or_default();
        if Path::new(file.trim_end()) == self.1 {
            let _ = loop_device::detach(&self.0, true);
        }
    }
}

/// A file system that is mounted for a test.
pub struct MountedFs(pub TempDir);

impl MountedFs {
    pub fn new(device: &str, options: &str) -> MountedFs {
        let folder = tempfile::tempdir().expect("a folder");
        run("mount", &["-o", options, device, folder.path().to_str().expect("UTF-8")]);
        MountedFs(folder)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").into()
    }

    pub fn unmount(self) {
        run("umount", &[self.0.path().to_str().expect("UTF-8")]);
    }
}

impl Drop for MountedFs {
    fn drop(&mut self) {
        if mounted(self.0.path()) {
            let _ = Process::new("umount").arg("--lazy").arg(self.0.path()).status();
        }
    }
}

pub fn output(program: &str, arguments: &[&str]) -> Output {
    let mut command = Process::new("timeout");
    command.arg("60").arg(program).args(arguments);
    command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Runs a program that must succeed. Returns its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(status.success(), "{program} {arguments:?}: {status}\n{said}{complained}");
    said
}

/// Runs fio on a file. fio verifies the data that it reads.
pub fn fio_verify(file: &str, arguments: &[&str]) -> String {
    let filename = format!("--filename={file}");
    let mut all = vec![
        "--name=verify",
        &filename,
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randrepeat=1",
        "--allow_file_create=0",
        "--minimal",
    ];
    all.extend(arguments);
    run("fio", &all)
}

/// An operation: command, first block, number of blocks, FUA.
pub type Asked = (Command, u64, u32, bool);

/// A disk that records its operations, can change its size, and fails on demand.
pub struct Spy {
    pub disk: Arc<Elastic>,
    asked: Arc<Mutex<Vec<Asked>>>,
    error: Arc<Mutex<Option<BlockError>>>,
    pub deallocate: bool,
}

impl Spy {
    pub fn new(inner: Arc<dyn Namespace>, deallocate: bool) -> Arc<Spy> {
        let (asked, error) = (Arc::default(), Arc::default());
        Arc::new(Spy { disk: Elastic::new(inner), asked, error, deallocate })
    }

    /// Returns all operations since the last call.
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().expect("no panic"))
    }

    pub fn fail_with(&self, error: Option<BlockError>) {
        *self.error.lock().expect("no panic") = error;
    }
}

impl Namespace for Spy {
    fn changes(&self) -> Option<&Changes> {
        self.disk.changes()
    }

    fn geometry(&self) -> Geometry {
        Geometry { deallocate: self.deallocate, ..self.disk.geometry() }
    }

    fn describe(&self) -> String {
        format!("a spy on {}", self.disk.describe())
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.disk.open(reactor, parent)?;
        let (asked, error) = (Arc::clone(&self.asked), Arc::clone(&self.error));
        Ok(Box::new(SpyQueue { inner, asked, error, failed: Vec::new() }))
    }
}

struct SpyQueue {
    inner: Box<dyn Queue>,
    asked: Arc<Mutex<Vec<Asked>>>,
    error: Arc<Mutex<Option<BlockError>>>,
    failed: Vec<Completion>,
}

impl Queue for SpyQueue {
    fn submit(&mut self, op: Op) {
        self.asked.lock().expect("no panic").push((op.command, op.lba, op.blocks, op.fua));
        match *self.error.lock().expect("no panic") {
            Some(error) => self.failed.push(op.complete(Err(error))),
            None => self.inner.submit(op),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.failed);
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.failed.len() + self.inner.in_flight()
    }
}
