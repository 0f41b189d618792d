//! I/O commands: from the wire to block operations and back.

use super::{Connection, Session, Work, token};
use crate::core::Context;
use crate::limits;
use crate::status;
use crate::volumes::VolumeId;
use farblock_block::{BlockError, Op};
use farblock_proto::capsule::DataPointer;
use farblock_proto::controller::{DeallocateRanges, IoCommand, NamespaceTable, SubsystemId};
use farblock_proto::ids::{BlockCount, Lba, NamespaceId};
use farblock_proto::tcp::SlotId;
use farblock_reactor::Buffer;
use farblock_wire::{Sqe, Status};
use std::sync::Arc;

impl Connection {
    /// A command on an I/O queue.
    pub(super) fn io_command(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) {
        let Session::Io(session) = &self.session else { unreachable!("checked by the caller") };
        session.traffic.mark();
        let command = match IoCommand::parse(sqe, &session.table) {
            Ok(IoCommand::Fabrics) => {
                self.io_fabrics_command(cx, slot, sqe);
                return;
            }
            Ok(command) => command,
            Err(status) => {
                // One a tick: the log is behind the registry's lock, which a host that sends
                // nothing but bad commands must not hold all the time.
                if !std::mem::replace(&mut self.logged_error, true) {
                    let (controller, queue) = (session.controller, session.queue);
                    cx.shared.record_error(controller, queue, sqe, status);
                }
                self.respond(slot, status, 0);
                return;
            }
        };
        self.request(slot).work = Work::Io(command);
        // Data in the capsule comes now or never; all else keeps its turn.
        let in_capsule = matches!(command.data_from_host(), Some(DataPointer::InCapsule { .. }));
        let waits = !in_capsule && !self.waiting.is_empty();
        if waits || !self.start_io(cx, slot, command) {
            self.waiting.push_back(slot);
            cx.starve(self.route.key, &mut self.starving);
        }
    }

    /// Starts a command: its data transfer if it brings data, else its block operations. False if
    /// it has to wait for buffers.
    pub(super) fn start_io(&mut self, cx: &mut Context, slot: SlotId, command: IoCommand) -> bool {
        let from_host = command.data_from_host();
        let bytes = self.buffer_bytes(&command);
        if matches!(from_host, Some(DataPointer::InCapsule { .. })) {
            self.hold(cx, slot, bytes);
        } else if bytes > 0 && !self.admit(cx, slot, bytes) {
            return false;
        }
        match from_host {
            None => self.submit_io(cx, slot, command),
            Some(pointer) => {
                if let Err(status) = self.pull(cx, slot, pointer) {
                    self.respond_and_release(cx, slot, status, 0);
                }
            }
        }
        true
    }

    /// Bytes of buffers that a command needs until it is answered.
    fn buffer_bytes(&self, command: &IoCommand) -> usize {
        let bytes = match *command {
            IoCommand::Read { data, .. } | IoCommand::Write { data, .. } => data.length(),
            IoCommand::Deallocate { data, .. } => data.length(),
            IoCommand::Compare { data, .. } => data.length() * 2,
            IoCommand::Verify { namespace, blocks, .. } => self.verified_bytes(namespace, blocks),
            _ => 0,
        };
        bytes as usize
    }

    /// Bytes that one step of a Verify reads.
    fn verified_bytes(&self, namespace: NamespaceId, blocks: BlockCount) -> u32 {
        let Session::Io(session) = &self.session else { return 0 };
        let Some(info) = session.table.find(namespace) else { return 0 };
        // At most 65536 blocks of at most 64 KiB: 32 bits are just too few.
        let most_blocks = if info.max_blocks == 0 { u32::MAX } else { info.max_blocks };
        let bytes = u64::from(blocks.0.min(most_blocks)) * u64::from(info.block_size);
        let most = session.table.max_transfer_bytes().max(info.block_size);
        bytes.min(u64::from(most)) as u32
    }

    /// Hands a command whose data is here to the namespace.
    pub(super) fn submit_io(&mut self, cx: &mut Context, slot: SlotId, command: IoCommand) {
        if let Err(status) = self.try_submit(cx, slot, command) {
            self.respond_and_release(cx, slot, status, 0);
        }
    }

