//! Starts and stops a server.

use super::core::Requests;
use super::filesystem::{self, FILE};
use super::limits;
use super::mount::{self, MountError, Mounter, Own, Way, wait_until};
use super::resume;
use super::shared::MountShared;
use farblock_block::{Geometry, Namespace};
use farblock_frontend::users::{Listed, User};
use farblock_frontend::{self as frontend, Cores, Disk, GeometryWatch, Plan};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Polling};
use fuser::{Notifier, Session, SessionACL};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

/// Prefix of the name of every thread of a server, the library's included; CPU accounting uses it.
pub const THREAD_NAME_PREFIX: &str = "fuse";
const CORE_NAME_PREFIX: &str = "fuse-";

/// The most threads of a server by default.
const MAX_DEFAULT_THREADS: usize = 4;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory to mount at.
    pub mountpoint: PathBuf,
    /// The file's name in the mounted directory.
    pub name: String,
    /// The event loop to use.
    pub engine: EngineKind,
    /// How much processor time the server may spend on polling.
    pub polling: Polling,
    /// Number of threads that read requests, and of cores that execute them. 0: half the number of
    /// processors, at most four.
    pub threads: usize,
    /// Refuse writes, even to a writable namespace.
    pub read_only: bool,
    /// Users other than the one who mounts, including root, have access, too.
    pub allow_other: bool,
    /// Another process will keep [`Server::connection`]. Every thread then reads requests from that
    /// one descriptor, because the kernel fails unanswered requests when the descriptor from which
    /// they were read is closed.
    pub kept: bool,
}

impl Config {
    /// Defaults: a file `disk`, as writable as the namespace, for this user.
    #[must_use]
    pub fn new(mountpoint: PathBuf) -> Config {
        Config {
            mountpoint,
            name: "disk".into(),
            engine: EngineKind::Auto,
            polling: Polling::default(),
            threads: 0,
            read_only: false,
            allow_other: false,
            kept: false,
        }
    }
}

/// Why a server did not start. Its text says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The name is not a valid file name.
    Name(String),
    /// Mounting failed.
    Mount(MountError),
    /// The mount of a killed server no longer exists, or cannot be resumed.
    Resume(PathBuf, io::Error),
    /// The threads did not start.
    Cores(frontend::StartError),
    /// The system refused a thread or one of its resources.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Name(name) => write!(
                f,
                "{name:?} is not a file name: use 1 to {} bytes without a slash",
                limits::MAX_NAME_BYTES
            ),
            StartError::Mount(error) => error.fmt(f),
            StartError::Resume(path, error) => {
                write!(f, "cannot resume the mount at {}: {error}", path.display())
            }
            StartError::Cores(error) => error.fmt(f),
            StartError::System(error) => write!(f, "cannot start the FUSE server: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Why a server did not stop, or stopped with an error.
#[derive(Debug)]
#[non_exhaustive]
pub enum StopError {
    /// The disk is in use, by these users as far as visible. The server continues.
    InUse(PathBuf, Vec<User>),
    /// The mount is no longer in this mount namespace, but these processes have it in others. The
    /// server continues for them.
    Elsewhere(PathBuf, Vec<User>),
    /// Unmounting failed. The server continues.
    Unmount(PathBuf, io::Error),
    /// The server has stopped; an event loop had failed before.
    Failed(io::Error),
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopError::InUse(path, users) => {
                write!(f, "{} is in use: {}", path.display(), Listed(users))
            }
            StopError::Elsewhere(path, users) => write!(
                f,
                "{} is no longer mounted in this mount namespace, but {}; unmount it there, or \
                 detach it by force",
                path.display(),
                Listed(users)
            ),
            StopError::Unmount(path, error) => {
                write!(f, "cannot unmount {}: {error}", path.display())
            }
            StopError::Failed(error) => {
                write!(f, "an event loop of the FUSE server failed: {error}")
            }
        }
    }
}

impl std::error::Error for StopError {}

type Thread = JoinHandle<io::Result<()>>;

