//! Requests: from 28 bytes to block operations, and back to an error number.

use super::negotiate::{Agreement, max_payload_bytes, piece_blocks};
use super::wire::{self, Reader, command, command_flag, errno};
use farblock_block::{BlockError, Command, Geometry};
use farblock_reactor::Buffer;

/// A request as it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) flags: u16,
    pub(super) code: u16,
    /// What the client calls the request.
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Header {
    /// None if the client has lost its way: there is no telling where the next request begins.
    pub(super) fn parse(bytes: &[u8; wire::REQUEST_BYTES]) -> Option<Header> {
        let mut reader = Reader(bytes);
        if reader.u32()? != wire::REQUEST_MAGIC {
            return None;
        }
        Some(Header {
            flags: reader.u16()?,
            code: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u32()?,
        })
    }

    /// Bytes that follow the header, whether the request is in order or not.
    pub(super) fn payload_bytes(&self) -> u32 {
        if self.code == command::WRITE { self.length } else { 0 }
    }

    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// What the request asks for, if it may.
    pub(super) fn check(
        &self,
        geometry: &Geometry,
        agreement: Agreement,
    ) -> Result<Command, Refusal> {
        let command = match self.code {
            command::READ => Command::Read,
            command::WRITE => Command::Write,
            command::FLUSH => Command::Flush,
            command::TRIM => Command::Deallocate,
            command::WRITE_ZEROES => {
                Command::WriteZeroes { deallocate: !self.has(command_flag::NO_HOLE) }
            }
            _ => return Err(Refusal::invalid("the command is unknown")),
        };
        if self.flags & !known_flags(command, agreement) != 0 {
            return Err(Refusal::invalid("the command has a flag that it cannot have"));
        }
        if command == Command::Flush {
            return Ok(command);
        }
        if geometry.read_only && command.writes() {
            return Err(Refusal::of(command, BlockError::ReadOnly));
        }
        let end = self.offset.checked_add(u64::from(self.length));
        if end.is_none_or(|end| end > geometry.capacity_bytes()) {
            return Err(Refusal::of(command, BlockError::OutOfRange));
        }
        if command.moves_data() && self.length > max_payload_bytes(geometry) {
            return Err(Refusal::of(command, BlockError::TooLarge));
        }
        let mask = u64::from(geometry.block_size) - 1;
        let is_unaligned = (self.offset | u64::from(self.length)) & mask != 0;
        // A trim is only a hint, and QEMU sends what it was given on as it is.
        if is_unaligned && agreement.knows_block_sizes && command != Command::Deallocate {
            return Err(Refusal::invalid("the request does not keep to the minimum block size"));
        }
        if self.has(command_flag::FAST_ZERO) && !zeroes_fast(command, geometry) {
            return Err(Refusal { errno: errno::ENOTSUP, text: "zeroing may take its time here" });
        }
        Ok(command)
    }
}

/// Whether zeroing is surely faster than writing zeroes.
fn zeroes_fast(command: Command, geometry: &Geometry) -> bool {
    command == Command::WriteZeroes { deallocate: true } && geometry.deallocate
}

fn known_flags(command: Command, agreement: Agreement) -> u16 {
    let own = match command {
        Command::Read if agreement.structured => command_flag::DF,
        Command::WriteZeroes { .. } => command_flag::NO_HOLE | command_flag::FAST_ZERO,
        _ => 0,
    };
    // Allowed on every command, even where it means nothing.
    own | command_flag::FUA
}

/// Why a request is not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) errno: u32,
    pub(super) text: &'static str,
}

impl Refusal {
    fn invalid(text: &'static str) -> Refusal {
        Refusal { errno: errno::EINVAL, text }
    }

    /// What a client is told of a block operation's error.
    pub(super) fn of(command: Command, error: BlockError) -> Refusal {
        let (errno, text) = match error {
            BlockError::OutOfRange if command == Command::Write => {
                (errno::ENOSPC, "the range reaches beyond the end of the disk")
            }
            BlockError::OutOfRange => {
                (errno::EINVAL, "the range reaches beyond the end of the disk")
            }
            BlockError::TooLarge => (errno::EINVAL, "the request moves too much data at once"),
            BlockError::ReadOnly => (errno::EPERM, "the disk is read-only"),
            BlockError::NoSpace => (errno::ENOSPC, "no space is left on what stores the disk"),
            BlockError::Unsupported => (errno::ENOTSUP, "the disk cannot do this"),
            BlockError::NoResources => (errno::ENOMEM, "the server is out of resources"),
            BlockError::Disconnected => (errno::EIO, "the connection to the disk is lost"),
            BlockError::ReadFailed => (errno::EIO, "reading failed"),
            BlockError::WriteFailed => (errno::EIO, "writing failed"),
            _ => (errno::EIO, "the operation was given up"),
        };
        Refusal { errno, text }
    }
}

