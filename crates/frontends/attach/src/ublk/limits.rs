//! Every limit of a server, with its unit.

pub use farblock_frontend::limits::PIECE_BYTES;
use std::time::Duration;

/// The most hardware queues of a device, and therefore threads of a server.
pub const MAX_QUEUES: u16 = 64;

/// The most requests of one queue that the kernel hands out at once: the driver's own limit.
pub const MAX_DEPTH: u16 = 4096;

/// The most data of one request, in bytes; the kernel splits larger ones. Each tag has a buffer of
/// this size, of which only the parts that requests have touched take memory.
pub const REQUEST_BYTES: u32 = PIECE_BYTES;

/// Limit for one discard or write zeroes, in bytes. A longer range would keep a target from other
/// work for long, and the kernel's requests cannot describe it (4 GiB).
pub const RANGE_BYTES: u32 = 256 << 20;

/// How much memory all request buffers of a device get in advance, in bytes; at most
/// [`REQUEST_BYTES`] each. The kernel's swapping and writeback use small requests, which fit in
/// this memory. The rest of a buffer takes memory when a larger request uses it.
pub const RESIDENT_BYTES: usize = 16 << 20;

/// The largest block size that the driver supports, in bytes: the smallest page of any machine.
pub const MAX_BLOCK_BYTES: u32 = 4096;

/// The most bytes of [`Config::identifier`](super::Config::identifier).
pub const MAX_IDENTIFIER_BYTES: usize = 256;

/// The time that a forced stop waits for requests in progress. The rest fails.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The time to wait until a device's character device exists and is accessible: udev may have to
/// change its owner.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time to wait for a dead server's device. If the server held every request of a queue, the
/// kernel notices its death only when the oldest request is 30 s old.
pub const RECOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// The time to wait for a server process that still exists: it may be exiting.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The most rounds of requests and completions before the event loop polls again. Without a limit,
/// a namespace that completes at once would starve the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;
