//! The gates of a session; [`crate::lifecycle`] defines their order.

use super::trace::Step;
use super::{Queue, Session, SessionState, Work};
use crate::context::Context;
use crate::fence::FenceAnswer;
use crate::lifecycle::{self, Answer, Gate, Gates, Lifecycle, Path};
use crate::limits;
use crate::memory::footprint;
use crate::transport::Transport;
use crate::volumes::VolumeId;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::IoCommand;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os;
use farblock_wire::Status;

/// The gates of a session, for one command and its data.
struct Keeper<'a, T> {
    session: &'a mut Session<T>,
    cx: &'a mut Context,
    /// All data of the command, in the receive buffer.
    whole: Option<&'a [u8]>,
    /// The queue into the namespace, for a read that was deferred for prefetching.
    volume: Option<VolumeId>,
}

impl<T: Transport> Keeper<'_, T> {
    /// Copies the command's data from the receive buffer into the command's buffer.
    fn land_borrowed(&mut self, slot: SlotId) {
        if let Some(bytes) = self.whole.take() {
            self.session.land(self.cx, slot, 0, bytes);
        }
    }
}

impl<T: Transport> Gates for Keeper<'_, T> {
    #[inline]
    fn life(&mut self, slot: SlotId) -> &mut Lifecycle {
        &mut self.session.request(slot).life
    }

    #[inline]
    fn ask(&mut self, gate: Gate, slot: SlotId) -> Answer {
        let Self { session, cx, .. } = self;
        match gate {
            Gate::Access => session.check_access(slot).into(),
            Gate::Pace if !session.is_paced() => Answer::Pass,
            Gate::Pace => session.pace_command(cx, slot),
            Gate::Memory => session.take_memory(cx, slot),
            Gate::Data => session.pull_command(cx, slot),
            Gate::Partner => session.meet_partner(cx, slot),
            Gate::Fence if session.fence.is_none() => Answer::Pass,
            Gate::Fence => session.ask_fence(slot),
            Gate::Claim => session.line_up(cx, slot),
            Gate::Round => session.join_round(cx, slot),
            Gate::Turn => session.wait_for_turn(cx, slot),
            Gate::Permit => session.check_permit(slot).into(),
        }
    }

    #[inline]
    fn keep(&mut self, slot: SlotId) {
        if let Some(gate) = self.session.request(slot).life.waits() {
            self.session.trace(slot, Step::Waits(gate));
        }
        self.land_borrowed(slot);
    }

    #[inline]
    fn start(&mut self, slot: SlotId) -> Result<Option<Path>, Status> {
        let Work::Io(command) = self.session.request(slot).work else {
            unreachable!("only I/O commands pass the gates")
        };
        if let Some(bytes) = self.whole
            && self.session.write_inline(self.cx, slot, &command, bytes)
        {
            return Ok(None);
        }
        self.land_borrowed(slot);
        let Self { session, cx, volume, .. } = self;
        match session.request(slot).life.path() {
            Path::Plain | Path::Requested | Path::InCapsule => session.submit_io(cx, slot, command),
            Path::Read => session.read(cx, slot, *volume).map(|()| None),
            Path::Step | Path::CopyStep => session.step(cx, slot, command).map(|()| None),
            Path::First => session.compare_fused(cx, slot).map(|()| None),
            Path::Second => session.write_fused(cx, slot).map(|()| None),
        }
    }

    #[cold]
    fn refuse(&mut self, slot: SlotId, status: Status) {
        self.session.respond_and_release(self.cx, slot, status, 0);
    }
}

impl<T: Transport> Session<T> {
    /// Takes a command through its gates until the command starts, or a gate makes it wait or
    /// refuses it. A waiting command first asks again the gate where it waits.
    pub(super) fn admit(&mut self, cx: &mut Context, slot: SlotId) {
        let mut gates = Keeper { session: self, cx, whole: None, volume: None };
        lifecycle::admit(&mut gates, slot);
    }

    /// Lets a command that has waited at `gate` continue.
    pub(super) fn wake(&mut self, cx: &mut Context, slot: SlotId, gate: Gate) {
        self.trace(slot, Step::Wakes(gate));
        let mut gates = Keeper { session: self, cx, whole: None, volume: None };
        lifecycle::wake(&mut gates, slot, gate);
    }

    /// Notes that the data of a command have arrived. The data are in the command's buffer or in
    /// `whole`.
    pub(super) fn has_data(&mut self, cx: &mut Context, slot: SlotId, whole: Option<&[u8]>) {
        self.trace(slot, Step::Wakes(Gate::Data));
        let mut gates = Keeper { session: self, cx, whole, volume: None };
        lifecycle::wake(&mut gates, slot, Gate::Data);
    }

    pub(super) fn withdraw(&mut self, cx: &mut Context, slot: SlotId) {
        let Some(gate) = self.request(slot).life.waits() else { return };
        match gate {
            Gate::Pace => self.withdraw_paced(cx, slot),
            Gate::Memory => self.waiting.for_buffers.retain(|waits| *waits != slot),
            Gate::Fence => self.fence.iter_mut().for_each(|fence| fence.withdraw(slot)),
            Gate::Round => self.waiting.for_a_moment.retain(|(waits, _)| *waits != slot),
            Gate::Turn => {
                if let Some(line) = self.turns.withdraw(slot) {
                    cx.in_place.leave(line, self.route.key);
                }
            }
            // [`Session::settle_fused`] handles both halves of a pair. The transport handles a
            // command that waits for data.
            Gate::Access | Gate::Data | Gate::Partner | Gate::Claim | Gate::Permit => {}
        }
    }

