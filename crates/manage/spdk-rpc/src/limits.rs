//! Limits on the resources that clients of the socket can use.

/// The maximum size of a request, in bytes.
pub(super) const MAX_REQUEST_BYTES: usize = 256 << 10;
/// The maximum nesting depth of a request.
pub(super) const MAX_DEPTH: usize = 32;
/// The maximum number of requests in a batch.
pub(super) const MAX_BATCH: usize = 1024;
/// The size of a batch's answers, in bytes, after which the rest of the batch is refused.
pub(super) const MAX_BATCH_BYTES: usize = 8 << 20;
/// The maximum number of connections. A further connection closes the one that has been idle
/// longest.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// The maximum number of bdevs.
pub(super) const MAX_BDEVS: usize = 4096;
/// The maximum number of named keys.
pub(super) const MAX_KEYS: usize = 4096;
/// The maximum length of the name of a bdev or key, in characters.
pub(super) const MAX_NAME: usize = 255;
