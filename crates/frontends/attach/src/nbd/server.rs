//! Starting and stopping a server.

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

/// The start of the name of every thread of a server; what CPU accounting goes by.
pub const THREAD_NAME_PREFIX: &str = "nbd-";

/// Threads of a server that is not told how many.
const MAX_DEFAULT_THREADS: usize = 4;
/// How long accepting backs off after an error, for example when there are no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CLIENTS: Token = Token(0);
const STOP: Token = Token(1);

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen. Without it, clients are only those that [`Server::adopt`] is given.
    pub listen: Option<Address>,
    /// The export's name; clients that name none get it as well.
    pub export: String,
    /// Refuse writes, even if the namespace would take them.
    pub read_only: bool,
    /// Which event loop.
    pub engine: EngineKind,
    /// How much processor time it may spend on looking for work.
    pub polling: Polling,
    /// Threads, each with a queue into the namespace; connections are dealt to them in turn.
    /// 0: as many as there are processors, but at most four.
    pub threads: usize,
}

impl Config {
    /// The usual: nameless, as writable as the namespace, at this address.
    #[must_use]
    pub fn new(listen: Option<Address>) -> Config {
        let (export, engine, polling) = Default::default();
        Config { listen, export, read_only: false, engine, polling, threads: 0 }
    }
}

/// Why a server did not start. Shown, it says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// Nobody can be listened to.
    Listen(ListenError),
    /// The export's name is longer than the protocol takes.
    Name(usize),
    /// The threads do not start.
    Cores(frontend::StartError),
    /// The system does not provide a thread, or something that it needs.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen(error) => error.fmt(f),
            StartError::Name(bytes) => write!(
                f,
                "an export's name has at most {} bytes, and this one has {bytes}: shorten it",
                super::wire::MAX_STRING_BYTES
            ),
            StartError::Cores(error) => error.fmt(f),
            StartError::System(error) => write!(f, "cannot start to serve NBD: {error}"),
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
    /// Nothing runs then.
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
        // From here on, dropping it stops the cores.
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

    /// Where it listens, with the port that was taken.
    #[must_use]
    pub fn address(&self) -> Option<&Address> {
        self.acceptor.as_ref().map(|acceptor| &acceptor.address)
    }

    /// The event loop that was chosen.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.cores.engine()
    }

    /// Clients at the moment, those that still negotiate included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// Who the clients are: a process of this machine, or an address.
    #[must_use]
    pub fn clients(&self) -> Vec<String> {
        self.shared.peers()
    }

    /// Serves the client at the other end of this socket, as if it had connected. One that is too
    /// many is closed.
    #[cfg(unix)]
    pub fn adopt(&self, client: std::os::unix::net::UnixStream) {
        let (stream, peer) = address::from_unix(client.into());
        self.shared.connected(stream, peer);
    }

    /// Whether completed writes may be lost until a flush.
    #[cfg(target_os = "linux")]
    pub(super) fn has_volatile_cache(&self) -> bool {
        self.shared.disk().geometry().volatile_cache
    }

    /// The namespace has another size now, as the server hears by itself of one that tells of its
    /// changes. Clients that come from now on see it, and requests are held against it at once. NBD
    /// has no way to tell clients that are there: programs have to connect again; the kernel's
    /// device is told with [`kernel::resize`](super::kernel::resize).
    pub fn resized(&self) {
        self.shared.post_all(|| Message::Resized);
    }

    /// Stops: nobody is accepted any more, requests that were accepted are finished and answered,
    /// connections are closed, threads end.
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
            tracing::error!("an event loop had failed: {error}");
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
                        tracing::error!("no more NBD clients are accepted: {error}");
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
        // It cannot fail in a way that anybody could do something about.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Accepts everybody who waits. True if that is to be tried again after a pause.
fn accept_all(listener: &Listener, shared: &ExportShared) -> bool {
    loop {
        match listener.socket.accept() {
            Ok((stream, peer)) => shared.connected(stream, peer),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                // The client gave up before it was its turn.
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
    // A core that ends before its time ends the server: the others would go on to deal it
    // connections that nobody serves, and wait for its answers.
    let theirs = Arc::clone(shared);
    let failed = move |_| {
        theirs.fail();
        theirs.post_all(|| Message::Stop);
    };
    Cores::start(&plan, shared.disk().namespace(), make, open, failed).map_err(StartError::Cores)
}
