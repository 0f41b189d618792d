//! One NBD connection, from its accept to the completion of its last block operation.
//!
//! ```text
//! Open (negotiating, then serving) ──DISC, stop, refused──> Draining ──all answered and sent──┐
//!   └──client disconnected or broke the protocol──────────────────────────────────────────────┤
//!                                                                                             v
//!                 Gone <──stream closed, all operations completed────────────── Closed <──────┘
//! ```

mod transfer;

pub(super) use transfer::token_owner;

use super::core::{Context, Ticket};
use super::limits;
use super::negotiate::{Agreement, Negotiation, Progress};
use super::request::Header;
use super::succession::Admission;
use super::wire::REQUEST_BYTES;
use farblock_block::{BlockError, Command};
use farblock_frontend::pieces::Piece;
use farblock_frontend::{ConnectionKey, Line, TickConnection};
use farblock_reactor::{Buffer, Event, SendBatch, StreamId, TaskId};
use std::sync::Arc;

/// The number of a request in flight on its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot(pub(super) u16);

/// The state of a connection; the diagram above shows the transitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConnectionState {
    /// The server reads and answers requests.
    Open,
    /// The server finishes and answers the accepted requests, but reads no further ones.
    Draining,
    /// The stream is closing. The client no longer expects answers.
    Closed,
    /// The stream is closed.
    Gone,
}

/// The part of the protocol to which the client's next bytes belong.
enum Phase {
    Negotiating(Box<Negotiation>),
    /// The server does not read yet: it waits until the operations of disconnected clients have
    /// completed.
    Waiting(Arc<Admission>),
    /// A request's header, and the number of its bytes that have arrived.
    Header([u8; REQUEST_BYTES], usize),
    /// The server does not read: the request with this header waits for buffers or a slot.
    Admitting(Header),
    /// The data of the request in this slot: the index of the current piece, and the number of the
    /// piece's bytes that have arrived.
    Payload(Slot, usize, usize),
    /// The data of a refused request: the number of bytes still to be skipped.
    Skipping(u32),
}

struct NbdRequest {
    cookie: u64,
    offset: u64,
    length: u32,
    command: Command,
    fua: bool,
    /// True if the request writes partial blocks: the server then *merges*, that is, it reads the
    /// blocks, changes them and writes them back.
    merges: bool,
    pieces: Vec<Piece>,
    /// The number of block operations in flight.
    operations: usize,
    result: Result<(), BlockError>,
    /// The bytes that this request counts against the limits on data buffers.
    held_bytes: usize,
}

/// A client's connection.
pub(super) struct Connection {
    key: ConnectionKey,
    task: TaskId,
    stream: StreamId,
    /// A second descriptor of the stream, through which the server notices a disconnection. `None`
    /// once the stream is closed.
    line: Option<Line>,
    /// The client's name, for the log.
    peer: Arc<str>,
    state: ConnectionState,
    phase: Phase,
    agreement: Agreement,
    requests: Vec<NbdRequest>,
    free: Vec<Slot>,
    outbox: SendBatch,
    spare: SendBatch,
    sending: bool,
    receiving: bool,
    /// True if the last payload was large enough to receive directly into its buffer. The server
    /// then expects another large payload.
    expects_large: bool,
    held_bytes: usize,
    /// Received bytes that are not parsed yet, in the buffer from this offset on.
    unread: Option<(Buffer, usize)>,
    /// True while the core's list of connections that wait for buffers contains this connection.
    pub(super) starving: bool,
}

impl Connection {
    /// Sends the server's greeting on an accepted connection, and starts to receive.
    pub(super) fn start(
        cx: &mut Context,
        key: ConnectionKey,
        (task, stream, line): (TaskId, StreamId, Line),
        peer: Arc<str>,
    ) -> Connection {
        let mut greeting = Vec::new();
        let negotiation = Box::new(Negotiation::start(&mut greeting));
        let mut connection = Connection {
            key,
            task,
            stream,
            line: Some(line),
            peer,
            state: ConnectionState::Open,
            phase: Phase::Negotiating(negotiation),
            agreement: Agreement::default(),
            requests: Vec::new(),
            free: Vec::new(),
            outbox: SendBatch::new(),
            spare: SendBatch::new(),
            sending: false,
            receiving: false,
            expects_large: false,
            held_bytes: 0,
            unread: None,
            starving: false,
        };
        connection.outbox.bytes(&greeting);
        cx.reactor.set_timer(task, Some(cx.now + limits::NEGOTIATION_TIMEOUT));
        connection.arm_receive(cx);
        cx.turns.list(key);
        connection
    }

    /// True if the server reads no more from the client, but the namespace still executes
    /// operations of the client.
    pub(super) fn is_leaving(&self) -> bool {
        self.state != ConnectionState::Open && !self.is_idle()
    }

