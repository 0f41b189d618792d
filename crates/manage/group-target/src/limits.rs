//! The times of this crate.

use std::time::Duration;

/// The pause before another attempt to open a disk.
pub const OPEN_AGAIN: Duration = Duration::from_millis(500);

/// The time for which a disk cannot be opened until the worker reports it to the member. It exceeds
/// the time until the lock of an ended process is free.
pub const OPEN_LIMIT: Duration = Duration::from_secs(3);

/// The longest single wait for operations in flight. The worker then waits again.
pub const LOOK: Duration = Duration::from_secs(1);
