//! A session serves one queue pair, from accept until the namespaces have returned its last buffer.
//! The session handles commands, their data, responses and limits. Its [`Transport`] carries
//! commands, data and responses. A *tick* is one iteration of the core's event loop.
//!
//! ```text
//!            Connect accepted        shutdown of the target
//!  Waiting ------------------> Open ------------------------> Draining
//!     |  fault, timeout          |  fault, host left, torn down   |  nothing in flight
//!     +--------------------------+--------------------------------+
//!                                v
//!                  Closing (sends the remaining output)
//!                                v  sent, or it cannot be sent
//!                             Closed  --> freed when the transport is gone and every operation
//!                                         submitted to a namespace has ended
//! ```

mod abort;
mod authentication;
mod commands;
mod copy;
mod counts;
mod data;
mod fused;
mod gates;
mod io;
mod namespaces;
mod paced;
mod permits;
mod reserve;
mod trace;
mod turns;

use crate::admissions::Reason;
use crate::backings::Backings;
use crate::by_namespace::ByNamespace;
use crate::context::Context;
use crate::fence::Fence;
use crate::lifecycle::Lifecycle;
use crate::limits;
use crate::losses::Losses;
use crate::memory::HolderId;
use crate::meter::Wait;
use crate::meters::QueueMeters;
use crate::notices::NoticeKind;
use crate::pace::Pace;
use crate::reservations::{Limits, Owner};
use crate::route::Route;
use crate::shares::ShareId;
use crate::transport::Transport;
use crate::volumes::VolumeId;
use farblock_proto::capsule::{RemoteForm, SlotId};
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionState {
    /// The session waits for a successful Connect command.
    Waiting,
    /// The session executes commands.
    Open,
    /// The session completes accepted commands, and accepts no new ones.
    Draining,
    /// The session only sends its remaining output.
    Closing,
    /// The session neither sends nor receives, and its transport is closing.
    Closed,
    /// The transport has closed.
    Gone,
}

pub(crate) enum Queue {
    /// There is no queue yet, or the queue has closed.
    None,
    /// A queue whose host must authenticate first.
    Locked(Box<Queue>),
    /// The admin queue of a controller.
    Admin { controller: ControllerId },
    /// An I/O queue of a controller.
    Io(Box<IoQueue>),
}

pub(crate) struct IoQueue {
    pub(crate) controller: ControllerId,
    pub(crate) id: QueueId,
    pub(crate) subsystem: SubsystemId,
    /// The listener that accepted the connection. It determines the ANA states that the host sees;
    /// see [`NamespaceTable::seen_from`].
    pub(crate) port: Option<PortId>,
    /// The host's name, for messages and visibility; see [`NamespaceTable::seen_by`].
    pub(crate) host: String,
    pub(crate) table: Arc<NamespaceTable>,
    pub(crate) backings: Arc<Backings>,
    /// The host's rate limits over all namespaces.
    pub(crate) pace: Option<Arc<Pace>>,
    /// The core's queues into the namespaces that this queue has used so far.
    pub(crate) volumes: ByNamespace<VolumeId>,
    pub(crate) meters: QueueMeters,
    /// The queue notes here that commands arrive, for the keep-alive timer.
    pub(crate) traffic: Arc<Traffic>,
    is_traced: bool,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// The slot has no command, or its command already has its response.
    None,
    /// A Connect command whose data are being transferred.
    Connect,
    /// An admin command whose data are being transferred.
    Admin,
    /// An authentication message that is being transferred or handled.
    Authentication,
    /// An asynchronous event request, which the session holds until an event occurs.
    Held,
    /// An I/O command.
    Io(IoCommand),
    /// A reservation command that waits for the registry. The report of a Reservation Report has
    /// `report_bytes` bytes.
    Reserving { report_bytes: usize },
    /// An Abort command. It waits for the reply of the queue that holds the command to abort.
    Aborting,
}

