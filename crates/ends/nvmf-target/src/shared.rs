//! State that all cores share: the registry, the places of queues, and the cores' mailboxes.
//!
//! I/O never takes the mutex here; Connect, admin commands and teardown do.

mod host_events;
mod identifiers;
mod listeners;
mod namespaces;
mod nesting;
mod report;
mod stats;
mod subsystems;

pub(crate) use listeners::{Listening, entry};
pub(crate) use namespaces::{Exports, describe};
pub(crate) use nesting::nest;
pub use report::{ControllerReport, NamespaceReport, Report, SubsystemReport};
pub use stats::{CoreStats, HostStats, Stats, SubsystemStats, status_name};
pub(crate) use subsystems::warn_of_same_serial;

use crate::admissions::{Admissions, Reason};
use crate::authentication::Authenticator;
use crate::backings::{BackingId, Backings};
use crate::budget::Budget;
use crate::claims::{Claim, Claims};
use crate::control::Share;
use crate::core_states::CoreStates;
use crate::discoveries::Discoveries;
use crate::events::{Observed, Visitor};
use crate::fence::{Change, EndingId, Fence, HostKey, News, Queues};
use crate::heap_trim::HeapTrim;
use crate::meters::Meters;
use crate::notices::Notices;
use crate::reservations::{Desk, Keeper};
use crate::session::{Asking, ConnectionKey};
use crate::slots::Slots;
use crate::store_errors::StoreErrors;
use crate::tls::TlsTerms;
use farblock_proto::capsule::{RemoteForm, SlotId};
use farblock_proto::controller::{
    AccessChange, Action, AdminOutcome, ConnectRequest, Connected, ErrorRecord, Instance,
    NamespaceTable, QueueKind, Refusal, Registry, SmartCounters, SubsystemId, Teardown,
};
use farblock_proto::ids::{CommandId, ControllerId, NamespaceId, QueueId};
use farblock_proto::time::Instant;
use farblock_reactor::os::{self, ListenSocket, Socket};
use farblock_reactor::{Polling, Waker};
use farblock_secure::{Concatenation, Controller, ControllerTerms, Demand};
use farblock_tls::Named;
use farblock_wire::fabrics::ConnectResult;
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::{Sqe, Status};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The place of a connection. The serial number distinguishes it from a later one with this key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    pub(crate) core: usize,
    pub(crate) key: ConnectionKey,
    pub(crate) serial: u64,
}

/// A message to a core.
#[derive(Debug)]
pub(crate) enum Message {
    /// A new connection, with its serial number.
    Accepted(Socket, SocketAddr, u64),
    /// A host in this process, with its serial number.
    #[cfg(test)]
    Joined(Arc<crate::transport::memory::Wire>, u64),
    /// Close this connection.
    Close(Route),
    /// A queue of this admin connection's controller is gone: it may be drained now.
    Look(Route),
    /// Complete a held command of this connection.
    Complete { route: Route, command: CommandId, status: Status, result: u64 },
    /// Drop a held command of this connection without a response.
    Forget { route: Route, command: CommandId },
    /// A message of this connection's host was handled; see [`crate::authentication`].
    Authenticated { route: Route, slot: SlotId, machine: Box<Controller> },
    /// The answer to a reservation command of this connection.
    Reserved { route: Route, slot: SlotId, status: Status, report: Option<Vec<u8>> },
    /// Abort this command of this connection, and report whether that succeeded.
    Abort { route: Route, command: CommandId, asking: Asking },
    /// The answer to an Abort command of this connection.
    Aborted { route: Route, slot: SlotId, aborted: bool },
    /// Apply a reservation change to this subsystem's connections.
    Access(Arc<AccessChange>),
    /// This subsystem's connections use this table and these stores from now on.
    Namespaces(SubsystemId, Arc<NamespaceTable>, Arc<Backings>),
    /// Park changes of these blocks; report when none is under way.
    Claimed(Arc<Claim>),
    /// This connection now holds its claim.
    Granted(Route, Arc<Claim>),
    /// Stop parking changes of these blocks.
    Unclaimed(Arc<Claim>),
    /// Release this store: no list older than this message is used any more.
    Retire(BackingId, Share),
    /// News of an earlier queue for the waiting commands of this fenced connection.
    Ended(Route, EndingId),
    /// Listen on this socket, too, and report the result.
    Listen(ListenSocket, SocketAddr, Sender<std::io::Result<()>>),
    /// Stop listening there, and close the connections accepted there.
    Unlisten(SocketAddr),
    /// Close the connections accepted there that may not stay.
    CloseAt(SocketAddr, Scope),
    /// Complete what was accepted, close all connections and end.
    Stop,
}

