//! [`Spin`]: decides whether an event loop busy-polls before it sleeps, that is, *looks* for work
//! again and again.
//!
//! A sleep and its wake-up take several microseconds (about 50 in a virtual machine). Under load,
//! looking for work can be faster than sleeping. There are three constraints:
//!
//! - An idle loop must use no CPU time.
//! - If looking does not make the load faster, it must not use much more CPU time than the work.
//! - On a busy machine, looking takes CPU time from the thread for which the loop waits.
//!
//! The length of the waits does not show whether looking pays. Waits of 50 us may mean that the
//! peer sleeps as well, or that a user sends 20,000 commands a second. So the loop tries out
//! looking, and compares the bytes that arrive per second:
//!
//! ```text
//!           a window of short sleeps               a window of looking
//!  Asleep -------------------------------> Trial -----------------------> Looking
//!     ^ ^                                   |     looking paid              |
//!     | +-- looking did not pay (backoff) --+                               |
//!     +---- looking no longer pays, costs too much, or the next check is due+
//! ```
//!
//! A cycle is some work and the wait after it, and a window is a number of cycles. Looking pays in
//! three cases:
//!
//! - The same load runs [faster](GAIN).
//! - The load runs [a little faster](CHEAP_GAIN), and looking takes at most twice the time of the
//!   work.
//! - The load runs [as fast](LOSS), and looking takes at most as long as the work.
//!
//! A wait longer than the limit on looking (`longest`) counts as an interruption, not as a wait.
//! Virtual machines have a few interruptions even under load, so the loop accepts a few in a
//! window. It discards a window with more, so a mostly idle loop keeps sleeping.
//!
//! If two loops wait for each other and one looks, both become faster. The sleeping loop then
//! measures a higher rate than in its failed trial, and starts a new trial at once. So in the end
//! both look, whichever of them began.

use std::time::Duration;

use crate::config::Polling;

/// The number of cycles in a window of sleeps, or in a trial.
const TRIAL_CYCLES: u32 = 32;
/// The number of cycles in a window of looking, after which the loop checks again whether looking
/// pays.
const LOOKING_CYCLES: u32 = 128;
/// After this many windows of looking, the loop sleeps for a window, to measure the rate without
/// looking again.
const LOOKING_WINDOWS: u32 = 128;
/// The maximum number of interruptions in a window. The loop discards a window with more.
const MOST_INTERRUPTIONS: u32 = 4;

/// Looking pays if the rate of the load grows by this factor (a numerator and a denominator).
const GAIN: (u64, u64) = (6, 5);
/// Looking also pays if the rate grows by this factor, and looking takes at most twice the time of
/// the work.
const CHEAP_GAIN: (u64, u64) = (12, 11);
/// Looking also pays if the rate is at least this fraction, and looking takes at most the time of
/// the work.
const LOSS: (u64, u64) = (97, 100);
/// The loop looks for at most this many times the time that it works. The limit does not apply
/// during a trial, because the peer has to begin to look, too.
const MOST_PER_WORK: u32 = 6;

/// After each failed trial, the number of windows before the next trial grows by this factor.
const WINDOWS_FACTOR: u32 = 4;
/// The maximum number of windows between two trials.
const MOST_WINDOWS: u32 = 256;
/// A sleeping loop starts a new trial at once when its rate exceeds the rate of the failed trial by
/// this factor (a numerator and a denominator).
const CHANGE: (u64, u64) = (3, 2);

/// Measurements of consecutive cycles.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    cycles: u32,
    interruptions: u32,
    worked: Duration,
    /// The time spent looking, whether or not it found work.
    looked: Duration,
    slept: Duration,
    bytes: u64,
}

impl Window {
    /// Returns the rate of the load in bytes per second.
    fn rate(&self) -> u64 {
        let nanos = (self.worked + self.looked + self.slept).as_nanos().max(1);
        let rate = u128::from(self.bytes) * 1_000_000_000 / nanos;
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Whether looking pays. `asleep` is the rate of the same load while the loop sleeps.
    fn pays(&self, asleep: u64) -> bool {
        let factor = if self.looked <= self.worked {
            LOSS
        } else if self.looked <= self.worked * 2 {
            CHEAP_GAIN
        } else {
            GAIN
        };
        at_least(self.rate(), asleep, factor)
    }

    /// Whether looking takes more time than [`MOST_PER_WORK`] allows.
    fn is_dear(&self) -> bool {
        self.looked > self.worked * MOST_PER_WORK
    }
}

/// Whether `rate` is at least `times / per` times `other`.
fn at_least(rate: u64, other: u64, (times, per): (u64, u64)) -> bool {
    u128::from(rate) * u128::from(per) >= u128::from(other) * u128::from(times)
}

/// The phase of the policy, as in the diagram above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The loop sleeps immediately, and measures the rate of the load.
    Asleep,
    /// The loop looks for one window, to compare the rates.
    Trial,
    /// The loop looks for this many more windows.
    Looking(u32),
}

