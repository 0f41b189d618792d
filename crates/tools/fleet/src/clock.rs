//! Clocks of two processes, and how far they are apart.

use std::time::{Duration, Instant};

/// An agent's clock: nanoseconds since it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// When its hand will be there. Nothing if that is further off than anything planned.
    pub(crate) fn instant(self, ns: u64) -> Option<Instant> {
        self.0.checked_add(Duration::from_nanos(ns))
    }
}

/// How far an agent's clock is from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset {
    /// When the agent's clock was at zero, by ours; before ours began if negative.
    zero_ns: i128,
    /// The round trip that this was measured by: it is off by half of that at most.
    pub(crate) round_trip: Duration,
}

impl Offset {
    /// By one round trip: asked at `asked_ns` of our clock, told `told_ns`, heard at `heard_ns`.
    pub(crate) fn by(asked_ns: u64, told_ns: u64, heard_ns: u64) -> Offset {
        let middle = (i128::from(asked_ns) + i128::from(heard_ns)) / 2;
        let round_trip = Duration::from_nanos(heard_ns.saturating_sub(asked_ns));
        Offset { zero_ns: middle - i128::from(told_ns), round_trip }
    }

    /// The shorter round trip is the better measurement.
    pub(crate) fn better(self, other: Offset) -> Offset {
        if other.round_trip < self.round_trip { other } else { self }
    }

    /// A time of our clock in the agent's.
    pub(crate) fn theirs(self, ours_ns: u64) -> u64 {
        u64::try_from(i128::from(ours_ns) - self.zero_ns).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_tells_the_offset() {
        // Theirs began 1000 later than ours.
        let long = Offset::by(2000, 1900, 4000);
        let short = Offset::by(5000, 4050, 5100);
        let best = long.better(short);
        assert_eq!((best, best.round_trip), (short, Duration::from_nanos(100)));
        assert_eq!(best.theirs(7000), 6000);
        assert_eq!(short.better(long), short);
        assert_eq!(best.theirs(10), 0, "before theirs began");
        // Theirs began before ours.
        assert_eq!(Offset::by(0, 500, 0).theirs(100), 600);
    }

    #[test]
    fn times_are_instants() {
        let clock = Clock::new();
        let ns = clock.now_ns();
        assert!(clock.instant(ns).is_some_and(|at| at <= Instant::now()));
    }
}
