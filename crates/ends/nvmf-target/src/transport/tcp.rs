//! The TCP transport: a stream of PDUs. One send carries all output of a tick of the event loop.
//! The transport receives large payloads directly into their destination.

mod guard;

pub(crate) use guard::Guard;

use super::Transport;
use crate::context::Context;
use crate::limits;
use crate::memory::footprint;
use crate::notices::NoticeKind;
use crate::session::Session;
use farblock_proto::capsule::{DataPointer, RemoteForm, SlotId};
use farblock_proto::controller::{Connected, QueueKind};
use farblock_proto::limits::IN_CAPSULE_BYTES;
use farblock_proto::tcp::Sink;
use farblock_proto::tcp::controller_end::{Config, ControllerEnd, Event as TcpEvent, PushPart};
use farblock_proto::tcp::fault::Fault;
use farblock_reactor::{Buffer, Event, SendBatch, StreamId};
use farblock_tls::Named;
use farblock_wire::{Cqe, Status};

/// Returns whether to receive the rest of a payload directly, if it has `bytes` bytes.
fn is_direct(bytes: u32) -> bool {
    bytes >= limits::DIRECT_RECEIVE_BYTES
}

/// Adapts a send batch to the output type of `farblock_proto`.
struct Out<'a>(&'a mut SendBatch);

impl Sink for Out<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.bytes(bytes);
    }
}

/// The stream of one connection.
pub(crate) struct Tcp {
    stream: StreamId,
    end: ControllerEnd,
    outbox: SendBatch,
    spare: SendBatch,
    sending: bool,
    /// The epoch of [`crate::memory`] in which the current send started.
    sending_since: u32,
    /// The bytes charged for the headers and responses of the current send.
    sending_bytes: usize,
    receiving: bool,
    /// The bytes charged for TLS records of a payload that the reactor receives directly.
    receiving_bytes: usize,
    /// The number of requested payloads to receive directly.
    direct_pulls: usize,
    /// Whether the last payload was received directly. The next payload may then be direct, too.
    expects_direct: bool,
    /// Whether the last payload was large. The next receive should then have room for several
    /// payloads.
    expects_large: bool,
    /// A buffer of received bytes, and the offset of its first unparsed byte.
    unread: Option<(Buffer, usize)>,
    /// The bytes charged for `unread`.
    unread_bytes: usize,
    /// The TLS state; `None` without TLS. See [`guard`].
    guard: Option<Box<Guard>>,
}

impl Tcp {
    pub(crate) fn new(stream: StreamId, guard: Option<Box<Guard>>) -> Self {
        Self {
            stream,
            end: ControllerEnd::new(Config::default()),
            outbox: SendBatch::new(),
            spare: SendBatch::new(),
            sending: false,
            sending_since: 0,
            sending_bytes: 0,
            receiving: false,
            receiving_bytes: 0,
            direct_pulls: 0,
            expects_direct: false,
            expects_large: false,
            unread: None,
            unread_bytes: 0,
            guard,
        }
    }

    /// Returns whether the output has room for more responses. `coming` bytes of deferred reads
    /// will be added as well.
    fn has_room(&self, coming: usize) -> bool {
        let answers_fit = !self.is_sending() || self.outbox.inline_bytes() <= limits::ANSWERS_BYTES;
        answers_fit && self.outbox.len() + coming <= limits::OUTBOX_BYTES
    }

    /// Returns whether a send is in progress.
    fn is_sending(&self) -> bool {
        self.sending || self.has_more()
    }

    fn has_more(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.has_more())
    }
}

impl Transport for Tcp {
    const REMOTE: RemoteForm = RemoteForm::Transport;

    fn start(session: &mut Session<Self>, cx: &mut Context) {
        session.arm_receive(cx);
    }

