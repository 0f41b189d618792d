//! Starting and stopping a server, and the thread that talks to monitors.

use super::blk::ID_BYTES;
use super::device::Device;
use super::limits;
use super::session::Session;
use super::wire;
use super::worker::{Mailbox, Order, Parts, Worker};
use crate::nbd::address::{self, Address, ListenError, Listener};
use farblock_block::{BlockError, Namespace};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Reactor};
use mio::{Events, Interest, Poll, Token};
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The start of the name of every thread of a server; what CPU accounting goes by.
pub const THREAD_NAME_PREFIX: &str = "vhost-";

/// Rings of a server that is not told how many.
const MAX_DEFAULT_QUEUES: usize = 4;
/// How long accepting rests after an error, for example when there are no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often who waits for a worker looks whether the server is to stop.
const WAIT_STEP: Duration = Duration::from_millis(100);
const MONITORS: Token = Token(0);
const STOP: Token = Token(1);

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen. A socket that nobody listens to any more is replaced.
    pub socket: PathBuf,
    /// Rings that a guest may use, each with a thread and a queue into the namespace. 0: as many
    /// as there are processors, but at most four.
    pub queues: usize,
    /// Which event loop.
    pub engine: EngineKind,
    /// The disk's serial number: at most 20 bytes of ASCII. Linux shows it in
    /// `/sys/block/vda/serial`.
    pub serial: String,
    /// Refuse writes, even if the namespace would take them.
    pub read_only: bool,
}

impl Config {
    /// The usual: nameless, as writable as the namespace.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Config {
        let (engine, serial) = (EngineKind::Auto, String::new());
        Config { socket: socket.into(), queues: 0, engine, serial, read_only: false }
    }
}

/// Why a server did not start. Shown, it says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// Nobody can be listened to.
    Listen(ListenError),
    /// The serial number is longer than the protocol takes, or no plain text.
    Serial(String),
    /// More rings than there can be.
    Queues(usize),
    /// The namespace cannot be used.
    Open(BlockError),
    /// The event loop does not start.
    Reactor(EngineKind, io::Error),
    /// A thread, or something it needs, is not to be had.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen(error) => error.fmt(f),
            StartError::Serial(serial) => write!(
                f,
                "a disk's serial number is at most {ID_BYTES} characters of plain ASCII: \
                 change {serial:?}"
            ),
            StartError::Queues(queues) => {
                let most = limits::MAX_QUEUES;
                write!(f, "{queues} queues are too many: take at most {most}")
            }
            StartError::Open(error) => write!(f, "cannot open the namespace: {error}"),
            StartError::Reactor(engine, error) => {
                write!(f, "the {engine} event loop does not start: {error}")
            }
            StartError::System(error) => write!(f, "cannot start to serve vhost-user: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// What the threads of a server share.
pub(super) struct Shared {
    pub(super) device: Arc<Device>,
    mailboxes: OnceLock<Vec<Mailbox>>,
    state: Mutex<State>,
}

/// The monitor at the moment.
#[derive(Default)]
struct State {
    /// Its connection, so that it can be ended from elsewhere.
    connection: Option<UnixStream>,
    /// Who it is.
    peer: String,
    /// Where it wants to hear from us.
    channel: Option<UnixStream>,
    /// The server is to stop, and no wait may be longer than this.
    give_up: Option<Instant>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn post(&self, queue: usize, order: Order) {
        self.mailboxes.get().expect("set before anybody connects")[queue].post(order);
    }

    fn post_all(&self, order: impl Fn() -> Order) {
        self.mailboxes.get().into_iter().flatten().for_each(|mailbox| mailbox.post(order()));
    }

    pub(super) fn set_channel(&self, channel: Option<UnixStream>) {
        self.lock().channel = channel;
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.lock().give_up.is_some()
    }

    /// A worker's answer. However long the namespace takes: what is under way cannot be taken
    /// back. Only a server that stops does not wait for ever.
    pub(super) fn wait_for<T>(&self, answer: &Receiver<T>) -> Result<T, String> {
        loop {
            match answer.recv_timeout(WAIT_STEP) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err("a thread has ended".to_owned()),
                Err(RecvTimeoutError::Timeout) => {
                    if self.lock().give_up.is_some_and(|at| at <= Instant::now()) {
                        return Err("requests under way were given up".to_owned());
                    }
                }
            }
        }
    }

    /// Makes this the monitor at the moment; false if there is to be none any more.
    fn begin(&self, stream: &UnixStream, peer: &str) -> io::Result<bool> {
        let copy = stream.try_clone()?;
        let mut state = self.lock();
        state.connection = Some(copy);
        peer.clone_into(&mut state.peer);
        Ok(state.give_up.is_none())
    }
}

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    control: Option<(mio::Waker, JoinHandle<()>)>,
    engine: EngineKind,
    socket: PathBuf,
}

