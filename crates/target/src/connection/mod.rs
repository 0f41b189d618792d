//! One connection: one queue pair, from accept to the last buffer's return.
//!
//! ```text
//!            Connect accepted        shutdown of the target
//!  Waiting ------------------> Open ------------------------> Draining
//!     |  fault, timeout          |  fault, host gone, torn down   |  nothing in flight
//!     +--------------------------+--------------------------------+
//!                                v
//!                  Closing (what was emitted is still sent)
//!                                v  sent, or it cannot be
//!                             Closed  --> freed when the stream is gone and every operation
//!                                         that was handed to a namespace has ended
//! ```

mod commands;
mod io;

use crate::core::Context;
use crate::limits;
use crate::shared::{Counters, Route, Tally};
use crate::volumes::VolumeId;
use farblock_proto::capsule::DataPointer;
use farblock_proto::controller::{Instance, IoCommand, NamespaceTable, SubsystemId, Traffic};
use farblock_proto::ids::{ControllerId, NamespaceId, QueueId};
use farblock_proto::tcp::controller_end::{self, ControllerEnd, Event as TcpEvent, Part};
use farblock_proto::tcp::{Sink, SlotId};
use farblock_reactor::{Buffer, Event, SendBatch, StreamId, TaskId};
use farblock_wire::{Cqe, Sqe, Status};
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

/// Life of a connection; see the module's diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Its Connect command was not accepted yet.
    Waiting,
    /// It serves commands.
    Open,
    /// It finishes what it has accepted and accepts nothing new.
    Draining,
    /// It only sends what was emitted.
    Closing,
    /// It neither sends nor receives; the stream is on its way out.
    Closed,
    /// The stream is gone.
    Gone,
}

/// What the Connect command made of the connection.
pub(crate) enum Session {
    /// No queue yet.
    None,
    /// The admin queue of a controller.
    Admin { controller: ControllerId },
    /// An I/O queue of a controller.
    Io(Box<IoSession>),
}

/// An I/O queue's view of its subsystem.
pub(crate) struct IoSession {
    pub(crate) controller: ControllerId,
    pub(crate) queue: QueueId,
    pub(crate) subsystem: SubsystemId,
    pub(crate) table: Arc<NamespaceTable>,
    /// The core's queues into namespaces used so far: a handful, so a search is quick.
    pub(crate) volumes: Vec<(NamespaceId, VolumeId)>,
    pub(crate) counters: Arc<Counters>,
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
    /// An asynchronous event request, held until there is an event.
    Held,
    /// An I/O command.
    Io(IoCommand),
}

/// A slot's command and what it holds.
struct Request {
    work: Work,
    sqe: Sqe,
    /// Data from the host or for it.
    buffer: Option<Buffer>,
    /// What a Compare reads.
    second: Option<Buffer>,
    /// Bytes of data that the host was asked for.
    pulled_bytes: usize,
    /// Bytes that the buffers count for.
    held_bytes: usize,
    /// Block operations that have not ended.
    operations: u32,
    /// The first error, or success.
    status: Status,
    /// How much a Verify has read, or is reading.
    verified_blocks: u32,
}

impl Request {
    fn new() -> Self {
        Self {
            work: Work::None,
            sqe: Sqe::zeroed(),
            buffer: None,
            second: None,
            pulled_bytes: 0,
            held_bytes: 0,
            operations: 0,
            status: Status::SUCCESS,
            verified_blocks: 0,
        }
    }
}

/// Whether so many bytes of payload are received straight into their place.
fn is_large(bytes: u32) -> bool {
    bytes >= limits::DIRECT_RECEIVE_BYTES
}

/// Lets proto emit into a send batch.
struct Out<'a>(&'a mut SendBatch);

impl Sink for Out<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.bytes(bytes);
    }
}

