//! Starting and stopping a server.

use super::core::{Core, Parts};
use super::filesystem::{Disk, FILE};
use super::limits;
use super::loop_device;
use super::mount::{self, MountError, Way, wait_until};
use super::shared::{Mailbox, Shared};
use crate::users::{self, Listed, User};
use farblock_block::{BlockError, Namespace};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Reactor};
use fuser::{MountOption, Notifier, Session, SessionACL};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

/// The start of the name of every thread of a server, the library's included; what CPU accounting
/// goes by.
pub const THREAD_NAME_PREFIX: &str = "fuse";

/// Threads of a server that is not told how many.
const MAX_DEFAULT_THREADS: usize = 4;

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory to mount at.
    pub mountpoint: PathBuf,
    /// The file's name in it.
    pub name: String,
    /// Which event loop.
    pub engine: EngineKind,
    /// So many threads read requests, and so many carry them out. 0: half as many as there are
    /// processors, but at most four.
    pub threads: usize,
    /// Refuse writes, even if the namespace would take them.
    pub read_only: bool,
    /// Also for other users than the one who mounts, root among them.
    pub allow_other: bool,
}

impl Config {
    /// The usual: a file `disk`, as writable as the namespace, for this user.
    #[must_use]
    pub fn new(mountpoint: PathBuf) -> Config {
        Config {
            mountpoint,
            name: "disk".into(),
            engine: EngineKind::Auto,
            threads: 0,
            read_only: false,
            allow_other: false,
        }
    }
}

/// Why a server did not start. Shown, it says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The name is none for a file.
    Name(String),
    /// It cannot be mounted.
    Mount(MountError),
    /// The namespace cannot be used.
    Open(BlockError),
    /// The event loop does not start.
    Reactor(EngineKind, io::Error),
    /// A thread, or something it needs, is not to be had.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Name(name) => write!(
                f,
                "{name:?} is no name for a file: take 1 to {} bytes without a slash",
                limits::MAX_NAME_BYTES
            ),
            StartError::Mount(error) => error.fmt(f),
            StartError::Open(error) => write!(f, "cannot open the namespace: {error}"),
            StartError::Reactor(engine, error) => {
                write!(f, "the {engine} event loop does not start: {error}")
            }
            StartError::System(error) => write!(f, "cannot start to serve FUSE: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Why a server did not stop, or not well.
#[derive(Debug)]
#[non_exhaustive]
pub enum StopError {
    /// Somebody uses the disk: these, as far as can be seen. The server goes on.
    InUse(PathBuf, Vec<User>),
    /// It cannot be unmounted. The server goes on.
    Unmount(PathBuf, io::Error),
    /// It has stopped; an event loop had failed before.
    Failed(io::Error),
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopError::InUse(path, users) => {
                write!(f, "{} is in use: {}", path.display(), Listed(users))
            }
            StopError::Unmount(path, error) => {
                write!(f, "cannot unmount {}: {error}", path.display())
            }
            StopError::Failed(error) => write!(f, "an event loop had failed: {error}"),
        }
    }
}

impl std::error::Error for StopError {}

type Thread = JoinHandle<io::Result<()>>;

/// A running server. Dropping it stops it by force.
pub struct Server {
    shared: Arc<Shared>,
    cores: Vec<Thread>,
    session: Option<Mounted>,
    engine: EngineKind,
    mountpoint: PathBuf,
    path: PathBuf,
}

/// What there is of a mount.
struct Mounted {
    /// Ends when the kernel has ended the mount.
    thread: Thread,
    notifier: Notifier,
    /// What the kernel calls the connection.
    minor: Option<u32>,
}

