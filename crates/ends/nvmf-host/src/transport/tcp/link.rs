//! A connection on an event loop, for admin and I/O queues. It sends batches, parses received data,
//! and notifies its owner through [`Commands`].
//!
//! ```text
//!       fault, error, end of stream,
//!       terminated, owner's request            Closed event
//!  Open ----------------------------> Closing --------------> Closed
//! ```
//!
//! When the link fails, it may have a last message for the controller (a terminate PDU or a TLS
//! alert). It writes this message to the socket at once, because the owner may not run the event
//! loop again after the failure. It drops the message if the socket has no room, or if a PDU is
//! only partly sent.

use super::handshake::Connected;
use super::moving;
use super::place::{TcpPart, TcpPlace, append};
use crate::limits;
use crate::system_error::words;
use crate::transport::{Commands, Loss, Order, Transport};
use farblock_proto::tcp::fault::Fault;
use farblock_proto::tcp::host_end::{Event as Protocol, HostEnd, Transfer};
use farblock_proto::tcp::{Sink, SlotId};
use farblock_reactor::{Buffer, BufferPool, Cursor, Event, Reactor, SendBatch, StreamId, TaskId};
use farblock_tls::limits::{OPENED_BYTES, PORTION_BYTES, SEALED_BYTES};
use farblock_tls::{Tls, TlsError, portion};
use farblock_wire::tcp::FatalErrorStatus;
use std::io;
use std::ops::Range;

/// The protocol's state and the data to send next.
pub(crate) struct Outgoing {
    pub(crate) end: HostEnd,
    pub(crate) batch: SendBatch,
    /// The number of the current batch. It tells whether an operation's buffer is in this batch.
    pub(crate) number: u64,
    /// Commands whose data the controller has requested while their buffer was in use.
    pub(super) deferred: Vec<SlotId>,
}

impl Outgoing {
    fn new(end: HostEnd) -> Outgoing {
        Outgoing { end, batch: SendBatch::new(), number: 0, deferred: Vec::new() }
    }
}

/// Writes the protocol's bytes into a batch.
pub(crate) struct Inline<'a>(pub(crate) &'a mut SendBatch);

impl Sink for Inline<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.bytes(bytes);
    }
}

/// The state of a connection; see the module documentation for a diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkState {
    /// The connection is in use.
    Open,
    /// The reactor is closing the connection.
    Closing,
    /// The reactor has no operation on the connection any more.
    Closed,
}

pub(crate) struct Link {
    reactor: Reactor,
    stream: StreamId,
    pub(crate) out: Outgoing,
    spare: SendBatch,
    sending: bool,
    /// The command whose buffer the reactor is filling, and the range in the buffer.
    lent: Option<(SlotId, Range<usize>)>,
    /// Whether the event loop received the last payload directly into the operation's buffer. The
    /// link then tries this for the next payload, too.
    expects_direct: bool,
    /// Whether the last payload was large, so that the next receive may return several payloads.
    expects_large: bool,
    state: LinkState,
    loss: Option<Loss>,
    /// The TLS state, if the connection uses TLS.
    tls: Option<Box<dyn Tls>>,
    /// The batch that the link is sending in TLS records.
    sealing: Option<Sealing>,
}

/// A batch that the link encrypts and sends in portions, so that each portion is still in the
/// processor's cache when it is sent.
struct Sealing {
    plain: SendBatch,
    /// The position up to which `plain` is encrypted.
    sealed: Cursor,
    /// The number of bytes not yet encrypted.
    left_bytes: usize,
}

impl Sealing {
    fn new(plain: SendBatch) -> Sealing {
        let left_bytes = plain.len();
        Sealing { plain, sealed: Cursor::default(), left_bytes }
    }

    /// Whether there are more portions to encrypt and send.
    fn has_more(&self) -> bool {
        self.left_bytes > 0
    }

    /// Encrypts the next portion into records in a pooled buffer, and appends the buffer to
    /// `batch`. If TLS fails, appends an empty buffer, and the connection then ends.
    fn seal(&mut self, tls: &mut dyn Tls, pool: &BufferPool, batch: &mut SendBatch) {
        let bytes = self.left_bytes.min(PORTION_BYTES);
        let mut records = pool.take(tls.sealed_bytes(bytes));
        let rest = self.plain.slices_from(self.sealed);
        let length = tls.seal(&mut portion(rest, bytes), &mut records).unwrap_or_default();
        batch.payload(0, records, 0..length);
        self.plain.advance(&mut self.sealed, bytes);
        self.left_bytes -= bytes;
    }
}

