//! [`Spin`]: how long to look for work before sleeping.
//!
//! Sleeping and being woken costs several microseconds (some fifty in a virtual machine), so under
//! load it is cheaper to look a little longer. But an idle loop must use no CPU; a light load must
//! not use much more than its work takes; and where the processors are busy, looking takes them
//! from the very thread that is waited for. So looking has to be earned, and to prove itself:
//!
//! - **Credit.** Working earns time to spin: [`CREDIT_PER_WORK`] times as much as was worked. So a
//!   loop uses at most so many times the CPU of its work, however the work is spread; and without
//!   work it never spins.
//! - **Confidence.** A spin that finds something soon adds to it. One that finds nothing takes
//!   more, and so does one that took longer than the work before it: a loop that is idle for the
//!   most part does with a fraction of the CPU by sleeping. At zero, spinning stops until sleeps
//!   in a row turn out to be so short that it would have found something. If confidence is lost
//!   again before it was full, the next trial needs many more short sleeps. So a load for which
//!   spinning does not pay, such as more threads than processors, is left in peace; one that
//!   changes gets its chance again; and a single interruption, such as every virtual machine has,
//!   does little.

use std::time::Duration;

use crate::config::Polling;

/// Time to spin that is earned by working.
const CREDIT_PER_WORK: u32 = 3;
/// Credit that can be saved, as a multiple of the longest spin.
const MOST_CREDIT: u32 = 4;
/// A spin that found something within the longest one divided by this was worth it in any case.
const SOON_DIVISOR: u32 = 4;
/// Spins shorter than the longest one divided by this are not worth starting.
const SHORTEST_DIVISOR: u32 = 32;

/// What confidence a trial starts with, what it can grow to, and what a miss takes of it.
const TRIAL_CONFIDENCE: u32 = 8;
const FULL_CONFIDENCE: u32 = 32;
const MISS: u32 = 3;

/// A sleep is short up to so many times the longest spin.
const SHORT_SLEEP: u32 = 2;
/// Short sleeps in a row that start a trial at first.
const FIRST_SHORT_SLEEPS: u32 = 4;
/// Each trial that failed makes it so many times more,
const SHORT_SLEEPS_FACTOR: u32 = 4;
/// but not more than this.
const MOST_SHORT_SLEEPS: u32 = 4096;

/// The policy's state. Knows no clock.
#[derive(Debug)]
pub(crate) struct Spin {
    polling: Polling,
    credit: Duration,
    /// How long the loop worked before this wait.
    last_work: Duration,
    confidence: u32,
    short_sleeps: u32,
    /// Short sleeps in a row that start a trial.
    short_sleeps_needed: u32,
}

/// How long a spin may last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Budget {
    None,
    Limited(Duration),
    Unlimited,
}

impl Spin {
    pub(crate) fn new(polling: Polling) -> Spin {
        Spin {
            polling,
            credit: Duration::ZERO,
            last_work: Duration::ZERO,
            confidence: 0,
            short_sleeps: 0,
            short_sleeps_needed: FIRST_SHORT_SLEEPS,
        }
    }

    /// The longest adaptive spin.
    fn longest(&self) -> Duration {
        match self.polling {
            Polling::Adaptive { longest } => longest,
            Polling::Never | Polling::Always => Duration::ZERO,
        }
    }

    /// How long to spin before the next sleep.
    pub(crate) fn budget(&self) -> Budget {
        if self.polling == Polling::Always {
            return Budget::Unlimited;
        }
        let longest = self.longest();
        let time = self.credit.min(longest);
        if self.confidence == 0 || time.is_zero() || time < longest / SHORTEST_DIVISOR {
            return Budget::None;
        }
        Budget::Limited(time)
    }

    /// Whether time needs to be measured.
    pub(crate) fn is_adaptive(&self) -> bool {
        !self.longest().is_zero()
    }

    /// The loop's owner, and the engine on its behalf, worked for so long.
    pub(crate) fn worked(&mut self, time: Duration) {
        let most = self.longest() * MOST_CREDIT;
        self.last_work = time;
        // Without overflow, however long the owner was away.
        self.credit = (self.credit + time.min(most) * CREDIT_PER_WORK).min(most);
    }

    /// A spin found work after `spun`.
    pub(crate) fn found(&mut self, spun: Duration) {
        self.credit = self.credit.saturating_sub(spun);
        if spun > self.last_work.max(self.longest() / SOON_DIVISOR) {
            return self.lose_confidence();
        }
        self.confidence = (self.confidence + 1).min(FULL_CONFIDENCE);
        if self.confidence == FULL_CONFIDENCE {
            self.short_sleeps_needed = FIRST_SHORT_SLEEPS;
        }
    }

    /// A spin of `spun` found nothing.
    pub(crate) fn missed(&mut self, spun: Duration) {
        self.credit = self.credit.saturating_sub(spun);
        self.lose_confidence();
    }

    fn lose_confidence(&mut self) {
        self.confidence = self.confidence.saturating_sub(MISS);
        if self.confidence == 0 {
            let needed = self.short_sleeps_needed * SHORT_SLEEPS_FACTOR;
            self.short_sleeps_needed = needed.min(MOST_SHORT_SLEEPS);
        }
    }