impl Server {
    /// Opens the namespace, mounts and serves.
    ///
    /// # Errors
    /// Nothing runs then, and nothing is mounted.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        check_name(&config.name)?;
        let mountpoint = mount::prepare(&config.mountpoint).map_err(StartError::Mount)?;
        let path = mountpoint.join(&config.name);
        let shared = Arc::new(Shared::new(namespace, config.read_only));
        let (cores, engine) = start_cores(config, &shared)?;
        // From here on, dropping it stops the cores.
        let mut server = Server { shared, cores, session: None, engine, mountpoint, path };
        server.session = Some(server.mount(config)?);
        Ok(server)
    }

    fn mount(&self, config: &Config) -> Result<Mounted, StartError> {
        let disk = Disk {
            shared: Arc::clone(&self.shared),
            name: config.name.clone().into(),
            for_all: config.allow_other,
            mounted_at: SystemTime::now(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let read_only = self.shared.geometry().read_only;
        let writing = if read_only { MountOption::RO } else { MountOption::RW };
        let mut options = fuser::Config::default();
        options.mount_options =
            vec![MountOption::FSName(mount::SOURCE.into()), MountOption::NoExec, writing];
        options.acl = if config.allow_other { SessionACL::All } else { SessionACL::Owner };
        options.n_threads = Some(threads(config));
        options.clone_fd = true;
        let failed = |error| StartError::Mount(mount::failed(&self.mountpoint, error));
        let session = Session::new(disk, &self.mountpoint, &options).map_err(failed)?;
        let notifier = session.notifier();
        let minor = mount::minor(&self.mountpoint);
        let thread = thread::Builder::new()
            .name(format!("{THREAD_NAME_PREFIX}-session"))
            .spawn(move || {
                flushes_for_the_kernel();
                session.run()
            })
            .map_err(StartError::System)?;
        Ok(Mounted { thread, notifier, minor })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The event loop that was chosen.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.engine
    }

    /// Who uses the disk: processes with the file or the directory, loop devices on the file, and
    /// who uses those.
    #[must_use]
    pub fn users(&self) -> Vec<User> {
        let mut users = users::processes(std::slice::from_ref(&self.mountpoint));
        for device in loop_device::below(&self.mountpoint) {
            let what = format!("{} is on {}", device.display(), self.path.display());
            users.push(User::kernel(what));
            users.extend(loop_device::users(&device));
        }
        users
    }

    /// The namespace has another size now: so does the file from here on. A loop device is told
    /// with [`loop_device::resize`].
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn resized(&self) -> io::Result<()> {
        self.shared.resized();
        if let Some(session) = &self.session {
            session.notifier.inval_inode(FILE, 0, 0)?;
        }
        // The kernel forgot the size; it learns the new one by being asked.
        fs::metadata(&self.path).map(drop)
    }

    /// Unmounts if nobody uses the disk, finishes what was accepted, and ends the threads.
    ///
    /// `force`d, it does not ask: whoever uses the disk gets errors from here on, loop devices on
    /// it included, and what they had not written is lost.
    ///
    /// # Errors
    /// If somebody uses it; then everything is as before.
    pub fn stop(&mut self, force: bool) -> Result<(), StopError> {
        if let Some(session) = &self.session {
            if force {
                self.unmount_by_force(session);
            } else {
                self.unmount_if_unused(session)?;
            }
        }
        let session = self.session.take();
        let mut result = Ok(());
        if let Some(Mounted { thread, .. }) = session {
            // Not if it does not end: it may be that the mount lives on in another namespace.
            if wait_until(|| thread.is_finished()) {
                result = join(thread);
            } else {
                tracing::error!("{} is still mounted somewhere", self.mountpoint.display());
            }
        }
        self.shared.stop();
        let cores = self.cores.drain(..).map(join).fold(Ok(()), io::Result::and);
        cores.and(result).map_err(StopError::Failed)
    }

    fn in_use(&self, users: Vec<User>) -> StopError {
        StopError::InUse(self.path.clone(), users)
    }

    fn unmount_if_unused(&self, session: &Mounted) -> Result<(), StopError> {
        let users = self.users();
        if !users.is_empty() {
            return Err(self.in_use(users));
        }
        // Somebody may have unmounted it.
        if self.is_mounted(session) {
            let mut result = Ok(());
            // The kernel needs a moment to forget who was the last.
            let mut unmount = || {
                result = mount::unmount(&self.mountpoint, Way::IfUnused);
                !is_busy(&result)
            };
            if !wait_until(&mut unmount) {
                return Err(self.in_use(self.users()));
            }
            result.map_err(|error| StopError::Unmount(self.mountpoint.clone(), error))?;
        }
        if wait_until(|| session.thread.is_finished()) { Ok(()) } else { Err(self.in_use(vec![])) }
    }

    fn unmount_by_force(&self, session: &Mounted) {
        for device in loop_device::below(&self.mountpoint) {
            if let Err(error) = loop_device::detach(&device, true) {
                tracing::warn!("{error}");
            }
        }
        if self.is_mounted(session)
            && let Err(error) = mount::unmount(&self.mountpoint, Way::Abort)
        {
            tracing::warn!("cannot unmount {}: {error}", self.mountpoint.display());
        }
        session.minor.into_iter().for_each(mount::abort);
    }

    /// Whether it is still our mount that is there.
    fn is_mounted(&self, session: &Mounted) -> bool {
        session.minor.is_some() && mount::minor(&self.mountpoint) == session.minor
    }
}

fn is_busy(result: &io::Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

fn join(thread: Thread) -> io::Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Drop for Server {
    fn drop(&mut self) {
        if (self.session.is_some() || !self.cores.is_empty())
            && let Err(error) = self.stop(true)
        {
            tracing::error!("{error}");
        }
    }
}

fn check_name(name: &str) -> Result<(), StartError> {
    let fits = (1..=limits::MAX_NAME_BYTES).contains(&name.len());
    if fits && !name.contains(['/', '\0', '\n']) && name != "." && name != ".." {
        return Ok(());
    }
    Err(StartError::Name(name.into()))
}

fn threads(config: &Config) -> usize {
    match config.threads {
        // Each is a pair. More pairs than half of the processors are in each other's way: measured,
        // one request at a time was three times as slow.
        0 => {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            (processors / 2).clamp(1, MAX_DEFAULT_THREADS)
        }
        threads => threads.min(limits::MAX_THREADS),
    }
}

/// This thread, and those it starts, work for the kernel when that writes its memory back: they
/// must not wait for that in turn. Only root may say so.
fn flushes_for_the_kernel() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("the kernel is not told that it depends on this thread: {error}");
    }
}

