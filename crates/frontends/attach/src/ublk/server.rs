//! Starts, recovers and stops a server.

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

/// Prefix of the name of every thread of a server; CPU accounting uses it.
pub const THREAD_NAME_PREFIX: &str = "ublk-";

/// The most hardware queues of a device by default.
const MAX_DEFAULT_QUEUES: usize = 4;
/// Default number of requests of a queue.
const DEFAULT_DEPTH: u16 = 64;
/// The time to wait for programs that probe a new disk, such as udev.
const LOOKING: Duration = Duration::from_secs(2);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device: `Some(3)` is `/dev/ublkb3`; `None` is the first free one.
    pub id: Option<u32>,
    /// Hardware queues, each with a thread and a queue into the namespace. The kernel makes no more
    /// than it has processors. 0: as many as there are processors, at most four.
    pub queues: u16,
    /// The most requests of a queue in progress at once.
    pub depth: u16,
    /// The event loop to use.
    pub engine: EngineKind,
    /// How much processor time the server may spend on polling.
    pub polling: Polling,
    /// Refuse writes, even to a writable namespace.
    pub read_only: bool,
    /// The device outlives this process: its users wait until [`Server::recover`].
    pub recoverable: bool,
    /// The disk's identifier. [`Server::recover`] must pass the same one.
    pub identifier: String,
    /// The time that [`Server::recover`] waits before it executes requests again, so that the dead
    /// server's operations can arrive and complete: see the module's text. Only `recover` waits.
    pub settle: Duration,
}

impl Default for Config {
    /// Defaults: recoverable, as writable as the namespace.
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

    /// A 64-bit hash of the identifier, which the driver stores for the server.
    fn identity(&self) -> u64 {
        Uuid::new_v5(&Uuid::NAMESPACE_OID, self.identifier.as_bytes()).as_u64_pair().0
    }
}

/// Why a server did not start. Its text says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The driver refused.
    Driver(Error),
    /// The configured number of queues exceeds the limit.
    Queues(u16),
    /// The configured depth is zero or exceeds the limit.
    Depth(u16),
    /// The identifier is too long, with this many bytes.
    Identifier(usize),
    /// The blocks are larger than the kernel supports.
    BlockSize(u32),
    /// The namespace has no blocks.
    Empty,
    /// A process, with this number, serves the device already.
    Served(u32, i32),
    /// The device was not made to outlive its server, or its server stopped it.
    NotRecoverable(u32),
    /// The device belongs to another disk, for this reason.
    OtherDisk(u32, &'static str),
    /// The threads did not start.
    Cores(frontend::StartError),
    /// The system refused a thread or one of its resources.
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
                 attach it another way",
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

/// Why a device did not stop, or stopped with an error.
#[derive(Debug)]
#[non_exhaustive]
pub enum StopError {
    /// The disk is in use, by these users as far as visible. Nothing has changed.
    InUse(PathBuf, Vec<User>),
    /// We may not open the device, so we cannot see whether it is in use. Nothing has changed.
    NotAllowed(PathBuf),
    /// Writes to the device have not reached the namespace, and cannot be flushed to it. Nothing
    /// has changed.
    Flush(PathBuf, io::Error),
    /// The driver refused.
    Driver(Error),
    /// The server has stopped; an event loop had failed before.
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

/// A running server. Dropping it leaves a recoverable device to a successor, as [`Server::leave`]
/// does, and stops any other device by force.
pub struct Server {
    shared: Arc<UblkShared>,
    info: Info,
    path: PathBuf,
    workers: Cores,
    changes: Option<GeometryWatch>,
}

impl Server {
    /// Makes a block device from the namespace.
    ///
    /// # Errors
    /// After an error no thread runs, and there is no new device.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        let disk = Disk::new(namespace, config.read_only);
        let geometry = disk.geometry();
        config.check(&geometry)?;
        let mut driver = Driver::open()?;
        let info = driver.add(&Info {
            queues: config.queues(),
            depth: config.depth,
            request_bytes: limits::REQUEST_BYTES,
            // The maximum means any free number.
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
            // The server that failed to start has ended; remove its device.
            if let Err(error) = driver.delete(info.id) {
                tracing::warn!("{error}");
            }
        })
    }

    /// Serves the unchanged device of a server that died or [left](Server::leave): of the
    /// configuration only `identifier`, `engine`, `polling`, `read_only` and `settle` matter. The
    /// new server executes the requests that arrived meanwhile and those that the old server had
    /// not answered.
    ///
    /// # Errors
    /// After an error the device keeps waiting for a server.
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

    /// Reports changes from now on, and a difference from `known`.
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

    /// Starts the threads, which ask the kernel for requests.
    ///
    /// No worker asks the kernel for requests before every worker can. If a server dies when only
    /// some have asked, recovering its device may crash Linux 6.12.
    fn serve(disk: Disk, info: Info, reactor: ReactorConfig) -> Result<Server, StartError> {
        let node = open_node(info.id)?;
        let path = driver::path(info.id);
        let shared = Arc::new(UblkShared { disk, orders: Mailboxes::default() });
        let (asked, answers) = mpsc::channel();
        let workers = start_workers(info, reactor, &shared, node, asked)?;
        let mut server = Server { shared, info, path, workers, changes: None };
        let ended = |_| io::Error::other("a thread ended at once");
        let served = (0..info.queues).try_for_each(|_| answers.recv().map_err(ended).flatten());
        if let Err(error) = served {
            server.end_workers(Order::Leave).ok();
            return Err(StartError::System(error));
        }
        Ok(server)
    }

    /// The block device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device's number, for [`Server::recover`] and [`detach`].
    #[must_use]
    pub fn id(&self) -> u32 {
        self.info.id
    }

    /// The event loop in use.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.workers.engine()
    }

    /// The number of hardware queues.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.info.queues
    }

    /// True if the device would outlive this process. The kernel may refuse this: devices of users
    /// other than root never do.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        is_recoverable(&self.info)
    }

    /// True if all threads of the server run. Otherwise a thread failed and the device waits for a
    /// successor, or another process removed the device.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.workers.are_all_running()
    }

    /// The users of the disk: mounts, devices on top of it, swap, and processes that have it open.
    #[must_use]
    pub fn users(&self) -> Vec<User> {
        users::of_block_device(&self.path)
    }

    /// Adopts a new size of the namespace. The server calls this itself if the namespace reports
    /// its changes. Requests are checked against the new size, and the device shows it, at once.
    ///
    /// # Errors
    /// [`Error::NoResize`] if the kernel (before 6.16) cannot change the size of a device.
    pub fn resized(&self) -> Result<(), Error> {
        self.shared.resized(&self.info)
    }

    /// Flushes the device's writes to the namespace, and removes the device if it has no users.
    /// Requests in progress finish.
    ///
    /// With `force` it ignores users and does not wait for long: users get errors from here on, and
    /// lose their unwritten data.
    ///
    /// # Errors
    /// Each variant says what has changed; with most of them, nothing has.
    pub fn stop(&mut self, force: bool) -> Result<(), StopError> {
        if self.workers.is_empty() {
            return Ok(());
        }
        // While this process has the device open exclusively, no other process can mount it.
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

    /// Stops the server but keeps the device, as if the process had died. The device's users wait
    /// until a server [recovers](Server::recover) it and executes the requests in progress again.
    ///
    /// # Errors
    /// If an event loop had failed.
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

/// Removes a dead server's device if it has no users. With `force` it ignores users, who get errors
/// from here on.
///
/// # Errors
/// If the device is in use, or the driver refuses.
pub fn detach(id: u32, force: bool) -> Result<(), StopError> {
    let mut driver = Driver::open().map_err(StopError::Driver)?;
    driver.info(id).map_err(StopError::Driver)?;
    let claim = if force { None } else { claim(&driver::path(id))? };
    driver.stop(id).map_err(StopError::Driver)?;
    drop(claim);
    let deleted = if force { driver.delete_soon(id) } else { driver.delete(id) };
    deleted.map_err(StopError::Driver)
}

/// Opens a device exclusively, so that it gets no new users. `None` if it no longer exists.
fn claim(path: &Path) -> Result<Option<OwnedFd>, StopError> {
    let in_use = || StopError::InUse(path.to_path_buf(), users::of_block_device(path));
    let unused = || match users::of_block_device(path) {
        users if users.is_empty() => Ok(()),
        _ => Err(()),
    };
    // Wait a little: a process may have the device open only briefly, while mounts and swap stay.
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

/// Checks whether a device can belong to this disk.
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
        return other("its queues are larger than this version supports");
    }
    Ok(())
}

