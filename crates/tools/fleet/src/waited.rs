//! Measures waiting time, but only while this process runs.
//!
//! A stopped controller (SIGSTOP), or a controller whose machine sleeps, receives no messages. When
//! it continues, each agent seems to have been silent for long, although newer messages wait in the
//! sockets. So time during which the controller did not run must not count as silence.

use std::time::{Duration, Instant};

/// The most that counts of the time between two checks. A running thread checks far more often, so
/// a longer time means that the process was stopped.
const STEP: Duration = Duration::from_secs(1);

/// A clock that counts only while this process runs.
#[derive(Debug)]
pub(crate) struct Waited {
    looked: Instant,
    sum: Duration,
}

impl Waited {
    pub(crate) fn new() -> Waited {
        Waited { looked: Instant::now(), sum: Duration::ZERO }
    }

    /// The counted time so far. The caller must call this at least once in each [`STEP`].
    pub(crate) fn so_far(&mut self) -> Duration {
        self.so_far_at(Instant::now())
    }

    fn so_far_at(&mut self, now: Instant) -> Duration {
        self.sum += now.saturating_duration_since(self.looked).min(STEP);
        self.looked = now;
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_during_which_the_process_was_suspended_does_not_count() {
        let mut waited = Waited::new();
        let begin = waited.looked;
        let after = |ms: u64| begin + Duration::from_millis(ms);
        assert_eq!(waited.so_far_at(after(100)), Duration::from_millis(100));
        assert_eq!(waited.so_far_at(after(900)), Duration::from_millis(900));
        // The process was stopped for an hour.
        assert_eq!(waited.so_far_at(after(3_600_900)), Duration::from_millis(1900));
        assert_eq!(waited.so_far_at(after(3_601_000)), Duration::from_millis(2000));
        // A clock that steps back adds no time.
        assert_eq!(waited.so_far_at(begin), Duration::from_millis(2000));
    }
}
