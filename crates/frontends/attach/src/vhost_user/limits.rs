//! All limits of the vhost-user back end, with their units.

use std::time::Duration;

/// The maximum number of rings of a disk, and so of threads.
pub const MAX_QUEUES: usize = 64;

/// The maximum number of descriptors of a ring: the limit of the virtio specification.
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// The maximum number of segments that a guest may use for one request. With its header and status
/// byte, such a request fills the usual ring of 128 descriptors.
pub const MAX_SEGMENTS: u32 = 126;

/// The largest segment that a guest may use, in bytes.
pub const MAX_SEGMENT_BYTES: u32 = 256 << 10;

/// The maximum length of one read or write, in bytes. Slightly more than the segment limits above
/// allow.
pub const MAX_REQUEST_BYTES: u64 = 32 << 20;

/// The maximum length of one block operation, in bytes. The worker splits a larger request into
/// several operations, so that their buffers fit the pool.
pub const PIECE_BYTES: u32 = 1 << 20;

/// The limit on the data buffers that the requests of one ring hold at once, in bytes. Above this
/// limit the next request waits until others complete. A process with little memory has a smaller
/// limit ([`farblock_reactor::allowance`]).
pub const QUEUE_BUFFER_BYTES: usize = 64 << 20;

/// The maximum number of ranges in one discard or Write Zeroes request.
pub const MAX_RANGES: u32 = 16;

/// The maximum length of one Write Zeroes request, in sectors. The limit is low enough that one
/// request does not delay others much.
pub const MAX_ZEROES_SECTORS: u32 = (256 << 20) / 512;

/// The maximum length of the body of a monitor's message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// The maximum number of memory regions in one `SET_MEM_TABLE`: the protocol's limit.
pub const MAX_REGIONS: usize = 8;

/// The maximum number of memory regions that a monitor may add in separate messages.
pub const MAX_SLOTS: usize = 64;

/// The length of the configuration space in bytes: the protocol's limit.
pub const MAX_CONFIG_BYTES: u32 = 256;

/// The longest wait to send the notification about a changed configuration to a monitor.
pub const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest time that a stopping server waits for accepted requests to finish. Unfinished
/// requests stay in the in-flight records for the next server.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of rounds in one pass of the event loop. A round handles requests and
/// completions.
pub const ROUNDS_PER_TICK: usize = 8;
