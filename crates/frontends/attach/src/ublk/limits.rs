//! Every limit of a server, with its unit.

pub use farblock_frontend::limits::PIECE_BYTES;
use std::time::Duration;

/// Hardware queues of a device, which is also the number of threads of a server.
pub const MAX_QUEUES: u16 = 64;

/// Requests of one queue that the kernel hands out at once: the driver's own limit.
pub const MAX_DEPTH: u16 = 4096;

/// Data of one request, in bytes; the kernel splits larger ones. Each of the kernel's requests has
/// a buffer of this size. Only the part that a request has touched takes memory.
pub const REQUEST_BYTES: u32 = PIECE_BYTES;

/// Limit for one discard or write zeroes, in bytes. A longer range would keep a target from other
/// work for long, and the kernel's requests cannot describe it (4 GiB).
pub const RANGE_BYTES: u32 = 256 << 20;

/// Memory for all request buffers of a device before their use, in bytes; at most [`REQUEST_BYTES`]
/// each. The kernel swaps and writes back in small pieces, which fit in there. The rest of a buffer
/// takes memory when a larger request uses it.
pub const RESIDENT_BYTES: usize = 16 << 20;

/// The largest block size that the driver supports, in bytes: the smallest page of any machine.
pub const MAX_BLOCK_BYTES: u32 = 4096;

/// Bytes of [`Config::identifier`](super::Config::identifier).
pub const MAX_IDENTIFIER_BYTES: usize = 256;

/// Time for requests in progress when a device is stopped by force. The rest fails.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a device's file to appear and become accessible: udev may have to change its owner.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time to wait for a dead server's device. If the kernel had handed out every request of a queue,
/// it notices only when the oldest is 30 s old.
pub const RECOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for a server that still exists to die: it may be exiting.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Rounds of requests and completions before the event loop polls again. Without a limit, a
/// namespace that completes at once would starve the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;
