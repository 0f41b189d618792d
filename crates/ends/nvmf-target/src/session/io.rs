//! I/O commands: parsing, block operations, and responses.

use super::trace::Step;
use super::{Queue, Session, SessionRequest, Work};
use crate::context::Context;
use crate::events::Event;
use crate::fence::{Change, EndingId};
use crate::lifecycle::{Gate, Lifecycle, Path};
use crate::notices::NoticeKind;
use crate::route::token;
use crate::status;
use crate::transport::Transport;
use crate::volumes::VolumeId;
use farblock_block::{BlockError, Op};
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{Fuse, IoCommand};
use farblock_proto::ids::{BlockCount, Lba, NamespaceId};
use farblock_reactor::{Buffer, os};
use farblock_wire::{Sqe, Status};
use std::sync::Arc;

impl<T: Transport> Session<T> {
    pub(super) fn io_command(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) {
        let Some(fuse) = self.fuse(cx, slot, sqe) else { return };
        let Queue::Io(queue) = &self.queue else { unreachable!("this is an I/O queue") };
        queue.traffic.mark();
        let write_through = queue.traffic.is_write_through();
        let command = match IoCommand::parse(sqe, &queue.table, T::REMOTE) {
            Ok(IoCommand::Fabrics) => {
                self.io_fabrics_command(cx, slot, sqe);
                return;
            }
            Ok(command) if write_through => command.written_through(),
            Ok(command) => command,
            Err(status) => {
                // Add at most one entry per tick of the event loop to the error log: this takes the
                // registry's lock, which a host with bad commands must not keep busy.
                if !std::mem::replace(&mut self.tick.logged_error, true) {
                    let (controller, queue) = (queue.controller, queue.id);
                    cx.shared.record_error(controller, queue, sqe, status);
                }
                self.respond(slot, status, 0);
                return;
            }
        };
        let checked = match &command {
            IoCommand::Copy { plan, .. } => self.check_copy(plan),
            _ if fuse == Fuse::Second => self.check_pair(slot, &command),
            _ => Ok(()),
        };
        if let Err(status) = checked {
            self.respond(slot, status, 0);
            return;
        }
        let request = self.request(slot);
        request.work = Work::Io(command);
        request.life = Lifecycle::new(Path::of(&command, fuse));
        self.trace(slot, Step::Arrives(&|| describe(&command).1));
        if cx.shares.is_shared() {
            self.take_share(cx, slot);
        }
        self.admit(cx, slot);
    }

    /// Returns the number of buffer bytes that a command needs until its response.
    pub(super) fn buffer_bytes(&mut self, slot: SlotId) -> usize {
        let Work::Io(command) = &self.request(slot).work else { return 0 };
        let bytes = match command {
            IoCommand::Read { data, .. } | IoCommand::Write { data, .. } => data.length(),
            IoCommand::Deallocate { data, .. } | IoCommand::Copy { data, .. } => data.length(),
            IoCommand::Compare { data, .. } => data.length() * 2,
            IoCommand::Reserve { data, .. } => data.length(),
            _ => 0,
        };
        bytes as usize
    }

    /// Submits an admitted command to its namespace. If the command must pass further gates first,
    /// submits nothing and returns the path of these gates.
    pub(super) fn submit_io(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        command: IoCommand,
    ) -> Result<Option<Path>, Status> {
        match command {
            IoCommand::Read { .. } => return Ok(Some(Path::Read)),
            IoCommand::Write { namespace, lba, blocks, fua, .. } => {
                let volume = self.volume(cx, namespace)?;
                let buffer = self.request(slot).buffer.take().expect("pulled into a buffer");
                let fua = fua && !os::has_mistake("target: FUA is forgotten");
                let op = Op { fua, ..Op::write(lba.0, blocks.0, buffer, self.token(slot)) };
                self.submit(cx, slot, volume, op);
            }
            IoCommand::Compare { .. }
            | IoCommand::Verify { .. }
            | IoCommand::WriteZeroes { .. } => return Ok(Some(Path::Step)),
            IoCommand::Flush { namespace } => self.flush(cx, slot, namespace)?,
            IoCommand::Deallocate { namespace, ranges, .. } => {
                return self.prepare_deallocation(cx, slot, namespace, ranges);
            }
            IoCommand::Copy { plan, .. } => return self.prepare_copy(cx, slot, &plan),
            IoCommand::Advise { .. } => self.respond(slot, Status::SUCCESS, 0),
            IoCommand::Reserve { namespace, command, .. } => {
                self.reserve(cx, slot, namespace, command)?;
            }
            IoCommand::Fabrics => unreachable!("a fabrics command starts no I/O"),
        }
        Ok(None)
    }

