//! TLS 1.3 with pre-shared keys, without I/O: between a socket and the code that uses it.
//!
//! **What it is.** [`client`] and [`server`] return a [`Tls`]. It converts between network bytes
//! and plain bytes.
//!
//! ```text
//!   network --feed()--> +-----+ <-output()-- network      handshake
//!                       |     |
//!   network ----------> | Tls | --open()---> plain        data
//!   network <--seal()-- +-----+ <----------- plain
//! ```
//!
//! **Contract.** Only TLS 1.3, with a fresh Diffie-Hellman exchange (`psk_dhe_ke`), the cipher
//! suite of the key, and a pre-shared key. The server refuses a peer without a key after the peer's
//! first message. Neither end accepts a certificate. [`open`](Tls::open) handles key updates and
//! session tickets of the peer. A client asks for a key update [in time](limits::RECORDS_PER_KEY).
//! A server asks [later](limits::SERVER_RECORDS_PER_KEY), except hosts that have dropped a
//! connection because of such a request. Hostile input causes an error, never a panic.
//!
//! **The cost of an unknown peer.** While a peer withholds the end of its first message, it costs
//! 10 KiB and the bytes that it sent, up to [a limit](limits::HANDSHAKE_BYTES). A peer without a
//! known identity is refused after the server has parsed its first message. A peer that knows the
//! names but not the key costs some dozens of HMACs for each [identity that the server
//! checks](limits::IDENTITIES): the derivations of some keys ([eight](limits::KEYS_PER_HOST)), and
//! the binder. For discovery, an identity without a digest costs as many HMACs for each of [some
//! keys](limits::DISCOVERY_KEYS). Only a peer with the key makes the server do the Diffie-Hellman
//! exchange.
//!
//! **Memory.** A connection stores an incomplete record until the end of the record arrives. After
//! the handshake it uses no memory of OpenSSL.
//!
//! **The libraries.** The system's OpenSSL 3 (`libssl.so.3`) does the handshake; on Windows, the
//! copy in the program's folder does (`libssl-3-x64.dll`). The process loads OpenSSL on the first
//! use of TLS (decision 26). This crate itself processes records, with AES-GCM from AWS-LC if the
//! processor has wide AES instructions, otherwise from `ring` (decision 26).
//!
//! **Not implemented.** Kernel TLS (decision 27), certificates, early data, resumption.

mod discovery;
mod hello;
mod keys;
pub mod limits;
mod named;
mod openssl;
mod portions;
mod records;
mod secrets;

pub use keys::ServerKeys;
pub use named::Named;
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

/// For fuzzing: parses the content of an extension `pre_shared_key` as far as we do before OpenSSL
/// sees it. Returns the number of keys for the identities in it.
#[doc(hidden)]
#[must_use]
pub fn look_at(bytes: &[u8], keys: &ServerKeys) -> usize {
    let _ = hello::has_come(bytes);
    let identities = hello::identities(bytes).take(limits::IDENTITIES);
    identities.map(|identity| keys.find(identity).len()).sum()
}

/// The TLS state of one connection. See the module's text.
pub trait Tls: Send {
    /// Adds bytes from the network, for `handshake` or `open`.
    fn feed(&mut self, bytes: &[u8]);

    /// Continues the handshake as far as the fed bytes allow; returns true when the handshake is
    /// done. Send the pending output even after an error.
    ///
    /// # Errors
    /// This end refuses the peer, or the peer refuses this end.
    fn handshake(&mut self) -> Result<bool, TlsError>;

    /// The peer's key with its host and subsystem, once the handshake is done; `None` on a client.
    fn peer(&self) -> Option<&Arc<Named>>;

    /// The size that `plain` needs to open `sealed_bytes` more network bytes.
    fn openable_bytes(&self, sealed_bytes: usize) -> usize;

    /// Decrypts the fed bytes, and then `sealed`, which arrived later. Returns the number of bytes
    /// in `plain`, and the error that ended the connection after these, if any.
    fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>);

    /// Like [`open`](Self::open), but opens only whole records that fit in `plain`, so that data
    /// arrives straight at its destination. Removes the parsed bytes from the front of `sealed`. If
    /// `plain` has room for a record ([`OPENED_BYTES`](limits::OPENED_BYTES)) and a call opens
    /// nothing, it empties `sealed`.
    fn open_some(&mut self, sealed: &mut &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>);

    /// The size that `into` needs for [`seal`](Self::seal) with `plain_bytes` of data.
    fn sealed_bytes(&self, plain_bytes: usize) -> usize;

    /// Writes pending output into `into`, and then `plain` in records, all full but the last.
    /// Returns the number of bytes. After the connection has failed, writes only the pending
    /// output.
    ///
    /// # Errors
    /// The connection fails in this call.
    ///
    /// # Panics
    /// If `into` is shorter than [`sealed_bytes`](Self::sealed_bytes).
    fn seal(
        &mut self,
        plain: &mut dyn Iterator<Item = &[u8]>,
        into: &mut [u8],
    ) -> Result<usize, TlsError>;

    /// The number of bytes that TLS itself has to send: handshake messages and alerts.
    fn output_bytes(&self) -> usize;

    /// Moves as many of these bytes as fit into `into`, and returns their number.
    fn output(&mut self, into: &mut [u8]) -> usize;
}

/// The reason why a TLS connection failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TlsError {
    /// The system has no TLS library.
    Unavailable(String),
    /// The peer does not speak TLS.
    NotTls,
    /// The peer offers no known identity.
    UnknownIdentity {
        /// The offered identities.
        offered: Vec<String>,
        /// The identity forms that the server knows for the same host and subsystem.
        known: Vec<String>,
    },
    /// The identity is known, but the peer has a different key for it.
    WrongKey(String),
    /// The identity may denote many keys. The server tried some of them, and the peer has none of
    /// these.
    OtherKeys {
        /// The identity.
        identity: String,
        /// The number of keys that the identity may denote.
        keys: usize,
    },
    /// The peer refuses the connection, for this reason.
    Refused(String),
    /// The peer sent invalid bytes.
    Broken(String),
    /// The peer has closed the connection properly.
    Closed,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(reason) => write!(f, "TLS is not available: {reason}"),
            Self::NotTls => f.write_str("the peer does not speak TLS"),
            Self::UnknownIdentity { offered, .. } if offered.is_empty() => {
                f.write_str("the peer offers no pre-shared key")
            }
            Self::UnknownIdentity { offered, known } => {
                write!(f, "no key for the identity \"{}\" is configured", offered.join("\", \""))?;
                if !known.is_empty() {
                    let known = known.join(", ");
                    write!(f, "; the host has other keys for the subsystem, of the forms {known}")?;
                }
                Ok(())
            }
            Self::WrongKey(identity) => {
                write!(f, "the peer has another key for the identity \"{identity}\"")
            }
            Self::OtherKeys { identity, keys } => write!(
                f,
                "the identity \"{identity}\" may denote {keys} keys, and the peer has none of \
                 those that this end tried: reconnect to try others, or use an identity with a \
                 digest (NVMe1R), which denotes one key"
            ),
            Self::Refused(reason) => write!(f, "the peer refused TLS: {reason}"),
            Self::Broken(reason) => write!(f, "TLS failed: {reason}"),
            Self::Closed => f.write_str("the peer closed the TLS connection"),
        }
    }
}

impl std::error::Error for TlsError {}
