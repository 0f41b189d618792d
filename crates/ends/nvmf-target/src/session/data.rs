//! Memory and data: admission of buffers, data transfers, and responses.

use super::trace::Step;
use super::{Session, SessionRequest, SessionState, Submission, Work};
use crate::admissions::Reason;
use crate::context::Context;
use crate::lifecycle::Lifecycle;
use crate::limits;
use crate::memory::{HolderId, footprint};
use crate::notices::NoticeKind;
use crate::transport::Transport;
use farblock_proto::capsule::{DataPointer, SlotId};
use farblock_reactor::{Buffer, copy_anywhere, os};
use farblock_wire::{Cqe, Status};

impl<T: Transport> Session<T> {
    /// Returns whether the session holds so much memory that it must not parse more commands until
    /// others have completed. Returns false while the host still has to send requested data: the
    /// data follow on the same stream, so the session must continue to parse.
    pub(crate) fn holds_too_much(&self, cx: &Context) -> bool {
        !self.may_hold(cx, 0) && self.arrivals.asked_for == 0
    }

    /// Queues this session to retry once buffers are released.
    pub(crate) fn park(&mut self, cx: &mut Context) {
        cx.park(self.route.key, &mut self.parked);
    }

    /// Lets this session retry after a release of buffers.
    pub(crate) fn unpark(&mut self, cx: &mut Context) {
        self.parked = false;
        self.list(cx);
    }

    /// Charges the buffers of a command if the memory limits allow this. Returns false if the
    /// command must wait.
    pub(super) fn take_buffers(&mut self, cx: &mut Context, slot: SlotId, bytes: usize) -> bool {
        let fits = bytes == 0 || self.may_hold(cx, bytes);
        if fits {
            self.hold(cx, slot, bytes);
        }
        fits
    }

    pub(super) fn may_hold(&self, cx: &Context, bytes: usize) -> bool {
        let bytes = footprint(bytes);
        let fits = self.held.bytes + bytes <= limits::CONNECTION_BUFFER_BYTES;
        (fits || self.held.bytes == 0) && cx.memory.may_hold(self.holder(), bytes)
    }

    pub(super) fn hold(&mut self, cx: &mut Context, slot: SlotId, bytes: usize) {
        let bytes = footprint(bytes);
        self.request(slot).held_bytes += bytes;
        self.hold_besides(cx, bytes);
    }

    /// Charges memory of the connection that does not belong to a command, for example unparsed
    /// input.
    pub(crate) fn hold_besides(&mut self, cx: &mut Context, bytes: usize) {
        self.held.bytes += bytes;
        cx.memory.hold(self.holder(), bytes);
    }

    /// Releases memory that [`Self::hold_besides`] has charged.
    pub(crate) fn release_besides(&mut self, cx: &mut Context, bytes: usize) {
        if bytes > 0 {
            self.held.bytes -= bytes;
            cx.release_bytes(self.holder(), bytes);
        }
    }

    fn holder(&self) -> HolderId {
        self.held.holder.expect("a session always has a holder")
    }

    /// Charges this connection's memory to its host, after Connect has named the host.
    pub(super) fn hold_as(&mut self, cx: &mut Context, host: &str) {
        let lasting = self.held.lasting_bytes;
        let bytes = self.held.bytes + self.held.kept_bytes + lasting;
        self.held.holder = Some(cx.memory.rename(self.holder(), host, bytes, lasting));
    }

    /// Charges memory that the transport keeps until it closes. Returns false, and charges nothing,
    /// if the memory limits do not allow this.
    pub(crate) fn keep(&mut self, cx: &mut Context, bytes: usize) -> bool {
        let may = cx.memory.may_last(self.holder(), bytes);
        if may {
            self.held.lasting_bytes += bytes;
            cx.memory.hold_lasting(self.holder(), bytes);
        }
        may
    }

    pub(super) fn keep_slot(&mut self, cx: &mut Context, slot: SlotId) {
        let index = usize::from(slot.0);
        if index >= self.requests.len() {
            let more = index + 1 - self.requests.len();
            self.requests.resize_with(index + 1, SessionRequest::new);
            self.held.kept_bytes += more * size_of::<SessionRequest>();
            cx.memory.hold(self.holder(), more * size_of::<SessionRequest>());
        }
    }

    pub(crate) fn save_memory(&mut self, cx: &mut Context) {
        if self.pending.commands == 0 && self.pending.operations == 0 && self.held.kept_bytes > 0 {
            self.requests.truncate(1);
            self.requests.shrink_to_fit();
            self.waiting.for_buffers.shrink_to_fit();
            self.waiting.for_a_moment.shrink_to_fit();
            cx.release_bytes(self.holder(), std::mem::take(&mut self.held.kept_bytes));
        }
        self.transport.save_memory();
    }

