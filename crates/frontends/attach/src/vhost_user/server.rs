//! Starts and stops a vhost-user server, and runs the thread that talks to virtual machine
//! monitors.

use super::blk::ID_BYTES;
use super::device::Device;
use super::limits;
use super::session::Session;
use super::wire;
use super::worker::{Order, Worker};
use crate::nbd::address::{self, Address, ListenError, Listener};
use farblock_block::Namespace;
use farblock_frontend::{
    self as frontend, Complaints, Cores, Disk, GeometryWatch, Mailboxes, Plan,
};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Polling};
use mio::{Events, Interest, Poll, Token};
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The prefix of the names of all threads of a server. CPU accounting groups threads by this
/// prefix.
pub const THREAD_NAME_PREFIX: &str = "vhost-";

/// The default maximum number of rings of a server.
const MAX_DEFAULT_QUEUES: usize = 4;
/// The pause before the server retries a failed `accept`. It fails, for example, if this process
/// has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The interval at which the control thread, while it waits for a worker, checks whether the server
/// is stopping.
const WAIT_STEP: Duration = Duration::from_millis(100);
const MONITORS: Token = Token(0);
const STOP: Token = Token(1);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The path of the socket to listen on. The server replaces the socket of a killed server.
    pub socket: PathBuf,
    /// The number of rings that a guest may use. Each ring has a thread and a queue into the
    /// namespace. 0 selects the number of processors, at most four.
    pub queues: usize,
    /// The event loop to use.
    pub engine: EngineKind,
    /// The processor time that the server may spend on polling.
    pub polling: Polling,
    /// The disk's serial number: at most 20 bytes of ASCII. Linux shows it in
    /// `/sys/block/vda/serial`.
    pub serial: String,
    /// Whether the server refuses writes even if the namespace is writable.
    pub read_only: bool,
}

impl Config {
    /// A default configuration: no serial number, and writable if the namespace is.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Config {
        let (engine, polling, serial) = Default::default();
        Config { socket: socket.into(), queues: 0, engine, polling, serial, read_only: false }
    }
}