/// A running server. Dropping it stops it by force.
pub struct Server {
    shared: Arc<MountShared>,
    cores: Cores,
    session: Option<Mounted>,
    changes: Option<GeometryWatch>,
    mountpoint: PathBuf,
    path: PathBuf,
    mounter: Arc<dyn Mounter>,
}

/// The session of a mount.
struct Mounted {
    /// The session's thread, which exits once the kernel has ended the mount.
    thread: Thread,
    notifier: Notifier,
    connection: OwnedFd,
    /// The kernel's number for the connection.
    minor: Option<u32>,
}

impl Server {
    /// Opens the namespace, mounts the directory and serves the file.
    ///
    /// # Errors
    /// After an error no thread runs, and nothing is mounted.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        Server::start_with(config, namespace, own(config))
    }

    /// Like [`Server::start`], but `mounter` does the mount operations.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with(
        config: &Config,
        namespace: Arc<dyn Namespace>,
        mounter: Arc<dyn Mounter>,
    ) -> Result<Server, StartError> {
        check_name(&config.name)?;
        let mountpoint = mounter.prepare().map_err(StartError::Mount)?;
        let disk = Disk::new(namespace, config.read_only);
        let known = disk.geometry();
        let mut server = Server::new(config, disk, mountpoint, mounter)?;
        server.session = Some(server.mount(config)?);
        server.watch(known);
        Ok(server)
    }

    /// Resumes the mount of a killed server. `connection` is the descriptor that was kept
    /// ([`Server::connection`]). The configuration must be the same, with the full path as its
    /// mountpoint.
    ///
    /// The server executes unanswered requests again. It cannot know whether the dead server had
    /// executed these requests. So the namespace must tolerate repeated writes, and no operation of
    /// the dead server may reach the namespace any more.
    ///
    /// # Errors
    /// After an error nothing runs.
    pub fn resume(
        config: &Config,
        namespace: Arc<dyn Namespace>,
        connection: &OwnedFd,
    ) -> Result<Server, StartError> {
        Server::resume_with(config, namespace, connection, own(config))
    }

    /// Like [`Server::resume`], but with another mounter.
    ///
    /// # Errors
    /// As [`Server::resume`].
    pub fn resume_with(
        config: &Config,
        namespace: Arc<dyn Namespace>,
        connection: &OwnedFd,
        mounter: Arc<dyn Mounter>,
    ) -> Result<Server, StartError> {
        check_name(&config.name)?;
        let failed = |error| StartError::Resume(config.mountpoint.clone(), error);
        // Do not access the mount itself: no server would answer.
        if !mount::is_mounted(&config.mountpoint) {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        let disk = Disk::new(namespace, config.read_only);
        let known = disk.geometry();
        let mut server = Server::new(config, disk, config.mountpoint.clone(), mounter)?;
        let session =
            resume::session(server.filesystem(config), connection, Server::options(config));
        server.session = Some(server.run(session.map_err(failed)?)?);
        server.watch(known);
        Ok(server)
    }

    /// Starts the cores, before the session. From here on, dropping the server stops them.
    fn new(
        config: &Config,
        disk: Disk,
        mountpoint: PathBuf,
        mounter: Arc<dyn Mounter>,
    ) -> Result<Server, StartError> {
        let path = mountpoint.join(&config.name);
        let shared = Arc::new(MountShared::new(disk));
        let cores = start_cores(config, &shared)?;
        let (session, changes) = (None, None);
        Ok(Server { shared, cores, session, changes, mountpoint, path, mounter })
    }

    /// Reports changes from now on, and a difference from `known`.
    fn watch(&mut self, known: Geometry) {
        let notifier = self.session.as_ref().expect("there is one to be told").notifier.clone();
        let shared = Arc::clone(&self.shared);
        let changed = move || {
            if let Err(error) = shared.resized_for(&notifier) {
                tracing::debug!("the kernel did not accept the changed size: {error}");
            }
        };
        let changes = GeometryWatch::start("fuse-changes", self.shared.disk(), known, changed);
        self.changes = Some(changes);
    }

    fn filesystem(&self, config: &Config) -> filesystem::Disk {
        filesystem::Disk {
            shared: Arc::clone(&self.shared),
            name: config.name.clone().into(),
            for_all: config.allow_other,
            mounted_at: SystemTime::now(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    fn options(config: &Config) -> fuser::Config {
        let mut options = fuser::Config::default();
        options.acl = if config.allow_other { SessionACL::All } else { SessionACL::Owner };
        options.n_threads = Some(threads(config));
        options.clone_fd = !config.kept;
        options
    }

    fn mount(&self, config: &Config) -> Result<Mounted, StartError> {
        let read_only = self.shared.geometry().read_only;
        let connection = self.mounter.mount(read_only).map_err(StartError::Mount)?;
        let options = Server::options(config);
        let failed = |error| StartError::Mount(mount::failed(&self.mountpoint, error));
        let session = Session::from_fd(self.filesystem(config), connection, options.acl, options);
        let mounted = session.map_err(failed).and_then(|session| self.run(session));
        mounted.inspect_err(|_| {
            if let Err(error) = self.mounter.unmount(Way::Lazy) {
                tracing::warn!("cannot unmount {}: {error}", self.mountpoint.display());
            }
        })
    }

    fn run(&self, session: Session<filesystem::Disk>) -> Result<Mounted, StartError> {
        let notifier = session.notifier();
        let minor = mount::minor(&self.mountpoint);
        let connection = session.as_fd().try_clone_to_owned().map_err(StartError::System)?;
        let thread = thread::Builder::new()
            .name(format!("{THREAD_NAME_PREFIX}-session"))
            .spawn(move || {
                flushes_for_the_kernel();
                session.run()
            })
            .map_err(StartError::System)?;
        Ok(Mounted { thread, notifier, minor, connection })
    }

    /// The connection to the kernel, for another process to keep. While that process keeps it, the
    /// mount outlives this process, and requests wait for [`Server::resume`]. `None` before Linux
    /// 6.9: those kernels cannot hand out unanswered requests again, so the requests would hang.
    #[must_use]
    pub fn connection(&self) -> Option<OwnedFd> {
        let session = self.session.as_ref().filter(|_| self.shared.resends())?;
        session.connection.try_clone().ok()
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The event loop in use.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.cores.engine()
    }

    /// The users of the disk: processes that use the file or the directory, loop devices on the
    /// file, and the users of these devices.
    #[must_use]
    pub fn users(&self) -> Vec<User> {
        self.mounter.users()
    }

    /// Adopts a new size of the namespace. The server calls this itself if the namespace reports
    /// its changes. The kernel drops the cached size, and reads the new one when a program next
    /// queries the file. (This process must not query it: if it were killed meanwhile, it would
    /// wait for itself.) A loop device needs [`loop_device::resize`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn resized(&self) -> io::Result<()> {
        match &self.session {
            Some(session) => self.shared.resized_for(&session.notifier),
            None => Ok(()),
        }
    }

    /// Whether the mount is in this mount namespace. It may be only in others.
    #[must_use]
    pub fn is_mounted_here(&self) -> bool {
        self.session.as_ref().is_some_and(|session| self.is_mounted(session))
    }

    /// The processes that have the mount in another mount namespace.
    #[must_use]
    pub fn users_elsewhere(&self) -> Vec<User> {
        let minor = self.session.as_ref().and_then(|session| session.minor);
        let device = minor.map(|minor| format!("0:{minor}"));
        device.map_or_else(Vec::new, |device| self.mounter.elsewhere(&device))
    }

    /// Unmounts if the disk has no users, finishes the accepted requests, and ends the threads.
    ///
    /// With `force` it ignores users: they get errors from here on, loop devices on the disk
    /// included, and their unwritten data is lost.
    ///
    /// # Errors
    /// If the disk is in use; then nothing has changed.
    pub fn stop(&mut self, force: bool) -> Result<(), StopError> {
        if let Some(session) = &self.session {
            if force {
                self.unmount_by_force(session);
            } else {
                self.unmount_if_unused(session)?;
            }
        }
        let session = self.session.take();
        self.changes = None;
        let mut result = Ok(());
        if let Some(Mounted { thread, .. }) = session {
            // Do not join a thread that does not end: the mount may still exist in another mount
            // namespace.
            if wait_until(|| thread.is_finished()) {
                result = join(thread);
            } else {
                tracing::error!(
                    "{} is still mounted in another mount namespace",
                    self.mountpoint.display()
                );
            }
        }
        self.shared.inboxes().stop();
        self.cores.join().and(result).map_err(StopError::Failed)
    }

    fn in_use(&self, users: Vec<User>) -> StopError {
        StopError::InUse(self.path.clone(), users)
    }

    fn unmount_if_unused(&self, session: &Mounted) -> Result<(), StopError> {
        let users = self.users();
        if !users.is_empty() {
            return Err(self.in_use(users));
        }
        // Another process may have unmounted it.
        if self.is_mounted(session) {
            let mut result = Ok(());
            // The kernel may release the last user only a little later, so retry.
            let mut unmount = || {
                result = self.mounter.unmount(Way::IfUnused);
                !is_busy(&result)
            };
            if !wait_until(&mut unmount) {
                return Err(self.in_use(self.users()));
            }
            result.map_err(|error| StopError::Unmount(self.mountpoint.clone(), error))?;
        }
        if wait_until(|| session.thread.is_finished()) {
            return Ok(());
        }
        Err(StopError::Elsewhere(self.mountpoint.clone(), self.users_elsewhere()))
    }

    fn unmount_by_force(&self, session: &Mounted) {
        self.mounter.detach_loop_devices();
        if self.is_mounted(session)
            && let Err(error) = self.mounter.unmount(Way::Abort)
        {
            tracing::warn!("cannot unmount {}: {error}", self.mountpoint.display());
        }
        session.minor.into_iter().for_each(mount::abort);
    }

    /// True if the mount at the mountpoint is still this server's.
    fn is_mounted(&self, session: &Mounted) -> bool {
        session.minor.is_some() && mount::minor(&self.mountpoint) == session.minor
    }
}

impl MountShared {
    /// Adopts a new size of the namespace: requests are checked against it, and the kernel drops
    /// the cached size.
    fn resized_for(&self, kernel: &Notifier) -> io::Result<()> {
        self.resized();
        kernel.inval_inode(FILE, 0, 0)
    }
}

fn own(config: &Config) -> Arc<dyn Mounter> {
    Arc::new(Own::new(config.mountpoint.clone(), config.allow_other))
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
        // Each is a pair of threads. With more pairs than half the processors, threads compete:
        // measured with one request at a time, each took three times as long.
        0 => {
            let processors = farblock_reactor::allowance::loops();
            (processors / 2).clamp(1, MAX_DEFAULT_THREADS)
        }
        threads => threads.min(limits::MAX_THREADS),
    }
}

/// Tells the kernel that this thread, and the threads that it starts, serve its writeback of
/// memory, so that they never wait for this writeback themselves. Only root may do so.
fn flushes_for_the_kernel() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(
            "cannot mark this thread as one that the kernel's writeback needs: {error}"
        );
    }
}

fn start_cores(config: &Config, shared: &Arc<MountShared>) -> Result<Cores, StartError> {
    let plan = Plan {
        prefix: CORE_NAME_PREFIX,
        count: threads(config),
        reactor: ReactorConfig::new(config.engine, config.polling),
        begin: flushes_for_the_kernel,
    };
    let theirs = Arc::clone(shared);
    let make = move |seat| Ok(Requests::new(seat, Arc::clone(&theirs)));
    let open = |wakers| shared.inboxes().open(wakers);
    // Programs that use the disk must get errors instead of waiting forever.
    let theirs = Arc::clone(shared);
    let failed = move |_| theirs.inboxes().fail();
    Cores::start(&plan, shared.disk().namespace(), make, open, failed).map_err(StartError::Cores)
}
