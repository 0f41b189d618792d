//! Constants with their units.

use std::time::Duration;

/// Requests of WinSpd that are accepted and not answered. Windows has at most 254 in flight on a
/// disk of a virtual adapter; whoever sends more waits.
pub const MAX_REQUESTS: usize = 256;

/// Data of one request, in bytes. WinSpd's driver cuts larger transfers, one piece after the other,
/// and locks this much memory for every read, however small.
pub const MAX_TRANSFER_BYTES: u32 = 256 << 10;

/// Buffers of [`MAX_TRANSFER_BYTES`] that are kept for the next requests.
pub const SPARE_BUFFERS: usize = 64;

/// Ranges of one request to unmap that are with the namespace at once.
pub const UNMAPS_AT_ONCE: usize = 16;

/// Threads that fetch requests from WinSpd, and copy what is to be written.
pub const MAX_DISPATCHERS: usize = 4;

/// How long a stop that is not forced waits for requests that were accepted.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);