    /// Returns the bytes held by all connections of the host, and by this connection. Returns
    /// `None` unless the host has kept this connection's commands or output waiting for too long.
    pub(crate) fn overdue_bytes(&mut self, cx: &mut Context) -> Option<(usize, usize)> {
        let memory = &cx.memory;
        let is_overdue =
            |request: &SessionRequest| request.awaited && memory.is_overdue(request.epoch);
        let not_taken = self.transport.sending_since();
        let overdue = not_taken.is_some_and(|since| memory.is_overdue(since))
            || self.requests.iter().any(is_overdue);
        let held = self.held.bytes > 0 && !self.is_closed();
        (held && overdue).then(|| (memory.host_bytes(self.holder()), self.held.bytes))
    }

    /// Closes the connection, since other connections need its memory.
    pub(crate) fn evict(&mut self, cx: &mut Context, bytes: usize) {
        cx.shared.admissions.refused(Reason::Memory);
        cx.notice(NoticeKind::NoRoom, self.peer.ip(), || {
            tracing::warn!(
                peer = %self.peer,
                "closing the connection: {bytes} bytes wait for this host, and other hosts need \
                 the memory"
            );
        });
        self.end(cx);
    }

    /// Removes the connection from the memory account of its holder.
    pub(crate) fn leave(&mut self, cx: &mut Context) {
        debug_assert_eq!(self.held.bytes, 0, "the session left memory charged");
        let Some(holder) = self.held.holder.take() else { return };
        cx.memory.release_lasting(holder, std::mem::take(&mut self.held.lasting_bytes));
        cx.release_bytes(holder, self.held.bytes + self.held.kept_bytes);
        cx.memory.leave(holder);
    }

    /// Starts the transfer of a command's data into a buffer. The memory of the buffer is already
    /// charged.
    pub(super) fn pull(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        pointer: DataPointer,
    ) -> Result<(), Status> {
        let request = self.request(slot);
        request.pulled_bytes = pointer.length() as usize;
        request.asked_for = !pointer.is_in_capsule();
        request.awaited = true;
        request.epoch = cx.memory.epoch();
        if let Err(status) = T::pull(self, cx, slot, pointer) {
            self.request(slot).awaited = false;
            return Err(status);
        }
        if !pointer.is_in_capsule() {
            self.arrivals.asked_for += 1;
            if self.arrivals.asked_for == 1 {
                self.note_progress(cx);
                self.watch_data(cx);
            }
        } else if self.arrivals.asked_for == 0 {
            self.note_progress(cx);
        }
        Ok(())
    }

    /// Returns the number of bytes that a command transfers from the host.
    pub(crate) fn pulled_bytes(&mut self, slot: SlotId) -> usize {
        self.request(slot).pulled_bytes
    }

    /// Returns whether the target requested the command's data (by R2T or RDMA READ).
    pub(crate) fn was_asked_for(&mut self, slot: SlotId) -> bool {
        self.request(slot).asked_for
    }

    /// Returns the response bytes of the reads that are deferred for prefetching.
    pub(crate) fn coming_bytes(&self) -> usize {
        self.tick.bytes
    }

    pub(crate) fn watch_data(&mut self, cx: &Context) {
        if self.state == SessionState::Open && !std::mem::replace(&mut self.arrivals.watched, true)
        {
            self.note_progress(cx);
            cx.reactor.set_timer(self.task, Some(cx.now() + limits::TRANSFER_TIMEOUT));
        }
    }

    /// Notes that data have arrived, which restarts the timeout. While data that the target
    /// requested are missing, in-capsule data do not restart the timeout.
    pub(crate) fn note_data(&mut self, cx: &Context, slot: SlotId) {
        if self.arrivals.asked_for == 0 || self.request(slot).asked_for {
            self.note_progress(cx);
        }
    }

    pub(crate) fn note_progress(&mut self, cx: &Context) {
        if self.arrivals.watched {
            self.arrivals.last_data = cx.now();
        }
    }

    /// Returns the destination buffer for a command's data. The session takes the buffer from the
    /// pool only when the data arrive. The pool then mostly returns the buffer that the last
    /// command has just released, which is still in the processor's cache.
    pub(crate) fn landing(&mut self, cx: &Context, slot: SlotId) -> &mut Buffer {
        let SessionRequest { buffer, pulled_bytes, .. } = self.request(slot);
        buffer.get_or_insert_with(|| cx.reactor.buffers().take(*pulled_bytes))
    }

    /// Like [`Self::landing`], but moves the buffer out of the session, so that the reactor can
    /// receive into it.
    pub(crate) fn take_landing(&mut self, cx: &Context, slot: SlotId) -> Buffer {
        self.landing(cx, slot);
        self.request(slot).buffer.take().expect("taken just now")
    }

