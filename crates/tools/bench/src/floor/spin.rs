//! Waits by spinning, and by sleeping after a time limit.

use std::thread;
use std::time::Instant;

use crate::limits::{FLOOR_NAP, FLOOR_TIMEOUT};
use crate::machine::cores;

/// The number of rounds of a thread's loop between two readings of the clock.
const ROUNDS: u32 = 64;

/// Makes a thread wait after an idle round.
pub(super) struct WaitLimit {
    round: u32,
    now: Instant,
    active: Instant,
    /// Whether there is only one processor, so that the thread must yield to the peer.
    crowded: bool,
}

impl WaitLimit {
    pub(super) fn new() -> WaitLimit {
        let now = Instant::now();
        WaitLimit { round: 0, now, active: now, crowded: cores() == 1 }
    }

    /// The last reading of the clock, which is at most [`ROUNDS`] rounds old.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// True once in [`ROUNDS`] rounds, for checks that need not run each round.
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
