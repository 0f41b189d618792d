//! The state that all cores share: the registry, the routes of queues, and the cores' mailboxes.
//!
//! Connect, admin commands and teardown lock [`Management`]. I/O does not lock it.

mod batches;
mod host_events;
mod identifiers;
mod listeners;
mod namespaces;
mod nesting;
mod peers;
mod report;
mod reservations;
mod stats;
mod subsystems;

pub(crate) use listeners::{Listening, first_number, is_entrance, numbered};
pub(crate) use namespaces::{Exports, describe};
pub(crate) use nesting::nest;
pub use report::{ControllerReport, NamespaceReport, Report, SubsystemReport};
pub use stats::{CoreStats, HostStats, Stats, SubsystemStats, status_name};
pub(crate) use subsystems::warn_of_same_serial;

use crate::admissions::{Admissions, Reason};
use crate::authentication::{Authenticator, Job};
use crate::backings::{BackingId, Backings};
use crate::budget::Budget;
use crate::claim::Claim;
use crate::claims::Claims;
use crate::core_states::CoreStates;
use crate::discoveries::Discoveries;
use crate::events::{Observed, Visitor};
use crate::fence::{Change, Fence, HostKey, News, Queues};
use crate::heap_trim::HeapTrim;
use crate::mailbox::{Mailbox, Message};
use crate::meters::Meters;
use crate::notices::Notices;
use crate::reservations::{Desk, Keeper};
use crate::route::Asking;
use crate::route::Route;
use crate::slots::Slots;
use crate::store_errors::StoreErrors;
use crate::tls::TlsTerms;
use batches::Batches;
use farblock_proto::capsule::RemoteForm;
use farblock_proto::controller::{
    Action, AdminOutcome, ConnectRequest, Connected, ErrorRecord, Instance, QueueKind, Refusal,
    Registry, SmartCounters, SubsystemId, Teardown,
};
use farblock_proto::ids::{CommandId, ControllerId, NamespaceId, QueueId};
use farblock_proto::time::Instant;
use farblock_reactor::Polling;
use farblock_reactor::os::{self};
use farblock_secure::{Concatenation, ControllerTerms, Demand};
use farblock_tls::Named;
use farblock_wire::fabrics::ConnectResult;
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::{Sqe, Status};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

pub(crate) struct Management {
    pub(crate) registry: Registry,
    pub(crate) desk: Desk,
    exports: Exports,
    routes: HashMap<(ControllerId, QueueId), Route>,
    queues: Queues,
    discoveries: Discoveries,
    /// The address of each controller's host. [`TargetShared::report`] removes the entries of
    /// closed controllers.
    origins: HashMap<ControllerId, host_events::Origin>,
    /// The hosts that the target has reported as connected, by controller.
    visitors: HashMap<ControllerId, Visitor>,
    batches: Batches,
}

pub(crate) struct Admitted {
    pub(crate) connected: Connected,
    /// The fence, if changes of the host's earlier queues are under way.
    pub(crate) fence: Option<Box<Fence>>,
    /// The stores of the subsystem's namespaces, if this is an I/O queue.
    pub(crate) backings: Arc<Backings>,
    /// The terms under which the host must authenticate; `None`: it need not authenticate.
    pub(crate) terms: Option<Arc<ControllerTerms>>,
    /// Whether the host has already authenticated, because an authentication generated its TLS key.
    pub(crate) has_proved: bool,
    /// The secure channel that authentication may establish.
    pub(crate) offer: Concatenation,
}

pub(crate) struct Denied {
    pub(crate) refusal: Refusal,
    pub(crate) why: Why,
}

pub(crate) enum Why {
    /// The status of the response is the only reason: the target logs no further text.
    Told,
    /// A TLS error: the counter to increment, and one sentence for the log.
    Tls(Reason, String),
    /// The host may not use this host identifier. The text is one sentence for the log.
    Identifier(String),
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, why: Why::Told }
    }
}