struct SessionRequest {
    work: Work,
    sqe: Sqe,
    /// The time when the command arrived; `None` if latency is not measured.
    began: Option<Instant>,
    /// The data from or for the host.
    buffer: Option<Buffer>,
    /// The data that a Compare has read from its namespace.
    second: Option<Buffer>,
    /// The number of data bytes from the host.
    pulled_bytes: usize,
    /// Whether the target requests the data from the host (by R2T or RDMA READ). Otherwise they
    /// arrive in the capsule.
    asked_for: bool,
    /// Whether some of the data from the host are still missing.
    awaited: bool,
    /// The epoch of [`crate::memory`] in which the command started to wait for data.
    epoch: u32,
    held_bytes: usize,
    operations: u32,
    /// The status of the first failed operation, or success.
    status: Status,
    /// The record of the namespace's failed flushes, if this is a Flush of a single namespace.
    losses: Option<Arc<Losses>>,
    life: Lifecycle,
    /// The progress of a command that executes in steps.
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
            life: Lifecycle::ANSWERED,
            progress: turns::Progress::default(),
        }
    }
}

struct Submission {
    /// The number of entries. A host may use one entry fewer, unless it disabled flow control.
    depth: u16,
    head: u16,
    /// Whether responses contain the head of the submission queue (SQHD).
    flow_control: bool,
}

/// The data that the host still has to send, and the timer that watches them.
struct Arrivals {
    /// The number of requested transfers under way.
    asked_for: usize,
    /// The time when data last arrived for a transfer that the timer watches.
    last_data: Instant,
    /// Whether the timer is set.
    watched: bool,
}

/// The work that must end before the session can end.
#[derive(Default)]
struct Pending {
    /// The number of commands that have no response yet.
    commands: usize,
    /// The number of held asynchronous event requests among `commands`. Draining does not wait for
    /// them.
    held_commands: usize,
    /// The number of block operations in flight over all slots.
    operations: usize,
    /// A Disconnect command. The session sends its response after all other responses.
    disconnect: Option<SlotId>,
}

#[derive(Default)]
struct Waiting {
    for_buffers: VecDeque<SlotId>,
    /// Reads that are deferred until the session has parsed the reads that arrived with them, so
    /// that the namespace can prefetch their data.
    for_a_moment: VecDeque<(SlotId, VolumeId)>,
    /// The time since which unparsed input waits for the host's turn.
    for_share: Option<Instant>,
}

/// The memory charged to this connection's holder: its host, or before Connect its address.
#[derive(Default)]
struct Held {
    /// The bytes of buffers.
    bytes: usize,
    /// The bytes of the session's command slots. The session keeps each slot that was used, so the
    /// number of slots is the peak number of concurrent commands.
    kept_bytes: usize,
    /// The bytes that the transport keeps until it closes.
    lasting_bytes: usize,
    /// The holder; `Some` while the connection is open.
    holder: Option<HolderId>,
}

/// The state for one tick: one round of the core's event loop.
#[derive(Default)]
struct Tick {
    /// Whether the core has listed this connection for the end of the tick.
    listed: bool,
    /// Whether the session has logged a refused command in this tick.
    logged_error: bool,
    /// The bytes that the deferred reads will send.
    bytes: usize,
}

