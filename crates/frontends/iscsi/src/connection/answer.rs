//! Sends PDUs with their digests, and the answers to SCSI commands.

use super::Connection;
use crate::context::Context;
use crate::scsi::{Failure, Sense, sense, status};
use crate::task::Slot;
use crate::wire::{DataIn, NO_TAG, R2t, ScsiResponse, flag, length, padding, response};
use crc32c::{crc32c, crc32c_append};
use farblock_reactor::Buffer;
use zerocopy::{Immutable, IntoBytes};

/// Zero bytes that pad a data segment.
const PADDING: [u8; 3] = [0; 3];

/// The residual of a command, as a flag and a number of bytes. `expected` is the length that the
/// initiator announced; `there` is the number of bytes that the command would transfer.
fn residual(expected: u64, there: u64) -> (u8, u32) {
    let bytes = |count| u32::try_from(count).unwrap_or(u32::MAX);
    match there.cmp(&expected) {
        std::cmp::Ordering::Less => (flag::UNDERFLOW, bytes(expected - there)),
        std::cmp::Ordering::Equal => (0, 0),
        std::cmp::Ordering::Greater => (flag::OVERFLOW, bytes(there - expected)),
    }
}

/// A read command whose data the connection is sending.
struct Sending {
    tag: u32,
    /// The number of bytes queued so far.
    offset: u32,
    data_sn: u32,
    /// The total number of bytes to send.
    moves: u32,
    /// The flags and the residual count of the last PDU.
    end: (u8, u32),
    bursts: Bursts,
}

/// The state that divides a read's data into bursts and PDUs.
#[derive(Clone, Copy)]
struct Bursts {
    send_bytes: u32,
    max_burst: u32,
    in_burst: u32,
}

impl Bursts {
    /// Returns the length of the next PDU in bytes, and whether the PDU ends a burst.
    fn next(&mut self, left: u32) -> (u32, bool) {
        let bytes = left.min(self.send_bytes).min(self.max_burst - self.in_burst);
        self.in_burst += bytes;
        let ends = self.in_burst == self.max_burst;
        if ends {
            self.in_burst = 0;
        }
        (bytes, ends)
    }
}

impl Connection {
    /// Returns the sequence number for the next PDU that carries a status.
    pub(super) fn next_stat_sn(&mut self) -> u32 {
        let number = self.numbers.stat_sn;
        self.numbers.stat_sn = number.wrapping_add(1);
        number
    }

    pub(super) fn put_header(&mut self, pdu: &(impl IntoBytes + Immutable)) {
        let bytes = pdu.as_bytes();
        self.output.batch.bytes(bytes);
        if self.parameters.header_digest {
            self.output.batch.bytes(&crc32c(bytes).to_le_bytes());
        }
    }

    pub(super) fn put_data(&mut self, data: &[u8]) {
        self.output.batch.bytes(data);
        self.put_trailer(data.len(), || crc32c(data));
    }

    /// Appends the padding and the data digest after `bytes` bytes of data. `crc` returns the
    /// data's checksum.
    fn put_trailer(&mut self, bytes: usize, crc: impl FnOnce() -> u32) {
        let padding = &PADDING[..padding(bytes)];
        self.output.batch.bytes(padding);
        if self.parameters.data_digest && bytes > 0 {
            self.output.batch.bytes(&crc32c_append(crc(), padding).to_le_bytes());
        }
    }

    /// Sends a SCSI response with the status of a command.
    fn put_response(
        &mut self,
        slot: Slot,
        status: u8,
        (flags, residual): (u8, u32),
        sense: Option<Sense>,
    ) {
        self.uncount(slot);
        let task = self.entry(slot);
        let mut pdu = ScsiResponse {
            opcode: response::SCSI,
            flags: flag::FINAL | flags,
            status,
            task_tag: task.tag.into(),
            exp_data_sn: task.r2t_sn.into(),
            residual: residual.into(),
            ..ScsiResponse::default()
        };
        pdu.stat_sn = self.next_stat_sn().into();
        (pdu.exp_cmd_sn, pdu.max_cmd_sn) =
            (self.numbers.exp_cmd_sn.into(), self.max_cmd_sn().into());
        match sense {
            None => self.put_header(&pdu),
            Some(sense) => {
                let mut data = [0; 2 + sense::SENSE_BYTES];
                data[1] = sense::SENSE_BYTES as u8;
                data[2..].copy_from_slice(&sense.bytes());
                pdu.data_length = length(data.len());
                self.put_header(&pdu);
                self.put_data(&data);
            }
        }
    }

