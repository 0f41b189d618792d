//! Starts, recovers and stops the server of a ublk device.

use super::driver::{self, Driver, Error, open_node, wait_for};
use super::kernel::Commands;
use super::limits;
use super::uapi::{Info, Params, SECTOR_BYTES, feature, state};
use super::worker::{Order, UblkShared, Worker};
use farblock_block::{Geometry, Namespace};
use farblock_frontend::users::{self, Listed, User};
use farblock_frontend::{self as frontend, Cores, Disk, GeometryWatch, Mailboxes, Plan, Seat};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Polling};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The prefix of the names of all threads of a server. CPU accounting groups threads by this
/// prefix.
pub const THREAD_NAME_PREFIX: &str = "ublk-";

/// The default maximum number of hardware queues of a device.
const MAX_DEFAULT_QUEUES: usize = 4;
/// The default depth of a queue, in requests.
const DEFAULT_DEPTH: u16 = 64;
/// The longest wait for programs, such as udev, to close a disk that they probe.
const LOOKING: Duration = Duration::from_secs(2);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of the device: `Some(3)` selects `/dev/ublkb3`; `None` selects the first free
    /// number.
    pub id: Option<u32>,
    /// The number of hardware queues, each with a thread and a queue into the namespace. The kernel
    /// makes at most one queue per processor. 0 selects the number of processors, at most four.
    pub queues: u16,
    /// The maximum number of requests in flight in a queue.
    pub depth: u16,
    /// The event loop to use.
    pub engine: EngineKind,
    /// The processor time that the server may spend on polling.
    pub polling: Polling,
    /// Whether the server refuses writes even if the namespace is writable.
    pub read_only: bool,
    /// Whether the device outlives this process. Its users' requests then wait for
    /// [`Server::recover`].
    pub recoverable: bool,
    /// The disk's identifier. [`Server::recover`] must pass the same identifier.
    pub identifier: String,
    /// The time that [`Server::recover`] waits before the kernel resends requests, so that the dead
    /// server's operations can complete first; see **Recovery** in the module's text. Only
    /// `recover` uses it.
    pub settle: Duration,
}

impl Default for Config {
    /// A default configuration: recoverable, and writable if the namespace is.
    fn default() -> Config {
        Config {
            id: None,
            queues: 0,
            depth: DEFAULT_DEPTH,
            engine: EngineKind::Auto,
            polling: Polling::default(),
            read_only: false,
            recoverable: true,
            identifier: String::new(),
            settle: Duration::from_secs(1),
        }
    }
}

impl Config {
    fn reactor(&self) -> ReactorConfig {
        ReactorConfig::new(self.engine, self.polling)
    }

    fn check(&self, geometry: &Geometry) -> Result<(), StartError> {
        if self.queues > limits::MAX_QUEUES {
            return Err(StartError::Queues(self.queues));
        }
        if !(1..=limits::MAX_DEPTH).contains(&self.depth) {
            return Err(StartError::Depth(self.depth));
        }
        if self.identifier.len() > limits::MAX_IDENTIFIER_BYTES {
            return Err(StartError::Identifier(self.identifier.len()));
        }
        if geometry.block_size > limits::MAX_BLOCK_BYTES {
            return Err(StartError::BlockSize(geometry.block_size));
        }
        if geometry.blocks == 0 {
            return Err(StartError::Empty);
        }
        Ok(())
    }

    fn queues(&self) -> u16 {
        match self.queues {
            0 => {
                let processors = farblock_reactor::allowance::loops();
                processors.min(MAX_DEFAULT_QUEUES) as u16
            }
            queues => queues,
        }
    }

    /// A 64-bit hash of the identifier. The driver stores it with the device.
    fn identity(&self) -> u64 {
        Uuid::new_v5(&Uuid::NAMESPACE_OID, self.identifier.as_bytes()).as_u64_pair().0
    }
}

