//! A core: one thread, one reactor, its connections and its queues into the namespaces.
//!
//! In each tick (iteration of its loop), a core handles connection events, submits block
//! operations, delivers completions and queues responses. At the end of the tick, it sends once on
//! each connection with output.

use crate::admissions::Reason;
use crate::affinity;
use crate::backings::Backings;
use crate::claim::Claim;
use crate::connection::Connection;
use crate::context::Context;
use crate::limits;
use crate::mailbox::{Message, Opening, Scope};
use crate::notices::NoticeKind;
use crate::reservations::Barriers;
use crate::route::Route;
use crate::route::{Asking, ConnectionKey, token_owner};
use crate::session::Session;
use crate::shared::TargetShared;
use crate::shared::is_entrance;
use crate::slots::Refusal;
use crate::transport::tcp::{Guard, Tcp};
use farblock_block::Completion;
use farblock_proto::controller::{AccessChange, Entrance, Transport};
use farblock_proto::ids::{CommandId, NamespaceId};
use farblock_reactor::os::{self, ListenSocket, Socket};
use farblock_reactor::{Event, Reactor, TaskId, TaskMap};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

mod rdma;

/// The target's listeners. Only core 0 has any.
#[derive(Default)]
struct Doors {
    tcp: Vec<(SocketAddr, farblock_reactor::ListenerId)>,
    /// The RDMA listeners. Every core also keeps the registered memory of its RDMA connections
    /// here.
    rdma: rdma::Rdma,
}

pub(crate) struct Core {
    cx: Context,
    task: TaskId,
    doors: Doors,
    /// The transport and local address of each connection, by the connection's serial number.
    entrances: HashMap<u64, Entrance>,
    connections: Vec<Option<(u64, Box<Connection>)>>,
    free: Vec<ConnectionKey>,
    by_task: TaskMap<ConnectionKey>,
    next_core: usize,
    stopping: bool,
    /// Whether the core has reported that it is stopping and that its last connection has closed.
    is_done: bool,
    /// The connections of `cx.listed` while the core calls their `finish_tick`.
    finishing: Vec<ConnectionKey>,
    /// The number of parked connections (they wait for buffers) that may still retry after the last
    /// release of buffers.
    to_unpark: usize,
    tick_at: Option<Instant>,
    /// Operations that must end before changes of reservations take effect.
    barriers: Barriers<u64>,
    /// Operations that must end before claims (exclusive use of blocks) are granted.
    claims: Barriers<Arc<Claim>>,
    /// The time of the next [`Self::sweep`]; `None` while peers hold little memory.
    sweep_at: Option<Instant>,
}

impl Core {
    pub(crate) fn new(
        index: usize,
        reactor: Reactor,
        task: TaskId,
        shared: Arc<TargetShared>,
    ) -> Self {
        Self {
            cx: Context::new(index, reactor, shared),
            task,
            doors: Doors::default(),
            entrances: HashMap::new(),
            connections: Vec::new(),
            free: Vec::new(),
            by_task: TaskMap::default(),
            next_core: 0,
            stopping: false,
            is_done: false,
            finishing: Vec::new(),
            to_unpark: 0,
            tick_at: None,
            barriers: Barriers::default(),
            claims: Barriers::default(),
            sweep_at: None,
        }
    }

    pub(crate) fn pin(cpu: Option<usize>) -> std::io::Result<()> {
        cpu.map_or(Ok(()), affinity::pin)
    }

    pub(crate) fn listen(&mut self, listeners: Vec<ListenSocket>) -> std::io::Result<()> {
        for listener in listeners {
            let address = listener.local_addr()?;
            self.listen_at(address, listener)?;
        }
        Ok(())
    }

    fn listen_at(&mut self, address: SocketAddr, listener: ListenSocket) -> std::io::Result<()> {
        self.doors.tcp.push((address, self.cx.reactor.listen(self.task, listener)?));
        Ok(())
    }

    /// Opens a further listener.
    fn open_listener(&mut self, opening: Opening, address: SocketAddr) -> Result<(), String> {
        match opening {
            Opening::Tcp(socket) => {
                self.listen_at(address, socket).map_err(|error| error.to_string())
            }
            Opening::Rdma(provider) => self.listen_by_rdma(provider, address),
        }
    }

