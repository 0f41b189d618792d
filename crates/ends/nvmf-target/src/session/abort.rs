//! Abort: ends an I/O command that still waits to start, or that has steps left. An Abort does not
//! interrupt a data transfer or an operation at a namespace.
//!
//! The admin queue's core sends a message to the I/O queue. The I/O queue replies when the aborted
//! command has its response. So the target completes the aborted command before the Abort.

use super::{Session, Work};
use crate::context::Context;
use crate::mailbox::Message;
use crate::route::Asking;
use crate::transport::Transport;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::limits::ABORT_COMMANDS;
use farblock_proto::ids::{CommandId, ControllerId, QueueId};
use farblock_wire::Status;

/// The Abort commands that the admin queue has passed to this queue, and that have no response yet.
#[derive(Default)]
pub(super) struct Aborts {
    /// Abort commands that wait until the command to abort has its response.
    waiting: Vec<(SlotId, Asking)>,
    /// Abort commands that are ready for their responses, and whether the command was aborted.
    over: Vec<(Asking, bool)>,
}

impl Aborts {
    /// Marks the Abort commands that wait for this command as ready for their responses. The
    /// session calls this when it sends the command's response.
    pub(super) fn ended(&mut self, slot: SlotId, status: Status) {
        if self.waiting.is_empty() {
            return;
        }
        let aborted = status.code() == Status::ABORT_REQUESTED.code();
        let ended = self.waiting.extract_if(.., |(waited_for, _)| *waited_for == slot);
        self.over.extend(ended.map(|(_, asking)| (asking, aborted)));
    }

    /// Handles the close of the queue: all Abort commands get the response that nothing was
    /// aborted.
    pub(super) fn close(&mut self) {
        self.over.extend(self.waiting.drain(..).map(|(_, asking)| (asking, false)));
    }
}

impl<T: Transport> Session<T> {
    pub(super) fn ask_for_abort(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        (controller, queue): (ControllerId, QueueId),
        command: CommandId,
    ) {
        let is_one = |request: &&super::SessionRequest| matches!(request.work, Work::Aborting);
        if self.requests.iter().filter(is_one).count() >= usize::from(ABORT_COMMANDS) {
            return self.respond_and_release(cx, slot, Status::ABORT_LIMIT_EXCEEDED.with_dnr(), 0);
        }
        self.request(slot).work = Work::Aborting;
        let asking = Asking { route: self.route, slot };
        if !cx.shared.ask_for_abort((controller, queue), command, asking) {
            self.heard_of_abort(cx, slot, false);
        }
    }

    /// Handles the result of an Abort command of this admin queue.
    pub(crate) fn heard_of_abort(&mut self, cx: &mut Context, slot: SlotId, aborted: bool) {
        let is_asking = matches!(self.request(slot).work, Work::Aborting);
        if is_asking && self.is_serving() {
            self.respond_and_release(cx, slot, Status::SUCCESS, u64::from(!aborted));
            self.list(cx);
        }
    }

    pub(crate) fn abort(&mut self, cx: &mut Context, command: CommandId, asking: Asking) {
        // First execute the reads that were deferred for prefetching: they count as started, so an
        // Abort no longer affects them.
        self.read_expected(cx, 0);
        match self.find(command).filter(|_| self.is_serving()) {
            Some(slot) => {
                self.aborts.waiting.push((slot, asking));
                self.abort_in(cx, slot);
            }
            None => self.aborts.over.push((asking, false)),
        }
        self.list(cx);
    }

    fn find(&self, command: CommandId) -> Option<SlotId> {
        let is_it = |request: &super::SessionRequest| {
            let is_open = matches!(request.work, Work::Io(_) | Work::Reserving { .. });
            is_open && request.sqe.cid.get() == command.0
        };
        Some(SlotId(self.requests.iter().position(is_it)? as u16))
    }

    fn abort_in(&mut self, cx: &mut Context, slot: SlotId) {
        let is_fused = self.fused.as_mut().is_some_and(|fused| fused.is_begun(slot));
        let request = self.request(slot);
        let is_under_way = request.operations > 0;
        let is_begun = is_fused || request.awaited || !matches!(request.work, Work::Io(_));
        if is_begun || (is_under_way && !request.has_steps_left()) {
            // The command cannot be aborted any more, and the Abort completes without waiting for
            // it.
            self.aborts.ended(slot, Status::SUCCESS);
        } else if is_under_way {
            // The step under way runs to its end, and then the command ends without another step.
            if request.status.is_success() {
                request.status = Status::ABORT_REQUESTED;
            }
        } else {
            self.withdraw(cx, slot);
            self.respond_and_release(cx, slot, Status::ABORT_REQUESTED, 0);
        }
    }

    /// Sends the results of finished Abort commands to their admin queues. The session has already
    /// sent the responses of the aborted commands.
    pub(super) fn tell_of_aborts(&mut self, cx: &Context) {
        for (Asking { route, slot }, aborted) in self.aborts.over.drain(..) {
            cx.shared.mailboxes()[route.core].post(Message::Aborted { route, slot, aborted });
        }
    }
}
