//! Limits of connections and queues, with their units. InfiniBand's connection manager fixes the
//! lengths of private data: it pads the sender's bytes with zeroes.

/// The size of the private data of a connection request, in bytes.
pub const REQUEST_DATA_BYTES: usize = 56;
/// The size of the private data in the message that accepts a request, in bytes.
pub const ACCEPT_DATA_BYTES: usize = 196;
/// The size of the private data in the message that rejects a request, in bytes.
pub const REJECT_DATA_BYTES: usize = 148;

/// The maximum number of work requests that one call of the library posts. Longer lists take
/// several calls.
pub const POST_BATCH: usize = 16;
/// The maximum number of completions that one call of the library polls.
pub const POLL_BATCH: usize = 16;

/// The RNR retry count (`rnr_retry_count`) that means: retry forever.
pub const RNR_RETRY_FOREVER: u8 = 7;
