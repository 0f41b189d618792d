//! Starts and joins a server's threads. Each thread has an event loop and a queue into the
//! namespace. If one thread fails to start, none runs.
//!
//! ```text
//! each thread:  makes reactor, queue, core ──> reports ready ──gate──> runs ──> exits
//! starter:      waits for each thread ── all ready: passes on their wakers, opens the gate
//!                                     └─ one failed: cancels at the gate, all exit, none runs
//! ```

use farblock_block::{BlockError, Namespace, Queue};
use farblock_reactor::{Config, EngineKind, Reactor, TaskId, Waker};
use std::fmt;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

/// The configuration of a server's threads.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The prefix of the thread names, before the thread's number. CPU accounting groups threads by
    /// this prefix.
    pub prefix: &'static str,
    /// The number of threads.
    pub count: usize,
    /// The configuration of each thread's event loop.
    pub reactor: Config,
    /// A function that each thread calls before anything else.
    pub begin: fn(),
}

/// The resources that [`Cores::start`] gives each thread.
pub struct Seat {
    /// The thread's number, from 0.
    pub index: usize,
    /// The number of threads.
    pub count: usize,
    /// The queue into the namespace. Drop the queue before the reactor: dropping the queue may use
    /// the reactor.
    pub queue: Box<dyn Queue>,
    /// The task that the queue wakes when operations may have completed.
    pub queue_task: TaskId,
    /// The thread's event loop.
    pub reactor: Reactor,
    /// The task that other threads wake after they have sent this thread a message.
    pub mail: TaskId,
}

/// The reason why the threads did not start.
#[derive(Debug)]
pub enum StartError {
    /// Opening the namespace failed.
    Open(BlockError),
    /// The event loop did not start.
    Reactor(EngineKind, io::Error),
    /// The system refused to create a thread or one of its resources.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Open(error) => write!(f, "cannot open the namespace: {error}"),
            StartError::Reactor(engine, error) => {
                write!(f, "cannot start the {engine} event loop: {error}")
            }
            StartError::System(error) => write!(f, "cannot start the server: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A thread of a server: its state and its main loop. The thread makes its core from its [`Seat`].
pub trait Core: Sized {
    /// Runs until the server stops it.
    ///
    /// # Errors
    /// Fails if the event loop fails.
    fn run(self) -> io::Result<()>;
}

/// A server's running threads. The caller must stop them before it joins them.
pub struct Cores {
    threads: Vec<JoinHandle<io::Result<()>>>,
    engine: EngineKind,
}

impl Cores {
    /// Starts all threads. Each thread makes its core with `make`. When all cores exist, this
    /// function calls `ready` with the wakers of all threads, and then the cores run. If a thread
    /// fails later, it calls `failed` with its number.
    ///
    /// # Errors
    /// Fails if the namespace cannot be opened, or an event loop or a thread cannot be started. No
    /// thread then remains.
    pub fn start<C: Core>(
        plan: &Plan,
        namespace: &Arc<dyn Namespace>,
        make: impl Fn(Seat) -> io::Result<C> + Send + Sync + 'static,
        ready: impl FnOnce(Vec<Waker>),
        failed: impl Fn(usize) + Send + Sync + 'static,
    ) -> Result<Cores, StartError> {
        let gate = Arc::new(OnceLock::new());
        let (make, failed) = (Arc::new(make), Arc::new(failed));
        let mut cores = Cores { threads: Vec::new(), engine: plan.reactor.engine };
        let mut wakers = Vec::new();
        for index in 0..plan.count {
            let (sender, receiver) = mpsc::channel();
            let start = Start {
                index,
                plan: plan.clone(),
                namespace: Arc::clone(namespace),
                gate: Arc::clone(&gate),
                sender,
            };
            let (make, failed) = (Arc::clone(&make), Arc::clone(&failed));
            let name = format!("{}{index}", plan.prefix);
            let spawned = thread::Builder::new()
                .name(name)
                .spawn(move || start.run(make, failed))
                .map_err(StartError::System);
            let died = |_| StartError::System(io::Error::other("a thread exited during the start"));
            let started = spawned.and_then(|thread| {
                cores.threads.push(thread);
                receiver.recv().map_err(died)?
            });
            match started {
                Ok((waker, engine)) => {
                    wakers.push(waker);
                    cores.engine = engine;
                }
                Err(error) => {
                    let _ = gate.set(false);
                    cores.threads.into_iter().for_each(|thread| drop(thread.join()));
                    return Err(error);
                }
            }
        }
        ready(wakers);
        gate.set(true).expect("only this line opens the gate");
        Ok(cores)
    }

    /// The kind of event loop that the threads use.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.engine
    }

    /// True if no thread is left to join.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// True if there are threads and all of them are running.
    #[must_use]
    pub fn are_all_running(&self) -> bool {
        !self.threads.is_empty() && self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Waits for all threads.
    ///
    /// # Errors
    /// Returns the first error that an event loop returned.
    ///
    /// # Panics
    /// Panics if a thread panicked.
    pub fn join(&mut self) -> io::Result<()> {
        self.threads
            .drain(..)
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .fold(Ok(()), io::Result::and)
    }
}

/// The start parameters of a thread.
struct Start {
    index: usize,
    plan: Plan,
    namespace: Arc<dyn Namespace>,
    /// Set once all threads have started (`true`: run the core) or one has failed (`false`: exit).
    gate: Arc<OnceLock<bool>>,
    sender: Sender<Result<(Waker, EngineKind), StartError>>,
}

impl Start {
    fn run<C: Core, F: Fn(usize)>(
        self,
        make: Arc<impl Fn(Seat) -> io::Result<C>>,
        failed: Arc<F>,
    ) -> io::Result<()> {
        (self.plan.begin)();
        let made = self.seat().and_then(|seat| {
            let ready = (seat.reactor.waker(seat.mail), seat.reactor.engine());
            Ok((make(seat).map_err(StartError::System)?, ready))
        });
        drop(make);
        let (core, ready) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = self.sender.send(Err(error));
                return Ok(());
            }
        };
        let _ = self.sender.send(Ok(ready));
        if !self.gate.wait() {
            return Ok(());
        }
        let mut guard = TellsOfFailure(Some(failed), self.index);
        let result = core.run();
        if result.is_ok() {
            guard.0 = None;
        }
        result
    }

    fn seat(&self) -> Result<Seat, StartError> {
        let config = &self.plan.reactor;
        let failed = |error| StartError::Reactor(config.engine, error);
        let reactor = Reactor::new(config).map_err(failed)?;
        let queue_task = reactor.add_task();
        let queue = self.namespace.open(&reactor, queue_task).map_err(StartError::Open)?;
        let mail = reactor.add_task();
        Ok(Seat { index: self.index, count: self.plan.count, queue, queue_task, reactor, mail })
    }
}

/// A guard that calls the function with the thread's number when dropped, even by a panic, unless
/// it was disarmed.
struct TellsOfFailure<F: Fn(usize)>(Option<Arc<F>>, usize);

impl<F: Fn(usize)> Drop for TellsOfFailure<F> {
    fn drop(&mut self) {
        if let Some(failed) = &self.0 {
            failed(self.1);
        }
    }
}
