//! A core: one thread, one reactor, its connections and its queues into the namespaces.
//!
//! A tick: events of connections → block operations → completions → answers, all batched; then one
//! send for each connection that has something to say.

use crate::affinity;
use crate::connection::{Connection, ConnectionKey, token_owner};
use crate::limits;
use crate::shared::{Message, Route, Shared};
use crate::volumes::Volumes;
use farblock_block::Completion;
use farblock_reactor::{Buffer, Event, Reactor, TaskId};
use std::cell::Cell;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What connections need of their core.
pub(crate) struct Context {
    pub(crate) index: usize,
    pub(crate) reactor: Reactor,
    pub(crate) shared: Arc<Shared>,
    pub(crate) volumes: Volumes,
    /// When it was, if anything in this tick has asked.
    now: Cell<Option<Instant>>,
    /// Bytes of buffers that commands of this core hold.
    pub(crate) held_bytes: usize,
    /// What a namespace lends to one command; empty in between.
    pub(crate) lent: Vec<Buffer>,
    /// Connections with something to do at the tick's end.
    listed: Vec<ConnectionKey>,
    /// Connections with commands that wait for buffers, or that are not received from for now.
    starved: Vec<ConnectionKey>,
    /// Buffers came back in this tick.
    released: bool,
}

impl Context {
    /// The time: one look at the clock for all that asks in a tick, and none if nothing does.
    pub(crate) fn now(&self) -> Instant {
        let now = self.now.get().unwrap_or_else(Instant::now);
        self.now.set(Some(now));
        now
    }

    /// Has the connection's `finish_tick` called. `listed` is the connection's own mark.
    pub(crate) fn list(&mut self, key: ConnectionKey, listed: &mut bool) {
        if !std::mem::replace(listed, true) {
            self.listed.push(key);
        }
    }

    /// Buffers of this many bytes are not held any more.
    pub(crate) fn release_bytes(&mut self, bytes: usize) {
        self.held_bytes -= bytes;
        self.released = true;
    }

    /// Has the connection listed again when buffers come back. `starving` is its own mark.
    pub(crate) fn starve(&mut self, key: ConnectionKey, starving: &mut bool) {
        if !std::mem::replace(starving, true) {
            self.starved.push(key);
        }
    }
}

/// See the module's text.
pub(crate) struct Core {
    cx: Context,
    task: TaskId,
    listeners: Vec<farblock_reactor::ListenerId>,
    connections: Vec<Option<(u64, Box<Connection>)>>,
    free: Vec<ConnectionKey>,
    by_task: HashMap<TaskId, ConnectionKey>,
    next_core: usize,
    stopping: bool,
    /// Connections whose tick is being finished.
    finishing: Vec<ConnectionKey>,
}

impl Core {
    /// A core on the calling thread's reactor.
    pub(crate) fn new(index: usize, reactor: Reactor, task: TaskId, shared: Arc<Shared>) -> Self {
        Self {
            cx: Context {
                index,
                reactor,
                shared,
                volumes: Volumes::default(),
                now: Cell::new(None),
                held_bytes: 0,
                lent: Vec::new(),
                listed: Vec::new(),
                starved: Vec::new(),
                released: false,
            },
            task,
            listeners: Vec::new(),
            connections: Vec::new(),
            free: Vec::new(),
            by_task: HashMap::new(),
            next_core: 0,
            stopping: false,
            finishing: Vec::new(),
        }
    }

    /// Pins the thread, if that is wanted.
    pub(crate) fn pin(cpu: Option<usize>) -> std::io::Result<()> {
        cpu.map_or(Ok(()), affinity::pin)
    }

    /// Accepts from these listeners.
    pub(crate) fn listen(&mut self, listeners: Vec<TcpListener>) -> std::io::Result<()> {
        for listener in listeners {
            self.listeners.push(self.cx.reactor.listen(self.task, listener)?);
        }
        Ok(())
    }