    fn try_submit(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        command: IoCommand,
    ) -> Result<(), Status> {
        match command {
            IoCommand::Read { namespace, lba, .. } => {
                let volume = self.volume(cx, namespace)?;
                cx.volumes.expect_read(volume, lba.0);
                self.expected.push_back((slot, volume));
                self.read_expected(cx, limits::READS_AHEAD);
            }
            IoCommand::Compare { namespace, lba, blocks, data, .. } => {
                let volume = self.volume(cx, namespace)?;
                let buffer = cx.reactor.buffers().take(data.length() as usize);
                let op = Op::read(lba.0, blocks.0, buffer, self.token(slot));
                self.submit(cx, slot, volume, op);
            }
            IoCommand::Verify { namespace, lba, blocks, .. } => {
                self.verify(cx, slot, namespace, lba, blocks)?;
            }
            IoCommand::Write { namespace, lba, blocks, fua, .. } => {
                let volume = self.volume(cx, namespace)?;
                let buffer = self.request(slot).buffer.take().expect("pulled into a buffer");
                let op = Op { fua, ..Op::write(lba.0, blocks.0, buffer, self.token(slot)) };
                self.submit(cx, slot, volume, op);
            }
            IoCommand::WriteZeroes { namespace, lba, blocks, deallocate, fua } => {
                let volume = self.volume(cx, namespace)?;
                let op = Op::write_zeroes(lba.0, blocks.0, deallocate, self.token(slot));
                self.submit(cx, slot, volume, Op { fua, ..op });
            }
            IoCommand::Flush { namespace } => self.flush(cx, slot, namespace)?,
            IoCommand::Deallocate { namespace, ranges, .. } => {
                self.deallocate(cx, slot, namespace, ranges)?;
            }
            IoCommand::Advise { .. } => self.respond(slot, Status::SUCCESS, 0),
            IoCommand::Fabrics => unreachable!("answered when it arrived"),
        }
        Ok(())
    }

    /// Carries out the reads that were put off the longest, until `left` are.
    pub(super) fn read_expected(&mut self, cx: &mut Context, left: usize) {
        while self.expected.len() > left
            && let Some((slot, volume)) = self.expected.pop_front()
        {
            if let Err(status) = self.read(cx, slot, volume) {
                self.respond_and_release(cx, slot, status, 0);
            }
        }
    }

    fn read(&mut self, cx: &mut Context, slot: SlotId, volume: VolumeId) -> Result<(), Status> {
        let Work::Io(IoCommand::Read { lba, blocks, fua, data, .. }) = self.request(slot).work
        else {
            unreachable!("only reads are expected")
        };
        if let Some(result) = cx.volumes.lend(volume, lba.0, blocks.0, &mut cx.lent) {
            return self.answer_lent(cx, slot, data.length(), result);
        }
        self.round_bytes += data.length() as usize;
        let buffer = cx.reactor.buffers().take(data.length() as usize);
        let op = Op { fua, ..Op::read(lba.0, blocks.0, buffer, self.token(slot)) };
        self.submit(cx, slot, volume, op);
        Ok(())
    }

    /// Answers a read whose data, or the reason why there are none, the namespace gave at once.
    fn answer_lent(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        length: u32,
        result: Result<(), BlockError>,
    ) -> Result<(), Status> {
        if result.is_err() {
            assert!(cx.lent.is_empty(), "something is lent with an error");
            self.tally.media_errors += u64::from(is_media_error(result));
            return Err(status::of_result(result));
        }
        self.tally.reads += 1;
        self.tally.read_bytes += u64::from(length);
        self.push(slot, length, cx.lent.drain(..), Status::SUCCESS, 0);
        Ok(())
    }

    /// Carries a write out and answers it, if the namespace can do that at once: its data need not
    /// be copied into a buffer first. False if it cannot.
    pub(super) fn store_at_once(&mut self, cx: &mut Context, slot: SlotId, data: &[u8]) -> bool {
        let Work::Io(IoCommand::Write { namespace, lba, blocks, fua, .. }) =
            self.request(slot).work
        else {
            return false;
        };
        let Ok(volume) = self.volume(cx, namespace) else { return false };
        let Some(result) = cx.volumes.store(volume, lba.0, blocks.0, fua, data) else {
            return false;
        };
        self.tally.media_errors += u64::from(is_media_error(result));
        self.request(slot).status = status::of_result(result);
        self.finish(cx, slot);
        true
    }

    /// Reads the next part of what a Verify covers; [`Self::finish`] comes back for the rest, so
    /// that one command needs one buffer however much it covers.
    fn verify(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        namespace: NamespaceId,
        lba: Lba,
        blocks: BlockCount,
    ) -> Result<(), Status> {
        let volume = self.volume(cx, namespace)?;
        let step_bytes = self.verified_bytes(namespace, blocks);
        let block_size = cx.volumes.geometry(volume).block_size;
        let done_blocks = self.request(slot).verified_blocks;
        let step = (step_bytes / block_size).min(blocks.0 - done_blocks);
        self.request(slot).verified_blocks += step;
        let spent = self.request(slot).buffer.take();
        spent.into_iter().for_each(|buffer| cx.reactor.buffers().give(buffer));
        let buffer = cx.reactor.buffers().take((step * block_size) as usize);
        let op = Op::read(lba.0 + u64::from(done_blocks), step, buffer, self.token(slot));
        self.submit(cx, slot, volume, op);
        Ok(())
    }

