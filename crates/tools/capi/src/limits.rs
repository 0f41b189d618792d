//! Every limit of the library that its header does not show, with its unit.

use std::time::Duration;

/// How long a queue that is closed waits for what it has begun: longer than a target that is there
/// takes, and no longer than a program's end may.
pub(crate) const CLOSE_TIME: Duration = Duration::from_secs(30);

/// How often a blocking call that waits asks its program whether to go on.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// Between two attempts to find out which namespace is meant, while the target is waited for.
pub(crate) const CONNECT_PAUSE: Duration = Duration::from_millis(500);
