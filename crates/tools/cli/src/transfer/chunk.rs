//! A piece of a transfer's data.

use farblock_reactor::Buffer;
use std::ops::Range;

/// Data, or a number of zeroes.
pub(super) enum Chunk {
    Data(Buffer, Range<usize>),
    /// This many zeroes.
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
    // Compares in chunks, so that the compiler compares many bytes at once.
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}
