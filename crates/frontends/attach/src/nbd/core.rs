//! A core of the NBD server: one thread with one event loop, some of the server's connections, and
//! one queue into the namespace.
//!
//! A tick (one round of the event loop) first handles events of connections, then block operations,
//! completions and answers. It handles each kind as a batch. At its end, each connection with
//! output does one send.

use super::connection::{Connection, Slot, token_owner};
use super::limits;
use super::negotiate::Export;
use super::shared::{ExportShared, Message};
use super::succession::{Admission, Waiting};
use farblock_block::{Completion, Op, Queue};
use farblock_frontend::writes::{Arbiter, Gate, Order, Report};
use farblock_frontend::{ConnectionKey, Connections, Core, Line, Seat, TickContext, Turns};
use farblock_reactor::{Reactor, TaskId};
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Identifies a request on a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket {
    pub(super) connection: ConnectionKey,
    pub(super) slot: Slot,
}

/// The part of the core's state that its connections use.
pub(super) struct Context {
    // Drop the queue before the reactor: the queue may be registered with the reactor, and
    // deregisters itself when dropped.
    queue: Box<dyn Queue>,
    pub(super) reactor: Reactor,
    pub(super) export: Export,
    pub(super) gate: Gate<Ticket>,
    /// The time at the start of the tick, used for the whole tick.
    pub(super) now: Instant,
    /// The size of the buffers that this core's requests hold, in bytes.
    pub(super) held_bytes: usize,
    index: usize,
    shared: Arc<ExportShared>,
    /// True if operations may have completed since the core last polled the queue.
    dirty: bool,
    /// True once the current merge has completed. A merge reads, changes and writes back partial
    /// blocks.
    merged: bool,
    pub(super) turns: Turns,
    /// The connections with requests that wait for buffers.
    starved: Vec<ConnectionKey>,
    /// True if requests have returned buffers in this tick.
    released: bool,
}

impl Context {
    /// Logs a warning about a client. If there were too many warnings of this kind, only counts it.
    pub(super) fn complain(&self, kind: &'static str, peer: &str, log: impl FnOnce()) {
        self.shared.complaints.say(kind, peer, log);
    }

    /// Submits an operation to the namespace.
    pub(super) fn submit(&mut self, op: Op) {
        self.queue.submit(op);
        self.dirty = true;
    }

    /// Withdraws the operations of a disconnected client that the namespace has not started.
    pub(super) fn abandon(&mut self, key: ConnectionKey) {
        self.queue.abandon(&mut |token| token_owner(token).0 == key);
        self.dirty = true;
    }

    /// Asks all cores to admit a client: each core agrees once its disconnected clients have no
    /// more operations (see [`succession`](super::succession)). Returns the pending admission.
    pub(super) fn ask_admission(&self, key: ConnectionKey) -> Arc<Admission> {
        let admission = Arc::new(Admission::new(self.index, key, self.shared.cores()));
        self.shared.post_all(|| Message::Ask(Arc::downgrade(&admission)));
        admission
    }

    /// Subtracts this many bytes from the buffers that the core's requests hold.
    pub(super) fn release_bytes(&mut self, bytes: usize) {
        self.held_bytes -= bytes;
        self.released = true;
    }

    /// Puts a connection on the list of connections that the core wakes when buffers are returned.
    /// `starving` is the connection's flag: true while the connection is on the list.
    pub(super) fn starve(&mut self, key: ConnectionKey, starving: &mut bool) {
        if !std::mem::replace(starving, true) {
            self.starved.push(key);
        }
    }

    /// Queues a request that writes partial blocks. The request runs once the arbiter, which lets
    /// only one core merge at a time, grants this core its turn (see
    /// [`writes`](farblock_frontend::writes)).
    pub(super) fn merge(&mut self, ticket: Ticket) {
        let report = self.gate.enter_merge(ticket);
        self.report(report);
    }