    /// Closes a listener. Every core closes the connections that this listener accepted.
    fn unlisten(&mut self, entrance: Entrance) {
        let Entrance { transport, address } = entrance;
        match transport {
            Transport::Tcp => {
                let Some(index) = self.doors.tcp.iter().position(|(at, _)| *at == address) else {
                    return;
                };
                let (_, listener) = self.doors.tcp.swap_remove(index);
                self.cx.reactor.close_listener(listener);
            }
            Transport::Rdma => {
                self.doors.rdma.unlisten(address);
                self.cx.shared.listening.set_lost(entrance, false);
            }
        }
        for mailbox in self.cx.shared.mailboxes() {
            mailbox.post(Message::CloseAt(entrance, Scope::All));
        }
    }

    fn close_at(&mut self, entrance: Entrance, scope: Scope) {
        for (serial, connection) in self.connections.iter_mut().flatten() {
            if scope == Scope::WithoutTls && connection.uses_tls() {
                continue;
            }
            if self.entrances.get(serial).is_some_and(|at| is_entrance(entrance, *at)) {
                connection.end(&mut self.cx);
            }
        }
    }

    /// Runs until the target stops and all accepted work has ended.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        self.cx.shared.core_states.runs(self.cx.index);
        for backings in self.cx.shared.all_backings() {
            self.open_volumes(&backings);
        }
        let mut ready = Vec::new();
        let mut events = Vec::new();
        let mut done = Vec::new();
        let mut more = false;
        while !self.is_over() {
            let timeout = more.then_some(Duration::ZERO);
            self.cx.reactor.poll(timeout, &mut ready)?;
            self.cx.begin_tick();
            self.cx.measures_latency = self.cx.shared.meters.measures_latency();
            self.begin_round();
            for task in ready.drain(..) {
                if task == self.task {
                    self.control(&mut events);
                } else if let Some(&key) = self.by_task.get(task) {
                    self.cx.reactor.take_events(task, &mut events);
                    self.deliver(key, &mut events);
                } else {
                    self.cx.volumes.ready(task);
                }
            }
            more = self.settle(&mut done);
            self.cx.volumes.release_settled();
            while let Some(closed) = self.cx.volumes.close_retired(&self.cx.reactor) {
                self.cx.in_place.forget(closed);
            }
        }
        self.cx.volumes.close(&self.cx.reactor);
        Ok(())
    }

    /// Starts a scheduling round (see [`crate::shares`]): refills every host's allowance, then
    /// resumes the connections that waited for the round.
    fn begin_round(&mut self) {
        self.cx.shares.tick();
        while let Some(key) = self.cx.shares.next() {
            if let Some((_, connection)) = &mut self.connections[key.0 as usize] {
                connection.resume(&mut self.cx);
            }
        }
    }

    fn is_over(&mut self) -> bool {
        let is_done = self.stopping && self.by_task.is_empty();
        if is_done && !std::mem::replace(&mut self.is_done, true) {
            self.cx.shared.core_done();
        }
        is_done && self.cx.shared.all_done()
    }

    /// Opens this core's queue into each namespace that has none, since the process may run out of
    /// descriptors later. If this fails, the first command for the namespace tries again.
    fn open_volumes(&mut self, backings: &Backings) {
        let Context { volumes, reactor, .. } = &mut self.cx;
        for (NamespaceId(nsid), backing) in backings.iter() {
            if let Err(error) = volumes.open(reactor, backing) {
                let what = backing.namespace.describe();
                tracing::error!(namespace = nsid, "cannot open {what}: {error}");
            }
        }
    }

    fn deliver(&mut self, key: ConnectionKey, events: &mut Vec<Event>) {
        let (_, connection) =
            self.connections[key.0 as usize].as_mut().expect("a registered task has a connection");
        if events.is_empty() {
            // The in-memory transport woke this connection, without an event of the reactor.
            connection.list(&mut self.cx);
        }
        for event in events.drain(..) {
            connection.handle(&mut self.cx, event);
        }
    }

    /// Delivers completions to connections and responses to hosts. Returns true if more work is
    /// ready.
    fn settle(&mut self, done: &mut Vec<Completion>) -> bool {
        self.cx.in_place.tick();
        for _ in 0..limits::ROUNDS_PER_TICK {
            self.give_turns();
            self.cx.volumes.poll(done);
            for completion in done.drain(..) {
                let (key, slot) = token_owner(completion.token);
                let (_, connection) = self.connections[key.0 as usize]
                    .as_mut()
                    .expect("a connection outlives its operations");
                connection.complete(&mut self.cx, slot, completion.result, completion.buffer);
                if self.barriers.is_up() && !connection.is_under_way(slot) {
                    let over = self.barriers.ended((key, slot));
                    over.into_iter().for_each(|serial| self.cx.shared.applied(serial));
                }
                if self.claims.is_up() && !connection.is_under_way(slot) {
                    let over = self.claims.ended((key, slot));
                    over.iter().for_each(|claim| self.cx.shared.claim_applied(claim));
                }
            }
            if std::mem::take(&mut self.cx.released) {
                self.to_unpark = self.cx.parked.len();
            }
            if self.to_unpark > 0 {
                self.unpark_some();
            }
            if self.cx.listed.is_empty() {
                self.watch_memory();
                if self.cx.deadlines.take_news() {
                    self.set_timer();
                }
                let waits = self.cx.in_place.is_put_off() || self.cx.shares.is_waited_for();
                return self.to_unpark > 0 || waits;
            }
            // Swap the two vectors, so that both keep their allocations.
            std::mem::swap(&mut self.cx.listed, &mut self.finishing);
            for index in 0..self.finishing.len() {
                self.finish_tick(self.finishing[index]);
            }
            self.finishing.clear();
        }
        true
    }

    /// Starts waiting steps of Compare, Verify, Write Zeroes, Copy and deallocation commands, until
    /// [`limits::IN_PLACE_BYTES`] are charged.
    fn give_turns(&mut self) {
        while let Some((line, key)) = self.cx.in_place.next() {
            if let Some((_, connection)) = &mut self.connections[key.0 as usize] {
                connection.schedule(&mut self.cx, line);
            }
        }
    }

    /// Lets some parked connections retry after a release of buffers, in the order of parking.
    fn unpark_some(&mut self) {
        for _ in 0..self.to_unpark.min(limits::WOKEN_AT_ONCE) {
            self.to_unpark -= 1;
            let Some(key) = self.cx.parked.pop_front() else { break };
            if let Some((_, connection)) = &mut self.connections[key.0 as usize] {
                connection.unpark(&mut self.cx);
            }
        }
    }

    fn finish_tick(&mut self, key: ConnectionKey) {
        let entry = &mut self.connections[key.0 as usize];
        let Some((_, connection)) = entry else { return };
        connection.finish_tick(&mut self.cx);
        if connection.is_gone() {
            self.by_task.remove(connection.task());
            self.cx.reactor.remove_task(connection.task());
            if let Some(instance) = connection.instance() {
                self.cx.shared.queue_gone(instance, connection.route());
            }
            connection.leave(&mut self.cx);
            self.cx.shared.slots().gone(connection.route().serial);
            self.entrances.remove(&connection.route().serial);
            self.cx.shared.core_states.disconnected(self.cx.index);
            *entry = None;
            self.free.push(key);
            if !os::has_mistake("target: a connection is never forgotten") {
                let before = self.cx.shared.connections.fetch_sub(1, Ordering::Relaxed);
                self.cx.shared.heap_trim.goes(before - 1);
            }
        }
    }

    /// Handles the core's own events: new connections, messages, timers.
    fn control(&mut self, events: &mut Vec<Event>) {
        self.cx.reactor.take_events(self.task, events);
        for event in std::mem::take(events) {
            match event {
                Event::Accepted { result: Ok((stream, peer)), .. } => self.accepted(stream, peer),
                Event::Accepted { result: Err(error), .. } => {
                    let nobody = Ipv4Addr::UNSPECIFIED.into();
                    self.cx.shared.admissions.refused(Reason::NotServed);
                    self.cx.notice(NoticeKind::NotServed, nobody, || {
                        tracing::warn!("cannot accept a connection: {error}");
                    });
                }
                Event::Timer => {}
                other => unreachable!("unexpected event {other:?}"),
            }
        }
        self.receive_requests();
        let shared = Arc::clone(&self.cx.shared);
        for message in shared.mailboxes()[self.cx.index].take() {
            self.message(message);
        }
        if self.cx.index == 0 {
            self.tick_at =
                shared.tick().map(|left| self.cx.now() + left + Duration::from_millis(1));
        }
        while let Some(key) = self.cx.deadlines.take_due(self.cx.now()) {
            if let Some((_, connection)) = &mut self.connections[key.0 as usize] {
                connection.go_on(&mut self.cx);
            }
        }
        self.cx.deadlines.take_news();
        if self.sweep_at.is_some_and(|at| at <= self.cx.now()) {
            self.sweep();
        }
        self.set_timer();
    }

    fn set_timer(&self) {
        let deadline = self.cx.deadlines.first();
        let listen_at = self.doors.rdma.retry_at();
        let next = [self.tick_at, self.sweep_at, deadline, listen_at].into_iter().flatten().min();
        self.cx.reactor.set_timer(self.task, next);
    }

    /// Schedules [`Self::sweep`] if peers hold more than half of the core's memory limit, or if
    /// connections wait for registered memory.
    fn watch_memory(&mut self) {
        if self.sweep_at.is_none() && (self.cx.memory.is_pressed() || self.doors.rdma.is_starved())
        {
            self.sweep_at = Some(self.cx.now() + limits::PRESSED_PERIOD);
            self.set_timer();
        }
    }

    /// Frees cached memory. If connections wait for memory, closes overdue connections of the hosts
    /// that hold the most memory.
    fn sweep(&mut self) {
        let cx = &mut self.cx;
        for (_, connection) in self.connections.iter_mut().flatten() {
            connection.save_memory(cx);
        }
        let is_starved = self.doors.rdma.is_starved();
        if let Some(wanted_bytes) = cx.memory.next_epoch(is_starved) {
            self.evict(wanted_bytes);
        }
        // Let all parked connections retry. Connections that still lack memory park again.
        self.to_unpark = self.cx.parked.len();
        let cx = &mut self.cx;
        let is_over = cx.memory.is_calm() && !is_starved;
        if is_over {
            cx.reactor.buffers().clear();
        }
        self.sweep_at = (!is_over).then(|| cx.now() + limits::PRESSED_PERIOD);
    }

    fn evict(&mut self, wanted_bytes: usize) {
        let cx = &mut self.cx;
        let mut victims: Vec<_> = (0..)
            .zip(&mut self.connections)
            .filter_map(|(key, entry)| {
                let (_, connection) = entry.as_mut()?;
                let (host_bytes, bytes) = connection.overdue_bytes(cx)?;
                Some((host_bytes, bytes, key))
            })
            .collect();
        victims.sort_unstable();
        let mut freed_bytes = 0;
        while freed_bytes < wanted_bytes
            && let Some((_, bytes, key)) = victims.pop()
        {
            let (_, connection) =
                self.connections[key as usize].as_mut().expect("the connection was found above");
            connection.evict(cx, bytes);
            freed_bytes += bytes;
        }
    }

    fn accepted(&mut self, stream: Socket, peer: SocketAddr) {
        let Some(serial) = self.admit(peer) else { return };
        let core = self.turn();
        if core == self.cx.index {
            self.adopt(stream, peer, serial);
        } else {
            self.cx.shared.mailboxes()[core].post(Message::Accepted(stream, peer, serial));
        }
    }

    /// Returns the number of the core that serves the next connection. The cores take turns.
    fn turn(&mut self) -> usize {
        let core = self.next_core;
        self.next_core = (core + 1) % self.cx.shared.mailboxes().len();
        core
    }

    /// Returns the serial number of a new connection; `None` if the target refuses it.
    fn admit(&mut self, peer: SocketAddr) -> Option<u64> {
        let shared = &self.cx.shared;
        if self.stopping {
            return None;
        }
        let serial = shared.next_serial();
        // Use a separate statement: it releases the lock on the slots before the `match`.
        let admitted = shared.slots().admit(serial, peer.ip());
        match admitted {
            Ok(None) => {}
            Ok(Some(victim)) => shared.mailboxes()[victim.core].post(Message::Close(victim)),
            Err(refusal) => {
                shared.admissions.refused(match refusal {
                    Refusal::Full(_) => Reason::Full,
                    Refusal::Share(_) => Reason::AddressShare,
                });
                self.cx.notice(NoticeKind::NoRoom, peer.ip(), || {
                    tracing::warn!(%peer, "refused a connection: {refusal}");
                });
                return None;
            }
        }
        shared.admissions.accepted();
        let before = shared.connections.fetch_add(1, Ordering::Relaxed);
        shared.heap_trim.has_come(before + 1);
        Some(serial)
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Accepted(stream, peer, serial) => self.adopt(stream, peer, serial),
            Message::Requested(request, serial) => self.adopt_request(&request, serial),
            #[cfg(test)]
            Message::Joined(wire, serial) => self.join(wire, serial),
            Message::Look(route) => {
                self.with(route, |connection, cx| connection.list(cx));
            }
            Message::Close(route) => self.with(route, |connection, cx| connection.end(cx)),
            Message::Complete { route, command, status, result } => {
                self.with(route, |connection, cx| {
                    connection.complete_held(cx, command, status, result);
                });
            }
            Message::Forget { route, command } => {
                self.with(route, |connection, _| connection.forget_held(command));
            }
            Message::Authenticated { route, slot, machine } => {
                self.with(route, |connection, cx| connection.authenticated(cx, slot, machine));
            }
            Message::Reserved { route, slot, status, report } => {
                self.with(route, |connection, cx| connection.reserved(cx, slot, status, report));
            }
            Message::Abort { route, command, asking } => self.abort(route, command, asking),
            Message::Aborted { route, slot, aborted } => {
                self.with(route, |connection, cx| connection.heard_of_abort(cx, slot, aborted));
            }
            Message::Access(change) => self.apply_access(&change),
            Message::Namespaces(subsystem, table, backings) => {
                for (_, connection) in self.connections.iter_mut().flatten() {
                    connection.set_namespaces(&mut self.cx, subsystem, &table, &backings);
                }
                self.open_volumes(&backings);
            }
            Message::Claimed(claim) => self.apply_claim(claim),
            Message::Granted(route, claim) => {
                // If the connection has closed, it has already given up its claim.
                self.with(route, |connection, cx| connection.granted(cx, &claim));
            }
            Message::Unclaimed(claim) => {
                self.claims.forget(&claim);
                self.cx.volumes.unclaim(&claim);
            }
            Message::Retire(backing, share) => self.cx.volumes.retire(backing, share),
            Message::Settle(backing, share) => self.cx.volumes.settle(backing, share),
            Message::Ended(route, news) => {
                self.with(route, |connection, cx| connection.on_notice(cx, news));
            }
            Message::Listen(opening, address, answer) => {
                // Ignore a failed send: the caller may no longer wait for the answer.
                let _ = answer.send(self.open_listener(opening, address));
            }
            Message::Unlisten(entrance) => self.unlisten(entrance),
            Message::CloseAt(entrance, scope) => self.close_at(entrance, scope),
            Message::Stop => self.wind_up(),
        }
    }

    /// Stops accepting connections, and lets the connected hosts finish.
    fn wind_up(&mut self) {
        self.stopping = true;
        for (_, listener) in self.doors.tcp.drain(..) {
            self.cx.reactor.close_listener(listener);
        }
        self.doors.rdma.close();
        for (_, connection) in self.connections.iter_mut().flatten() {
            connection.drain(&mut self.cx);
        }
    }

    /// Aborts a command of a connection. If the connection is closed, reports to the requester that
    /// nothing was aborted.
    fn abort(&mut self, route: Route, command: CommandId, asking: Asking) {
        let mut is_there = false;
        self.with(route, |connection, cx| {
            is_there = true;
            connection.abort(cx, command, asking);
        });
        if !is_there {
            let Asking { route, slot } = asking;
            let message = Message::Aborted { route, slot, aborted: false };
            self.cx.shared.mailboxes()[route.core].post(message);
        }
    }

    fn apply_access(&mut self, change: &AccessChange) {
        let mut under_way = Vec::new();
        for (_, connection) in self.connections.iter_mut().flatten() {
            connection.apply_access(&mut self.cx, change, &mut under_way);
        }
        let hasty = os::has_mistake("target: a fence does not wait for operations in flight");
        if under_way.is_empty() || hasty {
            self.cx.shared.applied(change.serial);
        } else {
            self.barriers.put_up(change.serial, under_way);
        }
    }

    /// Parks new changes of the claimed blocks, and waits until the changes under way have ended.
    fn apply_claim(&mut self, claim: Arc<Claim>) {
        let mut under_way = Vec::new();
        for (_, connection) in self.connections.iter_mut().flatten() {
            connection.changing(&claim, &mut under_way);
        }
        self.cx.volumes.claim(Arc::clone(&claim));
        if under_way.is_empty() {
            self.cx.shared.claim_applied(&claim);
        } else {
            self.claims.put_up(claim, under_way);
        }
    }

    fn with(&mut self, route: Route, act: impl FnOnce(&mut Connection, &mut Context)) {
        if let Some((serial, connection)) = &mut self.connections[route.key.0 as usize]
            && *serial == route.serial
        {
            act(connection, &mut self.cx);
        }
    }

    /// Serves an accepted socket as a connection of this core.
    fn adopt(&mut self, stream: Socket, peer: SocketAddr, serial: u64) {
        match self.try_adopt(stream, peer, serial) {
            Ok(()) => {}
            Err(error) => self.not_served(peer, serial, &error),
        }
    }

    /// Counts and logs a connection that this core cannot serve, and frees its slot.
    fn not_served(&mut self, peer: SocketAddr, serial: u64, error: &dyn std::fmt::Display) {
        self.cx.shared.admissions.refused(Reason::NotServed);
        self.cx.notice(NoticeKind::NotServed, peer.ip(), || {
            tracing::warn!(%peer, "cannot serve a connection: {error}");
        });
        self.cx.shared.slots().gone(serial);
        self.cx.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn try_adopt(&mut self, stream: Socket, peer: SocketAddr, serial: u64) -> std::io::Result<()> {
        if self.stopping {
            return Err(std::io::Error::other("the target is stopping"));
        }
        let local = stream.local_addr()?;
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(limits::TCP_KEEPALIVE)
            .with_interval(limits::TCP_KEEPALIVE / 4);
        if let Some(stream) = stream.tcp() {
            let socket = socket2::SockRef::from(stream);
            socket.set_tcp_keepalive(&keepalive)?;
            // Close the connection if its host stops receiving: its responses occupy buffers that
            // other connections need.
            #[cfg(target_os = "linux")]
            socket.set_tcp_user_timeout(Some(limits::TRANSFER_TIMEOUT))?;
        }
        let task = self.cx.reactor.add_task();
        let stream = match self.cx.reactor.add_stream(task, stream) {
            Ok(stream) => stream,
            Err(error) => {
                self.cx.reactor.remove_task(task);
                return Err(error);
            }
        };
        self.entrances.insert(serial, local.into());
        let port = self.cx.shared.listening.tcp_port_of(local);
        let begun = self.cx.shared.tls.begin(port);
        let guard = begun.map(|(keys, policy)| Guard::new(keys, policy));
        self.begin(task, serial, |route| {
            let tcp = Tcp::new(stream, guard.map(Box::new));
            Connection::Tcp(Session::new(route, task, tcp, peer, local))
        });
        Ok(())
    }

    /// Starts a connection that receives the events of `task`.
    fn begin(&mut self, task: TaskId, serial: u64, connection: impl FnOnce(Route) -> Connection) {
        let key = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            ConnectionKey(self.connections.len() as u32 - 1)
        });
        let route = Route { core: self.cx.index, key, serial };
        let mut connection = Box::new(connection(route));
        self.by_task.insert(task, key);
        self.cx.shared.core_states.connected(self.cx.index);
        connection.start(&mut self.cx);
        if !self.cx.shared.slots().begun(route) {
            // The target evicted the connection before this core began to serve it.
            connection.end(&mut self.cx);
        }
        self.connections[key.0 as usize] = Some((serial, connection));
    }

    #[cfg(test)]
    fn join(&mut self, wire: Arc<crate::transport::memory::Wire>, serial: u64) {
        self.cx.shared.connections.fetch_add(1, Ordering::Relaxed);
        let task = self.cx.reactor.add_task();
        let admitted = self.cx.shared.slots().admit(serial, Ipv4Addr::LOCALHOST.into());
        assert_eq!(admitted, Ok(None), "a test has free slots");
        self.begin(task, serial, |route| {
            Connection::Memory(crate::transport::memory::session(route, task, wire))
        });
    }
}
