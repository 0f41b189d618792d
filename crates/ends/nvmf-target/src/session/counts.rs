//! The I/O counters of a queue. Every command counts once, when its response is sent.

use super::{IoQueue, Queue, Session, Work};
use crate::meter::{Answered, MeterKind, Wait};
use crate::transport::Transport;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::IoCommand;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os;
use farblock_wire::Status;

impl IoQueue {
    /// Returns whether `nsid` has a meter: it is a namespace that exists, or the value for all
    /// namespaces. A host may send any other number, and such numbers get no meter.
    fn has_meter(&self, nsid: NamespaceId) -> bool {
        nsid == NamespaceId::ALL || self.meters.knows(nsid) || self.table.find(nsid).is_some()
    }
}

impl<T: Transport> Session<T> {
    /// Counts a command of an I/O queue before its response is sent.
    pub(super) fn count(&mut self, slot: SlotId, status: Status) {
        let Queue::Io(queue) = &mut self.queue else { return };
        let request = &self.requests[usize::from(slot.0)];
        let (kind, bytes) = match &request.work {
            Work::Io(IoCommand::Read { data, .. }) => (MeterKind::Read, data.length()),
            Work::Io(IoCommand::Write { data, .. }) => (MeterKind::Write, data.length()),
            Work::Io(_) | Work::Reserving { .. } => (MeterKind::Other, 0),
            // The target refused the command before parsing it.
            Work::None if !status.is_success() => (MeterKind::Other, 0),
            _ => return,
        };
        let took = request.began.map(os::elapsed);
        let nsid = NamespaceId(request.sqe.nsid.get());
        let answered = Answered { kind, bytes: bytes.into(), status, took };
        let namespace = queue.has_meter(nsid).then_some(nsid);
        queue.meters.count(namespace, &answered);
    }

    pub(super) fn count_wait(&mut self, nsid: Option<NamespaceId>, wait: Wait, ns: u64) {
        if let Queue::Io(queue) = &mut self.queue {
            let namespace = nsid.filter(|nsid| queue.has_meter(*nsid));
            queue.meters.count_wait(namespace, wait, ns);
        }
    }

    pub(super) fn count_storage_error(&mut self, slot: SlotId, is_media_error: bool) {
        let Queue::Io(queue) = &mut self.queue else { return };
        let nsid = NamespaceId(self.requests[usize::from(slot.0)].sqe.nsid.get());
        if queue.has_meter(nsid) {
            queue.meters.count_storage_error(nsid, is_media_error);
        }
    }
}
