//! Starts and stops a server.

use super::address::{self, Address, ListenError, Listener};
use super::core::Clients;
use super::limits;
use super::shared::{ExportShared, Message};
use farblock_block::Namespace;
use farblock_frontend::{self as frontend, Cores, Disk, GeometryWatch, Plan};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Polling};
use mio::{Events, Interest, Poll, Token};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Prefix of the name of every thread of a server; CPU accounting uses it.
pub const THREAD_NAME_PREFIX: &str = "nbd-";

/// The most threads of a server by default.
const MAX_DEFAULT_THREADS: usize = 4;
/// Pause after an error of accept, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CLIENTS: Token = Token(0);
const STOP: Token = Token(1);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen. Without it, the server only serves the clients passed to [`Server::adopt`].
    pub listen: Option<Address>,
    /// The export's name; clients that give no name get it as well.
    pub export: String,
    /// Refuse writes, even to a writable namespace.
    pub read_only: bool,
    /// The event loop to use.
    pub engine: EngineKind,
    /// How much processor time the server may spend on polling.
    pub polling: Polling,
    /// Threads, each with a queue into the namespace. The server assigns connections to the threads
    /// in turn. 0: as many as there are processors, at most four.
    pub threads: usize,
}

impl Config {
    /// Defaults: no name, as writable as the namespace, at this address.
    #[must_use]
    pub fn new(listen: Option<Address>) -> Config {
        let (export, engine, polling) = Default::default();
        Config { listen, export, read_only: false, engine, polling, threads: 0 }
    }
}

/// Why a server did not start. Its text says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// Listening failed.
    Listen(ListenError),
    /// The export's name is longer than the protocol allows.
    Name(usize),
    /// The threads did not start.
    Cores(frontend::StartError),
    /// The system refused a thread or one of its resources.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen(error) => error.fmt(f),
            StartError::Name(bytes) => write!(
                f,
                "the export name has {bytes} bytes, but at most {} are allowed: shorten it",
                super::wire::MAX_STRING_BYTES
            ),
            StartError::Cores(error) => error.fmt(f),
            StartError::System(error) => write!(f, "cannot start the NBD server: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<ExportShared>,
    cores: Cores,
    acceptor: Option<Acceptor>,
    changes: Option<GeometryWatch>,
}

impl Server {
    /// Opens the namespace, listens and serves.
    ///
    /// # Errors
    /// After an error no thread runs.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        if config.export.len() > super::wire::MAX_STRING_BYTES {
            return Err(StartError::Name(config.export.len()));
        }
        let listener =
            config.listen.as_ref().map(address::bind).transpose().map_err(StartError::Listen)?;
        let disk = Disk::new(namespace, config.read_only);
        let known = disk.geometry();
        let shared = Arc::new(ExportShared::new(disk, config.export.clone()));
        let cores = start_cores(config, &shared)?;
        // From here on, dropping `server` stops the cores.
        let mut server = Server { shared, cores, acceptor: None, changes: None };
        let told = Arc::clone(&server.shared);
        let changed = move || told.post_all(|| Message::Resized);
        let changes = GeometryWatch::start("nbd-changes", server.shared.disk(), known, changed);
        server.changes = Some(changes);
        if let Some(listener) = listener {
            let acceptor = Acceptor::start(listener, Arc::clone(&server.shared));
            server.acceptor = Some(acceptor.map_err(StartError::System)?);
        }
        Ok(server)
    }

    /// The listening address, with the port that the system picked.
    #[must_use]
    pub fn address(&self) -> Option<&Address> {
        self.acceptor.as_ref().map(|acceptor| &acceptor.address)
    }

    /// The event loop in use.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.cores.engine()
    }

    /// The current number of clients, including those that still negotiate.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// The clients' names: a local process, or an address.
    #[must_use]
    pub fn clients(&self) -> Vec<String> {
        self.shared.peers()
    }

    /// Serves the client at the other end of this socket, as if it had connected. Above the limit
    /// of connections, closes the socket.
    #[cfg(unix)]
    pub fn adopt(&self, client: std::os::unix::net::UnixStream) {
        let (stream, peer) = address::from_unix(client.into());
        self.shared.connected(stream, peer);
    }

    /// True if completed writes may be lost until a flush.
    #[cfg(target_os = "linux")]
    pub(super) fn has_volatile_cache(&self) -> bool {
        self.shared.disk().geometry().volatile_cache
    }

    /// Adopts a new size of the namespace. The server calls this itself if the namespace reports
    /// its changes. New clients see the new size, and requests are checked against it at once. NBD
    /// cannot notify connected clients: programs must connect again, and the kernel's device needs
    /// [`kernel::resize`](super::kernel::resize).
    pub fn resized(&self) {
        self.shared.post_all(|| Message::Resized);
    }

    /// Stops the server: it accepts no more clients, finishes and answers the accepted requests,
    /// closes the connections and ends the threads.
    ///
    /// # Errors
    /// If an event loop had failed.
    pub fn stop(mut self) -> io::Result<()> {
        self.stop_threads()
    }

    fn stop_threads(&mut self) -> io::Result<()> {
        self.acceptor = None;
        self.changes = None;
        self.shared.post_all(|| Message::Stop);
        self.cores.join()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !thread::panicking()
            && let Err(error) = self.stop_threads()
        {
            tracing::error!("an event loop of the NBD server failed: {error}");
        }
    }
}

