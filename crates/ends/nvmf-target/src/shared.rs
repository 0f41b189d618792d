//! What all cores share: the registry, where queues live, and the mailboxes of the cores.
//!
//! The mutex here is taken for Connect, admin commands and teardown, never for I/O.

mod identifiers;
mod listeners;
mod namespaces;
mod report;
mod stats;
mod subsystems;
mod visitors;

pub(crate) use listeners::{Listening, entry};
pub(crate) use namespaces::{Exports, describe};
pub use report::{ControllerReport, NamespaceReport, Report, SubsystemReport};
pub use stats::{CoreStats, HostStats, Stats, SubsystemStats, status_name};
pub(crate) use subsystems::warn_of_same_serial;

use crate::admissions::{Admissions, Reason};
use crate::authentication::Authenticator;
use crate::backings::{BackingId, Backings};
use crate::budget::Budget;
use crate::claims::{Claim, Claims};
use crate::control::Share;
use crate::cores_seen::CoresSeen;
use crate::crowd::Crowd;
use crate::discoveries::Discoveries;
use crate::events::{Observed, Visitor};
use crate::fence::{Change, EndingId, Fence, HostKey, News, Queues};
use crate::meters::Meters;
use crate::notices::Notices;
use crate::reservations::{Desk, Keeper};
use crate::session::{Asking, ConnectionKey};
use crate::slots::Slots;
use crate::tls::TlsTerms;
use crate::troubles::Troubles;
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

/// Where a connection lives. The serial number tells it from a later one of the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    pub(crate) core: usize,
    pub(crate) key: ConnectionKey,
    pub(crate) serial: u64,
}

/// What one core tells another.
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
    /// Forget a held command of this connection: it is never answered.
    Forget { route: Route, command: CommandId },
    /// A message of this connection's host was handled; see [`crate::authentication`].
    Authenticated { route: Route, slot: SlotId, machine: Box<Controller> },
    /// The answer to a reservation command of this connection.
    Reserved { route: Route, slot: SlotId, status: Status, report: Option<Vec<u8>> },
    /// Abort this command of this connection, and tell whether that was done.
    Abort { route: Route, command: CommandId, asking: Asking },
    /// The answer to an Abort command of this connection.
    Aborted { route: Route, slot: SlotId, aborted: bool },
    /// Connections of this subsystem heed this from now on.
    Access(Arc<AccessChange>),
    /// Connections of this subsystem use this table from now on, and what stores its namespaces.
    Namespaces(SubsystemId, Arc<NamespaceTable>, Arc<Backings>),
    /// Changes of these blocks wait from now on; say when none is under way.
    Claimed(Arc<Claim>),
    /// This connection has these blocks for itself.
    Granted(Route, Arc<Claim>),
    /// Changes of these blocks need not wait any more.
    Unclaimed(Arc<Claim>),
    /// Nothing is to be left of this store: no list before this message's is used any more.
    Retire(BackingId, Share),
    /// There is news of an earlier queue that commands of this fenced connection wait for.
    Ended(Route, EndingId),
    /// Listen on this, too, and say whether that works.
    Listen(ListenSocket, SocketAddr, Sender<std::io::Result<()>>),
    /// Listen there no more, and close the connections that came in there.
    Unlisten(SocketAddr),
    /// Close the connections that came in there, and may not stay.
    CloseAt(SocketAddr, Whom),
    /// Finish what was accepted, close everything and end.
    Stop,
}

/// Whose connections are closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whom {
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

    /// Tells of a subsystem's namespaces. A list that the core has not looked at yet is out of
    /// date, and the new one takes its place: however many changes there are in a row, a core looks
    /// at one list. What is retired behind that place is not in the new one either.
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

    /// Has the core look at its own affairs.
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
    /// Where the hosts of controllers are; those of ended ones too, until somebody asks.
    origins: HashMap<ControllerId, visitors::Origin>,
    /// Hosts that are known to be here.
    visitors: HashMap<ControllerId, Visitor>,
}

/// A queue that was connected.
pub(crate) struct Admitted {
    pub(crate) connected: Connected,
    /// What it has to wait for.
    pub(crate) fence: Option<Box<Fence>>,
    /// What stores the namespaces of its table, if it is an I/O queue.
    pub(crate) backings: Arc<Backings>,
    /// How its host has to authenticate, if it has to.
    pub(crate) terms: Option<Arc<ControllerTerms>>,
    /// It has proved who it is already: its key for TLS came of an authentication.
    pub(crate) has_proved: bool,
    /// The secure channel that may come of it.
    pub(crate) offer: Concatenation,
}

