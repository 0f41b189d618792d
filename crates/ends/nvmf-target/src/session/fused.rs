//! Fused Compare and Write: two adjacent commands of a queue. The write executes if the compare
//! succeeds. No other command changes the blocks between the compare and the write.
//!
//! ```text
//!   first --> both --> data here --> limits, fence --> in line --> claims --> compares --> writes
//!     |                   |                               |          |           |           |
//!     |  another command  +----- one of them fails, or ends ---------+-----------+           |
//!     v                                  v                                                   v
//!   Missing Fused            Failed Fused for the other                             both answered
//! ```
//!
//! Each half is an ordinary command with its own slot. An Abort, a removed namespace or a preempt
//! can end one half alone. The session then ends the other half at the end of the tick (of the
//! core's event loop). A queue claims blocks for one pair at a time; see [`crate::claims`].

use super::trace::Step;
use super::{Queue, Session, Work};
use crate::claim::Claim;
use crate::context::Context;
use crate::fence::Change;
use crate::lifecycle::{Answer, Gate};
use crate::pace::Cost;
use crate::reservations::UnderWay;
use crate::transport::Transport;
use farblock_block::Op;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{Fuse, IoCommand};
use farblock_wire::{Sqe, Status};
use std::sync::Arc;

/// The last command of the queue, if that command was the first half of a pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Here(SlotId),
    /// The first half has already failed.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The pair waits for data, for limits, or for the changes of a closed queue.
    Waiting,
    /// The pair waits for its claim on the blocks.
    InLine,
    Comparing,
    Writing,
}

struct Pair {
    first: SlotId,
    second: SlotId,
    stage: Stage,
    /// Whether the queue's claim belongs to this pair. A slot cannot identify the pair of a claim:
    /// once a half has its response, another pair may use its slot.
    has_claim: bool,
    /// For the first and the second half, whether the half has its response.
    ended: [bool; 2],
    /// Whether a half has failed. The other half must then fail, too.
    broken: bool,
}

impl Pair {
    fn has(&self, slot: SlotId) -> bool {
        self.first == slot && !self.ended[0] || self.second == slot && !self.ended[1]
    }
}

/// The fused commands of a queue. The queue allocates this value for its first pair.
#[derive(Default)]
pub(super) struct Fused {
    last: Option<First>,
    pairs: Vec<Pair>,
    /// The claim, which belongs to the pair with `has_claim`.
    claim: Option<Arc<Claim>>,
    /// Whether a half of any pair has ended since the last check.
    is_news: bool,
}

impl Fused {
    fn pair_of(&mut self, slot: SlotId) -> Option<&mut Pair> {
        self.pairs.iter_mut().find(|pair| pair.has(slot))
    }

    /// Notes that the session sends a command's response.
    pub(super) fn ended(&mut self, slot: SlotId, status: Status) {
        if self.last == Some(First::Here(slot)) {
            self.last = Some(First::Failed);
        }
        if let Some(pair) = self.pair_of(slot) {
            pair.ended[usize::from(pair.first != slot)] = true;
            pair.broken |= !status.is_success();
            self.is_news = true;
        }
    }

    /// Returns whether a half of any pair has ended since the last check, so that its other half
    /// must be checked.
    pub(super) fn is_news(&self) -> bool {
        self.is_news
    }

    /// Returns whether the pair of this command is executing. It is then too late to abort the
    /// command or to remove its namespace.
    pub(super) fn is_begun(&mut self, slot: SlotId) -> bool {
        let begun = |pair: &mut Pair| matches!(pair.stage, Stage::Comparing | Stage::Writing);
        self.pair_of(slot).is_some_and(begun)
    }
}

