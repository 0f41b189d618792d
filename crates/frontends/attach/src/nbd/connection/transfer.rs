//! Reads, executes and answers the requests of an NBD connection.

use super::{Connection, NbdRequest, Phase, Slot};
use crate::nbd::contexts;
use crate::nbd::core::Context;
use crate::nbd::limits;
use crate::nbd::request::{Header, Refusal};
use crate::nbd::wire::{CHUNK_MAGIC, REQUEST_BYTES, SIMPLE_REPLY_MAGIC, chunk};
use crate::nbd::wire::{command, command_flag};
use farblock_block::{BlockError, Command, Completion, Op};
use farblock_frontend::pieces;
use farblock_reactor::{Buffer, SendBatch, allowance};
use std::ops::Range;

/// The width of a field in a block operation's token (its identifier), in bits. The lowest field is
/// the piece (the part of a request that one operation transfers), the next field the slot, and the
/// remaining bits the connection.
const TOKEN_FIELD_BITS: u32 = 16;

/// Makes the token of a block operation. The token identifies the request when the operation
/// completes.
fn token(connection: super::ConnectionKey, slot: Slot, piece: usize) -> u64 {
    let fields = u64::from(slot.0) << TOKEN_FIELD_BITS | piece as u64;
    u64::from(connection.0) << (2 * TOKEN_FIELD_BITS) | fields
}

/// The connection, slot and piece that a token identifies.
pub(in crate::nbd) fn token_owner(token: u64) -> (super::ConnectionKey, Slot, usize) {
    let connection = super::ConnectionKey((token >> (2 * TOKEN_FIELD_BITS)) as u32);
    let slot = Slot((token >> TOKEN_FIELD_BITS) as u16);
    (connection, slot, usize::from(token as u16))
}

impl Connection {
    /// Handles a complete header. Returns true if the caller should continue to parse received
    /// bytes.
    pub(super) fn header(&mut self, cx: &mut Context) -> bool {
        let Phase::Header(bytes, _) = &self.phase else { unreachable!("a header has arrived") };
        let Some(header) = Header::parse(bytes) else {
            cx.complain("NBD protocol errors", &self.peer, || {
                let peer = &self.peer;
                tracing::warn!(
                    %peer,
                    "closing the connection: the client sent data that are not an NBD request"
                );
            });
            self.close(cx);
            return false;
        };
        self.phase = Phase::Header([0; REQUEST_BYTES], 0);
        if header.code == command::DISC {
            self.drain(cx);
            return false;
        }
        self.admit(cx, header)
    }

    /// Starts a request if the limits allow it. Otherwise the request waits, and the function
    /// returns false.
    pub(super) fn admit(&mut self, cx: &mut Context, header: Header) -> bool {
        if header.code == command::BLOCK_STATUS {
            self.phase = Phase::Header([0; REQUEST_BYTES], 0);
            match header.check_status(&cx.export.geometry, self.agreement) {
                Ok(()) => self.answer_status(&header),
                Err(refusal) => self.refuse(header.cookie, refusal),
            }
            return true;
        }
        let command = match header.check(&cx.export.geometry, self.agreement) {
            Ok(command) => command,
            Err(refusal) => {
                self.phase = match header.payload_bytes() {
                    0 => Phase::Header([0; REQUEST_BYTES], 0),
                    bytes => Phase::Skipping(bytes),
                };
                self.refuse(header.cookie, refusal);
                return true;
            }
        };
        let bytes = if command.moves_data() { header.length as usize } else { 0 };
        let core_bytes = allowance::portion(limits::CORE_BUFFER_BYTES, allowance::loops());
        let fits = self.held_bytes + bytes <= limits::CONNECTION_BUFFER_BYTES.min(core_bytes)
            && cx.held_bytes + bytes <= core_bytes;
        let waits_for_bytes = bytes > 0 && !fits && self.held_bytes > 0;
        let has_slot = !self.free.is_empty() || self.requests.len() < limits::MAX_REQUESTS;
        if waits_for_bytes || !has_slot {
            if waits_for_bytes {
                cx.starve(self.key, &mut self.starving);
            }
            self.phase = Phase::Admitting(header);
            return false;
        }
        self.phase = Phase::Header([0; REQUEST_BYTES], 0);
        self.begin(cx, &header, command, bytes);
        true
    }

