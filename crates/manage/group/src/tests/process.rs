//! A member's process: its clock, its connection to the store, and its cores.

use super::disk::DiskOp;
use crate::store::Ticket;
use crate::{FenceKind, Member, Permit};
use farblock_proto::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// The condition of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condition {
    Running,
    /// Stopped by SIGSTOP.
    Stopped,
    Dead,
}

/// The connections of a machine that work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) to_store: bool,
    pub(super) from_store: bool,
    /// The machine reaches only an etcd server without quorum. This server confirms renewals of
    /// leases; all other requests fail.
    pub(super) is_minority: bool,
    pub(super) disks: bool,
    pub(super) hosts: bool,
    /// Whether the machine can open disks.
    pub(super) opens: bool,
    /// Whether renewals of the lease reach the store.
    pub(super) renewals: bool,
    /// Whether refutations of suspicions reach the store.
    pub(super) refutations: bool,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            to_store: true,
            from_store: true,
            is_minority: false,
            disks: true,
            hosts: true,
            opens: true,
            renewals: true,
            refutations: true,
        }
    }
}

/// A leadership, as the cores know it.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) epoch: u64,
    pub(super) identity: String,
    pub(super) client_epoch: u64,
    /// Whether the disks are open.
    pub(super) has_begun: bool,
    pub(super) is_stopping: bool,
}

/// The cores of a process.
#[derive(Default)]
pub(super) struct Cores {
    pub(super) open: BTreeMap<u32, Open>,
    pub(super) permits: BTreeMap<u32, Permit>,
    /// Operations that wait for a permit.
    pub(super) parked: Vec<DiskOp>,
    /// Operations that passed the check of the permit and have not completed.
    pub(super) flying: BTreeMap<u64, DiskOp>,
    /// The reservations: the number of the last change, and the excluded hosts.
    pub(super) reservations: BTreeMap<u32, (u64, BTreeSet<usize>)>,
    /// The changes whose forbidden commands have not ended yet.
    pub(super) applying: BTreeMap<u32, u64>,
}

impl Cores {
    /// Whether a reservation forbids a write of the host.
    pub(super) fn excludes(&self, group: u32, host: usize) -> bool {
        self.reservations.get(&group).is_some_and(|(_, excluded)| excluded.contains(&host))
    }

    /// The reservation changes whose forbidden commands have ended.
    pub(super) fn take_applied(&mut self) -> Vec<(u32, u64)> {
        let is_busy = |group: u32| {
            let mut its = self.flying.values().filter(|op| op.group == group);
            its.any(|op| op.write.is_some() && self.excludes(group, op.host))
        };
        let done = self.applying.iter().filter(|(group, _)| !is_busy(**group));
        let done: Vec<_> = done.map(|(group, index)| (*group, *index)).collect();
        for (group, _) in &done {
            self.applying.remove(group);
        }
        done
    }

    /// The groups whose I/O has stopped.
    pub(super) fn take_stopped(&mut self) -> Vec<(u32, u64)> {
        let flying = &self.flying;
        let is_idle = |group: u32| !flying.values().any(|op| op.group == group);
        let done = self.open.iter().filter(|(group, open)| open.is_stopping && is_idle(**group));
        let done: Vec<_> = done.map(|(group, open)| (*group, open.epoch)).collect();
        for (group, _) in &done {
            self.open.remove(group);
        }
        done
    }
}

/// A process of a member.
pub(super) struct Process {
    pub(super) member: Member,
    /// The number of the start; events for earlier starts have no effect.
    pub(super) life: u64,
    pub(super) condition: Condition,
    /// The offset of the clock in nanoseconds, and its rate in millionths above 1.
    pub(super) clock: (u64, i64),
    pub(super) links: Links,
    pub(super) cores: Cores,
    /// The requests without a reply.
    pub(super) awaited: BTreeSet<Ticket>,
    /// The next revision to deliver and the number of the watch; `None`: there is no watch.
    pub(super) watch: Option<(u64, u64)>,
    pub(super) watches: u64,
    /// The next scheduled tick, in the world's time.
    pub(super) tick_at: Option<u64>,
}

impl Process {
    pub(super) fn local(&self, now: u64) -> Instant {
        let (offset, ppm) = self.clock;
        Instant((offset as i64 + now as i64 + now as i64 / 1_000_000 * ppm) as u64)
    }

    /// The world's time at which the clock has reached `at`.
    pub(super) fn world(&self, at: Instant, now: u64) -> u64 {
        let left = at.saturating_duration_since(self.local(now)).as_nanos() as u64;
        now + left + left / 1_000 + 1_000
    }

    /// The end of the last permit for a disk without a complete hard fence.
    pub(super) fn last_permit(&self, kind: impl Fn(u32) -> FenceKind) -> Option<Instant> {
        let its = self.cores.permits.iter().filter(|(group, _)| !kind(**group).is_complete());
        its.map(|(_, permit)| permit.until).max()
    }
}