type Ready = Result<(Mailbox, EngineKind), StartError>;

fn start_cores(
    config: &Config,
    shared: &Arc<Shared>,
) -> Result<(Vec<Thread>, EngineKind), StartError> {
    let cores = threads(config);
    // Cores wait for this before they run: every one needs the mailboxes of all. `false`: give up.
    let gate = Arc::new(OnceLock::new());
    let (mut threads, mut mailboxes, mut chosen) = (Vec::new(), Vec::new(), config.engine);
    for index in 0..cores {
        let (sender, receiver) = mpsc::channel();
        let (shared, gate_of_core) = (Arc::clone(shared), Arc::clone(&gate));
        let start =
            CoreStart { index, cores, engine: config.engine, shared, gate: gate_of_core, sender };
        let started = thread::Builder::new()
            .name(format!("{THREAD_NAME_PREFIX}-{index}"))
            .spawn(move || start.run())
            .map_err(StartError::System)
            .and_then(|thread| {
                threads.push(thread);
                wait_for(&receiver)
            });
        match started {
            Ok((mailbox, engine)) => {
                mailboxes.push(mailbox);
                chosen = engine;
            }
            Err(error) => {
                let _ = gate.set(false);
                threads.into_iter().for_each(|thread| drop(thread.join()));
                return Err(error);
            }
        }
    }
    shared.set_mailboxes(mailboxes);
    gate.set(true).expect("set only here");
    Ok((threads, chosen))
}

fn wait_for(receiver: &Receiver<Ready>) -> Ready {
    let died = |_| StartError::System(io::Error::other("a thread ended at once"));
    receiver.recv().map_err(died)?
}

/// What a core's thread starts with.
struct CoreStart {
    index: usize,
    cores: usize,
    engine: EngineKind,
    shared: Arc<Shared>,
    gate: Arc<OnceLock<bool>>,
    sender: Sender<Ready>,
}

impl CoreStart {
    fn run(self) -> io::Result<()> {
        let CoreStart { index, cores, engine, shared, gate, sender } = self;
        flushes_for_the_kernel();
        let config = ReactorConfig { engine, ..ReactorConfig::default() };
        let made = Reactor::new(&config).map_err(|error| StartError::Reactor(engine, error));
        let made = made.and_then(|reactor| {
            let queue_task = reactor.add_task();
            let queue = shared.namespace().open(&reactor, queue_task).map_err(StartError::Open)?;
            Ok((reactor, queue_task, queue))
        });
        let (reactor, queue_task, queue) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = sender.send(Err(error));
                return Ok(());
            }
        };
        let task = reactor.add_task();
        let _ = sender.send(Ok((Mailbox::new(reactor.waker(task)), reactor.engine())));
        if !gate.wait() {
            return Ok(());
        }
        let mut guard = FailsAll(Some(Arc::clone(&shared)));
        let parts = Parts { index, cores, reactor, task, queue, queue_task, shared };
        let result = Core::new(parts).run();
        if result.is_ok() {
            guard.0 = None;
        }
        result
    }
}

/// A core that ends before its time: who uses the disk is to get errors, and not to wait for ever.
struct FailsAll(Option<Arc<Shared>>);

impl Drop for FailsAll {
    fn drop(&mut self) {
        self.0.iter().for_each(|shared| shared.fail());
    }
}