impl<T: Transport> Session<T> {
    /// Pairs a new command with the last one. Returns the role of the new command, or `None` if it
    /// has failed.
    pub(super) fn fuse(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) -> Option<Fuse> {
        let fuse = Fuse::of(sqe);
        if fuse == Fuse::Alone && self.fused.is_none() {
            return Some(fuse);
        }
        let last = self.fused.get_or_insert_default().last.take();
        match (fuse, last) {
            (Fuse::Second, Some(First::Here(first))) => {
                let pair = Pair {
                    first,
                    second: slot,
                    stage: Stage::Waiting,
                    has_claim: false,
                    ended: [false; 2],
                    broken: false,
                };
                self.fused.get_or_insert_default().pairs.push(pair);
            }
            (Fuse::Second, last) => {
                let status = match (Fuse::check(sqe), last) {
                    (Err(status), _) => status,
                    (Ok(()), None) => Status::ABORTED_MISSING_FUSED.with_dnr(),
                    (Ok(()), _) => Status::ABORTED_FAILED_FUSED,
                };
                self.respond(slot, status, 0);
                return None;
            }
            (_, Some(First::Here(alone))) => {
                self.end_half(cx, alone, Status::ABORTED_MISSING_FUSED.with_dnr());
            }
            _ => {}
        }
        if fuse == Fuse::First {
            self.fused.get_or_insert_default().last = Some(First::Here(slot));
        }
        Some(fuse)
    }

    /// Ends a first half that has no second half, since no further command can arrive.
    pub(super) fn expect_no_second(&mut self, cx: &mut Context) {
        let last = self.fused.as_mut().and_then(|fused| fused.last.take());
        if let Some(First::Here(alone)) = last {
            self.end_half(cx, alone, Status::ABORTED_MISSING_FUSED.with_dnr());
        }
    }

    fn end_half(&mut self, cx: &mut Context, slot: SlotId, status: Status) {
        let request = self.request(slot);
        if !request.awaited {
            self.withdraw(cx, slot);
            self.respond_and_release(cx, slot, status, 0);
        } else if request.status.is_success() {
            // The session sends this status as the response when the data of the command have
            // arrived.
            request.status = status;
        }
    }

    pub(super) fn check_pair(&mut self, slot: SlotId, write: &IoCommand) -> Result<(), Status> {
        let pair = self.fused.as_mut().and_then(|fused| fused.pair_of(slot));
        let first = pair.map(|pair| pair.first);
        match first.map(|first| self.request(first).work) {
            Some(Work::Io(compare)) if !IoCommand::can_be_fused(&compare, write) => {
                Err(Status::INVALID_FIELD.with_dnr())
            }
            _ => Ok(()),
        }
    }

    /// Handles a half whose data have arrived. When both halves have their data, the first half
    /// passes the remaining gates on behalf of both.
    pub(super) fn meet_partner(&mut self, cx: &mut Context, slot: SlotId) -> Answer {
        let Some(fused) = &mut self.fused else { return Answer::Wait };
        let Some(pair) = fused.pair_of(slot).filter(|pair| !pair.broken) else {
            return Answer::Wait;
        };
        let (first, second) = (pair.first, pair.second);
        let other = if slot == first { second } else { first };
        if !self.request(other).life.waits_at(Gate::Partner) {
            return Answer::Wait;
        }
        if slot == first {
            return Answer::Pass;
        }
        self.wake(cx, first, Gate::Partner);
        Answer::Wait
    }

    /// Makes the first half of a pair wait for the pair's claim.
    pub(super) fn line_up(&mut self, cx: &mut Context, first: SlotId) -> Answer {
        self.set_stage(first, Stage::InLine);
        self.claim_next(cx);
        Answer::Wait
    }

    /// Returns the second command of the slot's pair, or the command itself if it is not fused.
    pub(super) fn changing_command(&mut self, slot: SlotId) -> Option<IoCommand> {
        let pair = match self.request(slot).life.is_fused() {
            true => self.fused.as_mut().and_then(|fused| fused.pair_of(slot)),
            false => None,
        };
        match self.requests[usize::from(pair.map_or(slot, |pair| pair.second).0)].work {
            Work::Io(command) => Some(command),
            _ => None,
        }
    }

    pub(super) fn fused_costs(
        &mut self,
        slot: SlotId,
        compare: &IoCommand,
    ) -> Option<(Cost, Cost)> {
        let pair = self.fused.as_mut()?.pair_of(slot)?;
        let second = pair.second;
        let Work::Io(write) = self.request(second).work else { return None };
        // The block size has no effect here: these commands contain their length in bytes.
        Some((Cost::of(&write, 0)?, Cost::of(compare, 0)?))
    }

