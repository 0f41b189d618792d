//! A core's queues into the namespaces: opened at first use, shared by the core's connections.

use farblock_block::{BlockError, Completion, Geometry, Namespace, Op, Queue};
use farblock_proto::controller::SubsystemId;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::{Buffer, Reactor, TaskId};
use std::collections::HashMap;
use std::sync::Arc;

/// A core's queue, by number: an index that never changes while the core runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct VolumeId(usize);

struct Volume {
    namespace: Arc<dyn Namespace>,
    task: TaskId,
    queue: Box<dyn Queue>,
    /// Something may have completed since the last poll.
    dirty: bool,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Volumes {
    volumes: Vec<Volume>,
    index: HashMap<(SubsystemId, NamespaceId), VolumeId>,
    tasks: HashMap<TaskId, VolumeId>,
    dirty: Vec<VolumeId>,
}

impl Volumes {
    /// The queue into `namespace`, opened now if the core has none.
    pub(crate) fn open(
        &mut self,
        reactor: &Reactor,
        key: (SubsystemId, NamespaceId),
        namespace: &Arc<dyn Namespace>,
    ) -> Result<VolumeId, BlockError> {
        if let Some(&id) = self.index.get(&key)
            && Arc::ptr_eq(&self.volumes[id.0].namespace, namespace)
        {
            return Ok(id);
        }
        let task = reactor.add_task();
        let queue = namespace.open(reactor, task).inspect_err(|_| reactor.remove_task(task))?;
        let id = VolumeId(self.volumes.len());
        self.volumes.push(Volume { namespace: Arc::clone(namespace), task, queue, dirty: false });
        self.index.insert(key, id);
        self.tasks.insert(task, id);
        Ok(id)
    }

    pub(crate) fn geometry(&self, id: VolumeId) -> Geometry {
        self.volumes[id.0].namespace.geometry()
    }

    pub(crate) fn submit(&mut self, id: VolumeId, op: Op) {
        self.volumes[id.0].queue.submit(op);
        self.mark(id);
    }

    /// Says that the block at `lba` will be read soon.
    pub(crate) fn expect_read(&mut self, id: VolumeId, lba: u64) {
        self.volumes[id.0].queue.expect_read(lba);
    }

    /// Reads at once and without a copy, if the namespace can: appends the buffers.
    pub(crate) fn lend(
        &mut self,
        id: VolumeId,
        lba: u64,
        blocks: u32,
        into: &mut Vec<Buffer>,
    ) -> Option<Result<(), BlockError>> {
        self.volumes[id.0].queue.lend(lba, blocks, into)
    }

    /// Writes at once, from where the data are, if the namespace can.
    pub(crate) fn store(
        &mut self,
        id: VolumeId,
        lba: u64,
        blocks: u32,
        fua: bool,
        data: &[u8],
    ) -> Option<Result<(), BlockError>> {
        self.volumes[id.0].queue.store(lba, blocks, fua, data)
    }

    /// Notes that `task` is ready; false if it is none of ours.
    pub(crate) fn ready(&mut self, task: TaskId) -> bool {
        let Some(&id) = self.tasks.get(&task) else { return false };
        self.mark(id);
        true
    }

    fn mark(&mut self, id: VolumeId) {
        if !std::mem::replace(&mut self.volumes[id.0].dirty, true) {
            self.dirty.push(id);
        }
    }

    /// Appends everything that has completed.
    pub(crate) fn poll(&mut self, done: &mut Vec<Completion>) {
        while let Some(id) = self.dirty.pop() {
            let volume = &mut self.volumes[id.0];
            volume.dirty = false;
            volume.queue.poll(done);
        }
    }

    /// Closes every queue; nothing may be in flight.
    pub(crate) fn close(&mut self, reactor: &Reactor) {
        for volume in self.volumes.drain(..) {
            debug_assert_eq!(volume.queue.in_flight(), 0);
            reactor.remove_task(volume.task);
        }
        self.index.clear();
        self.tasks.clear();
    }
}