    /// Reads from `volume`. If it is `None`, looks up the namespace's queue.
    pub(super) fn read(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        volume: Option<VolumeId>,
    ) -> Result<(), Status> {
        let Work::Io(IoCommand::Read { namespace, lba, blocks, fua, data }) =
            self.request(slot).work
        else {
            unreachable!("the command is a Read")
        };
        let volume = volume.map_or_else(|| self.volume(cx, namespace), Ok)?;
        if let Some(result) = cx.volumes.read_borrowed(volume, lba.0, blocks.0, &mut cx.borrowed) {
            self.trace(slot, Step::AtOnce);
            return self.answer_borrowed(cx, slot, data.length(), result);
        }
        self.tick.bytes += data.length() as usize;
        let buffer = cx.reactor.buffers().take(data.length() as usize);
        let op = Op { fua, ..Op::read(lba.0, blocks.0, buffer, self.token(slot)) };
        self.submit(cx, slot, volume, op);
        Ok(())
    }

    /// Responds to a read that the namespace completed at once, with the borrowed data or with an
    /// error.
    fn answer_borrowed(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        length: u32,
        result: Result<(), BlockError>,
    ) -> Result<(), Status> {
        if result.is_err() {
            assert!(cx.borrowed.is_empty(), "the queue returned buffers and an error");
            self.note_result(cx, slot, result);
            return Err(status::of_result(result));
        }
        self.push(slot, length, cx.borrowed.drain(..), Status::SUCCESS, 0);
        Ok(())
    }

    /// Executes a write from the receive buffer and responds, if the namespace can write at once.
    /// This saves a copy of the data. Returns false if the namespace cannot write at once.
    pub(super) fn write_inline(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        command: &IoCommand,
        data: &[u8],
    ) -> bool {
        let IoCommand::Write { namespace, lba, blocks, fua, .. } = *command else { return false };
        let Ok(volume) = self.volume(cx, namespace) else { return false };
        let Some(result) = cx.volumes.write_inline(volume, lba.0, blocks.0, fua, data) else {
            return false;
        };
        self.trace(slot, Step::AtOnce);
        self.note_result(cx, slot, result);
        self.request(slot).status = status::of_result(result);
        self.finish(cx, slot);
        true
    }

    pub(super) fn token(&self, slot: SlotId) -> u64 {
        token(self.route.key, slot)
    }

    pub(super) fn submit(&mut self, cx: &mut Context, slot: SlotId, volume: VolumeId, op: Op) {
        self.trace(slot, Step::Submits(op.lba, op.blocks));
        self.request(slot).operations += 1;
        self.pending.operations += 1;
        cx.volumes.submit(volume, op);
    }

    fn flush(&mut self, cx: &mut Context, slot: SlotId, nsid: NamespaceId) -> Result<(), Status> {
        if nsid != NamespaceId::ALL {
            let volume = self.volume(cx, nsid)?;
            let backing = match &self.queue {
                Queue::Io(queue) => queue.backings.find(nsid),
                _ => None,
            };
            let losses = backing.map(|backing| Arc::clone(&backing.losses));
            self.request(slot).losses = losses;
            let op = Op::flush(self.token(slot));
            self.submit(cx, slot, volume, op);
            return Ok(());
        }
        self.request(slot).losses = None;
        let table = match &self.queue {
            Queue::Io(queue) => Arc::clone(&queue.table),
            _ => return Err(Status::ABORTED_SQ_DELETION),
        };
        // Open every queue before the first submission, so that an error leaves no operation
        // behind.
        let volumes: Result<Vec<_>, _> = table.iter().map(|(id, _)| self.volume(cx, id)).collect();
        let volumes = volumes?;
        if volumes.is_empty() {
            self.respond_and_release(cx, slot, Status::SUCCESS, 0);
        }
        for volume in volumes {
            let op = Op::flush(self.token(slot));
            self.submit(cx, slot, volume, op);
        }
        Ok(())
    }

