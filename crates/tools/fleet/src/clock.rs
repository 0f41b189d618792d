//! The clocks of two processes, and the difference between them.

use std::time::{Duration, Instant};

/// The clock of an agent or a controller, in nanoseconds since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant at which this clock shows this time. `None` if it is further in the future than
    /// the system can represent.
    pub(crate) fn instant(self, ns: u64) -> Option<Instant> {
        self.0.checked_add(Duration::from_nanos(ns))
    }
}

/// The difference between the clock of an agent and the clock of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset {
    /// The time on the controller's clock at which the agent's clock showed zero. It is negative if
    /// the agent started before the controller.
    zero_ns: i128,
    /// The round trip time of the measurement. The error is at most half of it.
    pub(crate) round_trip: Duration,
}

impl Offset {
    /// The offset from one round trip. On the controller's clock, the request was sent at
    /// `asked_ns`, and the answer arrived at `heard_ns`. The agent answered at `told_ns` on its own
    /// clock.
    pub(crate) fn by(asked_ns: u64, told_ns: u64, heard_ns: u64) -> Offset {
        let middle = (i128::from(asked_ns) + i128::from(heard_ns)) / 2;
        let round_trip = Duration::from_nanos(heard_ns.saturating_sub(asked_ns));
        Offset { zero_ns: middle - i128::from(told_ns), round_trip }
    }

    /// The measurement with the shorter round trip.
    pub(crate) fn better(self, other: Offset) -> Offset {
        if other.round_trip < self.round_trip { other } else { self }
    }

    /// Converts a time of the controller's clock to the agent's clock.
    pub(crate) fn theirs(self, ours_ns: u64) -> u64 {
        u64::try_from(i128::from(ours_ns) - self.zero_ns).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_gives_the_clock_offset() {
        // The agent's clock started 1000 ns after the controller's clock.
        let long = Offset::by(2000, 1900, 4000);
        let short = Offset::by(5000, 4050, 5100);
        let best = long.better(short);
        assert_eq!((best, best.round_trip), (short, Duration::from_nanos(100)));
        assert_eq!(best.theirs(7000), 6000);
        assert_eq!(short.better(long), short);
        assert_eq!(best.theirs(10), 0, "a time before the agent's clock started");
        // The agent's clock started before the controller's clock.
        assert_eq!(Offset::by(0, 500, 0).theirs(100), 600);
    }

    #[test]
    fn clock_times_convert_to_instants() {
        let clock = Clock::new();
        let ns = clock.now_ns();
        assert!(clock.instant(ns).is_some_and(|at| at <= Instant::now()));
    }
}
