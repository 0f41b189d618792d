//! A pre-shared key and the names for which it is valid.

use farblock_secure::{TlsKey, TlsPsk};

/// A pre-shared key, and the host and subsystem that may use it.
#[derive(Debug)]
pub struct Named {
    /// The key.
    pub psk: TlsPsk,
    /// The configured key from which `psk` was derived; `None` if an authentication generated
    /// `psk`.
    pub made_of: Option<TlsKey>,
    /// The host's NQN.
    pub host: String,
    /// The subsystem's NQN.
    pub subsystem: String,
}