    /// Claims the blocks of the first pair in line, unless the queue already has a claim.
    fn claim_next(&mut self, cx: &mut Context) {
        let Queue::Io(queue) = &self.queue else { return };
        let Some(fused) = &mut self.fused else { return };
        if fused.claim.is_some() {
            return;
        }
        let waits = |pair: &&mut Pair| pair.stage == Stage::InLine && !pair.broken;
        let Some(pair) = fused.pairs.iter_mut().find(waits) else { return };
        let Work::Io(write) = self.requests[usize::from(pair.second.0)].work else { return };
        let Some(Change { namespace, blocks }) = Change::of(&write) else { return };
        // If the namespace was removed, the session is about to end the pair.
        let Some(backing) = queue.backings.find(namespace) else { return };
        let place = (queue.subsystem, namespace);
        let claim = cx.shared.claim(self.route, backing.id, place, blocks);
        pair.has_claim = true;
        fused.claim = Some(claim);
    }

    /// Gives up the claim of a pair that has ended or will not start.
    fn give_up_claim(&mut self, cx: &mut Context) {
        let Some(fused) = &mut self.fused else { return };
        if let Some(claim) = fused.claim.take() {
            fused.pairs.iter_mut().for_each(|pair| pair.has_claim = false);
            cx.shared.give_up(&claim);
        }
    }

    /// Starts the pair that now holds its claim.
    pub(crate) fn granted(&mut self, cx: &mut Context, claim: &Claim) {
        let Some(fused) = &mut self.fused else { return };
        if fused.claim.as_deref() != Some(claim) {
            return;
        }
        let pair = fused.pairs.iter().find(|pair| pair.has_claim && !pair.broken);
        let first = pair.map(|pair| pair.first);
        match first.filter(|_| self.is_serving()) {
            Some(first) => self.wake(cx, first, Gate::Claim),
            None => self.give_up_claim(cx),
        }
        self.list(cx);
    }

    /// Reads the blocks for the comparison of the first command. The pair must hold its claim.
    pub(super) fn compare_fused(&mut self, cx: &mut Context, first: SlotId) -> Result<(), Status> {
        let Work::Io(IoCommand::Compare { namespace, lba, blocks, data, .. }) =
            self.request(first).work
        else {
            unreachable!("the first command is a Compare")
        };
        let fused = self.fused.as_mut().expect("the command belongs to a pair");
        let claim = fused.claim.clone().expect("granted just now");
        let second = fused.pair_of(first).expect("granted just now").second;
        if let Err(status) = self.check_access(second) {
            // [`Self::settle_fused`] ends the first half at the end of the tick.
            self.respond_and_release(cx, second, status, 0);
            return Ok(());
        }
        let is_same = matches!(&self.queue, Queue::Io(queue)
            if queue.backings.find(namespace).is_some_and(|it| it.id == claim.backing));
        if !is_same {
            return Err(Status::INVALID_NAMESPACE.with_dnr());
        }
        let volume = self.volume(cx, namespace)?;
        let buffer = cx.reactor.buffers().take(data.length() as usize);
        let op = Op::read(lba.0, blocks.0, buffer, self.token(first));
        self.submit(cx, first, volume, op);
        self.set_stage(second, Stage::Comparing);
        Ok(())
    }

    fn set_stage(&mut self, slot: SlotId, stage: Stage) {
        if let Some(pair) = self.fused.as_mut().and_then(|fused| fused.pair_of(slot)) {
            pair.stage = stage;
        }
    }

    /// Handles the end of a block operation of a fused pair. Returns false if the operation belongs
    /// to another command; the caller must then send the response.
    pub(super) fn ends_half(&mut self, cx: &mut Context, slot: SlotId) -> bool {
        let Some(pair) = self.fused.as_mut().and_then(|fused| fused.pair_of(slot)) else {
            return false;
        };
        let (first, second, stage) = (pair.first, pair.second, pair.stage);
        match stage {
            Stage::Comparing if slot == first => self.compared(cx, first, second),
            Stage::Writing if slot == second => {
                self.give_up_claim(cx);
                return false;
            }
            _ => return false,
        }
        true
    }

    /// Compares the blocks that were read. Then either the second command writes, or both commands
    /// fail.
    fn compared(&mut self, cx: &mut Context, first: SlotId, second: SlotId) {
        let is_broken = |pair: &Pair| pair.broken || pair.ended[1];
        let pair = self.fused.as_mut().and_then(|fused| fused.pair_of(first));
        let is_broken = pair.as_deref().is_none_or(is_broken);
        if !self.is_serving() {
            self.give_up_claim(cx);
            [first, second].into_iter().for_each(|slot| self.release(cx, slot));
            self.fused.iter_mut().for_each(|fused| fused.pairs.clear());
            return;
        }
        let request = self.request(first);
        let is_equal = request.buffer.as_deref() == request.second.as_deref();
        let status = match request.status {
            Status::SUCCESS if is_broken => Status::ABORTED_FAILED_FUSED,
            Status::SUCCESS if !is_equal => Status::COMPARE_FAILURE.with_dnr(),
            status => status,
        };
        if status.is_success() {
            self.wake(cx, second, Gate::Partner);
        } else {
            self.respond_and_release(cx, first, status, 0);
        }
    }

