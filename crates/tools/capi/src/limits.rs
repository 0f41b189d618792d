//! Every limit of the library that its header does not show, with its unit.

use std::time::Duration;

/// How long a queue that is closed waits for what it has begun: longer than a target that is there
/// takes, and no longer than a program's end may.
pub(crate) const CLOSE_TIME: Duration = Duration::from_secs(30);
