//! Every limit of the server, with its unit.

use std::time::Duration;

/// Threads of a server: so many read requests, and so many carry them out.
pub const MAX_THREADS: usize = 64;

/// Data that one request moves at most, in bytes. Linux has another limit of its own, usually the
/// same (`/proc/sys/fs/fuse/max_pages_limit`).
pub const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// Requests that the kernel has in flight for asynchronous clients (the loop device, AIO,
/// io_uring); more wait in the kernel. A client that waits for its answer is not counted.
pub const MAX_BACKGROUND: u16 = 512;

/// Data buffers that the requests of a thread hold at once, in bytes. Beyond it the kernel is not
/// asked for more requests until some are done.
/// It is less where the process may use little memory ([`farblock_reactor::allowance`]).
pub const CORE_BUFFER_BYTES: usize = 256 << 20;

/// How much of a long range is zeroed or given back at once, in bytes; the rest comes after it.
pub const STEP_BYTES: u32 = 1 << 30;

/// Time that a server which is stopped gives accepted requests to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that the kernel gets to end a mount or a loop device that nobody uses any more.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that a mount gets to say whether its server is gone. One that nobody serves and that
/// another process keeps says nothing.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Bytes of the file's name.
pub const MAX_NAME_BYTES: usize = 255;

/// Time between two looks of a core for signals of those who wait. A younger request is not
/// interrupted.
pub const SIGNAL_INTERVAL: Duration = Duration::from_secs(1);

/// Rounds of completions and what follows from them before the event loop is looked at again: a
/// namespace that completes at once must not keep a thread from everything else.
pub const ROUNDS_PER_TICK: usize = 8;
