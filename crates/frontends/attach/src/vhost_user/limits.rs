//! Every limit of the back end, with its unit.

use std::time::Duration;

/// Rings of a disk, and therefore threads.
pub const MAX_QUEUES: usize = 64;

/// Descriptors of a ring, which is what the virtio specification allows at most.
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// Pieces of memory that a guest is told to use for one request at most: they and the two for
/// header and status fill the usual ring of 128.
pub const MAX_SEGMENTS: u32 = 126;

/// What a guest is told that such a piece has at most, in bytes.
pub const MAX_SEGMENT_BYTES: u32 = 256 << 10;

/// Data of one read or write, in bytes: a little more than a guest that keeps to the above can ask
/// for.
pub const MAX_REQUEST_BYTES: u64 = 32 << 20;

/// Data that one block operation moves at most, in bytes, so that the buffers of large requests
/// come from the pool. Larger requests become several operations.
pub const PIECE_BYTES: u32 = 1 << 20;

/// Data buffers that the requests of one ring hold at once, in bytes. Beyond it, requests stay in
/// the ring; but one is always let in.
/// It is less where the process may use little memory ([`farblock_reactor::allowance`]).
pub const QUEUE_BUFFER_BYTES: usize = 64 << 20;

/// Ranges of one discard or write zeroes.
pub const MAX_RANGES: u32 = 16;

/// Sectors that one write zeroes covers at most: as few as keep it from delaying everything else.
pub const MAX_ZEROES_SECTORS: u32 = (256 << 20) / 512;

/// Bytes of the body of a monitor's message.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Regions of memory that a monitor lends at once, as the protocol has it.
pub const MAX_REGIONS: usize = 8;

/// Regions that it may lend one by one.
pub const MAX_SLOTS: usize = 64;

/// Bytes of the configuration space, as the protocol has it.
pub const MAX_CONFIG_BYTES: u32 = 256;

/// How long a monitor may take to acknowledge that the configuration has changed.
pub const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that a stopping server gives accepted requests to finish. Those that do not stay noted for
/// a successor.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Rounds of requests and completions before the event loop is looked at again.
pub const ROUNDS_PER_TICK: usize = 8;
