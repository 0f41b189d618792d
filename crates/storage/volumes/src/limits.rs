//! Limits and times of mirrors.

use std::time::Duration;

/// The fewest legs of a mirror.
pub const MIN_LEGS: usize = 2;
/// The most legs of a mirror.
pub const MAX_LEGS: usize = 8;
/// Bytes at the end of each leg that hold its record and the bitmap.
pub const RESERVED_BYTES: u64 = 1 << 20;
/// Former sizes to try when a leg has no record at its end: this many in steps of a MiB below its
/// size, then as many whole GiB.
pub const FORMER_ENDS: u64 = 512;
/// The smallest region: the unit of tracking changes.
pub const MIN_REGION_BYTES: u64 = 64 << 10;
/// The most regions: the bitmap takes 32 KiB, and the state in memory 1 MiB.
pub const MAX_REGIONS: u64 = 1 << 18;
/// The most bytes to copy or compare at once; writes to that region wait meanwhile.
pub const CHUNK_BYTES: u64 = 256 << 10;
/// The time that a leg may be away, with operations waiting, before it is put out.
pub const WAIT_LIMIT: Duration = Duration::from_secs(2);
/// After this time without a leg in sync, the mirror fails operations, as other sets do.
pub const HOPE: Duration = Duration::from_secs(20);
/// The interval at which a leg in sync must show the last record written to it.
pub const AUDIT_EVERY: Duration = Duration::from_secs(5);
/// The longest wait at a start, if all legs with all data may still execute writes of an earlier
/// process. It exceeds a host's wait when no target answers: 3 keep-alive periods of 5 s and the
/// longest command quiesce time (65 s).
pub const LATE: Duration = Duration::from_secs(90);
/// The first retry of a leg that was put out.
pub const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest interval between retries of a leg.
pub const LAST_RETRY: Duration = Duration::from_secs(60);
/// Generations that a record remembers. The mirror overwrites a leg with an older record in full if
/// the leg certainly got no write that the others lack; otherwise it refuses the leg.
pub const HISTORY: usize = 400;
/// The interval of clearing idle regions from the bitmap.
pub const CLEAN_EVERY: Duration = Duration::from_secs(5);
/// While a leg is out, the other legs get a new record whenever the outage has grown by one part in
/// this many: about 90 records in the first day. A returning leg may be [`HISTORY`] records behind.
pub const RENEWALS: u32 = 10;
/// These renewals stop when the leg is this many generations behind. The other half of the
/// [`HISTORY`] is for records that must be written.
pub const RENEWED_GENERATIONS: u64 = HISTORY as u64 / 2;
/// The shortest time before a queue reads from a slower leg again.
pub const TRIED_AGAIN: Duration = Duration::from_secs(1);
/// Reads of other legs before a slower leg is read again, and the minimum ratio of the time since
/// its last read to the duration of one of its reads.
pub const PASSED_OVER: u32 = 100;
/// The minimum time that a failed read counts for when legs are compared.
pub const FAILED_READ: Duration = Duration::from_millis(100);
/// The time in which writes of a dropped queue may still take effect.
pub const SETTLE: Duration = Duration::from_millis(100);

/// The differences that a verify lists; it only counts the rest.
pub const DIFFERENCES: usize = 64;