    fn note_result(&mut self, cx: &Context, slot: SlotId, result: Result<(), BlockError>) {
        if let Err(error) = result
            && is_trouble(error)
        {
            self.count_storage_error(slot, is_media_error(error));
            self.note_trouble(cx, slot, error);
        }
    }

    #[cold]
    fn note_trouble(&mut self, cx: &Context, slot: SlotId, error: BlockError) {
        let Work::Io(command) = self.request(slot).work else { return };
        let Queue::Io(queue) = &self.queue else { return };
        let (namespace, what) = describe(&command);
        if let Some(owner) = &self.owner {
            let sentence = format!("{what} failed: {error}");
            cx.shared.store_errors.note((owner.subsystem, namespace), sentence);
        }
        cx.notice(NoticeKind::Storage(namespace), self.peer.ip(), || {
            tracing::warn!(
                host = %queue.host, namespace = namespace.0,
                "{what} failed in the target's storage: {error}"
            );
            cx.shared.observed.tell(&Event::StorageFailed {
                nsid: namespace.0,
                host: queue.host.clone(),
                what: format!("{what} failed in the target's storage: {error}"),
            });
        });
    }

    pub(crate) fn complete(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        result: Result<(), BlockError>,
        buffer: Option<Buffer>,
    ) {
        self.pending.operations -= 1;
        self.note_result(cx, slot, result);
        if let Err(BlockError::WriteFailed | BlockError::NoSpace) = result {
            self.note_loss(slot);
        }
        let gone = !self.is_serving();
        let request = self.request(slot);
        request.operations -= 1;
        if request.status.is_success() {
            request.status = status::of_result(result);
        }
        if let Some(buffer) = buffer {
            let place = if matches!(request.work, Work::Io(IoCommand::Compare { .. })) {
                &mut request.second
            } else {
                &mut request.buffer
            };
            *place = Some(buffer);
        }
        if request.operations == 0 {
            if self.fused.is_some() && self.ends_half(cx, slot) {
                // The other half of the pair continues, or both halves have ended.
            } else if self.writes_what_it_read(cx, slot) || self.ends_step(cx, slot) {
                // The command continues, or waits for its next turn.
            } else if gone {
                self.release(cx, slot);
            } else {
                self.finish(cx, slot);
            }
        }
        self.list(cx);
    }

    /// Records a failed flush, so that every other host of the namespace gets an error, too. If the
    /// host that sent the flush has disconnected, its next connection also gets the error.
    #[cold]
    fn note_loss(&mut self, slot: SlotId) {
        let Work::Io(IoCommand::Flush { .. }) = self.request(slot).work else { return };
        let losses = self.request(slot).losses.clone();
        let queue = match &self.queue {
            Queue::Io(queue) => Some(queue),
            _ => None,
        };
        let told = queue.filter(|_| self.is_serving()).map(|queue| queue.host.as_str());
        match (losses, queue) {
            (Some(losses), _) => losses.add(told),
            // A Flush of all namespaces does not tell which namespace failed, so record a loss for
            // each.
            (None, Some(queue)) => queue.backings.iter().for_each(|(_, it)| it.losses.add(told)),
            (None, None) => {}
        }
    }

    /// Returns whether a successful flush must report another host's failed flush to this host.
    fn hears_of_loss(&mut self, slot: SlotId) -> bool {
        let losses = self.request(slot).losses.take();
        let Queue::Io(queue) = &self.queue else { return false };
        match losses {
            Some(losses) => losses.take(&queue.host),
            None => queue.backings.iter().fold(false, |any, (_, it)| {
                // Take the losses of every namespace, since one error reports all of them.
                it.losses.take(&queue.host) || any
            }),
        }
    }

