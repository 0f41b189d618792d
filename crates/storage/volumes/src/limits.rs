//! What a mirror may have and take.

use std::time::Duration;

/// The fewest legs of a mirror.
pub const MIN_LEGS: usize = 2;
/// The most legs of a mirror.
pub const MAX_LEGS: usize = 8;
/// Bytes at the end of each leg that hold its record and the bitmap.
pub const RESERVED_BYTES: u64 = 1 << 20;
/// The smallest part of a mirror that is remembered as changed.
pub const MIN_REGION_BYTES: u64 = 64 << 10;
/// The most regions: the bitmap has 32 KiB, and what is kept of it in memory 1 MiB.
pub const MAX_REGIONS: u64 = 1 << 18;
/// The most bytes that are copied or compared at once, while writes there wait.
pub const CHUNK_BYTES: u64 = 256 << 10;
/// How long a leg may be away before it is put out; operations wait for so long.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The mirror fails operations after this time without a leg in sync, as other sets do.
pub const HOPE: Duration = Duration::from_secs(20);
/// How often a leg in sync has to show the last record that was written to it.
pub const AUDIT_EVERY: Duration = Duration::from_secs(5);
/// How long the start of a mirror waits until nothing that a process before has sent can be carried
/// out on any of the only legs that have all of the data: longer than what a host waits where no
/// target answers, 3 keep alives of 5 s and the longest command quiesce time (65 s).
pub const LATE: Duration = Duration::from_secs(90);
/// The time until a leg that was put out is tried again, the first time.
pub const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest time until a leg is tried again.
pub const LAST_RETRY: Duration = Duration::from_secs(60);
/// Generations of a mirror that a record remembers: a leg that is older is filled anew.
pub const HISTORY: usize = 400;
/// How often regions that nobody writes any more are taken out of the bitmap.
pub const CLEAN_EVERY: Duration = Duration::from_secs(5);
/// How long a leg that other legs answer faster than is not read by a queue, at least.
pub const TRIED_AGAIN: Duration = Duration::from_secs(1);
/// Reads that other legs have meanwhile, and how many times longer than one of its reads that
/// takes.
pub const PASSED_OVER: u32 = 100;
/// What a read that fails counts as at least, where the faster leg is looked for.
pub const FAILED_READ: Duration = Duration::from_millis(100);
/// How long writes of a queue that was dropped may still take effect.
pub const SETTLE: Duration = Duration::from_millis(100);

/// Places in which legs were found different that are remembered of a verify; beyond that they are
/// only counted.
pub const DIFFERENCES: usize = 64;
