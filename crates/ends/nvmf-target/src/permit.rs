//! Permits: a namespace that a group of targets shares executes commands only while this target has
//! the group's permission.
//!
//! A permit expires at a time. A core compares this time with the clock right before it submits an
//! operation, so no other thread must stop the core in time. The clock also counts while the
//! machine is suspended.

use farblock_proto::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering};

/// The permission to submit operations to the namespaces of an ANA group. All cores share one
/// `Permit`.
#[derive(Debug, Default)]
pub struct Permit {
    /// The time at which the permission expires, in nanoseconds of [`boot_time`]; 0: no permission.
    until_ns: AtomicU64,
}

impl Permit {
    /// Sets the time at which the permission expires, in [`boot_time`]. `None`: no core may submit
    /// any operation.
    pub fn publish(&self, until: Option<Instant>) {
        // Relaxed is sufficient: a core that must see this store receives a message afterwards.
        self.until_ns.store(until.map_or(0, |until| until.0), Ordering::Relaxed);
    }

    /// Returns whether a core may submit an operation now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let until_ns = self.until_ns.load(Ordering::Relaxed);
        until_ns != 0 && boot_time().0 < until_ns
    }
}

/// The time since the machine started, including the time in which it was suspended.
#[must_use]
#[cfg(target_os = "linux")]
pub fn boot_time() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Instant(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default())
}

/// The time since the first call. On this system, it may not count the time in which the machine is
/// suspended.
#[must_use]
#[cfg(not(target_os = "linux"))]
pub fn boot_time() -> Instant {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let start = START.get_or_init(std::time::Instant::now);
    Instant(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_permit_expires_by_itself_and_can_be_withdrawn() {
        let permit = Permit::default();
        assert!(!permit.is_valid(), "a new permit permits nothing");
        permit.publish(Some(boot_time().saturating_add(Duration::from_secs(3600))));
        assert!(permit.is_valid());
        permit.publish(Some(boot_time()));
        assert!(!permit.is_valid());
        permit.publish(None);
        assert!(!permit.is_valid());
    }
}
