//! What a handshake leaves for the records.

use zeroize::Zeroizing;

/// The secrets of the application's data, of each direction.
#[derive(Default)]
pub(crate) struct Secrets {
    pub(crate) client: Option<Zeroizing<Vec<u8>>>,
    pub(crate) server: Option<Zeroizing<Vec<u8>>>,
}