/// The connections to close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    All,
    WithoutTls,
}

/// A core's mailbox.
pub(crate) struct Mailbox {
    messages: Mutex<Vec<Message>>,
    waker: Waker,
}

impl Mailbox {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { messages: Mutex::new(Vec::new()), waker }
    }

    pub(crate) fn post(&self, message: Message) {
        self.messages.lock().expect("no holder panics").push(message);
        self.waker.wake();
    }

    /// Posts a subsystem's namespaces. A list that the core has not read yet is outdated, so the
    /// new one replaces it: after any number of changes, a core reads one list. Stores retired
    /// after that message are not in the new list either.
    fn post_namespaces(
        &self,
        subsystem: SubsystemId,
        table: Arc<NamespaceTable>,
        backings: Arc<Backings>,
    ) {
        let mut messages = self.messages.lock().expect("no holder panics");
        let older = messages.iter_mut().find(|message| match message {
            Message::Namespaces(other, ..) => *other == subsystem,
            _ => false,
        });
        let news = Message::Namespaces(subsystem, table, backings);
        match older {
            Some(older) => *older = news,
            None => messages.push(news),
        }
        drop(messages);
        self.waker.wake();
    }

    /// Wakes the core.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut self.messages.lock().expect("no holder panics"))
    }
}

pub(crate) struct Management {
    pub(crate) registry: Registry,
    pub(crate) desk: Desk,
    exports: Exports,
    routes: HashMap<(ControllerId, QueueId), Route>,
    queues: Queues,
    discoveries: Discoveries,
    /// Addresses of controllers' hosts; entries of closed controllers stay until the next query.
    origins: HashMap<ControllerId, host_events::Origin>,
    /// Hosts that were announced.
    visitors: HashMap<ControllerId, Visitor>,
}

/// A connected queue.
pub(crate) struct Admitted {
    pub(crate) connected: Connected,
    /// Earlier queues that its commands must wait for.
    pub(crate) fence: Option<Box<Fence>>,
    /// The stores of its namespaces, if it is an I/O queue.
    pub(crate) backings: Arc<Backings>,
    /// How its host must authenticate; `None`: it need not.
    pub(crate) terms: Option<Arc<ControllerTerms>>,
    /// Whether its host has authenticated already: its TLS key was generated by an authentication.
    pub(crate) has_proved: bool,
    /// The secure channel that authentication may establish.
    pub(crate) offer: Concatenation,
}

/// Why a queue was not connected.
pub(crate) struct Denied {
    /// The response to the host.
    pub(crate) refusal: Refusal,
    pub(crate) why: Why,
}

/// The reason for the log.
pub(crate) enum Why {
    /// The same as in the response.
    Told,
    /// A TLS error: the counted reason, and one sentence.
    Tls(Reason, String),
    /// A host identifier that this host may not use, in one sentence.
    Identifier(String),
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, why: Why::Told }
    }
}

/// State shared by all cores of a target.
pub(crate) struct TargetShared {
    management: Mutex<Management>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) admissions: Admissions,
    /// Changes of ANA states and groups.
    ana_changes: AtomicU64,
    pub(crate) core_states: CoreStates,
    pub(crate) observed: Observed,
    pub(crate) store_errors: StoreErrors,
    pub(crate) authenticator: Authenticator,
    pub(crate) tls: TlsTerms,
    claims: Claims,
    pub(crate) listening: Listening,
    epoch: std::time::Instant,
    mailboxes: OnceLock<Vec<Mailbox>>,
    slots: Mutex<Slots>,
    pub(crate) connections: AtomicUsize,
    pub(crate) heap_trim: HeapTrim,
    serial: AtomicU64,
    stopping: AtomicBool,
    /// Cores that have no connections left.
    done: AtomicUsize,
    pub(crate) notices: Notices,
    /// Notices of hosts that connect and disconnect, over a longer period, so that they do not
    /// displace other notices.
    visits: Notices,
    pub(crate) keeper: Keeper,
    pub(crate) budget: Budget,
    /// Polling of event loops before they sleep.
    polling: OnceLock<Polling>,
}

