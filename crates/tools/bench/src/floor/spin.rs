//! Spinning with a limit.

use std::thread;
use std::time::Instant;

use crate::limits::{FLOOR_NAP, FLOOR_TIMEOUT};
use crate::machine::cores;

/// Rounds between two readings of the clock.
const ROUNDS: u32 = 64;

/// Decides how a thread waits after an idle round.
pub(super) struct WaitLimit {
    round: u32,
    now: Instant,
    active: Instant,
    /// There is only one processor, which the peer may need: yield to the peer.
    crowded: bool,
}

impl WaitLimit {
    pub(super) fn new() -> WaitLimit {
        let now = Instant::now();
        WaitLimit { round: 0, now, active: now, crowded: cores() == 1 }
    }

    /// The time, at most [`ROUNDS`] rounds old.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// True in one of [`ROUNDS`] rounds.
    pub(super) fn now_and_then(&self) -> bool {
        self.round == 0
    }

    pub(super) fn after_a_round(&mut self, active: bool) {
        self.round += 1;
        if self.round == ROUNDS {
            self.round = 0;
            self.now = Instant::now();
        }
        if active {
            self.active = self.now;
        } else if self.now.saturating_duration_since(self.active) > FLOOR_TIMEOUT {
            thread::sleep(FLOOR_NAP);
            self.round = 0;
            self.now = Instant::now();
        } else if self.crowded {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
