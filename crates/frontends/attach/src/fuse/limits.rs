//! Every limit of the server, with its unit.

use std::time::Duration;

/// The most threads that read requests; the same number of cores execute them.
pub const MAX_THREADS: usize = 64;

/// The most data of one request, in bytes. Linux has its own limit, usually the same
/// (`/proc/sys/fs/fuse/max_pages_limit`).
pub const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// The most requests that the kernel has in flight for asynchronous clients (the loop device, AIO,
/// io_uring); more wait in the kernel. Synchronous requests do not count.
pub const MAX_BACKGROUND: u16 = 512;

/// The most data buffers that the requests of a core hold at once, in bytes. Beyond this limit the
/// server reads no more requests until some are done. The limit is smaller where the process may
/// use little memory ([`farblock_reactor::allowance`]).
pub const CORE_BUFFER_BYTES: usize = 256 << 20;

/// Bytes of a long range that one step zeroes or deallocates. Further steps do the rest.
pub const STEP_BYTES: u32 = 1 << 30;

/// The time that a stopping server waits for accepted requests to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The time to wait until the kernel releases an unused mount or loop device.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time to wait for a mount to show whether its server is dead. If another process keeps the
/// mount of a dead server, the mount does not answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The most bytes of the file's name.
pub const MAX_NAME_BYTES: usize = 255;

/// The interval at which a core checks for signals to its callers. A request that waits for less
/// time is not interrupted.
pub const SIGNAL_INTERVAL: Duration = Duration::from_secs(1);

/// The most rounds of completions and new operations before the event loop polls again. Without a
/// limit, a namespace that completes at once would starve the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;