    fn handle(session: &mut Session<Self>, cx: &mut Context, event: Event) {
        match event {
            Event::Received { result, .. } => session.received(cx, result),
            Event::ReceivedInto { buffer, result, .. } if session.transport.guard.is_some() => {
                session.received_sealed(cx, buffer, result);
            }
            Event::ReceivedInto { buffer, result, .. } => {
                session.received_into(cx, buffer, result);
            }
            Event::Sent { batch, result, .. } => session.sent(cx, batch, result.is_ok()),
            Event::Closed { .. } => session.gone(cx),
            other => unreachable!("unexpected event {other:?}"),
        }
    }

    fn finish_tick(session: &mut Session<Self>, cx: &mut Context) {
        if !session.is_closed() {
            let tcp = &session.transport;
            if !tcp.sending && !tcp.is_silent() {
                session.send(cx);
            }
        }
        if !session.parked {
            // The session may have stopped receiving because it held too much memory.
            session.arm_receive(cx);
        }
        let tcp = &session.transport;
        if tcp.unread.is_some() && tcp.has_room(0) && !session.waits_for_share() {
            session.process_unread(cx);
        }
    }

    fn resume(session: &mut Session<Self>, cx: &mut Context) {
        session.process_unread(cx);
    }

    fn pull(
        session: &mut Session<Self>,
        _: &mut Context,
        slot: SlotId,
        pointer: DataPointer,
    ) -> Result<(), Status> {
        let tcp = &mut session.transport;
        tcp.end.pull(slot, pointer, &mut Out(&mut tcp.outbox))?;
        tcp.direct_pulls += usize::from(!pointer.is_in_capsule() && is_direct(pointer.length()));
        Ok(())
    }

    fn is_in_data(&self) -> bool {
        self.end.is_in_data()
    }

    fn push(
        &mut self,
        slot: SlotId,
        length: u32,
        parts: impl IntoIterator<Item = Buffer>,
        held_bytes: usize,
        cqe: &Cqe,
    ) {
        let mut held = held_bytes as u64;
        let mut left = length as usize;
        // If the status is success and the result is zero, the SUCCESS flag replaces the response.
        let is_plain = cqe.status().is_success() && cqe.result() == 0;
        let part = if is_plain { PushPart::Final } else { PushPart::Last };
        let ended = self.end.push_header(slot, 0, length, part, &mut Out(&mut self.outbox));
        let mut digest = self.end.data_digest_of_parts();
        for buffer in parts {
            if let Some(digest) = &mut digest {
                digest.update(&buffer);
            }
            let range = 0..buffer.len();
            left = left.checked_sub(buffer.len()).expect("the parts have at most `length` bytes");
            self.outbox.payload(std::mem::take(&mut held), buffer, range);
        }
        // If data were missing, the host would interpret the following bytes as data.
        assert!(left == 0 && held == 0, "{left} of {length} bytes are missing, {held} held");
        if let Some(digest) = digest {
            self.outbox.bytes(&digest.finish());
        }
        if !ended {
            self.respond(slot, cqe);
        }
    }

    fn respond(&mut self, slot: SlotId, cqe: &Cqe) {
        self.end.respond(slot, cqe, &mut Out(&mut self.outbox));
    }

    fn forget(&mut self, slot: SlotId) {
        self.end.forget(slot);
    }

    fn connected(&mut self, connected: &Connected) {
        self.end.set_depth(connected.depth);
        self.end.set_success_flag(!connected.flow_control);
        if connected.kind == QueueKind::Io {
            self.end.set_in_capsule_bytes(IN_CAPSULE_BYTES);
        }
    }

    fn sending_since(&self) -> Option<u32> {
        self.is_sending().then_some(self.sending_since)
    }

    fn save_memory(&mut self) {
        self.spare.shrink_to(0);
        if let Some(guard) = &mut self.guard {
            guard.shrink_to(0);
        }
    }

    fn is_idle(&self) -> bool {
        !self.sending && self.is_silent()
    }