    /// Records that the request of the current merge has completed.
    pub(super) fn merged(&mut self) {
        self.merged = true;
    }

    /// Records that a request that wrote whole blocks has completed.
    pub(super) fn written(&mut self) {
        let report = self.gate.leave();
        self.report(report);
    }

    /// Sends a report of this core's gate (which holds back its writes) to the arbiter, which is on
    /// the first core.
    fn report(&mut self, report: Option<Report>) {
        if let Some(report) = report {
            self.shared.post(0, Message::Report(self.index, report));
        }
    }
}

impl TickContext for Context {
    fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }

    fn reactor(&self) -> &Reactor {
        &self.reactor
    }
}

/// The clients of one core.
pub(super) struct Clients {
    cx: Context,
    mail: TaskId,
    queue_task: TaskId,
    arbiter: Option<Arbiter>,
    /// The new clients that this core has not admitted yet.
    waiting: Waiting,
    connections: Connections<Connection>,
    stopping: bool,
}

impl Clients {
    /// Makes the state of the calling thread's core.
    pub(super) fn new(seat: Seat, shared: Arc<ExportShared>) -> Clients {
        let Seat { index, count, queue, queue_task, reactor, mail } = seat;
        let cx = Context {
            queue,
            reactor,
            export: shared.export(),
            gate: Gate::new(),
            now: Instant::now(),
            held_bytes: 0,
            index,
            shared,
            dirty: false,
            merged: false,
            turns: Turns::default(),
            starved: Vec::new(),
            released: false,
        };
        Clients {
            cx,
            mail,
            queue_task,
            arbiter: (index == 0).then(|| Arbiter::new(count)),
            waiting: Waiting::default(),
            connections: Connections::default(),
            stopping: false,
        }
    }

    /// Handles completions of the namespace, and sends answers to clients. Returns true if more
    /// work is ready.
    fn settle(&mut self, done: &mut Vec<Completion>) -> bool {
        for _ in 0..limits::ROUNDS_PER_TICK {
            if std::mem::take(&mut self.cx.dirty) {
                self.cx.queue.poll(done);
            }
            for completion in done.drain(..) {
                let (key, slot, piece) = token_owner(completion.token);
                let owner = self.connections.alive(key);
                owner.complete(&mut self.cx, (slot, piece), completion);
            }
            if std::mem::take(&mut self.cx.merged) {
                self.merge();
            }
            if std::mem::take(&mut self.cx.released) {
                self.wake_starved();
            }
            if self.cx.turns.is_empty() && !self.cx.dirty {
                return false;
            }
            let round = self.cx.turns.begin_round();
            for &key in &round {
                self.finish_tick(key);
            }
            self.cx.turns.end_round(round);
        }
        true
    }

