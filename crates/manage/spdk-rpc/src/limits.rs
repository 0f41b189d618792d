//! Limits on the resources that clients of the socket can use.

/// Maximum size of a request in bytes.
pub(super) const MAX_REQUEST_BYTES: usize = 256 << 10;
/// Maximum nesting depth of a request.
pub(super) const MAX_DEPTH: usize = 32;
/// Maximum number of requests in a batch.
pub(super) const MAX_BATCH: usize = 1024;
/// After this many bytes of answers, the rest of a batch is refused.
pub(super) const MAX_BATCH_BYTES: usize = 8 << 20;
/// Maximum number of connections; a further one closes the connection that has been idle longest.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// Maximum number of bdevs.
pub(super) const MAX_BDEVS: usize = 4096;
/// Maximum number of named keys.
pub(super) const MAX_KEYS: usize = 4096;
/// Maximum length of a bdev's or key's name in characters.
pub(super) const MAX_NAME: usize = 255;