/// The reason why a server did not start. Its text tells the user how to fix the problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The server cannot listen on the socket.
    Listen(ListenError),
    /// The serial number is longer than the protocol allows, or is not printable ASCII.
    Serial(String),
    /// The configuration has more rings than the limit.
    Queues(usize),
    /// The threads did not start.
    Cores(frontend::StartError),
    /// The system refused to create a thread or one of its resources.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen(error) => error.fmt(f),
            StartError::Serial(serial) => write!(
                f,
                "{serial:?} is not a serial number: use at most {ID_BYTES} ASCII characters"
            ),
            StartError::Queues(queues) => {
                let most = limits::MAX_QUEUES;
                write!(f, "{queues} queues are too many: use at most {most}")
            }
            StartError::Cores(error) => error.fmt(f),
            StartError::System(error) => write!(f, "cannot start the vhost-user server: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// The state that the threads of a server share.
pub(super) struct DeviceShared {
    pub(super) device: Device,
    pub(super) orders: Mailboxes<Order>,
    pub(super) complaints: Complaints,
    state: Mutex<DeviceState>,
}

/// The current monitor, and the state of the stop.
#[derive(Default)]
struct DeviceState {
    /// The connection of the current monitor. Another thread can shut it down.
    connection: Option<UnixStream>,
    /// The monitor's name, for the log.
    peer: String,
    /// The socket for notifications to the monitor, if the monitor sent one.
    channel: Option<UnixStream>,
    /// True if the size has changed since the last notification could be sent. The next monitor
    /// then gets one, because its guest may still use the old size.
    resized: bool,
    /// The time limit of all waits while the server is stopping. `None` while the server runs.
    give_up: Option<Instant>,
}

impl DeviceShared {
    fn lock(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn post(&self, queue: usize, order: Order) {
        self.orders.post(queue, order);
    }

    pub(super) fn set_channel(&self, channel: Option<UnixStream>) {
        let resized = {
            let mut state = self.lock();
            state.channel = channel;
            state.resized
        };
        if resized {
            self.announce();
        }
    }

    /// Adopts a new size of the namespace.
    fn resized(&self) {
        self.orders.post_all(|| Order::Resized);
        self.lock().resized = true;
        self.announce();
    }

    /// Asks the monitor to read the configuration again, if it has a channel for notifications.
    fn announce(&self) {
        let channel = {
            let state = self.lock();
            state.channel.as_ref().and_then(|channel| channel.try_clone().ok())
        };
        // Do not hold the lock during the send: a blocked monitor may first need an answer to a
        // request, which needs the lock.
        if let Some(channel) = channel
            && let Err(error) = wire::notify_config_change(&channel)
        {
            tracing::warn!("cannot notify a monitor of the disk's new size: {error}");
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.lock().give_up.is_some()
    }

    /// Waits for a worker's answer for as long as the namespace takes, because operations in flight
    /// cannot be withdrawn. Fails only if a stop's time limit has passed, or the worker has failed.
    pub(super) fn wait_for<T>(&self, answer: &Receiver<T>) -> Result<T, String> {
        loop {
            match answer.recv_timeout(WAIT_STEP) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("a worker thread exited".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.lock().give_up.is_some_and(|at| at <= Instant::now()) {
                        return Err("the stopping server abandoned requests in flight".to_owned());
                    }
                }
            }
        }
    }

    /// Makes the monitor at this connection the current one. Returns false if the server is
    /// stopping.
    fn begin(&self, stream: &UnixStream, peer: &str) -> io::Result<bool> {
        let copy = stream.try_clone()?;
        let mut state = self.lock();
        state.connection = Some(copy);
        peer.clone_into(&mut state.peer);
        Ok(state.give_up.is_none())
    }
}

/// A running server. Dropping it stops the server.
pub struct Server {
    shared: Arc<DeviceShared>,
    workers: Cores,
    control: Option<(mio::Waker, JoinHandle<()>)>,
    changes: Option<GeometryWatch>,
    socket: PathBuf,
}

impl Server {
    /// Opens the namespace, listens on the socket, and serves monitors.
    ///
    /// # Errors
    /// Fails if a setting is invalid, or the namespace, the socket or a thread fails. Then no
    /// thread runs.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        let serial = &config.serial;
        if serial.len() > ID_BYTES || !serial.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(StartError::Serial(serial.clone()));
        }
        let queues = match config.queues {
            0 => farblock_reactor::allowance::loops().min(MAX_DEFAULT_QUEUES),
            queues if queues > limits::MAX_QUEUES => return Err(StartError::Queues(queues)),
            queues => queues,
        };
        let listener =
            address::bind(&Address::Unix(config.socket.clone())).map_err(StartError::Listen)?;
        let disk = Disk::new(namespace, config.read_only);
        let known = disk.geometry();
        let device = Device::new(disk.clone(), queues, serial);
        let state = Mutex::default();
        let shared = Arc::new(DeviceShared {
            device,
            orders: Mailboxes::default(),
            complaints: Complaints::default(),
            state,
        });
        // From here on, dropping `server` stops the threads.
        let mut server = Server {
            shared: Arc::clone(&shared),
            workers: start_workers(ReactorConfig::new(config.engine, config.polling), &shared)?,
            control: None,
            changes: None,
            socket: config.socket.clone(),
        };
        let told = Arc::clone(&shared);
        let changed = move || told.resized();
        server.changes = Some(GeometryWatch::start("vhost-changes", &disk, known, changed));
        server.control = Some(start_control(listener, shared).map_err(StartError::System)?);
        Ok(server)
    }

    /// The path of the socket on which the server listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The kind of event loop that the server uses.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.workers.engine()
    }

    /// True if a monitor is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.lock().connection.is_some()
    }

    /// The name of the connected monitor. `None` if no monitor is connected.
    #[must_use]
    pub fn monitor(&self) -> Option<String> {
        let state = self.shared.lock();
        state.connection.is_some().then(|| state.peer.clone())
    }

    /// Adopts a new size of the namespace: checks requests against it at once, and notifies the
    /// guest, even if the monitor connects later. Call this after a restart of the server, because
    /// the size may have changed meanwhile. Also call it if the namespace does not report its
    /// changes.
    pub fn resized(&self) {
        self.shared.resized();
    }

    /// Stops the server. The server finishes and answers the requests that it has taken,
    /// disconnects the monitor, stops the threads and removes the socket. The monitor may then
    /// reconnect to another server.
    ///
    /// # Errors
    /// Fails if an event loop has failed.
    pub fn stop(mut self) -> io::Result<()> {
        self.stop_threads()
    }

    fn stop_threads(&mut self) -> io::Result<()> {
        self.changes = None;
        {
            let mut state = self.shared.lock();
            state.give_up.get_or_insert(Instant::now() + limits::DRAIN_TIMEOUT);
            if let Some(connection) = &state.connection {
                // Shut down only the receiving direction: the server can still send answers to the
                // monitor.
                let _ = connection.shutdown(Shutdown::Read);
            }
        }
        if let Some((waker, control)) = self.control.take() {
            let _ = waker.wake();
            control.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        self.shared.orders.post_all(|| Order::Stop);
        self.workers.join()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !thread::panicking()
            && let Err(error) = self.stop_threads()
        {
            tracing::error!("an event loop of the vhost-user server failed: {error}");
        }
    }
}

