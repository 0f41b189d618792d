//! Limits of the library that its header does not show, with their units.

use std::time::Duration;

/// The time for which closing a queue waits for started operations. It is longer than a reachable
/// target takes, and short enough for the end of a program.
pub(crate) const CLOSE_TIME: Duration = Duration::from_secs(30);

/// The interval at which a waiting blocking call asks its program whether to continue.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// The pause between two attempts to find the namespace, while the call waits for the target.
pub(crate) const CONNECT_PAUSE: Duration = Duration::from_millis(500);