    /// Starts the write of the second half after a successful comparison.
    pub(super) fn write_fused(&mut self, cx: &mut Context, second: SlotId) -> Result<(), Status> {
        let Work::Io(IoCommand::Write { namespace, lba, blocks, fua, .. }) =
            self.request(second).work
        else {
            unreachable!("the second command is a Write")
        };
        let volume = self.volume(cx, namespace)?;
        let pair = self.fused.as_mut().and_then(|fused| fused.pair_of(second));
        let first = pair.expect("the Compare has set the pair").first;
        // From this point on, the write executes even if the connection closes.
        self.respond_and_release(cx, first, Status::SUCCESS, 0);
        self.set_stage(second, Stage::Writing);
        let buffer = self.request(second).buffer.take().expect("pulled into a buffer");
        let op = Op { fua, ..Op::write(lba.0, blocks.0, buffer, self.token(second)) };
        self.request(second).operations += 1;
        self.pending.operations += 1;
        self.trace(second, Step::Submits(op.lba, op.blocks));
        cx.volumes.submit_claimed(volume, op);
        Ok(())
    }

    /// Ends the remaining halves of failed pairs, and claims the blocks of the next pair.
    pub(super) fn settle_fused(&mut self, cx: &mut Context) {
        let Some(fused) = &mut self.fused else { return };
        fused.is_news = false;
        let is_over = |pair: &mut Pair| pair.ended == [true; 2];
        fused.pairs.retain_mut(|pair| !is_over(pair));
        let left = fused.pairs.iter().filter(|pair| pair.broken).map(|pair| match pair.ended[0] {
            true => pair.second,
            false => pair.first,
        });
        for slot in left.collect::<Vec<_>>() {
            if self.request(slot).operations == 0 {
                self.end_half(cx, slot, Status::ABORTED_FAILED_FUSED);
            }
        }
        let Some(fused) = &mut self.fused else { return };
        fused.pairs.retain_mut(|pair| !is_over(pair));
        if !fused.pairs.iter().any(|pair| pair.has_claim) {
            self.give_up_claim(cx);
        }
        self.claim_next(cx);
    }

    /// Drops all pairs that are not executing when the connection closes.
    pub(super) fn close_fused(&mut self, cx: &mut Context) {
        let Some(fused) = &mut self.fused else { return };
        // After a failed comparison, a pair writes nothing more.
        let is_begun = |pair: &Pair| match pair.stage {
            Stage::Comparing => !pair.broken,
            Stage::Writing => true,
            Stage::Waiting | Stage::InLine => false,
        };
        fused.last = None;
        fused.pairs.retain(is_begun);
        if !fused.pairs.iter().any(|pair| pair.has_claim) {
            self.give_up_claim(cx);
        }
    }

    /// Appends to `under_way` the commands under way that change the claimed blocks.
    pub(crate) fn changing(&mut self, claim: &Claim, under_way: &mut Vec<UnderWay>) {
        // This includes operations of closed queues, because the session keeps its owner.
        let is_its = self.owner.as_ref().is_some_and(|owner| owner.subsystem == claim.subsystem);
        if !is_its || self.pending.operations == 0 {
            return;
        }
        for (request, index) in self.requests.iter().zip(0..) {
            let Work::Io(command) = &request.work else { continue };
            let copying = request.progress.copying.as_ref();
            // A Copy step that still reads has not changed anything. The step's write will be
            // parked.
            let only_reads = copying.is_some_and(|copying| copying.is_reading());
            let Some(change) = Change::of(command).filter(|_| !only_reads) else { continue };
            if request.operations > 0
                && change.namespace == claim.namespace
                && change.blocks.start < claim.blocks.end
                && claim.blocks.start < change.blocks.end
            {
                under_way.push((self.route.key, SlotId(index)));
            }
        }
    }
}