impl Transport for Link {
    type Connected = Connected;
    type Place = TcpPlace;
    type Part = TcpPart;
    type Outgoing = Outgoing;

    fn open(
        reactor: &Reactor,
        task: TaskId,
        connected: Connected,
        commands: &mut impl Commands<Link>,
    ) -> io::Result<Link> {
        let Connected { socket, tls, end, input } = connected;
        let stream = reactor.add_stream(task, socket)?;
        let mut link = Link {
            reactor: reactor.clone(),
            stream,
            out: Outgoing::new(end),
            spare: SendBatch::new(),
            sending: false,
            lent: None,
            expects_direct: false,
            expects_large: false,
            state: LinkState::Open,
            loss: None,
            tls,
            sealing: None,
        };
        link.take_apart(&input, commands);
        link.receive(commands);
        Ok(link)
    }

    fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.out
    }

    fn issue(out: &mut Outgoing, order: &Order<'_>, place: &mut TcpPlace) -> TcpPart {
        // The capsule can include data only if their buffer is in the table or in the current
        // batch.
        let in_capsule_bytes = if place.is_at_hand(out) { order.in_capsule_bytes } else { 0 };
        let (sqe, transfer) = order.command.place(in_capsule_bytes);
        out.end.submit(order.slot, &sqe, transfer, &mut Inline(&mut out.batch));
        if let Transfer::InCapsule(length) = transfer {
            append(place, order.index, order.start..order.start + length as usize, out);
        }
        TcpPart::new(transfer)
    }

    fn resume(out: &mut Outgoing, commands: &mut impl Commands<Link>) {
        moving::resume(out, commands);
    }

    fn flush(&mut self) {
        let is_silent = self.tls.as_ref().is_none_or(|tls| tls.output_bytes() == 0);
        if self.sending || self.state != LinkState::Open || (self.out.batch.is_empty() && is_silent)
        {
            return;
        }
        self.send();
    }

    fn handle(&mut self, event: Event, commands: &mut impl Commands<Link>) {
        match event {
            Event::Received { result: Ok(buffer), .. } => {
                if buffer.is_empty() {
                    self.fail(Loss::Closed, commands);
                } else if self.tls.is_some() {
                    self.unseal(&buffer, commands);
                } else {
                    self.take_apart(&buffer, commands);
                    self.receive(commands);
                }
                self.reactor.buffers().give(buffer);
            }
            Event::Received { result: Err(error), .. } => self.fail(from_io(&error), commands),
            Event::ReceivedInto { buffer, result, .. } if self.tls.is_some() => {
                match result {
                    Ok(0) => self.fail(Loss::Closed, commands),
                    Ok(count) => self.unseal(&buffer[..count], commands),
                    Err(error) => self.fail(from_io(&error), commands),
                }
                self.reactor.buffers().give(buffer);
            }
            Event::ReceivedInto { buffer, result, .. } => {
                self.received_into(buffer, result, commands);
            }
            Event::Sent { batch, result, .. } => self.sent(batch, result, commands),
            Event::Closed { .. } => self.state = LinkState::Closed,
            Event::Timer
            | Event::Accepted { .. }
            | Event::Connected { .. }
            | Event::File { .. } => {}
        }
    }

    fn is_open(&self) -> bool {
        self.state == LinkState::Open
    }

    fn is_closed(&self) -> bool {
        self.state == LinkState::Closed
    }

    fn loss(&self) -> Option<&Loss> {
        self.loss.as_ref()
    }

    fn fail(&mut self, loss: Loss, commands: &mut impl Commands<Link>) {
        self.end(loss, Vec::new(), commands);
    }

    fn discard(&mut self, commands: &mut impl Commands<Link>) {
        assert!(!self.is_open(), "an open connection can send these data");
        for (tag, buffer) in self.out.batch.take_payloads() {
            moving::returned(commands, tag, buffer);
        }
    }

    fn abandon(&mut self) {
        if self.state == LinkState::Open {
            self.state = LinkState::Closing;
            self.reactor.close(self.stream);
        }
        for (_, buffer) in self.out.batch.take_payloads() {
            self.reactor.buffers().give(buffer);
        }
    }
}

impl Link {
    fn send(&mut self) {
        let batch = std::mem::replace(&mut self.out.batch, std::mem::take(&mut self.spare));
        self.out.number += 1;
        self.sending = true;
        match self.tls.is_some() {
            true => self.send_sealed(Sealing::new(batch), SendBatch::new()),
            false => self.reactor.send(self.stream, batch),
        }
    }

