//! Parses received bytes into PDUs: header, additional header segments, header digest, data,
//! padding, data digest.

use super::{Connection, Session, SessionState};
use crate::context::Context;
use crate::limits;
use crate::task::Slot;
use crate::wire::{BHS_BYTES, DIGEST_BYTES, data_bytes, padding};
use crc32c::crc32c_append;
use farblock_reactor::Buffer;

/// The part of a PDU to which the next received bytes belong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// A basic header segment; the number of its bytes that have arrived.
    Header(usize),
    /// Additional header segments, which the target ignores; the number of their remaining bytes.
    Ahs(usize),
    /// The header digest; the number of its bytes that have arrived.
    HeaderDigest([u8; DIGEST_BYTES], usize),
    /// The data; the number of its bytes that have arrived.
    Data(Destination, u32),
    /// The padding and the data digest; the number of their bytes that have arrived.
    Trailer([u8; 3 + DIGEST_BYTES], usize),
}

/// The destination of a PDU's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    /// The target discards the data.
    Nowhere,
    /// The request in the same PDU.
    Request,
    /// A task, and the offset in its data.
    Task(Slot, u32),
}

impl Connection {
    pub(super) fn received(&mut self, cx: &mut Context, result: std::io::Result<Buffer>) {
        self.input.receiving = false;
        match result {
            Ok(buffer) if !buffer.is_empty() => {
                self.input.unread = Some((buffer, 0));
                self.process_unread(cx);
            }
            // The initiator has disconnected: it sends no more data and reads no answer.
            _ => self.close(cx),
        }
    }

    /// Parses received bytes until none remain or a limit stops the parsing.
    pub(super) fn process_unread(&mut self, cx: &mut Context) {
        match self.input.unread.take() {
            // No bytes remain, but a request may have waited for resources that are available now.
            None => self.process(cx, &mut [].as_slice()),
            Some((buffer, start)) => {
                let mut input = &buffer[start..];
                self.process(cx, &mut input);
                let left = input.len();
                if left > 0 && self.state == SessionState::Open {
                    let start = buffer.len() - left;
                    self.input.unread = Some((buffer, start));
                } else {
                    cx.reactor.buffers().give(buffer);
                }
            }
        }
    }

    /// Parses `input` until it is empty or the parser must wait.
    fn process(&mut self, cx: &mut Context, input: &mut &[u8]) {
        while self.state == SessionState::Open && !self.is_held_up(cx) {
            let goes_on = match self.input.phase {
                Phase::Header(count) => self.header(count, input),
                Phase::Ahs(left) => self.additional(cx, left, input),
                Phase::HeaderDigest(digest, count) => self.digest(cx, digest, count, input),
                Phase::Data(destination, filled) => self.data(cx, destination, filled, input),
                Phase::Trailer(bytes, count) => self.trailer(cx, bytes, count, input),
            };
            if !goes_on {
                break;
            }
        }
    }

    /// True if the connection must not parse more input now.
    fn is_held_up(&self, cx: &Context) -> bool {
        cx.has_actions()
            || matches!(self.session, Session::Admitting(_))
            || self.output.batch.len() > limits::OUTBOX_BYTES
    }

    /// Collects a header, of which `count` bytes have arrived. Returns false if more bytes must
    /// arrive first.
    fn header(&mut self, count: usize, input: &mut &[u8]) -> bool {
        let count = count + take(&mut self.input.bhs[count..], input);
        if count < BHS_BYTES {
            self.input.phase = Phase::Header(count);
            return false;
        }
        self.input.crc = self.checksum(self.parameters.header_digest, 0, &self.input.bhs);
        self.input.phase = Phase::Ahs(usize::from(self.input.bhs[4]) * 4);
        true
    }

    fn additional(&mut self, cx: &mut Context, left: usize, input: &mut &[u8]) -> bool {
        if left > 0 && !matches!(self.session, Session::FullFeature) {
            let peer = self.peer;
            cx.complain("iSCSI protocol errors", peer, || {
                tracing::warn!(%peer, "closing the connection: the peer sent no iSCSI login");
            });
            self.close(cx);
            return false;
        }
        let (skipped, rest) = input.split_at(left.min(input.len()));
        self.input.crc = self.checksum(self.parameters.header_digest, self.input.crc, skipped);
        *input = rest;
        let left = left - skipped.len();
        self.input.phase = Phase::Ahs(left);
        if left > 0 {
            return false;
        }
        if self.parameters.header_digest {
            self.input.phase = Phase::HeaderDigest([0; DIGEST_BYTES], 0);
            return true;
        }
        self.begin_data(cx)
    }

    fn digest(
        &mut self,
        cx: &mut Context,
        mut digest: [u8; DIGEST_BYTES],
        count: usize,
        input: &mut &[u8],
    ) -> bool {
        let count = count + take(&mut digest[count..], input);
        self.input.phase = Phase::HeaderDigest(digest, count);
        if count < DIGEST_BYTES {
            return false;
        }
        if u32::from_le_bytes(digest) != self.input.crc {
            // The length in a header with a wrong digest may also be wrong, so the next PDU cannot
            // be found.
            let peer = self.peer;
            cx.complain("iSCSI protocol errors", peer, || {
                tracing::warn!(
                    %peer,
                    "closing the connection: the digest of an iSCSI header does not match"
                );
            });
            self.close(cx);
            return false;
        }
        self.begin_data(cx)
    }