    /// Assigns a slot and buffers to a request. Starts it at once, or once its data has arrived.
    fn begin(&mut self, cx: &mut Context, header: &Header, command: Command, bytes: usize) {
        self.held_bytes += bytes;
        cx.held_bytes += bytes;
        let slot = self.take_slot();
        let geometry = cx.export.geometry;
        let request = &mut self.requests[usize::from(slot.0)];
        request.cookie = header.cookie;
        request.offset = header.offset;
        request.length = header.length;
        request.command = command;
        request.fua = header.has(command_flag::FUA);
        request.result = Ok(());
        request.held_bytes = bytes;
        if command != Command::Flush {
            pieces::cut(command, header.offset, header.length, &geometry, &mut request.pieces);
        }
        let block_size = geometry.block_size;
        let has_part = request.pieces.iter().any(|piece| piece.is_part(block_size));
        request.merges = command.writes() && has_part;
        if command.moves_data() {
            for piece in &mut request.pieces {
                let bytes = geometry.bytes(piece.blocks);
                piece.buffer = Some(cx.reactor.buffers().take(bytes));
            }
        }
        if command == Command::Write && !request.pieces.is_empty() {
            self.phase = Phase::Payload(slot, 0, 0);
        } else {
            self.start_request(cx, slot);
        }
    }

