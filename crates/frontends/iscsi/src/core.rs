//! The target's only thread. It owns the event loop, the sessions, the logical unit that they
//! share, and the queue into the namespace. So a session can affect another session (by a reset or
//! a reservation, or by replacing it) without a lock.
//!
//! A tick (one round of the event loop) first handles events of connections, then block operations,
//! completions and answers. It handles each kind as a batch. At its end, each connection with
//! output does one send.

use crate::alone::Alone;
use crate::connection::{Connection, token_owner};
use crate::context::{Abort, Action, Barrier, Context, Management};
use crate::limits;
use crate::scsi::Sense;
use crate::shared::{Message, PortalShared};
use farblock_block::{BlockError, Completion};
use farblock_frontend::{Complaints, ConnectionKey, Connections, Core, Line, Seat, Turns};
use farblock_reactor::os::Socket;
use farblock_reactor::{Event, ListenerId, TaskId};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct Sessions {
    cx: Context,
    mail: TaskId,
    queue_task: TaskId,
    listen_task: TaskId,
    listener: Option<ListenerId>,
    shared: Arc<PortalShared>,
    connections: Connections<Connection>,
}

impl Sessions {
    /// Makes the state of the calling thread's core.
    pub(crate) fn new(
        seat: Seat,
        shared: Arc<PortalShared>,
        listener: TcpListener,
    ) -> io::Result<Sessions> {
        let Seat { queue, queue_task, reactor, mail, .. } = seat;
        let listen_task = reactor.add_task();
        let listener = reactor.listen(listen_task, listener)?;
        let cx = Context {
            queue,
            reactor,
            unit: shared.unit(),
            now: Instant::now(),
            is_stopping: false,
            resized: false,
            dirty: false,
            turns: Turns::default(),
            actions: Vec::new(),
            barriers: Vec::new(),
            next_barrier: 0,
            next_session: 0,
            complaints: Complaints::default(),
            alone: Alone::default(),
        };
        Ok(Sessions {
            cx,
            mail,
            queue_task,
            listen_task,
            listener: Some(listener),
            shared,
            connections: Connections::default(),
        })
    }

    /// Handles completions of the namespace, and sends answers to initiators. Returns true if more
    /// work is ready.
    fn settle(&mut self, done: &mut Vec<Completion>) -> bool {
        for _ in 0..limits::ROUNDS_PER_TICK {
            if std::mem::take(&mut self.cx.dirty) {
                self.cx.queue.poll(done);
            }
            for completion in done.drain(..) {
                self.cx.unit.is_lost = completion.result == Err(BlockError::Disconnected);
                let (key, slot, piece) = token_owner(completion.token);
                let owner = self.connections.alive(key);
                owner.complete(&mut self.cx, (slot, piece), completion);
            }
            self.take_actions();
            self.pass_barriers();
            while let Some((key, slot)) = self.cx.alone.next() {
                self.connections.alive(key).begin_alone(&mut self.cx, slot);
            }
            if self.cx.turns.is_empty() && !self.cx.dirty {
                return false;
            }
            let round = self.cx.turns.begin_round();
            for &key in &round {
                self.finish_tick(key);
                self.take_actions();
            }
            self.cx.turns.end_round(round);
        }
        true
    }

    fn finish_tick(&mut self, key: ConnectionKey) {
        if self.connections.finish_tick(key, &mut self.cx) {
            self.shared.disconnected();
            self.cx.barriers.retain(|barrier| barrier.from != key);
            self.cx.ask(Action::Departed);
        }
    }

    fn take_actions(&mut self) {
        while !self.cx.actions.is_empty() {
            for action in std::mem::take(&mut self.cx.actions) {
                match action {
                    Action::Admit(key) => self.admit(key),
                    Action::Manage(key, request) => self.manage(key, request),
                    Action::Notice(who, what) => {
                        for (_, connection) in self.connections.iter_mut() {
                            if *connection.initiator() == who {
                                connection.attention(what);
                            }
                        }
                    }
                    Action::Departed => {
                        let all = self.connections.iter();
                        let waiting = all.filter(|(_, one)| one.is_admitting());
                        let waiting: Vec<_> = waiting.map(|(key, _)| key).collect();
                        waiting.into_iter().for_each(|key| self.admit(key));
                    }
                }
            }
        }
    }

    /// Admits a session once the operations of disconnected sessions have completed. Otherwise
    /// these operations might undo the new session's writes. The session waits for the operations
    /// of all initiators: another machine that takes over the disk logs in with another name. First
    /// checks for disconnections, because the event of a disconnection may arrive after this login.
    fn admit(&mut self, key: ConnectionKey) {
        let Some(new) = self.connections.get(key) else { return };
        let who = new.initiator().clone();
        let mut in_the_way = false;
        for (of, other) in self.connections.iter_mut() {
            if of == key {
                continue;
            }
            other.close_if_left(&mut self.cx);
            if *other.initiator() == who && other.is_session() {
                tracing::info!(initiator = %who.name, "a new session replaces an older session");
                other.close(&mut self.cx);
            }
            in_the_way |= other.is_ending() && other.is_busy();
        }
        if !in_the_way {
            self.connections.alive(key).admitted(&mut self.cx);
        }
    }