impl TargetShared {
    pub(crate) fn new(
        registry: Registry,
        exports: Exports,
        budget: Budget,
        keeper: Keeper,
        tls: TlsTerms,
    ) -> Self {
        Self {
            management: Mutex::new(Management {
                registry,
                exports,
                desk: Desk::default(),
                routes: HashMap::new(),
                queues: Queues::default(),
                discoveries: Discoveries::default(),
                origins: HashMap::new(),
                visitors: HashMap::new(),
            }),
            meters: Arc::default(),
            admissions: Admissions::default(),
            core_states: CoreStates::default(),
            observed: Observed::default(),
            authenticator: Authenticator::default(),
            tls,
            claims: Claims::default(),
            listening: Listening::default(),
            epoch: os::now(),
            mailboxes: OnceLock::new(),
            slots: Mutex::new(Slots::new(budget.connections)),
            connections: AtomicUsize::new(0),
            heap_trim: HeapTrim::default(),
            serial: AtomicU64::new(0),
            ana_changes: AtomicU64::new(0),
            store_errors: StoreErrors::default(),
            stopping: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            notices: Notices::default(),
            visits: Notices::default(),
            keeper,
            budget,
            polling: OnceLock::new(),
        }
    }

    /// The cores' mailboxes; set once, when every core has its reactor.
    pub(crate) fn set_mailboxes(&self, mailboxes: Vec<Mailbox>) {
        assert!(self.mailboxes.set(mailboxes).is_ok(), "the cores are started once");
    }

    /// Sets the event loops' polling; once, before any core runs.
    pub(crate) fn set_polling(&self, polling: Polling) {
        assert!(self.polling.set(polling).is_ok(), "it is set once");
    }

