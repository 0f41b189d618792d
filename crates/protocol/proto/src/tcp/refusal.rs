//! Reasons for a failed connection that are specific to TCP.

use alloc::string::String;
use core::fmt;
use farblock_wire::tcp::FatalErrorStatus;

/// A TCP specific reason why a host could not connect.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TcpRefusal {
    /// A peer answered, but it is not an NVMe/TCP controller.
    NotNvmeTcp {
        /// The likely protocol of the peer; `None`: unknown.
        looks_like: Option<&'static str>,
    },
    /// The controller does not grant the digests that this host requested.
    DigestsRefused,
    /// A digest did not match: the network damaged the data.
    DigestMismatch,
    /// The controller ended the connection with a terminate PDU.
    Terminated(FatalErrorStatus),
    /// The TLS connection to the controller failed. The text is the reason.
    Tls(String),
}

impl fmt::Display for TcpRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNvmeTcp { looks_like: Some(what) } => {
                write!(f, "the peer does not speak NVMe/TCP: it looks like {what}")
            }
            Self::NotNvmeTcp { looks_like: None } => {
                f.write_str("the peer does not speak NVMe/TCP")
            }
            Self::DigestsRefused => {
                f.write_str("the controller does not grant the requested digests")
            }
            Self::DigestMismatch => {
                f.write_str("a digest did not match: the network damaged the data")
            }
            Self::Terminated(status) => {
                write!(f, "the controller terminated the connection: {status}")
            }
            Self::Tls(sentence) => f.write_str(sentence),
        }
    }
}

impl core::error::Error for TcpRefusal {}

/// Returns the likely protocol of a peer that answers an ICReq with these bytes; `None`: unknown.
#[must_use]
pub fn recognise(answer: &[u8]) -> Option<&'static str> {
    const ISCSI_LOGIN_RESPONSE: u8 = 0x23;
    match answer {
        [b'H', b'T', b'T', b'P', b'/', ..] => Some("a web server (HTTP)"),
        [b'S', b'S', b'H', b'-', ..] => Some("an SSH server"),
        [b'2', b'2', b'0', b' ' | b'-', ..] => Some("a mail or file transfer server"),
        [0x15 | 0x16, 0x03, ..] => Some("a TLS server"),
        [b'N', b'B', b'D', b'M', ..] => Some("an NBD server"),
        [ISCSI_LOGIN_RESPONSE, _, _, _, _, ..] => Some("an iSCSI target"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_other_protocols_are_recognised() {
        assert_eq!(recognise(b"HTTP/1.1 400 Bad Request"), Some("a web server (HTTP)"));
        assert_eq!(recognise(b"SSH-2.0-OpenSSH_9.6"), Some("an SSH server"));
        assert_eq!(recognise(&[0x15, 3, 1, 0, 2, 2, 70]), Some("a TLS server"));
        assert_eq!(recognise(b""), None);
        assert_eq!(recognise(&[0x01, 0, 128, 0, 128]), None);
    }
}