    fn token(&self, slot: SlotId) -> u64 {
        token(self.route.key, slot)
    }

    fn submit(&mut self, cx: &mut Context, slot: SlotId, volume: VolumeId, op: Op) {
        self.request(slot).operations += 1;
        self.operations += 1;
        cx.volumes.submit(volume, op);
    }

    /// The core's queue into the namespace.
    fn volume(&mut self, cx: &mut Context, nsid: NamespaceId) -> Result<VolumeId, Status> {
        let Session::Io(session) = &mut self.session else {
            // The connection was closed while the command waited.
            return Err(Status::ABORTED_SQ_DELETION);
        };
        if let Some(&(_, volume)) = session.volumes.iter().find(|(id, _)| *id == nsid) {
            return Ok(volume);
        }
        let export = cx
            .shared
            .export(session.subsystem, nsid)
            .ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        let key = (session.subsystem, nsid);
        let volume = cx.volumes.open(&cx.reactor, key, export).map_err(|error| {
            tracing::error!(namespace = nsid.0, "cannot open {}: {error}", export.describe());
            status::of(error)
        })?;
        session.volumes.push((nsid, volume));
        Ok(volume)
    }

    /// Flushes one namespace, or all of the subsystem.
    fn flush(&mut self, cx: &mut Context, slot: SlotId, nsid: NamespaceId) -> Result<(), Status> {
        if nsid != NamespaceId::ALL {
            let volume = self.volume(cx, nsid)?;
            let op = Op::flush(self.token(slot));
            self.submit(cx, slot, volume, op);
            return Ok(());
        }
        let table = match &self.session {
            Session::Io(session) => Arc::clone(&session.table),
            _ => return Err(Status::ABORTED_SQ_DELETION),
        };
        // Every queue is opened before anything is submitted, so that an error leaves nothing open.
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

    fn deallocate(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        nsid: NamespaceId,
        ranges: u16,
    ) -> Result<(), Status> {
        let volume = self.volume(cx, nsid)?;
        let Session::Io(session) = &self.session else { unreachable!("it has a volume") };
        let info = *session.table.find(nsid).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        let list = self.request(slot).buffer.take().expect("pulled into a buffer");
        let parsed = DeallocateRanges::parse(&list, ranges, &info);
        let submitted = parsed.map(|ranges| {
            let before = self.operations;
            for (lba, blocks) in ranges {
                let op = Op::deallocate(lba.0, blocks.0, self.token(slot));
                self.submit(cx, slot, volume, op);
            }
            self.operations - before
        });
        cx.reactor.buffers().give(list);
        if submitted? == 0 {
            self.respond_and_release(cx, slot, Status::SUCCESS, 0);
        }
        Ok(())
    }

    /// A block operation of a command ended.
    pub(crate) fn complete(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        result: Result<(), BlockError>,
        buffer: Option<Buffer>,
    ) {
        self.operations -= 1;
        self.tally.media_errors += u64::from(is_media_error(result));
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
            if gone {
                self.release(cx, slot);
            } else {
                self.finish(cx, slot);
            }
        }
        cx.list(self.route.key, &mut self.listed);
    }

    /// Every block operation of a command ended: answer it.
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
                self.tally.reads += 1;
                self.tally.read_bytes += u64::from(data.length());
                self.push(slot, data.length(), buffer, status, 0);
            }
            Work::Io(IoCommand::Write { data, .. }) => {
                self.tally.writes += 1;
                self.tally.written_bytes += u64::from(data.length());
                self.respond_and_release(cx, slot, status, 0);
            }
            Work::Io(command @ IoCommand::Verify { blocks, .. })
                if request.verified_blocks < blocks.0 =>
            {
                self.submit_io(cx, slot, command);
            }
            Work::Io(IoCommand::Compare { .. }) => {
                let equal = request.buffer.as_deref() == request.second.as_deref();
                let status = if equal { status } else { Status::COMPARE_FAILURE.with_dnr() };
                self.respond_and_release(cx, slot, status, 0);
            }
            _ => self.respond_and_release(cx, slot, status, 0),
        }
    }

    /// New namespaces of a subsystem.
    pub(crate) fn set_namespaces(&mut self, subsystem: SubsystemId, table: &Arc<NamespaceTable>) {
        if let Session::Io(session) = &mut self.session
            && session.subsystem == subsystem
        {
            session.table = Arc::clone(table);
            session.volumes.clear();
        }
    }
}

fn is_media_error(result: Result<(), BlockError>) -> bool {
    matches!(result, Err(BlockError::ReadFailed | BlockError::WriteFailed))
}