/// Waits until the kernel knows that a device's server is dead, and takes its place.
///
/// The driver returns EBUSY while the dead process still has the character device open, or while
/// the kernel still collects its requests (the device is not yet quiesced). Both end by themselves.
/// Linux 6.12 and others return EINVAL if no queue is served. For a quiesced device this means that
/// a successor did this step already, but died before it served; then there is nothing left to do.
/// (It cannot be a live successor: that has the character device open, which only one process can.)
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

/// True if a process runs; a zombie does not.
fn is_alive(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
}

/// Starts the threads, each with its queue of the device. Once all threads exist, they ask the
/// kernel for requests. `asked` receives whether each thread could ask.
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

/// Tells the kernel that this thread serves its writeback of memory, so that the thread never waits
/// for this writeback itself. Only root may do so.
fn flushes_for_the_kernel() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(
            "cannot mark this thread as one that the kernel's writeback needs: {error}"
        );
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
    fn another_disks_device_is_refused() {
        let config = Config { identifier: "a".into(), ..Config::default() };
        let geometry = Geometry::new(512, 1000);
        let (info, shown) = device(&config, &geometry);
        assert!(check_device(&info, &shown, &config, &geometry).is_ok());
        let refusal = |info: &Info, config: &Config, geometry: &Geometry| {
            check_device(info, &shown, config, geometry).expect_err("refused").to_string()
        };
        let b = Config { identifier: "b".into(), ..config.clone() };
        assert!(refusal(&info, &b, &geometry).contains("/dev/ublkb7 belongs to another disk"));
        let large = Geometry::new(4096, 1000);
        assert!(refusal(&info, &config, &large).contains("another block size"));
        let mortal = Info { flags: 0, ..info };
        assert!(refusal(&mortal, &config, &geometry).contains("cannot be recovered"));
        // The disk's size may have changed meanwhile.
        let grown = Geometry::new(512, 2000);
        assert!(check_device(&info, &shown, &config, &grown).is_ok());
    }

    #[test]
    fn configurations_are_checked() {
        let geometry = Geometry::new(512, 1000);
        let usual = Config::default();
        assert!(usual.check(&geometry).is_ok() && usual.queues() >= 1);
        let refusal = |config: &Config, geometry: &Geometry| {
            config.check(geometry).expect_err("refused").to_string()
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
    fn the_living_are_told_from_the_dead() {
        assert!(is_alive(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let pid = child.id() as i32;
        // The process exits, and stays a zombie until we wait for it.
        let dead = || if is_alive(pid) { Err(()) } else { Ok(()) };
        assert!(wait_for(Duration::from_secs(10), dead, |()| true).is_ok());
        child.wait().expect("it has ended");
        assert!(!is_alive(pid) && !is_alive(-1));
    }
}
