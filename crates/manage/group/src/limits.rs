//! The limits and times of a group, each with its unit.

use std::time::Duration;

/// The maximum number of members of a group.
pub const MAX_MEMBERS: usize = 16;

/// The maximum number of ANA groups, as in `farblock_proto`.
pub const MAX_ANA_GROUPS: u32 = 128;

/// The maximum number of earlier leaders that a leadership record lists as unfenced. A member takes
/// an ANA group over only while the list has room.
pub const MAX_VICTIMS: usize = 32;

/// The number of changes that a reservation record lists, for notifications and for members that do
/// not know whether their own change was committed. With the most notifications, the records of
/// 1,000 namespaces then fit in a reply of the store (30 KiB each).
pub const MAX_LOG: usize = 16;

/// The maximum length of the name of a member, in bytes.
pub const MAX_NAME: usize = 63;

/// The maximum number of hosts that a member lists for other members. Names have up to 223 bytes,
/// and etcd limits a request to 1.5 MiB.
pub const MAX_HOSTS: usize = 4096;

/// The number of ranges of controller identifiers. It exceeds [`MAX_MEMBERS`], because a range
/// belongs to its member until an operator removes the member.
pub const CONTROLLER_RANGES: u16 = 32;

/// The number of controller identifiers in a range. All ranges together fit below 65520.
pub const CONTROLLERS_PER_RANGE: u16 = 2047;

/// The default time for which a leader may do I/O after a request by which the store confirms its
/// leadership. The permit is shorter by [`STOP_MARGIN`] and the clock drift. This time exceeds the
/// duration of elections in the store, 1 to 2 seconds.
pub const HOLD: Duration = Duration::from_millis(2_500);

/// The default TTL of a member's lease in the store, in whole seconds. etcd allows 2 and more. It
/// is longer than [`HOLD`], because other members take over when it has ended.
pub const LEASE: Duration = Duration::from_secs(3);

/// The number of requests that confirm leaderships, and of lease renewals, in one [`HOLD`].
pub const BEATS: u32 = 5;

/// The maximum difference between the rates of two members' monotonic clocks, in millionths. Quartz
/// clocks and NTP's corrections together differ by less than 600.
pub const DRIFT_PPM: u32 = 1_000;

/// Cores stop submitting this long before the end of the hold. It must exceed the time between a
/// core's check of the clock and its system call.
pub const STOP_MARGIN: Duration = Duration::from_millis(250);

/// The default time for which a member must be alive before leadership moves back to it.
pub const SETTLE: Duration = Duration::from_secs(30);

/// The largest exponent: repeated losses of a member multiply [`SETTLE`] by up to two to this
/// power.
pub const MAX_SETTLE_SHIFT: u32 = 5;

/// The delay between candidates: the second-best member tries to take an ANA group over this much
/// later than the best.
pub const RANK_STEP: Duration = Duration::from_millis(500);

/// The time for which the other members do not take the ANA groups of a restarted member.
pub const RESUME_TIME: Duration = Duration::from_secs(3);

/// The time for which the other members leave the ANA groups of an ended process to this member's
/// next process, if the watchdog has released them.
pub const RESTART_TIME: Duration = Duration::from_secs(1);

/// The time for which a member does not take an ANA group whose disks it could not fence or open.
pub const AVOID: Duration = Duration::from_secs(10);

/// The maximum length of the error of a disk in a leadership record, in characters.
pub const MAX_PROBLEM: usize = 250;

/// The pause before a failed request to the store is repeated.
pub const RETRY: Duration = Duration::from_millis(200);

/// The maximum number of requests in flight that confirm leaderships. The member gives up older
/// ones.
pub const MAX_PROOFS: usize = 8;

/// The controller identifiers of a range; `None`: the range does not exist.
#[must_use]
pub fn controller_ids(range: u16) -> Option<std::ops::RangeInclusive<u16>> {
    let first = 1 + range.checked_mul(CONTROLLERS_PER_RANGE)?;
    (range < CONTROLLER_RANGES).then(|| first..=first + CONTROLLERS_PER_RANGE - 1)
}
