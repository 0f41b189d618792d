//! The TCP transport, sans I/O. [`controller_end::ControllerEnd`] and [`host_end::HostEnd`] convert
//! bytes to capsules and data, and the reverse. They never buffer payload.
//!
//! Source: NVM Express TCP Transport Specification 1.0c.

pub mod controller_end;
pub mod digest;
pub mod fault;
pub mod framer;
pub mod host_end;
mod refusal;

use farblock_wire::tcp::PduShape;
use zerocopy::{Immutable, IntoBytes};

/// The destination of emitted header bytes.
pub trait Sink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for alloc::vec::Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The digests that an end requests, or that a connection uses.
pub use farblock_wire::tcp::DigestFlags as Digests;

pub use crate::capsule::SlotId;
pub use refusal::{TcpRefusal, recognise};

/// Emits a PDU header with its digest. If the PDU has data, also emits the padding of `shape`.
fn put_header(header: &impl Header, shape: PduShape, out: &mut impl Sink) {
    let bytes = header.as_bytes();
    out.put(bytes);
    if shape.header_digest {
        out.put(&digest::crc32c(bytes).to_le_bytes());
    }
    const PADDING: [u8; 128] = [0; 128];
    out.put(&PADDING[..shape.pad_bytes()]);
}

/// A PDU header that can be written as bytes.
trait Header: IntoBytes + Immutable {}
impl<T: IntoBytes + Immutable> Header for T {}