/// The reason why a server did not start. Its text tells the user how to fix the problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The ublk driver refused a command.
    Driver(Error),
    /// The configured number of queues exceeds the limit.
    Queues(u16),
    /// The configured depth is zero or exceeds the limit.
    Depth(u16),
    /// The identifier is too long. Holds its length in bytes.
    Identifier(usize),
    /// The namespace's blocks are larger than the kernel supports. Holds their size in bytes.
    BlockSize(u32),
    /// The namespace has no blocks.
    Empty,
    /// A process already serves the device. Holds the numbers of the device and the process.
    Served(u32, i32),
    /// The device was created without recovery, or its server stopped it.
    NotRecoverable(u32),
    /// The device belongs to another disk. Holds its number and the property that differs.
    OtherDisk(u32, &'static str),
    /// The threads did not start.
    Cores(frontend::StartError),
    /// The system refused to create a thread or one of its resources.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |id: &u32| driver::path(*id).display().to_string();
        match self {
            StartError::Driver(error) => error.fmt(f),
            StartError::Queues(queues) => {
                let most = limits::MAX_QUEUES;
                write!(f, "{queues} queues are too many: use at most {most}")
            }
            StartError::Depth(depth) => {
                let most = limits::MAX_DEPTH;
                write!(f, "a queue cannot have {depth} requests: use 1 to {most}")
            }
            StartError::Identifier(bytes) => {
                let most = limits::MAX_IDENTIFIER_BYTES;
                write!(f, "an identifier of {bytes} bytes is too long: use at most {most} bytes")
            }
            StartError::BlockSize(bytes) => write!(
                f,
                "ublk supports blocks of at most {} bytes, but the disk's blocks have {bytes}: \
                 choose another --as",
                limits::MAX_BLOCK_BYTES
            ),
            StartError::Empty => f.write_str("the disk has no blocks: enlarge it first"),
            StartError::Served(id, pid) => {
                write!(f, "process {pid} serves {}: stop it first", path(id))
            }
            StartError::NotRecoverable(id) => {
                write!(f, "{} cannot be recovered: detach it, and attach the disk again", path(id))
            }
            StartError::OtherDisk(id, why) => {
                write!(f, "{} belongs to another disk: {why}", path(id))
            }
            StartError::Cores(error) => error.fmt(f),
            StartError::System(error) => write!(f, "cannot start the ublk server: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<Error> for StartError {
    fn from(error: Error) -> StartError {
        StartError::Driver(error)
    }
}

/// The reason why a device did not stop, or the error with which it stopped.
#[derive(Debug)]
#[non_exhaustive]
pub enum StopError {
    /// The disk is in use. Lists the users that this process can see. Nothing has changed.
    InUse(PathBuf, Vec<User>),
    /// This process may not open the device, so it cannot check for users. Nothing has changed.
    NotAllowed(PathBuf),
    /// Some writes to the device have not reached the namespace, and flushing them failed. Nothing
    /// has changed.
    Flush(PathBuf, io::Error),
    /// The ublk driver refused a command.
    Driver(Error),
    /// The server has stopped. One of its event loops had failed earlier.
    Failed(io::Error),
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopError::InUse(path, users) => {
                write!(f, "{} is in use: {}", path.display(), Listed(users))
            }
            StopError::NotAllowed(path) => {
                write!(f, "this user may not open {} to see whether it is in use", path.display())?;
                f.write_str(": detach it as root, or by force")
            }
            StopError::Flush(path, error) => {
                write!(f, "writes to {} have not reached the disk: {error}", path.display())
            }
            StopError::Driver(error) => error.fmt(f),
            StopError::Failed(error) => {
                write!(f, "an event loop of the ublk server failed: {error}")
            }
        }
    }
}

impl std::error::Error for StopError {}

impl UblkShared {
    /// Adopts a new size of the namespace.
    fn resized(&self, info: &Info) -> Result<(), Error> {
        self.orders.post_all(|| Order::Resized);
        if info.flags & feature::UPDATE_SIZE == 0 {
            return Err(Error::NoResize);
        }
        let sectors = self.disk.geometry().capacity_bytes() / u64::from(SECTOR_BYTES);
        Driver::open()?.update_size(info.id, sectors)
    }
}