    /// Runs until it is told to stop and everything accepted is done.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut ready = Vec::new();
        let mut events = Vec::new();
        let mut done = Vec::new();
        let mut more = false;
        while !(self.stopping && self.by_task.is_empty()) {
            let timeout = more.then_some(Duration::ZERO);
            self.cx.reactor.poll(timeout, &mut ready)?;
            self.cx.now.set(None);
            for task in ready.drain(..) {
                if task == self.task {
                    self.control(&mut events);
                } else if let Some(&key) = self.by_task.get(&task) {
                    self.cx.reactor.take_events(task, &mut events);
                    self.deliver(key, &mut events);
                } else {
                    self.cx.volumes.ready(task);
                }
            }
            more = self.settle(&mut done);
        }
        self.cx.volumes.close(&self.cx.reactor);
        Ok(())
    }

    fn deliver(&mut self, key: ConnectionKey, events: &mut Vec<Event>) {
        let (_, connection) =
            self.connections[key.0 as usize].as_mut().expect("its task is registered");
        for event in events.drain(..) {
            connection.handle(&mut self.cx, event);
        }
    }

    /// Completions to connections and answers to hosts. True if there is more to do at once.
    fn settle(&mut self, done: &mut Vec<Completion>) -> bool {
        for _ in 0..limits::ROUNDS_PER_TICK {
            self.cx.volumes.poll(done);
            for completion in done.drain(..) {
                let (key, slot) = token_owner(completion.token);
                let (_, connection) = self.connections[key.0 as usize]
                    .as_mut()
                    .expect("a connection outlives its operations");
                connection.complete(&mut self.cx, slot, completion.result, completion.buffer);
            }
            if std::mem::take(&mut self.cx.released) {
                self.wake_starved();
            }
            if self.cx.listed.is_empty() {
                return false;
            }
            // Two vectors change places, so that neither is allocated again.
            std::mem::swap(&mut self.cx.listed, &mut self.finishing);
            for index in 0..self.finishing.len() {
                self.finish_tick(self.finishing[index]);
            }
            self.finishing.clear();
        }
        true
    }

    /// Buffers came back: whoever waits for some may try again.
    fn wake_starved(&mut self) {
        while let Some(key) = self.cx.starved.pop() {
            if let Some((_, connection)) = &mut self.connections[key.0 as usize] {
                connection.starving = false;
                self.cx.list(key, &mut connection.listed);
            }
        }
    }

    fn finish_tick(&mut self, key: ConnectionKey) {
        let entry = &mut self.connections[key.0 as usize];
        let Some((_, connection)) = entry else { return };
        connection.listed = false;
        connection.finish_tick(&mut self.cx);
        if connection.is_gone() {
            self.by_task.remove(&connection.task());
            self.cx.reactor.remove_task(connection.task());
            if let Some(instance) = connection.instance {
                self.cx.shared.queue_gone(instance, connection.is_orphan);
            }
            *entry = None;
            self.free.push(key);
            self.cx.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The core's own events: new connections, messages, the time.
    fn control(&mut self, events: &mut Vec<Event>) {
        self.cx.reactor.take_events(self.task, events);
        for event in std::mem::take(events) {
            match event {
                Event::Accepted { result: Ok((stream, peer)), .. } => self.accepted(stream, peer),
                Event::Accepted { result: Err(error), .. } => {
                    tracing::warn!("cannot accept a connection: {error}");
                }
                Event::Timer => {}
                other => unreachable!("a core has no {other:?}"),
            }
        }
        let shared = Arc::clone(&self.cx.shared);
        for message in shared.mailboxes()[self.cx.index].take() {
            self.message(message);
        }
        if self.cx.index == 0 {
            let next = shared.tick().map(|left| self.cx.now() + left + Duration::from_millis(1));
            self.cx.reactor.set_timer(self.task, next);
        }
    }

    fn accepted(&mut self, stream: TcpStream, peer: SocketAddr) {
        let shared = &self.cx.shared;
        if self.stopping || shared.connections.load(Ordering::Relaxed) >= limits::MAX_CONNECTIONS {
            tracing::warn!(%peer, "refused: {} connections are the limit", limits::MAX_CONNECTIONS);
            return;
        }
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let core = self.next_core;
        self.next_core = (core + 1) % shared.mailboxes().len();
        if core == self.cx.index {
            self.adopt(stream, peer);
        } else {
            shared.mailboxes()[core].post(Message::Accepted(stream, peer));
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Accepted(stream, peer) => self.adopt(stream, peer),
            Message::Look(route) => {
                self.with(route, |connection, cx| cx.list(route.key, &mut connection.listed));
            }
            Message::Close(route) => self.with(route, |connection, cx| connection.close(cx)),
            Message::Complete { route, command, status, result } => {
                self.with(route, |connection, cx| {
                    connection.complete_held(cx, command, status, result);
                });
            }
            Message::Namespaces(subsystem, table) => {
                for (_, connection) in self.connections.iter_mut().flatten() {
                    connection.set_namespaces(subsystem, &table);
                }
            }
            Message::Stop => {
                self.stopping = true;
                for listener in self.listeners.drain(..) {
                    self.cx.reactor.close_listener(listener);
                }
                for (_, connection) in self.connections.iter_mut().flatten() {
                    connection.drain(&mut self.cx);
                }
            }
        }
    }

    fn with(&mut self, route: Route, act: impl FnOnce(&mut Connection, &mut Context)) {
        if let Some((serial, connection)) = &mut self.connections[route.key.0 as usize]
            && *serial == route.serial
        {
            act(connection, &mut self.cx);
        }
    }

    /// Makes an accepted socket one of this core's connections.
    fn adopt(&mut self, stream: TcpStream, peer: SocketAddr) {
        match self.try_adopt(stream, peer) {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%peer, "cannot serve a connection: {error}");
                self.cx.shared.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn try_adopt(&mut self, stream: TcpStream, peer: SocketAddr) -> std::io::Result<()> {
        if self.stopping {
            return Err(std::io::Error::other("the target is stopping"));
        }
        let local = stream.local_addr()?;
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(limits::TCP_KEEPALIVE)
            .with_interval(limits::TCP_KEEPALIVE / 4);
        let socket = socket2::SockRef::from(&stream);
        socket.set_tcp_keepalive(&keepalive)?;
        // A host that takes nothing of what it is sent holds buffers that others need.
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(limits::TRANSFER_TIMEOUT))?;
        let task = self.cx.reactor.add_task();
        let stream = match self.cx.reactor.add_stream(task, stream) {
            Ok(stream) => stream,
            Err(error) => {
                self.cx.reactor.remove_task(task);
                return Err(error);
            }
        };
        let key = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            ConnectionKey(self.connections.len() as u32 - 1)
        });
        let serial = self.cx.shared.next_serial();
        let route = Route { core: self.cx.index, key, serial };
        let mut connection = Box::new(Connection::new(route, task, stream, peer, local));
        self.by_task.insert(task, key);
        connection.start(&mut self.cx);
        self.connections[key.0 as usize] = Some((serial, connection));
        Ok(())
    }
}
