//! Constants with their units.

use std::time::Duration;

/// Requests of WinSpd that are accepted and not answered. Windows has at most 254 in flight on a
/// disk of a virtual adapter; a client that sends more waits.
pub const MAX_REQUESTS: usize = 256;

/// Data of one request, in bytes. WinSpd's driver splits larger transfers and sends the pieces one
/// after the other. It locks this much memory for every read, however small.
pub const MAX_TRANSFER_BYTES: u32 = 256 << 10;

/// Spare buffers of [`MAX_TRANSFER_BYTES`] for later requests.
pub const SPARE_BUFFERS: usize = 64;

/// Ranges of one unmap request that are in progress at once.
pub const UNMAPS_AT_ONCE: usize = 16;

/// Threads that fetch requests from WinSpd, and copy the data of writes.
pub const MAX_DISPATCHERS: usize = 4;

/// Time for accepted requests to finish when a server stops without force.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);