    /// Responds to a command after all its block operations have ended.
    fn finish(&mut self, cx: &mut Context, slot: SlotId) {
        let request = self.request(slot);
        let status = request.status;
        if !status.is_success() {
            self.respond_and_release(cx, slot, status, 0);
            return;
        }
        match request.work {
            Work::Io(IoCommand::Read { data, .. }) => {
                let buffer = request.buffer.take();
                self.push(slot, data.length(), buffer, status, 0);
            }
            Work::Io(IoCommand::Compare { .. }) => {
                let equal = request.buffer.as_deref() == request.second.as_deref();
                let status = if equal { status } else { Status::COMPARE_FAILURE.with_dnr() };
                self.respond_and_release(cx, slot, status, 0);
            }
            Work::Io(IoCommand::Flush { .. }) => {
                let lost = self.hears_of_loss(slot);
                let status = if lost { status::of(BlockError::WriteFailed) } else { status };
                self.respond_and_release(cx, slot, status, 0);
            }
            _ => self.respond_and_release(cx, slot, status, 0),
        }
    }

    /// Handles the notice that the changes of a closed queue are known or have ended. Starts the
    /// commands that no longer wait for the changes of any closed queue.
    pub(crate) fn on_notice(&mut self, cx: &mut Context, news: EndingId) {
        let Some(fence) = &mut self.fence else { return };
        for (slot, _) in fence.on_notice(news) {
            self.wake(cx, slot, Gate::Fence);
        }
        self.read_expected(cx, 0);
        self.list(cx);
    }

    pub(super) fn changes_under_way(&self) -> Vec<Change> {
        let change = |request: &SessionRequest| match &request.work {
            Work::Io(command) if request.operations > 0 => Change::of(command),
            _ => None,
        };
        self.requests.iter().filter_map(change).collect()
    }
}

fn is_media_error(error: BlockError) -> bool {
    matches!(error, BlockError::ReadFailed | BlockError::WriteFailed)
}

/// Returns whether the storage caused the error, and not the host's command.
fn is_trouble(error: BlockError) -> bool {
    use BlockError::{Conflict, Denied, Disconnected, NoResources, NoSpace, NotReady};
    let of_storage = matches!(error, NoSpace | Disconnected | NoResources | NotReady);
    // Only remote namespaces return Conflict or Denied. These errors mean that the remote target
    // refuses this process, so the host's command is not at fault.
    is_media_error(error) || of_storage || matches!(error, Conflict | Denied)
}

/// Returns a command's namespace and a description of its action, for messages.
fn describe(command: &IoCommand) -> (NamespaceId, String) {
    let blocks = |what: &str, lba: Lba, blocks: BlockCount| {
        let plural = if blocks.0 == 1 { "" } else { "s" };
        format!("{what} of {} block{plural} at LBA {}", blocks.0, lba.0)
    };
    match *command {
        IoCommand::Read { namespace, lba, blocks: count, .. } => {
            (namespace, blocks("a read", lba, count))
        }
        IoCommand::Write { namespace, lba, blocks: count, .. } => {
            (namespace, blocks("a write", lba, count))
        }
        IoCommand::Compare { namespace, lba, blocks: count, .. } => {
            (namespace, blocks("a compare", lba, count))
        }
        IoCommand::Verify { namespace, lba, blocks: count, .. } => {
            (namespace, blocks("a verify", lba, count))
        }
        IoCommand::WriteZeroes { namespace, lba, blocks: count, .. } => {
            (namespace, blocks("a zeroing", lba, count))
        }
        IoCommand::Flush { namespace } => (namespace, "a flush".to_owned()),
        IoCommand::Deallocate { namespace, .. } => (namespace, "a deallocation".to_owned()),
        IoCommand::Copy { plan, .. } => (plan.namespace, format!("a copy to LBA {}", plan.lba.0)),
        IoCommand::Advise { .. } | IoCommand::Reserve { .. } | IoCommand::Fabrics => {
            (NamespaceId::ALL, "a command without blocks".to_owned())
        }
    }
}
