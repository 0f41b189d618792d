//! The times of this crate.

use std::time::Duration;

/// The pause before a disk that could not be opened is opened again.
pub const OPEN_AGAIN: Duration = Duration::from_millis(500);

/// The longest single wait for operations in flight. The worker then waits again.
pub const LOOK: Duration = Duration::from_secs(1);