    /// Encrypts the next portion of a batch into the empty batch `records`, and sends it.
    fn send_sealed(&mut self, mut sealing: Sealing, mut records: SendBatch) {
        if let Some(tls) = &mut self.tls {
            sealing.seal(&mut **tls, self.reactor.buffers(), &mut records);
        }
        self.sealing = Some(sealing);
        self.reactor.send(self.stream, records);
    }

    /// Ends the connection after a fault in the controller's data, and reports the fault to the
    /// controller.
    fn terminate(&mut self, fault: &Fault, commands: &mut impl Commands<Link>) {
        let mut words = Vec::new();
        self.out.end.terminate(fault, &mut words);
        let loss = match fault.status == FatalErrorStatus::HEADER_DIGEST_ERROR {
            true => Loss::Io(fault.to_string()),
            false => Loss::Fault(fault.to_string()),
        };
        self.end(loss, words, commands);
    }

    /// Ends the connection with a last message to the controller.
    fn end(&mut self, loss: Loss, words: Vec<u8>, commands: &mut impl Commands<Link>) {
        if self.state != LinkState::Open {
            return;
        }
        for (tag, buffer) in self.out.batch.take_payloads() {
            moving::returned(commands, tag, buffer);
        }
        self.state = LinkState::Closing;
        // If the last sent portion ended in the middle of a PDU, the controller would mistake the
        // message for data of this PDU.
        let is_amid = self.sealing.as_ref().is_some_and(Sealing::has_more);
        let last = self.last_words(if is_amid { Vec::new() } else { words });
        if !last.is_empty() {
            self.reactor.send_final(self.stream, &last);
        }
        self.reactor.close(self.stream);
        self.loss = Some(loss);
    }

    /// Returns the last message to the controller. With TLS the message is encrypted and includes
    /// the TLS alert.
    fn last_words(&mut self, words: Vec<u8>) -> Vec<u8> {
        let Some(tls) = &mut self.tls else { return words };
        let mut sealed = vec![0; tls.sealed_bytes(words.len())];
        let length = tls.seal(&mut std::iter::once(&words[..]), &mut sealed).unwrap_or_default();
        sealed.truncate(length);
        sealed
    }

    /// Requests more records. During a large payload, requests only bytes that surely belong to the
    /// payload: if all records are full, they end with a record. Otherwise requests as many bytes
    /// as have arrived.
    fn receive_sealed(&mut self) {
        let wanted = self.out.end.data_wanted().map_or(0, |(_, _, left)| left as usize);
        let whole = wanted.min(limits::SEALED_RECEIVE_BYTES) / SEALED_BYTES * SEALED_BYTES;
        let kept = self.tls.as_ref().map_or(0, |tls| tls.openable_bytes(0));
        // A record is at least as long as its data.
        match whole.checked_sub(kept).filter(|bytes| *bytes > 0) {
            Some(bytes) => {
                let buffer = self.reactor.buffers().take(bytes);
                self.reactor.recv_into(self.stream, buffer, 0..bytes);
            }
            None => self.reactor.recv(self.stream),
        }
    }

    /// Processes received TLS records. Decrypts records that contain only a large payload directly
    /// into the operation's buffer.
    fn unseal(&mut self, mut sealed: &[u8], commands: &mut impl Commands<Link>) {
        let mut plain = self.reactor.buffers().take(OPENED_BYTES);
        let mut ended = None;
        while ended.is_none() && self.state == LinkState::Open {
            let placed;
            (placed, ended) = self.unseal_into_place(&mut sealed, commands);
            if placed > 0 || ended.is_some() {
                continue;
            }
            let Some(tls) = &mut self.tls else { break };
            let count;
            (count, ended) = tls.open_some(&mut sealed, &mut plain);
            if count == 0 {
                break;
            }
            self.take_apart(&plain[..count], commands);
        }
        self.reactor.buffers().give(plain);
        match ended {
            Some(TlsError::Closed) => self.fail(Loss::Closed, commands),
            Some(error) => self.fail(Loss::Io(error.to_string()), commands),
            None => self.receive(commands),
        }
        self.flush();
    }

    /// Decrypts records of a large payload into the operation's buffer. Returns the number of
    /// payload bytes.
    fn unseal_into_place(
        &mut self,
        sealed: &mut &[u8],
        commands: &mut impl Commands<Link>,
    ) -> (usize, Option<TlsError>) {
        let wanted = self.out.end.data_wanted();
        let Some((slot, offset, left)) =
            wanted.filter(|(_, _, left)| *left >= limits::LARGE_PAYLOAD_BYTES)
        else {
            return (0, None);
        };
        let (Some(tls), Some(place)) = (&mut self.tls, moving::place(commands, slot, offset, left))
        else {
            return (0, None);
        };
        let (count, ended) = tls.open_some(sealed, place);
        if count > 0 {
            self.out.end.data_received(&place[..count]);
            // If the payload has no digest, it is now complete, and no more input will follow for
            // it. Call the parser without input, so that it notices this.
            self.take_apart(&[], commands);
        }
        (count, ended)
    }