fn start_workers(reactor: ReactorConfig, shared: &Arc<DeviceShared>) -> Result<Cores, StartError> {
    let device = &shared.device;
    let plan = Plan { prefix: THREAD_NAME_PREFIX, count: device.queues, reactor, begin: || {} };
    let theirs = Arc::clone(shared);
    let make = move |seat| Ok(Worker::new(seat, Arc::clone(&theirs)));
    let open = |wakers| shared.orders.open(wakers);
    // Close the mailbox of a failed worker: threads that wait for its answer then get an error.
    let theirs = Arc::clone(shared);
    let failed = move |index| theirs.orders.close(index);
    Cores::start(&plan, device.disk().namespace(), make, open, failed).map_err(StartError::Cores)
}

fn start_control(
    mut listener: Listener,
    shared: Arc<DeviceShared>,
) -> io::Result<(mio::Waker, JoinHandle<()>)> {
    let mut poll = Poll::new()?;
    let waker = mio::Waker::new(poll.registry(), STOP)?;
    poll.registry().register(listener.socket.source(), MONITORS, Interest::READABLE)?;
    let name = format!("{THREAD_NAME_PREFIX}control");
    let thread = thread::Builder::new().name(name).spawn(move || {
        let mut events = Events::with_capacity(2);
        let mut timeout = None;
        while !shared.is_stopping() {
            if let Err(error) = poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!("the vhost-user server stopped accepting monitors: {error}");
                return;
            }
            timeout = accept_all(&listener, &shared).then_some(ACCEPT_PAUSE);
        }
    })?;
    Ok((waker, thread))
}

/// Serves all waiting monitors, one after the other. Returns true if an accept failed, so that the
/// caller must retry after a pause.
fn accept_all(listener: &Listener, shared: &DeviceShared) -> bool {
    while !shared.is_stopping() {
        match listener.socket.accept() {
            Ok((stream, peer)) => serve(shared, UnixStream::from(OwnedFd::from(stream)), &peer),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => {
                    shared.complaints.say("monitors not accepted", "", || {
                        tracing::warn!("cannot accept a monitor: {error}");
                    });
                    return true;
                }
            },
        }
    }
    false
}

fn serve(shared: &DeviceShared, stream: UnixStream, peer: &str) {
    tracing::info!(%peer, "a monitor connected");
    let begun = stream.set_nonblocking(false).and_then(|()| shared.begin(&stream, peer));
    match begun {
        Ok(true) => {
            let mut session = Session::new(shared, &stream);
            let result = session.run();
            session.end();
            match result {
                Ok(()) => tracing::info!(%peer, "a monitor disconnected"),
                Err(error) => shared.complaints.say("monitors disconnected", peer, || {
                    tracing::warn!(%peer, "disconnected a monitor: {error}");
                }),
            }
        }
        Ok(false) => {}
        Err(error) => shared.complaints.say("monitors not served", peer, || {
            tracing::warn!(%peer, "cannot serve a monitor: {error}");
        }),
    }
    shared.lock().connection = None;
}