    /// Answers a command that failed.
    pub(super) fn answer_failure(&mut self, slot: Slot, failure: Failure) {
        let task = self.entry(slot);
        let (command, residual) = (task.command, residual(task.expected.into(), 0));
        tracing::debug!(peer = %self.peer, ?command, ?failure, "an iSCSI command failed");
        let (code, sense) = match failure {
            Failure::Check(sense) => (status::CHECK_CONDITION, Some(sense)),
            Failure::Busy => (status::BUSY, None),
            Failure::Conflict => (status::RESERVATION_CONFLICT, None),
        };
        self.put_response(slot, code, residual, sense);
    }

    /// Answers a command that succeeded and returns no data.
    pub(super) fn answer_taken(&mut self, cx: &Context, slot: Slot) {
        let task = self.entry(slot);
        let taken = task.command.wants_bytes(cx.unit.geometry.block_size);
        let residual = residual(task.expected.into(), taken);
        self.put_response(slot, status::GOOD, residual, None);
    }

    /// Answers a command with data from the target itself, not from the namespace.
    pub(super) fn answer_bytes(&mut self, slot: Slot, data: &[u8]) {
        let task = self.entry(slot);
        let (tag, expected) = (task.tag, task.expected);
        let moves = &data[..data.len().min(expected as usize)];
        let end = residual(expected.into(), data.len() as u64);
        if moves.is_empty() {
            self.put_response(slot, status::GOOD, end, None);
            return;
        }
        self.uncount(slot);
        let whole = moves.len() as u32;
        let (mut offset, mut data_sn) = (0, 0);
        let mut bursts = self.bursts();
        while offset < whole {
            let (bytes, ends) = bursts.next(whole - offset);
            let end = (offset + bytes == whole).then_some(end);
            let pdu = self.data_in(tag, (offset, bytes), data_sn, ends, end);
            self.put_header(&pdu);
            self.put_data(&moves[offset as usize..(offset + bytes) as usize]);
            (offset, data_sn) = (offset + bytes, data_sn + 1);
        }
    }

    /// Answers a read command. The buffers move from the task to the output, and count against the
    /// session's limit until they are sent.
    pub(super) fn answer_read(&mut self, cx: &Context, slot: Slot) {
        let block_size = cx.unit.geometry.block_size;
        let task = self.entry(slot);
        let there: u64 = task.pieces.iter().map(|piece| u64::from(piece.blocks)).sum();
        let there = there * u64::from(block_size);
        let moves = there.min(task.expected.into()) as u32;
        let end = residual(task.expected.into(), there);
        if moves == 0 {
            self.put_response(slot, status::GOOD, end, None);
            return;
        }
        let mut pieces = std::mem::take(&mut task.pieces);
        let (tag, mut unsent) = (task.tag, std::mem::take(&mut task.held_bytes));
        self.uncount(slot);
        let mut sending = Sending { tag, offset: 0, data_sn: 0, moves, end, bursts: self.bursts() };
        for piece in pieces.drain(..) {
            let buffer = piece.buffer.expect("a read returns its buffer");
            if sending.offset == moves {
                cx.reactor.buffers().give(buffer);
                continue;
            }
            unsent -= buffer.len();
            self.put_piece(buffer, &mut sending);
        }
        // Stop counting the buffers whose data the initiator did not request.
        self.admission.held_bytes -= unsent;
        self.entry(slot).pieces = pieces;
    }

