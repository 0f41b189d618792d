//! Stores received bytes until they form a whole record.

use super::{APPLICATION, DECODE_ERROR, Fatal, HEADER_BYTES, RECORD_OVERFLOW, TAG_BYTES};
use crate::limits;

/// Collects received bytes until they form whole records.
#[derive(Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// The number of bytes at the front that [`Self::next`] has already returned.
    taken: usize,
}

impl Input {
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.reserve_exact(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next record, from the stored bytes and then from `more`. If `more` contains a
    /// whole record, the record is not copied. Returns `None` if there is no whole record, and then
    /// stores the rest of `more`.
    pub(super) fn next<'a, 'b: 'a>(
        &'a mut self,
        more: &mut &'b [u8],
    ) -> Result<Option<&'a [u8]>, Fatal> {
        while self.len() > 0 {
            let have = &self.bytes[self.taken..];
            let wanted = record_bytes(have)?.unwrap_or(HEADER_BYTES);
            if have.len() >= wanted && have.len() >= HEADER_BYTES {
                let start = self.taken;
                self.taken += wanted;
                return Ok(Some(&self.bytes[start..start + wanted]));
            }
            let missing = (wanted - have.len()).min(more.len());
            if missing == 0 {
                return Ok(None);
            }
            let (part, rest) = more.split_at(missing);
            self.add(part);
            *more = rest;
        }
        match record_bytes(more)? {
            Some(length) if length <= more.len() => {
                let (record, rest) = more.split_at(length);
                *more = rest;
                Ok(Some(record))
            }
            _ => {
                self.add(std::mem::take(more));
                Ok(None)
            }
        }
    }

    /// Returns whether `room` suffices for the body of the record that [`next`](Self::next) would
    /// return. Also returns true for an incomplete or invalid header, which `next` handles.
    pub(super) fn next_fits(&self, more: &[u8], room: usize) -> bool {
        let mut header = [0; HEADER_BYTES];
        let bytes = self.bytes[self.taken..].iter().chain(more);
        let mut count = 0;
        header.iter_mut().zip(bytes).for_each(|(into, &byte)| (*into, count) = (byte, count + 1));
        match record_bytes(&header[..count]) {
            Ok(Some(length)) => length - HEADER_BYTES <= room,
            _ => true,
        }
    }

    /// Frees the memory if all stored records have been returned.
    pub(super) fn tidy(&mut self) {
        if self.len() == 0 {
            *self = Self::default();
        }
    }
}

/// Returns the length of the first record in `bytes`. `None` if its header is incomplete.
fn record_bytes(bytes: &[u8]) -> Result<Option<usize>, Fatal> {
    let [kind, _, _, high, low, ..] = *bytes else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([high, low]));
    match length {
        _ if kind != APPLICATION => {
            Err(Fatal(super::UNEXPECTED_MESSAGE, "the peer sent a record without encryption"))
        }
        0..=TAG_BYTES => Err(Fatal(DECODE_ERROR, "the peer sent a record that is too short")),
        _ if length > limits::RECORD_BYTES + limits::EXPANSION_BYTES => {
            Err(Fatal(RECORD_OVERFLOW, "the peer sent a record that is too long"))
        }
        _ => Ok(Some(HEADER_BYTES + length)),
    }
}