    /// True if the server reads no more from the client, and the namespace executes no operation of
    /// the client.
    pub(super) fn is_spent(&self) -> bool {
        self.state != ConnectionState::Open && self.is_idle()
    }

    fn is_idle(&self) -> bool {
        // A request whose data has not arrived completely has no operation in the namespace.
        let unstarted = usize::from(matches!(self.phase, Phase::Payload(..)));
        self.free.len() + unstarted == self.requests.len()
    }

    /// Closes the connection if its client has disconnected. The server discards the requests that
    /// it has not read. The client got no answers, so it cannot rely on these requests.
    pub(super) fn close_if_left(&mut self, cx: &mut Context) {
        if self.state == ConnectionState::Open && self.line.as_ref().is_some_and(Line::is_cut) {
            self.close(cx);
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.state, ConnectionState::Closed | ConnectionState::Gone)
    }

    fn request(&mut self, slot: Slot) -> &mut NbdRequest {
        &mut self.requests[usize::from(slot.0)]
    }

    fn ticket(&self, slot: Slot) -> Ticket {
        Ticket { connection: self.key, slot }
    }

    pub(super) fn handle(&mut self, cx: &mut Context, event: Event) {
        match event {
            Event::Received { result, .. } => self.received(cx, result),
            Event::ReceivedInto { buffer, result, .. } => self.received_into(cx, buffer, result),
            Event::Sent { batch, result, .. } => self.sent(cx, batch, result.is_ok()),
            Event::Closed { .. } => self.gone(cx),
            Event::Timer => self.timer(cx),
            other => unreachable!("an NBD connection requests no event {other:?}"),
        }
        cx.turns.list(self.key);
    }

    fn received(&mut self, cx: &mut Context, result: std::io::Result<Buffer>) {
        self.receiving = false;
        match result {
            Ok(buffer) if !buffer.is_empty() => {
                self.unread = Some((buffer, 0));
                self.process_unread(cx);
            }
            // The client has disconnected: it sends no more data and reads no answer.
            _ => self.close(cx),
        }
    }

    /// Parses received bytes until none remain or a limit forbids more requests. Then receives
    /// more.
    fn process_unread(&mut self, cx: &mut Context) {
        match self.unread.take() {
            // No bytes remain, but a request may have waited for resources that are available now.
            None => self.process(cx, &mut [].as_slice()),
            Some((buffer, start)) => {
                let mut input = &buffer[start..];
                self.process(cx, &mut input);
                let left = input.len();
                if left > 0 && self.state == ConnectionState::Open {
                    let start = buffer.len() - left;
                    self.unread = Some((buffer, start));
                } else {
                    cx.reactor.buffers().give(buffer);
                }
            }
        }
        self.arm_receive(cx);
    }

    /// Parses `input` until it is empty, or the limits allow no more requests.
    fn process(&mut self, cx: &mut Context, input: &mut &[u8]) {
        while self.state == ConnectionState::Open && self.outbox.len() <= limits::OUTBOX_BYTES {
            let goes_on = match &mut self.phase {
                Phase::Negotiating(_) => self.negotiate(cx, input),
                Phase::Waiting(admission) => {
                    let granted = admission.is_granted();
                    if granted {
                        self.phase = Phase::Header([0; REQUEST_BYTES], 0);
                    }
                    granted
                }
                Phase::Header(bytes, count) => {
                    let taken = input.len().min(REQUEST_BYTES - *count);
                    bytes[*count..*count + taken].copy_from_slice(&input[..taken]);
                    *count += taken;
                    *input = &input[taken..];
                    *count == REQUEST_BYTES && self.header(cx)
                }
                Phase::Admitting(header) => {
                    let header = *header;
                    self.admit(cx, header)
                }
                Phase::Payload(..) => self.payload(cx, input),
                Phase::Skipping(left) => {
                    let skipped = input.len().min(*left as usize);
                    *input = &input[skipped..];
                    *left -= skipped as u32;
                    let done = *left == 0;
                    if done {
                        self.phase = Phase::Header([0; REQUEST_BYTES], 0);
                    }
                    done
                }
            };
            if !goes_on {
                break;
            }
        }
    }

