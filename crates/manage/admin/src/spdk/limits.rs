//! What a client of the socket can make this hold.

/// The most bytes of one request.
pub(super) const MAX_REQUEST_BYTES: usize = 256 << 10;
/// How deep arrays and objects of a request may be in each other.
pub(super) const MAX_DEPTH: usize = 32;
/// The most requests in a batch.
pub(super) const MAX_BATCH: usize = 1024;
/// Bytes of a batch's answers, from which on the rest of it is refused.
pub(super) const MAX_BATCH_BYTES: usize = 8 << 20;
/// Connections at once; one more closes the one that has asked for nothing for the longest time.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// The most bdevs.
pub(super) const MAX_BDEVS: usize = 4096;
/// The most keys that clients have named.
pub(super) const MAX_KEYS: usize = 4096;
/// The most characters of the name of a bdev or key.
pub(super) const MAX_NAME: usize = 255;