    fn peer(&self) -> Option<&Named> {
        self.guard.as_ref()?.peer()
    }

    fn close(&mut self, cx: &mut Context) {
        cx.reactor.close(self.stream);
    }

    fn abandon(session: &mut Session<Self>, cx: &mut Context) {
        let mut outbox = std::mem::take(&mut session.transport.outbox);
        for (held_bytes, buffer) in outbox.take_payloads() {
            session.give_back(cx, held_bytes as usize, buffer);
        }
        session.give_back_sealed(cx);
        if let Some((buffer, _)) = session.transport.unread.take() {
            cx.reactor.buffers().give(buffer);
        }
        let tcp = &mut session.transport;
        let bytes = std::mem::take(&mut tcp.unread_bytes)
            + std::mem::take(&mut tcp.sending_bytes)
            + std::mem::take(&mut tcp.receiving_bytes);
        session.release_besides(cx, bytes);
    }
}

/// Sending, receiving and parsing.
impl Session<Tcp> {
    /// Sends the pending output.
    fn send(&mut self, cx: &mut Context) {
        let goes_on = self.transport.has_more();
        let (batch, bytes) = if self.transport.guard.is_some() {
            let Some(batch) = self.seal(cx) else { return self.close(cx) };
            let bytes = batch.len();
            (batch, bytes)
        } else {
            let tcp = &mut self.transport;
            let batch = std::mem::replace(&mut tcp.outbox, std::mem::take(&mut tcp.spare));
            let bytes = batch.inline_bytes();
            (batch, bytes)
        };
        let tcp = &mut self.transport;
        tcp.sending = true;
        // This send may be a later portion of a batch. The memory of a batch counts as held since
        // the batch's first send.
        if !goes_on {
            tcp.sending_since = cx.memory.epoch();
        }
        cx.reactor.send(tcp.stream, batch);
        if bytes > limits::ANSWERS_BYTES {
            tcp.sending_bytes = bytes;
            self.hold_besides(cx, bytes);
        }
    }

    fn received(&mut self, cx: &mut Context, result: std::io::Result<Buffer>) {
        self.transport.receiving = false;
        match result {
            Ok(buffer) if !buffer.is_empty() && self.transport.guard.is_some() => {
                self.unseal(cx, buffer);
            }
            Ok(buffer) if !buffer.is_empty() => {
                self.transport.unread = Some((buffer, 0));
                self.process_unread(cx);
            }
            // The host or the network has closed the stream.
            _ => self.close(cx),
        }
    }

    fn received_into(&mut self, cx: &mut Context, buffer: Buffer, result: std::io::Result<usize>) {
        let tcp = &mut self.transport;
        tcp.receiving = false;
        let Some((slot, offset, _)) = tcp.end.data_wanted() else {
            panic!("received data directly, but expected none")
        };
        let count = result.unwrap_or(0);
        let start = offset as usize;
        tcp.end.data_received(&buffer[start..start + count]);
        self.put_landing(slot, buffer);
        self.note_data(cx, slot);
        if count == 0 {
            self.close(cx);
            return;
        }
        self.process(cx, &[]);
        self.arm_receive(cx);
    }

    /// Parses received bytes while there is room for responses. Then receives more bytes.
    fn process_unread(&mut self, cx: &mut Context) {
        if let Some((buffer, start)) = self.transport.unread.take() {
            let counted = std::mem::take(&mut self.transport.unread_bytes);
            let left = self.process(cx, &buffer[start..]);
            if left > 0 && self.takes_commands() && self.has_had_its_part(cx) {
                // Keep the buffer instead of copying its bytes: the host's next turn follows soon.
                let start = buffer.len() - left;
                self.transport.unread_bytes = footprint(buffer.len());
                self.hold_besides(cx, self.transport.unread_bytes);
                self.transport.unread = Some((buffer, start));
                self.wait_for_share(cx);
            } else if left > 0 && self.takes_commands() {
                let start = buffer.len() - left;
                self.keep_unread(cx, buffer, start);
            } else {
                cx.reactor.buffers().give(buffer);
            }
            self.release_besides(cx, counted);
        }
        self.arm_receive(cx);
    }

