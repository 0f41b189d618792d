//! Starting and stopping a target.

use super::core::Core;
use super::scsi::inquiry::Identity;
use super::shared::{Message, Shared};
use super::text;
use farblock_block::{BlockError, Geometry, Namespace};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Reactor};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

/// The name of a target's thread; what CPU accounting goes by.
pub const THREAD_NAME: &str = "iscsi";

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
}

impl Config {
    /// The usual: as writable as the namespace, with a serial number made of the name.
    #[must_use]
    pub fn new(listen: SocketAddr, name: &str) -> Config {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let (name, serial) = (name.to_owned(), format!("{hash:016x}"));
        Config { listen, name, serial, read_only: false, engine: EngineKind::Auto }
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
    /// That is no name of a target.
    Name(String),
    /// That is no serial number.
    Serial(String),
    /// The blocks are of a size that systems do not know.
    BlockSize(u32),
    /// The namespace cannot be used.
    Open(BlockError),
    /// The event loop does not start.
    Reactor(EngineKind, io::Error),
    /// A socket, a thread, or something they need, is not to be had.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NotLoopback(address) => write!(
                f,
                "this iSCSI target asks nobody who they are, so it serves this machine only: \
                 listen on 127.0.0.1 instead of {address}"
            ),
            StartError::InUse(address) => {
                write!(f, "somebody listens at {address} already: choose another port")
            }
            StartError::Name(name) => write!(
                f,
                "{name:?} is no name of an iSCSI target: take one like \
                 iqn.2026-11.org.farblock:disk, without spaces and below 224 bytes"
            ),
            StartError::Serial(serial) => write!(
                f,
                "{serial:?} is no serial number: take 1 to {MAX_SERIAL_BYTES} letters, digits, \
                 hyphens and the like"
            ),
            StartError::BlockSize(bytes) => write!(
                f,
                "blocks of {bytes} bytes are more than SCSI hosts take: use a namespace with 512 \
                 or 4096"
            ),
            StartError::Open(error) => write!(f, "cannot open the namespace: {error}"),
            StartError::Reactor(engine, error) => {
                write!(f, "the {engine} event loop does not start: {error}")
            }
            StartError::System(error) => write!(f, "cannot start to serve iSCSI: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running target. Dropping it stops it without waiting for anybody to log out.
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
    address: SocketAddr,
    name: String,
    engine: EngineKind,
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
        let shared = Arc::new(Shared::new(namespace, identity, config.read_only));
        let (sender, receiver) = mpsc::channel();
        let theirs = Arc::clone(&shared);
        let engine = config.engine;
        let thread = thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .spawn(move || run(engine, theirs, listener, &sender))
            .map_err(StartError::System)?;
        let died = |_| StartError::System(io::Error::other("the thread ended at once"));
        let engine = receiver.recv().map_err(died)??;
        Ok(Server { shared, thread: Some(thread), address, name, engine })
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
        self.engine
    }

    /// Initiators at the moment, those that still log in included.
    #[must_use]
    pub fn users(&self) -> usize {
        self.shared.connections()
    }

    /// The namespace has another size now, or is writable or not any more. Commands are held
    /// against that at once, and every session is told by a unit attention.
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
        self.shared.post(Message::Stop { force });
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
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

/// The thread.
fn run(
    engine: EngineKind,
    shared: Arc<Shared>,
    listener: TcpListener,
    sender: &Sender<Result<EngineKind, StartError>>,
) -> io::Result<()> {
    let config = ReactorConfig { engine, ..ReactorConfig::default() };
    let made = Reactor::new(&config).map_err(|error| StartError::Reactor(engine, error));
    let made = made.and_then(|reactor| {
        let chosen = reactor.engine();
        let task = reactor.add_task();
        shared.set_waker(reactor.waker(task));
        let core = Core::new(reactor, task, shared, listener).map_err(StartError::Open)?;
        Ok((core, chosen))
    });
    match made {
        Ok((core, chosen)) => {
            let _ = sender.send(Ok(chosen));
            core.run()
        }
        Err(error) => {
            let _ = sender.send(Err(error));
            Ok(())
        }
    }
}
