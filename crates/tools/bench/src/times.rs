//! The phases of a run, and how long each lasts.

use std::time::Duration;

/// The phases of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) warm_up: Duration,
    pub(crate) ramp: Duration,
    /// Zero: until the bytes of `io_size` are done.
    pub(crate) runtime: Duration,
}
