//! Limits of connections and queues, with their units. InfiniBand's connection manager fixes the
//! sizes of private data: the sender's bytes plus zeroes up to these lengths arrive at the peer.

/// Private data of a connection request, in bytes.
pub const REQUEST_DATA_BYTES: usize = 56;
/// Private data of an accepted request, in bytes.
pub const ACCEPT_DATA_BYTES: usize = 196;
/// Private data of a rejected request, in bytes.
pub const REJECT_DATA_BYTES: usize = 148;

/// The most work requests that one call of the library posts. Longer lists take several calls.
pub const POST_BATCH: usize = 16;
/// The most completions that one call of the library polls.
pub const POLL_BATCH: usize = 16;

/// The RNR retry count (`rnr_retry_count`) that retries forever.
pub const RNR_RETRY_FOREVER: u8 = 7;