/// A running server. Dropping it stops the server. A recoverable device remains for the next
/// server, as after [`Server::leave`]. Any other device is removed, even if it is in use.
pub struct Server {
    shared: Arc<UblkShared>,
    info: Info,
    path: PathBuf,
    workers: Cores,
    changes: Option<GeometryWatch>,
}

impl Server {
    /// Makes a block device from the namespace, and serves the device.
    ///
    /// # Errors
    /// Fails if an option is invalid, or the driver, the namespace or a thread fails. Then no
    /// thread runs, and no new device remains.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        let disk = Disk::new(namespace, config.read_only);
        let geometry = disk.geometry();
        config.check(&geometry)?;
        let mut driver = Driver::open()?;
        let info = driver.add(&Info {
            queues: config.queues(),
            depth: config.depth,
            request_bytes: limits::REQUEST_BYTES,
            // For `u32::MAX`, the driver picks a free number.
            id: config.id.unwrap_or(u32::MAX),
            pid: std::process::id() as i32,
            flags: driver.flags(config.recoverable),
            identity: config.identity(),
            state: 0,
        })?;
        let started = Server::serve(disk, info, config.reactor()).and_then(|mut server| {
            let params = Params::of(&geometry, info.request_bytes);
            driver.set_params(info.id, &params)?;
            driver.start(info.id)?;
            server.watch(geometry);
            Ok(server)
        });
        started.inspect_err(|_| {
            // The server has already stopped, so its device can be removed.
            if let Err(error) = driver.delete(info.id) {
                tracing::warn!("{error}");
            }
        })
    }

    /// Serves the device of a server that died or [left](Server::leave). The device keeps its
    /// number, its queues and their depth. So this function uses only the options `identifier`,
    /// `engine`, `polling`, `read_only` and `settle`.
    ///
    /// The new server executes the requests that have waited in the kernel, and those that the old
    /// server did not answer.
    ///
    /// # Errors
    /// Fails if the device does not match the configuration, or the driver, the namespace or a
    /// thread fails. Then the device still waits for a server.
    pub fn recover(
        id: u32,
        config: &Config,
        namespace: Arc<dyn Namespace>,
    ) -> Result<Server, StartError> {
        let settled = Instant::now() + config.settle;
        let disk = Disk::new(namespace, config.read_only);
        let geometry = disk.geometry();
        config.check(&geometry)?;
        let mut driver = Driver::open()?;
        let info = driver.info(id)?;
        let shown = driver.params(id)?;
        check_device(&info, &shown, config, &geometry)?;
        wait_for_the_dead(&mut driver, &info)?;
        let mut server = Server::serve(disk, info, config.reactor())?;
        thread::sleep(settled.saturating_duration_since(Instant::now()));
        driver.end_recovery(id)?;
        if shown.sectors != Params::of(&geometry, info.request_bytes).sectors
            && let Err(error) = server.resized()
        {
            tracing::warn!(device = %server.path.display(), "{error}");
        }
        server.watch(geometry);
        Ok(server)
    }

    /// Starts to watch the namespace's geometry (size, block size and abilities). Also reports a
    /// change since `known` was read.
    fn watch(&mut self, known: Geometry) {
        let (shared, info, path) = (Arc::clone(&self.shared), self.info, self.path.clone());
        let changed = move || {
            if let Err(error) = shared.resized(&info) {
                tracing::warn!(device = %path.display(), "{error}");
            }
        };
        let changes = GeometryWatch::start("ublk-changes", &self.shared.disk, known, changed);
        self.changes = Some(changes);
    }

    /// Starts the workers (threads), which then ask the kernel for requests.
    ///
    /// No worker asks for requests before all workers are ready. If a server died after only some
    /// workers had asked, recovering its device could crash Linux 6.12.
    fn serve(disk: Disk, info: Info, reactor: ReactorConfig) -> Result<Server, StartError> {
        let node = open_node(info.id)?;
        let path = driver::path(info.id);
        let shared = Arc::new(UblkShared { disk, orders: Mailboxes::default() });
        let (asked, answers) = mpsc::channel();
        let workers = start_workers(info, reactor, &shared, node, asked)?;
        let mut server = Server { shared, info, path, workers, changes: None };
        let ended = |_| io::Error::other("a thread exited during the start");
        let served = (0..info.queues).try_for_each(|_| answers.recv().map_err(ended).flatten());
        if let Err(error) = served {
            server.end_workers(Order::Leave).ok();
            return Err(StartError::System(error));
        }
        Ok(server)
    }

    /// The path of the block device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device's number, for [`Server::recover`] and [`detach`].
    #[must_use]
    pub fn id(&self) -> u32 {
        self.info.id
    }

    /// The kind of event loop that the server uses.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.workers.engine()
    }

    /// The number of hardware queues.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.info.queues
    }

    /// True if the device remains when this process dies. The kernel makes only root's devices
    /// recoverable.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        is_recoverable(&self.info)
    }

    /// True if all threads of the server are running. False if a thread has failed, so that the
    /// device waits for another server, or if another process has removed the device.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.workers.are_all_running()
    }

    /// The users of the disk: mounts, devices on top of it, swap, and processes that have it open.
    #[must_use]
    pub fn users(&self) -> Vec<User> {
        users::of_block_device(&self.path)
    }

    /// Adopts a new size of the namespace. Call this only if the namespace does not report its
    /// changes. The server checks requests against the new size at once, and the device shows the
    /// new size at once.
    ///
    /// # Errors
    /// Returns [`Error::NoResize`] if the kernel (before 6.16) cannot change the size of a device.
    pub fn resized(&self) -> Result<(), Error> {
        self.shared.resized(&self.info)
    }

    /// Flushes the device's writes to the namespace, and removes the device if it has no users.
    /// Waits for the requests in flight.
    ///
    /// With `force`, stops even if the device has users, and waits at most
    /// [`limits::DRAIN_TIMEOUT`]. The users then get errors and lose their unwritten data.
    ///
    /// # Errors
    /// Each variant of [`StopError`] states whether the server still runs.
    pub fn stop(&mut self, force: bool) -> Result<(), StopError> {
        if self.workers.is_empty() {
            return Ok(());
        }
        // This exclusive open keeps other processes from mounting the device.
        let claim = if force { None } else { claim(&self.path)? };
        if let Some(device) = &claim
            && self.is_serving()
        {
            let flushed = rustix::fs::fsync(device);
            flushed.map_err(|error| StopError::Flush(self.path.clone(), error.into()))?;
        }
        let deadline = Instant::now() + limits::DRAIN_TIMEOUT;
        self.shared.orders.post_all(|| Order::Drain(deadline));
        let mut driver = Driver::open().map_err(StopError::Driver)?;
        driver.stop(self.info.id).map_err(StopError::Driver)?;
        drop(claim);
        let ended = self.end_workers(Order::Drain(deadline));
        let deleted =
            if force { driver.delete_soon(self.info.id) } else { driver.delete(self.info.id) };
        deleted.map_err(StopError::Driver)?;
        ended.map_err(StopError::Failed)
    }

    /// Stops the server but keeps the device, as if the process had died. Requests then wait until
    /// a server [recovers](Server::recover) the device, which also executes the requests in flight
    /// again.
    ///
    /// # Errors
    /// Fails if an event loop has failed.
    pub fn leave(mut self) -> io::Result<()> {
        self.end_workers(Order::Leave)
    }

    fn end_workers(&mut self, order: Order) -> io::Result<()> {
        self.changes = None;
        self.shared.orders.post_all(|| order);
        self.workers.join()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.workers.is_empty() || thread::panicking() {
            return;
        }
        if self.is_recoverable() {
            if let Err(error) = self.end_workers(Order::Leave) {
                tracing::error!("an event loop of the ublk server failed: {error}");
            }
        } else if let Err(error) = self.stop(true) {
            tracing::error!("{error}");
        }
    }
}