    /// Continues the negotiation. Returns false if it needs more bytes.
    fn negotiate(&mut self, cx: &mut Context, input: &mut &[u8]) -> bool {
        let Phase::Negotiating(negotiation) = &mut self.phase else { unreachable!() };
        let mut out = Vec::new();
        let progress = negotiation.handle(&cx.export, input, &mut out);
        self.outbox.bytes(&out);
        match progress {
            Progress::More => false,
            Progress::Done(agreement) => {
                cx.reactor.set_timer(self.task, None);
                self.agreement = agreement;
                self.phase = Phase::Waiting(cx.ask_admission(self.key));
                tracing::debug!(
                    peer = %self.peer, ?agreement,
                    "an NBD client finished its negotiation"
                );
                true
            }
            Progress::Close(reason) => {
                if !reason.is_empty() {
                    cx.complain("NBD clients refused", &self.peer, || {
                        tracing::warn!(peer = %self.peer, "refused an NBD client: {reason}");
                    });
                }
                self.drain(cx);
                false
            }
        }
    }

    /// Starts to receive more bytes, unless a limit forbids more requests.
    fn arm_receive(&mut self, cx: &Context) {
        let full = self.unread.is_some()
            || matches!(self.phase, Phase::Admitting(_) | Phase::Waiting(_))
            || self.outbox.len() > limits::OUTBOX_BYTES;
        if self.state != ConnectionState::Open || self.receiving || full {
            return;
        }
        self.receiving = true;
        if let Some((buffer, range)) = self.direct_payload() {
            self.expects_large = true;
            cx.reactor.recv_into(self.stream, buffer, range);
        } else if std::mem::take(&mut self.expects_large) {
            // Receive little more than the next header, so that the data after it is received
            // directly into its own buffer.
            cx.reactor.recv_at_most(self.stream, limits::HEADER_RECEIVE_BYTES);
        } else {
            cx.reactor.recv(self.stream);
        }
    }

    fn sent(&mut self, cx: &mut Context, mut batch: SendBatch, intact: bool) {
        self.sending = false;
        self.give_back(cx, &mut batch);
        batch.shrink_to(limits::KEPT_BATCH_BYTES);
        self.spare = batch;
        if !intact {
            self.close(cx);
        }
    }

    /// Returns the buffers of a sent batch to the pool.
    fn give_back(&mut self, cx: &mut Context, batch: &mut SendBatch) {
        for (held_bytes, buffer) in batch.take_payloads() {
            self.held_bytes -= held_bytes as usize;
            cx.release_bytes(held_bytes as usize);
            cx.reactor.buffers().give(buffer);
        }
    }

    fn timer(&mut self, cx: &mut Context) {
        if matches!(self.phase, Phase::Negotiating(_)) && self.state == ConnectionState::Open {
            cx.complain("slow NBD clients", &self.peer, || {
                tracing::warn!(
                    peer = %self.peer,
                    "closing the connection: the NBD negotiation took too long"
                );
            });
        }
        self.close(cx);
    }

    /// Stops reading requests, and closes the connection once the accepted requests have finished.
    pub(super) fn drain(&mut self, cx: &mut Context) {
        if self.state != ConnectionState::Open {
            return;
        }
        self.state = ConnectionState::Draining;
        cx.reactor.set_timer(self.task, Some(cx.now + limits::DRAIN_TIMEOUT));
        cx.turns.list(self.key);
    }

    /// Closes the connection at once. Operations that the namespace has started continue, but their
    /// client gets no answer.
    pub(super) fn close(&mut self, cx: &mut Context) {
        if self.is_closed() {
            return;
        }
        self.state = ConnectionState::Closed;
        cx.abandon(self.key);
        cx.reactor.set_timer(self.task, None);
        // While this second descriptor is open, the connection stays open.
        self.line = None;
        cx.reactor.close(self.stream);
        cx.turns.list(self.key);
    }

    fn gone(&mut self, cx: &mut Context) {
        self.close(cx);
        self.state = ConnectionState::Gone;
        let mut outbox = std::mem::take(&mut self.outbox);
        self.give_back(cx, &mut outbox);
        if let Some((buffer, _)) = self.unread.take() {
            cx.reactor.buffers().give(buffer);
        }
        if let Phase::Payload(slot, ..) = self.phase {
            self.phase = Phase::Skipping(0);
            self.release(cx, slot);
        }
        tracing::debug!(peer = %self.peer, "an NBD client disconnected");
    }
}

impl TickConnection for Connection {
    type Context = Context;

    fn finish_tick(&mut self, cx: &mut Context) {
        if !self.is_closed() && !self.sending && !self.outbox.is_empty() {
            let batch = std::mem::replace(&mut self.outbox, std::mem::take(&mut self.spare));
            self.sending = true;
            cx.reactor.send(self.stream, batch);
        }
        if self.state == ConnectionState::Open {
            self.process_unread(cx);
        }
        let told = !self.sending && self.outbox.is_empty();
        if self.state == ConnectionState::Draining && told && self.is_idle() {
            self.close(cx);
        }
    }

    fn is_gone(&self) -> bool {
        self.state == ConnectionState::Gone && self.free.len() == self.requests.len()
    }

    fn task(&self) -> TaskId {
        self.task
    }
}