/// The state of the policy. It reads no clock: callers pass in all times.
#[derive(Debug)]
pub(crate) struct Spin {
    polling: Polling,
    phase: Phase,
    window: Window,
    /// The rate of the last window of sleeps.
    asleep: u64,
    /// The highest rate while sleeping for which looking did not pay. Zero after a successful
    /// trial.
    refuted: u64,
    /// The number of windows of sleeps before the next trial, and then the number to use if that
    /// trial fails.
    windows: u32,
    windows_after: u32,
    /// The number of bytes that had arrived before this cycle.
    bytes_before: u64,
}

/// The time limit of looking before a sleep.
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
            phase: Phase::Asleep,
            window: Window::default(),
            asleep: 0,
            refuted: 0,
            windows: 1,
            windows_after: WINDOWS_FACTOR,
            bytes_before: 0,
        }
    }

    /// Returns the longest time of adaptive looking.
    fn longest(&self) -> Duration {
        match self.polling {
            Polling::Adaptive { longest } => longest,
            Polling::Never | Polling::Busy { .. } | Polling::Always => Duration::ZERO,
        }
    }

    /// Returns how long the loop may look before its next sleep.
    pub(crate) fn budget(&self) -> Budget {
        match (self.polling, self.phase) {
            (Polling::Always, _) => Budget::Unlimited,
            (Polling::Busy { idle }, _) => Budget::Limited(idle),
            (Polling::Never, _) | (_, Phase::Asleep) => Budget::None,
            (Polling::Adaptive { longest }, _) => Budget::Limited(longest),
        }
    }

    /// Whether the loop looks without measuring whether that pays.
    pub(crate) fn is_unjudged(&self) -> bool {
        matches!(self.polling, Polling::Busy { .. } | Polling::Always)
    }

    /// Whether the loop must pass in measured times.
    pub(crate) fn is_adaptive(&self) -> bool {
        !self.longest().is_zero()
    }

    /// Records that the loop's owner and the engine have worked for `time`.
    pub(crate) fn worked(&mut self, time: Duration) {
        self.window.worked += time;
    }

    /// Records that looking found work after `spun`. `bytes` is the number of bytes that had
    /// arrived until then.
    pub(crate) fn found(&mut self, spun: Duration, bytes: u64) {
        self.window.looked += spun;
        self.end_cycle(bytes);
    }

    /// Records that looking for `spun` found no work. A sleep follows.
    pub(crate) fn missed(&mut self, spun: Duration) {
        self.window.looked += spun;
    }

    /// Records a sleep of `slept`. `bytes` is the number of bytes that had arrived until then.
    pub(crate) fn slept(&mut self, slept: Duration, bytes: u64) {
        if slept <= self.longest() {
            self.window.slept += slept;
            return self.end_cycle(bytes);
        }
        self.bytes_before = bytes;
        self.window.interruptions += 1;
        if self.window.interruptions > MOST_INTERRUPTIONS {
            if self.phase == Phase::Trial {
                self.refute();
            }
            self.enter(Phase::Asleep);
        }
    }

    fn end_cycle(&mut self, bytes: u64) {
        self.window.bytes += bytes.saturating_sub(self.bytes_before);
        self.bytes_before = bytes;
        self.window.cycles += 1;
        let cycles = match self.phase {
            Phase::Asleep | Phase::Trial => TRIAL_CYCLES,
            Phase::Looking(_) => LOOKING_CYCLES,
        };
        if self.window.cycles >= cycles {
            self.end_window();
        }
    }

    fn end_window(&mut self) {
        let pays = self.window.pays(self.asleep);
        match self.phase {
            Phase::Asleep => self.end_asleep(),
            Phase::Trial if pays => {
                self.enter(Phase::Looking(LOOKING_WINDOWS));
            }
            Phase::Looking(more @ 1..) if pays && !self.window.is_dear() => {
                (self.refuted, self.windows_after) = (0, WINDOWS_FACTOR);
                self.enter(Phase::Looking(more - 1));
            }
            Phase::Looking(0) if pays && !self.window.is_dear() => {
                self.windows = 1;
                self.enter(Phase::Asleep);
            }
            Phase::Trial | Phase::Looking(_) => {
                self.refute();
                self.enter(Phase::Asleep);
            }
        }
    }

    /// Ends a window of sleeps. Starts a trial if a trial is due.
    fn end_asleep(&mut self) {
        self.asleep = self.window.rate();
        self.windows = self.windows.saturating_sub(1);
        let is_another = self.refuted > 0 && at_least(self.asleep, self.refuted, CHANGE);
        let phase = match is_another || self.windows == 0 {
            true => Phase::Trial,
            false => Phase::Asleep,
        };
        self.enter(phase);
    }

    /// Records that looking did not pay for this load.
    fn refute(&mut self) {
        self.refuted = self.refuted.max(self.asleep);
        self.windows = self.windows_after;
        self.windows_after = (self.windows_after * WINDOWS_FACTOR).min(MOST_WINDOWS);
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.window = Window::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(200);
    /// The time from an event to the first instruction of the woken thread.
    const WAKE: Duration = Duration::from_micros(50);
    const BYTES: u64 = 72;

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn adaptive() -> Spin {
        Spin::new(Polling::Adaptive { longest: LONGEST })
    }

    /// A loop with a simulated clock.
    struct Loop {
        spin: Spin,
        work: Duration,
        bytes: u64,
        now: Duration,
        looked: Duration,
    }

    impl Loop {
        fn new(work: Duration) -> Loop {
            let (now, looked) = (Duration::ZERO, Duration::ZERO);
            Loop { spin: adaptive(), work, bytes: 0, now, looked }
        }

        /// Waits for work that arrives at the time `event`, and does it. Returns the time at which
        /// the work ends.
        fn cycle(&mut self, event: Duration) -> Duration {
            let wait = event.saturating_sub(self.now);
            self.bytes += BYTES;
            if wait.is_zero() {
                return self.work();
            }
            match self.spin.budget() {
                Budget::Limited(most) if wait <= most => {
                    self.looked += wait;
                    self.spin.found(wait, self.bytes);
                    self.now += wait;
                }
                budget => {
                    let missed = match budget {
                        Budget::Limited(most) => most,
                        _ => Duration::ZERO,
                    };
                    if !missed.is_zero() {
                        self.looked += missed;
                        self.spin.missed(missed);
                    }
                    let slept = wait - missed + WAKE;
                    self.spin.slept(slept, self.bytes);
                    self.now += missed + slept;
                }
            }
            self.work()
        }

        fn work(&mut self) -> Duration {
            self.spin.worked(self.work);
            self.now += self.work;
            self.now
        }

        fn looks(&self) -> bool {
            matches!(self.spin.phase, Phase::Looking(_))
        }
    }

    /// Simulates a host and a target that wait for each other, one command at a time. A message
    /// takes the time `way` to arrive. Returns the mean time per command.
    fn ping_pong(host: &mut Loop, target: &mut Loop, way: Duration, cycles: u32) -> Duration {
        let begun = host.now;
        for _ in 0..cycles {
            let command = host.now + way;
            let answer = target.cycle(command) + way;
            host.cycle(answer);
        }
        (host.now - begun) / cycles
    }

    #[test]
    fn a_fixed_policy_gives_a_constant_budget() {
        let budget = |name: &str| {
            let mut told = Spin::new(name.parse().unwrap());
            let first = told.budget();
            for number in 1..1000 {
                told.worked(us(1));
                told.slept(us(60), number);
            }
            assert_eq!(told.budget(), first, "{name}");
            first
        };
        assert_eq!(budget("efficient"), Budget::None);
        assert!(matches!(budget("latency"), Budget::Limited(idle) if idle > LONGEST));
        assert_eq!(budget("always"), Budget::Unlimited);
    }

    #[test]
    fn an_idle_loop_never_spins() {
        let mut idle = Loop::new(us(20));
        for _ in 0..10_000 {
            idle.cycle(idle.now + us(1000));
        }
        assert_eq!(idle.looked, Duration::ZERO);
    }

    #[test]
    fn a_host_and_a_target_start_to_spin_together() {
        let (mut host, mut target) = (Loop::new(us(5)), Loop::new(us(5)));
        let asleep = ping_pong(&mut host, &mut target, us(2), 10);
        assert_eq!(asleep, us(14) + WAKE * 2);
        ping_pong(&mut host, &mut target, us(2), 500);
        assert!(host.looks() && target.looks());
        assert_eq!(ping_pong(&mut host, &mut target, us(2), 100), us(14));
        // In the long run, the cost of repeated trials must be negligible.
        let mean = ping_pong(&mut host, &mut target, us(2), 200_000);
        assert!(mean < us(15), "{mean:?}");
    }

    #[test]
    fn a_host_and_a_target_spin_together_after_failed_trials() {
        for (failures, cycles) in [(1, 3), (3, 17), (20, 100)] {
            let (mut host, mut target) = (Loop::new(us(5)), Loop::new(us(5)));
            // The target's loop has already failed several trials with other loads.
            for _ in 0..failures {
                target.spin.refute();
            }
            for _ in 0..cycles {
                host.cycle(host.now + us(30));
            }
            target.now = host.now;
            // These cycles take one second.
            ping_pong(&mut host, &mut target, us(2), 12_000);
            let mean = ping_pong(&mut host, &mut target, us(2), 1000);
            assert!(mean < us(20), "a command takes {mean:?} after {failures} failed trials");
        }
    }

    #[test]
    fn short_interruptions_do_not_end_the_spinning() {
        let (mut host, mut target) = (Loop::new(us(5)), Loop::new(us(5)));
        ping_pong(&mut host, &mut target, us(2), 1000);
        for _ in 0..100 {
            // Both ends pause for a millisecond.
            host.now += us(1000);
            target.now = host.now - us(10);
            let mean = ping_pong(&mut host, &mut target, us(2), 60);
            assert!(mean < us(25), "{mean:?}");
        }
    }

    #[test]
    fn a_loop_with_a_steady_rate_sleeps() {
        for period in [us(50), us(100), us(140)] {
            let mut steady = Loop::new(us(10));
            for number in 0..100_000 {
                steady.cycle(period * number);
            }
            let share = steady.looked.as_secs_f64() / steady.now.as_secs_f64();
            assert!(share < 0.01, "{share} of the time is spent on polling every {period:?}");
        }
    }

    #[test]
    fn a_loop_does_not_spin_for_a_slow_disk() {
        // Each command takes 150 us. Looking would be a quarter faster, but take 15 times as long
        // as the work.
        let mut host = Loop::new(us(10));
        for _ in 0..100_000 {
            host.cycle(host.now + us(150));
        }
        let share = host.looked.as_secs_f64() / host.now.as_secs_f64();
        assert!(share < 0.05, "{share} of the time is spent on polling");
    }

    #[test]
    fn a_loop_spins_for_a_peer_that_answers_large_batches() {
        // The peer answers 32 commands together, after 150 us. Sleeping lowers the rate by a
        // quarter.
        let mut host = Loop::new(us(60));
        for _ in 0..1000 {
            host.cycle(host.now + us(150));
        }
        let begun = host.now;
        for _ in 0..1000 {
            host.cycle(host.now + us(150));
        }
        assert!((host.now - begun) / 1000 < us(215), "{:?}", host.now - begun);
    }

    #[test]
    fn a_loop_that_delays_its_peer_stops_spinning() {
        // The other thread shares the processor: the longer this loop looks, the later the other
        // thread responds.
        let mut host = Loop::new(us(20));
        for _ in 0..100_000 {
            let looks = host.spin.budget() != Budget::None;
            host.cycle(host.now + if looks { us(150) } else { us(40) });
        }
        let share = host.looked.as_secs_f64() / host.now.as_secs_f64();
        assert!(share < 0.02, "{share} of the time is spent on polling");
    }

    #[test]
    fn a_loop_that_becomes_idle_stops_spinning() {
        let (mut host, mut target) = (Loop::new(us(5)), Loop::new(us(5)));
        ping_pong(&mut host, &mut target, us(2), 1000);
        let looked = host.looked;
        for _ in 0..100 {
            host.cycle(host.now + us(10_000));
        }
        assert!(host.looked - looked <= LONGEST * (MOST_INTERRUPTIONS + 1));
        assert_eq!(host.spin.budget(), Budget::None);
    }

    #[test]
    fn the_policies_never_and_always_are_obeyed() {
        let mut spin = Spin::new(Polling::Never);
        for bytes in 0..1000 {
            spin.slept(Duration::ZERO, bytes);
            spin.worked(us(1));
            assert_eq!(spin.budget(), Budget::None);
        }
        assert!(!spin.is_adaptive());
        assert_eq!(Spin::new(Polling::Always).budget(), Budget::Unlimited);
    }
}
