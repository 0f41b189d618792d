//! All limits of the WinSpd server, with their units.

use std::time::Duration;

/// The maximum number of accepted, unanswered requests. Further requests wait. The limit is no
/// restriction, because Windows sends at most 254 requests to such a disk at once.
pub const MAX_REQUESTS: usize = 256;

/// The maximum length of one request, in bytes. WinSpd's driver splits a larger transfer, and sends
/// the parts one after the other. WinSpd locks this much memory for every read, even for a short
/// one.
pub const MAX_TRANSFER_BYTES: u32 = 256 << 10;

/// The maximum number of buffers of [`MAX_TRANSFER_BYTES`] that the server keeps for later
/// requests.
pub const SPARE_BUFFERS: usize = 64;

/// The maximum number of ranges of one unmap request that the namespace executes at once.
pub const UNMAPS_AT_ONCE: usize = 16;

/// The maximum number of library threads that receive requests from WinSpd and copy the data of
/// writes.
pub const MAX_DISPATCHERS: usize = 4;

/// The longest time that a stop without force waits for accepted requests to finish.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);
