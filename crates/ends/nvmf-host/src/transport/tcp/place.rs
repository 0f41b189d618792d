//! Where the buffers of operations are while their commands travel over TCP.
//!
//! ```text
//!              payload of the batch being filled        batch complete
//!  Here ------> Batch(number = the current) ----- flush ----> Batch(number < current)
//!   ^ |                                                           |
//!   | +-- large receive --> Receiving --+                         |
//!   +-----------------------------------+------ sent -------------+
//! ```
//! A command that needs a buffer which is being sent waits until it is back: that happens when a
//! controller asks for the data of two commands of one large write.
//!
//! Key space: the tag of a payload in a batch is the operation's index in the table; a slot is its
//! command's identifier on the wire.

use super::link::Outgoing;
use crate::limits;
use crate::transport;
use farblock_proto::tcp::host_end::{Grant, Transfer};
use farblock_reactor::Buffer;
use std::ops::Range;

/// See the module's diagram.
pub(crate) enum Place {
    /// There is none.
    Nowhere,
    /// In the table.
    Here(Buffer),
    /// In the batch of this number, at this index of its payloads.
    Batch { number: u64, index: usize },
    /// Lent to be received into.
    Receiving,
}

impl Place {
    /// Whether data can be appended to the batch being filled.
    pub(super) fn is_at_hand(&self, out: &Outgoing) -> bool {
        match self {
            Place::Here(_) => true,
            Place::Batch { number, .. } => *number == out.number,
            Place::Nowhere | Place::Receiving => false,
        }
    }
}

impl transport::Place for Place {
    const NOWHERE: Place = Place::Nowhere;

    fn here(buffer: Buffer) -> Place {
        Place::Here(buffer)
    }

    fn is_away(&self) -> bool {
        matches!(self, Place::Batch { .. } | Place::Receiving)
    }

    fn take(self) -> Option<Buffer> {
        match self {
            Place::Here(buffer) => Some(buffer),
            _ => None,
        }
    }
}

/// The data of a command in flight.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    transfer: Transfer,
    /// How much of what it sends the controller has asked for.
    pub(super) granted: u32,
    /// Data that was asked for while the buffer was away.
    pub(super) deferred: Option<Grant>,
}

impl Part {
    pub(super) fn new(transfer: Transfer) -> Part {
        Part { transfer, granted: 0, deferred: None }
    }
}

impl transport::Part for Part {
    const NONE: Part = Part { transfer: Transfer::None, granted: 0, deferred: None };

    fn is_short(&self, received: u32) -> bool {
        match self.transfer {
            Transfer::FromController(wanted) => received < wanted,
            Transfer::ToController(length) => self.granted < length,
            Transfer::None | Transfer::InCapsule(_) => false,
        }
    }
}

/// Appends a range of an operation's buffer, which is at hand, and its digest.
pub(super) fn append(place: &mut Place, index: u32, range: Range<usize>, out: &mut Outgoing) {
    let digest;
    match std::mem::replace(place, Place::Nowhere) {
        Place::Here(buffer) => {
            digest = out.end.data_digest(&buffer[range.clone()]);
            if range.len() <= limits::COPY_BYTES {
                out.batch.bytes(&buffer[range]);
                *place = Place::Here(buffer);
            } else {
                let payload = out.batch.payload(u64::from(index), buffer, range);
                *place = Place::Batch { number: out.number, index: payload };
            }
        }
        Place::Batch { number, index } => {
            out.batch.payload_again(index, range);
            let last = out.batch.slices().last().expect("appended just now");
            digest = out.end.data_digest(last);
            *place = Place::Batch { number, index };
        }
        Place::Nowhere | Place::Receiving => unreachable!("the caller looked"),
    }
    if let Some(digest) = digest {
        out.batch.bytes(&digest);
    }
}
