//! All limits of the FUSE server, with their units.

use std::time::Duration;

/// The maximum number of threads that read requests. The server has the same number of cores
/// (threads that execute requests).
pub const MAX_THREADS: usize = 64;

/// The maximum length of one request, in bytes. This is also Linux's default limit
/// (`/proc/sys/fs/fuse/max_pages_limit`, in pages).
pub const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// The maximum number of requests in flight from asynchronous clients (the loop device, AIO,
/// io_uring). Further requests wait in the kernel. Synchronous requests do not count against this
/// limit.
pub const MAX_BACKGROUND: u16 = 512;

/// The limit on the data buffers that the requests of a core hold at once, in bytes. Above this
/// limit the server reads no more requests until some have completed. A process with little memory
/// has a smaller limit ([`farblock_reactor::allowance`]).
pub const CORE_BUFFER_BYTES: usize = 256 << 20;

/// The maximum length of one block operation that zeroes or deallocates, in bytes. The server
/// splits a longer range.
pub const STEP_BYTES: u32 = 1 << 30;

/// The longest time that a stopping server waits for accepted requests to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait until the kernel releases an unused mount or loop device.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for a `stat` of a mount, which shows whether its server is dead. If another
/// process keeps the mount of a dead server, `stat` does not return.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The maximum length of the served file's name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// The interval at which a core checks whether a signal should interrupt a program that waits for
/// an answer. A request that completes within one interval is never interrupted.
pub const SIGNAL_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum number of rounds in one pass of the event loop. A round handles completions, then
/// submits new operations. Without this limit, a namespace that completes operations at once would
/// starve the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;
