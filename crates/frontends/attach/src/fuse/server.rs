//! Starting and stopping a server.

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

/// The start of the name of every thread of a server, the library's included; what CPU accounting
/// goes by.
pub const THREAD_NAME_PREFIX: &str = "fuse";
const CORE_NAME_PREFIX: &str = "fuse-";

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
    /// How much processor time it may spend on looking for work.
    pub polling: Polling,
    /// So many threads read requests, and so many carry them out. 0: half as many as there are
    /// processors, but at most four.
    pub threads: usize,
    /// Refuse writes, even if the namespace would take them.
    pub read_only: bool,
    /// Also for other users than the one who mounts, root among them.
    pub allow_other: bool,
    /// Another process will keep [`Server::connection`]. Every thread then reads requests from that
    /// one descriptor, since the kernel fails what was read from any other when that is closed.
    pub kept: bool,
}

impl Config {
    /// The usual: a file `disk`, as writable as the namespace, for this user.
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

/// Why a server did not start. Shown, it says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The name is none for a file.
    Name(String),
    /// It cannot be mounted.
    Mount(MountError),
    /// The mount of a server that was killed is not there any more, or cannot be gone on with.
    Resume(PathBuf, io::Error),
    /// The threads do not start.
    Cores(frontend::StartError),
    /// The system does not provide a thread, or something that it needs.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Name(name) => write!(
                f,
                "{name:?} is not a name for a file: take 1 to {} bytes without a slash",
                limits::MAX_NAME_BYTES
            ),
            StartError::Mount(error) => error.fmt(f),
            StartError::Resume(path, error) => {
                write!(f, "cannot go on with the mount at {}: {error}", path.display())
            }
            StartError::Cores(error) => error.fmt(f),
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
    /// It is not mounted here any more, but where these processes are: copies of the mount. The
    /// server goes on for them.
    Elsewhere(PathBuf, Vec<User>),
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
            StopError::Elsewhere(path, users) => write!(
                f,
                "{} is not mounted here any more, but {}; it ends with that, or by force",
                path.display(),
                Listed(users)
            ),
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
    shared: Arc<MountShared>,
    cores: Cores,
    session: Option<Mounted>,
    changes: Option<GeometryWatch>,
    mountpoint: PathBuf,
    path: PathBuf,
    mounter: Arc<dyn Mounter>,
}

/// What there is of a mount.
struct Mounted {
    /// Ends when the kernel has ended the mount.
    thread: Thread,
    notifier: Notifier,
    connection: OwnedFd,
    /// What the kernel calls the connection.
    minor: Option<u32>,
}

impl Server {
    /// Opens the namespace, mounts and serves.
    ///
    /// # Errors
    /// Nothing runs then, and nothing is mounted.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        Server::start_with(config, namespace, own(config))
    }

    /// The same, with somebody else who mounts at the configuration's mountpoint.
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

    /// Goes on with the mount of a server that was killed. `connection` is what was kept of it
    /// ([`Server::connection`]), and the configuration the same: its mountpoint is the full path.
    ///
    /// Requests that were not answered are carried out again. It cannot be known here whether the
    /// dead server had carried them out; the namespace has to be one on which that does not matter,
    /// and nothing of the dead server may be under way to it any more.
    ///
    /// # Errors
    /// Nothing runs then.
    pub fn resume(
        config: &Config,
        namespace: Arc<dyn Namespace>,
        connection: &OwnedFd,
    ) -> Result<Server, StartError> {
        Server::resume_with(config, namespace, connection, own(config))
    }

    /// The same, with somebody else who unmounts.
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
        // Of the mount itself nothing must be asked: nobody would answer.
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

    /// What runs before there is a session. From here on, dropping it stops that.
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

    /// Passes on what changes from now on, and what has since it was so.
    fn watch(&mut self, known: Geometry) {
        let notifier = self.session.as_ref().expect("there is one to be told").notifier.clone();
        let shared = Arc::clone(&self.shared);
        let changed = move || {
            if let Err(error) = shared.resized_for(&notifier) {
                tracing::debug!("the kernel does not take that the size is another one: {error}");
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

    /// The connection to the kernel, for another process to keep: while it has it, the mount
    /// outlives this process, and requests wait for [`Server::resume`]. `None` if the kernel could
    /// not hand out again what was under way (before Linux 6.9), and would leave that hanging.
    #[must_use]
    pub fn connection(&self) -> Option<OwnedFd> {
        let session = self.session.as_ref().filter(|_| self.shared.resends())?;
        session.connection.try_clone().ok()
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The event loop that was chosen.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.cores.engine()
    }

    /// Who uses the disk: processes with the file or the directory, loop devices on the file, and
    /// who uses those.
    #[must_use]
    pub fn users(&self) -> Vec<User> {
        self.mounter.users()
    }

    /// The namespace has another size now, as the server hears by itself of one that tells of its
    /// changes, and the kernel forgets the one it had: it learns the new one from whoever next asks
    /// for the file's (not this process, which would wait for itself if it were killed then). A
    /// loop device is told with [`loop_device::resize`].
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn resized(&self) -> io::Result<()> {
        match &self.session {
            Some(session) => self.shared.resized_for(&session.notifier),
            None => Ok(()),
        }
    }

    /// Whether the mount is in this mount namespace. It may be in others alone.
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
        self.changes = None;
        let mut result = Ok(());
        if let Some(Mounted { thread, .. }) = session {
            // Not if it does not end: it may be that the mount lives on in another namespace.
            if wait_until(|| thread.is_finished()) {
                result = join(thread);
            } else {
                tracing::error!("{} is still mounted somewhere", self.mountpoint.display());
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
        // Somebody may have unmounted it.
        if self.is_mounted(session) {
            let mut result = Ok(());
            // The kernel needs a moment to forget who was the last.
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

    /// Whether it is still our mount that is there.
    fn is_mounted(&self, session: &Mounted) -> bool {
        session.minor.is_some() && mount::minor(&self.mountpoint) == session.minor
    }
}

impl MountShared {
    /// The namespace has another size: requests are held against it, and the kernel forgets the one
    /// that it had.
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
        // Each is a pair. More pairs than half of the processors are in each other's way: measured,
        // one request at a time was three times as slow.
        0 => {
            let processors = farblock_reactor::allowance::loops();
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
    // Programs that use the disk get errors; they must not wait for ever.
    let theirs = Arc::clone(shared);
    let failed = move |_| theirs.inboxes().fail();
    Cores::start(&plan, shared.disk().namespace(), make, open, failed).map_err(StartError::Cores)
}
