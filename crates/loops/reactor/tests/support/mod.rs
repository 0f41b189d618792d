//! Helpers of the integration tests: an event loop with one task, and connected sockets.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use farblock_reactor::os::{self, Socket};
use farblock_reactor::sim::World;
use farblock_reactor::{Config, EngineKind, Event, Polling, Reactor, StreamId, TaskId};

/// For each function that takes a [`Loop`], defines one test per engine. A third test uses an
/// io_uring engine that never sleeps, and so calls the sockets directly.
#[macro_export]
macro_rules! on_both_engines {
    ($($name:ident)*) => {
        mod uring {
            $(#[test] fn $name() {
                if let Some(event_loop) = $crate::support::Loop::uring() {
                    super::$name(event_loop);
                }
            })*
        }
        mod uring_looking {
            $(#[test] fn $name() {
                if let Some(event_loop) = $crate::support::Loop::uring_looking() {
                    super::$name(event_loop);
                }
            })*
        }
        mod portable {
            $(#[test] fn $name() { super::$name($crate::support::Loop::portable()); })*
        }
    };
}

/// For each function, defines a test on the simulated engine. The functions must not use the
/// system's threads and sockets.
#[macro_export]
macro_rules! on_the_simulated_engine {
    ($($name:ident)*) => {
        mod sim {
            $(#[test] fn $name() {
                for seed in 0..$crate::support::SIMULATED_SEEDS {
                    super::$name($crate::support::Loop::sim(seed));
                }
            })*
        }
    };
}

/// The number of simulated worlds (seeds) with which each test runs.
pub const SIMULATED_SEEDS: u64 = 5;

/// The time limit of waits. It is long enough for a busy machine.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

pub struct Loop {
    pub reactor: Reactor,
    pub task: TaskId,
    pending: std::collections::VecDeque<Event>,
    ready: Vec<TaskId>,
    events: Vec<Event>,
    /// Declared after the reactor, so that it is dropped later.
    world: Option<World>,
}

impl Loop {
    /// Creates a loop on io_uring. `None` if the system does not support it; panics instead if
    /// `FARBLOCK_NEED_URING` is set.
    pub fn uring() -> Option<Loop> {
        Loop::uring_if_there(Polling::default())
    }

    /// Like [`Loop::uring`], but the loop never sleeps.
    pub fn uring_looking() -> Option<Loop> {
        Loop::uring_if_there(Polling::Always)
    }

    /// Like [`Loop::uring`], but the loop busy-polls while there is work.
    pub fn uring_busy() -> Option<Loop> {
        Loop::uring_if_there("latency".parse().unwrap())
    }

    fn uring_if_there(polling: Polling) -> Option<Loop> {
        match Reactor::new(&Config { engine: EngineKind::Uring, polling, ..Config::default() }) {
            Ok(reactor) => Some(Loop::new(reactor)),
            Err(error) if std::env::var_os("FARBLOCK_NEED_URING").is_none() => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub fn portable() -> Loop {
        let config = Config { engine: EngineKind::Portable, ..Config::default() };
        Loop::new(Reactor::new(&config).unwrap())
    }

    pub fn sim(seed: u64) -> Loop {
        let world = World::enter(seed);
        let config = Config { engine: EngineKind::Sim, ..Config::default() };
        Loop { world: Some(world), ..Loop::new(Reactor::new(&config).unwrap()) }
    }

    fn new(reactor: Reactor) -> Loop {
        let task = reactor.add_task();
        let pending = std::collections::VecDeque::new();
        Loop { reactor, task, pending, ready: Vec::new(), events: Vec::new(), world: None }
    }

    /// Returns this loop's simulated world, if it has one.
    pub fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    /// Polls until the task's mailbox has an event. Returns this event.
    pub fn next(&mut self) -> Event {
        let deadline = os::now() + WAIT_LIMIT;
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            assert!(os::now() < deadline, "no event within the limit");
            self.poll(Some(Duration::from_secs(1)));
        }
    }

    /// Returns the next event; `None` if no event arrives within `timeout`.
    pub fn next_within(&mut self, timeout: Duration) -> Option<Event> {
        let deadline = os::now() + timeout;
        while self.pending.is_empty() && os::now() < deadline {
            self.poll(Some(deadline.saturating_duration_since(os::now())));
        }
        self.pending.pop_front()
    }

    /// Polls once. Then [`Loop::next`] returns the events.
    pub fn poll(&mut self, timeout: Option<Duration>) -> &[TaskId] {
        self.reactor.poll(timeout, &mut self.ready).unwrap();
        self.reactor.take_events(self.task, &mut self.events);
        self.pending.extend(self.events.drain(..));
        &self.ready
    }

    /// Creates both ends of a connection as streams of the loop's task.
    pub fn stream_pair(&self) -> (StreamId, StreamId) {
        let (a, b) = socket_pair();
        let add = |socket| self.reactor.add_stream(self.task, socket).unwrap();
        (add(a), add(b))
    }

    /// Creates a connection: one end is a stream of the loop's task, the other end a blocking
    /// socket.
    pub fn stream_and_socket(&self) -> (StreamId, Socket) {
        let (a, b) = socket_pair();
        (self.reactor.add_stream(self.task, a).unwrap(), b)
    }
}

pub fn local_listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// Creates both ends of a connection, in the calling thread's simulated world if it has one.
pub fn socket_pair() -> (Socket, Socket) {
    if os::is_simulated() {
        return Socket::simulated_pair();
    }
    let (a, b) = tcp_pair();
    (a.into(), b.into())
}

pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = local_listener();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    (a, b)
}
