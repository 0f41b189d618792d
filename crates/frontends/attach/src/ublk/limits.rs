//! All limits of a ublk server, with their units.

pub use farblock_frontend::limits::PIECE_BYTES;
use std::time::Duration;

/// The maximum number of hardware queues of a device, and so of threads of a server.
pub const MAX_QUEUES: u16 = 64;

/// The maximum number of requests of one queue that the server handles at once: the driver's limit.
pub const MAX_DEPTH: u16 = 4096;

/// The maximum length of one request, in bytes. The kernel splits larger requests. Each tag
/// (request slot) has a buffer of this size. Only the parts that requests have used take memory.
pub const REQUEST_BYTES: u32 = PIECE_BYTES;

/// The maximum length of one discard or Write Zeroes request, in bytes. A longer range would occupy
/// a target for a long time.
pub const RANGE_BYTES: u32 = 256 << 20;

/// The memory that the server allocates in advance for all request buffers of a device together, in
/// bytes. Each buffer gets at most [`REQUEST_BYTES`]. The kernel's writeback uses small requests,
/// which fit in this memory, so it never waits for an allocation. The rest of a buffer takes memory
/// when a larger request first uses it.
pub const RESIDENT_BYTES: usize = 16 << 20;

/// The largest block size that the driver supports, in bytes: the smallest page size of all
/// machines.
pub const MAX_BLOCK_BYTES: u32 = 4096;

/// The longest [`Config::identifier`](super::Config::identifier), in bytes.
pub const MAX_IDENTIFIER_BYTES: usize = 256;

/// The longest time that a forced stop waits for requests in flight, before it fails them.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait until a device's character device exists and is accessible. udev may have to
/// change its owner.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for the device of a dead server. If the server held every request slot of a
/// queue, the kernel notices its death only once the oldest request is 30 s old.
pub const RECOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest wait for the previous server's process to exit.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of rounds in one pass of the event loop. A round handles requests and
/// completions. Without this limit, a namespace that completes operations at once would starve the
/// thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;
