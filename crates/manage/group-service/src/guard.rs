//! The permits (permissions to do I/O until a certain time) for disks that cannot refuse all I/O of
//! an earlier leader, and the watchdog that enforces the permits.
//!
//! ```text
//!            permit              ends soon             parked
//!   Idle ------------> Running ------------> Parking ----------> Idle
//!     ^                 |   ^                   |
//!     +---- stopped ----+   +----- permit ------+
//! ```
//!
//! The watchdog kills the process at the earliest permit end of all groups that are Running or
//! Parking, plus half of the stop margin. It gets each permit before the cores do.

use crate::watchdog::Watchdog;
use farblock_group::{Permit, Timing};
use farblock_proto::time::Instant;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Running {
    permit: Permit,
    /// The number of calls of `Disks::park` that the target has not answered yet.
    parks: u32,
    is_parking: bool,
}

#[derive(Debug)]
pub(crate) struct Guard {
    watchdog: Option<Watchdog>,
    is_lost: bool,
    groups: BTreeMap<u32, Running>,
    timing: Timing,
}

impl Guard {
    pub(crate) fn new(watchdog: Option<Watchdog>, timing: Timing) -> Self {
        Self { watchdog, is_lost: false, groups: BTreeMap::new(), timing }
    }

    /// Notes a permit, and tells the watchdog. Returns whether the cores may use the permit: false
    /// if there is no watchdog.
    pub(crate) fn permit(&mut self, group: u32, permit: Permit) -> bool {
        let known = self.groups.get(&group);
        let parks = known.map_or(0, |known| known.parks);
        self.groups.insert(group, Running { permit, parks, is_parking: false });
        let is_set = self.set();
        if !is_set {
            self.groups.remove(&group);
        }
        is_set
    }

    fn set(&mut self) -> bool {
        let end = self.groups.values().map(|group| group.permit.until).min();
        let end = end.map(|end| end.saturating_add(self.timing.margin / 2));
        let Some(watchdog) = &mut self.watchdog else { return false };
        if watchdog.set(end).is_ok() {
            return true;
        }
        self.watchdog = None;
        self.is_lost = true;
        false
    }

    /// Whether the watchdog has ended, although this member needs it.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The time from which the cores park an ANA group: one stop margin (`Timing::margin`) before
    /// the permit ends.
    fn parks_at(&self, group: &Running) -> Instant {
        let margin = u64::try_from(self.timing.margin.as_nanos()).unwrap_or(u64::MAX);
        Instant(group.permit.until.0.saturating_sub(margin))
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let running = self.groups.values().filter(|group| !group.is_parking);
        running.map(|group| self.parks_at(group)).min()
    }

    /// Returns the ANA groups to park now, with their epochs. Marks them as parking.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<(u32, u64)> {
        let is_due = |group: &Running| !group.is_parking && now >= self.parks_at(group);
        let due = self.groups.iter().filter(|(_, group)| is_due(group));
        let due: Vec<_> = due.map(|(number, group)| (*number, group.permit.epoch)).collect();
        for (number, _) in &due {
            let group = self.groups.get_mut(number).expect("`due` lists groups of this map");
            group.is_parking = true;
            group.parks += 1;
        }
        due
    }

    /// Notes an answer to `Disks::park`: no core submits any more.
    pub(crate) fn parked(&mut self, group: u32, epoch: u64) {
        let Some(known) = self.groups.get_mut(&group) else { return };
        if known.permit.epoch != epoch {
            return;
        }
        known.parks = known.parks.saturating_sub(1);
        if known.is_parking && known.parks == 0 {
            self.groups.remove(&group);
            self.set();
        }
    }

    /// Notes that no operation is in flight any more, and that the disks are closed.
    pub(crate) fn stopped(&mut self, group: u32, epoch: u64) {
        if self.groups.get(&group).is_some_and(|known| known.permit.epoch <= epoch) {
            self.groups.remove(&group);
            self.set();
        }
        if let Some(watchdog) = &self.watchdog {
            watchdog.closed(group);
        }
    }
}
