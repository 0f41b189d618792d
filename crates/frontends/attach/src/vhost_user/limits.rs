//! Every limit of the back end, with its unit.

use std::time::Duration;

/// Rings of a disk, and therefore threads.
pub const MAX_QUEUES: usize = 64;

/// Descriptors of a ring; the limit of the virtio specification.
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// Segments that a guest may use for one request. With header and status they fill the usual ring
/// of 128.
pub const MAX_SEGMENTS: u32 = 126;

/// Limit for a segment as the guest sees it, in bytes.
pub const MAX_SEGMENT_BYTES: u32 = 256 << 10;

/// Data of one read or write, in bytes: a little more than a guest that obeys the limits above can
/// request.
pub const MAX_REQUEST_BYTES: u64 = 32 << 20;

/// Data of one block operation, in bytes, so that the buffers of large requests come from the pool.
/// Larger requests become several operations.
pub const PIECE_BYTES: u32 = 1 << 20;

/// Data buffers that the requests of one ring hold at once, in bytes. Beyond it, requests stay in
/// the ring; but one is always let in.
/// It is less where the process may use little memory ([`farblock_reactor::allowance`]).
pub const QUEUE_BUFFER_BYTES: usize = 64 << 20;

/// Ranges of one discard or write zeroes.
pub const MAX_RANGES: u32 = 16;

/// Limit for one write zeroes, in sectors: few enough that it does not delay other requests.
pub const MAX_ZEROES_SECTORS: u32 = (256 << 20) / 512;

/// Bytes of the body of a monitor's message.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Regions of memory that a monitor lends at once; the protocol's limit.
pub const MAX_REGIONS: usize = 8;

/// Regions that it may lend separately.
pub const MAX_SLOTS: usize = 64;

/// Bytes of the configuration space; the protocol's limit.
pub const MAX_CONFIG_BYTES: u32 = 256;

/// Time for a monitor to acknowledge a changed configuration.
pub const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for accepted requests to finish when a server stops. Unfinished ones stay noted for a
/// successor.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Rounds of requests and completions before the event loop polls again.
pub const ROUNDS_PER_TICK: usize = 8;
