//! TLS 1.3 with pre-shared keys, between a socket and what is said on it, without I/O.
//!
//! **What it is.** [`client`] and [`server`] give a [`Tls`]: bytes of the network go in and come
//! out on one side, plain ones on the other.
//!
//! ```text
//!   network --feed()--> +-----+ --read()---> plain
//!                       | Tls |
//!   network <-output()- +-----+ <--write()-- plain
//! ```
//!
//! **Contract.** Nothing but TLS 1.3, with a fresh Diffie-Hellman exchange (`psk_dhe_ke`), with
//! the cipher suite of the key, and with a key: a peer that has none gets no further than to its
//! first message, and neither end takes a certificate. Key updates and session tickets of the peer
//! are dealt with in [`read`](Tls::read); a client asks for new keys [in
//! time](limits::RECORDS_PER_KEY). Whatever a peer sends ends in an error, not in a panic.
//!
//! **What a stranger costs.** Whoever withholds the end of a first message, what was sent of it, up
//! to [a limit](limits::HANDSHAKE_BYTES), and 10 KiB. Who offers no known identity is answered
//! after its first message was looked at; who does not have the key, after some dozens of HMACs for
//! each [identity that is looked at](limits::IDENTITIES): those that make the key of some
//! ([two](limits::KEYS_PER_HOST), or [eight](limits::DISCOVERY_KEYS) for discovery), for names that
//! are known, and the binder. Only who has the key has a point multiplied.
//!
//! **What it holds.** As much memory as was fed, or written and not output, at once: it does not
//! shrink again. Whoever has many of them feeds and takes some records at a time.
//!
//! **The library** is the system's OpenSSL 3 (`libssl.so.3`), loaded when TLS is first used and not
//! before. See decision 27.
//!
//! **Not implemented.** Kernel TLS (decision 46), certificates, early data, resumption, key updates
//! that a server begins.

mod hello;
mod keys;
pub mod limits;
mod openssl;

pub use keys::{Named, ServerKeys};
#[doc(hidden)]
pub use openssl::client_with;
pub use openssl::{available, client, server};

use std::fmt;
use std::sync::Arc;

/// For fuzzing: how many keys the identities stand for in what may be the content of an extension
/// `pre_shared_key`, and whatever else is looked at before OpenSSL has it.
#[doc(hidden)]
#[must_use]
pub fn look_at(bytes: &[u8], keys: &ServerKeys) -> usize {
    let _ = hello::has_come(bytes);
    let identities = hello::identities(bytes).take(limits::IDENTITIES);
    identities.map(|identity| keys.find(identity).len()).sum()
}

/// One connection's TLS. See the module's text.
pub trait Tls: Send {
    /// Takes what the network brought.
    fn feed(&mut self, bytes: &[u8]);

    /// Goes on with the handshake as far as what was fed allows; true when it is done. What it has
    /// to say is output also when it fails.
    ///
    /// # Errors
    /// The peer is refused, or refuses.
    fn handshake(&mut self) -> Result<bool, TlsError>;

    /// For whom the key is that the peer has, once the handshake is done; none on a client.
    fn peer(&self) -> Option<&Arc<Named>>;

    /// The most that [`read`](Self::read) gives of what was fed, in bytes.
    fn readable_bytes(&self) -> usize;

    /// Plain bytes, as many as there are and fit; 0 if more has to be fed first.
    ///
    /// # Errors
    /// The peer has ended the connection, or what came was not from it.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, TlsError>;

    /// Has plain bytes sent, as full records as they make.
    ///
    /// # Errors
    /// The connection has failed.
    fn write(&mut self, bytes: &[u8]) -> Result<(), TlsError>;

    /// Makes a record of what was written last and fills none.
    ///
    /// # Errors
    /// The connection has failed.
    fn flush(&mut self) -> Result<(), TlsError>;

    /// Bytes that are to be sent to the network, besides those that fill no record yet.
    fn output_bytes(&self) -> usize;

    /// Moves as many of them as fit, and gives their number.
    fn output(&mut self, into: &mut [u8]) -> usize;
}

/// Why there is no TLS with the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TlsError {
    /// The system has no library for it.
    Unavailable(String),
    /// The peer does not speak TLS.
    NotTls,
    /// The peer offers no identity that is known; these it offers.
    UnknownIdentity(Vec<String>),
    /// The identity is known, but the peer has another key for it.
    WrongKey(String),
    /// The peer refuses: so it says.
    Refused(String),
    /// What comes is not, or no longer, what it should be.
    Broken(String),
    /// The peer has ended the connection in good order.
    Closed,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(reason) => write!(f, "there is no TLS here: {reason}"),
            Self::NotTls => f.write_str("the other end does not speak TLS"),
            Self::UnknownIdentity(offered) if offered.is_empty() => {
                f.write_str("it offers no pre-shared key")
            }
            Self::UnknownIdentity(offered) => {
                write!(f, "there is no key for the identity \"{}\"", offered.join("\", \""))
            }
            Self::WrongKey(identity) => {
                write!(f, "the other end has another key for the identity \"{identity}\"")
            }
            Self::Refused(reason) => write!(f, "the other end refuses TLS: {reason}"),
            Self::Broken(reason) => write!(f, "TLS failed: {reason}"),
            Self::Closed => f.write_str("the other end has closed TLS"),
        }
    }
}

impl std::error::Error for TlsError {}