    fn take_slot(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| {
            self.requests.push(NbdRequest {
                cookie: 0,
                offset: 0,
                length: 0,
                command: Command::Flush,
                fua: false,
                merges: false,
                pieces: Vec::new(),
                operations: 0,
                result: Ok(()),
                held_bytes: 0,
            });
            Slot(self.requests.len() as u16 - 1)
        })
    }

    /// Copies received bytes of a write to its buffer. Returns false if more bytes must arrive
    /// first.
    pub(super) fn payload(&mut self, cx: &mut Context, input: &mut &[u8]) -> bool {
        let Phase::Payload(slot, index, filled) = self.phase else {
            unreachable!("payload bytes arrive only in the payload phase")
        };
        if input.is_empty() {
            return false;
        }
        let piece = &mut self.request(slot).pieces[index];
        let wanted = &mut piece.buffer.as_mut().expect("a receiving piece has a buffer")
            [piece.start as usize + filled..(piece.start + piece.length) as usize];
        let count = wanted.len().min(input.len());
        wanted[..count].copy_from_slice(&input[..count]);
        *input = &input[count..];
        self.filled(cx, slot, index, filled + count);
        true
    }

    /// Records that more data of a write has arrived.
    fn filled(&mut self, cx: &mut Context, slot: Slot, index: usize, filled: usize) {
        let request = self.request(slot);
        if filled < request.pieces[index].length as usize {
            self.phase = Phase::Payload(slot, index, filled);
        } else if index + 1 < request.pieces.len() {
            self.phase = Phase::Payload(slot, index + 1, 0);
        } else {
            self.phase = Phase::Header([0; REQUEST_BYTES], 0);
            self.start_request(cx, slot);
        }
    }

    /// The buffer into which the server should receive the client's next bytes directly, and the
    /// range in it. `None` if the server should not receive directly.
    pub(super) fn direct_payload(&mut self) -> Option<(Buffer, Range<usize>)> {
        let Phase::Payload(slot, index, filled) = self.phase else { return None };
        let piece = &mut self.request(slot).pieces[index];
        let range = piece.start as usize + filled..(piece.start + piece.length) as usize;
        if range.len() < limits::DIRECT_RECEIVE_BYTES {
            return None;
        }
        Some((piece.buffer.take().expect("a receiving piece has a buffer"), range))
    }

    pub(super) fn received_into(
        &mut self,
        cx: &mut Context,
        buffer: Buffer,
        result: std::io::Result<usize>,
    ) {
        self.receiving = false;
        let Phase::Payload(slot, index, filled) = self.phase else {
            unreachable!("payload bytes arrive only in the payload phase")
        };
        self.request(slot).pieces[index].buffer = Some(buffer);
        match result {
            Ok(count) if count > 0 => {
                if self.state == super::ConnectionState::Open {
                    self.filled(cx, slot, index, filled + count);
                    self.process_unread(cx);
                }
            }
            _ => self.close(cx),
        }
    }

    /// Submits a request to the namespace. A write may have to wait first, because no write may run
    /// during a merge (see [`writes`](farblock_frontend::writes)).
    fn start_request(&mut self, cx: &mut Context, slot: Slot) {
        let ticket = self.ticket(slot);
        let request = self.request(slot);
        if request.merges {
            cx.merge(ticket);
        } else if !request.command.writes() || cx.gate.enter(ticket).is_some() {
            self.submit(cx, slot);
        }
    }

    /// Submits a request to the namespace.
    pub(in crate::nbd) fn submit(&mut self, cx: &mut Context, slot: Slot) {
        let key = self.key;
        let block_size = cx.export.geometry.block_size;
        // The client may have disconnected while the request waited.
        let pointless = self.is_closed();
        let request = &mut self.requests[usize::from(slot.0)];
        if pointless {
            request.result = Err(BlockError::Aborted);
        } else if request.command == Command::Flush {
            request.operations = 1;
            cx.submit(Op::flush(token(key, slot, 0)));
        } else {
            request.operations = request.pieces.len();
            for (index, piece) in request.pieces.iter_mut().enumerate() {
                let token = token(key, slot, index);
                let pool = cx.reactor.buffers();
                let op = piece.begin(request.command, request.fua, block_size, pool, token);
                cx.submit(op);
            }
        }
        if request.operations == 0 {
            self.finish(cx, slot);
        }
    }

    /// Handles the completion of a block operation.
    pub(in crate::nbd) fn complete(
        &mut self,
        cx: &mut Context,
        (slot, index): (Slot, usize),
        mut done: Completion,
    ) {
        let request = &mut self.requests[usize::from(slot.0)];
        if let Some(piece) = request.pieces.get_mut(index)
            && let Some(op) = piece.end(&mut done, request.fua, cx.reactor.buffers())
        {
            cx.submit(op);
            return;
        }
        request.result = request.result.and(done.result);
        request.operations -= 1;
        if request.operations == 0 {
            self.finish(cx, slot);
        }
        cx.turns.list(self.key);
    }

    /// Answers a request whose block operations have all completed.
    fn finish(&mut self, cx: &mut Context, slot: Slot) {
        let request = self.request(slot);
        let (command, result, cookie) = (request.command, request.result, request.cookie);
        if request.merges {
            cx.merged();
        } else if command.writes() {
            cx.written();
        }
        if self.is_closed() {
        } else if let Err(error) = result {
            tracing::debug!(peer = %self.peer, ?command, "an NBD request failed: {error}");
            self.refuse(cookie, Refusal::of(command, error));
        } else if command == Command::Read {
            self.answer_read(slot);
        } else {
            simple_reply(&mut self.outbox, cookie, 0);
        }
        self.release(cx, slot);
    }

    /// Frees a slot and the buffers that its request still holds.
    pub(super) fn release(&mut self, cx: &mut Context, slot: Slot) {
        let request = &mut self.requests[usize::from(slot.0)];
        for piece in request.pieces.drain(..) {
            piece.buffer.into_iter().for_each(|buffer| cx.reactor.buffers().give(buffer));
        }
        let held = std::mem::take(&mut request.held_bytes);
        self.free.push(slot);
        if held > 0 {
            self.held_bytes -= held;
            cx.release_bytes(held);
        }
    }

    /// Sends a read's data. The buffers move from the request to the connection, and count against
    /// its limit until they are sent.
    fn answer_read(&mut self, slot: Slot) {
        let request = &mut self.requests[usize::from(slot.0)];
        let (cookie, length) = (request.cookie, request.length);
        if !self.agreement.structured {
            simple_reply(&mut self.outbox, cookie, 0);
        } else if length == 0 {
            chunk_header(&mut self.outbox, chunk::NONE, cookie, 0);
        } else {
            chunk_header(&mut self.outbox, chunk::OFFSET_DATA, cookie, length + 8);
            self.outbox.bytes(&request.offset.to_be_bytes());
        }
        request.held_bytes = 0;
        for piece in request.pieces.drain(..) {
            let buffer = piece.buffer.expect("a read returns its buffer");
            let range = piece.start as usize..(piece.start + piece.length) as usize;
            self.outbox.payload(u64::from(piece.length), buffer, range);
        }
    }

    /// Answers a block status query: reports the whole range as data.
    fn answer_status(&mut self, header: &Header) {
        chunk_header(&mut self.outbox, chunk::BLOCK_STATUS, header.cookie, 12);
        self.outbox.bytes(&contexts::ALLOCATION_ID.to_be_bytes());
        self.outbox.bytes(&header.length.to_be_bytes());
        self.outbox.bytes(&contexts::DATA.to_be_bytes());
    }

    fn refuse(&mut self, cookie: u64, refusal: Refusal) {
        if !self.agreement.structured {
            simple_reply(&mut self.outbox, cookie, refusal.errno);
            return;
        }
        let text = refusal.text.as_bytes();
        chunk_header(&mut self.outbox, chunk::ERROR, cookie, 6 + text.len() as u32);
        self.outbox.bytes(&refusal.errno.to_be_bytes());
        self.outbox.bytes(&(text.len() as u16).to_be_bytes());
        self.outbox.bytes(text);
    }
}

fn simple_reply(outbox: &mut SendBatch, cookie: u64, errno: u32) {
    let mut reply = [0; 16];
    reply[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    reply[4..8].copy_from_slice(&errno.to_be_bytes());
    reply[8..].copy_from_slice(&cookie.to_be_bytes());
    outbox.bytes(&reply);
}

/// Appends the header of a structured reply that consists of one chunk.
fn chunk_header(outbox: &mut SendBatch, kind: u16, cookie: u64, length: u32) {
    let mut header = [0; 20];
    header[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&chunk::DONE.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..].copy_from_slice(&length.to_be_bytes());
    outbox.bytes(&header);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_encodes_connection_slot_and_piece() {
        for (connection, slot, piece) in [(0, 0, 0), (7, 255, 16_383), (u32::MAX, u16::MAX, 65_535)]
        {
            let key = super::super::ConnectionKey(connection);
            let owner = token_owner(token(key, Slot(slot), piece));
            assert_eq!(owner, (key, Slot(slot), piece));
        }
    }
}
