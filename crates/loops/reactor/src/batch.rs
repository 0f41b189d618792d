//! [`SendBatch`]: the data of one send, in several pieces (gather list). The batch owns the data.

use std::fmt;
use std::ops::Range;

use farblock_mem::Buffer;

/// The value of `Segment::source` for bytes in the batch's own vector. Any other value is the index
/// of a payload buffer.
const INLINE: usize = usize::MAX;

/// One contiguous piece of the data.
#[derive(Clone, Copy)]
struct Segment {
    source: usize,
    start: usize,
    len: usize,
}

/// A position in a batch. The data before it has been sent.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cursor {
    segment: usize,
    offset: usize,
}

/// The data of one [`send`](crate::Reactor::send), in the order of the calls that added it.
/// [`bytes`](SendBatch::bytes) copies small pieces into one vector. [`payload`](SendBatch::payload)
/// adds a buffer without a copy.
///
/// The batch owns its payloads until the send completes. Then
/// [`take_payloads`](SendBatch::take_payloads) returns the payloads and empties the batch. The
/// empty batch keeps its capacity, so a reused batch allocates nothing.
#[derive(Default)]
pub struct SendBatch {
    inline: Vec<u8>,
    segments: Vec<Segment>,
    payloads: Vec<(u64, Buffer)>,
    len: usize,
}

impl SendBatch {
    /// Creates an empty batch.
    pub fn new() -> SendBatch {
        SendBatch::default()
    }

    /// Appends a copy of `bytes`. The bytes of consecutive calls form one segment.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.inline.len();
        self.inline.extend_from_slice(bytes);
        self.len += bytes.len();
        match self.segments.last_mut() {
            Some(last) if last.source == INLINE => last.len += bytes.len(),
            _ => self.segments.push(Segment { source: INLINE, start, len: bytes.len() }),
        }
    }

    /// Appends `buffer[range]` and takes ownership of the buffer.
    /// [`take_payloads`](SendBatch::take_payloads) later returns the buffer together with `tag`.
    /// Returns the buffer's index, for [`payload_again`](SendBatch::payload_again).
    ///
    /// # Panics
    ///
    /// Panics if the range is not inside the buffer.
    pub fn payload(&mut self, tag: u64, buffer: Buffer, range: Range<usize>) -> usize {
        let index = self.payloads.len();
        self.payloads.push((tag, buffer));
        self.payload_again(index, range);
        index
    }

    /// Appends another range of a buffer that the batch already holds.
    ///
    /// # Panics
    ///
    /// Panics if the index is not a payload's index, or the range is not inside the buffer.
    pub fn payload_again(&mut self, index: usize, range: Range<usize>) {
        let len = self.payloads[index].1[range.clone()].len();
        if len > 0 {
            self.segments.push(Segment { source: index, start: range.start, len });
            self.len += len;
        }
    }

    /// Returns the total number of bytes to send.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of bytes that the batch has copied into its own vector.
    pub fn inline_bytes(&self) -> usize {
        self.inline.len()
    }

    /// Whether the batch has no bytes to send. It may still own buffers of which it sends no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of contiguous pieces.
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Returns the pieces in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.slices_from(Cursor::default())
    }

    /// Empties the batch and returns its payload buffers with their tags, in the order of addition.
    /// If the caller drops the iterator early, the remaining buffers are freed.
    pub fn take_payloads(&mut self) -> std::vec::Drain<'_, (u64, Buffer)> {
        self.inline.clear();
        self.segments.clear();
        self.len = 0;
        self.payloads.drain(..)
    }

    /// Empties the batch and frees its payloads. The batch keeps its capacity.
    pub fn clear(&mut self) {
        drop(self.take_payloads());
    }

    /// If the vector of copied bytes has a larger capacity than `bytes`, frees the rest. Then also
    /// frees the capacity for more than `bytes / 64` segments and payloads.
    pub fn shrink_to(&mut self, bytes: usize) {
        if self.inline.capacity() > bytes {
            self.inline.shrink_to(bytes);
            self.segments.shrink_to(bytes / 64);
            self.payloads.shrink_to(bytes / 64);
        }
    }

    /// Returns the remaining data from `cursor`, piece by piece.
    pub fn slices_from(&self, cursor: Cursor) -> impl Iterator<Item = &[u8]> {
        let mut skip = cursor.offset;
        self.segments[cursor.segment..].iter().map(move |segment| {
            let source: &[u8] = match segment.source {
                INLINE => &self.inline,
                index => &self.payloads[index].1,
            };
            let start = segment.start + std::mem::take(&mut skip);
            &source[start..segment.start + segment.len]
        })
    }

    /// Advances the cursor by `sent` bytes. Returns `true` when no bytes remain.
    ///
    /// # Panics
    ///
    /// Panics if fewer bytes remain.
    pub fn advance(&self, cursor: &mut Cursor, mut sent: usize) -> bool {
        while let Some(segment) = self.segments.get(cursor.segment) {
            let left = segment.len - cursor.offset;
            if sent < left {
                cursor.offset += sent;
                return false;
            }
            sent -= left;
            cursor.segment += 1;
            cursor.offset = 0;
        }
        assert!(sent == 0, "more bytes sent than the batch holds");
        true
    }
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (segments, payloads) = (self.segments.len(), self.payloads.len());
        write!(f, "SendBatch({} bytes, {segments} segments, {payloads} payloads)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SendBatch {
        let mut batch = SendBatch::new();
        batch.bytes(b"ab");
        batch.bytes(b"cd");
        let index = batch.payload(7, Buffer::copy_of(b"0123456789"), 2..5);
        batch.bytes(b"ef");
        batch.payload_again(index, 8..10);
        batch.payload(8, Buffer::new(3), 1..1);
        batch
    }

    #[test]
    fn a_batch_keeps_the_order_and_merges_small_pieces() {
        let batch = sample();
        assert_eq!(batch.slices().collect::<Vec<_>>(), [&b"abcd"[..], b"234", b"ef", b"89"]);
        assert_eq!((batch.len(), batch.segment_count()), (11, 4));
    }

    #[test]
    fn a_cursor_can_advance_by_any_size() {
        let batch = sample();
        let all = batch.slices().collect::<Vec<_>>().concat();
        for step in 1..=all.len() {
            let (mut cursor, mut sent) = (Cursor::default(), 0);
            loop {
                assert_eq!(batch.slices_from(cursor).collect::<Vec<_>>().concat(), all[sent..]);
                let n = step.min(all.len() - sent);
                sent += n;
                if batch.advance(&mut cursor, n) {
                    break;
                }
            }
            assert_eq!(sent, all.len());
        }
    }

    #[test]
    fn taking_the_payloads_empties_the_batch() {
        let mut batch = sample();
        let tags: Vec<u64> = batch.take_payloads().map(|(tag, _)| tag).collect();
        assert_eq!(tags, [7, 8]);
        assert!(batch.is_empty());
        assert_eq!(batch.slices().count(), 0);
        batch.bytes(b"x");
        assert_eq!(batch.slices().collect::<Vec<_>>(), [b"x"]);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_payload_range_beyond_the_buffer_panics() {
        SendBatch::new().payload(0, Buffer::new(3), 0..4);
    }
}
