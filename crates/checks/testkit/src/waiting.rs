//! Waits for a condition, for tests on a busy machine.

use std::thread;
use std::time::{Duration, Instant};

/// A test waits at most this long, which is enough even on a very busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
///
/// # Panics
/// Panics if the condition does not hold within a minute. The message contains `what`.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_LIMIT, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