    fn take_apart(&mut self, bytes: &[u8], commands: &mut impl Commands<Link>) {
        let mut input = bytes;
        while self.state == LinkState::Open {
            match self.out.end.next(&mut input) {
                Ok(None) => return,
                Ok(Some(Protocol::Data { slot, offset, bytes })) => {
                    self.expects_large |= bytes.len() >= limits::LARGE_PAYLOAD_BYTES as usize;
                    moving::put(commands, slot, offset, bytes);
                }
                Ok(Some(Protocol::Wanted(grant))) => moving::wanted(commands, grant, &mut self.out),
                Ok(Some(Protocol::Completed { slot, cqe, received, intact })) => {
                    commands.complete(slot, &cqe, received, intact);
                }
                Ok(Some(Protocol::Terminated { status })) => {
                    self.fail(Loss::Terminated(status.to_string()), commands);
                }
                Ok(Some(Protocol::Initialized)) => {
                    unreachable!("the framer accepts only one ICResp")
                }
                Err(fault) => self.terminate(&fault, commands),
            }
        }
    }

    /// Requests more bytes. The remaining bytes of a large payload go directly into the operation's
    /// buffer.
    fn receive(&mut self, commands: &mut impl Commands<Link>) {
        if self.state != LinkState::Open {
            return;
        }
        if self.tls.is_some() {
            return self.receive_sealed();
        }
        let wanted = self.out.end.data_wanted();
        if let Some((slot, offset, left)) = wanted
            && left >= limits::DIRECT_RECEIVE_BYTES
            && let Some((buffer, start)) = moving::lend(commands, slot, offset)
        {
            let range = start..start + left as usize;
            self.lent = Some((slot, range.clone()));
            self.expects_direct = true;
            self.reactor.recv_into(self.stream, buffer, range);
            return;
        }
        let expects_large = std::mem::take(&mut self.expects_large);
        if std::mem::take(&mut self.expects_direct) {
            // Receive little more than the next header, so that the link can receive that header's
            // payload directly.
            self.reactor.recv_at_most(self.stream, limits::HEADER_RECEIVE_BYTES);
        } else if expects_large
            || wanted.is_some_and(|(_, _, left)| left >= limits::LARGE_PAYLOAD_BYTES)
        {
            self.reactor.recv_at_most(self.stream, limits::LARGE_RECEIVE_BYTES);
        } else {
            self.reactor.recv(self.stream);
        }
    }

    fn received_into(
        &mut self,
        buffer: Buffer,
        result: io::Result<usize>,
        commands: &mut impl Commands<Link>,
    ) {
        let (slot, range) = self.lent.take().expect("the reactor had a buffer");
        let received = *result.as_ref().unwrap_or(&0);
        if self.state == LinkState::Open && received > 0 {
            self.out.end.data_received(&buffer[range.start..][..received]);
        }
        moving::take_back(commands, slot, buffer);
        match result {
            Ok(0) => self.fail(Loss::Closed, commands),
            Ok(_) => {
                // If the payload has no digest, it is now complete, and no more input will follow
                // for it. Call the parser without input, so that it notices this.
                self.take_apart(&[], commands);
                self.receive(commands);
            }
            Err(error) => self.fail(from_io(&error), commands),
        }
    }

    fn sent(
        &mut self,
        mut batch: SendBatch,
        result: io::Result<()>,
        commands: &mut impl Commands<Link>,
    ) {
        if let Some(sealing) = self.sealing.take() {
            let pool = self.reactor.buffers();
            batch.take_payloads().for_each(|(_, buffer)| pool.give(buffer));
            if sealing.left_bytes > 0 && result.is_ok() && self.state == LinkState::Open {
                return self.send_sealed(sealing, batch);
            }
            batch = sealing.plain;
        }
        self.sending = false;
        for (tag, buffer) in batch.take_payloads() {
            moving::returned(commands, tag, buffer);
        }
        self.spare = batch;
        if let Err(error) = result {
            self.fail(from_io(&error), commands);
        }
    }
}

fn from_io(error: &io::Error) -> Loss {
    Loss::Io(words(error))
}