/// See the module's text.
pub(crate) struct Connection {
    route: Route,
    task: TaskId,
    stream: StreamId,
    pub(crate) peer: SocketAddr,
    local: SocketAddr,
    state: State,
    end: ControllerEnd,
    pub(crate) session: Session,
    /// The controller that its queue was connected to, even when that is gone.
    pub(crate) instance: Option<Instance>,
    /// It was closed while operations were with a namespace.
    pub(crate) is_orphan: bool,
    requests: Vec<Request>,
    depth: u16,
    flow_control: bool,
    head: u16,
    outbox: SendBatch,
    spare: SendBatch,
    sending: bool,
    receiving: bool,
    /// Large payloads that the host was asked for.
    large_pulls: usize,
    /// The last payload was a large one: the next may be, too.
    expects_large: bool,
    /// Commands that wait for buffers, in order.
    waiting: VecDeque<SlotId>,
    /// Reads put off for a moment, in order.
    expected: VecDeque<(SlotId, VolumeId)>,
    held_bytes: usize,
    /// Transfers that the host was asked for and that are under way.
    pulls: usize,
    /// When data last came for a transfer that is under way, asked for or not, while it is watched.
    last_data: Instant,
    /// The timer is set that looks at it.
    watches_data: bool,
    /// Block operations in flight, of all slots.
    pub(crate) operations: usize,
    /// Held commands (asynchronous event requests), which draining does not wait for.
    held_commands: usize,
    tally: Tally,
    /// Bytes that the reads of this round will push.
    round_bytes: usize,
    /// What was received and not taken apart yet: bytes from this offset on.
    unread: Option<(Buffer, usize)>,
    /// A Disconnect command, answered when nothing else is in flight.
    disconnect: Option<SlotId>,
    /// Listed in the core's list of connections that wait for buffers, or for their turn to
    /// receive.
    pub(crate) starving: bool,
    /// A refused command of this tick is in the error log already.
    logged_error: bool,
    /// Listed in the core's list of connections with something to do at the tick's end.
    pub(crate) listed: bool,
}

