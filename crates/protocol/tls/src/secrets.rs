//! The secrets that the handshake passes to the record layer.

use zeroize::Zeroizing;

/// The application traffic secrets, one for each direction.
#[derive(Default)]
pub(crate) struct Secrets {
    pub(crate) client: Option<Zeroizing<Vec<u8>>>,
    pub(crate) server: Option<Zeroizing<Vec<u8>>>,
}