impl Server {
    /// Opens the namespace, listens and serves.
    ///
    /// # Errors
    /// Nothing runs then.
    pub fn start(config: &Config, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        let serial = &config.serial;
        if serial.len() > ID_BYTES || !serial.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(StartError::Serial(serial.clone()));
        }
        let queues = match config.queues {
            0 => thread::available_parallelism().map_or(1, usize::from).min(MAX_DEFAULT_QUEUES),
            queues if queues > limits::MAX_QUEUES => return Err(StartError::Queues(queues)),
            queues => queues,
        };
        let listener =
            address::bind(&Address::Unix(config.socket.clone())).map_err(StartError::Listen)?;
        let device = Arc::new(Device::new(namespace, queues, serial, config.read_only));
        let shared =
            Arc::new(Shared { device, mailboxes: OnceLock::new(), state: Mutex::default() });
        let mut server = Server {
            shared: Arc::clone(&shared),
            workers: Vec::new(),
            control: None,
            engine: config.engine,
            socket: config.socket.clone(),
        };
        // If one of them fails, dropping the server ends the others.
        let mut mailboxes = Vec::new();
        for index in 0..queues {
            let (thread, mailbox, engine) = start_worker(index, config.engine, &shared.device)?;
            server.workers.push(thread);
            mailboxes.push(mailbox);
            server.engine = engine;
        }
        assert!(shared.mailboxes.set(mailboxes).is_ok(), "the mailboxes are set once");
        server.control = Some(start_control(listener, shared).map_err(StartError::System)?);
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The event loop that was chosen.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.engine
    }

    /// Whether a monitor is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.lock().connection.is_some()
    }

    /// Who the monitor is, if one is connected.
    #[must_use]
    pub fn monitor(&self) -> Option<String> {
        let state = self.shared.lock();
        state.connection.is_some().then(|| state.peer.clone())
    }

    /// The namespace has another size now. Requests are held against it at once, and the guest is
    /// told; one that connects later sees it anyway.
    pub fn resized(&self) {
        self.shared.post_all(|| Order::Resized);
        let channel = {
            let state = self.shared.lock();
            state.channel.as_ref().and_then(|channel| channel.try_clone().ok())
        };
        // Without the lock: the monitor may ask for the configuration before it takes this.
        if let Some(channel) = channel
            && let Err(error) = wire::notify_config_change(&channel)
        {
            tracing::warn!("a monitor cannot be told of the disk's new size: {error}");
        }
    }

    /// Stops: requests that were taken are finished and answered, the monitor is disconnected,
    /// threads end, the socket goes away. A monitor that reconnects finds a successor, if there is
    /// one.
    ///
    /// # Errors
    /// If an event loop had failed.
    pub fn stop(mut self) -> io::Result<()> {
        self.stop_threads()
    }

    fn stop_threads(&mut self) -> io::Result<()> {
        {
            let mut state = self.shared.lock();
            state.give_up.get_or_insert(Instant::now() + limits::DRAIN_TIMEOUT);
            if let Some(connection) = &state.connection {
                // Only what it says: answers still go out.
                let _ = connection.shutdown(Shutdown::Read);
            }
        }
        if let Some((waker, control)) = self.control.take() {
            let _ = waker.wake();
            join(control);
        }
        self.shared.post_all(|| Order::Stop);
        self.workers.drain(..).map(join).fold(Ok(()), io::Result::and)
    }
}

fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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

type Ready = Result<(farblock_reactor::Waker, EngineKind), StartError>;
type Started = (JoinHandle<io::Result<()>>, Mailbox, EngineKind);

fn start_worker(
    index: usize,
    engine: EngineKind,
    device: &Arc<Device>,
) -> Result<Started, StartError> {
    let (ready, is_ready) = mpsc::channel::<Ready>();
    let (sender, orders) = mpsc::channel();
    let device = Arc::clone(device);
    let run = move || {
        let config = ReactorConfig { engine, ..ReactorConfig::default() };
        let made = Reactor::new(&config).map_err(|error| StartError::Reactor(engine, error));
        let made = made.and_then(|reactor| {
            let queue_task = reactor.add_task();
            let queue = device.namespace().open(&reactor, queue_task);
            Ok((queue.map_err(StartError::Open)?, queue_task, reactor))
        });
        let (queue, queue_task, reactor) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = ready.send(Err(error));
                return Ok(());
            }
        };
        let mail = reactor.add_task();
        let _ = ready.send(Ok((reactor.waker(mail), reactor.engine())));
        Worker::new(Parts { reactor, mail, queue, queue_task, device, orders }).run()
    };
    let name = format!("{THREAD_NAME_PREFIX}{index}");
    let thread = thread::Builder::new().name(name).spawn(run).map_err(StartError::System)?;
    let died = |_| StartError::System(io::Error::other("a thread ended at once"));
    let (waker, engine) = is_ready.recv().map_err(died)??;
    Ok((thread, Mailbox::new(sender, waker), engine))
}

fn start_control(
    mut listener: Listener,
    shared: Arc<Shared>,
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
                tracing::error!("no more monitors are accepted: {error}");
                return;
            }
            timeout = accept_all(&listener, &shared).then_some(ACCEPT_PAUSE);
        }
    })?;
    Ok((waker, thread))
}

/// Serves everybody who waits, one after the other. True if that is to be tried again after a
/// pause.
fn accept_all(listener: &Listener, shared: &Shared) -> bool {
    while !shared.is_stopping() {
        match listener.socket.accept() {
            Ok((stream, peer)) => serve(shared, UnixStream::from(OwnedFd::from(stream)), &peer),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => {
                    tracing::warn!("cannot accept a monitor: {error}");
                    return true;
                }
            },
        }
    }
    false
}

fn serve(shared: &Shared, stream: UnixStream, peer: &str) {
    tracing::info!(%peer, "a monitor has connected");
    let begun = stream.set_nonblocking(false).and_then(|()| shared.begin(&stream, peer));
    match begun {
        Ok(true) => {
            let mut session = Session::new(shared, &stream);
            let result = session.run();
            session.end();
            match result {
                Ok(()) => tracing::info!(%peer, "a monitor has disconnected"),
                Err(error) => tracing::warn!(%peer, "a monitor is disconnected: {error}"),
            }
        }
        Ok(false) => {}
        Err(error) => tracing::warn!(%peer, "cannot serve a monitor: {error}"),
    }
    shared.lock().connection = None;
}
