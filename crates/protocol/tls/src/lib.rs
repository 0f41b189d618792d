//! TLS 1.3 with pre-shared keys, between a socket and what is said on it, without I/O.
//!
//! **What it is.** [`client`] and [`server`] give a [`Tls`]: bytes of the network go in and come
//! out on one side, plain ones on the other.
//!
//! ```text
//!   network --feed()--> +-----+ <-output()-- network      handshake
//!                       |     |
//!   network ----------> | Tls | --open()---> plain        data
//!   network <--seal()-- +-----+ <----------- plain
//! ```
//!
//! **Contract.** Nothing but TLS 1.3, with a fresh Diffie-Hellman exchange (`psk_dhe_ke`), with
//! the cipher suite of the key, and with a key: a peer that has none gets no further than to its
//! first message, and neither end takes a certificate. Key updates and session tickets of the peer
//! are dealt with in [`open`](Tls::open); a client asks for new keys [in
//! time](limits::RECORDS_PER_KEY), and so does a server, [later](limits::SERVER_RECORDS_PER_KEY),
//! of whoever was not lost by it before. Whatever a peer sends ends in an error, not in a panic.
//!
//! **What a stranger costs.** Whoever withholds the end of a first message, what was sent of it, up
//! to [a limit](limits::HANDSHAKE_BYTES), and 10 KiB. Whoever offers no known identity is answered
//! after its first message was looked at; one without the key, after some dozens of HMACs for
//! each [identity that is looked at](limits::IDENTITIES): those that make the key of some
//! ([eight](limits::KEYS_PER_HOST)), for names that are known, and the binder; for discovery, with
//! an identity that does not tell one key from another, as often as
//! [some](limits::DISCOVERY_KEYS). Only who has the key has a point multiplied.
//!
//! **What it holds.** Part of a record, until its end comes, and nothing of OpenSSL's once the
//! handshake is done.
//!
//! **The libraries.** The handshake is by the system's OpenSSL 3 (`libssl.so.3`), on Windows by the
//! one in the program's folder (`libssl-3-x64.dll`), loaded when TLS is first used and not before
//! (decision 26). Records are our own, by the ciphers of `ring` (decision 26).
//!
//! **Not implemented.** Kernel TLS (decision 27), certificates, early data, resumption.

mod discovery;
mod hello;
mod keys;
pub mod limits;
mod openssl;
mod portions;
mod records;
mod secrets;

pub use keys::{Named, ServerKeys};
#[cfg(all(feature = "sim", unix))]
pub use openssl::draw_from;
pub use openssl::{available, client, server};
#[doc(hidden)]
pub use openssl::{client_with, server_with};
pub use portions::portion;
#[cfg(unix)]
#[doc(hidden)]
pub use records::fuzzed as records_of;

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

    /// How large `plain` has to be for all of so many bytes of the network to be opened.
    fn openable_bytes(&self, sealed_bytes: usize) -> usize;

    /// Opens what was fed, and then what the network brought since. Gives how many plain bytes that
    /// makes, and what has ended the connection behind them.
    fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>);

    /// The same, but of whole records that have room alone: so data come straight to where they
    /// belong. What was looked at is off the front of `sealed` then. With room for a record
    /// ([`OPENED_BYTES`](limits::OPENED_BYTES)) nothing is left of it once nothing is opened.
    fn open_some(&mut self, sealed: &mut &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>);

    /// How large `into` has to be for so many bytes to be sealed.
    fn sealed_bytes(&self, plain_bytes: usize) -> usize;

    /// Puts what is to be sent to the network before anything else into `into`, and then `plain`,
    /// in records that are full but for the last. Gives the number of bytes. Once the connection
    /// has failed, `plain` is left out.
    ///
    /// # Errors
    /// The connection has failed now.
    ///
    /// # Panics
    /// If `into` is shorter than [`sealed_bytes`](Self::sealed_bytes).
    fn seal(
        &mut self,
        plain: &mut dyn Iterator<Item = &[u8]>,
        into: &mut [u8],
    ) -> Result<usize, TlsError>;

    /// Bytes that are to be sent to the network on TLS's own account.
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
    /// The peer offers no identity that is known.
    UnknownIdentity {
        /// These it offers.
        offered: Vec<String>,
        /// What identities of the same host for the same subsystem begin with, if there are some.
        known: Vec<String>,
    },
    /// The identity is known, but the peer has another key for it.
    WrongKey(String),
    /// The identity may stand for so many keys that some were tried: the peer has none of these.
    OtherKeys {
        /// The identity.
        identity: String,
        /// How many.
        keys: usize,
    },
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
            Self::UnknownIdentity { offered, .. } if offered.is_empty() => {
                f.write_str("it offers no pre-shared key")
            }
            Self::UnknownIdentity { offered, known } => {
                write!(f, "there is no key for the identity \"{}\"", offered.join("\", \""))?;
                if !known.is_empty() {
                    let known = known.join(", ");
                    write!(f, "; that host has others for that subsystem, of the forms {known}")?;
                }
                Ok(())
            }
            Self::WrongKey(identity) => {
                write!(f, "the other end has another key for the identity \"{identity}\"")
            }
            Self::OtherKeys { identity, keys } => write!(
                f,
                "the identity \"{identity}\" may stand for {keys} keys, and the other end has none \
                 of those that were tried now: others are when it connects again. An identity with \
                 a digest (NVMe1R) says which is meant"
            ),
            Self::Refused(reason) => write!(f, "the other end refuses TLS: {reason}"),
            Self::Broken(reason) => write!(f, "TLS failed: {reason}"),
            Self::Closed => f.write_str("the other end has closed TLS"),
        }
    }
}

impl std::error::Error for TlsError {}
