//! Limits and times of mirrors. The keeper is the mirror's thread for records and copies.

use std::time::Duration;

/// The minimum number of legs of a mirror.
pub const MIN_LEGS: usize = 2;
/// The maximum number of legs of a mirror.
pub const MAX_LEGS: usize = 8;
/// The number of bytes at the end of each leg for its record and the bitmap.
pub const RESERVED_BYTES: u64 = 1 << 20;
/// If a leg has no record at its end, its size may have changed, so the mirror searches for the
/// record at possible former ends. It tries this many sizes below the present one, in steps of
/// 1 MiB, and then the same number of sizes in whole GiB.
pub const FORMER_ENDS: u64 = 512;
/// The smallest region, in bytes. A region is the unit of tracking changes.
pub const MIN_REGION_BYTES: u64 = 64 << 10;
/// A mirror has at most this many regions. For this number, the bitmap takes 32 KiB on each leg,
/// and the state of the regions takes 1 MiB of memory.
pub const MAX_REGIONS: u64 = 1 << 18;
/// The keeper copies or compares at most this many bytes at once. During this time, writes to the
/// region of these bytes wait.
pub const CHUNK_BYTES: u64 = 256 << 10;
/// Operations wait at most this long for an unavailable leg. Then the mirror puts the leg out and
/// continues without it.
pub const WAIT_LIMIT: Duration = Duration::from_secs(2);
/// If all legs in sync are unavailable for this long, the mirror fails operations. Until then, they
/// wait.
pub const HOPE: Duration = Duration::from_secs(20);
/// The interval at which the keeper checks that each leg in sync still holds the record that the
/// mirror last wrote to it.
pub const AUDIT_EVERY: Duration = Duration::from_secs(5);
/// A starting mirror waits at most this long while every leg with all data may still execute
/// writes of an earlier process. A host gives up a target that does not answer sooner: after 3
/// keep-alive periods of 5 s and the longest command quiesce time (65 s).
pub const LATE: Duration = Duration::from_secs(90);
/// The time between putting a leg out and the first attempt to add it again.
pub const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The interval between attempts to add a leg again grows up to this value.
pub const LAST_RETRY: Duration = Duration::from_secs(60);
/// The number of generations (earlier versions of the record) that a record lists. If the record
/// of a leg is older, the mirror overwrites the whole leg. If the leg may have writes that the
/// other legs lack, the mirror refuses the leg.
pub const HISTORY: usize = 400;
/// The interval at which the keeper clears idle regions from the bitmap.
pub const CLEAN_EVERY: Duration = Duration::from_secs(5);
/// While a leg is out, the other legs get a new record each time the outage has become longer by
/// one tenth (1 / `RENEWALS`). This gives about 90 records on the first day. More records would
/// fill the history: a returning leg may be at most [`HISTORY`] records behind.
pub const RENEWALS: u32 = 10;
/// When an absent leg is this many records behind, the mirror stops writing additional records (see
/// [`RENEWALS`]). The mirror keeps the remaining [`HISTORY`] for records that it must write.
pub const RENEWED_GENERATIONS: u64 = HISTORY as u64 / 2;
/// A queue measures a slower leg again by reading from it, at most once in this time.
pub const TRIED_AGAIN: Duration = Duration::from_secs(1);
/// Between two reads from a slower leg, a queue makes at least this many reads from other legs. The
/// time between these two reads is also at least this many times the duration of a read from the
/// slower leg.
pub const PASSED_OVER: u32 = 100;
/// When a queue compares the speed of legs, a failed read counts as if it had taken at least this
/// long.
pub const FAILED_READ: Duration = Duration::from_millis(100);
/// The time within which writes of a dropped queue may still take effect.
pub const SETTLE: Duration = Duration::from_millis(100);

/// [`Mirror::verify`](crate::Mirror::verify) lists at most this many differences between legs, and
/// only counts further ones.
pub const DIFFERENCES: usize = 64;
