//! Compare, Verify, Write Zeroes, deallocation and Copy commands take turns. With such a command, a
//! host can cause much work at a namespace with few bytes on the network, so the network does not
//! limit this work.
//!
//! Verify, Copy and deallocation execute in several steps; a Compare or a Write Zeroes is a single
//! step. The connections of a core take turns to start a step. The core limits the bytes charged
//! for concurrent steps, and for the steps started in one tick. A step takes its buffers when it
//! starts, so a waiting command holds no memory. A command of a closed connection starts no further
//! step.
//!
//! Each namespace has its own line, and may always have one step under way. So steps on a slow disk
//! cannot use up the limit and stop the steps at other namespaces.

use super::copy::Copying;
use super::{Session, SessionRequest, Work};
use crate::context::Context;
use crate::lifecycle::{Gate, Lifecycle, Path};
use crate::limits;
use crate::transport::Transport;
use crate::volumes::VolumeId;
use farblock_block::Op;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{DeallocateRanges, IoCommand};
use farblock_proto::ids::{BlockCount, Lba, NamespaceId};
use farblock_wire::Status;
use std::collections::VecDeque;

/// The progress of a command that executes in steps.
#[derive(Default)]
pub(super) struct Progress {
    /// The number of blocks that a Verify has read or is reading.
    verified_blocks: u32,
    pub(super) ranges: DeallocateRanges,
    pub(super) copying: Option<Box<Copying>>,
    /// The line in which the command waits, or which is charged for its step.
    line: Option<VolumeId>,
    step_bytes: usize,
}

/// The commands of a connection that wait for their turn, by the line of their namespace.
#[derive(Default)]
pub(super) struct Turns {
    waiting: Vec<(VolumeId, VecDeque<SlotId>)>,
}

impl Turns {
    /// Drops all waiting commands. Returns the lines in which they waited.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = VolumeId> {
        self.waiting.drain(..).map(|(line, _)| line)
    }

    /// Removes a waiting command. Returns the command's line if no other command of this connection
    /// waits in it.
    pub(super) fn withdraw(&mut self, slot: SlotId) -> Option<VolumeId> {
        let place = self.waiting.iter().position(|(_, slots)| slots.contains(&slot))?;
        let slots = &mut self.waiting[place].1;
        slots.retain(|waits| *waits != slot);
        let is_left = slots.is_empty();
        is_left.then(|| self.waiting.swap_remove(place).0)
    }

    /// Appends a command to a line. Returns true if it is now the connection's only command in that
    /// line.
    fn push(&mut self, line: VolumeId, slot: SlotId) -> bool {
        if let Some((_, slots)) = self.waiting.iter_mut().find(|(other, _)| *other == line) {
            slots.push_back(slot);
            return false;
        }
        self.waiting.push((line, VecDeque::from([slot])));
        true
    }

    /// Takes the first command of a line. The returned flag tells whether more commands of this
    /// connection wait in the line.
    fn pop(&mut self, line: VolumeId) -> Option<(SlotId, bool)> {
        let place = self.waiting.iter().position(|(other, _)| *other == line)?;
        let slots = &mut self.waiting[place].1;
        let slot = slots.pop_front();
        let more = !slots.is_empty();
        if !more {
            self.waiting.swap_remove(place);
        }
        slot.map(|slot| (slot, more))
    }
}

impl SessionRequest {
    pub(super) fn has_steps_left(&self) -> bool {
        match self.work {
            Work::Io(IoCommand::Verify { blocks, .. }) => self.progress.verified_blocks < blocks.0,
            Work::Io(IoCommand::Deallocate { .. }) => !self.progress.ranges.is_empty(),
            Work::Io(IoCommand::Copy { .. }) => {
                self.progress.copying.as_ref().is_some_and(|copying| copying.has_more())
            }
            _ => false,
        }
    }
}

impl<T: Transport> Session<T> {
    /// Makes a command wait in a line, from which [`Self::schedule`] takes it.
    pub(super) fn wait_in_line(&mut self, cx: &mut Context, slot: SlotId, line: VolumeId) {
        self.request(slot).progress.line = Some(line);
        if self.turns.push(line, slot) {
            cx.in_place.join(line, self.route.key);
        }
    }

    /// Starts the step of the first command in a line.
    pub(crate) fn schedule(&mut self, cx: &mut Context, line: VolumeId) {
        let Some((slot, more)) = self.turns.pop(line) else { return };
        if more {
            cx.in_place.join(line, self.route.key);
        }
        self.wake(cx, slot, Gate::Turn);
        self.list(cx);
    }

    pub(super) fn step(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        command: IoCommand,
    ) -> Result<(), Status> {
        match command {
            IoCommand::Compare { namespace, lba, blocks, data, .. } => {
                let volume = self.volume(cx, namespace)?;
                let bytes = data.length() as usize;
                self.begin_step(cx, slot, bytes);
                let buffer = cx.reactor.buffers().take(bytes);
                self.submit(cx, slot, volume, Op::read(lba.0, blocks.0, buffer, self.token(slot)));
                Ok(())
            }
            IoCommand::WriteZeroes { namespace, lba, blocks, deallocate, fua } => {
                let volume = self.volume(cx, namespace)?;
                self.begin_step(cx, slot, limits::STEP_BYTES);
                let op = Op::write_zeroes(lba.0, blocks.0, deallocate, self.token(slot));
                self.submit(cx, slot, volume, Op { fua, ..op });
                Ok(())
            }
            IoCommand::Verify { namespace, lba, blocks, .. } => {
                self.verify(cx, slot, namespace, lba, blocks)
            }
            IoCommand::Deallocate { namespace, .. } => self.deallocate(cx, slot, namespace),
            IoCommand::Copy { .. } => self.read_to_copy(cx, slot),
            _ => unreachable!("the command does not take turns"),
        }
    }