/// Removes a dead server's device if the device has no users. With `force`, removes it even if it
/// has users, which then get errors.
///
/// # Errors
/// Fails if the device is in use, or the driver refuses.
pub fn detach(id: u32, force: bool) -> Result<(), StopError> {
    let mut driver = Driver::open().map_err(StopError::Driver)?;
    driver.info(id).map_err(StopError::Driver)?;
    let claim = if force { None } else { claim(&driver::path(id))? };
    driver.stop(id).map_err(StopError::Driver)?;
    drop(claim);
    let deleted = if force { driver.delete_soon(id) } else { driver.delete(id) };
    deleted.map_err(StopError::Driver)
}

/// Opens a device exclusively, so that it gets no new users. Returns `None` if it no longer exists.
fn claim(path: &Path) -> Result<Option<OwnedFd>, StopError> {
    let in_use = || StopError::InUse(path.to_path_buf(), users::of_block_device(path));
    let unused = || match users::of_block_device(path) {
        users if users.is_empty() => Ok(()),
        _ => Err(()),
    };
    // Retry for a while, because a program such as udev has the device open only briefly.
    wait_for(LOOKING, unused, |()| true).map_err(|()| in_use())?;
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(device) => Ok(Some(device)),
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => Ok(None),
        Err(Errno::ACCESS | Errno::PERM) => Err(StopError::NotAllowed(path.to_path_buf())),
        Err(_) => Err(in_use()),
    }
}