    /// Checks whether reservations allow a command to access its namespace.
    #[inline]
    pub(super) fn check_access(&mut self, slot: SlotId) -> Result<(), Status> {
        if self.limits.is_none() { Ok(()) } else { self.check_limits(slot) }
    }

    fn check_limits(&mut self, slot: SlotId) -> Result<(), Status> {
        let is_later = self.request(slot).life.has_passed_one();
        if is_later && os::has_mistake("target: a command that waited for data is not fenced") {
            return Ok(());
        }
        let aborted = self.request(slot).status;
        let Some(limits) = &self.limits else { return Ok(()) };
        let Work::Io(command) = &self.requests[usize::from(slot.0)].work else { return Ok(()) };
        // A command that a Preempt and Abort ended gets the status of the abort, and not
        // Reservation Conflict.
        if !aborted.is_success() {
            return Err(aborted);
        }
        limits.check(command, |namespace| match &self.queue {
            Queue::Io(queue) => queue.table.find(namespace).is_some(),
            _ => true,
        })
    }

    /// Charges the buffers of a command, or makes the command wait for memory behind earlier
    /// commands.
    fn take_memory(&mut self, cx: &mut Context, slot: SlotId) -> Answer {
        let bytes = self.buffer_bytes(slot);
        if !self.request(slot).life.path().may_wait_for_memory() {
            if !cx.memory.has_room(footprint(bytes)) {
                // A retry succeeds once other commands have released memory.
                return Answer::Refuse(Status::COMMAND_INTERRUPTED);
            }
            self.hold(cx, slot, bytes);
            return Answer::Pass;
        }
        if self.waiting.for_buffers.is_empty() && self.take_buffers(cx, slot, bytes) {
            return Answer::Pass;
        }
        self.waiting.for_buffers.push_back(slot);
        self.park(cx);
        Answer::Wait
    }

    pub(super) fn start_waiting(&mut self, cx: &mut Context) {
        while let Some(&slot) = self.waiting.for_buffers.front() {
            let bytes = self.buffer_bytes(slot);
            if !self.take_buffers(cx, slot, bytes) {
                self.park(cx);
                break;
            }
            self.waiting.for_buffers.pop_front();
            self.wake(cx, slot, Gate::Memory);
        }
        self.read_expected(cx, 0);
    }

    fn pull_command(&mut self, cx: &mut Context, slot: SlotId) -> Answer {
        let Work::Io(command) = self.request(slot).work else { return Answer::Pass };
        let pointer = command.data_from_host().expect("only commands with data take this path");
        self.pull(cx, slot, pointer).map_or_else(Answer::Refuse, |()| Answer::Wait)
    }

    /// Asks the fence whether a command may proceed. For a fused pair, asks about the pair's write.
    /// Removes the fence if no earlier changes are under way.
    fn ask_fence(&mut self, slot: SlotId) -> Answer {
        let Some(command) = self.changing_command(slot) else { return Answer::Pass };
        let Some(fence) = &mut self.fence else { return Answer::Pass };
        match fence.admit(slot, &command) {
            FenceAnswer::Held => Answer::Wait,
            FenceAnswer::Free => Answer::Pass,
            FenceAnswer::Open => {
                self.fence = None;
                Answer::Pass
            }
        }
    }

    /// Announces a read to the namespace for prefetching, and defers it until the session has
    /// parsed the reads that arrived together with it.
    fn join_round(&mut self, cx: &mut Context, slot: SlotId) -> Answer {
        let Work::Io(IoCommand::Read { namespace, lba, .. }) = self.request(slot).work else {
            unreachable!("only reads are deferred")
        };
        match self.volume(cx, namespace) {
            Ok(volume) => {
                cx.volumes.expect_read(volume, lba.0);
                self.waiting.for_a_moment.push_back((slot, volume));
                self.read_expected(cx, limits::READS_AHEAD);
                Answer::Wait
            }
            Err(status) => Answer::Refuse(status),
        }
    }

    /// Executes the oldest deferred reads, until `left` of them remain.
    pub(crate) fn read_expected(&mut self, cx: &mut Context, left: usize) {
        while self.waiting.for_a_moment.len() > left
            && let Some((slot, volume)) = self.waiting.for_a_moment.pop_front()
        {
            self.trace(slot, Step::Wakes(Gate::Round));
            let mut gates = Keeper { session: self, cx, whole: None, volume: Some(volume) };
            lifecycle::wake(&mut gates, slot, Gate::Round);
        }
    }

    /// Makes a command wait for a turn in the line of its namespace. A Copy waits in the line of
    /// its source.
    fn wait_for_turn(&mut self, cx: &mut Context, slot: SlotId) -> Answer {
        let nsid = match &self.request(slot).progress.copying {
            Some(copying) => copying.sources().next().expect("a part is left"),
            None => NamespaceId(self.request(slot).sqe.nsid.get()),
        };
        match self.volume(cx, nsid) {
            Ok(line) => {
                self.wait_in_line(cx, slot, line);
                Answer::Wait
            }
            Err(status) => Answer::Refuse(status),
        }
    }

    #[inline]
    pub(super) fn is_paced(&self) -> bool {
        // A draining queue must complete its commands, so they do not wait for rate limits.
        self.state != SessionState::Draining
            && matches!(&self.queue, Queue::Io(queue)
                if queue.backings.is_paced() || queue.pace.is_some())
    }
}
