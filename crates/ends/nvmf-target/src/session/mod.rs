//! A session: one queue pair, from accept to the last buffer's return. It knows commands, their
//! data, their answers and the limits; how they travel is its [`Transport`]'s.
//!
//! ```text
//!            Connect accepted        shutdown of the target
//!  Waiting ------------------> Open ------------------------> Draining
//!     |  fault, timeout          |  fault, host gone, torn down   |  nothing in flight
//!     +--------------------------+--------------------------------+
//!                                v
//!                  Closing (what was emitted is still sent)
//!                                v  sent, or it cannot be
//!                             Closed  --> freed when the transport is gone and every operation
//!                                         that was handed to a namespace has ended
//! ```

mod abort;
mod authentication;
mod commands;
mod copy;
mod counts;
mod data;
mod fused;
mod io;
mod namespaces;
mod paced;
mod reserve;
mod turns;

pub(crate) use abort::Asking;
pub(crate) use turns::InPlace;

use crate::admissions::Reason;
use crate::backings::Backings;
use crate::by_namespace::ByNamespace;
use crate::core::Context;
use crate::fence::Fence;
use crate::limits;
use crate::losses::Losses;
use crate::memory::HolderId;
use crate::meter::Wait;
use crate::meters::QueueMeters;
use crate::notices::NoticeKind;
use crate::pace::Pace;
use crate::reservations::{Limits, Owner};
use crate::shared::Route;
use crate::shares::ShareId;
use crate::transport::Transport;
use crate::volumes::VolumeId;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{
    Instance, IoCommand, NamespaceTable, PortId, SubsystemId, Traffic,
};
use farblock_proto::ids::{ControllerId, QueueId};
use farblock_reactor::{Buffer, Event, TaskId};
use farblock_wire::{Sqe, Status};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A connection of a core, by number; the core reuses numbers only after the connection is freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnectionKey(pub(crate) u32);

/// Bits of a block operation's token that hold the slot; the rest holds the connection.
const TOKEN_SLOT_BITS: u32 = 16;

/// The token of the operations of `slot` of connection `key`.
fn token(key: ConnectionKey, slot: SlotId) -> u64 {
    u64::from(key.0) << TOKEN_SLOT_BITS | u64::from(slot.0)
}

/// Whose operation has `token`.
pub(crate) fn token_owner(token: u64) -> (ConnectionKey, SlotId) {
    (ConnectionKey((token >> TOKEN_SLOT_BITS) as u32), SlotId(token as u16))
}

/// Life of a session; see the module's diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionState {
    /// Its Connect command was not accepted yet.
    Waiting,
    /// It serves commands.
    Open,
    /// It finishes what it has accepted and accepts nothing new.
    Draining,
    /// It only sends what was emitted.
    Closing,
    /// It neither sends nor receives; the transport is on its way out.
    Closed,
    /// The transport is gone.
    Gone,
}

/// What the Connect command made of the session.
pub(crate) enum Queue {
    /// It was not accepted yet, or the queue is closed.
    None,
    /// Its host has to authenticate before it is this queue.
    Locked(Box<Queue>),
    /// The admin queue of a controller.
    Admin { controller: ControllerId },
    /// An I/O queue of a controller.
    Io(Box<IoQueue>),
}

/// An I/O queue's view of its subsystem.
pub(crate) struct IoQueue {
    pub(crate) controller: ControllerId,
    pub(crate) id: QueueId,
    pub(crate) subsystem: SubsystemId,
    /// How its namespaces are reached; see [`NamespaceTable::seen_from`].
    pub(crate) port: Option<PortId>,
    /// Whose it is, for messages and what it sees; see [`NamespaceTable::seen_by`].
    pub(crate) host: String,
    pub(crate) table: Arc<NamespaceTable>,
    /// What stores the namespaces of the table.
    pub(crate) backings: Arc<Backings>,
    /// What the host may do with all of them in a second, if that is limited.
    pub(crate) pace: Option<Arc<Pace>>,
    /// The core's queues into namespaces used so far.
    pub(crate) volumes: ByNamespace<VolumeId>,
    pub(crate) meters: QueueMeters,
    /// Marked for the keep-alive timer when commands arrive.
    pub(crate) traffic: Arc<Traffic>,
}

