//! [`Spin`]: how long to look for work before sleeping.
//!
//! Sleeping and being woken costs several microseconds (tens in a virtual machine), so under load
//! it is cheaper to look a little longer. But an idle loop must use no CPU; and where the
//! processors are busy, looking takes them from the very thread that is waited for. So spinning has
//! to prove itself:
//!
//! - Sleeps that turn out shorter than the longest spin are counted. A few in a row say that
//!   spinning would have found the work, and start it.
//! - A spin that finds something adds to the budget of the next one, up to the configured maximum.
//!   One that finds nothing halves it; one during which the processor was taken away ends it.
//! - When the budget is gone, the next try needs more short sleeps than the last one did, many more
//!   each time. So a load for which spinning does not pay is left in peace, and one that changes
//!   gets its chance again.

use std::time::Duration;

/// This many short sleeps in a row start spinning at first.
const FIRST_SHORT_SLEEPS: u32 = 4;
/// Each time that spinning ended without having paid, it takes so many times more.
const SHORT_SLEEPS_FACTOR: u32 = 8;
/// But not more than this.
const MOST_SHORT_SLEEPS: u32 = 65_536;
/// This many spins in a row that find something make up for earlier failures.
const PROVEN: u32 = 64;
/// What one that finds something adds: the maximum divided by this.
const GROWTH_DIVISOR: u32 = 4;
/// A budget that falls below the maximum divided by this becomes zero.
const FLOOR_DIVISOR: u32 = 16;

/// The policy's state. Knows no clock.
#[derive(Debug)]
pub(crate) struct Spin {
    max: Duration,
    budget: Duration,
    short_sleeps: u32,
    /// Short sleeps in a row that start spinning.
    short_sleeps_needed: u32,
    /// Spins in a row that found something.
    hits: u32,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Spin {
        let short_sleeps_needed = FIRST_SHORT_SLEEPS;
        Spin { max, budget: Duration::ZERO, short_sleeps: 0, short_sleeps_needed, hits: 0 }
    }

    /// How long to spin before the next sleep.
    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }

    /// Whether sleeps need to be measured.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.max.is_zero()
    }

    /// A spin found work after `spun`.
    pub(crate) fn found(&mut self, spun: Duration) {
        if self.was_interrupted(spun) {
            // By the thread that was waited for, perhaps, which could not run before.
            return self.missed(spun);
        }
        self.budget = (self.budget + self.max / GROWTH_DIVISOR).min(self.max);
        self.hits += 1;
        if self.hits >= PROVEN {
            self.hits = 0;
            self.short_sleeps_needed = FIRST_SHORT_SLEEPS;
        }
    }

    /// Much longer than its budget: somebody else was given the processor.
    fn was_interrupted(&self, spun: Duration) -> bool {
        spun > self.budget + self.max
    }

    /// A spin of `spun` found nothing.
    pub(crate) fn missed(&mut self, spun: Duration) {
        self.hits = 0;
        let was_interrupted = self.was_interrupted(spun);
        self.budget /= 2;
        if was_interrupted || self.budget < self.max / FLOOR_DIVISOR {
            self.budget = Duration::ZERO;
            let needed = self.short_sleeps_needed.saturating_mul(SHORT_SLEEPS_FACTOR);
            self.short_sleeps_needed = needed.min(MOST_SHORT_SLEEPS);
        }
    }

    /// A sleep lasted `slept`. After a spin that found nothing, it says nothing about the whole
    /// wait.
    pub(crate) fn slept(&mut self, slept: Duration) {
        if slept > self.max || self.budget > Duration::ZERO || self.max.is_zero() {
            self.short_sleeps = 0;
            return;
        }
        self.short_sleeps += 1;
        if self.short_sleeps >= self.short_sleeps_needed {
            self.short_sleeps = 0;
            self.budget = self.max;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_millis(1);

    fn spinning() -> Spin {
        let mut spin = Spin::new(MAX);
        (0..FIRST_SHORT_SLEEPS).for_each(|_| spin.slept(SHORT));
        spin
    }

    #[test]
    fn an_idle_loop_never_spins() {
        let mut spin = Spin::new(MAX);
        for _ in 0..1000 {
            assert_eq!(spin.budget(), Duration::ZERO);
            spin.slept(LONG);
        }
    }

    #[test]
    fn short_sleeps_in_a_row_start_it() {
        let mut spin = Spin::new(MAX);
        for _ in 0..100 {
            (1..FIRST_SHORT_SLEEPS).for_each(|_| spin.slept(SHORT));
            spin.slept(LONG);
            assert_eq!(spin.budget(), Duration::ZERO);
        }
        assert_eq!(spinning().budget(), MAX);
    }

    #[test]
    fn fruitless_spins_fade_to_nothing() {
        let mut spin = spinning();
        let mut total = Duration::ZERO;
        for _ in 0..10 {
            total += spin.budget();
            spin.missed(spin.budget());
            spin.slept(LONG);
        }
        assert_eq!(spin.budget(), Duration::ZERO);
        assert!(total < MAX * 2, "going idle costs less than two full spins");
    }

    #[test]
    fn a_load_that_never_pays_is_hardly_ever_tried() {
        let mut spin = Spin::new(MAX);
        let mut wasted = Duration::ZERO;
        for _ in 0..100_000 {
            if spin.budget() > Duration::ZERO {
                wasted += spin.budget();
                spin.missed(spin.budget());
            }
            spin.slept(SHORT);
        }
        assert!(wasted < MAX * 20, "{wasted:?} wasted in 100,000 short sleeps");
    }

    #[test]
    fn hits_grow_it_back_and_prove_it() {
        let mut spin = spinning();
        spin.missed(MAX);
        assert_eq!(spin.budget(), MAX / 2);
        spin.found(SHORT);
        spin.found(SHORT);
        assert_eq!(spin.budget(), MAX);
        (0..10).for_each(|_| spin.missed(spin.budget()));
        let needed = spin.short_sleeps_needed;
        assert!(needed > FIRST_SHORT_SLEEPS);
        (0..needed).for_each(|_| spin.slept(SHORT));
        (0..PROVEN).for_each(|_| spin.found(SHORT));
        assert_eq!(spin.short_sleeps_needed, FIRST_SHORT_SLEEPS);
    }

    #[test]
    fn losing_the_processor_ends_it() {
        let mut spin = spinning();
        spin.missed(LONG);
        assert_eq!(spin.budget(), Duration::ZERO);
        let mut spin = spinning();
        spin.found(LONG);
        assert_eq!(spin.budget(), Duration::ZERO);
    }

    #[test]
    fn zero_turns_it_off() {
        let mut spin = Spin::new(Duration::ZERO);
        (0..100).for_each(|_| spin.slept(Duration::ZERO));
        assert_eq!(spin.budget(), Duration::ZERO);
        assert!(!spin.is_enabled());
    }
}