    /// Finds the destination of the data that follows a complete header.
    fn begin_data(&mut self, cx: &mut Context) -> bool {
        self.input.crc = 0;
        self.input.collected.clear();
        let bytes = data_bytes(&self.input.bhs);
        if bytes > self.parameters.receive_bytes {
            let peer = self.peer;
            cx.complain("iSCSI protocol errors", peer, || {
                tracing::warn!(
                    %peer,
                    "closing the connection: an iSCSI PDU has {bytes} bytes of data, which are too \
                     many"
                );
            });
            self.close(cx);
            return false;
        }
        let destination = self.begin_pdu(cx);
        self.input.phase = Phase::Data(destination, 0);
        self.state == SessionState::Open
    }

    /// Consumes a PDU's data. Returns false if more bytes must arrive first.
    fn data(
        &mut self,
        cx: &mut Context,
        destination: Destination,
        filled: u32,
        input: &mut &[u8],
    ) -> bool {
        let left = data_bytes(&self.input.bhs) - filled;
        let (now, rest) = input.split_at(input.len().min(left as usize));
        if left > 0 && now.is_empty() {
            return false;
        }
        *input = rest;
        self.input.crc = self.checksum(self.parameters.data_digest, self.input.crc, now);
        match destination {
            Destination::Nowhere => {}
            Destination::Request => self.input.collected.extend_from_slice(now),
            Destination::Task(slot, offset) => {
                let (geometry, pool) = (cx.unit.geometry, cx.reactor.buffers());
                self.entry(slot).store(offset + filled, now, &geometry, pool);
            }
        }
        self.filled(destination, filled + now.len() as u32);
        true
    }

    fn filled(&mut self, destination: Destination, filled: u32) {
        self.input.phase = if filled == data_bytes(&self.input.bhs) {
            Phase::Trailer([0; 3 + DIGEST_BYTES], 0)
        } else {
            Phase::Data(destination, filled)
        };
    }

    fn trailer(
        &mut self,
        cx: &mut Context,
        mut bytes: [u8; 3 + DIGEST_BYTES],
        count: usize,
        input: &mut &[u8],
    ) -> bool {
        let data_bytes = data_bytes(&self.input.bhs) as usize;
        let padding = padding(data_bytes);
        let has_digest = self.parameters.data_digest && data_bytes > 0;
        let whole = padding + if has_digest { DIGEST_BYTES } else { 0 };
        let count = count + take(&mut bytes[count..whole], input);
        self.input.phase = Phase::Trailer(bytes, count);
        if count < whole {
            return false;
        }
        let intact = !has_digest || {
            let crc = crc32c_append(self.input.crc, &bytes[..padding]);
            bytes[padding..whole] == crc.to_le_bytes()
        };
        self.input.phase = Phase::Header(0);
        self.end_pdu(cx, intact);
        self.state == SessionState::Open
    }

    fn checksum(&self, wanted: bool, crc: u32, bytes: &[u8]) -> u32 {
        if wanted { crc32c_append(crc, bytes) } else { crc }
    }

    /// Starts to receive more bytes, unless a limit forbids this.
    pub(super) fn arm_receive(&mut self, cx: &mut Context) {
        let full = self.input.unread.is_some() || self.is_held_up(cx);
        if self.state != SessionState::Open || self.input.receiving || full {
            return;
        }
        self.input.receiving = true;
        if let Phase::Data(Destination::Task(slot, offset), filled) = self.input.phase {
            let most = (data_bytes(&self.input.bhs) - filled) as usize;
            let (geometry, pool) = (cx.unit.geometry, cx.reactor.buffers());
            let lent = self.entry(slot).lend(offset + filled, most, &geometry, pool);
            if let Some((buffer, range)) = lent {
                self.input.expects_large = true;
                cx.reactor.recv_into(self.stream, buffer, range);
                return;
            }
        }
        if std::mem::take(&mut self.input.expects_large) {
            // Receive little more than the next header, so that the target can receive the data
            // after it directly into its buffer.
            cx.reactor.recv_at_most(self.stream, (2 * BHS_BYTES) as u32);
        } else {
            cx.reactor.recv(self.stream);
        }
    }

    pub(super) fn received_into(
        &mut self,
        cx: &mut Context,
        buffer: Buffer,
        result: std::io::Result<usize>,
    ) {
        self.input.receiving = false;
        let Phase::Data(destination @ Destination::Task(slot, offset), filled) = self.input.phase
        else {
            unreachable!("received data although no task expects any");
        };
        let count = result.unwrap_or(0);
        let geometry = cx.unit.geometry;
        let wanted = self.parameters.data_digest;
        let crc = self.input.crc;
        let data = self.entry(slot).take_back(offset + filled, count, buffer, &geometry);
        let crc = if wanted { crc32c_append(crc, data) } else { crc };
        self.input.crc = crc;
        if count == 0 {
            self.close(cx);
        } else if self.state == SessionState::Open {
            self.filled(destination, filled + count as u32);
            self.process_unread(cx);
        }
    }
}

/// Moves bytes from the front of `input` to `to` until `to` is full. Returns the number of moved
/// bytes.
fn take(to: &mut [u8], input: &mut &[u8]) -> usize {
    let count = to.len().min(input.len());
    let (now, rest) = input.split_at(count);
    to[..count].copy_from_slice(now);
    *input = rest;
    count
}
