//! Starting and stopping a target.

use crate::core::Sessions;
use crate::scsi::inquiry::Identity;
use crate::shared::{Message, PortalShared};
use crate::text;
use farblock_block::{Geometry, Namespace};
use farblock_frontend::{self as frontend, Cores, Disk, GeometryWatch, Plan};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Polling};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use uuid::Uuid;

/// The start of the name of a target's thread; what CPU accounting goes by.
pub const THREAD_NAME_PREFIX: &str = "iscsi-";

/// Initiators that the system queues before they are accepted.
const BACKLOG: i32 = 128;

/// The longest serial number, in bytes.
const MAX_SERIAL_BYTES: usize = 36;

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen: a port of this machine; 0 takes a free one.
    pub listen: SocketAddr,
    /// The target's iSCSI name, as `iqn.2026-11.org.farblock:disk`.
    pub name: String,
    /// What systems know the disk again by: up to 36 letters, digits and the like. Two disks that
    /// one system uses must not have the same.
    pub serial: String,
    /// Refuse writes, even if the namespace would take them.
    pub read_only: bool,
    /// Which event loop.
    pub engine: EngineKind,
    /// How much processor time it may spend on looking for work.
    pub polling: Polling,
}

impl Config {
    /// The usual: as writable as the namespace, with a serial number made of the name.
    #[must_use]
    pub fn new(listen: SocketAddr, name: &str) -> Config {
        let (hash, _) = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).as_u64_pair();
        let (name, serial) = (name.to_owned(), format!("{hash:016x}"));
        let (engine, polling) = Default::default();
        Config { listen, name, serial, read_only: false, engine, polling }
    }
}

/// Why a target did not start. Shown, it says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The port is none of this machine alone.
    NotLoopback(SocketAddr),
    /// Somebody else listens there.
    InUse(SocketAddr),
    /// That is not a name of a target.
    Name(String),
    /// That is not a serial number.
    Serial(String),
    /// The blocks are of a size that systems do not know.
    BlockSize(u32),
    /// The threads do not start.
    Cores(frontend::StartError),
    /// The system does not provide a socket, a thread, or something that they need.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NotLoopback(address) => write!(
                f,
                "this iSCSI target does not authenticate anybody, so it serves this machine only: \
                 listen on 127.0.0.1 instead of {address}"
            ),
            StartError::InUse(address) => {
                write!(f, "somebody listens at {address} already: choose another port")
            }
            StartError::Name(name) => write!(
                f,
                "{name:?} is not a name of an iSCSI target: take one like \
                 iqn.2026-11.org.farblock:disk, without spaces and below 224 bytes"
            ),
            StartError::Serial(serial) => write!(
                f,
                "{serial:?} is not a serial number: take 1 to {MAX_SERIAL_BYTES} letters, digits, \
                 hyphens and the like"
            ),
            StartError::BlockSize(bytes) => write!(
                f,
                "blocks of {bytes} bytes are more than SCSI hosts take: use a namespace with 512 \
                 or 4096"
            ),
            StartError::Cores(error) => error.fmt(f),
            StartError::System(error) => write!(f, "cannot start to serve iSCSI: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running target. Dropping it stops it without waiting for anybody to log out.
pub struct Server {
    shared: Arc<PortalShared>,
    cores: Cores,
    address: SocketAddr,
    name: String,
    changes: Option<GeometryWatch>,
}

impl Server {
    /// Opens the namespace, listens and serves.
    ///
    /// # Errors
    /// Nothing runs then.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        // Few systems know larger ones, and Windows none.
        const MAX_BLOCK_SIZE_BYTES: u32 = 4096;
        let Geometry { block_size, .. } = namespace.geometry();
        if block_size > MAX_BLOCK_SIZE_BYTES {
            return Err(StartError::BlockSize(block_size));
        }
        let name = config.name.to_lowercase();
        if !text::is_name(&name) {
            return Err(StartError::Name(config.name.clone()));
        }
        let serial = config.serial.clone();
        let fits = (1..=MAX_SERIAL_BYTES).contains(&serial.len());
        if !fits || !serial.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(StartError::Serial(serial));
        }
        let listener = bind(config.listen)?;
        let address = listener.local_addr().map_err(StartError::System)?;
        let identity = Identity { target: name.clone(), serial };
        let disk = Disk::new(namespace, config.read_only);
        let known = disk.geometry();
        let shared = Arc::new(PortalShared::new(disk, identity));
        let cores = start(ReactorConfig::new(config.engine, config.polling), &shared, listener)?;
        let told = Arc::clone(&shared);
        let changed = move || told.post(Message::Resized);
        let changes = Some(GeometryWatch::start("iscsi-changes", shared.disk(), known, changed));
        Ok(Server { shared, cores, address, name, changes })
    }

    /// Where it listens, with the port that was taken.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How libiscsi and QEMU name the disk.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("iscsi://{}/{}/0", self.address, self.name)
    }

    /// The event loop that was chosen.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.cores.engine()
    }

    /// Initiators at the moment, those that still log in included.
    #[must_use]
    pub fn users(&self) -> usize {
        self.shared.connections()
    }

    /// The namespace has another size now, or is writable or not any more; or it may have changed
    /// since a server before this, of which alone this one does not hear by itself if the namespace
    /// tells of its changes. Commands are held against that at once, and every session is told by a
    /// unit attention, also one that begins later.
    pub fn resized(&self) {
        self.shared.post(Message::Resized);
    }

    /// Stops: nobody is accepted any more, and sessions are asked to log out and closed after a
    /// moment if they do not. With `force` they are closed at once, and commands that were not
    /// answered may or may not have been carried out.
    ///
    /// # Errors
    /// If the event loop had failed.
    pub fn stop(mut self, force: bool) -> io::Result<()> {
        self.stop_thread(force)
    }

    fn stop_thread(&mut self, force: bool) -> io::Result<()> {
        self.changes = None;
        self.shared.post(Message::Stop { force });
        self.cores.join()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !thread::panicking()
            && let Err(error) = self.stop_thread(true)
        {
            tracing::error!("the event loop of an iSCSI target had failed: {error}");
        }
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    if !address.ip().is_loopback() {
        return Err(StartError::NotLoopback(address));
    }
    let listen = || -> io::Result<TcpListener> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        // On Windows the option means something else: two programs on one port.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    listen().map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => StartError::InUse(address),
        _ => StartError::System(error),
    })
}

/// Starts the one thread. If it fails, nobody else is there to be told.
fn start(
    reactor: ReactorConfig,
    shared: &Arc<PortalShared>,
    listener: TcpListener,
) -> Result<Cores, StartError> {
    let plan = Plan { prefix: THREAD_NAME_PREFIX, count: 1, reactor, begin: || {} };
    let theirs = Arc::clone(shared);
    let listener = Mutex::new(Some(listener));
    let make = move |seat| {
        let listener = listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let listener = listener.expect("there is one thread");
        Sessions::new(seat, Arc::clone(&theirs), listener)
    };
    let open = |wakers| shared.mailboxes.open(wakers);
    Cores::start(&plan, shared.disk().namespace(), make, open, |_| {}).map_err(StartError::Cores)
}
