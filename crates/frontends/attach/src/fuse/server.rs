//! Starts and stops the server of a FUSE mount.

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

/// The prefix of the names of all threads of a server, including the FUSE library's. CPU accounting
/// groups threads by this prefix.
pub const THREAD_NAME_PREFIX: &str = "fuse";
const CORE_NAME_PREFIX: &str = "fuse-";

/// The default maximum number of pairs of a reader thread and a core.
const MAX_DEFAULT_THREADS: usize = 4;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory to mount on.
    pub mountpoint: PathBuf,
    /// The file's name in the mounted directory.
    pub name: String,
    /// The event loop to use.
    pub engine: EngineKind,
    /// The processor time that the server may spend on polling.
    pub polling: Polling,
    /// The number of threads that read requests. The server has the same number of cores (threads
    /// that execute requests). 0 selects half the number of processors, at most four.
    pub threads: usize,
    /// Whether the server refuses writes even if the namespace is writable.
    pub read_only: bool,
    /// Whether users other than the user who mounts have access. If false, even root has no access.
    pub allow_other: bool,
    /// Whether another process will hold the descriptor from [`Server::connection`]. All threads
    /// then read requests from this descriptor, instead of one descriptor for each thread. When a
    /// descriptor is closed, the kernel fails the unanswered requests that were read from it.
    pub kept: bool,
}

impl Config {
    /// A default configuration: a file named `disk`, writable if the namespace is, accessible to
    /// this user only.
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

/// The reason why a server did not start. Its text tells the user how to fix the problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The name is not a valid file name.
    Name(String),
    /// Mounting failed.
    Mount(MountError),
    /// The mount of a killed server no longer exists or cannot be resumed.
    Resume(PathBuf, io::Error),
    /// The threads did not start.
    Cores(frontend::StartError),
    /// The system refused to create a thread or one of its resources.
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

/// The reason why a server did not stop, or the error with which it stopped.
#[derive(Debug)]
#[non_exhaustive]
pub enum StopError {
    /// The disk is in use. Lists the users that this process can see. The server continues.
    InUse(PathBuf, Vec<User>),
    /// The mount is gone from this mount namespace, but these processes have it in other mount
    /// namespaces. The server continues for them.
    Elsewhere(PathBuf, Vec<User>),
    /// Unmounting failed. The server continues.
    Unmount(PathBuf, io::Error),
    /// The server has stopped. One of its event loops had failed earlier.
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

/// A running server. Dropping it stops the server by force.
pub struct Server {
    shared: Arc<MountShared>,
    cores: Cores,
    session: Option<Mounted>,
    changes: Option<GeometryWatch>,
    mountpoint: PathBuf,
    path: PathBuf,
    mounter: Arc<dyn Mounter>,
}

/// The mount's session: its thread, and its connection to the kernel.
struct Mounted {
    /// The thread of the FUSE library's session, which serves the mount. It exits once the kernel
    /// has ended the mount.
    thread: Thread,
    notifier: Notifier,
    connection: OwnedFd,
    /// The number of the connection in `/sys/fs/fuse/connections`.
    minor: Option<u32>,
}

impl Server {
    /// Opens the namespace, mounts the directory and serves the file.
    ///
    /// # Errors
    /// Fails if an option is invalid, or the namespace, the mount or a thread fails. Then no thread
    /// runs, and nothing is mounted.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        Server::start_with(config, namespace, own(config))
    }

    /// Like [`Server::start`], but uses `mounter` for the mount operations.
    ///
    /// # Errors
    /// Returns the errors of [`Server::start`].
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

    /// Resumes the mount of a killed server. `connection` is the descriptor that another process
    /// got from the killed server's [`Server::connection`]. `config` must equal the killed
    /// server's, except that the mountpoint must be a full path.
    ///
    /// The server executes unanswered requests again. It cannot know whether the dead server has
    /// executed these requests. So the namespace must tolerate repeated writes. No operation of the
    /// dead server may reach the namespace after this call.
    ///
    /// # Errors
    /// Fails if the mount no longer exists, or the namespace or a thread fails. Then no thread
    /// runs.
    pub fn resume(
        config: &Config,
        namespace: Arc<dyn Namespace>,
        connection: &OwnedFd,
    ) -> Result<Server, StartError> {
        Server::resume_with(config, namespace, connection, own(config))
    }

