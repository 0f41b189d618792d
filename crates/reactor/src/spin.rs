//! [`Spin`]: how long to look for work before sleeping.
//!
//! Sleeping and being woken costs several microseconds (tens in a virtual machine), so under load it is cheaper to
//! look a little longer. An idle loop must not do that. So the policy is: sleeps that turn out shorter than the
//! longest spin are counted; after a few in a row, spinning would have paid, and starts. A spin that finds nothing
//! halves the next one's budget, down to none; one that finds something doubles it, up to the configured maximum.

use std::time::Duration;

/// This many short sleeps in a row start spinning.
const SHORT_SLEEPS: u8 = 4;
/// A budget that falls below the maximum divided by this becomes zero.
const FLOOR_DIVISOR: u32 = 16;

/// The policy's state. Knows no clock.
#[derive(Debug)]
pub(crate) struct Spin {
    max: Duration,
    budget: Duration,
    short_sleeps: u8,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Spin {
        Spin { max, budget: Duration::ZERO, short_sleeps: 0 }
    }

    /// How long to spin before the next sleep.
    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }

    /// Whether sleeps need to be measured.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.max.is_zero()
    }

    /// A spin found work.
    pub(crate) fn found(&mut self) {
        self.budget = (self.budget * 2).min(self.max);
    }

    /// A spin found nothing.
    pub(crate) fn missed(&mut self) {
        self.budget /= 2;
        if self.budget < self.max / FLOOR_DIVISOR {
            self.budget = Duration::ZERO;
        }
    }

    /// A sleep lasted `slept`.
    pub(crate) fn slept(&mut self, slept: Duration) {
        if slept > self.max || self.max.is_zero() {
            self.short_sleeps = 0;
            return;
        }
        self.short_sleeps += 1;
        if self.short_sleeps >= SHORT_SLEEPS {
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
        (0..SHORT_SLEEPS).for_each(|_| spin.slept(SHORT));
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
            (1..SHORT_SLEEPS).for_each(|_| spin.slept(SHORT));
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
            spin.missed();
            spin.slept(LONG);
        }
        assert_eq!(spin.budget(), Duration::ZERO);
        assert!(total < MAX * 2, "going idle costs less than two full spins");
    }

    #[test]
    fn a_hit_grows_it_back() {
        let mut spin = spinning();
        spin.missed();
        assert_eq!(spin.budget(), MAX / 2);
        spin.found();
        spin.found();
        assert_eq!(spin.budget(), MAX);
    }

    #[test]
    fn zero_turns_it_off() {
        let mut spin = Spin::new(Duration::ZERO);
        (0..100).for_each(|_| spin.slept(Duration::ZERO));
        assert_eq!(spin.budget(), Duration::ZERO);
        assert!(!spin.is_enabled());
    }
}