    /// Wakes the connections that wait for buffers, after some buffers were returned.
    fn wake_starved(&mut self) {
        while let Some(key) = self.cx.starved.pop() {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.starving = false;
                self.cx.turns.list(key);
            }
        }
    }

    fn finish_tick(&mut self, key: ConnectionKey) {
        let is_gone = self.connections.finish_tick(key, &mut self.cx);
        if is_gone {
            self.cx.shared.disconnected();
        }
        if !self.waiting.is_empty()
            && (is_gone || self.connections.get(key).is_some_and(Connection::is_spent))
        {
            self.waiting.spent(key, &self.cx.shared);
        }
    }

    fn read_messages(&mut self) {
        let shared = Arc::clone(&self.cx.shared);
        for message in shared.take_messages(self.cx.index) {
            match message {
                Message::Adopt(stream, peer) => self.adopt(stream, peer),
                Message::Resized => self.cx.export = shared.export(),
                Message::Look => {}
                Message::Ask(admission) => self.admit(admission),
                Message::Admitted(key) => {
                    // A newer client may have the same number by now. Handling its connection
                    // without need is harmless.
                    if self.connections.get(key).is_some() {
                        self.cx.turns.list(key);
                    }
                }
                Message::Order(order) => self.obey(order),
                Message::Report(core, report) => {
                    let arbiter = self.arbiter.as_mut().expect("reports go to the first core");
                    arbiter.handle(core, report, |core, order| {
                        shared.post(core, Message::Order(order));
                    });
                }
                Message::Stop => {
                    self.stopping = true;
                    for (_, connection) in self.connections.iter_mut() {
                        connection.drain(&mut self.cx);
                    }
                }
            }
        }
    }

    /// Lets a new client start only when the operations of disconnected clients have completed.
    /// Operations of connected clients do not delay it.
    fn admit(&mut self, admission: Weak<Admission>) {
        let mut leaving = Vec::new();
        for (key, connection) in self.connections.iter_mut() {
            connection.close_if_left(&mut self.cx);
            if connection.is_leaving() {
                leaving.push(key);
            }
        }
        self.waiting.ask(admission, leaving, &self.cx.shared);
    }

    fn obey(&mut self, order: Order) {
        let report = self.cx.gate.obey(order);
        self.cx.report(report);
        match order {
            Order::Close => {}
            Order::Grant => self.merge(),
            Order::Open => {
                while let Some(ticket) = self.cx.gate.next_parked() {
                    self.submit(ticket);
                }
            }
        }
    }

    /// Executes waiting merges (see [`writes`](farblock_frontend::writes)), one after the other.
    /// After the last merge, allows other writes again.
    fn merge(&mut self) {
        loop {
            match self.cx.gate.next_merge() {
                Ok(ticket) => self.submit(ticket),
                Err(report) => {
                    self.cx.report(Some(report));
                    let more = self.cx.gate.wants_more();
                    self.cx.report(more);
                    return;
                }
            }
            // A merge whose client has disconnected completes at once: continue with the next.
            if !std::mem::take(&mut self.cx.merged) {
                return;
            }
        }
    }

    fn submit(&mut self, ticket: Ticket) {
        let connection = self.connections.alive(ticket.connection);
        connection.submit(&mut self.cx, ticket.slot);
        self.cx.turns.list(ticket.connection);
    }

    /// Adds an accepted socket to this core's connections.
    fn adopt(&mut self, stream: TcpStream, peer: Arc<str>) {
        if self.stopping {
            self.cx.shared.disconnected();
            return;
        }
        let task = self.cx.reactor.add_task();
        let line = Line::of(&stream);
        let stream = match self.cx.reactor.add_stream(task, stream) {
            Ok(stream) => stream,
            Err(error) => {
                self.cx.complain("NBD clients not served", &peer, || {
                    tracing::warn!(%peer, "cannot serve an NBD client: {error}");
                });
                self.cx.reactor.remove_task(task);
                self.cx.shared.disconnected();
                return;
            }
        };
        self.connections
            .insert(task, |key| Connection::start(&mut self.cx, key, (task, stream, line), peer));
    }
}

impl Core for Clients {
    /// Runs until the server stops and no core has connections any more. This core stays until the
    /// last connection of any core has closed, because a merge on another core needs this core's
    /// reports.
    fn run(mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        let mut events = Vec::new();
        let mut done = Vec::new();
        let mut more = false;
        while !(self.stopping && self.cx.shared.is_over()) {
            let timeout = more.then_some(Duration::ZERO);
            self.cx.reactor.poll(timeout, &mut ready)?;
            self.cx.now = Instant::now();
            for task in ready.drain(..) {
                if task == self.mail {
                    self.read_messages();
                } else if task == self.queue_task {
                    self.cx.dirty = true;
                } else if let Some(key) = self.connections.of_task(task) {
                    self.cx.reactor.take_events(task, &mut events);
                    for event in events.drain(..) {
                        self.connections.alive(key).handle(&mut self.cx, event);
                    }
                }
            }
            more = self.settle(&mut done);
        }
        Ok(())
    }
}