impl Connection {
    /// A connection that was just accepted.
    pub(crate) fn new(
        route: Route,
        task: TaskId,
        stream: StreamId,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Self {
        Self {
            route,
            task,
            stream,
            peer,
            local,
            state: State::Waiting,
            end: ControllerEnd::new(controller_end::Config::default()),
            session: Session::None,
            instance: None,
            is_orphan: false,
            requests: vec![Request::new()],
            depth: 1,
            flow_control: true,
            head: 0,
            outbox: SendBatch::new(),
            spare: SendBatch::new(),
            sending: false,
            receiving: false,
            large_pulls: 0,
            expects_large: false,
            waiting: VecDeque::new(),
            expected: VecDeque::new(),
            held_bytes: 0,
            pulls: 0,
            last_data: Instant::now(),
            watches_data: false,
            operations: 0,
            held_commands: 0,
            tally: Tally::default(),
            round_bytes: 0,
            unread: None,
            disconnect: None,
            starving: false,
            logged_error: false,
            listed: false,
        }
    }

    /// Starts receiving; the first thing that a connection does.
    pub(crate) fn start(&mut self, cx: &mut Context) {
        cx.reactor.set_timer(self.task, Some(Instant::now() + limits::CONNECT_TIMEOUT));
        self.arm_receive(cx);
    }

    /// Whether nothing of it is left anywhere.
    pub(crate) fn is_gone(&self) -> bool {
        self.state == State::Gone && self.operations == 0
    }

    /// Whether commands are carried out and answered.
    fn is_serving(&self) -> bool {
        matches!(self.state, State::Open | State::Draining)
    }

    /// Whether the stream is closed or about to be: nobody is left to answer.
    fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::Gone)
    }

    /// The reactor task whose events are this connection's.
    pub(crate) fn task(&self) -> TaskId {
        self.task
    }

    fn request(&mut self, slot: SlotId) -> &mut Request {
        &mut self.requests[usize::from(slot.0)]
    }

    /// Does what an event asks for.
    pub(crate) fn handle(&mut self, cx: &mut Context, event: Event) {
        match event {
            Event::Received { result, .. } => self.received(cx, result),
            Event::ReceivedInto { buffer, result, .. } => self.received_into(cx, buffer, result),
            Event::Sent { batch, result, .. } => self.sent(cx, batch, result.is_ok()),
            Event::Closed { .. } => self.gone(cx),
            Event::Timer => self.timer(cx),
            other => unreachable!("a connection has no {other:?}"),
        }
    }

    fn received(&mut self, cx: &mut Context, result: std::io::Result<Buffer>) {
        self.receiving = false;
        match result {
            Ok(buffer) if !buffer.is_empty() => {
                self.unread = Some((buffer, 0));
                self.process_unread(cx);
            }
            // The host closed its side or the network did: nothing more can come or go.
            _ => self.close(cx),
        }
    }

    fn received_into(&mut self, cx: &mut Context, buffer: Buffer, result: std::io::Result<usize>) {
        self.receiving = false;
        let Some((slot, offset, _)) = self.end.data_wanted() else {
            panic!("received straight without data wanted")
        };
        let count = result.unwrap_or(0);
        let start = offset as usize;
        self.end.data_received(&buffer[start..start + count]);
        self.request(slot).buffer = Some(buffer);
        self.note_data(cx, slot);
        if count == 0 {
            self.close(cx);
            return;
        }
        self.process(cx, &[]);
        self.arm_receive(cx);
    }

    /// Takes what was received apart, as far as the answers find room, and asks for more.
    fn process_unread(&mut self, cx: &mut Context) {
        if let Some((buffer, start)) = self.unread.take() {
            let left = self.process(cx, &buffer[start..]);
            if left > 0 && self.is_receiving_state() {
                let start = buffer.len() - left;
                self.unread = Some((buffer, start));
            } else {
                cx.reactor.buffers().give(buffer);
            }
        }
        self.arm_receive(cx);
    }

    /// Whether what the host sends is still looked at.
    fn is_receiving_state(&self) -> bool {
        matches!(self.state, State::Waiting | State::Open | State::Draining)
    }

    /// Takes events out of `input` until it is empty or too many answers wait to be sent; gives the
    /// number of bytes that are left. Data that are in it as a whole stay there until their end,
    /// which most often is in it as well.
    fn process(&mut self, cx: &mut Context, mut input: &[u8]) -> usize {
        let mut whole = None;
        // Without input there is at most the end of a transfer, received straight, to be told.
        while self.is_receiving_state() && (input.is_empty() || self.has_room()) {
            let event = match self.end.next(&mut input, &mut Out(&mut self.outbox)) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(fault) => {
                    tracing::warn!(peer = %self.peer, "closing the connection: {fault}");
                    self.read_expected(cx, 0);
                    self.end.terminate(&fault, &mut Out(&mut self.outbox));
                    self.close_after_sending(cx);
                    break;
                }
            };
            match event {
                TcpEvent::Initialized => {}
                TcpEvent::Command { slot, sqe } => self.command(cx, slot, sqe),
                TcpEvent::Data { slot, offset, bytes } => {
                    self.note_data(cx, slot);
                    if bytes.len() == self.request(slot).pulled_bytes {
                        whole = Some((slot, bytes));
                    } else {
                        self.land(cx, slot, offset, bytes);
                    }
                }
                TcpEvent::Pulled { slot, intact } => {
                    let whole = whole.take().map(|(_, bytes)| bytes);
                    self.pulled(cx, slot, intact, whole);
                }
                TcpEvent::Terminated { status } => {
                    tracing::warn!(peer = %self.peer, "the host ended the connection: {status}");
                    self.close(cx);
                }
            }
        }
        self.read_expected(cx, 0);
        // Its digest is still to come.
        if let Some((slot, bytes)) = whole {
            self.land(cx, slot, 0, bytes);
        }
        if self.end.is_in_data() {
            self.watch_data(cx);
        }
        cx.list(self.route.key, &mut self.listed);
        input.len()
    }

    /// Whether more answers may be made before some are sent.
    fn has_room(&self) -> bool {
        self.outbox.len() + self.round_bytes <= limits::OUTBOX_BYTES
    }

    /// Asks for more bytes, unless there is a reason not to.
    fn arm_receive(&mut self, cx: &mut Context) {
        let full = self.unread.is_some() || self.outbox.len() > limits::OUTBOX_BYTES;
        if !self.is_receiving_state() || self.receiving || full {
            return;
        }
        let wanted = self.end.data_wanted();
        let too_much = self.holds_too_much(cx);
        if too_much && !self.end.is_in_data() {
            return cx.starve(self.route.key, &mut self.starving);
        }
        self.receiving = true;
        if let Some((slot, offset, left)) = wanted
            && is_large(left)
        {
            self.landing(cx, slot);
            let buffer = self.request(slot).buffer.take().expect("taken just now");
            // Not all of a long transfer at once: its progress is what the timer looks at.
            let left = left.min(limits::DIRECT_RECEIVE_MAX_BYTES);
            let range = offset as usize..(offset + left) as usize;
            self.expects_large = true;
            cx.reactor.recv_into(self.stream, buffer, range);
        } else if too_much {
            // To the end of these data, their digest with it, and no further.
            let left = wanted.map_or(size_of::<u32>() as u32, |(_, _, left)| left);
            cx.reactor.recv_at_most(self.stream, left);
        } else if std::mem::take(&mut self.expects_large) || self.large_pulls > 0 {
            // Little more than the next headers, so that a large payload is not in two places.
            let left = wanted.map_or(0, |(_, _, left)| left);
            cx.reactor.recv_at_most(self.stream, left + limits::HEADER_RECEIVE_BYTES);
        } else {
            cx.reactor.recv(self.stream);
        }
    }

    /// Whether more commands, which may have data with them, are not to be taken before some of
    /// those that are here are done. What was asked for is always taken: others wait for that.
    fn holds_too_much(&self, cx: &Context) -> bool {
        !self.may_hold(cx, 0) && self.pulls == 0
    }

    fn sent(&mut self, cx: &mut Context, mut batch: SendBatch, intact: bool) {
        self.sending = false;
        for (held_bytes, buffer) in batch.take_payloads() {
            self.held_bytes -= held_bytes as usize;
            cx.release_bytes(held_bytes as usize);
            cx.reactor.buffers().give(buffer);
        }
        batch.clear();
        batch.shrink_to(limits::KEPT_BATCH_BYTES);
        self.spare = batch;
        if !intact {
            self.close(cx);
            return;
        }
        cx.list(self.route.key, &mut self.listed);
        self.arm_receive(cx);
    }

    /// What is left to do once everything of this tick was handled: send, and go on or close.
    pub(crate) fn finish_tick(&mut self, cx: &mut Context) {
        self.logged_error = false;
        self.round_bytes = 0;
        if self.is_serving() {
            self.start_waiting(cx);
            self.answer_disconnect();
        }
        self.publish_tally();
        if !self.is_closed() && !self.sending && !self.outbox.is_empty() {
            let batch = std::mem::replace(&mut self.outbox, std::mem::take(&mut self.spare));
            self.sending = true;
            cx.reactor.send(self.stream, batch);
        }
        if !self.starving {
            // It may have stopped because there was too much here.
            self.arm_receive(cx);
        }
        if self.unread.is_some() && self.outbox.len() <= limits::OUTBOX_BYTES {
            self.process_unread(cx);
        }
        let idle = !self.sending && self.outbox.is_empty();
        match self.state {
            State::Closing if idle => self.close(cx),
            State::Draining if idle && self.is_drained(cx) => self.close(cx),
            _ => {}
        }
    }

    /// Nothing that was accepted is left to do. An admin queue stays for as long as its
    /// controller has I/O queues, which its end would end.
    fn is_drained(&self, cx: &Context) -> bool {
        let idle = self.end.in_flight() <= self.held_commands;
        match self.session {
            Session::Admin { controller } if idle => !cx.shared.has_io_queues(controller),
            _ => idle,
        }
    }

    fn publish_tally(&mut self) {
        if let Session::Io(session) = &self.session
            && self.tally != Tally::default()
        {
            session.counters.add(&std::mem::take(&mut self.tally));
        }
    }

    fn timer(&mut self, cx: &mut Context) {
        match self.state {
            State::Waiting => {
                tracing::warn!(peer = %self.peer, "no Connect command in time: closing");
                self.close(cx);
            }
            State::Open if self.pulls > 0 || self.end.is_in_data() => {
                let deadline = self.last_data + limits::TRANSFER_TIMEOUT;
                if cx.now() >= deadline {
                    tracing::warn!(peer = %self.peer, "data that were to come did not: closing");
                    self.close(cx);
                } else {
                    cx.reactor.set_timer(self.task, Some(deadline));
                }
            }
            State::Draining | State::Closing => self.close(cx),
            State::Open => self.watches_data = false,
            State::Closed | State::Gone => {}
        }
    }

    /// Ends the connection in good order: what was accepted is finished, then it is closed.
    pub(crate) fn drain(&mut self, cx: &mut Context) {
        match self.state {
            State::Open => {
                self.state = State::Draining;
                self.answer_held_commands();
                cx.reactor.set_timer(self.task, Some(cx.now() + limits::DRAIN_TIMEOUT));
                cx.list(self.route.key, &mut self.listed);
            }
            State::Waiting => self.close(cx),
            _ => {}
        }
    }

    /// Held asynchronous event requests are answered, so that the host hears of the end.
    fn answer_held_commands(&mut self) {
        for index in 0..self.requests.len() {
            let slot = SlotId(index as u16);
            if matches!(self.requests[index].work, Work::Held) {
                self.held_commands -= 1;
                self.respond(slot, Status::ABORTED_SQ_DELETION, 0);
            }
        }
    }

    /// Sends what was emitted and then closes.
    fn close_after_sending(&mut self, cx: &mut Context) {
        if matches!(self.state, State::Waiting | State::Open | State::Draining) {
            self.state = State::Closing;
            cx.reactor.set_timer(self.task, Some(cx.now() + limits::CONNECT_TIMEOUT));
            cx.list(self.route.key, &mut self.listed);
        }
    }

    /// Closes at once. Operations that were handed to a namespace go on; nobody hears of them.
    pub(crate) fn close(&mut self, cx: &mut Context) {
        if self.is_closed() {
            return;
        }
        self.state = State::Closed;
        cx.reactor.set_timer(self.task, None);
        cx.reactor.close(self.stream);
        self.waiting.clear();
        self.expected.clear();
        let session = std::mem::replace(&mut self.session, Session::None);
        let closed = match session {
            Session::None => None,
            Session::Admin { controller } => Some((controller, QueueId(0))),
            Session::Io(session) => Some((session.controller, session.queue)),
        };
        if let Some((controller, queue)) = closed {
            cx.shared.queue_closed(controller, queue);
        }
        if let Some(instance) = self.instance.filter(|_| self.operations > 0) {
            self.is_orphan = true;
            cx.shared.queue_orphaned(instance);
        }
        cx.list(self.route.key, &mut self.listed);
    }

    fn gone(&mut self, cx: &mut Context) {
        self.close(cx);
        self.state = State::Gone;
        let mut outbox = std::mem::take(&mut self.outbox);
        for (held_bytes, buffer) in outbox.take_payloads() {
            self.held_bytes -= held_bytes as usize;
            cx.release_bytes(held_bytes as usize);
            cx.reactor.buffers().give(buffer);
        }
        // What a namespace still works on is given back when that ends.
        for index in 0..self.requests.len() {
            if self.requests[index].operations == 0 {
                self.release(cx, SlotId(index as u16));
            }
        }
        if let Some((buffer, _)) = self.unread.take() {
            cx.reactor.buffers().give(buffer);
        }
        cx.list(self.route.key, &mut self.listed);
    }

    /// Takes buffers for a command, if the limits let it. Otherwise the command has to wait.
    fn admit(&mut self, cx: &mut Context, slot: SlotId, bytes: usize) -> bool {
        let fits = self.may_hold(cx, bytes);
        if fits {
            self.hold(cx, slot, bytes);
        }
        fits
    }

    /// Whether commands may hold so many bytes more. One alone always may.
    fn may_hold(&self, cx: &Context, bytes: usize) -> bool {
        let fits = self.held_bytes + bytes <= limits::CONNECTION_BUFFER_BYTES
            && cx.held_bytes + bytes <= limits::CORE_BUFFER_BYTES;
        fits || self.held_bytes == 0
    }

    fn hold(&mut self, cx: &mut Context, slot: SlotId, bytes: usize) {
        self.held_bytes += bytes;
        cx.held_bytes += bytes;
        self.request(slot).held_bytes += bytes;
    }

    /// Lets commands start that waited for buffers, in their order.
    fn start_waiting(&mut self, cx: &mut Context) {
        while let Some(&slot) = self.waiting.front() {
            let Work::Io(command) = self.request(slot).work else {
                unreachable!("only I/O commands wait for buffers")
            };
            if !self.start_io(cx, slot, command) {
                cx.starve(self.route.key, &mut self.starving);
                break;
            }
            self.waiting.pop_front();
        }
        self.read_expected(cx, 0);
    }

    /// Begins to bring the command's data here, into a buffer that is already admitted.
    fn pull(&mut self, cx: &mut Context, slot: SlotId, pointer: DataPointer) -> Result<(), Status> {
        self.end.pull(slot, pointer, &mut Out(&mut self.outbox))?;
        self.request(slot).pulled_bytes = pointer.length() as usize;
        if matches!(pointer, DataPointer::Transport { .. }) {
            self.pulls += 1;
            self.large_pulls += usize::from(is_large(pointer.length()));
            if self.pulls == 1 {
                self.note_progress(cx);
                self.watch_data(cx);
            }
        } else if self.pulls == 0 {
            self.note_progress(cx);
        }
        Ok(())
    }

    /// Sees to it that data which are to come do come.
    fn watch_data(&mut self, cx: &Context) {
        if self.state == State::Open && !std::mem::replace(&mut self.watches_data, true) {
            self.note_progress(cx);
            cx.reactor.set_timer(self.task, Some(cx.now() + limits::TRANSFER_TIMEOUT));
        }
    }

    /// Data came. Those in capsules do not excuse those that the host was asked for.
    fn note_data(&mut self, cx: &Context, slot: SlotId) {
        if self.pulls == 0 || self.request(slot).sqe.dptr.is_transport() {
            self.note_progress(cx);
        }
    }

    /// For the timer, if it looks.
    fn note_progress(&mut self, cx: &Context) {
        if self.watches_data {
            self.last_data = cx.now();
        }
    }

    /// Where the data that is pulled goes. The buffer is taken when the data comes, not when it is
    /// asked for: most often it is the one that the last command has just given back, and still in
    /// the processor's cache.
    fn landing(&mut self, cx: &Context, slot: SlotId) -> &mut Buffer {
        let Request { buffer, pulled_bytes, .. } = self.request(slot);
        buffer.get_or_insert_with(|| cx.reactor.buffers().take(*pulled_bytes))
    }

    fn land(&mut self, cx: &Context, slot: SlotId, offset: u32, bytes: &[u8]) {
        let buffer = self.landing(cx, slot);
        buffer[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// All data of a command are here: in its buffer, or `whole` where they were received.
    fn pulled(&mut self, cx: &mut Context, slot: SlotId, intact: bool, whole: Option<&[u8]>) {
        let sqe = self.request(slot).sqe;
        if sqe.dptr.is_transport() {
            self.pulls -= 1;
            let bytes = self.request(slot).pulled_bytes;
            self.large_pulls -= usize::from(is_large(bytes as u32));
        }
        if !intact {
            self.respond_and_release(cx, slot, Status::TRANSIENT_TRANSPORT_ERROR, 0);
            return;
        }
        if let Some(bytes) = whole {
            if self.store_at_once(cx, slot, bytes) {
                return;
            }
            self.land(cx, slot, 0, bytes);
        }
        self.landing(cx, slot);
        match self.request(slot).work {
            Work::None | Work::Held => unreachable!("only commands that wait for data pull it"),
            Work::Connect => self.connect(cx, slot),
            Work::Admin => self.admin(cx, slot),
            Work::Io(command) => self.submit_io(cx, slot, command),
        }
    }

    /// Answers a command and frees its slot.
    fn respond(&mut self, slot: SlotId, status: Status, result: u64) {
        let head = if self.flow_control { self.head } else { 0xffff };
        let cqe = Cqe::new(0, head, status, result);
        self.end.respond(slot, &cqe, &mut Out(&mut self.outbox));
        self.request(slot).work = Work::None;
    }

    /// Answers a command, frees its slot and gives back what it held.
    fn respond_and_release(&mut self, cx: &mut Context, slot: SlotId, status: Status, result: u64) {
        self.respond(slot, status, result);
        self.release(cx, slot);
    }

    /// Gives back the buffers that a command holds.
    fn release(&mut self, cx: &mut Context, slot: SlotId) {
        let request = self.request(slot);
        let buffers = [request.buffer.take(), request.second.take()];
        let held = std::mem::take(&mut request.held_bytes);
        buffers.into_iter().flatten().for_each(|buffer| cx.reactor.buffers().give(buffer));
        if held > 0 {
            self.held_bytes -= held;
            cx.release_bytes(held);
        }
    }

    /// Sends `length` bytes of data to the host, which may be in parts, and ends the command. What
    /// it holds is held until they are sent.
    fn push(
        &mut self,
        slot: SlotId,
        length: u32,
        parts: impl IntoIterator<Item = Buffer>,
        status: Status,
        result: u64,
    ) {
        let mut held = std::mem::take(&mut self.request(slot).held_bytes) as u64;
        let mut left = length as usize;
        // The SUCCESS flag stands for a response with nothing in it.
        let part = if status.is_success() && result == 0 { Part::Final } else { Part::Last };
        let ended = self.end.push_header(slot, 0, length, part, &mut Out(&mut self.outbox));
        let mut digest = self.end.data_digest_of_parts();
        for buffer in parts {
            if let Some(digest) = &mut digest {
                digest.update(&buffer);
            }
            let range = 0..buffer.len();
            left = left.checked_sub(buffer.len()).expect("no more than was announced");
            self.outbox.payload(std::mem::take(&mut held), buffer, range);
        }
        // The host would take what comes next for the rest.
        assert!(left == 0 && held == 0, "{left} of {length} bytes are missing, {held} held");
        if let Some(digest) = digest {
            self.outbox.bytes(&digest.finish());
        }
        if ended {
            self.request(slot).work = Work::None;
        } else {
            self.respond(slot, status, result);
        }
    }
}
