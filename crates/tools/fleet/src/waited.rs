//! Time that was waited, as far as this process ran meanwhile.
//!
//! A controller that is stopped (SIGSTOP), or whose machine sleeps, hears nobody. When it goes on,
//! the clock says that all agents have been silent for long, and what they said is still on its way
//! to it: so it is not to blame them by the clock alone.

use std::time::{Duration, Instant};

/// The most that counts between two looks: who waits looks far more often.
const STEP: Duration = Duration::from_secs(1);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Waited {
    looked: Instant,
    sum: Duration,
}

impl Waited {
    /// From now.
    pub(crate) fn new() -> Waited {
        Waited { looked: Instant::now(), sum: Duration::ZERO }
    }

    /// How long it is so far. It has to be asked again and again.
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
    fn a_time_in_which_nobody_looked_is_not_waited() {
        let mut waited = Waited::new();
        let begin = waited.looked;
        let after = |ms: u64| begin + Duration::from_millis(ms);
        assert_eq!(waited.so_far_at(after(100)), Duration::from_millis(100));
        assert_eq!(waited.so_far_at(after(900)), Duration::from_millis(900));
        // Stopped for an hour.
        assert_eq!(waited.so_far_at(after(3_600_900)), Duration::from_millis(1900));
        assert_eq!(waited.so_far_at(after(3_601_000)), Duration::from_millis(2000));
        // And a clock that goes back is no time.
        assert_eq!(waited.so_far_at(begin), Duration::from_millis(2000));
    }
}