fn is_recoverable(info: &Info) -> bool {
    info.flags & feature::USER_RECOVERY != 0
}

/// Checks whether a device can belong to the configured disk.
fn check_device(
    info: &Info,
    shown: &Params,
    config: &Config,
    geometry: &Geometry,
) -> Result<(), StartError> {
    let other = |why| Err(StartError::OtherDisk(info.id, why));
    if !is_recoverable(info) {
        return Err(StartError::NotRecoverable(info.id));
    }
    if info.identity != config.identity() {
        return other("the device has another identifier");
    }
    if 1 << shown.block_shift != geometry.block_size {
        return other("the device has another block size");
    }
    if info.request_bytes > limits::REQUEST_BYTES || info.queues > limits::MAX_QUEUES {
        return other("the device's queues are larger than this version supports");
    }
    Ok(())
}

/// Waits until the kernel has noticed that a device's server is dead, and prepares the device for
/// this server.
///
/// The driver returns EBUSY for a while in two cases. The dead process may still have the character
/// device open. Or the kernel still collects the process's requests: the device is not yet
/// quiesced.
///
/// Linux 6.12 and some other versions return EINVAL if no server serves a queue. For a quiesced
/// device this means that another server started the recovery and then died, so the device is
/// already prepared. (A living server would have the character device open, and the driver would
/// return EBUSY.)
fn wait_for_the_dead(driver: &mut Driver, info: &Info) -> Result<(), StartError> {
    let begun = Instant::now();
    let busy = |error: &Error| {
        let alive = is_alive(info.pid) && info.state == state::LIVE;
        let timeout = if alive { limits::EXIT_TIMEOUT } else { limits::RECOVER_TIMEOUT };
        is(error, Errno::BUSY) && begun.elapsed() < timeout
    };
    let recovered = wait_for(limits::RECOVER_TIMEOUT, || driver.start_recovery(info.id), busy);
    match recovered {
        Err(error) if is(&error, Errno::BUSY) => Err(StartError::Served(info.id, info.pid)),
        Err(error) if is(&error, Errno::INVAL) => match driver.info(info.id)?.state {
            state::QUIESCED => Ok(()),
            _ => Err(StartError::NotRecoverable(info.id)),
        },
        other => Ok(other?),
    }
}

fn is(error: &Error, errno: Errno) -> bool {
    matches!(error, Error::System(_, error) if Errno::from_io_error(error) == Some(errno))
}

/// True if the process is running. A zombie is not running.
fn is_alive(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
}

