//! Waiting for a state, as tests do that run on a busy machine.

use std::thread;
use std::time::{Duration, Instant};

/// So long a test waits for what it does not see: the busiest machine is sooner.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
///
/// # Panics
/// With `what`, if it is not so in a minute.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
