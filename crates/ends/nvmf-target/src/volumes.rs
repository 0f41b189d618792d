//! A core's queues into the stores of namespaces (volumes). A core opens a queue when a namespace
//! is added or first used. The core's connections share the queue. When a namespace is removed, the
//! queue closes after its last operation.

use crate::backings::{Backing, BackingId};
use crate::claim::Claim;
use crate::permit::Permit;
use crate::removal::Share;
use farblock_block::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Buffer, Reactor, TaskId, TaskMap};
use std::collections::HashMap;
use std::sync::Arc;

/// The index of a core's queue. The core reuses indexes, so do not keep the index of a closed
/// queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct VolumeId(pub(crate) usize);

struct Volume {
    backing: BackingId,
    namespace: Arc<dyn Namespace>,
    task: TaskId,
    queue: Box<dyn Queue>,
    permit: Option<Arc<Permit>>,
    /// Whether operations may have completed since the last poll.
    dirty: bool,
}

/// The blocks that one connection has claimed, and the operations that are parked until the claim
/// ends.
struct Claimed {
    claim: Arc<Claim>,
    parked: Vec<(VolumeId, Op)>,
}

impl Claimed {
    fn stops(&self, backing: BackingId, lba: u64, blocks: u32) -> bool {
        let claimed = &self.claim.blocks;
        let end = lba.saturating_add(blocks.into());
        self.claim.backing == backing && lba < claimed.end && claimed.start < end
    }
}

/// The queues of a core.
#[derive(Default)]
pub(crate) struct Volumes {
    volumes: Vec<Option<Volume>>,
    free: Vec<VolumeId>,
    index: HashMap<BackingId, VolumeId>,
    tasks: TaskMap<VolumeId>,
    dirty: Vec<VolumeId>,
    /// The queues to close when they are idle. After the close, the core drops the
    /// [`Share`](crate::removal::Share), for which a [`Removal`](crate::removal::Removal) waits.
    retired: Vec<(VolumeId, Share)>,
    /// The queues for which a [`Quiet`](crate::quiet::Quiet) waits. When a queue is idle, the core
    /// drops the share.
    settling: Vec<(VolumeId, Share)>,
    /// Parked operations that ended because their permit had expired.
    refused: Vec<Completion>,
    /// The active claims. There are few at a time, so a list suffices.
    claimed: Vec<Claimed>,
}

impl Volumes {
    /// Returns the queue into `backing`. Opens the queue if the core has none.
    pub(crate) fn open(
        &mut self,
        reactor: &Reactor,
        backing: &Backing,
    ) -> Result<VolumeId, BlockError> {
        if let Some(&id) = self.index.get(&backing.id) {
            return Ok(id);
        }
        let namespace = Arc::clone(&backing.namespace);
        let task = reactor.add_task();
        let queue = namespace.open(reactor, task).inspect_err(|_| reactor.remove_task(task))?;
        let permit = backing.permit.clone();
        let volume = Volume { backing: backing.id, namespace, task, queue, permit, dirty: false };
        let id = self.free.pop().unwrap_or_else(|| {
            self.volumes.push(None);
            VolumeId(self.volumes.len() - 1)
        });
        self.volumes[id.0] = Some(volume);
        self.index.insert(backing.id, id);
        self.tasks.insert(task, id);
        Ok(id)
    }

    fn at(&mut self, id: VolumeId) -> &mut Volume {
        self.volumes[id.0].as_mut().expect("every identifier belongs to an open volume")
    }

    pub(crate) fn geometry(&mut self, id: VolumeId) -> Geometry {
        self.at(id).namespace.geometry()
    }

    pub(crate) fn submit(&mut self, id: VolumeId, op: Op) {
        match self.claim_on(id, &op) {
            Some(claimed) => claimed.parked.push((id, op)),
            None => self.submit_claimed(id, op),
        }
    }

    /// Submits a change of claimed blocks, for the connection that holds the claim.
    pub(crate) fn submit_claimed(&mut self, id: VolumeId, op: Op) {
        self.at(id).queue.submit(op);
        self.mark(id);
    }

    /// Returns the claim that an operation must wait for, if any.
    fn claim_on(&mut self, id: VolumeId, op: &Op) -> Option<&mut Claimed> {
        if self.claimed.is_empty() || matches!(op.command, Command::Read | Command::Flush) {
            return None;
        }
        let backing = self.at(id).backing;
        self.claimed.iter_mut().find(|claimed| claimed.stops(backing, op.lba, op.blocks))
    }

    /// Parks changes of these blocks from now on.
    pub(crate) fn claim(&mut self, claim: Arc<Claim>) {
        self.claimed.push(Claimed { claim, parked: Vec::new() });
    }