pub(crate) struct TargetShared {
    management: Mutex<Management>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) admissions: Admissions,
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
    /// The number of cores that have no connections left.
    done: AtomicUsize,
    pub(crate) notices: Notices,
    /// Notices about hosts that connect and disconnect. They have their own limit over a longer
    /// period, so that they do not suppress other notices.
    visits: Notices,
    pub(crate) keeper: Keeper,
    pub(crate) budget: Budget,
    /// The time that event loops poll before they sleep.
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
                batches: Batches::default(),
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

    /// Sets the cores' mailboxes. The target calls this once, when every core has its reactor.
    pub(crate) fn set_mailboxes(&self, mailboxes: Vec<Mailbox>) {
        assert!(self.mailboxes.set(mailboxes).is_ok(), "the cores are started once");
    }

    /// Sets the time that event loops poll before they sleep. The target calls this once, before
    /// any core runs.
    pub(crate) fn set_polling(&self, polling: Polling) {
        assert!(self.polling.set(polling).is_ok(), "polling is set once");
    }

    pub(crate) fn mailboxes(&self) -> &[Mailbox] {
        self.mailboxes.get().expect("set before any core runs")
    }

    /// Queues a job of this peer for the authentication thread.
    ///
    /// # Errors
    /// Fails if the system cannot start the thread.
    pub(crate) fn authenticate(self: &Arc<Self>, peer: IpAddr, job: Job) -> std::io::Result<()> {
        let shared = Arc::downgrade(self);
        self.authenticator.submit(peer, job, move |core, message| {
            shared.upgrade().map(|shared| shared.mailboxes()[core].post(message)).is_some()
        })
    }

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no holder panics")
    }

    fn now(&self) -> Instant {
        Instant(u64::try_from(os::elapsed(self.epoch).as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Management> {
        self.management.lock().expect("no holder panics")
    }

    /// Connects a queue and records its route. Fences the queue if earlier queues of the host still
    /// have changes under way: its commands must not overtake these changes.
    pub(crate) fn connect(
        &self,
        request: &ConnectRequest<'_>,
        shown: Option<&Named>,
        route: Route,
        peer: IpAddr,
    ) -> Result<Admitted, Denied> {
        let mut management = self.lock();
        // Hold the lock until the controller is registered. A concurrent change of the host's keys
        // must find this controller.
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
        // Read the host's authentication terms under the same lock, so that this queue cannot
        // connect with old terms during a change of the keys.
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
            // Core 0 runs the timers, and the deadline of the new controller may be the next one.
            self.mailboxes()[0].wake();
        }
        let backings = backings.unwrap_or_default();
        Ok(Admitted { connected, fence, backings, terms, has_proved, offer })
    }

    /// Returns the secure channel that a queue's authentication may establish. If a host must use
    /// such a channel, only its admin queue may connect without one.
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
                "the host must use TLS: without it, it may only authenticate on its admin queue, \
                 at a listener with TLS",
            ));
        }
        Ok(offer)
    }

    /// Checks that the host may use the TLS key `shown`. `None`: checks that the host may connect
    /// without TLS.
    fn check_channel(
        &self,
        request: &ConnectRequest<'_>,
        shown: Option<&Named>,
    ) -> Result<(), Denied> {
        let names = (request.data.host_nqn(), request.data.subsystem_nqn());
        let (Ok(host), Ok(subsystem)) = names else {
            // If a name is invalid and the host does not use TLS, let the registry refuse the
            // Connect with the status that NVMe specifies.
            let invalid = || {
                not_by_tls(Reason::TlsOtherHost, "the host NQN or the subsystem NQN is malformed")
            };
            return if shown.is_none() { Ok(()) } else { Err(invalid()) };
        };
        let checked = self.tls.check(request.port, shown, host, subsystem);
        checked.map_err(|(reason, sentence)| not_by_tls(reason, &sentence))
    }

    /// Returns the number of data bytes that an admin command transfers from the host.
    pub(crate) fn admin_data_bytes(&self, controller: ControllerId, sqe: &Sqe) -> u32 {
        self.lock().registry.admin_data_bytes(controller, sqe)
    }

    pub(crate) fn admin(&self, controller: ControllerId, sqe: &Sqe, data: &[u8]) -> AdminOutcome {
        let mut management = self.lock();
        let opcode = AdminOpcode(sqe.opcode);
        if opcode == AdminOpcode::GET_LOG_PAGE {
            self.publish_counters(&mut management.registry);
        }
        let outcome = management.registry.admin(controller, sqe, data, self.now());
        self.act(&mut management);
        if matches!(opcode, AdminOpcode::SET_FEATURES | AdminOpcode::FABRICS) {
            // The command may have set a deadline that core 0 does not know yet.
            self.mailboxes()[0].wake();
        }
        outcome
    }

    /// Requests the abort of a command from the command's queue. Returns false if the queue is
    /// closed. Otherwise the answer arrives as [`Message::Aborted`].
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

    /// Returns whether a controller has queues besides its admin queue.
    pub(crate) fn has_io_queues(&self, controller: ControllerId) -> bool {
        self.lock().routes.keys().any(|(owner, queue)| *owner == controller && queue.0 != 0)
    }

    /// Removes a queue whose connection has closed while `changes` are under way.
    pub(crate) fn queue_closed(
        &self,
        controller: ControllerId,
        queue: QueueId,
        route: Route,
        changes: Vec<Change>,
    ) {
        let mut management = self.lock();
        // A new queue may already have the same queue identifier.
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

    /// Removes a closed queue whose last submitted operation has ended.
    pub(crate) fn queue_gone(&self, instance: Instance, route: Route) {
        let mut management = self.lock();
        self.settle(&mut management, route.serial, |queues| queues.gone(instance, route.serial));
    }

    /// Notifies the queues that wait for a closed queue. Notifies the registry once the
    /// controller's changes have ended.
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

    /// Returns whether a closed controller has no queues left.
    pub(crate) fn is_gone(&self, instance: Instance) -> bool {
        os::has_mistake("target: a controller ends before its operations")
            || self.lock().queues.is_gone(instance)
    }

    /// Checks the keep-alive timers and the pending notices. Returns the time until the next check.
    pub(crate) fn tick(&self) -> Option<std::time::Duration> {
        let now = os::now();
        let left = |next: std::time::Instant| next.saturating_duration_since(now);
        let [notice, visit] = [&self.notices, &self.visits].map(|it| it.settle(now).map(left));
        [self.tick_registry(), notice, visit].into_iter().flatten().min()
    }

    /// Logs all pending notices when the target ends.
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
            "closing {} queues",
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

    /// Executes the registry's actions after a call that changed the registry.
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
                Action::ConsultReservations { subsystem, namespace, serial } => {
                    self.with_group((subsystem, namespace), |group| group.consult(serial));
                }
                Action::ProposeReservations { subsystem, namespace, proposal } => {
                    self.with_group((subsystem, namespace), |group| group.propose(proposal));
                }
                Action::SharedApplied { subsystem, namespace, index } => {
                    self.with_group((subsystem, namespace), |group| group.applied(index));
                }
                Action::Access(change) => self.spread(&mut management.desk, &change),
                Action::Reserved { ticket, status, report } => {
                    self.answer(&mut management.desk, ticket, status, report);
                }
                Action::Flush { .. } => unreachable!("the target does not use flush_on_shutdown"),
            }
        }
        self.retire_stores(management);
    }

    /// Queues a claim on blocks; see [`crate::claims`].
    pub(crate) fn claim(
        &self,
        route: Route,
        backing: BackingId,
        place: (SubsystemId, NamespaceId),
        blocks: Range<u64>,
    ) -> Arc<Claim> {
        self.claims.claim(self.mailboxes(), route, backing, place, blocks)
    }

    /// Notes that a core has no changes of the claimed blocks under way.
    pub(crate) fn claim_applied(&self, claim: &Arc<Claim>) {
        self.claims.applied(self.mailboxes(), claim);
    }

    pub(crate) fn give_up(&self, claim: &Arc<Claim>) {
        self.claims.give_up(self.mailboxes(), claim);
    }

    /// Notes that a core has no connections left. The core still handles messages until no core has
    /// connections, since other cores may wait for its answers.
    pub(crate) fn core_done(&self) {
        if self.done.fetch_add(1, Ordering::AcqRel) + 1 == self.mailboxes().len() {
            self.wake_all();
        }
    }

    pub(crate) fn all_done(&self) -> bool {
        self.done.load(Ordering::Acquire) >= self.mailboxes().len()
    }

    /// Notes that a core's thread has ended, possibly by a panic. The other cores then stop waiting
    /// for each other.
    pub(crate) fn core_ended(&self) {
        self.done.fetch_max(self.mailboxes().len(), Ordering::AcqRel);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.mailboxes().iter().for_each(Mailbox::wake);
    }

    /// Posts a message to every core to complete its accepted work and end.
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

/// Returns the Connect result for a host that must authenticate.
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
