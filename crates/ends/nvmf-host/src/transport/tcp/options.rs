//! What only TCP can be asked for.

use farblock_proto::tcp::Digests;
use std::path::PathBuf;

/// What a connection over TCP can be asked for, beside what every transport can: digests, and TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions {
    /// Check every PDU header with a CRC.
    pub header_digest: bool,
    /// Check all data with a CRC.
    pub data_digest: bool,
    /// The file with this host's key for TLS: nothing is then said without TLS. It is read for each
    /// queue that is connected.
    pub tls_key: Option<PathBuf>,
    /// Has TLS come of the authentication of the admin queue (secure channel concatenation): all
    /// other queues, and all but that, are in it. For discovery it is not used.
    pub concatenate: bool,
}

impl TcpOptions {
    /// These, and what the others ask for as well.
    pub(crate) fn and(&self, others: &TcpOptions) -> TcpOptions {
        TcpOptions {
            header_digest: self.header_digest || others.header_digest,
            data_digest: self.data_digest || others.data_digest,
            tls_key: self.tls_key.as_ref().or(others.tls_key.as_ref()).cloned(),
            concatenate: self.concatenate || others.concatenate,
        }
    }

    /// The same without keys.
    pub(crate) fn without_keys(&self) -> TcpOptions {
        TcpOptions { tls_key: None, concatenate: false, ..self.clone() }
    }

    pub(crate) fn digests(&self) -> Digests {
        Digests::new(self.header_digest, self.data_digest)
    }
}
