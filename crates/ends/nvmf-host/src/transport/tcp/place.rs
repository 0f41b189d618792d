//! The locations of operations' buffers while their commands travel over TCP.
//!
//! ```text
//!              payload of the batch being filled        batch complete
//!  Here ------> Batch(number = the current) ----- flush ----> Batch(number < current)
//!   ^ |                                                           |
//!   | +-- large receive --> Receiving --+                         |
//!   +-----------------------------------+------ sent -------------+
//! ```
//! A command that needs a buffer which is being sent waits until the reactor returns it. This
//! happens if a controller requests the data of two commands of one large write.
//!
//! The tag of a payload in a batch is the operation's index in the table. A command's identifier on
//! the wire is its slot.

use super::link::Outgoing;
use crate::limits;
use crate::transport;
use farblock_proto::tcp::host_end::{Grant, Transfer};
use farblock_reactor::Buffer;
use std::ops::Range;

/// See the module's diagram.
pub(crate) enum TcpPlace {
    /// No buffer.
    Nowhere,
    /// In the table.
    Here(Buffer),
    /// In the batch with this number, at this index of its payloads.
    Batch { number: u64, index: usize },
    /// Lent for receiving.
    Receiving,
}

impl TcpPlace {
    /// Whether the buffer's data can be appended to the current batch.
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

/// The data of a command in flight.
#[derive(Clone, Copy)]
pub(crate) struct TcpPart {
    transfer: Transfer,
    /// Bytes to send that the controller has requested so far.
    pub(super) granted: u32,
    /// A request for data that arrived while the buffer was away.
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

/// Appends a range of an operation's available buffer, and its digest.
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
        TcpPlace::Nowhere | TcpPlace::Receiving => unreachable!("the caller looked"),
    }
    if let Some(digest) = digest {
        out.batch.bytes(&digest);
    }
}