/// The thread that accepts clients. Dropping it ends the thread and closes the listening socket.
struct Acceptor {
    address: Address,
    stop: Arc<AtomicBool>,
    waker: mio::Waker,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    fn start(mut listener: Listener, shared: Arc<ExportShared>) -> io::Result<Acceptor> {
        let mut poll = Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), STOP)?;
        poll.registry().register(listener.socket.source(), CLIENTS, Interest::READABLE)?;
        let address = listener.address.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name(format!("{THREAD_NAME_PREFIX}accept")).spawn(
            move || {
                let mut events = Events::with_capacity(2);
                let mut timeout = None;
                while !stopped.load(Ordering::Acquire) {
                    if let Err(error) = poll.poll(&mut events, timeout)
                        && error.kind() != io::ErrorKind::Interrupted
                    {
                        tracing::error!("the NBD server stopped accepting clients: {error}");
                        return;
                    }
                    timeout = accept_all(&listener, &shared).then_some(ACCEPT_PAUSE);
                }
            },
        )?;
        Ok(Acceptor { address, stop, waker, thread: Some(thread) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A failure here cannot be handled.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Accepts all waiting clients. True if the caller must retry after a pause.
fn accept_all(listener: &Listener, shared: &ExportShared) -> bool {
    loop {
        match listener.socket.accept() {
            Ok((stream, peer)) => shared.connected(stream, peer),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                // The client gave up before it was accepted.
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => {
                    shared.complaints.say("NBD clients not accepted", "", || {
                        tracing::warn!("cannot accept an NBD client: {error}");
                    });
                    return true;
                }
            },
        }
    }
}

fn start_cores(config: &Config, shared: &Arc<ExportShared>) -> Result<Cores, StartError> {
    let count = match config.threads {
        0 => farblock_reactor::allowance::loops().min(MAX_DEFAULT_THREADS),
        threads => threads.min(limits::MAX_THREADS),
    };
    let reactor = ReactorConfig::new(config.engine, config.polling);
    let plan = Plan { prefix: THREAD_NAME_PREFIX, count, reactor, begin: || {} };
    let theirs = Arc::clone(shared);
    let make = move |seat| Ok(Clients::new(seat, Arc::clone(&theirs)));
    let open = |wakers| shared.mailboxes.open(wakers);
    // A core that fails stops the server. Otherwise the failed core would get connections that it
    // cannot serve, and other cores would wait for its answers.
    let theirs = Arc::clone(shared);
    let failed = move |_| {
        theirs.fail();
        theirs.post_all(|| Message::Stop);
    };
    Cores::start(&plan, shared.disk().namespace(), make, open, failed).map_err(StartError::Cores)
}