    /// Moves the buffer of [`Self::take_landing`] back into the session.
    pub(crate) fn put_landing(&mut self, slot: SlotId, buffer: Buffer) {
        self.request(slot).buffer = Some(buffer);
    }

    /// Copies a received part of a command's data into the command's buffer.
    pub(crate) fn land(&mut self, cx: &Context, slot: SlotId, offset: u32, bytes: &[u8]) {
        let buffer = self.landing(cx, slot);
        copy_anywhere(&mut buffer[offset as usize..][..bytes.len()], bytes);
    }

    /// Continues a command whose data have all arrived, or fails it if they are not `intact`. The
    /// data are in the command's buffer, or in `whole`, which points into the receive buffer.
    pub(crate) fn pulled(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        intact: bool,
        whole: Option<&[u8]>,
    ) {
        let request = self.request(slot);
        request.awaited = false;
        let was_asked_for = request.asked_for;
        self.arrivals.asked_for -= usize::from(was_asked_for);
        if !intact {
            cx.shared.admissions.data_damaged();
            self.respond_and_release(cx, slot, Status::TRANSIENT_TRANSPORT_ERROR, 0);
            return;
        }
        let status = self.request(slot).status;
        if !status.is_success() {
            // The command's namespace was removed or changed while the data arrived.
            self.respond_and_release(cx, slot, status, 0);
            return;
        }
        // A command that is not fused may execute with its data in the receive buffer. Half of a
        // fused pair needs its data later.
        let work = self.request(slot).work;
        let borrows = matches!(work, Work::Io(_)) && !self.request(slot).life.is_fused();
        let whole = match whole {
            Some(bytes) if !borrows => {
                self.land(cx, slot, 0, bytes);
                None
            }
            whole => whole,
        };
        if whole.is_none() {
            self.landing(cx, slot);
        }
        match work {
            Work::None | Work::Held | Work::Reserving { .. } | Work::Aborting => {
                unreachable!("only commands that wait for data pull it")
            }
            Work::Connect => self.connect(cx, slot),
            Work::Admin => self.admin(cx, slot),
            Work::Authentication => self.authenticate(cx, slot),
            Work::Io(_) => self.has_data(cx, slot, whole),
        }
    }

    pub(super) fn respond(&mut self, slot: SlotId, status: Status, result: u64) {
        let cqe = self.end_command(slot, status, result, 0);
        self.transport.respond(slot, &cqe);
    }

    /// Sends a command's response, frees its slot and releases its resources.
    pub(super) fn respond_and_release(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        status: Status,
        result: u64,
    ) {
        self.respond(slot, status, result);
        self.release(cx, slot);
    }

    pub(super) fn release(&mut self, cx: &mut Context, slot: SlotId) {
        let request = self.request(slot);
        let buffers = [request.buffer.take(), request.second.take()];
        request.progress.copying = None;
        let held = std::mem::take(&mut request.held_bytes);
        for buffer in buffers.into_iter().flatten() {
            match os::has_mistake("target: a buffer is never freed") {
                true => std::mem::forget(buffer),
                false => cx.reactor.buffers().give(buffer),
            }
        }
        self.release_besides(cx, held);
    }

    /// Sends `length` bytes of data to the host, possibly in parts, and ends the command. The
    /// command's memory stays charged until the data are sent.
    pub(super) fn push(
        &mut self,
        slot: SlotId,
        length: u32,
        parts: impl IntoIterator<Item = Buffer>,
        status: Status,
        result: u64,
    ) {
        let cqe = self.end_command(slot, status, result, length);
        let held = std::mem::take(&mut self.request(slot).held_bytes);
        self.transport.push(slot, length, parts, held, &cqe);
    }

    /// Ends a command in this session. Returns the response, which follows `bytes` bytes of data.
    fn end_command(&mut self, slot: SlotId, status: Status, result: u64, bytes: u32) -> Cqe {
        self.trace(slot, Step::Answers(status, bytes));
        self.count(slot, status);
        self.aborts.ended(slot, status);
        if let Some(fused) = &mut self.fused {
            fused.ended(slot, status);
        }
        let copying = self.request(slot).progress.copying.take();
        let result = match copying {
            Some(copying) if !status.is_success() => copying.copied() as u64,
            _ => result,
        };
        let Submission { head, flow_control, .. } = self.submission;
        self.pending.commands -= 1;
        let request = self.request(slot);
        request.work = Work::None;
        request.life = Lifecycle::ANSWERED;
        Cqe::new(0, if flow_control { head } else { 0xffff }, status, result)
    }

    /// Returns a buffer to the pool after its data were sent or dropped. Releases `held_bytes`.
    pub(crate) fn give_back(&mut self, cx: &mut Context, held_bytes: usize, buffer: Buffer) {
        self.release_besides(cx, held_bytes);
        cx.reactor.buffers().give(buffer);
    }
}