/// What a command in a slot is.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// No command, or one that is already answered.
    None,
    /// The Connect command, whose data is being pulled.
    Connect,
    /// An admin command, whose data is being pulled.
    Admin,
    /// A message of an authentication, which is being pulled or handled.
    Authentication,
    /// An asynchronous event request, held until there is an event.
    Held,
    /// An I/O command.
    Io(IoCommand),
    /// A reservation command that the registry has; a report of so many bytes is the answer.
    Reserving { report_bytes: usize },
    /// An Abort command that the queue of the command to abort has.
    Aborting,
}

/// A slot's command and what it holds.
struct SessionRequest {
    work: Work,
    sqe: Sqe,
    /// When it came, if it is to be known how long it takes.
    began: Option<Instant>,
    /// Data from the host or for it.
    buffer: Option<Buffer>,
    /// What a Compare reads.
    second: Option<Buffer>,
    /// Bytes of data that come from the host.
    pulled_bytes: usize,
    /// They come because the host was asked for them, and not in the command's capsule.
    asked_for: bool,
    /// They have not all come.
    awaited: bool,
    /// When that began, as the core's account of memory counts.
    epoch: u32,
    /// Bytes that the buffers count for.
    held_bytes: usize,
    /// Block operations that have not ended.
    operations: u32,
    /// The first error, or success.
    status: Status,
    /// What a flush of one namespace may lose.
    losses: Option<Arc<Losses>>,
    /// It was asked whether it may begin now, if that is limited.
    has_passed: bool,
    /// How far it is, if it takes turns.
    progress: turns::Progress,
}

impl SessionRequest {
    fn new() -> Self {
        Self {
            work: Work::None,
            sqe: Sqe::zeroed(),
            began: None,
            buffer: None,
            second: None,
            losses: None,
            pulled_bytes: 0,
            asked_for: false,
            awaited: false,
            epoch: 0,
            held_bytes: 0,
            operations: 0,
            status: Status::SUCCESS,
            has_passed: false,
            progress: turns::Progress::default(),
        }
    }
}

/// The submission queue as the answers tell of it.
struct Submission {
    /// Entries; one more than a host may use, unless it disabled flow control.
    depth: u16,
    /// The next entry to be taken.
    head: u16,
    /// Answers tell the head.
    flow_control: bool,
}

/// Data on their way from the host, and the timer that looks whether they do come.
struct Arrivals {
    /// Transfers that the host was asked for and that are under way.
    asked_for: usize,
    /// When data last came for a transfer that is under way, asked for or not, while it is watched.
    last_data: Instant,
    /// The timer is set that looks at it.
    watched: bool,
}

/// What has to end before the session can.
#[derive(Default)]
struct Pending {
    /// Commands that are not answered.
    commands: usize,
    /// Held commands (asynchronous event requests), which draining does not wait for.
    held_commands: usize,
    /// Block operations in flight, of all slots.
    operations: usize,
    /// A Disconnect command, answered when nothing else is in flight.
    disconnect: Option<SlotId>,
}

/// What is put off, commands in order.
#[derive(Default)]
struct Waiting {
    for_buffers: VecDeque<SlotId>,
    /// Reads of a round that is large enough.
    for_a_moment: VecDeque<(SlotId, VolumeId)>,
    /// What came and is not taken apart, until its host's part of the core is there again.
    for_share: Option<Instant>,
}

/// Memory on somebody's account.
#[derive(Default)]
struct Held {
    /// In buffers.
    bytes: usize,
    /// For as many commands as there were at once.
    kept_bytes: usize,
    /// Whose account that is, from the start to the end.
    holder: Option<HolderId>,
}

/// What is of one tick of the core only.
#[derive(Default)]
struct Tick {
    /// Listed in the core's list of connections with something to do at the tick's end.
    listed: bool,
    /// A refused command is in the error log already.
    logged_error: bool,
    /// Bytes that the reads of this round will push.
    bytes: usize,
}