/// Why a queue was not connected.
pub(crate) struct Denied {
    /// What the host is told.
    pub(crate) refusal: Refusal,
    pub(crate) why: Why,
}

/// What is said of it here.
pub(crate) enum Why {
    /// What the host is told says it.
    Told,
    /// What is wrong about TLS: what is counted, and the sentence.
    Tls(Reason, String),
    /// What is wrong with the host's identifier.
    Identifier(String),
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, why: Why::Told }
    }
}

/// See the module's text.
pub(crate) struct TargetShared {
    management: Mutex<Management>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) admissions: Admissions,
    /// How often hosts were to reach namespaces in another way.
    ana_changes: AtomicU64,
    pub(crate) cores_seen: CoresSeen,
    pub(crate) observed: Observed,
    pub(crate) troubles: Troubles,
    pub(crate) authenticator: Authenticator,
    pub(crate) tls: TlsTerms,
    claims: Claims,
    pub(crate) listening: Listening,
    epoch: std::time::Instant,
    mailboxes: OnceLock<Vec<Mailbox>>,
    slots: Mutex<Slots>,
    pub(crate) connections: AtomicUsize,
    pub(crate) crowd: Crowd,
    serial: AtomicU64,
    stopping: AtomicBool,
    /// Cores that serve nobody any more.
    done: AtomicUsize,
    pub(crate) notices: Notices,
    /// The same of hosts that come and go: it is kept longer, and leaves the others their room.
    visits: Notices,
    pub(crate) keeper: Keeper,
    pub(crate) budget: Budget,
    /// What its event loops may spend on latency.
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
            cores_seen: CoresSeen::default(),
            observed: Observed::default(),
            authenticator: Authenticator::default(),
            tls,
            claims: Claims::default(),
            listening: Listening::default(),
            epoch: os::now(),
            mailboxes: OnceLock::new(),
            slots: Mutex::new(Slots::new(budget.connections)),
            connections: AtomicUsize::new(0),
            crowd: Crowd::default(),
            serial: AtomicU64::new(0),
            ana_changes: AtomicU64::new(0),
            troubles: Troubles::default(),
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

    /// Sets how much the event loops may spend on latency; once, before any core runs.
    pub(crate) fn set_polling(&self, polling: Polling) {
        assert!(self.polling.set(polling).is_ok(), "it is set once");
    }

    pub(crate) fn mailboxes(&self) -> &[Mailbox] {
        self.mailboxes.get().expect("set before any core runs")
    }

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Who may connect.
    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no holder panics")
    }

    fn now(&self) -> Instant {
        Instant(u64::try_from(os::elapsed(self.epoch).as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Management> {
        self.management.lock().expect("no holder panics")
    }

    /// Connects a queue, and remembers where it lives. What the host sends anew must not be undone
    /// by what is left of its earlier queues: it may be fenced. A host that has to authenticate is
    /// told so, and its terms are given.
    pub(crate) fn connect(
        &self,
        request: &ConnectRequest<'_>,
        shown: Option<&Named>,
        route: Route,
        peer: IpAddr,
    ) -> Result<Admitted, Denied> {
        let mut management = self.lock();
        // Under the same lock as what follows: whoever changes a host's keys finds its controllers.
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
        // Under the same lock: whoever changes a host's keys finds its controllers.
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
            let origin = visitors::Origin { address: peer, is_told: false };
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
            // The first core keeps the time; a new controller may have the next deadline.
            self.mailboxes()[0].wake();
        }
        let backings = backings.unwrap_or_default();
        Ok(Admitted { connected, fence, backings, terms, has_proved, offer })
    }

    /// The secure channel that may come of a queue's authentication. A host that has to be in one
    /// may come without on its admin queue alone.
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

    /// Whether what a host has shown in TLS, or that it came without, goes with who it says it is.
    fn check_channel(
        &self,
        request: &ConnectRequest<'_>,
        shown: Option<&Named>,
    ) -> Result<(), Denied> {
        let names = (request.data.host_nqn(), request.data.subsystem_nqn());
        let (Ok(host), Ok(subsystem)) = names else {
            // Without TLS the registry says what is wrong with them.
            let invalid = || not_by_tls(Reason::TlsOtherHost, "its names are none");
            return if shown.is_none() { Ok(()) } else { Err(invalid()) };
        };
        let checked = self.tls.check(request.port, shown, host, subsystem);
        checked.map_err(|(reason, sentence)| not_by_tls(reason, &sentence))
    }

    /// How many bytes of data an admin command brings.
    pub(crate) fn admin_data_bytes(&self, controller: ControllerId, sqe: &Sqe) -> u32 {
        self.lock().registry.admin_data_bytes(controller, sqe)
    }

    /// Does an admin command.
    pub(crate) fn admin(&self, controller: ControllerId, sqe: &Sqe, data: &[u8]) -> AdminOutcome {
        let mut management = self.lock();
        let opcode = AdminOpcode(sqe.opcode);
        if opcode == AdminOpcode::GET_LOG_PAGE {
            self.publish_counters(&mut management.registry);
        }
        let outcome = management.registry.admin(controller, sqe, data, self.now());
        self.act(&mut management);
        if matches!(opcode, AdminOpcode::SET_FEATURES | AdminOpcode::FABRICS) {
            // These may have set a deadline that the first core does not know of.
            self.mailboxes()[0].wake();
        }
        outcome
    }

    /// Has a command of a queue aborted. False if there is no such queue any more; otherwise the
    /// answer comes as a message.
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

    /// Does a fabrics command of an I/O queue.
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

    /// Notes a command that was refused in the controller's error log.
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

    /// A queue's connection is gone; these changes of it are still under way.
    pub(crate) fn queue_closed(
        &self,
        controller: ControllerId,
        queue: QueueId,
        route: Route,
        changes: Vec<Change>,
    ) {
        let mut management = self.lock();
        // Another queue may have its name by now.
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

    /// Nothing is left of a closed queue, and of what it had handed to namespaces.
    pub(crate) fn queue_gone(&self, instance: Instance, route: Route) {
        let mut management = self.lock();
        self.settle(&mut management, route.serial, |queues| queues.gone(instance, route.serial));
    }

    /// Notes what became of a queue that ended, and tells those who wait for it.
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

    /// Whether nothing is left of any queue of a controller that was ended.
    pub(crate) fn is_gone(&self, instance: Instance) -> bool {
        os::has_mistake("target: a controller is gone before its operations")
            || self.lock().queues.is_gone(instance)
    }

    /// Looks at the keep-alive timers, and at what is to be logged; gives the time until the next
    /// look.
    pub(crate) fn tick(&self) -> Option<std::time::Duration> {
        let now = os::now();
        let left = |next: std::time::Instant| next.saturating_duration_since(now);
        let [notice, visit] = [&self.notices, &self.visits].map(|it| it.settle(now).map(left));
        [self.tick_registry(), notice, visit].into_iter().flatten().min()
    }

    /// Nothing more will be logged of peers.
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

    /// Does what the registry asks for after a call that changed it.
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

    /// A core has nothing under way that changes what is claimed.
    pub(crate) fn claim_heeded(&self, claim: &Arc<Claim>) {
        self.claims.heeded(self.mailboxes(), claim);
    }

    /// A claim is not needed any more.
    pub(crate) fn give_up(&self, claim: &Arc<Claim>) {
        self.claims.give_up(self.mailboxes(), claim);
    }

    /// A core has nobody left to serve. It reads its messages until that is so of all: others ask
    /// it something, and wait for the answer.
    pub(crate) fn core_done(&self) {
        if self.done.fetch_add(1, Ordering::AcqRel) + 1 == self.mailboxes().len() {
            self.wake_all();
        }
    }

    /// Whether nobody asks a core anything any more.
    pub(crate) fn all_done(&self) -> bool {
        self.done.load(Ordering::Acquire) >= self.mailboxes().len()
    }

    /// A core's thread has ended, perhaps by a mistake: nobody waits for it.
    pub(crate) fn core_ended(&self) {
        self.done.fetch_max(self.mailboxes().len(), Ordering::AcqRel);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.mailboxes().iter().for_each(Mailbox::wake);
    }

    /// Begins to stop: every core finishes what was accepted and ends.
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

/// The result of Connect for a host that has to authenticate.
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
