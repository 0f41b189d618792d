//! TLS 1.3 with pre-shared keys, without I/O. The caller moves the bytes between this crate and a
//! socket.
//!
//! **Overview.** [`client`] and [`server`] return a [`Tls`], which converts between network bytes
//! and plain bytes.
//!
//! ```text
//!   network --feed()--> +-----+ <-output()-- network      handshake
//!                       |     |
//!   network ----------> | Tls | --open()---> plain        data
//!   network <--seal()-- +-----+ <----------- plain
//! ```
//!
//! **Contract.** A connection uses TLS 1.3 with a pre-shared key, the cipher suite of this key, and
//! a fresh Diffie-Hellman exchange (`psk_dhe_ke`). Neither end accepts a certificate. The server
//! refuses a peer without a key after the peer's first message. Hostile input causes an error,
//! never a panic.
//!
//! [`open`](Tls::open) handles the peer's key updates and session tickets. A client asks for a key
//! update after [a number of records](limits::RECORDS_PER_KEY). A server asks
//! [later](limits::SERVER_RECORDS_PER_KEY). It never asks a host that once dropped a connection
//! after such a request.
//!
//! **The cost of an unknown peer.** A peer that withholds the end of its first message costs 10 KiB
//! and the bytes that it has sent, up to [a limit](limits::HANDSHAKE_BYTES). The server parses the
//! first message, and refuses the peer if none of the offered identities is known.
//!
//! A peer that knows the names but not the key costs some dozens of HMACs for each [identity that
//! the server checks](limits::IDENTITIES): the server derives some keys
//! ([eight](limits::KEYS_PER_HOST)) and checks the binder. For discovery, an identity without a
//! digest costs the same number of HMACs for each of [the keys that the server
//! tries](limits::DISCOVERY_KEYS). The server does the Diffie-Hellman exchange only for a peer with
//! the key.
//!
//! **Memory.** A connection stores an incomplete record until the end of the record arrives. After
//! the handshake, it uses no memory of OpenSSL.
//!
//! **The libraries.** The system's OpenSSL 3 (`libssl.so.3`) does the handshake. On Windows, the
//! copy in the program's folder does it (`libssl-3-x64.dll`). The process loads OpenSSL on the
//! first use of TLS. This crate itself processes the records. It uses AES-GCM from AWS-LC if the
//! processor has wide AES instructions, and from `ring` otherwise (decision 26).
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

/// For fuzzing: parses the content of an extension `pre_shared_key` as far as this crate does
/// before OpenSSL sees it. Returns the number of keys for its identities.
#[doc(hidden)]
#[must_use]
pub fn look_at(bytes: &[u8], keys: &ServerKeys) -> usize {
    let _ = hello::has_come(bytes);
    let identities = hello::identities(bytes).take(limits::IDENTITIES);
    identities.map(|identity| keys.find(identity).len()).sum()
}

/// The TLS state of one connection. The crate's documentation describes the calls.
pub trait Tls: Send {
    /// Adds bytes from the network. `handshake` or `open` uses them.
    fn feed(&mut self, bytes: &[u8]);

    /// Continues the handshake as far as the fed bytes allow. Returns true when the handshake is
    /// done. Send the pending output even after an error.
    ///
    /// # Errors
    /// Fails if this end refuses the peer, or the peer refuses this end.
    fn handshake(&mut self) -> Result<bool, TlsError>;

    /// Returns the peer's key with its host and subsystem, once the handshake is done; `None` on a
    /// client.
    fn peer(&self) -> Option<&Arc<Named>>;

    /// Returns the length that `plain` must have when [`open`](Self::open) gets `sealed_bytes` more
    /// network bytes.
    fn openable_bytes(&self, sealed_bytes: usize) -> usize;

    /// Decrypts the fed bytes, and then `sealed`, which arrived later. Returns the number of bytes
    /// in `plain`, and the error that ended the connection after these bytes, if any.
    fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>);

    /// Like [`open`](Self::open), but opens only whole records that fit in `plain`, so that data
    /// arrives directly at its destination. Removes the parsed bytes from the front of `sealed`.
    /// If `plain` has room for any record ([`OPENED_BYTES`](limits::OPENED_BYTES)) and no whole
    /// record has arrived, the call stores all bytes of `sealed` and opens nothing.
    fn open_some(&mut self, sealed: &mut &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>);

    /// Returns the length that `into` needs for [`seal`](Self::seal) with `plain_bytes` of data.
    fn sealed_bytes(&self, plain_bytes: usize) -> usize;

    /// Writes the pending output into `into`, and then `plain` in records. All records but the last
    /// are full. Returns the number of bytes. After the connection has failed, writes only the
    /// pending output.
    ///
    /// # Errors
    /// Fails if the connection fails in this call.
    ///
    /// # Panics
    /// Panics if `into` is shorter than [`sealed_bytes`](Self::sealed_bytes).
    fn seal(
        &mut self,
        plain: &mut dyn Iterator<Item = &[u8]>,
        into: &mut [u8],
    ) -> Result<usize, TlsError>;

    /// Returns the number of bytes that TLS itself has to send: handshake messages and alerts.
    fn output_bytes(&self) -> usize;

    /// Moves as many of the bytes that TLS has to send into `into` as fit. Returns their number.
    fn output(&mut self, into: &mut [u8]) -> usize;
}

/// The reason why a TLS connection failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TlsError {
    /// The system has no TLS library.
    Unavailable(String),
    /// The peer does not use TLS.
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
    /// The identity may denote many keys. The server has tried some of them, and the peer has none
    /// of these.
    OtherKeys {
        /// The offered identity.
        identity: String,
        /// The number of keys that the identity may denote.
        keys: usize,
    },
    /// The peer refuses the connection. The text is the reason.
    Refused(String),
    /// The peer sent invalid bytes. The text describes the error.
    Broken(String),
    /// The peer has closed the connection with a close notification.
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
                    write!(f, "; for this subsystem the host has only keys of the forms {known}")?;
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
