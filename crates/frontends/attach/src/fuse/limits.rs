//! All limits of the server, with their units.

use std::time::Duration;

/// The maximum number of threads that read requests. The same number of cores execute the requests.
pub const MAX_THREADS: usize = 64;

/// The maximum length of one request, in bytes. Linux's own limit
/// (`/proc/sys/fs/fuse/max_pages_limit`) is usually the same.
pub const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// The maximum number of requests in flight from asynchronous clients (the loop device, AIO,
/// io_uring). Further requests wait in the kernel. Synchronous requests do not count.
pub const MAX_BACKGROUND: u16 = 512;

/// The limit on the data buffers that the requests of a core hold at once, in bytes. Above this
/// limit the server reads no more requests until some have completed. The limit is smaller if the
/// process may use only little memory ([`farblock_reactor::allowance`]).
pub const CORE_BUFFER_BYTES: usize = 256 << 20;

/// The maximum length of one step of a zeroing or deallocation, in bytes. A longer range takes
/// several steps.
pub const STEP_BYTES: u32 = 1 << 30;

/// The longest time that a stopping server waits for accepted requests to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait until the kernel releases an unused mount or loop device.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for a mount to show whether its server is dead. The mount of a dead server does
/// not answer if another process keeps the mount.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest name of the file, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// The interval at which a core checks whether its callers received signals. A request that waits
/// less than one interval is not interrupted.
pub const SIGNAL_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum number of rounds of completions and new operations before the event loop polls
/// again. Without this limit, a namespace that completes operations at once would starve the
/// thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;
