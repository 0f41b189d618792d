//! Chooses the leg for a read.
//!
//! The queue chooses the leg with the shortest expected time to answer. This time is the mean
//! duration of a read from the leg, times the number of its outstanding reads including the new
//! one. Each queue measures separately and shares no state. A slow leg gets no reads, so the queue
//! cannot measure it. The queue therefore reads from a slow leg from time to time, in case it has
//! become fast. It does so rarely enough that the slow reads hardly matter.

use std::time::{Duration, Instant};

use crate::limits::{FAILED_READ, PASSED_OVER, TRIED_AGAIN};

/// A new duration counts for one eighth of the mean: the mean is shifted right by this many bits.
const MEAN_SHIFT: u32 = 3;

/// The speed of a leg for the reads of one queue.
pub(crate) struct Speed {
    /// The mean duration of a read, weighted towards recent reads; 0 before the first measurement.
    mean_nanos: u64,
    pub(crate) reads: u64,
    /// When the queue last read from the leg: the time, and the number of the read.
    asked: (Instant, u64),
    /// Whether the measured mean is too old to use.
    is_stale: bool,
}

impl Speed {
    pub(crate) fn new(now: Instant) -> Speed {
        Speed { mean_nanos: 0, reads: 0, asked: (now, 0), is_stale: false }
    }

    /// Whether the leg has had no read for so long that the queue must measure it again. Such reads
    /// are at most a hundredth of all reads, and take at most a hundredth of the time.
    fn is_due(&self, now: Instant, turn: u64) -> bool {
        let (at, last) = self.asked;
        let pause = TRIED_AGAIN.max(Duration::from_nanos(self.mean_nanos) * PASSED_OVER);
        self.reads == 0
            && turn.saturating_sub(last) > u64::from(PASSED_OVER)
            && now.saturating_duration_since(at) > pause
    }

    /// The approximate time until the leg would answer another read. `usual` is the mean to assume
    /// for a leg without a measurement.
    fn expected_nanos(&self, usual: u64) -> u64 {
        let mean = if self.mean_nanos == 0 { usual } else { self.mean_nanos };
        mean.saturating_mul(self.reads + 1)
    }

    /// Registers that the leg got a read, which is the `turn`-th read of the queue.
    pub(crate) fn ask(&mut self, now: Instant, turn: u64) {
        self.is_stale |= self.is_due(now, turn);
        self.asked = (now, turn);
        self.reads += 1;
    }

    /// Registers that the leg has answered a read. A failed read counts as slow, since an error may
    /// arrive fast, but must not attract more reads.
    pub(crate) fn answer(&mut self, took: Duration, failed: bool) {
        self.reads = self.reads.saturating_sub(1);
        let took = if failed { took.max(FAILED_READ) } else { took };
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        if self.mean_nanos == 0 || std::mem::take(&mut self.is_stale) {
            self.mean_nanos = took;
        } else {
            self.mean_nanos -= self.mean_nanos >> MEAN_SHIFT;
            self.mean_nanos = self.mean_nanos.saturating_add(took >> MEAN_SHIFT).max(1);
        }
    }
}

/// A leg from which the queue may read.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) leg: usize,
    pub(crate) is_local: bool,
    pub(crate) speed: &'a Speed,
}

/// Chooses the leg for the `turn`-th read of a queue. Of equally fast legs, prefers a local one.
pub(crate) fn choose<'a>(
    legs: impl Iterator<Item = Candidate<'a>> + Clone,
    now: Instant,
    turn: u64,
) -> Option<usize> {
    if let Some(due) = legs.clone().find(|it| it.speed.is_due(now, turn)) {
        return Some(due.leg);
    }
    let known = legs.clone().map(|it| it.speed.mean_nanos).filter(|&mean| mean > 0);
    let usual = known.min().unwrap_or(1);
    legs.min_by_key(|it| (it.speed.expected_nanos(usual), !it.is_local)).map(|it| it.leg)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two legs with a constant read duration each. The second leg is local.
    struct Legs {
        begun: Instant,
        now: Duration,
        turn: u64,
        speeds: [Speed; 2],
    }

    impl Legs {
        fn new() -> Legs {
            let begun = Instant::now();
            let speeds = [Speed::new(begun), Speed::new(begun)];
            Legs { begun, now: Duration::ZERO, turn: 0, speeds }
        }

        fn ask(&mut self) -> usize {
            let candidate = |(leg, speed)| Candidate { leg, is_local: leg == 1, speed };
            let now = self.begun + self.now;
            self.turn += 1;
            let legs = self.speeds.iter().enumerate().map(candidate);
            let leg = choose(legs, now, self.turn).unwrap();
            self.speeds[leg].ask(now, self.turn);
            leg
        }

        /// Executes `reads` reads, one after the other. Returns the number of reads from each leg.
        fn one_by_one(&mut self, reads: usize, times: [Duration; 2]) -> [usize; 2] {
            let mut had = [0; 2];
            for _ in 0..reads {
                let leg = self.ask();
                had[leg] += 1;
                self.now += times[leg];
                self.speeds[leg].answer(times[leg], false);
            }
            had
        }
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_local_leg_is_read_before_any_measurement() {
        let mut legs = Legs::new();
        assert_eq!(legs.one_by_one(50, [MS; 2]), [0, 50]);
    }

    #[test]
    fn concurrent_reads_are_spread_over_legs_of_equal_speed() {
        let mut legs = Legs::new();
        let asked: Vec<usize> = (0..6).map(|_| legs.ask()).collect();
        assert_eq!(asked, [1, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn a_faster_leg_gets_more_of_the_concurrent_reads() {
        let mut legs = Legs::new();
        for (leg, time) in [(0, MS), (1, MS * 3)] {
            legs.speeds[leg].ask(legs.begun, 0);
            legs.speeds[leg].answer(time, false);
        }
        let to_first = (0..40).filter(|_| legs.ask() == 0).count();
        assert_eq!(to_first, 30);
    }

    #[test]
    fn a_slow_leg_is_probed_for_a_hundredth_of_the_time() {
        let mut legs = Legs::new();
        let [slow, fast] = legs.one_by_one(100_000, [MS * 40, MS]);
        // In 100 s, the slow leg gets about one read every four seconds.
        assert!((20..30).contains(&slow), "{slow} slow reads and {fast} fast ones");
    }

    #[test]
    fn a_leg_that_became_fast_is_used_again() {
        let mut legs = Legs::new();
        legs.one_by_one(5000, [MS * 40, MS * 10]);
        let [first, _] = legs.one_by_one(5000, [MS, MS * 10]);
        assert!(first > 4000, "the first leg had {first} reads of 5000");
    }

    #[test]
    fn a_queue_with_few_reads_does_not_probe_slow_legs() {
        let mut legs = Legs::new();
        legs.one_by_one(1000, [MS * 40, MS * 2]);
        let slow = (0..50).map(|_| {
            legs.now += Duration::from_secs(60);
            legs.one_by_one(1, [MS * 40, MS * 2])[0]
        });
        assert!(slow.sum::<usize>() <= 1);
    }

    #[test]
    fn fast_errors_do_not_attract_reads() {
        let mut legs = Legs::new();
        legs.one_by_one(10, [MS; 2]);
        let leg = legs.ask();
        legs.speeds[leg].answer(Duration::from_micros(1), true);
        // Reads now go to the other leg.
        legs.speeds[0].ask(legs.begun, 11);
        legs.speeds[0].answer(MS * 2, false);
        assert_eq!(legs.one_by_one(100, [MS; 2]), [100, 0]);
    }
}
