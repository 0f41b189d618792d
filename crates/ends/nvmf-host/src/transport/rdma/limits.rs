//! Limits of RDMA connections, with their units.

use std::time::Duration;

/// The limit on the registered memory for the data of one queue's commands, in bytes. Commands wait
/// while all of it is in use. The kernel keeps this memory in RAM.
pub(super) const STAGING_BYTES: usize = 16 << 20;

/// The unit in which a queue registers memory for commands' data, in bytes: the data of the largest
/// command.
pub(super) const STAGING_SLAB_BYTES: usize = 1 << 20;

/// The smallest part of the registered memory that a command takes, in bytes.
pub(super) const STAGING_CHUNK_BYTES_MIN: usize = 4096;

/// A queue answers at most this many RDMA READs of the controller at the same time, or fewer if the
/// device supports fewer.
pub(super) const READS: u8 = 16;

/// The time limit for the resolution of an address or a route.
pub(super) const RESOLVE_TIME: Duration = Duration::from_secs(10);

/// The time limit of the first attempt to resolve an address; see `Attempt::resolve`.
pub(super) const RESOLVE_TIME_MIN: Duration = Duration::from_millis(100);

/// The smallest admin queue that the host uses, in entries: a keep alive, an event request and one
/// more command can be in flight. The specification requires 32 entries.
pub(super) const ADMIN_ENTRIES_MIN: u16 = 4;
