//! The times of this crate.

use std::time::Duration;

/// The pause before another attempt to open a disk.
pub const OPEN_AGAIN: Duration = Duration::from_millis(500);

/// The longest single wait for operations in flight. The worker then waits again.
pub const LOOK: Duration = Duration::from_secs(1);
