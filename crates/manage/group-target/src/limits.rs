//! The times of this crate.

use std::time::Duration;

/// The pause before a disk that could not be opened is opened again.
pub const OPEN_AGAIN: Duration = Duration::from_millis(500);

/// The interval at which a worker looks at its orders while operations are in flight.
pub const LOOK: Duration = Duration::from_millis(5);