    /// Sends one buffer of a read's data.
    fn put_piece(&mut self, buffer: Buffer, sending: &mut Sending) {
        let bytes = (buffer.len() as u32).min(sending.moves - sending.offset);
        if self.parameters.data_digest {
            // Compute the checksums first: after the batch owns the buffer, it cannot be read.
            let (mut done, mut bursts) = (0, sending.bursts);
            while done < bytes {
                let (now, _) = bursts.next(bytes - done);
                self.output.checksums.push(crc32c(&buffer[done as usize..(done + now) as usize]));
                done += now;
            }
        }
        let held = buffer.len() as u64;
        // From here on the batch owns the buffer. The loop below appends a header before each part
        // of the buffer.
        let payload = self.output.batch.payload(held, buffer, 0..0);
        let mut checksums = std::mem::take(&mut self.output.checksums);
        let (mut done, mut index) = (0, 0);
        while done < bytes {
            let (now, ends) = sending.bursts.next(bytes - done);
            let is_last = sending.offset + now == sending.moves;
            let place = (sending.offset, now);
            let end = is_last.then_some(sending.end);
            let pdu = self.data_in(sending.tag, place, sending.data_sn, ends, end);
            self.put_header(&pdu);
            self.output.batch.payload_again(payload, done as usize..(done + now) as usize);
            self.put_trailer(now as usize, || checksums[index]);
            (done, index) = (done + now, index + 1);
            (sending.offset, sending.data_sn) = (sending.offset + now, sending.data_sn + 1);
        }
        checksums.clear();
        self.output.checksums = checksums;
    }

    fn bursts(&self) -> Bursts {
        let (send_bytes, max_burst) = (self.parameters.send_bytes, self.parameters.max_burst);
        Bursts { send_bytes, max_burst, in_burst: 0 }
    }

    /// Makes a Data-In PDU. With `end`, the PDU is the last one and carries the status GOOD.
    fn data_in(
        &mut self,
        tag: u32,
        (offset, bytes): (u32, u32),
        data_sn: u32,
        ends_burst: bool,
        end: Option<(u8, u32)>,
    ) -> DataIn {
        let mut pdu = DataIn {
            opcode: response::DATA_IN,
            data_length: length(bytes as usize),
            task_tag: tag.into(),
            target_tag: NO_TAG.into(),
            ..DataIn::default()
        };
        (pdu.exp_cmd_sn, pdu.max_cmd_sn) =
            (self.numbers.exp_cmd_sn.into(), self.max_cmd_sn().into());
        pdu.data_sn = data_sn.into();
        pdu.offset = offset.into();
        if ends_burst {
            pdu.flags = flag::FINAL;
        }
        if let Some((flags, residual)) = end {
            pdu.flags = flag::FINAL | flag::STATUS | flags;
            pdu.stat_sn = self.next_stat_sn().into();
            pdu.residual = residual.into();
        }
        pdu
    }

    /// Sends an R2T that requests a part of a task's data.
    pub(super) fn put_r2t(&mut self, slot: Slot, (offset, bytes): (u32, u32), r2t_sn: u32) {
        let tag = self.entry(slot).tag;
        let mut pdu = R2t::default();
        (pdu.opcode, pdu.flags) = (response::R2T, flag::FINAL);
        pdu.task_tag = tag.into();
        pdu.target_tag = u32::from(slot.0).into();
        pdu.stat_sn = self.numbers.stat_sn.into();
        (pdu.exp_cmd_sn, pdu.max_cmd_sn) =
            (self.numbers.exp_cmd_sn.into(), self.max_cmd_sn().into());
        pdu.r2t_sn = r2t_sn.into();
        pdu.offset = offset.into();
        pdu.desired_bytes = bytes.into();
        self.put_header(&pdu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residual_counts_and_flags_are_set() {
        assert_eq!(residual(512, 512), (0, 0));
        assert_eq!(residual(10_000, 512), (flag::UNDERFLOW, 9488));
        assert_eq!(residual(0, 512), (flag::OVERFLOW, 512));
        assert_eq!(residual(0, u64::MAX), (flag::OVERFLOW, u32::MAX));
    }

    #[test]
    fn data_are_split_into_segments_and_bursts() {
        let mut bursts = Bursts { send_bytes: 8192, max_burst: 20_000, in_burst: 0 };
        let mut left = 50_000;
        let mut sizes = Vec::new();
        while left > 0 {
            let (bytes, ends) = bursts.next(left);
            sizes.push((bytes, ends));
            left -= bytes;
        }
        let burst = [(8192, false), (8192, false), (3616, true)];
        let rest = [(8192, false), (1808, false)];
        assert_eq!(sizes, [&burst[..], &burst[..], &rest[..]].concat());
    }
}
