//! One iSCSI connection from its accept to the completion of its last operation. Each connection is
//! also one session.
//!
//! ```text
//! Open (login, then full feature phase) ──logged out, refused, rejected──> Draining ──all sent──┐
//!   └──initiator disconnected, broke the protocol, or was replaced──────────────────────────────┤
//!                                                                                               v
//!                    Gone <──stream closed, all operations completed──────────── Closed <───────┘
//! ```

mod answer;
mod receive;
mod requests;
mod tasks;

use super::limits;
use super::login::{Answer, Initiator, Login, Parameters};
use super::scsi::Sense;
use super::task::{Slot, Task, TaskState, Window};
use super::text::Pieces;
use super::wire::{AsyncMessage, BHS_BYTES, Bhs, EVENT_LOGOUT, LoginRequest, NO_TAG, flag};
use super::wire::{before, response};
use crate::context::{Action, Context, Management};
use farblock_frontend::{ConnectionKey, Line, TickConnection};
use farblock_reactor::{Buffer, Event, SendBatch, StreamId, TaskId};
use receive::Phase;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The width of a field in a block operation's token (its identifier), in bits. The lowest field is
/// the piece (the part of a command that one operation transfers), the next field the slot of the
/// task, and the remaining bits the connection.
const TOKEN_FIELD_BITS: u32 = 16;

/// Makes the token of a block operation. The token identifies the task when the operation
/// completes.
fn token(connection: ConnectionKey, slot: Slot, piece: usize) -> u64 {
    let fields = u64::from(slot.0) << TOKEN_FIELD_BITS | piece as u64;
    u64::from(connection.0) << (2 * TOKEN_FIELD_BITS) | fields
}

/// The connection, slot and piece that a token identifies.
pub(super) fn token_owner(token: u64) -> (ConnectionKey, Slot, usize) {
    let connection = ConnectionKey((token >> (2 * TOKEN_FIELD_BITS)) as u32);
    let slot = Slot((token >> TOKEN_FIELD_BITS) as u16);
    (connection, slot, usize::from(token as u16))
}

/// The state of a connection; the diagram above shows the transitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionState {
    /// The target reads and answers requests.
    Open,
    /// The target sends its pending output, and reads no more requests.
    Draining,
    /// The stream is closing. No initiator expects an answer.
    Closed,
    /// The stream is closed.
    Gone,
}

enum Session {
    LoggingIn(Box<Login>),
    /// The login request is complete. Its answer waits until the operations of disconnected
    /// sessions have completed.
    Admitting(Box<(Login, LoginRequest, Answer)>),
    FullFeature,
}

/// The PDU that is arriving, as far as it has arrived.
struct Input {
    phase: Phase,
    bhs: Bhs,
    /// The checksum of the header or data received so far.
    crc: u32,
    /// The data of a login, ping or text request ([`Destination::Request`]).
    collected: Vec<u8>,
    /// Received bytes that are not parsed yet, in the buffer from this offset on.
    unread: Option<(Buffer, usize)>,
    receiving: bool,
    /// True if the last PDU's data was large enough to receive directly into its buffer. The target
    /// then expects large data again.
    expects_large: bool,
    /// The parts received so far of a text request that spans several PDUs.
    text: Pieces,
}

struct Output {
    /// The output that the next send will transmit.
    batch: SendBatch,
    spare: SendBatch,
    /// The data checksums of the PDUs that send one buffer.
    checksums: Vec<u32>,
    sending: bool,
}

/// The session's sequence numbers, and the counts of tasks that limit the command window.
#[derive(Default)]
struct Numbers {
    stat_sn: u32,
    exp_cmd_sn: u32,
    /// The number of tasks that count against the command window.
    counted: u32,
    immediate: u32,
}

/// Decides when tasks may start in the namespace.
#[derive(Default)]
struct Admission {
    /// The tasks that wait for buffers, or for an ordered task, in order.
    waiting: VecDeque<Slot>,
    /// The number of tasks that have started.
    admitted: usize,
    /// True if the started task is ordered. It runs without other tasks of the session.
    is_ordered: bool,
    held_bytes: usize,
}

pub(super) struct Connection {
    key: ConnectionKey,
    task: TaskId,
    stream: StreamId,
    /// A second descriptor of the stream, through which the target notices a disconnection. `None`
    /// once the stream is closed.
    line: Option<Line>,
    /// The initiator's address, for the log.
    peer: SocketAddr,
    /// The address to which the initiator connected.
    portal: SocketAddr,
    state: SessionState,
    session: Session,
    initiator: Initiator,
    parameters: Parameters,
    input: Input,
    output: Output,
    numbers: Numbers,
    tasks: Vec<Task>,
    free: Vec<Slot>,
    admission: Admission,
    attentions: VecDeque<Sense>,
}