/// Starts the threads, each with its queue of the device. Once all threads exist, they ask the
/// kernel for requests. Each thread then sends to `asked` whether the kernel accepted its commands.
fn start_workers(
    info: Info,
    reactor: ReactorConfig,
    shared: &Arc<UblkShared>,
    node: File,
    asked: Sender<io::Result<()>>,
) -> Result<Cores, StartError> {
    let plan = Plan {
        prefix: THREAD_NAME_PREFIX,
        count: usize::from(info.queues),
        reactor,
        begin: flushes_for_the_kernel,
    };
    let theirs = Arc::clone(shared);
    let make = move |seat: Seat| {
        let commands = Commands::new(node.try_clone()?, seat.index as u16, info.depth)?;
        let sizes = (info.depth, info.request_bytes);
        Worker::new(seat, Arc::clone(&theirs), commands, sizes, asked.clone())
    };
    let open = |wakers| shared.orders.open(wakers);
    Cores::start(&plan, shared.disk.namespace(), make, open, |_| {}).map_err(StartError::Cores)
}

/// Marks this thread with `PR_SET_IO_FLUSHER`. The kernel's writeback needs this thread, so its
/// memory allocations must not wait for writeback. Only root may set this mark.
fn flushes_for_the_kernel() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("cannot mark this thread as needed for the kernel's writeback: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(config: &Config, geometry: &Geometry) -> (Info, Params) {
        let flags = feature::USER_RECOVERY;
        let request_bytes = limits::REQUEST_BYTES;
        let info = Info {
            id: 7,
            flags,
            request_bytes,
            identity: config.identity(),
            queues: 1,
            ..Info::default()
        };
        (info, Params::of(geometry, request_bytes))
    }

    #[test]
    fn the_device_of_another_disk_is_refused() {
        let config = Config { identifier: "a".into(), ..Config::default() };
        let geometry = Geometry::new(512, 1000);
        let (info, shown) = device(&config, &geometry);
        assert!(check_device(&info, &shown, &config, &geometry).is_ok());
        let refusal = |info: &Info, config: &Config, geometry: &Geometry| {
            check_device(info, &shown, config, geometry)
                .expect_err("the device is refused")
                .to_string()
        };
        let b = Config { identifier: "b".into(), ..config.clone() };
        assert!(refusal(&info, &b, &geometry).contains("/dev/ublkb7 belongs to another disk"));
        let large = Geometry::new(4096, 1000);
        assert!(refusal(&info, &config, &large).contains("another block size"));
        let mortal = Info { flags: 0, ..info };
        assert!(refusal(&mortal, &config, &geometry).contains("cannot be recovered"));
        // The disk's size may have changed while no server ran.
        let grown = Geometry::new(512, 2000);
        assert!(check_device(&info, &shown, &config, &grown).is_ok());
    }

    #[test]
    fn invalid_configurations_are_refused() {
        let geometry = Geometry::new(512, 1000);
        let usual = Config::default();
        assert!(usual.check(&geometry).is_ok() && usual.queues() >= 1);
        let refusal = |config: &Config, geometry: &Geometry| {
            config.check(geometry).expect_err("the configuration is refused").to_string()
        };
        let wide = Config { queues: 65, ..usual.clone() };
        assert!(refusal(&wide, &geometry).contains("65 queues"));
        for depth in [0, 4097] {
            let deep = Config { depth, ..usual.clone() };
            assert!(refusal(&deep, &geometry).contains("use 1 to 4096"));
        }
        let long = Config { identifier: "x".repeat(257), ..usual.clone() };
        assert!(refusal(&long, &geometry).contains("257 bytes"));
        assert!(refusal(&usual, &Geometry::new(65_536, 10)).contains("at most 4096 bytes"));
        assert!(refusal(&usual, &Geometry::new(512, 0)).contains("no blocks"));
    }

    #[test]
    fn a_zombie_counts_as_dead() {
        assert!(is_alive(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let pid = child.id() as i32;
        // The child process exits and stays a zombie until this test waits for it.
        let dead = || if is_alive(pid) { Err(()) } else { Ok(()) };
        assert!(wait_for(Duration::from_secs(10), dead, |()| true).is_ok());
        child.wait().expect("the process has ended");
        assert!(!is_alive(pid) && !is_alive(-1));
    }
}
