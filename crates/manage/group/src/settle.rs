//! The time for which each member has been alive, as this member has seen it.
//!
//! Leadership moves back to a member only when it has been alive for the settling time. Each loss
//! of a member doubles its settling time, up to a limit. So a member that dies again and again
//! receives its ANA groups ever less often. A leader's failure to fence or to open its disks counts
//! as a loss, too. After [`FORGET`] settling times alive, its losses no
//! longer count.

use crate::limits::MAX_SETTLE_SHIFT;
use crate::view::View;
use farblock_proto::time::Instant;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of settling times after which a member's losses are forgotten.
const FORGET: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct Observed {
    /// The incarnation that is alive; `None`: the member is not alive.
    incarnation: Option<u64>,
    /// The time of the last change of `incarnation`.
    since: Instant,
    losses: u32,
}

#[derive(Default, Debug)]
pub(crate) struct Settling {
    members: BTreeMap<String, Observed>,
    /// The epoch of each member's last failure, by ANA group and member.
    failures: BTreeMap<(u32, String), u64>,
}

impl Settling {
    /// Updates the members from the records of living members.
    pub(crate) fn observe(&mut self, now: Instant, view: &View, settle: Duration) {
        for (name, seen) in &view.alive {
            let incarnation = Some(seen.record.incarnation);
            let first = Observed { incarnation, since: now, losses: 0 };
            let known = self.members.entry(name.clone()).or_insert(first);
            if known.incarnation != incarnation {
                let lost = known.incarnation.is_some();
                *known = Observed { incarnation, since: now, ..*known };
                known.losses += u32::from(lost);
            } else if now.saturating_duration_since(known.since) > settle * FORGET {
                known.losses = 0;
            }
        }
        for (name, known) in &mut self.members {
            if known.incarnation.is_some() && !view.alive.contains_key(name) {
                known.incarnation = None;
                known.since = now;
                known.losses += 1;
            }
        }
        for (group, seen) in &view.leaders {
            for (member, failed) in &seen.record.failed {
                let counted = self.failures.insert((*group, member.clone()), failed.epoch);
                if counted.is_none_or(|counted| counted < failed.epoch) {
                    self.failed(now, member);
                }
            }
        }
    }

    /// Counts a failure of a member to take an ANA group as a loss.
    pub(crate) fn failed(&mut self, now: Instant, member: &str) {
        if let Some(known) = self.members.get_mut(member) {
            known.losses += 1;
            known.since = now;
        }
    }

    /// The time at which the member is settled; `None` if it is not alive.
    pub(crate) fn settled_at(&self, member: &str, settle: Duration) -> Option<Instant> {
        let known = self.members.get(member).filter(|known| known.incarnation.is_some())?;
        let time = settle * (1 << known.losses.min(MAX_SETTLE_SHIFT));
        Some(known.since.saturating_add(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeySpace;
    use crate::records::{AliveRecord, Record, VERSION};
    use crate::store::Change;

    const SETTLE: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    #[test]
    fn repeated_losses_double_the_settling_time_until_they_are_forgotten() {
        let keys = KeySpace::new("gold");
        let (mut view, mut settling) = (View::default(), Settling::default());
        let set = |view: &mut View, alive: Option<u64>, revision| {
            let record = |incarnation| AliveRecord { version: VERSION, incarnation, lease: None };
            let value = alive.map(|it| record(it).to_value().into());
            let key = "farblock/gold/alive/a".to_owned();
            view.change(&keys, &Change { key, value, revision });
        };
        set(&mut view, Some(1), 1);
        settling.observe(at(0), &view, SETTLE);
        assert_eq!(settling.settled_at("a", SETTLE), Some(at(10)));
        set(&mut view, None, 2);
        settling.observe(at(5), &view, SETTLE);
        assert_eq!(settling.settled_at("a", SETTLE), None);
        set(&mut view, Some(2), 3);
        settling.observe(at(6), &view, SETTLE);
        assert_eq!(
            settling.settled_at("a", SETTLE),
            Some(at(26)),
            "one loss doubles the settling time"
        );
        set(&mut view, Some(3), 4);
        settling.observe(at(7), &view, SETTLE);
        assert_eq!(settling.settled_at("a", SETTLE), Some(at(47)), "a restart is a loss, too");
        settling.observe(at(90), &view, SETTLE);
        assert_eq!(settling.settled_at("a", SETTLE), Some(at(17)), "the losses are forgotten");
    }
}