impl Connection {
    /// Starts to receive on an accepted connection.
    pub(super) fn start(
        cx: &mut Context,
        key: ConnectionKey,
        (task, stream, line): (TaskId, StreamId, Option<Line>),
        peer: SocketAddr,
        portal: SocketAddr,
    ) -> Connection {
        let mut connection = Connection {
            key,
            task,
            stream,
            line,
            peer,
            portal,
            state: SessionState::Open,
            session: Session::LoggingIn(Box::new(Login::new())),
            initiator: Initiator::default(),
            parameters: Parameters::default(),
            input: Input {
                phase: Phase::Header(0),
                bhs: [0; BHS_BYTES],
                crc: 0,
                collected: Vec::new(),
                unread: None,
                receiving: false,
                expects_large: false,
                text: Pieces::default(),
            },
            output: Output {
                batch: SendBatch::new(),
                spare: SendBatch::new(),
                checksums: Vec::new(),
                sending: false,
            },
            numbers: Numbers::default(),
            tasks: Vec::new(),
            free: Vec::new(),
            admission: Admission::default(),
            attentions: VecDeque::new(),
        };
        cx.reactor.set_timer(task, Some(cx.now + limits::LOGIN_TIMEOUT));
        connection.arm_receive(cx);
        connection
    }

    /// The initiator's identity; empty before the login.
    pub(super) fn initiator(&self) -> &Initiator {
        &self.initiator
    }

    /// True if the stream is closing or closed, so that no answer can be sent.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, SessionState::Closed | SessionState::Gone)
    }

    /// True if the target reads no more requests from the initiator.
    pub(super) fn is_ending(&self) -> bool {
        self.state != SessionState::Open
    }

    /// True if the namespace executes operations of this connection.
    pub(super) fn is_busy(&self) -> bool {
        self.tasks.iter().any(|task| task.operations > 0)
    }

    pub(super) fn has_tasks(&self) -> bool {
        self.free.len() < self.tasks.len()
    }

    /// True if this session has logged in for normal use (not for discovery), and is not closed.
    pub(super) fn is_session(&self) -> bool {
        let full = matches!(self.session, Session::FullFeature);
        full && !self.parameters.discovery && !self.is_closed()
    }

    /// True if the answer to the login waits for operations of disconnected sessions.
    pub(super) fn is_admitting(&self) -> bool {
        matches!(self.session, Session::Admitting(_)) && self.state == SessionState::Open
    }

    /// Queues a unit attention for the session's next command. Does nothing before the login.
    pub(super) fn attention(&mut self, what: Sense) {
        if self.is_session() && !self.attentions.contains(&what) {
            if self.attentions.len() == limits::MAX_UNIT_ATTENTIONS {
                self.attentions.pop_front();
            }
            self.attentions.push_back(what);
        }
    }

    fn entry(&mut self, slot: Slot) -> &mut Task {
        &mut self.tasks[usize::from(slot.0)]
    }

    /// The highest command number that the initiator may send.
    fn max_cmd_sn(&self) -> u32 {
        let room = limits::MAX_TASKS.saturating_sub(self.numbers.counted);
        self.numbers.exp_cmd_sn.wrapping_add(room).wrapping_sub(1)
    }

    /// True if the initiator may send a command with this number.
    fn is_in_window(&self, cmd_sn: u32) -> bool {
        !before(cmd_sn, self.numbers.exp_cmd_sn) && !before(self.max_cmd_sn(), cmd_sn)
    }

    pub(super) fn handle(&mut self, cx: &mut Context, event: Event) {
        match event {
            Event::Received { result, .. } => self.received(cx, result),
            Event::ReceivedInto { buffer, result, .. } => self.received_into(cx, buffer, result),
            Event::Sent { batch, result, .. } => self.sent(cx, batch, result.is_ok()),
            Event::Closed { .. } => self.gone(cx),
            Event::Timer => self.timer(cx),
            other => unreachable!("an iSCSI connection requests no event {other:?}"),
        }
        cx.turns.list(self.key);
    }

    fn sent(&mut self, cx: &mut Context, mut batch: SendBatch, intact: bool) {
        self.output.sending = false;
        self.give_back(cx, &mut batch);
        batch.shrink_to(limits::KEPT_BATCH_BYTES);
        self.output.spare = batch;
        if !intact {
            self.close(cx);
        }
        self.admit_tasks(cx);
    }

    /// Returns the buffers of a sent batch to the pool.
    fn give_back(&mut self, cx: &mut Context, batch: &mut SendBatch) {
        for (held_bytes, buffer) in batch.take_payloads() {
            self.admission.held_bytes -= held_bytes as usize;
            cx.reactor.buffers().give(buffer);
        }
    }

    fn timer(&mut self, cx: &mut Context) {
        if self.state == SessionState::Open && !matches!(self.session, Session::FullFeature) {
            let peer = self.peer;
            cx.complain("slow iSCSI initiators", peer, || {
                tracing::warn!(%peer, "closing the connection: the iSCSI login took too long");
            });
        }
        self.close(cx);
    }

    /// Requests a logout from the initiator. Closes the connection if the logout does not arrive in
    /// time.
    pub(super) fn drain(&mut self, cx: &mut Context) {
        if self.state != SessionState::Open {
            return;
        }
        if !self.is_session() {
            self.close(cx);
            return;
        }
        let mut message = AsyncMessage {
            opcode: response::ASYNC,
            flags: flag::FINAL,
            task_tag: NO_TAG.into(),
            event: EVENT_LOGOUT,
            parameter3: (limits::DRAIN_TIMEOUT.as_secs() as u16).into(),
            ..AsyncMessage::default()
        };
        message.stat_sn = self.next_stat_sn().into();
        (message.exp_cmd_sn, message.max_cmd_sn) =
            (self.numbers.exp_cmd_sn.into(), self.max_cmd_sn().into());
        self.put_header(&message);
        cx.reactor.set_timer(self.task, Some(cx.now + limits::DRAIN_TIMEOUT));
        cx.turns.list(self.key);
    }

    /// Sends the pending output, and then closes the connection.
    fn end(&mut self, cx: &mut Context) {
        if self.state == SessionState::Open {
            self.state = SessionState::Draining;
            cx.reactor.set_timer(self.task, Some(cx.now + limits::DRAIN_TIMEOUT));
            cx.turns.list(self.key);
        }
    }

    /// Closes the connection if the initiator has disconnected, even before the target has read all
    /// its data. The target discards unread requests, to which it has sent no answer.
    pub(super) fn close_if_left(&mut self, cx: &mut Context) {
        if self.line.as_ref().is_some_and(Line::is_cut) {
            self.close(cx);
        }
    }

    /// Closes the connection at once. Operations in the namespace continue, but the initiator gets
    /// no answer.
    pub(super) fn close(&mut self, cx: &mut Context) {
        if self.is_closed() {
            return;
        }
        self.state = SessionState::Closed;
        cx.reactor.set_timer(self.task, None);
        // While this second descriptor is open, the connection stays open.
        self.line = None;
        cx.reactor.close(self.stream);
        cx.turns.list(self.key);
    }

    fn gone(&mut self, cx: &mut Context) {
        self.close(cx);
        self.state = SessionState::Gone;
        let mut outbox = std::mem::take(&mut self.output.batch);
        self.give_back(cx, &mut outbox);
        if let Some((buffer, _)) = self.input.unread.take() {
            cx.reactor.buffers().give(buffer);
        }
        self.admission.waiting.clear();
        for index in 0..self.tasks.len() {
            let task = &mut self.tasks[index];
            if task.state != TaskState::Free && task.operations == 0 {
                self.release(cx, Slot(index as u16));
            }
        }
        tracing::debug!(
            peer = %self.peer, initiator = %self.initiator.name,
            "an initiator disconnected"
        );
        cx.ask(Action::Departed);
    }

    /// Answers a request to abort tasks.
    pub(super) fn managed(&mut self, cx: &mut Context, request: Management) {
        if self.state == SessionState::Open {
            self.answer_management(cx, request);
            cx.turns.list(self.key);
        }
    }

    /// Removes a task from the command window, or from the count of immediate tasks.
    fn uncount(&mut self, slot: Slot) {
        let task = &mut self.tasks[usize::from(slot.0)];
        match std::mem::replace(&mut task.window, Window::Left) {
            Window::Numbered => self.numbers.counted -= 1,
            Window::Immediate => self.numbers.immediate -= 1,
            Window::Left => {}
        }
    }
}

