//! The times of a group, and the inequality on which exclusive leadership rests.

use crate::limits;
use crate::records::Holder;
use farblock_proto::time::Instant;
use std::time::Duration;

/// The times of a member. [`Self::default`] suits production; tests use shorter ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// See [`limits::HOLD`].
    pub hold: Duration,
    /// See [`limits::LEASE`].
    pub lease: Duration,
    /// See [`limits::STOP_MARGIN`].
    pub margin: Duration,
    /// See [`limits::SETTLE`].
    pub settle: Duration,
    /// See [`limits::RANK_STEP`].
    pub rank_step: Duration,
    /// See [`limits::RESUME_TIME`].
    pub resume: Duration,
    /// See [`limits::RESTART_TIME`].
    pub restart: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            hold: limits::HOLD,
            lease: limits::LEASE,
            margin: limits::STOP_MARGIN,
            settle: limits::SETTLE,
            rank_step: limits::RANK_STEP,
            resume: limits::RESUME_TIME,
            restart: limits::RESTART_TIME,
        }
    }
}

fn drift(time: Duration) -> Duration {
    time.saturating_mul(limits::DRIFT_PPM) / 1_000_000
}

impl Timing {
    /// The interval of lease renewals, and of requests that prove the leaderships.
    #[must_use]
    pub fn beat(&self) -> Duration {
        self.hold / limits::BEATS
    }

    /// The time at which the cores submit the last operation, if the member sent a request at
    /// `sent` whose reply proved its leadership.
    #[must_use]
    pub fn permitted_until(&self, sent: Instant) -> Instant {
        let holds = if crate::has_mistake("a permit lasts three holds") { 3 } else { 1 };
        let hold = self.hold * holds;
        sent.saturating_add(hold.saturating_sub(drift(self.hold) + self.margin))
    }

    /// The time at which a victim has certainly stopped, and its operations have ended, if it lost
    /// its leadership at `taken` or earlier. `is_ended`: the victim's process has certainly ended.
    /// `suspected`: all its proofs are from before this time.
    #[must_use]
    pub fn stopped_at(
        taken: Instant,
        victim: &Holder,
        is_ended: bool,
        suspected: Option<Instant>,
    ) -> Instant {
        let all_complete = victim.fences.iter().all(|fence| fence.is_complete());
        if all_complete {
            return taken;
        }
        let flight = victim.fences.iter().map(|fence| fence.flight()).max().unwrap_or_default();
        let after = |begin: Instant, time: Duration| begin.saturating_add(time + drift(time));
        let held = Duration::from_millis(victim.hold_ms) + flight;
        let silent = after(suspected.map_or(taken, |at| at.min(taken)), held);
        let ended = is_ended.then(|| after(taken, flight));
        ended.map_or(silent, |ended| ended.min(silent)).max(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::FenceKind;

    #[test]
    fn an_old_leader_stops_before_the_new_one_begins_at_any_drift() {
        let timing = Timing::default();
        let flight = Duration::from_secs(2);
        let victim = Holder {
            member: "a".to_owned(),
            incarnation: 1,
            epoch: 1,
            identity: String::new(),
            hold_ms: timing.hold.as_millis() as u64,
            fences: vec![FenceKind::None { flight_ms: flight.as_millis() as u64 }],
            heeds_suspicions: true,
            suspected: None,
        };
        let (old, new) = (
            timing.permitted_until(Instant(0)).0 as f64,
            Timing::stopped_at(Instant(0), &victim, false, None).0 as f64,
        );
        let half = f64::from(limits::DRIFT_PPM) / 2e6;
        for (slow, fast) in [(1.0 - half, 1.0 + half), (1.0, 1.0), (1.0 + half, 1.0 - half)] {
            let stopped = old / slow + (timing.margin + flight).as_nanos() as f64;
            let begins = new / fast;
            assert!(stopped < begins, "{stopped} {begins}");
        }
        let ended = Timing::stopped_at(Instant(0), &victim, true, None);
        assert_eq!(
            ended.0, 2_002_000_000,
            "after the end of a process, only its operations in flight count"
        );
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let suspected = Timing::stopped_at(at(9), &victim, false, Some(at(7)));
        let whole = Timing::stopped_at(at(7), &victim, false, None);
        assert_eq!(suspected, whole, "the hold counts from the suspicion");
        let long_ago = Timing::stopped_at(at(90), &victim, false, Some(at(7)));
        assert_eq!(long_ago, at(90), "a leader that stopped long ago needs no wait");
    }
}
