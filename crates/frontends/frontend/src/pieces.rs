//! Divides a request for any range of bytes into operations on whole blocks.
//!
//! [`cut`] divides a range into pieces. Each piece is one operation ([`Piece::begin`]). A write of
//! less than a block is a read and then a write ([`Piece::end`]); no other write may run between
//! them, which [`writes`](crate::writes) ensures.

use crate::limits;
use farblock_block::{Command, Completion, Geometry, Op};
use farblock_reactor::{Buffer, BufferPool};

/// A part of a request: one block operation, or the read-modify-write of one block.
pub struct Piece {
    /// The piece's first block.
    pub lba: u64,
    /// The number of blocks.
    pub blocks: u32,
    /// The offset of the request's bytes in the first block. Only a piece of one block has an
    /// offset above 0.
    pub start: u32,
    /// The number of the request's bytes in this piece.
    pub length: u32,
    /// The data, in whole blocks. `None` while an operation has the buffer.
    pub buffer: Option<Buffer>,
    step: Step,
}

/// The current step of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The command runs on whole blocks.
    Whole,
    /// The namespace reads the block that the request changes in part.
    ReadBlock,
    /// The namespace writes the changed block.
    WriteBlock,
}

impl Piece {
    /// True if the piece is shorter than a block.
    pub fn is_part(&self, block_size: u32) -> bool {
        self.length < block_size
    }

    /// Returns the piece's first operation. A partial write first reads its block.
    pub fn begin(
        &mut self,
        command: Command,
        fua: bool,
        block_size: u32,
        pool: &BufferPool,
        token: u64,
    ) -> Op {
        if command.writes() && self.is_part(block_size) {
            self.step = Step::ReadBlock;
            return Op::read(self.lba, 1, pool.take(block_size as usize), token);
        }
        let buffer = self.buffer.take();
        let op = Op::with(command, self.lba, self.blocks, buffer, token);
        Op { fua: fua && command.writes(), ..op }
    }

    /// Handles a completed operation, takes its buffer, and returns the next operation. `None` when
    /// the piece is done, successfully or not. The buffer of a successful read then has the data.
    pub fn end(&mut self, done: &mut Completion, fua: bool, pool: &BufferPool) -> Option<Op> {
        let buffer = done.buffer.take();
        match std::mem::replace(&mut self.step, Step::Whole) {
            Step::Whole => self.buffer = buffer,
            Step::ReadBlock if done.result.is_ok() => {
                let mut block = buffer.expect("a read returns its buffer");
                let part = self.start as usize..(self.start + self.length) as usize;
                match &self.buffer {
                    Some(data) => block[part.clone()].copy_from_slice(&data[part]),
                    None => block[part].fill(0),
                }
                self.step = Step::WriteBlock;
                return Some(Op { fua, ..Op::write(self.lba, 1, block, done.token) });
            }
            Step::ReadBlock | Step::WriteBlock => {
                buffer.into_iter().for_each(|block| pool.give(block));
            }
        }
        None
    }
}

/// The maximum number of blocks of one operation: the smaller of [`limits::PIECE_BYTES`] and the
/// namespace's limit.
pub fn piece_blocks(geometry: &Geometry) -> u32 {
    let blocks = limits::PIECE_BYTES / geometry.block_size;
    if geometry.max_blocks == 0 { blocks } else { blocks.min(geometry.max_blocks) }
}

/// Cuts a range of bytes into pieces, and appends them to `pieces` in order. Whole blocks form
/// pieces as large as one operation allows; partial blocks at the start and end are pieces of their
/// own.
pub fn cut(
    command: Command,
    offset: u64,
    length: u32,
    geometry: &Geometry,
    pieces: &mut Vec<Piece>,
) {
    let block_size = geometry.block_size;
    let most = if command.moves_data() { piece_blocks(geometry) } else { u32::MAX };
    let (mut offset, mut left) = (offset, length);
    while left > 0 {
        // The result is smaller than the block size, so it fits into 32 bits.
        let start = (offset & u64::from(block_size - 1)) as u32;
        let blocks = if start > 0 || left < block_size { 1 } else { (left / block_size).min(most) };
        let length = if blocks == 1 { (block_size - start).min(left) } else { blocks * block_size };
        let lba = offset / u64::from(block_size);
        let piece = Piece { lba, blocks, start, length, buffer: None, step: Step::Whole };
        // A deallocation must not free data of a block that the request covers only in part.
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

    /// The pieces cover the range exactly, in order, and each piece is within its limit.
    #[test]
    fn pieces_cover_the_range() {
        for (block_size, max_blocks) in [(512, 0), (512, 3), (4096, 0), (4096, 1), (65_536, 7)] {
            let geometry = Geometry { max_blocks, ..Geometry::new(block_size, 1 << 40) };
            for command in [Command::Write, Command::Deallocate, Command::Read] {
                for offset in [0, 1, 511, 512, 4095, 65_536, 1 << 40] {
                    for length in [0, 1, 511, 512, 513, 4096, 100_000, 3 << 20] {
                        check_pieces(&geometry, command, offset, length);
                    }
                }
            }
        }
    }

    fn check_pieces(geometry: &Geometry, command: Command, offset: u64, length: u32) {
        let block_size = u64::from(geometry.block_size);
        let mut pieces = Vec::new();
        cut(command, offset, length, geometry, &mut pieces);
        let (mut at, mut covered) = (offset, 0);
        for piece in &pieces {
            let begin = piece.lba * block_size + u64::from(piece.start);
            if command == Command::Deallocate {
                assert_eq!(
                    piece.length,
                    piece.blocks * geometry.block_size,
                    "a piece deallocates a partial block"
                );
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
        let left = offset + u64::from(length) - at;
        if command == Command::Deallocate {
            assert!(left < 2 * block_size, "{left} bytes are not freed");
        } else {
            assert_eq!((left, covered), (0, u64::from(length)));
        }
    }
}
