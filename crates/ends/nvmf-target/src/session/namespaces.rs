//! The namespaces of a queue. Changes of namespaces also affect the queue's waiting commands.

use super::{Queue, Session, Work};
use crate::backings::Backings;
use crate::context::Context;
use crate::status;
use crate::transport::Transport;
use crate::volumes::VolumeId;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{IoCommand, NamespaceInfo, NamespaceTable, SubsystemId};
use farblock_proto::ids::NamespaceId;
use farblock_wire::Status;
use std::sync::Arc;

impl<T: Transport> Session<T> {
    pub(super) fn namespace_info(&self, nsid: NamespaceId) -> Option<NamespaceInfo> {
        let Queue::Io(queue) = &self.queue else { return None };
        queue.table.find(nsid).copied()
    }

    pub(super) fn volume(
        &mut self,
        cx: &mut Context,
        nsid: NamespaceId,
    ) -> Result<VolumeId, Status> {
        let Queue::Io(queue) = &mut self.queue else {
            // The connection was closed while the command waited.
            return Err(Status::ABORTED_SQ_DELETION);
        };
        if let Some(&volume) = queue.volumes.find(nsid) {
            return Ok(volume);
        }
        let backing = queue.backings.find(nsid).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        let volume = cx.volumes.open(&cx.reactor, backing).map_err(|error| {
            let what = backing.namespace.describe();
            tracing::error!(namespace = nsid.0, "cannot open {what}: {error}");
            status::of(error)
        })?;
        backing.losses.meet(&queue.host);
        queue.volumes.set(nsid, volume);
        Ok(volume)
    }

    /// Applies a subsystem's new list of namespaces. Checks again all commands that are not
    /// submitted yet: they must not exceed a namespace's new size, and must not access a new
    /// namespace under the old number.
    pub(crate) fn set_namespaces(
        &mut self,
        cx: &mut Context,
        subsystem: SubsystemId,
        table: &Arc<NamespaceTable>,
        backings: &Arc<Backings>,
    ) {
        let Some(queue) = self.queue.io_mut() else { return };
        // A queue that connected after this message was posted has this table or a newer one.
        let is_news = table.generation() > queue.table.generation();
        if queue.subsystem != subsystem || !is_news {
            return;
        }
        // First submit the reads that were deferred for prefetching, since they count as started.
        self.read_expected(cx, 0);
        let Some(queue) = self.queue.io_mut() else { return };
        queue.table = table.seen_by(&queue.host).seen_from(queue.port);
        queue.pace = backings.pace_of(&queue.host).cloned();
        if let Some(share) = self.share {
            cx.shares.set_weight(share, backings.weight_of(&queue.host));
        }
        let before = std::mem::replace(&mut queue.backings, Arc::clone(backings));
        queue.volumes.retain(|nsid| backings.agree(&before, nsid));
        queue.meters.forget();
        for index in 0..self.requests.len() {
            self.judge_again(cx, SlotId(index as u16), &before);
        }
        self.pace_again(cx, &before);
        self.list(cx);
    }

    fn judge_again(&mut self, cx: &mut Context, slot: SlotId, before: &Backings) {
        let Work::Io(command) = self.request(slot).work else { return };
        let request = self.request(slot);
        let is_under_way = request.operations > 0;
        if is_under_way && !request.has_steps_left() {
            return;
        }
        let Err(status) = self.judge(slot, &command, before) else { return };
        let request = self.request(slot);
        if is_under_way || request.awaited {
            // The session sends the response when the step has ended or the data have arrived.
            request.status = status;
            return;
        }
        self.withdraw(cx, slot);
        self.respond_and_release(cx, slot, status, 0);
    }

    fn judge(
        &mut self,
        slot: SlotId,
        command: &IoCommand,
        before: &Backings,
    ) -> Result<(), Status> {
        let sqe = self.request(slot).sqe;
        let Queue::Io(queue) = &self.queue else { return Ok(()) };
        let progress = &self.requests[usize::from(slot.0)].progress;
        let mut sources = progress.copying.iter().flat_map(|copying| copying.sources());
        let agree = |nsid| queue.backings.agree(before, nsid);
        if !agree(NamespaceId(sqe.nsid.get())) || !sources.all(agree) {
            return Err(Status::INVALID_NAMESPACE.with_dnr());
        }
        let again = IoCommand::parse(&sqe, &queue.table, T::REMOTE)?;
        debug_assert_eq!(again.data_from_host(), command.data_from_host());
        // Check the remaining ranges again, since they were checked against the old namespace.
        let info = queue.table.find(NamespaceId(sqe.nsid.get()));
        info.map_or(Ok(()), |info| progress.ranges.check(info))
    }
}