/// See the module's text.
pub(crate) struct Session<T> {
    pub(crate) transport: T,
    route: Route,
    task: TaskId,
    /// The host's address, for messages.
    pub(crate) peer: SocketAddr,
    /// Where it came in.
    entrance: SocketAddr,
    state: SessionState,
    queue: Queue,
    /// Only of hosts that have to authenticate.
    authentication: Option<Box<authentication::Authentication>>,
    /// The controller that its queue was connected to, even when that is gone.
    instance: Option<Instance>,
    /// Earlier queues of the host have changes under way.
    fence: Option<Box<Fence>>,
    /// Whose its queue was, even when that is closed; `None` before it was connected.
    owner: Option<Owner>,
    /// Others have reserved namespaces that this host uses.
    limits: Option<Box<Limits>>,
    requests: Vec<SessionRequest>,
    submission: Submission,
    pending: Pending,
    waiting: Waiting,
    /// Commands that wait since they are too many.
    paced: paced::Paced,
    /// Fused commands, if there have been any.
    fused: Option<Box<fused::Fused>>,
    /// Commands that wait for their turn.
    turns: turns::Turns,
    /// Who wants commands aborted.
    aborts: abort::Aborts,
    held: Held,
    arrivals: Arrivals,
    /// Listed in the core's list of connections that wait for buffers, or for their turn to
    /// receive.
    pub(crate) starving: bool,
    tick: Tick,
    /// Its host's part of the core, if it is an I/O queue.
    share: Option<ShareId>,
}

impl<T: Transport> Session<T> {
    /// A session whose transport was just accepted.
    pub(crate) fn new(
        route: Route,
        task: TaskId,
        transport: T,
        peer: SocketAddr,
        entrance: SocketAddr,
    ) -> Self {
        Self {
            transport,
            route,
            task,
            peer,
            entrance,
            state: SessionState::Waiting,
            queue: Queue::None,
            authentication: None,
            instance: None,
            fence: None,
            owner: None,
            limits: None,
            requests: vec![SessionRequest::new()],
            submission: Submission { depth: 1, head: 0, flow_control: true },
            pending: Pending::default(),
            waiting: Waiting::default(),
            paced: paced::Paced::default(),
            fused: None,
            turns: turns::Turns::default(),
            aborts: abort::Aborts::default(),
            held: Held::default(),
            arrivals: Arrivals {
                asked_for: 0,
                last_data: farblock_reactor::os::now(),
                watched: false,
            },
            starving: false,
            tick: Tick::default(),
            share: None,
        }
    }

    /// Starts receiving; the first thing that a session does.
    pub(crate) fn start(&mut self, cx: &mut Context) {
        self.held.holder = Some(cx.memory.join(self.peer.ip()));
        cx.reactor
            .set_timer(self.task, Some(farblock_reactor::os::now() + limits::CONNECT_TIMEOUT));
        T::start(self, cx);
    }

    /// Whether nothing of it is left anywhere.
    pub(crate) fn is_gone(&self) -> bool {
        self.state == SessionState::Gone && self.pending.operations == 0
    }

    /// Whether commands are carried out and answered.
    fn is_serving(&self) -> bool {
        matches!(self.state, SessionState::Open | SessionState::Draining)
    }

