//! Every limit of the server, with its unit.

use std::time::Duration;

/// Threads of a server: this many read requests, and as many execute them.
pub const MAX_THREADS: usize = 64;

/// Limit for the data of one request, in bytes. Linux has a second limit, usually the same
/// (`/proc/sys/fs/fuse/max_pages_limit`).
pub const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// Requests that the kernel has in flight for asynchronous clients (the loop device, AIO,
/// io_uring); more wait in the kernel. A client that waits for its answer is not counted.
pub const MAX_BACKGROUND: u16 = 512;

/// Data buffers that the requests of a thread hold at once, in bytes. Beyond it the kernel is not
/// asked for more requests until some are done.
/// It is less where the process may use little memory ([`farblock_reactor::allowance`]).
pub const CORE_BUFFER_BYTES: usize = 256 << 20;

/// Bytes of a long range that one step zeroes or deallocates. Further steps do the rest.
pub const STEP_BYTES: u32 = 1 << 30;

/// Time for accepted requests to finish when a server stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the kernel to release an unused mount or loop device.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a mount to show whether its server is dead. A mount without a server that another
/// process keeps open does not answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Bytes of the file's name.
pub const MAX_NAME_BYTES: usize = 255;

/// Time between two checks of a core for signals to its callers. A younger request is not
/// interrupted.
pub const SIGNAL_INTERVAL: Duration = Duration::from_secs(1);

/// Rounds of completions and their effects before the event loop polls again. Without a limit, a
/// namespace that completes at once would starve the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;