    pub(crate) fn mailboxes(&self) -> &[Mailbox] {
        self.mailboxes.get().expect("set before any core runs")
    }

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// The connection slots.
    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no holder panics")
    }

    fn now(&self) -> Instant {
        Instant(u64::try_from(os::elapsed(self.epoch).as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Management> {
        self.management.lock().expect("no holder panics")
    }

    /// Connects a queue and records its place. Its commands must not overtake changes of the host's
    /// earlier queues, so it may be fenced. Returns the authentication terms if the host must
    /// authenticate.
    pub(crate) fn connect(
        &self,
        request: &ConnectRequest<'_>,
        shown: Option<&Named>,
        route: Route,
        peer: IpAddr,
    ) -> Result<Admitted, Denied> {
        let mut management = self.lock();
        // Under the same lock as the rest: a change of the host's keys must find its controllers.
        self.check_channel(request, shown)?;
        let is_discovery = request.data.subsystem_nqn() == Ok(DISCOVERY_NQN);
        if is_discovery
            && request.command.qid.get() == 0
            && let Some(victim) = management.discoveries.victim(peer)
            && let Some(teardown) = management.registry.remove_controller(victim)
        {
            self.tear_down(&mut management, &teardown);
        }
        self.check_identifier(&management, request)?;
        // Under the same lock: a change of the host's keys must find its controllers.
        let terms = match (request.data.subsystem_nqn(), request.data.host_nqn()) {
            (Ok(subsystem), Ok(host)) => self.authenticator.terms(subsystem, host),
            _ => None,
        };
        let is_io = request.command.qid.get() != 0;
        let offer = self.offer(request, shown, terms.as_deref())?;
        let mut connected = management.registry.connect(request, self.now())?;
        management.routes.insert((connected.controller, connected.queue), route);
        let host = HostKey::of(request.data);
        let controller = (connected.controller, connected.instance);
        if !is_io {
            let origin = host_events::Origin { address: peer, is_told: false };
            management.origins.insert(connected.controller, origin);
        }
        if connected.is_discovery() && !is_io {
            management.discoveries.begun(connected.controller, peer);
        }
        let fence = management.queues.connected(host, controller, route, is_io);
        let has_proved = shown.is_some_and(|named| named.psk.is_generated());
        if !is_io && (has_proved || (shown.is_some() && terms.is_none())) {
            self.takes_identifier(&mut management, connected.controller);
        }
        self.act(&mut management);
        let subsystem = connected.subsystem.filter(|_| is_io);
        let backings = subsystem.map(|subsystem| management.exports.snapshot(subsystem));
        drop(management);
        match terms.as_ref().filter(|_| !has_proved) {
            Some(terms) => {
                connected.result = authentication_required(connected.controller, terms, offer);
            }
            None => self.slots().connected(route.serial),
        }
        if connected.kind == QueueKind::Admin {
            if terms.is_none() || has_proved {
                self.host_is_in(connected.controller);
            }
            // Core 0 runs the timers; a new controller may have the next deadline.
            self.mailboxes()[0].wake();
        }
        let backings = backings.unwrap_or_default();
        Ok(Admitted { connected, fence, backings, terms, has_proved, offer })
    }

    /// The secure channel that a queue's authentication may establish. A host that needs one may
    /// connect without it on its admin queue only.
    fn offer(
        &self,
        request: &ConnectRequest<'_>,
        shown: Option<&Named>,
        terms: Option<&ControllerTerms>,
    ) -> Result<Concatenation, Denied> {
        let is_tcp = request.remote == RemoteForm::Transport;
        let offer = match request.command.qid.get() {
            0 if is_tcp => self.tls.offer(request.port, shown),
            _ => Concatenation::NONE,
        };
        let has_to = terms.is_some_and(|terms| terms.demand == Demand::SecureChannel);
        if has_to && shown.is_none() && offer == Concatenation::NONE {
            return Err(not_by_tls(
                Reason::TlsMissing,
                "it has to use TLS, and may come without on its admin queue alone, to \
                 authenticate, where a listener has TLS",
            ));
        }
        Ok(offer)
    }

    /// Whether the host's TLS key, or its lack, matches its name.
    fn check_channel(
        &self,
        request: &ConnectRequest<'_>,
        shown: Option<&Named>,
    ) -> Result<(), Denied> {
        let names = (request.data.host_nqn(), request.data.subsystem_nqn());
        let (Ok(host), Ok(subsystem)) = names else {
            // Without TLS, the registry reports invalid names.
            let invalid = || not_by_tls(Reason::TlsOtherHost, "its names are none");
            return if shown.is_none() { Ok(()) } else { Err(invalid()) };
        };
        let checked = self.tls.check(request.port, shown, host, subsystem);
        checked.map_err(|(reason, sentence)| not_by_tls(reason, &sentence))
    }

    /// Bytes of data that an admin command transfers from the host.
    pub(crate) fn admin_data_bytes(&self, controller: ControllerId, sqe: &Sqe) -> u32 {
        self.lock().registry.admin_data_bytes(controller, sqe)
    }

    /// Executes an admin command.
    pub(crate) fn admin(&self, controller: ControllerId, sqe: &Sqe, data: &[u8]) -> AdminOutcome {
        let mut management = self.lock();
        let opcode = AdminOpcode(sqe.opcode);
        if opcode == AdminOpcode::GET_LOG_PAGE {
            self.publish_counters(&mut management.registry);
        }
        let outcome = management.registry.admin(controller, sqe, data, self.now());
        self.act(&mut management);
        if matches!(opcode, AdminOpcode::SET_FEATURES | AdminOpcode::FABRICS) {
            // These may have set a deadline that core 0 does not know.
            self.mailboxes()[0].wake();
        }
        outcome
    }

    /// Asks a queue to abort a command. False if the queue is closed; otherwise the answer arrives
    /// as a message.
    pub(crate) fn ask_for_abort(
        &self,
        queue: (ControllerId, QueueId),
        command: CommandId,
        asking: Asking,
    ) -> bool {
        let route = self.lock().routes.get(&queue).copied();
        if let Some(route) = route {
            self.mailboxes()[route.core].post(Message::Abort { route, command, asking });
        }
        route.is_some()
    }

    /// Executes a fabrics command of an I/O queue.
    pub(crate) fn fabrics_on_io_queue(
        &self,
        controller: ControllerId,
        queue: QueueId,
        sqe: &Sqe,
    ) -> AdminOutcome {
        let mut management = self.lock();
        let outcome = management.registry.fabrics_on_io_queue(controller, queue, sqe);
        self.act(&mut management);
        outcome
    }

    /// Adds a refused command to the controller's error log.
    pub(crate) fn record_error(
        &self,
        controller: ControllerId,
        queue: QueueId,
        sqe: &Sqe,
        status: Status,
    ) {
        let record = ErrorRecord {
            queue,
            command: CommandId(sqe.cid.get()),
            status,
            namespace: NamespaceId(sqe.nsid.get()),
            lba: None,
        };
        let mut management = self.lock();
        management.registry.record_error(controller, &record);
        self.act(&mut management);
    }

    fn publish_counters(&self, registry: &mut Registry) {
        let uptime_ms = os::elapsed(self.epoch).as_millis();
        let mut counted = self.meters.subsystems();
        let subsystems: Vec<_> = registry.subsystems().map(|(id, _)| id).collect();
        for subsystem in subsystems {
            let counts = counted.remove(&subsystem).unwrap_or_default();
            registry.set_counters(
                subsystem,
                SmartCounters {
                    read_bytes: counts.read_bytes.into(),
                    written_bytes: counts.written_bytes.into(),
                    read_commands: counts.reads.into(),
                    write_commands: counts.writes.into(),
                    media_errors: counts.media_errors.into(),
                    uptime_ms,
                    ..SmartCounters::default()
                },
            );
        }
    }

    /// Whether a controller has queues besides its admin queue.
    pub(crate) fn has_io_queues(&self, controller: ControllerId) -> bool {
        self.lock().routes.keys().any(|(owner, queue)| *owner == controller && queue.0 != 0)
    }

    /// A queue's connection has closed with these changes under way.
    pub(crate) fn queue_closed(
        &self,
        controller: ControllerId,
        queue: QueueId,
        route: Route,
        changes: Vec<Change>,
    ) {
        let mut management = self.lock();
        // Another queue may have its identifier by now.
        if management.routes.get(&(controller, queue)) == Some(&route) {
            management.routes.remove(&(controller, queue));
        }
        if self.stopping.load(Ordering::Relaxed)
            && let Some(&route) = management.routes.get(&(controller, QueueId(0)))
        {
            self.mailboxes()[route.core].post(Message::Look(route));
        }
        Self::forget_tickets(&mut management.desk, route);
        self.settle(&mut management, route.serial, |queues| queues.closed(route.serial, changes));
        let teardown = management.registry.queue_closed(controller, queue);
        if let Some(teardown) = teardown {
            self.tear_down(&mut management, &teardown);
        }
        self.act(&mut management);
    }

    /// Neither a closed queue nor its submitted operations are left.
    pub(crate) fn queue_gone(&self, instance: Instance, route: Route) {
        let mut management = self.lock();
        self.settle(&mut management, route.serial, |queues| queues.gone(instance, route.serial));
    }

    /// Records the state of a closed queue, and notifies the queues that wait for it.
    fn settle(
        &self,
        management: &mut Management,
        serial: u64,
        change: impl FnOnce(&mut Queues) -> Option<News>,
    ) {
        let Management { registry, queues, .. } = management;
        let before = queues.controller_of(serial);
        let Some((waiters, news)) = change(queues) else { return };
        for route in waiters {
            self.mailboxes()[route.core].post(Message::Ended(route, news));
        }
        if let Some((controller, instance)) = before.or(queues.controller_of(serial)) {
            registry.set_unfinished(controller, instance, queues.has_changes(instance));
        }
    }

    /// Whether no queue of a closed controller is left.
    pub(crate) fn is_gone(&self, instance: Instance) -> bool {
        os::has_mistake("target: a controller is gone before its operations")
            || self.lock().queues.is_gone(instance)
    }

    /// Checks the keep-alive timers and pending notices; returns the time until the next check.
    pub(crate) fn tick(&self) -> Option<std::time::Duration> {
        let now = os::now();
        let left = |next: std::time::Instant| next.saturating_duration_since(now);
        let [notice, visit] = [&self.notices, &self.visits].map(|it| it.settle(now).map(left));
        [self.tick_registry(), notice, visit].into_iter().flatten().min()
    }

    /// Logs the pending notices; none follow.
    pub(crate) fn finish_notices(&self) {
        self.notices.finish();
        self.visits.finish();
    }

    fn tick_registry(&self) -> Option<std::time::Duration> {
        let mut management = self.lock();
        let now = self.now();
        for teardown in management.registry.tick(now) {
            self.tear_down(&mut management, &teardown);
        }
        self.act(&mut management);
        let deadline = management.registry.next_look()?;
        Some(deadline.saturating_duration_since(now))
    }

    fn tear_down(&self, management: &mut Management, teardown: &Teardown) {
        tracing::debug!(
            controller = teardown.controller.0,
            reason = ?teardown.reason,
            "ending {} queues",
            teardown.queues.len()
        );
        self.host_is_out(management, teardown);
        management.discoveries.ended(teardown.controller);
        for &queue in &teardown.queues {
            if let Some(route) = management.routes.remove(&(teardown.controller, queue)) {
                management.queues.torn_down(route.serial);
                self.mailboxes()[route.core].post(Message::Close(route));
            }
        }
    }

    /// Executes the registry's actions after a call that changed it.
    pub(crate) fn act(&self, management: &mut Management) {
        while let Some(action) = management.registry.poll_action() {
            match action {
                Action::Complete { controller, command, status, result } => {
                    if let Some(&route) = management.routes.get(&(controller, QueueId(0))) {
                        let message = Message::Complete { route, command, status, result };
                        self.mailboxes()[route.core].post(message);
                    }
                }
                Action::Forget { controller, command } => {
                    if let Some(&route) = management.routes.get(&(controller, QueueId(0))) {
                        self.mailboxes()[route.core].post(Message::Forget { route, command });
                    }
                }
                Action::Close(teardown) => self.tear_down(management, &teardown),
                Action::Namespaces { subsystem, table } => {
                    let backings = management.exports.snapshot(subsystem);
                    for mailbox in self.mailboxes() {
                        let (table, backings) = (Arc::clone(&table), Arc::clone(&backings));
                        mailbox.post_namespaces(subsystem, table, backings);
                    }
                }
                Action::SaveReservations { subsystem, namespace, serial, text } => {
                    if !self.save((subsystem, namespace), serial, text) {
                        management.registry.reservations_saved(subsystem, namespace, serial, false);
                    }
                }
                Action::Access(change) => self.spread(&mut management.desk, &change),
                Action::Reserved { ticket, status, report } => {
                    self.answer(&mut management.desk, ticket, status, report);
                }
                Action::Flush { .. } => unreachable!("flush_on_shutdown is not asked for"),
            }
        }
    }

    /// Claims blocks; see [`crate::claims`].
    pub(crate) fn claim(
        &self,
        route: Route,
        backing: BackingId,
        place: (SubsystemId, NamespaceId),
        blocks: Range<u64>,
    ) -> Arc<Claim> {
        self.claims.claim(self.mailboxes(), route, backing, place, blocks)
    }

    /// A core has no changes of the claimed blocks under way.
    pub(crate) fn claim_applied(&self, claim: &Arc<Claim>) {
        self.claims.applied(self.mailboxes(), claim);
    }

    /// Gives up a claim.
    pub(crate) fn give_up(&self, claim: &Arc<Claim>) {
        self.claims.give_up(self.mailboxes(), claim);
    }

    /// A core has no connections left. It reads messages until no core has: others may ask it and
    /// wait for the answer.
    pub(crate) fn core_done(&self) {
        if self.done.fetch_add(1, Ordering::AcqRel) + 1 == self.mailboxes().len() {
            self.wake_all();
        }
    }

    /// Whether all cores have no connections left.
    pub(crate) fn all_done(&self) -> bool {
        self.done.load(Ordering::Acquire) >= self.mailboxes().len()
    }

    /// A core's thread has ended, maybe by a panic: do not wait for it.
    pub(crate) fn core_ended(&self) {
        self.done.fetch_max(self.mailboxes().len(), Ordering::AcqRel);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.mailboxes().iter().for_each(Mailbox::wake);
    }

    /// Starts to stop: every core completes its accepted work and ends.
    pub(crate) fn stop(&self) {
        if !self.stopping.swap(true, Ordering::Relaxed) {
            for mailbox in self.mailboxes() {
                mailbox.post(Message::Stop);
            }
        }
    }
}

fn not_by_tls(reason: Reason, sentence: &str) -> Denied {
    let refusal = Refusal { status: Status::CONNECT_INVALID_HOST.with_dnr(), result: 0 };
    Denied { refusal, why: Why::Tls(reason, sentence.to_owned()) }
}

/// The Connect result for a host that must authenticate.
fn authentication_required(
    controller: ControllerId,
    terms: &ControllerTerms,
    offer: Concatenation,
) -> u64 {
    let is_new = offer == Concatenation::NEW_TLS_PSK;
    let authreq = match terms.demand {
        Demand::SecureChannel if is_new => ConnectResult::AUTHREQ_ASCR,
        _ => ConnectResult::AUTHREQ_ATR,
    };
    ConnectResult { cntlid: controller.0, authreq }.emit()
}