impl TickConnection for Connection {
    type Context = Context;

    fn finish_tick(&mut self, cx: &mut Context) {
        if self.state == SessionState::Open {
            self.process_unread(cx);
        }
        if !self.is_closed() && !self.output.sending && !self.output.batch.is_empty() {
            let batch =
                std::mem::replace(&mut self.output.batch, std::mem::take(&mut self.output.spare));
            self.output.sending = true;
            cx.reactor.send(self.stream, batch);
        }
        if self.state == SessionState::Open {
            self.arm_receive(cx);
            if cx.has_actions() {
                // Parse the rest of the input after the core has executed the connection's actions.
                cx.turns.list(self.key);
            }
        }
        if self.state == SessionState::Draining
            && !self.output.sending
            && self.output.batch.is_empty()
        {
            self.close(cx);
        }
    }

    fn is_gone(&self) -> bool {
        self.state == SessionState::Gone && !self.has_tasks()
    }

    fn task(&self) -> TaskId {
        self.task
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_encodes_connection_slot_and_piece() {
        for (connection, slot, piece) in [(0, 0, 0), (7, 255, 16_383), (u32::MAX, u16::MAX, 65_535)]
        {
            let owner = token_owner(token(ConnectionKey(connection), Slot(slot), piece));
            assert_eq!(owner, (ConnectionKey(connection), Slot(slot), piece));
        }
    }
}