/// A part of a request: what one block operation does.
pub(super) struct Piece {
    pub(super) lba: u64,
    pub(super) blocks: u32,
    /// Where in the first block the request's bytes begin. Only a piece of one block has less than
    /// all of it.
    pub(super) start: u32,
    /// The request's bytes.
    pub(super) length: u32,
    /// The data, of whole blocks.
    pub(super) buffer: Option<Buffer>,
    /// The block that a part of is to be written is being read.
    pub(super) reading: bool,
}

impl Piece {
    /// Whether it has less than whole blocks.
    pub(super) fn is_part(&self, block_size: u32) -> bool {
        self.length < block_size
    }
}

/// Cuts a request's range into pieces: whole blocks, as many as one operation takes, and what is
/// less than a block before and after them. Appends them in order.
pub(super) fn cut(command: Command, header: &Header, geometry: &Geometry, pieces: &mut Vec<Piece>) {
    let block_size = geometry.block_size;
    let most = if command.moves_data() { piece_blocks(geometry) } else { u32::MAX };
    let (mut offset, mut left) = (header.offset, header.length);
    while left > 0 {
        // A block size is a power of two that fits into 32 bits.
        let start = (offset & u64::from(block_size - 1)) as u32;
        let blocks = if start > 0 || left < block_size { 1 } else { (left / block_size).min(most) };
        let length = if blocks == 1 { (block_size - start).min(left) } else { blocks * block_size };
        let lba = offset / u64::from(block_size);
        let piece = Piece { lba, blocks, start, length, buffer: None, reading: false };
        // Nobody asked for all of the block to be given back.
        if command != Command::Deallocate || !piece.is_part(block_size) {
            pieces.push(piece);
        }
        offset += u64::from(length);
        left -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(code: u16, offset: u64, length: u32) -> Header {
        Header { flags: 0, code, cookie: 1, offset, length }
    }

    #[test]
    fn a_header_is_read_as_it_was_sent() {
        let mut bytes = [0; wire::REQUEST_BYTES];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[4..].copy_from_slice(&(1..=24).collect::<Vec<u8>>());
        let found = Header::parse(&bytes).expect("a request");
        let expected = Header {
            flags: 0x0102,
            code: 0x0304,
            cookie: 0x0506_0708_090a_0b0c,
            offset: 0x0d0e_0f10_1112_1314,
            length: 0x1516_1718,
        };
        assert_eq!(found, expected);
        bytes[0] = 0;
        assert_eq!(Header::parse(&bytes), None);
    }

    /// Pieces cover the range once, in order, and none is more than it may be.
    #[test]
    fn pieces_cover_the_range() {
        for (block_size, max_blocks) in [(512, 0), (512, 3), (4096, 0), (4096, 1), (65_536, 7)] {
            let geometry = Geometry { max_blocks, ..Geometry::new(block_size, 1 << 40) };
            for (command, code) in
                [(Command::Write, 1), (Command::Deallocate, 4), (Command::Read, 0)]
            {
                for offset in [0, 1, 511, 512, 4095, 65_536, 1 << 40] {
                    for length in [0, 1, 511, 512, 513, 4096, 100_000, 3 << 20] {
                        check_pieces(&geometry, command, &header(code, offset, length));
                    }
                }
            }
        }
    }

    fn check_pieces(geometry: &Geometry, command: Command, header: &Header) {
        let block_size = u64::from(geometry.block_size);
        let mut pieces = Vec::new();
        cut(command, header, geometry, &mut pieces);
        let (mut at, mut covered) = (header.offset, 0);
        for piece in &pieces {
            let begin = piece.lba * block_size + u64::from(piece.start);
            if command == Command::Deallocate {
                assert_eq!(piece.length, piece.blocks * geometry.block_size, "whole blocks only");
                assert!(begin >= at && begin - at < block_size);
            } else {
                assert_eq!(begin, at);
                assert!(piece.blocks <= piece_blocks(geometry));
            }
            if piece.is_part(geometry.block_size) {
                assert_eq!(piece.blocks, 1);
            } else {
                assert_eq!((piece.start, piece.length), (0, piece.blocks * geometry.block_size));
            }
            assert!(u64::from(piece.start + piece.length) <= u64::from(piece.blocks) * block_size);
            at = begin + u64::from(piece.length);
            covered += u64::from(piece.length);
        }
        let left = header.offset + u64::from(header.length) - at;
        if command == Command::Deallocate {
            assert!(left < 2 * block_size, "{left} bytes are not given back");
        } else {
            assert_eq!((left, covered), (0, u64::from(header.length)));
        }
    }

    /// However small the pieces, there are few enough to be numbered.
    #[test]
    fn the_largest_request_has_few_enough_pieces() {
        for (block_size, max_blocks) in [(512, 1), (512, 0), (4096, 1), (65_536, 1)] {
            let geometry = Geometry { max_blocks, ..Geometry::new(block_size, 1 << 40) };
            let most = max_payload_bytes(&geometry);
            assert!(most.is_multiple_of(block_size) && most >= 1 << 20);
            let mut pieces = Vec::new();
            cut(Command::Read, &header(0, 1, most), &geometry, &mut pieces);
            assert!(pieces.len() <= 1 << 16, "{} pieces", pieces.len());
        }
    }
}
