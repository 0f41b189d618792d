//! The locations of operations' buffers while commands are in flight over TCP.
//!
//! ```text
//!              payload of the batch being filled        batch complete
//!  Here ------> Batch(number = the current) ----- flush ----> Batch(number < current)
//!   ^ |                                                           |
//!   | +-- large receive --> Receiving --+                         |
//!   +-----------------------------------+------ sent -------------+
//! ```
//! Two commands of one large write share a buffer. If the controller requests the data of both, the
//! second command waits until the event loop has sent the first one's data and returns the buffer.
//!
//! The tag of a payload in a batch is the index of the operation in the table. The identifier of a
//! command on the wire is the command's slot.

use super::link::Outgoing;
use crate::limits;
use crate::transport;
use farblock_proto::tcp::host_end::{Grant, Transfer};
use farblock_reactor::Buffer;
use std::ops::Range;

/// The location of an operation's buffer; see the module documentation for a diagram.
pub(crate) enum TcpPlace {
    /// No buffer.
    Nowhere,
    /// The buffer is in the table.
    Here(Buffer),
    /// The buffer is in the batch with this number, at this index of the batch's payloads.
    Batch { number: u64, index: usize },
    /// The reactor receives data into the buffer.
    Receiving,
}

impl TcpPlace {
    /// Whether the current batch can include data of the buffer.
    pub(super) fn is_at_hand(&self, out: &Outgoing) -> bool {
        match self {
            TcpPlace::Here(_) => true,
            TcpPlace::Batch { number, .. } => *number == out.number,
            TcpPlace::Nowhere | TcpPlace::Receiving => false,
        }
    }
}

impl transport::DataPlace for TcpPlace {
    const NOWHERE: TcpPlace = TcpPlace::Nowhere;

    fn here(buffer: Buffer) -> TcpPlace {
        TcpPlace::Here(buffer)
    }

    fn is_away(&self) -> bool {
        matches!(self, TcpPlace::Batch { .. } | TcpPlace::Receiving)
    }

    fn take(self) -> Option<Buffer> {
        match self {
            TcpPlace::Here(buffer) => Some(buffer),
            _ => None,
        }
    }
}

/// The transport's state for the data of a command in flight.
#[derive(Clone, Copy)]
pub(crate) struct TcpPart {
    transfer: Transfer,
    /// The number of bytes that the controller has requested so far.
    pub(super) granted: u32,
    /// A request for data that arrived while the buffer was in use.
    pub(super) deferred: Option<Grant>,
}

impl TcpPart {
    pub(super) fn new(transfer: Transfer) -> TcpPart {
        TcpPart { transfer, granted: 0, deferred: None }
    }
}

impl transport::Part for TcpPart {
    const NONE: TcpPart = TcpPart { transfer: Transfer::None, granted: 0, deferred: None };

    fn is_short(&self, received: u32) -> bool {
        match self.transfer {
            Transfer::FromController(wanted) => received < wanted,
            Transfer::ToController(length) => self.granted < length,
            Transfer::None | Transfer::InCapsule(_) => false,
        }
    }
}

/// Appends a range of an operation's buffer, and its digest, to the current batch. The buffer must
/// be available.
pub(super) fn append(place: &mut TcpPlace, index: u32, range: Range<usize>, out: &mut Outgoing) {
    let digest;
    match std::mem::replace(place, TcpPlace::Nowhere) {
        TcpPlace::Here(buffer) => {
            digest = out.end.data_digest(&buffer[range.clone()]);
            if range.len() <= limits::COPY_BYTES {
                out.batch.bytes(&buffer[range]);
                *place = TcpPlace::Here(buffer);
            } else {
                let payload = out.batch.payload(u64::from(index), buffer, range);
                *place = TcpPlace::Batch { number: out.number, index: payload };
            }
        }
        TcpPlace::Batch { number, index } => {
            out.batch.payload_again(index, range);
            let last = out.batch.slices().last().expect("appended just now");
            digest = out.end.data_digest(last);
            *place = TcpPlace::Batch { number, index };
        }
        TcpPlace::Nowhere | TcpPlace::Receiving => unreachable!("the caller has checked the place"),
    }
    if let Some(digest) = digest {
        out.batch.bytes(&digest);
    }
}
