//! A piece of a transfer's data.

use farblock_reactor::Buffer;
use std::ops::Range;

/// A piece of data: a buffer with the range of its valid bytes, or a hole.
pub(super) enum Chunk {
    Data(Buffer, Range<usize>),
    /// The length in bytes of a run of zeroes.
    Hole(u64),
}

impl Chunk {
    pub(super) fn len(&self) -> u64 {
        match self {
            Chunk::Data(_, range) => range.len() as u64,
            Chunk::Hole(length) => *length,
        }
    }

    pub(super) fn truncate(&mut self, length: u64) {
        match self {
            Chunk::Data(_, range) => {
                range.end = range.start + length.min(range.len() as u64) as usize;
            }
            Chunk::Hole(all) => *all = length.min(*all),
        }
    }
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // Compare in arrays of 64 bytes, so that the compiler uses vector instructions.
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}
