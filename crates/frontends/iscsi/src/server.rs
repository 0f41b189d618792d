//! Starts and stops an iSCSI target.

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

/// The prefix of the target's thread names. CPU accounting groups threads by this prefix.
pub const THREAD_NAME_PREFIX: &str = "iscsi-";

/// The maximum number of connections that the system queues before the target accepts them.
const BACKLOG: i32 = 128;

/// The longest serial number, in bytes.
const MAX_SERIAL_BYTES: usize = 36;

/// The configuration of a target.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address and port on this machine to listen on. With port 0, the system picks a free
    /// port.
    pub listen: SocketAddr,
    /// The target's iSCSI name, such as `iqn.2026-11.org.farblock:disk`.
    pub name: String,
    /// The serial number, by which initiators recognise the disk: up to 36 letters, digits and
    /// similar characters. All disks of an initiator need different serial numbers.
    pub serial: String,
    /// Whether the target refuses writes even if the namespace is writable.
    pub read_only: bool,
    /// The event loop to use.
    pub engine: EngineKind,
    /// The processor time that the target may spend on polling.
    pub polling: Polling,
}

impl Config {
    /// A default configuration: writable if the namespace is, with a serial number derived from the
    /// name.
    #[must_use]
    pub fn new(listen: SocketAddr, name: &str) -> Config {
        let (hash, _) = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).as_u64_pair();
        let (name, serial) = (name.to_owned(), format!("{hash:016x}"));
        let (engine, polling) = Default::default();
        Config { listen, name, serial, read_only: false, engine, polling }
    }
}

/// The reason why a target did not start. Its text tells the user how to fix the problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The address is not a loopback address.
    NotLoopback(SocketAddr),
    /// Another process listens on this address.
    InUse(SocketAddr),
    /// The name is not a valid target name.
    Name(String),
    /// The serial number is invalid.
    Serial(String),
    /// Operating systems do not support this block size, in bytes.
    BlockSize(u32),
    /// The threads did not start.
    Cores(frontend::StartError),
    /// The system refused to create a socket, a thread, or one of their resources.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NotLoopback(address) => write!(
                f,
                "this iSCSI target does not authenticate initiators, so it serves only this \
                 machine: listen on 127.0.0.1 instead of {address}"
            ),
            StartError::InUse(address) => {
                write!(f, "another program listens at {address}: choose another port")
            }
            StartError::Name(name) => write!(
                f,
                "{name:?} is not an iSCSI target name: use a name like \
                 iqn.2026-11.org.farblock:disk, without spaces and below 224 bytes"
            ),
            StartError::Serial(serial) => write!(
                f,
                "{serial:?} is not a serial number: use 1 to {MAX_SERIAL_BYTES} printable ASCII \
                 characters without spaces"
            ),
            StartError::BlockSize(bytes) => write!(
                f,
                "SCSI hosts do not support blocks of {bytes} bytes: use a namespace with blocks of \
                 512 or 4096 bytes"
            ),
            StartError::Cores(error) => error.fmt(f),
            StartError::System(error) => write!(f, "cannot start the iSCSI server: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running target. Dropping it stops the target without waiting for logouts.
pub struct Server {
    shared: Arc<PortalShared>,
    cores: Cores,
    address: SocketAddr,
    name: String,
    changes: Option<GeometryWatch>,
}

impl Server {
    /// Opens the namespace, listens on the configured address, and serves initiators.
    ///
    /// # Errors
    /// Fails if a setting is invalid, or the target cannot open the namespace or the socket, or
    /// cannot start its thread. No thread then remains.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        // The largest supported block size, in bytes. Windows supports no larger blocks.
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

    /// The address on which the target listens, with the port that the system picked.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The disk's URL for libiscsi and QEMU.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("iscsi://{}/{}/0", self.address, self.name)
    }

    /// The kind of event loop that the target uses.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.cores.engine()
    }

    /// The current number of initiators, including those whose login is in progress.
    #[must_use]
    pub fn users(&self) -> usize {
        self.shared.connections()
    }

    /// Adopts a new size or write protection of the namespace. The target checks commands against
    /// the new values at once, and reports the change by a unit attention to every current and
    /// later session. Call this after a restart of the target, because the namespace may have
    /// changed meanwhile. Also call it if the namespace does not report its changes.
    pub fn resized(&self) {
        self.shared.post(Message::Resized);
    }

    /// Stops the target. The target accepts no more initiators and requests logouts. It closes the
    /// sessions that have not logged out after
    /// [`limits::DRAIN_TIMEOUT`](crate::limits::DRAIN_TIMEOUT).
    ///
    /// With `force`, the target closes all sessions at once. The namespace may or may not execute
    /// their unanswered commands.
    ///
    /// # Errors
    /// Returns the event loop's error if the loop has failed.
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
            tracing::error!("the event loop of an iSCSI target failed: {error}");
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
        // Windows would let two programs share the port, so set this option only on Unix.
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

/// Starts the target's thread. No other thread depends on it, so no message reports its failure.
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
        let listener = listener.expect("only one thread takes the listener");
        Sessions::new(seat, Arc::clone(&theirs), listener)
    };
    let open = |wakers| shared.mailboxes.open(wakers);
    Cores::start(&plan, shared.disk().namespace(), make, open, |_| {}).map_err(StartError::Cores)
}
