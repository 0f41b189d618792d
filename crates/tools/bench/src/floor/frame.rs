//! The message format of the floor, the benchmark's load over bare sockets: a request of 72 bytes,
//! an answer of 24 bytes, and data after either. These are the sizes of an NVMe/TCP read, and of a
//! write with in-capsule data. Headers contain only the fields that the measurement needs.

/// The size of a request, in bytes: the size of a command capsule with its header.
pub(super) const REQUEST_BYTES: usize = 72;
/// The size of an answer, in bytes: the size of a data or response header with its capsule.
pub(super) const ANSWER_BYTES: usize = 24;

/// The first bytes of a request. Without them, the server disconnects the client.
const MAGIC: [u8; 4] = *b"fBfL";
const READ: u8 = 2;
const WRITE: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloorRequest {
    Read { bytes: u32 },
    Write { bytes: u32 },
}

impl FloorRequest {
    /// The number of data bytes after the request.
    pub(super) fn data_bytes(self) -> u32 {
        match self {
            FloorRequest::Read { .. } => 0,
            FloorRequest::Write { bytes } => bytes,
        }
    }

    /// The number of data bytes after the answer.
    pub(super) fn answer_bytes(self) -> u32 {
        match self {
            FloorRequest::Read { bytes } => bytes,
            FloorRequest::Write { .. } => 0,
        }
    }

    pub(super) fn emit(self) -> [u8; REQUEST_BYTES] {
        let (kind, bytes) = match self {
            FloorRequest::Read { bytes } => (READ, bytes),
            FloorRequest::Write { bytes } => (WRITE, bytes),
        };
        let mut head = [0; REQUEST_BYTES];
        head[..4].copy_from_slice(&MAGIC);
        head[4] = kind;
        head[8..12].copy_from_slice(&bytes.to_le_bytes());
        head
    }

    /// Parses a request. `None` if it is invalid, or requests more than `most` bytes.
    pub(super) fn parse(head: &[u8], most: u32) -> Option<FloorRequest> {
        let bytes = sized(head, most)?;
        match head[4] {
            READ => Some(FloorRequest::Read { bytes }),
            WRITE => Some(FloorRequest::Write { bytes }),
            _ => None,
        }
    }
}

/// Returns the header of an answer that `bytes` bytes of data follow.
pub(super) fn emit_answer(bytes: u32) -> [u8; ANSWER_BYTES] {
    let mut head = [0; ANSWER_BYTES];
    head[..4].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&bytes.to_le_bytes());
    head
}

/// Returns the number of data bytes that follow the answer's header `head`. `None` if `head` is
/// invalid, or the number exceeds `most`.
pub(super) fn parse_answer(head: &[u8], most: u32) -> Option<u32> {
    sized(head, most)
}

fn sized(head: &[u8], most: u32) -> Option<u32> {
    let bytes = u32::from_le_bytes(*head.get(8..)?.first_chunk()?);
    (head.starts_with(&MAGIC) && bytes <= most).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_round_trip() {
        for request in [FloorRequest::Read { bytes: 4096 }, FloorRequest::Write { bytes: 0 }] {
            assert_eq!(FloorRequest::parse(&request.emit(), 4096), Some(request));
        }
        assert_eq!(parse_answer(&emit_answer(77), 77), Some(77));
    }

    #[test]
    fn invalid_floor_requests_are_refused() {
        let good = FloorRequest::Read { bytes: 4096 }.emit();
        assert_eq!(FloorRequest::parse(&good, 4095), None, "a too large request was accepted");
        assert_eq!(
            FloorRequest::parse(&good[..11], 4096),
            None,
            "a too short request was accepted"
        );
        for at in 0..5 {
            let mut bad = good;
            bad[at] ^= 0xff;
            assert_eq!(FloorRequest::parse(&bad, 4096), None, "byte {at}");
        }
        assert_eq!(parse_answer(&emit_answer(5), 4), None);
    }
}
