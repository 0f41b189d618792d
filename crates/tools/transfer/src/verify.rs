//! `--verify`: reads the source and the destination again and compares them.

use super::chunk::{Chunk, is_zero};
use super::source::{Next, Source};
use super::{TICK, interrupted};
use crate::error::{Failure, Result};
use crate::signals::Stop;
use indicatif::ProgressBar;

/// The source or the destination, read in order.
struct End {
    source: Source,
    chunk: Option<Chunk>,
    /// The number of bytes of the chunk that have been compared.
    used: u64,
}

/// The next bytes to compare: data, or a run of zeroes.
enum VerifiedPart<'a> {
    Bytes(&'a [u8]),
    Zeroes,
}

impl End {
    fn new(source: Source) -> End {
        End { source, chunk: None, used: 0 }
    }

    /// Returns the number of bytes that are available; 0 at the end.
    fn available(&mut self, stop: &Stop) -> Result<u64> {
        loop {
            if stop.requested() {
                return Err(interrupted());
            }
            if let Some(chunk) = &self.chunk {
                if self.used < chunk.len() {
                    return Ok(chunk.len() - self.used);
                }
                if let Some(Chunk::Data(buffer, _)) = self.chunk.take() {
                    self.source.give_back(buffer);
                }
            }
            match self.source.next(TICK)? {
                Next::End => return Ok(0),
                Next::Waiting => {}
                Next::Chunk(chunk) => (self.chunk, self.used) = (Some(chunk), 0),
            }
        }
    }

    fn part(&self, length: u64) -> VerifiedPart<'_> {
        match &self.chunk {
            Some(Chunk::Data(buffer, range)) => {
                let start = range.start + self.used as usize;
                VerifiedPart::Bytes(&buffer[start..start + length as usize])
            }
            _ => VerifiedPart::Zeroes,
        }
    }
}

/// Returns the offset of the first difference between two parts of the same length.
fn difference(one: VerifiedPart<'_>, other: VerifiedPart<'_>) -> Option<usize> {
    match (one, other) {
        (VerifiedPart::Zeroes, VerifiedPart::Zeroes) => None,
        (VerifiedPart::Bytes(bytes), VerifiedPart::Zeroes)
        | (VerifiedPart::Zeroes, VerifiedPart::Bytes(bytes)) => {
            if is_zero(bytes) {
                None
            } else {
                bytes.iter().position(|&byte| byte != 0)
            }
        }
        (VerifiedPart::Bytes(one), VerifiedPart::Bytes(other)) => {
            if one == other {
                None
            } else {
                one.iter().zip(other).position(|(a, b)| a != b)
            }
        }
    }
}

/// Compares the data of two sources. Fails at the first difference.
pub(super) fn compare(
    (source, source_name): (Source, &str),
    (copy, copy_name): (Source, &str),
    bar: &ProgressBar,
    stop: &Stop,
) -> Result<()> {
    let (mut source, mut copy) = (End::new(source), End::new(copy));
    let mut compared = 0;
    let differ = |at: u64| {
        Err(Failure::run(format_args!(
            "verifying failed: {copy_name} differs from {source_name} at byte {at}"
        )))
    };
    loop {
        let (left, right) = (source.available(stop)?, copy.available(stop)?);
        let length = left.min(right);
        if length == 0 {
            return if left == right { Ok(()) } else { differ(compared) };
        }
        if let Some(at) = difference(source.part(length), copy.part(length)) {
            return differ(compared + at as u64);
        }
        source.used += length;
        copy.used += length;
        compared += length;
        bar.inc(length);
    }
}
