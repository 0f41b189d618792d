//! Every limit of a server, with its unit.

pub use farblock_frontend::limits::PIECE_BYTES;
use std::time::Duration;

/// Hardware queues of a device, and so threads of a server.
pub const MAX_QUEUES: u16 = 64;

/// Requests of one queue that the kernel hands out at once: the driver's own limit.
pub const MAX_DEPTH: u16 = 4096;

/// Data of one request, in bytes; the kernel cuts larger ones. Each request of the kernel's has a
/// buffer of so many, of which only what large requests have touched takes memory.
pub const REQUEST_BYTES: u32 = PIECE_BYTES;

/// What one discard or write zeroes covers, in bytes: more at a time would keep a target from other
/// work for long, and fits into no request of the kernel's (4 GiB).
pub const RANGE_BYTES: u32 = 256 << 20;

/// Memory of all request buffers of a device together before they are used, in bytes; at most
/// [`REQUEST_BYTES`] each. The kernel swaps out and writes back in small pieces, which fit in
/// there. The rest of a buffer takes memory when a larger request uses it.
pub const RESIDENT_BYTES: usize = 16 << 20;

/// The largest block that the driver can show, in bytes: the smallest page of any machine.
pub const MAX_BLOCK_BYTES: u32 = 4096;

/// Bytes of [`Config::identifier`](super::Config::identifier).
pub const MAX_IDENTIFIER_BYTES: usize = 256;

/// Time that requests under way are given when a device is to go away; what is left fails then.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time until a device's file is there and may be opened: udev may have to change its owner.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that a dead server's device is waited for. A kernel that had handed out every request of a
/// queue finds out only when the first of them is 30 s old.
pub const RECOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time that a server which is still there is given to die: it may be on its way.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Rounds of requests and completions before the event loop is looked at again: a namespace that
/// completes at once must not keep a thread from everything else.
pub const ROUNDS_PER_TICK: usize = 8;