    /// Submits the parked changes of a claim.
    pub(crate) fn unclaim(&mut self, claim: &Claim) {
        let Some(place) = self.claimed.iter().position(|it| *it.claim == *claim) else { return };
        for (id, op) in self.claimed.swap_remove(place).parked {
            let permit = self.at(id).permit.clone();
            match permit.is_none_or(|permit| permit.is_valid()) {
                true => self.submit(id, op),
                false => {
                    self.mark(id);
                    // After a path error, the host sends the command on another path.
                    self.refused.push(op.complete(Err(BlockError::Disconnected)));
                }
            }
        }
    }

    /// Announces to the namespace that a read of the block at `lba` follows soon.
    pub(crate) fn expect_read(&mut self, id: VolumeId, lba: u64) {
        self.at(id).queue.expect_read(lba);
    }

    /// Appends the buffers with the data, if the namespace can read at once and without a copy.
    pub(crate) fn read_borrowed(
        &mut self,
        id: VolumeId,
        lba: u64,
        blocks: u32,
        into: &mut Vec<Buffer>,
    ) -> Option<Result<(), BlockError>> {
        self.at(id).queue.read_borrowed(lba, blocks, into)
    }

    /// Writes directly from the received data, if the namespace can write at once.
    pub(crate) fn write_inline(
        &mut self,
        id: VolumeId,
        lba: u64,
        blocks: u32,
        fua: bool,
        data: &[u8],
    ) -> Option<Result<(), BlockError>> {
        if !self.claimed.is_empty() {
            let backing = self.at(id).backing;
            if self.claimed.iter().any(|claimed| claimed.stops(backing, lba, blocks)) {
                return None;
            }
        }
        self.at(id).queue.write_inline(lba, blocks, fua, data)
    }

    /// Notes that `task` is ready. Returns false if `task` belongs to no queue.
    pub(crate) fn ready(&mut self, task: TaskId) -> bool {
        let Some(&id) = self.tasks.get(task) else { return false };
        self.mark(id);
        true
    }

    fn mark(&mut self, id: VolumeId) {
        if !std::mem::replace(&mut self.at(id).dirty, true) {
            self.dirty.push(id);
        }
    }

    /// Appends all completed operations to `done`.
    pub(crate) fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.refused);
        while let Some(id) = self.dirty.pop() {
            let volume = self.at(id);
            volume.dirty = false;
            volume.queue.poll(done);
        }
    }

    /// Retires the queue into `backing`. The caller submits no further operation to it. When the
    /// queue is idle, it closes, and the core drops `share`.
    pub(crate) fn retire(&mut self, backing: BackingId, share: Share) {
        if let Some(id) = self.index.remove(&backing) {
            self.retired.push((id, share));
        }
    }

    /// Drops `share` once the queue into `backing` is idle.
    pub(crate) fn settle(&mut self, backing: BackingId, share: Share) {
        if let Some(&id) = self.index.get(&backing) {
            self.settling.push((id, share));
        }
    }

    /// Drops the shares of the watched queues that are idle.
    #[inline]
    pub(crate) fn release_settled(&mut self) {
        if !self.settling.is_empty() {
            let mut settling = std::mem::take(&mut self.settling);
            settling.retain(|(id, _)| !self.is_idle(*id));
            self.settling = settling;
        }
    }

    /// Returns whether a queue has neither operations in flight nor parked ones, and has delivered
    /// all completions.
    fn is_idle(&self, id: VolumeId) -> bool {
        let volume = self.volumes[id.0].as_ref().expect("the volume is still open");
        let mut parked = self.claimed.iter().flat_map(|claimed| &claimed.parked);
        !volume.dirty && volume.queue.in_flight() == 0 && parked.all(|(other, _)| *other != id)
    }

    /// Closes one retired queue that is idle. Returns the closed queue.
    pub(crate) fn close_retired(&mut self, reactor: &Reactor) -> Option<VolumeId> {
        let place = self.retired.iter().position(|(id, _)| self.is_idle(*id))?;
        // Keep `_share` until the queue is closed: its drop notifies the removal.
        let (id, _share) = self.retired.swap_remove(place);
        self.close_one(reactor, id);
        self.free.push(id);
        Some(id)
    }

    fn close_one(&mut self, reactor: &Reactor, id: VolumeId) {
        let Some(Volume { backing, task, queue, .. }) = self.volumes[id.0].take() else { return };
        debug_assert_eq!(queue.in_flight(), 0);
        drop(queue);
        self.settling.retain(|(settling, _)| *settling != id);
        self.index.remove(&backing);
        self.tasks.remove(task);
        reactor.remove_task(task);
    }

    /// Closes every queue. No queue may have operations in flight.
    pub(crate) fn close(&mut self, reactor: &Reactor) {
        for index in 0..self.volumes.len() {
            self.close_one(reactor, VolumeId(index));
        }
        self.retired.clear();
    }
}