    /// Moves the charge for the step under way to another namespace's line.
    pub(super) fn move_step(&mut self, cx: &mut Context, slot: SlotId, volume: VolumeId) {
        let progress = &mut self.request(slot).progress;
        let line = progress.line.replace(volume).expect("the command waited for its turn");
        cx.in_place.end(line, progress.step_bytes);
        cx.in_place.begin(volume, progress.step_bytes);
    }

    pub(super) fn begin_step(&mut self, cx: &mut Context, slot: SlotId, bytes: usize) {
        let progress = &mut self.request(slot).progress;
        progress.step_bytes = bytes;
        let line = progress.line.expect("the command waited for its turn");
        cx.in_place.begin(line, bytes);
    }

    /// Ends a command's step. Returns true if the command waits for another turn.
    pub(super) fn ends_step(&mut self, cx: &mut Context, slot: SlotId) -> bool {
        let is_serving = self.is_serving();
        let request = self.request(slot);
        let step_bytes = std::mem::take(&mut request.progress.step_bytes);
        let Some(line) = request.progress.line.filter(|_| step_bytes > 0) else { return false };
        cx.in_place.end(line, step_bytes);
        let goes_on = request.has_steps_left() && is_serving && request.status.is_success();
        // Release the buffer, since a waiting command must hold no memory.
        let spent = request.buffer.take_if(|_| goes_on);
        spent.into_iter().for_each(|buffer| cx.reactor.buffers().give(buffer));
        if goes_on {
            let request = self.request(slot);
            request.life = Lifecycle::new(request.life.path());
            self.admit(cx, slot);
        }
        goes_on
    }

    fn verify(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        namespace: NamespaceId,
        lba: Lba,
        blocks: BlockCount,
    ) -> Result<(), Status> {
        let volume = self.volume(cx, namespace)?;
        let geometry = cx.volumes.geometry(volume);
        let most = match geometry.max_blocks {
            0 => u32::MAX,
            most => most,
        };
        let done_blocks = self.request(slot).progress.verified_blocks;
        let step = (limits::STEP_BYTES as u32 / geometry.block_size).max(1);
        let step = step.min(most).min(blocks.0 - done_blocks);
        let bytes = (step * geometry.block_size) as usize;
        self.request(slot).progress.verified_blocks += step;
        self.begin_step(cx, slot, bytes);
        let buffer = cx.reactor.buffers().take(bytes);
        let op = Op::read(lba.0 + u64::from(done_blocks), step, buffer, self.token(slot));
        self.submit(cx, slot, volume, op);
        Ok(())
    }

    pub(super) fn prepare_deallocation(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        nsid: NamespaceId,
        ranges: u16,
    ) -> Result<Option<Path>, Status> {
        let info = self.namespace_info(nsid).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        let list = self.request(slot).buffer.take().expect("pulled into a buffer");
        let parsed = DeallocateRanges::parse(&list, ranges, &info);
        cx.reactor.buffers().give(list);
        let ranges = parsed?;
        if ranges.is_empty() {
            self.respond_and_release(cx, slot, Status::SUCCESS, 0);
            return Ok(None);
        }
        self.request(slot).progress.ranges = ranges;
        Ok(Some(Path::Step))
    }

    fn deallocate(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        nsid: NamespaceId,
    ) -> Result<(), Status> {
        let volume = self.volume(cx, nsid)?;
        let block_size = u64::from(cx.volumes.geometry(volume).block_size);
        let mut left = (limits::DEALLOCATE_STEP_BYTES / block_size) as u32;
        self.begin_step(cx, slot, limits::STEP_BYTES);
        for _ in 0..limits::DEALLOCATE_STEP_RANGES {
            let Some((lba, blocks)) = self.request(slot).progress.ranges.next_part(left) else {
                break;
            };
            self.submit(cx, slot, volume, Op::deallocate(lba.0, blocks.0, self.token(slot)));
            left -= blocks.0;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_place::InPlace;
    use crate::route::ConnectionKey;

    #[test]
    fn a_connection_that_leaves_and_rejoins_a_line_has_one_turn() {
        let (mut turns, mut core) = (Turns::default(), InPlace::default());
        let (line, other) = (VolumeId(1), VolumeId(2));
        let (greedy, modest) = (ConnectionKey(1), ConnectionKey(2));
        for slot in 0..100 {
            assert!(turns.push(line, SlotId(slot)), "the first");
            core.join(line, greedy);
            assert_eq!(turns.withdraw(SlotId(slot)), Some(line));
            core.leave(line, greedy);
        }
        assert_eq!(core.next(), None);
        assert!(turns.push(line, SlotId(0)) && !turns.push(line, SlotId(1)));
        core.join(line, greedy);
        core.join(line, modest);
        core.leave(other, modest);
        assert_eq!(turns.withdraw(SlotId(1)), None, "another command waits");
        assert_eq!(turns.withdraw(SlotId(7)), None);
        assert_eq!(core.next(), Some((line, greedy)));
        assert_eq!(core.next(), Some((line, modest)));
        assert_eq!(core.next(), None);
        assert!(turns.clear().eq([line]));
    }
}
