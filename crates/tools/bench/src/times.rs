//! The durations of the phases of a run.

use std::time::Duration;

/// The durations of the phases of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) warm_up: Duration,
    pub(crate) ramp: Duration,
    /// The measured time. Zero means until `io_size` bytes are done.
    pub(crate) runtime: Duration,
}