    /// Whether the transport is closed or about to be: nobody is left to answer.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, SessionState::Closed | SessionState::Gone)
    }

    /// The controller that its queue was connected to, even when that is gone.
    pub(crate) fn instance(&self) -> Option<Instance> {
        self.instance
    }

    /// Where it lives.
    pub(crate) fn route(&self) -> Route {
        self.route
    }

    /// The reactor task whose events are this connection's.
    pub(crate) fn task(&self) -> TaskId {
        self.task
    }

    /// Whether its host has shown a key for TLS.
    pub(crate) fn uses_tls(&self) -> bool {
        self.transport.peer().is_some()
    }

    fn request(&mut self, slot: SlotId) -> &mut SessionRequest {
        &mut self.requests[usize::from(slot.0)]
    }

    /// Does what an event asks for.
    pub(crate) fn handle(&mut self, cx: &mut Context, event: Event) {
        match event {
            Event::Timer => self.timer(cx),
            event => T::handle(self, cx, event),
        }
    }

    /// Whether its Connect command was not accepted yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == SessionState::Waiting
    }

    /// Whether what the host sends is still looked at.
    pub(crate) fn takes_commands(&self) -> bool {
        matches!(self.state, SessionState::Waiting | SessionState::Open | SessionState::Draining)
    }

    /// Has [`Self::finish_tick`] called at the end of this tick.
    pub(crate) fn list(&mut self, cx: &mut Context) {
        cx.list(self.route.key, &mut self.tick.listed);
    }

    /// Whether more of what it has sent is for a later round, since its host has had its part.
    #[inline]
    pub(crate) fn has_had_its_part(&self, cx: &mut Context) -> bool {
        cx.shares.is_shared() && self.share.is_some_and(|share| cx.shares.has_none_left(share))
    }

    /// Something came: whose it is.
    #[inline]
    pub(crate) fn note_arrival(&self, cx: &mut Context) {
        if let Some(share) = self.share {
            cx.shares.came(share);
        }
    }

    /// Counts a command as its host's part.
    #[cold]
    fn take_share(&self, cx: &mut Context, command: &IoCommand) {
        if let Some(share) = self.share {
            cx.shares.take(share, self.buffer_bytes(command));
        }
    }

    /// What it has sent waits until it is its host's turn.
    pub(crate) fn wait_for_share(&mut self, cx: &mut Context) {
        if let Some(share) = self.share
            && self.waiting.for_share.is_none()
        {
            self.waiting.for_share = Some(cx.now());
            cx.shares.wait(share, self.route.key);
        }
    }

    /// Whether it waits for that.
    pub(crate) fn waits_for_share(&self) -> bool {
        self.waiting.for_share.is_some()
    }

    /// Its turn has come.
    pub(crate) fn resume(&mut self, cx: &mut Context) {
        if let Some(since) = self.waiting.for_share.take() {
            let waited = cx.now().saturating_duration_since(since).as_nanos();
            self.count_wait(None, Wait::Turn, u64::try_from(waited).unwrap_or(u64::MAX));
        }
        T::resume(self, cx);
    }

    /// What is left to do once everything of this tick was handled: send, and go on or close.
    pub(crate) fn finish_tick(&mut self, cx: &mut Context) {
        self.tick = Tick::default();
        if self.is_serving() {
            if self.fused.is_some() {
                self.settle_fused(cx);
            }
            self.start_waiting(cx);
            self.answer_disconnect();
        }
        T::finish_tick(self, cx);
        if self.is_serving() && self.fused.as_ref().is_some_and(|fused| fused.is_news()) {
            self.list(cx);
        }
        self.tell_of_aborts(cx);
        let idle = self.transport.is_idle();
        match self.state {
            SessionState::Closing if idle => self.close(cx),
            SessionState::Draining if idle && self.is_drained(cx) => self.close(cx),
            _ => {}
        }
    }

    /// Nothing that was accepted is left to do. An admin queue stays for as long as its
    /// controller has I/O queues, which its end would end.
    fn is_drained(&self, cx: &Context) -> bool {
        let idle = self.pending.commands <= self.pending.held_commands;
        match self.queue {
            Queue::Admin { controller } if idle => !cx.shared.has_io_queues(controller),
            _ => idle,
        }
    }

    fn timer(&mut self, cx: &mut Context) {
        match self.state {
            SessionState::Waiting => {
                cx.shared.admissions.refused(Reason::Late);
                cx.notice(NoticeKind::Late, self.peer.ip(), || {
                    tracing::warn!(peer = %self.peer, "no Connect command in time: closing");
                });
                self.close(cx);
            }
            SessionState::Open if self.is_locked() => self.authentication_late(cx),
            SessionState::Open if self.arrivals.asked_for > 0 || self.transport.is_in_data() => {
                let deadline = self.arrivals.last_data + limits::TRANSFER_TIMEOUT;
                if cx.now() >= deadline {
                    cx.notice(NoticeKind::Late, self.peer.ip(), || {
                        let peer = self.peer;
                        tracing::warn!(%peer, "data that were to come did not: closing");
                    });
                    self.close(cx);
                } else {
                    cx.reactor.set_timer(self.task, Some(deadline));
                }
            }
            SessionState::Draining | SessionState::Closing => self.close(cx),
            SessionState::Open => self.arrivals.watched = false,
            SessionState::Closed | SessionState::Gone => {}
        }
    }

    /// Ends the connection in good order: what was accepted is finished, then it is closed.
    pub(crate) fn drain(&mut self, cx: &mut Context) {
        match self.state {
            SessionState::Open => {
                self.state = SessionState::Draining;
                self.answer_held_commands();
                self.wait_no_longer(cx);
                self.expect_no_second(cx);
                cx.reactor.set_timer(self.task, Some(cx.now() + limits::DRAIN_TIMEOUT));
                self.list(cx);
            }
            SessionState::Waiting => self.close(cx),
            _ => {}
        }
    }

    /// Held asynchronous event requests are answered, so that the host hears of the end.
    fn answer_held_commands(&mut self) {
        for index in 0..self.requests.len() {
            let slot = SlotId(index as u16);
            if matches!(self.requests[index].work, Work::Held) {
                self.pending.held_commands -= 1;
                self.respond(slot, Status::ABORTED_SQ_DELETION, 0);
            }
        }
    }

    /// Sends what was emitted and then closes.
    pub(crate) fn close_after_sending(&mut self, cx: &mut Context) {
        if self.takes_commands() {
            self.state = SessionState::Closing;
            cx.reactor.set_timer(self.task, Some(cx.now() + limits::CONNECT_TIMEOUT));
            self.list(cx);
        }
    }

    /// Closes at once, since the target wants it: the host has not left in the middle of anything.
    pub(crate) fn end(&mut self, cx: &mut Context) {
        self.authentication = None;
        self.close(cx);
    }

    /// Closes at once. Operations that were handed to a namespace go on; nobody hears of them.
    pub(crate) fn close(&mut self, cx: &mut Context) {
        if self.is_closed() {
            return;
        }
        self.ends_unproved(cx);
        self.state = SessionState::Closed;
        cx.reactor.set_timer(self.task, None);
        self.waiting.for_buffers.clear();
        let key = self.route.key;
        self.turns.clear().for_each(|line| cx.in_place.leave(line, key));
        self.aborts.close();
        self.stop_waiting(cx);
        self.close_fused(cx);
        self.waiting.for_a_moment.clear();
        if let Some(share) = self.share.take() {
            cx.shares.leave(share, key);
        }
        self.fence = None;
        self.authentication = None;
        let queue = match std::mem::replace(&mut self.queue, Queue::None) {
            Queue::Locked(queue) => *queue,
            queue => queue,
        };
        let closed = match queue {
            Queue::None | Queue::Locked(_) => None,
            Queue::Admin { controller } => Some((controller, QueueId(0))),
            Queue::Io(queue) => Some((queue.controller, queue.id)),
        };
        if let Some((controller, queue)) = closed {
            cx.shared.queue_closed(controller, queue, self.route, self.changes_under_way());
        }
        // Not before: the host's next queue is fenced only if it is known that this one has ended.
        self.transport.close(cx);
        self.list(cx);
    }

    /// Nothing is left of the transport.
    pub(crate) fn gone(&mut self, cx: &mut Context) {
        self.close(cx);
        self.state = SessionState::Gone;
        T::abandon(self, cx);
        // What a namespace still works on is given back when that ends.
        for index in 0..self.requests.len() {
            if self.requests[index].operations == 0 {
                self.release(cx, SlotId(index as u16));
            }
        }
        self.list(cx);
    }
}
