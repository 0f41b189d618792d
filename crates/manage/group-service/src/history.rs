//! The recent past of the group, as a member has seen it.

use crate::status::HistoryEntry;
use farblock_group::{Phase, Report, View};
use std::collections::{BTreeMap, VecDeque};

/// The number of events in [`GroupStatus::history`](crate::GroupStatus::history).
const ENTRIES: usize = 32;

/// The last events of the group, as this member has seen them.
#[derive(Default)]
pub(crate) struct History {
    entries: VecDeque<HistoryEntry>,
    /// The epoch in which each ANA group last had a leader.
    led: BTreeMap<u32, u64>,
}

impl History {
    /// Adds an event of this member.
    pub(crate) fn report(&mut self, report: &Report, wall_ms: u64) {
        // [`Self::look`] adds the leaders, which every member reads from the records.
        if !matches!(report, Report::Leads { .. }) {
            self.entries.extend(HistoryEntry::of(report, wall_ms));
            self.shorten();
        }
    }

    /// Adds the changes of leaders since the last call.
    pub(crate) fn look(&mut self, view: &View) {
        for (group, seen) in &view.leaders {
            let record = &seen.record;
            let is_known = self.led.get(group).is_some_and(|epoch| *epoch >= record.epoch);
            let Some(leader) = record.holder.as_ref().filter(|_| !is_known) else { continue };
            if record.phase == Phase::Serving {
                self.led.insert(*group, record.epoch);
                let failure = record.failure();
                let reason = failure.map(|(member, failed)| format!("{member} {}", failed.problem));
                let reason = reason.unwrap_or_else(|| record.reason.to_string());
                self.entries.push_back(HistoryEntry {
                    at_unix_ms: record.at_unix_ms,
                    ana_group: Some(*group),
                    text: format!(
                        "{} leads ANA group {group}, epoch {}: {reason}",
                        leader.member, record.epoch
                    ),
                });
            }
        }
        self.shorten();
    }

    fn shorten(&mut self) {
        let excess = self.entries.len().saturating_sub(ENTRIES);
        self.entries.drain(..excess);
    }

    pub(crate) fn entries(&self) -> Vec<HistoryEntry> {
        self.entries.iter().cloned().collect()
    }
}
