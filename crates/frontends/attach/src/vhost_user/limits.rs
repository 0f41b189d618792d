//! Every limit of the back end, with its unit.

use std::time::Duration;

/// The most rings of a disk, and therefore threads.
pub const MAX_QUEUES: usize = 64;

/// The most descriptors of a ring: the limit of the virtio specification.
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// The most segments that a guest may use for one request. With header and status they fill the
/// usual ring of 128 descriptors.
pub const MAX_SEGMENTS: u32 = 126;

/// The largest segment that a guest may use, in bytes.
pub const MAX_SEGMENT_BYTES: u32 = 256 << 10;

/// The most data of one read or write, in bytes: slightly more than a guest can request within the
/// limits above.
pub const MAX_REQUEST_BYTES: u64 = 32 << 20;

/// The most data of one block operation, in bytes. Larger requests become several operations, so
/// that their buffers come from the pool.
pub const PIECE_BYTES: u32 = 1 << 20;

/// The most data buffers that the requests of one ring hold at once, in bytes. Beyond this limit
/// requests stay in the ring, but a single request is always admitted. The limit is smaller where
/// the process may use little memory ([`farblock_reactor::allowance`]).
pub const QUEUE_BUFFER_BYTES: usize = 64 << 20;

/// The most ranges of one discard or write zeroes.
pub const MAX_RANGES: u32 = 16;

/// The most sectors of one write zeroes: few enough not to delay other requests.
pub const MAX_ZEROES_SECTORS: u32 = (256 << 20) / 512;

/// The most bytes in the body of a monitor's message.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// The most regions of memory in one `SET_MEM_TABLE`: the protocol's limit.
pub const MAX_REGIONS: usize = 8;

/// The most regions that a monitor may lend in separate messages.
pub const MAX_SLOTS: usize = 64;

/// The most bytes of the configuration space: the protocol's limit.
pub const MAX_CONFIG_BYTES: u32 = 256;

/// The time to wait for a monitor to take the message about a changed configuration.
pub const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// The time that a stopping server waits for accepted requests to finish. Unfinished requests stay
/// noted for a successor.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The most rounds of requests and completions before the event loop polls again.
pub const ROUNDS_PER_TICK: usize = 8;
