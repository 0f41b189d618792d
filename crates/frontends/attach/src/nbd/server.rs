//! Starts and stops an NBD server.

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

/// The prefix of the names of all threads of a server. CPU accounting groups threads by this
/// prefix.
pub const THREAD_NAME_PREFIX: &str = "nbd-";

/// The default maximum number of threads of a server.
const MAX_DEFAULT_THREADS: usize = 4;
/// The pause after the server fails to accept a client, for example because no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CLIENTS: Token = Token(0);
const STOP: Token = Token(1);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address to listen on. `None`: the server serves only the clients passed to
    /// [`Server::adopt`].
    pub listen: Option<Address>,
    /// The export's name. Clients that send an empty name get this export as well.
    pub export: String,
    /// Whether the server refuses writes even if the namespace is writable.
    pub read_only: bool,
    /// The event loop to use.
    pub engine: EngineKind,
    /// The processor time that the server may spend on polling.
    pub polling: Polling,
    /// The number of threads, each with a queue into the namespace. The server assigns connections
    /// to the threads in turn. 0 selects the number of processors, at most four.
    pub threads: usize,
}

impl Config {
    /// A default configuration: listens on this address, has no export name, and allows writes if
    /// the namespace does.
    #[must_use]
    pub fn new(listen: Option<Address>) -> Config {
        let (export, engine, polling) = Default::default();
        Config { listen, export, read_only: false, engine, polling, threads: 0 }
    }
}

/// The reason why a server did not start. Its text tells the user how to fix the problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The server cannot listen on its address.
    Listen(ListenError),
    /// The export's name is longer than the protocol allows. Holds its length in bytes.
    Name(usize),
    /// The threads did not start.
    Cores(frontend::StartError),
    /// The system refused to create a thread or one of its resources.
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

/// A running server. Dropping it stops the server.
pub struct Server {
    shared: Arc<ExportShared>,
    cores: Cores,
    acceptor: Option<Acceptor>,
    changes: Option<GeometryWatch>,
}

impl Server {
    /// Opens the namespace, listens on the configured address, and serves clients.
    ///
    /// # Errors
    /// Fails if an option is invalid, or the namespace, the socket or a thread fails. Then no
    /// thread runs.
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

    /// The address on which the server listens, with the port that the system picked. `None` if it
    /// does not listen.
    #[must_use]
    pub fn address(&self) -> Option<&Address> {
        self.acceptor.as_ref().map(|acceptor| &acceptor.address)
    }

    /// The kind of event loop that the server uses.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.cores.engine()
    }

    /// The current number of clients, including those that still negotiate.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// The names of the clients. The name of a local client is its process. The name of another
    /// client is its address.
    #[must_use]
    pub fn clients(&self) -> Vec<String> {
        self.shared.peers()
    }

    /// Serves the client at the other end of this socket. Closes the socket if the server is at its
    /// limit of connections.
    #[cfg(unix)]
    pub fn adopt(&self, client: std::os::unix::net::UnixStream) {
        let (stream, peer) = address::from_unix(client.into());
        self.shared.connected(stream, peer);
    }

    /// True if a crash may lose completed writes that no flush followed.
    #[cfg(target_os = "linux")]
    pub(super) fn has_volatile_cache(&self) -> bool {
        self.shared.disk().geometry().volatile_cache
    }

    /// Adopts a new size of the namespace. Call this only if the namespace does not report its
    /// changes. New clients see the new size, and the server checks requests against it at once.
    /// NBD cannot notify connected clients: programs must connect again. For a `/dev/nbdN`, call
    /// [`kernel::resize`](super::kernel::resize).
    pub fn resized(&self) {
        self.shared.post_all(|| Message::Resized);
    }

    /// Stops the server. The server accepts no more clients, finishes and answers the accepted
    /// requests, closes the connections and stops the threads.
    ///
    /// # Errors
    /// Fails if an event loop has failed.
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

/// The thread that accepts clients. Dropping this value stops the thread and closes the listening
/// socket.
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
        // Ignore an error: this thread cannot wake the acceptor in another way.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Accepts all waiting clients. Returns true if an accept failed, so that the caller must retry
/// after a pause.
fn accept_all(listener: &Listener, shared: &ExportShared) -> bool {
    loop {
        match listener.socket.accept() {
            Ok((stream, peer)) => shared.connected(stream, peer),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                // The client disconnected before the server accepted it.
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
    // If a core fails, stop the server. Otherwise it would assign connections to the failed core,
    // and the other cores would wait for this core's messages.
    let theirs = Arc::clone(shared);
    let failed = move |_| {
        theirs.fail();
        theirs.post_all(|| Message::Stop);
    };
    Cores::start(&plan, shared.disk().namespace(), make, open, failed).map_err(StartError::Cores)
}