    /// Moves unparsed bytes to a buffer of their size, and keeps that buffer.
    fn keep_unread(&mut self, cx: &mut Context, buffer: Buffer, start: usize) {
        let left = &buffer[start..];
        let bytes = if left.len() > limits::SMALL_RECEIVE_BYTES as usize {
            footprint(left.len())
        } else {
            0
        };
        if cx.memory.has_room(bytes) {
            let mut small = cx.reactor.buffers().take(left.len());
            small.copy_from_slice(left);
            self.transport.unread = Some((small, 0));
            self.transport.unread_bytes = bytes;
            self.hold_besides(cx, bytes);
        } else {
            self.evict(cx, bytes);
        }
        cx.reactor.buffers().give(buffer);
    }

    /// Parses `input` until it is empty or too much output waits. Returns the number of remaining
    /// bytes.
    ///
    /// If a whole payload is in `input`, this function copies it only if the payload's digest has
    /// not arrived yet. Mostly the digest arrives together with the payload, and the command
    /// executes without a copy.
    fn process(&mut self, cx: &mut Context, mut input: &[u8]) -> usize {
        let mut whole = None;
        self.note_arrival(cx);
        // Without input, only the end of a directly received payload may be left to handle.
        while self.takes_commands() && (input.is_empty() || self.may_take_more(cx)) {
            let tcp = &mut self.transport;
            let event = match tcp.end.next(&mut input, &mut Out(&mut tcp.outbox)) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(fault) => {
                    self.terminate(cx, &fault);
                    break;
                }
            };
            match event {
                TcpEvent::Initialized => {}
                TcpEvent::Command { slot, sqe } => self.command(cx, slot, sqe),
                TcpEvent::Data { slot, offset, bytes } => {
                    self.note_data(cx, slot);
                    let pulled = self.pulled_bytes(slot);
                    self.transport.expects_large |= pulled >= limits::LARGE_PAYLOAD_BYTES as usize;
                    if bytes.len() == pulled {
                        whole = Some((slot, bytes));
                    } else {
                        self.land(cx, slot, offset, bytes);
                    }
                }
                TcpEvent::Pulled { slot, intact } => {
                    let whole = whole.take().map(|(_, bytes)| bytes);
                    let is_counted = self.was_asked_for(slot);
                    let is_counted = is_counted && is_direct(self.pulled_bytes(slot) as u32);
                    self.transport.direct_pulls -= usize::from(is_counted);
                    self.pulled(cx, slot, intact, whole);
                }
                TcpEvent::Terminated { status } => {
                    cx.shared.admissions.terminated();
                    cx.notice(NoticeKind::Fault, self.peer.ip(), || {
                        let peer = self.peer;
                        tracing::warn!(%peer, "the host terminated the connection: {status}");
                    });
                    self.close(cx);
                }
            }
        }
        self.read_expected(cx, 0);
        // The payload's digest is still missing, so copy the payload out of the input.
        if let Some((slot, bytes)) = whole {
            self.land(cx, slot, 0, bytes);
        }
        if self.transport.is_in_data() {
            self.watch_data(cx);
        }
        self.list(cx);
        input.len()
    }

    /// Returns whether to continue parsing: there is room for responses, and the host has allowance
    /// left.
    #[inline]
    fn may_take_more(&self, cx: &mut Context) -> bool {
        let is_its_turn = !self.has_had_its_part(cx) || self.transport.end.is_in_data();
        self.transport.has_room(self.coming_bytes()) && is_its_turn
    }

    /// Reports the host's protocol error in a C2HTermReq PDU, and closes the connection.
    fn terminate(&mut self, cx: &mut Context, fault: &Fault) {
        cx.shared.admissions.fault(fault);
        cx.notice(NoticeKind::Fault, self.peer.ip(), || {
            let peer = self.peer;
            match fault.is_tls() {
                true => tracing::warn!(
                    %peer,
                    "refused a host that started a TLS handshake: this listener has no TLS, \
                     because it has tls = \"plain\", or because no host has a TLS key"
                ),
                false => tracing::warn!(%peer, "closing the connection: {fault}"),
            }
        });
        self.read_expected(cx, 0);
        let tcp = &mut self.transport;
        tcp.end.terminate(fault, &mut Out(&mut tcp.outbox));
        self.close_after_sending(cx);
    }

    /// Starts a receive, unless a receive is in progress or the session must wait.
    fn arm_receive(&mut self, cx: &mut Context) {
        let tcp = &self.transport;
        if !self.takes_commands() || tcp.receiving || tcp.unread.is_some() || !tcp.has_room(0) {
            return;
        }
        let wanted = tcp.end.data_wanted();
        let too_much = self.holds_too_much(cx);
        if too_much && !tcp.is_in_data() {
            return self.park(cx);
        }
        if tcp.guard.is_some() {
            self.receive_sealed(cx);
        } else if let Some((slot, offset, left)) = wanted
            && is_direct(left)
        {
            let buffer = self.take_landing(cx, slot);
            // Receive a long transfer in parts, so that the timer notices its progress.
            let left = left.min(limits::DIRECT_RECEIVE_MAX_BYTES);
            let range = offset as usize..(offset + left) as usize;
            self.transport.expects_direct = true;
            cx.reactor.recv_into(self.transport.stream, buffer, range);
        } else if too_much {
            // Receive only the payload and its digest.
            let left = wanted.map_or(size_of::<u32>() as u32, |(_, _, left)| left);
            cx.reactor.recv_at_most(self.transport.stream, left);
        } else {
            self.transport.receive_next(cx, wanted.map_or(0, |(_, _, left)| left));
        }
        self.transport.receiving = true;
    }

    fn sent(&mut self, cx: &mut Context, mut batch: SendBatch, intact: bool) {
        self.transport.sending = false;
        let bytes = std::mem::take(&mut self.transport.sending_bytes);
        self.release_besides(cx, bytes);
        for (held_bytes, buffer) in batch.take_payloads() {
            self.give_back(cx, held_bytes as usize, buffer);
        }
        batch.clear();
        batch.shrink_to(if cx.memory.is_pressed() { 0 } else { limits::KEPT_BATCH_BYTES });
        self.transport.spare = batch;
        if !intact {
            self.close(cx);
            return;
        }
        self.list(cx);
        self.arm_receive(cx);
    }
}

impl Tcp {
    /// Returns whether there is nothing left to send.
    fn is_silent(&self) -> bool {
        self.outbox.is_empty() && self.guard.as_ref().is_none_or(|guard| guard.is_silent())
    }

    /// Receives the next bytes. `left` of these bytes belong to a payload.
    fn receive_next(&mut self, cx: &Context, left: u32) {
        let expects_large = std::mem::take(&mut self.expects_large);
        if std::mem::take(&mut self.expects_direct) || self.direct_pulls > 0 {
            // Beyond the payload, receive only a few headers, so that the next payload can also be
            // received directly.
            cx.reactor.recv_at_most(self.stream, left + limits::HEADER_RECEIVE_BYTES);
        } else if cx.memory.is_pressed() {
            cx.reactor.recv_at_most(self.stream, limits::SMALL_RECEIVE_BYTES.max(left));
        } else if expects_large || left >= limits::LARGE_PAYLOAD_BYTES {
            cx.reactor.recv_at_most(self.stream, limits::LARGE_RECEIVE_BYTES);
        } else {
            cx.reactor.recv(self.stream);
        }
    }
}
