//! Copy. Each step reads one part of a range into a buffer, then writes the buffer.
//!
//! [`super::turns`] starts the steps in turn. [`super::paced`] charges their costs to the rate
//! limits.
//!
//! ```text
//!   ranges parsed --> rate limits --> turn --> reads --> writes --> done
//!                         ^                 more parts      |
//!                         +---------------------------------+
//! ```
//!
//! Each namespace has a line of waiting steps. A step waits in the line of its source namespace.
//! The core charges the step's bytes to this line while the step reads, and to the line of the
//! destination namespace while it writes. So a line is charged only for operations at its
//! namespace, and the core can remove the line when the namespace closes.

use super::{Queue, Session, Work};
use crate::context::Context;
use crate::lifecycle::Path;
use crate::limits;
use crate::pace::{Cost, PaceKind};
use crate::transport::Transport;
use farblock_block::Op;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{CopyPart, CopyPlan, CopyRanges, IoCommand};
use farblock_proto::ids::NamespaceId;
use farblock_wire::Status;

pub(super) struct Copying {
    ranges: CopyRanges,
    reading: Option<CopyPart>,
}

impl Copying {
    /// Returns whether blocks remain that the Copy has not started to read.
    pub(super) fn has_more(&self) -> bool {
        self.ranges.has_more()
    }

    /// Returns whether the step under way still reads and has not changed anything.
    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Returns the index of the first range that is not completely copied.
    pub(super) fn copied(&self) -> usize {
        self.ranges.copied()
    }

    /// Returns the namespaces that the command still has to read.
    pub(super) fn sources(&self) -> impl Iterator<Item = NamespaceId> {
        self.ranges.sources().map(|source| source.namespace)
    }
}

impl<T: Transport> Session<T> {
    /// Checks whether the host may use this form of Copy.
    pub(super) fn check_copy(&self, plan: &CopyPlan) -> Result<(), Status> {
        match &self.queue {
            Queue::Io(queue) if plan.across && !queue.traffic.copies_across() => {
                Err(Status::INVALID_FIELD.with_dnr())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn prepare_copy(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        plan: &CopyPlan,
    ) -> Result<Option<Path>, Status> {
        let list = self.request(slot).buffer.take().expect("pulled into a buffer");
        let parsed = match &self.queue {
            Queue::Io(queue) => CopyRanges::parse(&list, plan, &queue.table),
            _ => Err(Status::ABORTED_SQ_DELETION),
        };
        cx.reactor.buffers().give(list);
        let copying = Copying { ranges: parsed?, reading: None };
        copying.sources().try_for_each(|source| self.check_read_access(source))?;
        self.request(slot).progress.copying = Some(Box::new(copying));
        Ok(Some(Path::CopyStep))
    }

    fn copying(&mut self, slot: SlotId) -> Option<&mut Copying> {
        self.request(slot).progress.copying.as_deref_mut()
    }

    /// Returns the part for the next step. The caller must still shorten the part to the transfer
    /// limits of the namespaces.
    fn next_part(&mut self, slot: SlotId) -> Option<CopyPart> {
        let Work::Io(IoCommand::Copy { plan, .. }) = self.request(slot).work else { return None };
        let block_size = self.namespace_info(plan.namespace)?.block_size;
        self.copying(slot)?.ranges.peek(limits::STEP_BYTES as u32 / block_size)
    }

    /// Returns the costs of the next step: its write at the destination, and its read at the
    /// source.
    pub(super) fn copy_costs(&mut self, slot: SlotId) -> Option<(Cost, Cost)> {
        let part = self.next_part(slot)?;
        let block_size = self.namespace_info(part.namespace)?.block_size;
        let bytes = u64::from(part.from.blocks.0) * u64::from(block_size);
        let cost = |namespace, kind| Cost::new(namespace, kind, bytes);
        Some((cost(part.namespace, PaceKind::Write), cost(part.from.namespace, PaceKind::Read)))
    }

    pub(super) fn read_to_copy(&mut self, cx: &mut Context, slot: SlotId) -> Result<(), Status> {
        let part = self.next_part(slot).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        self.check_part(&part)?;
        self.check_read_access(part.from.namespace)?;
        let from = self.volume(cx, part.from.namespace)?;
        let into = self.volume(cx, part.namespace)?;
        let geometry = cx.volumes.geometry(from);
        let limits = [geometry.max_blocks, cx.volumes.geometry(into).max_blocks];
        let most = limits.into_iter().filter(|most| *most != 0).min();
        let copying = self.copying(slot).expect("the Copy has parts left");
        let most = most.unwrap_or(u32::MAX).min(part.from.blocks.0);
        let part = copying.ranges.peek(most).expect("the Copy has parts left");
        copying.reading = Some(part);
        let bytes = (part.from.blocks.0 * geometry.block_size) as usize;
        self.begin_step(cx, slot, bytes);
        let buffer = cx.reactor.buffers().take(bytes);
        let op = Op::read(part.from.lba.0, part.from.blocks.0, buffer, self.token(slot));
        self.submit(cx, slot, from, op);
        Ok(())
    }

    /// Handles the end of an operation of a command. If the operation was the read of a Copy,
    /// starts the write and returns true.
    pub(super) fn writes_what_it_read(&mut self, cx: &mut Context, slot: SlotId) -> bool {
        let is_serving = self.is_serving();
        let request = self.request(slot);
        let succeeded = request.status.is_success();
        let Some(copying) = &mut request.progress.copying else { return false };
        let Some(part) = copying.reading.take() else {
            if succeeded {
                copying.ranges.written();
            }
            return false;
        };
        if !succeeded || !is_serving {
            return false;
        }
        let written = self.write_copied(cx, slot, &part);
        if let Err(status) = written {
            self.request(slot).status = status;
        }
        written.is_ok()
    }

    fn write_copied(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        part: &CopyPart,
    ) -> Result<(), Status> {
        let Work::Io(command) = self.request(slot).work else {
            unreachable!("the command is a Copy")
        };
        self.check_permit(slot)?;
        self.check_access(slot)?;
        // The namespaces may have been replaced or have shrunk since the read.
        self.check_part(part)?;
        let IoCommand::Copy { fua, .. } = command else { unreachable!("the command is a Copy") };
        let volume = self.volume(cx, part.namespace)?;
        self.move_step(cx, slot, volume);
        let request = self.request(slot);
        let buffer = request.buffer.take().expect("read into a buffer");
        request.progress.copying.as_mut().expect("the command is a Copy").ranges.begin(part);
        let op = Op::write(part.to.0, part.from.blocks.0, buffer, self.token(slot));
        self.submit(cx, slot, volume, Op { fua, ..op });
        Ok(())
    }

    fn check_part(&self, part: &CopyPart) -> Result<(), Status> {
        match &self.queue {
            Queue::Io(queue) => part.check(&queue.table),
            _ => Err(Status::ABORTED_SQ_DELETION),
        }
    }

    /// Checks whether reservations let the host read a source namespace.
    fn check_read_access(&self, namespace: NamespaceId) -> Result<(), Status> {
        self.limits.as_ref().map_or(Ok(()), |limits| limits.check_read(namespace))
    }
}
