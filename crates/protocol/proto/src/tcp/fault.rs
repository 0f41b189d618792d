//! Protocol violations by the peer, and their encoding in a terminate PDU.

use super::Sink;
use alloc::boxed::Box;
use core::fmt;
use farblock_wire::tcp::{FatalErrorStatus, PduType, TERM_DATA_MAX_BYTES, TermReq};
use zerocopy::IntoBytes;

/// A violation of the transport's rules by the peer. This end reports it in a terminate PDU, which
/// ends the connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault (FES).
    pub status: FatalErrorStatus,
    /// Details (FEI): the byte offset of the invalid field, or the digest that did not match.
    pub information: u32,
    /// The reason in plain words, for the log.
    pub reason: &'static str,
    /// The start of the offending PDU's header. The slice is boxed to keep results small.
    header: Box<[u8]>,
}

impl Fault {
    /// Creates a fault in the PDU whose header starts with `header`.
    pub(crate) fn new(
        status: FatalErrorStatus,
        information: u32,
        reason: &'static str,
        header: &[u8],
    ) -> Self {
        let carried = &header[..header.len().min(TERM_DATA_MAX_BYTES)];
        Self { status, information, reason, header: carried.into() }
    }

    /// Whether the peer sent a TLS handshake record instead of a PDU.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        /// Type and version of the first record in every version of TLS (RFC 8446, 5.1).
        const RECORD: [u8; 2] = [22, 3];
        self.header.starts_with(&RECORD)
    }

    /// Creates a fault for an invalid header field at `offset`.
    pub(crate) fn field(offset: u32, reason: &'static str, header: &[u8]) -> Self {
        Self::new(FatalErrorStatus::INVALID_PDU_HEADER_FIELD, offset, reason, header)
    }

    /// Emits the terminate PDU, which never has digests.
    pub(crate) fn emit(&self, pdu_type: PduType, out: &mut impl Sink) {
        let term = TermReq::new(pdu_type, self.status, self.information, self.header.len());
        out.put(term.as_bytes());
        out.put(&self.header);
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault")
            .field("status", &self.status)
            .field("information", &self.information)
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.reason)
    }
}