    /// Like [`Server::resume`], but uses `mounter` for the mount operations.
    ///
    /// # Errors
    /// Returns the errors of [`Server::resume`].
    pub fn resume_with(
        config: &Config,
        namespace: Arc<dyn Namespace>,
        connection: &OwnedFd,
        mounter: Arc<dyn Mounter>,
    ) -> Result<Server, StartError> {
        check_name(&config.name)?;
        let failed = |error| StartError::Resume(config.mountpoint.clone(), error);
        // Do not access the mount itself: until this server runs, no server answers.
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

    /// Starts the cores, but not yet the session. From here on, dropping the server stops the
    /// cores.
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

    /// Starts to watch the namespace's geometry (size, block size and abilities). Also reports a
    /// change since `known` was read.
    fn watch(&mut self, known: Geometry) {
        let notifier = self.session.as_ref().expect("the server has a session").notifier.clone();
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

    /// A duplicate descriptor of the connection to the kernel, for another process to hold. While a
    /// process holds it, the mount outlives this process, and requests wait for [`Server::resume`].
    /// `None` before Linux 6.9: those kernels cannot resend unanswered requests, so these would
    /// hang.
    #[must_use]
    pub fn connection(&self) -> Option<OwnedFd> {
        let session = self.session.as_ref().filter(|_| self.shared.resends())?;
        session.connection.try_clone().ok()
    }

    /// The path of the file that the server serves.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of event loop that the server uses.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.cores.engine()
    }

    /// The users of the disk: processes that use the file or the directory, loop devices on the
    /// file, and the users of these loop devices.
    #[must_use]
    pub fn users(&self) -> Vec<User> {
        self.mounter.users()
    }

    /// Adopts a new size of the namespace. The server calls this function itself if the namespace
    /// reports its changes.
    ///
    /// The kernel drops the cached size, and reads the new size when a program next queries the
    /// file. A loop device adopts the size only on
    /// [`loop_device::resize`](super::loop_device::resize). This function does not query the file
    /// itself: if this process were killed during the query, its exit would wait for its own
    /// answer.
    ///
    /// # Errors
    /// Fails if the kernel refuses to drop the cached size.
    pub fn resized(&self) -> io::Result<()> {
        match &self.session {
            Some(session) => self.shared.resized_for(&session.notifier),
            None => Ok(()),
        }
    }

    /// True if the mount exists in this mount namespace. False if it exists only in other mount
    /// namespaces.
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

    /// Unmounts if the disk has no users, finishes the accepted requests, and stops the threads.
    ///
    /// With `force`, stops even if the disk has users. Users and loop devices on the disk then get
    /// errors, and their unwritten data is lost.
    ///
    /// # Errors
    /// Fails if the disk is in use or cannot be unmounted. The server then continues. Also returns
    /// the error of a failed event loop, after the server has stopped.
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
            // Do not wait forever for the session's thread: it does not exit while the mount exists
            // in another mount namespace.
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
        // Check first, because another process may have unmounted the directory.
        if self.is_mounted(session) {
            let mut result = Ok(());
            // The kernel may close a program's last file a little after the program exits, so
            // retry.
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

    /// True if the mount at the mountpoint is the mount of this server.
    fn is_mounted(&self, session: &Mounted) -> bool {
        session.minor.is_some() && mount::minor(&self.mountpoint) == session.minor
    }
}

impl MountShared {
    /// Adopts a new size of the namespace: checks requests against the new size, and drops the size
    /// that the kernel has cached.
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
        // The default is at most half the number of processors, because each pair has two threads.
        // With more pairs the threads compete: one request at a time then took three times as long
        // in a measurement.
        0 => {
            let processors = farblock_reactor::allowance::loops();
            (processors / 2).clamp(1, MAX_DEFAULT_THREADS)
        }
        threads => threads.min(limits::MAX_THREADS),
    }
}

/// Marks this thread, and the threads that it starts later, with `PR_SET_IO_FLUSHER`. The kernel's
/// writeback needs these threads, so their memory allocations must not wait for writeback. Only
/// root may set this mark.
fn flushes_for_the_kernel() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("cannot mark this thread as needed for the kernel's writeback: {error}");
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
    // After a core fails, fail all requests: programs must get errors instead of waiting forever.
    let theirs = Arc::clone(shared);
    let failed = move |_| theirs.inboxes().fail();
    Cores::start(&plan, shared.disk().namespace(), make, open, failed).map_err(StartError::Cores)
}