pub(crate) struct Session<T> {
    pub(crate) transport: T,
    route: Route,
    task: TaskId,
    pub(crate) peer: SocketAddr,
    entrance: SocketAddr,
    state: SessionState,
    queue: Queue,
    /// The state of the authentication. `None` if the host need not authenticate.
    authentication: Option<Box<authentication::Authentication>>,
    /// The controller instance of the queue. It remains set after the queue has closed.
    instance: Option<Instance>,
    /// Set while the host's earlier queues have changes under way.
    fence: Option<Box<Fence>>,
    /// The subsystem and host of the queue. They remain set after the queue has closed. `None`
    /// before Connect.
    owner: Option<Owner>,
    /// The accesses that reservations of other hosts deny to this host; `None` if they deny
    /// nothing.
    limits: Option<Box<Limits>>,
    requests: Vec<SessionRequest>,
    submission: Submission,
    pending: Pending,
    waiting: Waiting,
    paced: paced::Paced,
    fused: Option<Box<fused::Fused>>,
    /// The commands that wait for their turn to start a step.
    turns: turns::Turns,
    aborts: abort::Aborts,
    held: Held,
    arrivals: Arrivals,
    /// Whether the core has queued this connection to retry once buffers are released.
    pub(crate) parked: bool,
    tick: Tick,
    /// The host's entry in the scheduler of the core ([`crate::shares`]), if this is an I/O queue.
    share: Option<ShareId>,
}

