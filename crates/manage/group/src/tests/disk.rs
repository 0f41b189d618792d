//! A disk that several members reach, and the checks of its results (the oracle).
//!
//! - Block list: a block (an OSD) that has seen the list's epoch refuses the operations of a listed
//!   client. Each operation brings the epoch that its client knows.
//! - Persistent reservation: the disk refuses every operation with an unregistered key.
//! - Mirror: the disk refuses writes of an earlier generation. Reads of an earlier generation
//!   return the old leader's own leg, as it was.
//! - None: the disk refuses nothing.
//!
//! The oracle fails the run at three kinds of writes: by an earlier leader after a new one has
//! begun, over an acknowledged newer value, and by an excluded host.

use crate::FenceKind;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const BLOCKS: usize = 6;

/// An operation of a host, as a member submits it.
#[derive(Clone, Debug)]
pub(super) struct DiskOp {
    pub(super) token: u64,
    pub(super) group: u32,
    pub(super) host: usize,
    pub(super) block: usize,
    /// The value to write; `None`: a read.
    pub(super) write: Option<u64>,
    pub(super) epoch: u64,
    pub(super) identity: String,
    /// The epoch of the block list that the client knows.
    pub(super) client_epoch: u64,
}

#[derive(Clone, Copy, Default)]
struct DiskBlock {
    value: u64,
    /// The highest epoch of an executed operation.
    epoch: u64,
    /// The epoch of the block list that the OSD knows.
    map: u64,
}

pub(super) struct Disk {
    pub(super) kind: FenceKind,
    blocks: [DiskBlock; BLOCKS],
    /// The last value that was acknowledged, by block.
    pub(super) acked: [u64; BLOCKS],
    /// The highest epoch in which a leader may do I/O.
    pub(super) begun: u64,
    /// The hosts that may not write, because a member has answered a preempt of them.
    excluded: BTreeSet<usize>,
    /// The last answered reservation change. Also, for each host, the number of the change on which
    /// the last change that may admit the host again builds.
    pub(super) reserved: (u64, BTreeMap<usize, u64>),
    map: u64,
    listed: BTreeMap<String, u64>,
    registered: BTreeSet<String>,
    generation: u64,
    /// The old leader's leg at the time of each new generation.
    legs: BTreeMap<u64, [u64; BLOCKS]>,
    /// The time until which the disk executes nothing.
    pub(super) stalled_until: u64,
}

impl Disk {
    pub(super) fn new(kind: FenceKind) -> Self {
        Self {
            kind,
            blocks: Default::default(),
            acked: [0; BLOCKS],
            begun: 0,
            excluded: BTreeSet::new(),
            reserved: (0, BTreeMap::new()),
            map: 1,
            listed: BTreeMap::new(),
            registered: BTreeSet::new(),
            generation: 0,
            legs: BTreeMap::new(),
            stalled_until: 0,
        }
    }

    /// Notes a member's answer: this reservation change, which excludes hosts, is in force.
    pub(super) fn reserve(&mut self, index: u64, excluded: &BTreeSet<usize>) {
        let (last, admitted) = &mut self.reserved;
        *last = index.max(*last);
        // A later change may have admitted the host again.
        let is_out = |host: &&usize| admitted.get(host).is_none_or(|base| *base < index);
        self.excluded.extend(excluded.iter().filter(is_out));
    }

    /// Notes that a member may admit a host again, in the change after `base`.
    pub(super) fn admit(&mut self, base: u64, host: usize) {
        let known = self.reserved.1.entry(host).or_default();
        *known = base.max(*known);
        self.excluded.remove(&host);
    }

    /// Places a fence. Returns the barrier (the block list's epoch), or `None` if the fence is
    /// outdated.
    pub(super) fn fence(&mut self, epoch: u64, victims: &[String]) -> Option<Option<u64>> {
        match self.kind {
            FenceKind::BlockList => {
                self.map += 1;
                let map = self.map;
                self.listed.extend(victims.iter().map(|victim| (victim.clone(), map)));
                return Some(Some(map));
            }
            FenceKind::PersistentReservation => {
                self.registered.retain(|key| !victims.contains(key));
            }
            FenceKind::MirrorGeneration if epoch < self.generation => return None,
            FenceKind::MirrorGeneration => {
                self.generation = epoch;
                self.legs.insert(epoch, self.blocks.map(|block| block.value));
            }
            FenceKind::None { .. } => {}
        }
        Some(None)
    }

    /// Registers a new leader. Returns the epoch of the block list that its client knows.
    pub(super) fn enter(&mut self, identity: &str, barrier: Option<u64>) -> u64 {
        if self.kind == FenceKind::PersistentReservation {
            self.registered.insert(identity.to_owned());
        }
        // Without a barrier, the client has the map from before the fence.
        barrier.map_or(self.map.saturating_sub(1), |barrier| barrier.max(self.map))
    }

    fn refuses(&mut self, op: &DiskOp) -> bool {
        let block = &mut self.blocks[op.block];
        match self.kind {
            FenceKind::BlockList => {
                block.map = block.map.max(op.client_epoch);
                self.listed.get(&op.identity).is_some_and(|listed| *listed <= block.map)
            }
            FenceKind::PersistentReservation => !self.registered.contains(&op.identity),
            FenceKind::MirrorGeneration => op.write.is_some() && op.epoch < self.generation,
            FenceKind::None { .. } => false,
        }
    }

    /// Executes an operation. Returns the value of the block; `None`: the disk refuses the
    /// operation.
    pub(super) fn execute(&mut self, op: &DiskOp) -> Result<Option<u64>, String> {
        if self.refuses(op) {
            return Ok(None);
        }
        let lazily = self.kind == FenceKind::BlockList;
        let block = &mut self.blocks[op.block];
        let Some(value) = op.write else {
            block.epoch = block.epoch.max(op.epoch);
            let legs = self.legs.range(op.epoch + 1..).next();
            return Ok(Some(legs.map_or(block.value, |(_, leg)| leg[op.block])));
        };
        // An OSD executes a listed client's write only until a newer client's first operation.
        let newer = if lazily { block.epoch } else { self.begun };
        if op.epoch < newer {
            return Err(format!("a late write of epoch {} after {newer}: {op:?}", op.epoch));
        }
        if value < self.acked[op.block] {
            return Err(format!("a write undoes {}: {op:?}", self.acked[op.block]));
        }
        let is_old = lazily && op.epoch < self.begun;
        if self.excluded.contains(&op.host) && !is_old {
            return Err(format!("a write of an excluded host: {op:?}"));
        }
        block.value = value;
        block.epoch = op.epoch;
        Ok(Some(value))
    }
}
