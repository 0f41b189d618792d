//! What the integration tests share: a loop that is easy to drive, and connected sockets.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use farblock_reactor::{Config, EngineKind, Event, Polling, Reactor, StreamId, TaskId};

/// Makes one test per engine out of each function that takes a [`Loop`], and one for an io_uring
/// that never sleeps: its streams go another way.
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

/// Long enough for a machine that is busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Loop {
    pub reactor: Reactor,
    pub task: TaskId,
    pending: std::collections::VecDeque<Event>,
    ready: Vec<TaskId>,
    events: Vec<Event>,
}

impl Loop {
    /// None where the system has no io_uring, unless `FARBLOCK_NEED_URING` says that it must.
    pub fn uring() -> Option<Loop> {
        Loop::uring_if_there(Polling::default())
    }

    /// The same, and it never sleeps.
    pub fn uring_looking() -> Option<Loop> {
        Loop::uring_if_there(Polling::Always)
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

    fn new(reactor: Reactor) -> Loop {
        let task = reactor.add_task();
        let pending = std::collections::VecDeque::new();
        Loop { reactor, task, pending, ready: Vec::new(), events: Vec::new() }
    }

    /// Polls until the task's mailbox has something; the next event.
    pub fn next(&mut self) -> Event {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            assert!(Instant::now() < deadline, "nothing happens");
            self.poll(Some(Duration::from_secs(1)));
        }
    }

    /// The next event, if one comes in a moment.
    pub fn next_within(&mut self, timeout: Duration) -> Option<Event> {
        let deadline = Instant::now() + timeout;
        while self.pending.is_empty() && Instant::now() < deadline {
            self.poll(Some(deadline.saturating_duration_since(Instant::now())));
        }
        self.pending.pop_front()
    }

    /// One poll; events of the task go to `next`.
    pub fn poll(&mut self, timeout: Option<Duration>) -> &[TaskId] {
        self.reactor.poll(timeout, &mut self.ready).unwrap();
        self.reactor.take_events(self.task, &mut self.events);
        self.pending.extend(self.events.drain(..));
        &self.ready
    }

    /// Both ends of a connection as streams of the loop's task.
    pub fn stream_pair(&self) -> (StreamId, StreamId) {
        let (a, b) = socket_pair();
        let add = |socket| self.reactor.add_stream(self.task, socket).unwrap();
        (add(a), add(b))
    }

    /// One end as a stream of the loop's task, the other as a blocking socket.
    pub fn stream_and_socket(&self) -> (StreamId, TcpStream) {
        let (a, b) = socket_pair();
        (self.reactor.add_stream(self.task, a).unwrap(), b)
    }
}

pub fn local_listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

pub fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = local_listener();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    (a, b)
}

/// Reproducible numbers; the seed is printed with every failure because tests name it.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % bound as u64) as usize
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.below(256) as u8);
    }
}