    /// A sleep lasted `slept`.
    pub(crate) fn slept(&mut self, slept: Duration) {
        // Where both ends sleep, each waits for the other to wake as well as for itself.
        if slept > self.longest() * SHORT_SLEEP || self.confidence > 0 {
            self.short_sleeps = 0;
            return;
        }
        self.short_sleeps += 1;
        if self.short_sleeps >= self.short_sleeps_needed {
            self.short_sleeps = 0;
            self.confidence = TRIAL_CONFIDENCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(100);
    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_millis(1);

    fn adaptive() -> Spin {
        Spin::new(Polling::Adaptive { longest: LONGEST })
    }

    fn spinning() -> Spin {
        let mut spin = adaptive();
        (0..FIRST_SHORT_SLEEPS).for_each(|_| spin.slept(SHORT));
        spin.worked(LONG);
        spin
    }

    fn limit(spin: &Spin) -> Duration {
        match spin.budget() {
            Budget::None => Duration::ZERO,
            Budget::Limited(time) => time,
            Budget::Unlimited => panic!("adaptive"),
        }
    }

    #[test]
    fn an_idle_loop_never_spins() {
        let mut spin = adaptive();
        for _ in 0..1000 {
            assert_eq!(spin.budget(), Budget::None);
            spin.slept(LONG);
            spin.worked(SHORT);
        }
    }

    #[test]
    fn short_sleeps_in_a_row_start_it() {
        let mut spin = adaptive();
        spin.worked(LONG);
        for _ in 0..100 {
            (1..FIRST_SHORT_SLEEPS).for_each(|_| spin.slept(SHORT));
            spin.slept(LONG);
            assert_eq!(spin.budget(), Budget::None);
        }
        assert_eq!(limit(&spinning()), LONGEST);
    }

    #[test]
    fn work_limits_what_is_spun() {
        let mut spin = spinning();
        let (mut worked, mut spun) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..10_000 {
            spin.worked(Duration::from_micros(5));
            worked += Duration::from_micros(5);
            let waited = limit(&spin).min(LONGEST / SOON_DIVISOR);
            spin.found(waited);
            spun += waited;
        }
        assert!(spin.confidence == FULL_CONFIDENCE && spun > worked, "{spun:?}");
        assert!(spun <= worked * CREDIT_PER_WORK + LONGEST * MOST_CREDIT, "{spun:?}");
    }

    #[test]
    fn a_light_load_at_a_steady_rate_ends_up_asleep() {
        let mut spin = spinning();
        let mut spun = Duration::ZERO;
        for _ in 0..10_000 {
            spin.worked(Duration::from_micros(10));
            if spin.budget() == Budget::None {
                spin.slept(Duration::from_micros(40));
            } else {
                let waited = limit(&spin).min(Duration::from_micros(40));
                spun += waited;
                spin.found(waited);
            }
        }
        assert!(spun < Duration::from_millis(20), "{spun:?} spun in half a second");
    }

    #[test]
    fn fruitless_spins_fade_to_nothing() {
        let mut spin = spinning();
        (0..FULL_CONFIDENCE).for_each(|_| spin.found(Duration::from_micros(1)));
        let mut total = Duration::ZERO;
        for _ in 0..100 {
            total += limit(&spin);
            spin.missed(limit(&spin));
            spin.slept(LONG);
            spin.worked(SHORT);
        }
        assert_eq!(spin.budget(), Budget::None);
        assert!(total < LONGEST * FULL_CONFIDENCE.div_ceil(MISS), "{total:?}");
    }

    #[test]
    fn a_load_that_never_pays_is_hardly_ever_tried() {
        let mut spin = adaptive();
        let mut wasted = Duration::ZERO;
        for _ in 0..100_000 {
            spin.worked(SHORT);
            wasted += limit(&spin);
            if spin.budget() != Budget::None {
                spin.missed(limit(&spin));
            }
            spin.slept(SHORT);
        }
        assert!(wasted < LONGEST * 120, "{wasted:?} wasted in 100,000 short sleeps");
    }

    #[test]
    fn full_confidence_bears_interruptions_and_forgives_failures() {
        let mut spin = spinning();
        while spin.confidence > 0 {
            spin.missed(SHORT);
        }
        assert!(spin.short_sleeps_needed > FIRST_SHORT_SLEEPS);
        (0..spin.short_sleeps_needed).for_each(|_| spin.slept(SHORT));
        (0..FULL_CONFIDENCE).for_each(|_| spin.found(Duration::ZERO));
        assert_eq!(spin.short_sleeps_needed, FIRST_SHORT_SLEEPS);
        spin.worked(SHORT);
        spin.found(LONG);
        assert_eq!(spin.confidence, FULL_CONFIDENCE - MISS);
    }

    #[test]
    fn never_and_always() {
        let mut spin = Spin::new(Polling::Never);
        for _ in 0..100 {
            spin.slept(Duration::ZERO);
            spin.worked(LONG);
        }
        assert_eq!(spin.budget(), Budget::None);
        assert!(!spin.is_adaptive());
        assert_eq!(Spin::new(Polling::Always).budget(), Budget::Unlimited);
    }
}