impl<T: Transport> Session<T> {
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
            parked: false,
            tick: Tick::default(),
            share: None,
        }
    }

    /// Starts receiving. This is always the first call.
    pub(crate) fn start(&mut self, cx: &mut Context) {
        self.held.holder = Some(cx.memory.join(self.peer.ip()));
        cx.reactor
            .set_timer(self.task, Some(farblock_reactor::os::now() + limits::CONNECT_TIMEOUT));
        T::start(self, cx);
    }

    /// Returns whether the transport has closed and all operations have ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.state == SessionState::Gone && self.pending.operations == 0
    }

    /// Returns whether the session executes commands and sends responses.
    fn is_serving(&self) -> bool {
        matches!(self.state, SessionState::Open | SessionState::Draining)
    }

    /// Returns whether the transport is closed or closing, so that the session cannot send a
    /// response.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, SessionState::Closed | SessionState::Gone)
    }

    /// Returns the controller instance of the queue, even after the queue has closed.
    pub(crate) fn instance(&self) -> Option<Instance> {
        self.instance
    }

    pub(crate) fn route(&self) -> Route {
        self.route
    }

    pub(crate) fn task(&self) -> TaskId {
        self.task
    }

    /// Returns whether the host connected with TLS.
    pub(crate) fn uses_tls(&self) -> bool {
        self.transport.peer().is_some()
    }

    fn request(&mut self, slot: SlotId) -> &mut SessionRequest {
        &mut self.requests[usize::from(slot.0)]
    }

    pub(crate) fn handle(&mut self, cx: &mut Context, event: Event) {
        match event {
            Event::Timer => self.timer(cx),
            event => T::handle(self, cx, event),
        }
    }

    /// Returns whether the session waits for a successful Connect command.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == SessionState::Waiting
    }

    /// Returns whether the session still parses input.
    pub(crate) fn takes_commands(&self) -> bool {
        matches!(self.state, SessionState::Waiting | SessionState::Open | SessionState::Draining)
    }

    /// Schedules [`Self::finish_tick`] for the end of this tick.
    pub(crate) fn list(&mut self, cx: &mut Context) {
        cx.list(self.route.key, &mut self.tick.listed);
    }

    /// Returns whether the host has used up its allowance of this scheduling round, so that further
    /// input must wait for a later round.
    #[inline]
    pub(crate) fn has_had_its_part(&self, cx: &mut Context) -> bool {
        cx.shares.is_shared() && self.share.is_some_and(|share| cx.shares.has_none_left(share))
    }

    /// Tells the scheduler of the core that input of this host has arrived.
    #[inline]
    pub(crate) fn note_arrival(&self, cx: &mut Context) {
        if let Some(share) = self.share {
            cx.shares.came(share);
        }
    }

    #[cold]
    fn take_share(&mut self, cx: &mut Context, slot: SlotId) {
        if let Some(share) = self.share {
            cx.shares.take(share, self.buffer_bytes(slot));
        }
    }

    /// Defers the session's input until the scheduler ([`crate::shares`]) resumes it.
    pub(crate) fn wait_for_share(&mut self, cx: &mut Context) {
        if let Some(share) = self.share
            && self.waiting.for_share.is_none()
        {
            self.waiting.for_share = Some(cx.now());
            cx.shares.wait(share, self.route.key);
        }
    }

    pub(crate) fn waits_for_share(&self) -> bool {
        self.waiting.for_share.is_some()
    }

    /// Resumes parsing input, after [`Self::wait_for_share`].
    pub(crate) fn resume(&mut self, cx: &mut Context) {
        if let Some(since) = self.waiting.for_share.take() {
            let waited = cx.now().saturating_duration_since(since).as_nanos();
            self.count_wait(None, Wait::Turn, u64::try_from(waited).unwrap_or(u64::MAX));
        }
        T::resume(self, cx);
    }

    /// Ends a tick after all events were handled: starts waiting commands and sends the output.
    /// Closes a draining or closing connection whose work is done.
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

    /// Returns whether all accepted work is done. An admin queue is not drained while its
    /// controller has I/O queues, since they would close with the admin queue.
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
                    tracing::warn!(
                        peer = %self.peer,
                        "closing the connection: the host sent no Connect command in time"
                    );
                });
                self.close(cx);
            }
            SessionState::Open if self.is_locked() => self.authentication_late(cx),
            SessionState::Open if self.arrivals.asked_for > 0 || self.transport.is_in_data() => {
                let deadline = self.arrivals.last_data + limits::TRANSFER_TIMEOUT;
                if cx.now() >= deadline {
                    let is_sending = self.arrivals.asked_for == 0 && T::REMOTE == RemoteForm::Keyed;
                    cx.notice(NoticeKind::Late, self.peer.ip(), || {
                        let what = if is_sending { "take its responses" } else { "send its data" };
                        tracing::warn!(
                            peer = %self.peer,
                            "closing the connection: the host did not {what} in time"
                        );
                    });
                    self.close(cx);
                } else {
                    cx.reactor.set_timer(self.task, Some(deadline));
                }
            }
            SessionState::Draining | SessionState::Closing => self.close(cx),
            SessionState::Open => self.arrivals.watched = false,
            // The transport closes within a time limit, so only check again in the next tick.
            SessionState::Closed => self.list(cx),
            SessionState::Gone => {}
        }
    }

    /// Closes the connection gracefully: completes the accepted commands first.
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

    /// Completes held asynchronous event requests, because the queue closes.
    fn answer_held_commands(&mut self) {
        for index in 0..self.requests.len() {
            let slot = SlotId(index as u16);
            if matches!(self.requests[index].work, Work::Held) {
                self.pending.held_commands -= 1;
                self.respond(slot, Status::ABORTED_SQ_DELETION, 0);
            }
        }
    }

    pub(crate) fn close_after_sending(&mut self, cx: &mut Context) {
        if self.takes_commands() {
            self.state = SessionState::Closing;
            cx.reactor.set_timer(self.task, Some(cx.now() + limits::CONNECT_TIMEOUT));
            self.list(cx);
        }
    }

    /// Closes the connection at once, because the target decided to. Does not log that the host
    /// disconnected before it authenticated.
    pub(crate) fn end(&mut self, cx: &mut Context) {
        self.authentication = None;
        self.close(cx);
    }

    /// Closes the connection at once. Submitted operations continue, and their results are dropped.
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
        // Close the transport last. The host may then connect its next queue, and the target fences
        // that queue only if the registry already knows that this one has closed.
        self.transport.close(cx);
        self.list(cx);
    }

    pub(crate) fn gone(&mut self, cx: &mut Context) {
        self.close(cx);
        self.state = SessionState::Gone;
        T::abandon(self, cx);
        // Free the buffers that are in the session. A namespace returns the others when their
        // operations end.
        for index in 0..self.requests.len() {
            if self.requests[index].operations == 0 {
                self.release(cx, SlotId(index as u16));
            }
        }
        self.list(cx);
    }
}