    fn manage(&mut self, from: ConnectionKey, request: Management) {
        let id = self.cx.next_barrier;
        self.cx.next_barrier = id.wrapping_add(1);
        let mut waiting = 0;
        for (key, connection) in self.connections.iter_mut() {
            let is_own = key == from;
            match request.what {
                Abort::Task if is_own => {
                    waiting += connection.abort(&mut self.cx, id, Some(request.task));
                }
                Abort::Session | Abort::Logout if is_own => {
                    waiting += connection.abort(&mut self.cx, id, None);
                }
                Abort::Everything => {
                    waiting += connection.abort(&mut self.cx, id, None);
                    connection.attention(Sense::UNIT_RESET);
                }
                _ => {}
            }
        }
        self.cx.barriers.push(Barrier { id, from, request, waiting });
        self.pass_barriers();
    }

    /// Answers the abort requests whose tasks have all ended.
    fn pass_barriers(&mut self) {
        while let Some(index) = self.cx.barriers.iter().position(|barrier| barrier.waiting == 0) {
            let Barrier { from, request, .. } = self.cx.barriers.remove(index);
            if let Some(connection) = self.connections.get_mut(from) {
                connection.managed(&mut self.cx, request);
            }
        }
    }

    fn read_messages(&mut self) {
        for message in self.shared.take_messages() {
            match message {
                Message::Resized => self.resized(),
                Message::Stop { force } => self.stop(force),
            }
        }
    }

    /// Adopts the namespace's new size or write protection.
    fn resized(&mut self) {
        self.cx.resized = true;
        let geometry = self.shared.geometry();
        if geometry != self.cx.unit.geometry {
            self.cx.unit.geometry = geometry;
            for (_, connection) in self.connections.iter_mut() {
                connection.attention(Sense::CAPACITY_CHANGED);
            }
        }
    }

    fn stop(&mut self, force: bool) {
        self.cx.is_stopping = true;
        if let Some(listener) = self.listener.take() {
            self.cx.reactor.close_listener(listener);
        }
        for (_, connection) in self.connections.iter_mut() {
            if force { connection.close(&mut self.cx) } else { connection.drain(&mut self.cx) }
        }
    }

    fn accepted(&mut self, event: Event) {
        match event {
            Event::Accepted { result: Ok((stream, peer)), .. } => self.adopt(stream, peer),
            Event::Accepted { result: Err(error), .. } => {
                self.cx.complaints.say("iSCSI initiators not accepted", "", || {
                    tracing::warn!("cannot accept an iSCSI initiator: {error}");
                });
            }
            // The core itself has closed the listener, so do nothing.
            _ => {}
        }
    }

    /// Adds an accepted socket to the connections.
    fn adopt(&mut self, stream: Socket, peer: SocketAddr) {
        let Ok(portal) = stream.local_addr() else { return };
        if self.cx.is_stopping || self.connections.count() >= limits::MAX_CONNECTIONS {
            let most = limits::MAX_CONNECTIONS;
            self.cx.complain("iSCSI initiators refused", peer, || {
                tracing::warn!(
                    %peer,
                    "refused an iSCSI initiator: the target is at its limit of {most} sessions"
                );
            });
            return;
        }
        let task = self.cx.reactor.add_task();
        let line = stream.tcp().map(Line::of);
        let stream = match self.cx.reactor.add_stream(task, stream) {
            Ok(stream) => stream,
            Err(error) => {
                self.cx.complain("iSCSI initiators not served", peer, || {
                    tracing::warn!(%peer, "cannot serve an iSCSI initiator: {error}");
                });
                self.cx.reactor.remove_task(task);
                return;
            }
        };
        self.shared.connected();
        self.connections.insert(task, |key| {
            Connection::start(&mut self.cx, key, (task, stream, line), peer, portal)
        });
    }
}

impl Core for Sessions {
    /// Runs until the target stops and all connections are closed.
    fn run(mut self) -> io::Result<()> {
        let (mut ready, mut events, mut done) = (Vec::new(), Vec::new(), Vec::new());
        let mut more = false;
        while !(self.cx.is_stopping && self.connections.count() == 0) {
            let timeout = more.then_some(Duration::ZERO);
            self.cx.reactor.poll(timeout, &mut ready)?;
            self.cx.now = Instant::now();
            for task in ready.drain(..) {
                if task == self.mail {
                    self.read_messages();
                    continue;
                } else if task == self.queue_task {
                    self.cx.dirty = true;
                    continue;
                }
                self.cx.reactor.take_events(task, &mut events);
                for event in events.drain(..) {
                    if task == self.listen_task {
                        self.accepted(event);
                    } else if let Some(key) = self.connections.of_task(task) {
                        self.connections.alive(key).handle(&mut self.cx, event);
                        self.take_actions();
                    }
                }
            }
            more = self.settle(&mut done);
        }
        Ok(())
    }
}
