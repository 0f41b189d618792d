//! The operations and commands of an I/O queue; see [the queue](super).

use super::{Settings, TICKS_PER_TIMEOUT};
use crate::limits;
use crate::shared::NamespaceState;
use crate::status::{self, Failures};
use crate::transport::{Commands, DataPlace, Moving, Order, Part, Transport};
use farblock_block::{BlockError, Command, Completion, Geometry, Op};
use farblock_proto::capsule::SlotId;
use farblock_proto::host::command;
use farblock_reactor::{Buffer, Reactor, os};
use farblock_wire::nvm::DsmRange;
use farblock_wire::{Cqe, Status};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::trace;

/// The name under which `RUST_LOG` sets the log level of commands.
const QUEUE: &str = "farblock_host::queue";

#[derive(Clone, Copy)]
struct Slot<P> {
    /// The index of the command's operation, or [`FREE`].
    active: u32,
    /// The start of the command's data in the operation's buffer.
    start: usize,
    part: P,
    /// The tick at which the queue sent the command.
    tick: u32,
}

const FREE: u32 = u32::MAX;

impl<P: Part> Slot<P> {
    const UNUSED: Slot<P> = Slot { active: FREE, start: 0, part: P::NONE, tick: 0 };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OperationKind {
    Read,
    Write,
    Flush,
    WriteZeroes,
    /// The controller has no Write Zeroes command, so Write commands send zeroes from a buffer that
    /// the table owns.
    SendZeroes,
    /// Dataset Management commands. The table's buffer holds their ranges.
    Deallocate,
}

impl OperationKind {
    /// Whether the data are in a buffer of the table instead of the operation's buffer.
    fn has_own_buffer(self) -> bool {
        matches!(self, OperationKind::SendZeroes | OperationKind::Deallocate)
    }
}

struct Active<P> {
    /// The operation, without its buffer, which is in `place`.
    op: Op,
    kind: OperationKind,
    place: P,
    /// The number of blocks for which the table has issued commands.
    issued_blocks: u32,
    /// Whether the operation needs no more commands.
    issued_all: bool,
    commands_in_flight: u32,
    result: Result<(), BlockError>,
    /// Set if a command failed for a transient reason: the delay before the operation's retry.
    again: Option<Duration>,
    retries: u8,
}

pub(crate) struct Table<T: Transport> {
    reactor: Reactor,
    namespace: Arc<NamespaceState>,
    settings: Settings,
    slots: Vec<Slot<T::Part>>,
    free_slots: Vec<SlotId>,
    actives: Vec<Option<Active<T::Place>>>,
    free_actives: Vec<u32>,
    /// Operations with commands to issue, in the order of submission.
    waiting: VecDeque<u32>,
    /// Operations to retry, with the time of the retry.
    delayed: Vec<(Instant, u32)>,
    done: Vec<Completion>,
    active_count: usize,
    ticks: u32,
    lost: bool,
    /// The description of the controller's breach of the protocol; `None` once the queue has taken
    /// it.
    breach: Option<&'static str>,
    failures: Failures,
    /// Whether the queue logs each command. The queue reads the log level once, at its creation.
    is_traced: bool,
}

impl<T: Transport> Table<T> {
    pub(super) fn new(
        reactor: Reactor,
        namespace: Arc<NamespaceState>,
        settings: Settings,
    ) -> Table<T> {
        let depth = settings.depth;
        Table {
            reactor,
            namespace,
            slots: vec![Slot::UNUSED; usize::from(depth)],
            free_slots: (0..depth).rev().map(SlotId).collect(),
            actives: Vec::new(),
            free_actives: Vec::new(),
            waiting: VecDeque::new(),
            delayed: Vec::new(),
            done: Vec::new(),
            active_count: 0,
            ticks: 0,
            lost: false,
            breach: None,
            failures: Failures::default(),
            is_traced: tracing::enabled!(target: QUEUE, tracing::Level::TRACE),
            settings,
        }
    }

    /// Takes a new operation. Completes it at once if it needs no command; otherwise issues its
    /// commands while slots are free.
    pub(super) fn submit(&mut self, op: Op, out: &mut T::Outgoing) {
        let geometry = self.namespace.geometry();
        if self.lost {
            return self.done.push(op.complete(Err(BlockError::Disconnected)));
        }
        if let Err(error) = op.check(&geometry) {
            return self.done.push(op.complete(Err(error)));
        }
        let kind = match op.command {
            Command::Flush if geometry.volatile_cache => OperationKind::Flush,
            Command::Flush => return self.done.push(op.complete(Ok(()))),
            _ if op.blocks == 0 => return self.done.push(op.complete(Ok(()))),
            Command::Read => OperationKind::Read,
            Command::Write => OperationKind::Write,
            Command::WriteZeroes { .. } if self.settings.write_zeroes => OperationKind::WriteZeroes,
            Command::WriteZeroes { .. } => OperationKind::SendZeroes,
            Command::Deallocate if geometry.deallocate => OperationKind::Deallocate,
            Command::Deallocate => return self.done.push(op.complete(Ok(()))),
        };
        let index = self.activate(op, kind, &geometry);
        self.waiting.push_back(index);
        self.pump(out);
    }

    fn activate(&mut self, mut op: Op, kind: OperationKind, geometry: &Geometry) -> u32 {
        let place = match kind {
            OperationKind::Read | OperationKind::Write => {
                T::Place::here(op.buffer.take().expect("the op has a buffer"))
            }
            OperationKind::Flush | OperationKind::WriteZeroes => T::Place::NOWHERE,
            OperationKind::SendZeroes => {
                let wanted = u64::from(op.blocks) * u64::from(geometry.block_size);
                let length = wanted.min(u64::from(self.zeroes_bytes())) as usize;
                let mut buffer = self.reactor.buffers().take(length);
                buffer.fill(0);
                T::Place::here(buffer)
            }
            OperationKind::Deallocate => T::Place::here(self.deallocate_ranges(&op)),
        };
        let active = Active {
            op,
            kind,
            place,
            issued_blocks: 0,
            issued_all: false,
            commands_in_flight: 0,
            result: Ok(()),
            again: None,
            retries: 0,
        };
        self.active_count += 1;
        match self.free_actives.pop() {
            Some(index) => {
                self.actives[index as usize] = Some(active);
                index
            }
            None => {
                self.actives.push(Some(active));
                (self.actives.len() - 1) as u32
            }
        }
    }

    /// Returns a buffer with one range for each command of a deallocation.
    fn deallocate_ranges(&self, op: &Op) -> Buffer {
        let most = deallocate_blocks(&self.settings, op.blocks);
        let count = op.blocks.div_ceil(most);
        let mut buffer = self.reactor.buffers().take(count as usize * DsmRange::LEN);
        for (index, bytes) in (0..count).zip(buffer.chunks_exact_mut(DsmRange::LEN)) {
            let start = index * most;
            let blocks = most.min(op.blocks - start);
            command::deallocate_range(op.lba + u64::from(start), blocks).emit(bytes);
        }
        buffer
    }

    fn zeroes_bytes(&self) -> u32 {
        limits::ZEROES_BYTES.min(self.settings.command_bytes)
    }

    /// Resumes deferred data, and issues waiting commands while slots are free.
    pub(super) fn pump(&mut self, out: &mut T::Outgoing) {
        if self.lost {
            return;
        }
        T::resume(out, self);
        while let Some(&index) = self.waiting.front() {
            let active = self.actives[index as usize].as_ref().expect("waiting means active");
            if active.issued_all {
                self.waiting.pop_front();
                continue;
            }
            let Some(slot) = self.free_slots.pop() else { return };
            self.issue(index, slot, out);
        }
    }

    /// Issues the next command of an operation.
    fn issue(&mut self, index: u32, slot: SlotId, out: &mut T::Outgoing) {
        let block_size = self.namespace.geometry().block_size;
        let zeroes_blocks = self.zeroes_bytes() / block_size;
        let nsid = self.settings.nsid;
        let active = self.actives[index as usize].as_mut().expect("waiting means active");
        let most = match active.kind {
            OperationKind::Read | OperationKind::Write => {
                (self.settings.command_bytes / block_size).min(command::MAX_COMMAND_BLOCKS)
            }
            OperationKind::WriteZeroes => {
                self.settings.zeroes_blocks.min(command::MAX_COMMAND_BLOCKS)
            }
            OperationKind::SendZeroes => zeroes_blocks.min(command::MAX_COMMAND_BLOCKS),
            OperationKind::Deallocate => deallocate_blocks(&self.settings, active.op.blocks),
            OperationKind::Flush => u32::MAX,
        };
        let op = &active.op;
        let blocks = most.min(op.blocks - active.issued_blocks);
        let lba = op.lba + u64::from(active.issued_blocks);
        let bytes = || blocks * block_size;
        let command = match (active.kind, op.command) {
            (OperationKind::Read, _) => command::read(nsid, lba, blocks, bytes()),
            (OperationKind::Write | OperationKind::SendZeroes, _) => {
                command::write(nsid, lba, blocks, bytes(), op.fua)
            }
            (OperationKind::WriteZeroes, Command::WriteZeroes { deallocate }) => {
                command::write_zeroes(nsid, lba, blocks, deallocate, op.fua)
            }
            (OperationKind::WriteZeroes, other) => unreachable!("{other:?} does not write zeroes"),
            (OperationKind::Flush, _) => command::flush(nsid),
            (OperationKind::Deallocate, _) => command::deallocate(nsid, 1),
        };
        let start = match active.kind {
            OperationKind::Read | OperationKind::Write => {
                active.issued_blocks as usize * block_size as usize
            }
            OperationKind::Deallocate => (active.issued_blocks / most) as usize * DsmRange::LEN,
            _ => 0,
        };
        active.issued_blocks += blocks;
        active.issued_all = active.issued_blocks >= op.blocks;
        active.commands_in_flight += 1;
        let in_capsule_bytes = self.settings.in_capsule_bytes;
        let order = Order { slot, index, command: &command, start, in_capsule_bytes };
        let part = T::issue(out, &order, &mut active.place);
        if self.is_traced {
            let (kind, slot) = (active.kind, slot.0);
            trace!(target: QUEUE, nsid, slot, "sends {kind:?}: {blocks} blocks at LBA {lba}");
        }
        let tick = self.ticks;
        self.slots[usize::from(slot.0)] = Slot { active: index, start, part, tick };
    }

    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.delayed.iter().map(|(at, _)| *at).min()
    }

    /// Queues the operations whose retry is due.
    pub(super) fn retry(&mut self, now: Instant) {
        let waiting = &mut self.waiting;
        self.delayed.retain(|&(at, index)| {
            if at <= now {
                waiting.push_back(index);
            }
            at > now
        });
    }

    /// Counts a tick. Returns true if a command has timed out.
    pub(super) fn handle_tick(&mut self) -> bool {
        self.ticks = self.ticks.wrapping_add(1);
        let ticks = self.ticks;
        let late = |slot: &Slot<T::Part>| ticks.wrapping_sub(slot.tick) > TICKS_PER_TIMEOUT;
        self.slots.iter().any(|slot| slot.active != FREE && late(slot))
    }

    /// Whether no operation is active, so that none can time out.
    pub(super) fn is_idle(&self) -> bool {
        self.active_count == 0
    }

    pub(super) fn in_flight(&self) -> usize {
        self.active_count + self.done.len()
    }

    pub(super) fn take_completions(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Handles a lost connection. Operations whose buffer is in the table fail now. Operations
    /// whose buffer the transport uses fail when the transport has returned it.
    pub(super) fn lose(&mut self) {
        self.lost = true;
        self.waiting.clear();
        self.delayed.clear();
        self.slots.fill(Slot::UNUSED);
        for index in 0..self.actives.len() as u32 {
            let Some(active) = self.actives[index as usize].as_mut() else { continue };
            // An operation that has all answers and only waits for its buffer keeps its result.
            let again = active.again.take().is_some();
            if active.commands_in_flight > 0 || !active.issued_all || again {
                active.result = active.result.and(Err(BlockError::Disconnected));
            }
            active.commands_in_flight = 0;
            active.issued_all = true;
            self.finish(index);
        }
    }

    /// Takes the description of the controller's breach of the protocol. The caller then closes the
    /// connection.
    pub(super) fn take_breach(&mut self) -> Option<&'static str> {
        self.breach.take()
    }

    /// Checks that a closed connection has returned every buffer.
    pub(super) fn handle_closed(&mut self) {
        assert_eq!(self.active_count, 0, "a closed connection holds buffers");
    }

    /// Drops all operations without completions, to close the queue.
    pub(super) fn abandon(&mut self) {
        let pool = self.reactor.buffers();
        for active in self.actives.drain(..).flatten() {
            active.op.abandon();
            active.place.take().into_iter().for_each(|buffer| pool.give(buffer));
        }
        self.done.drain(..).filter_map(|done| done.buffer).for_each(|buffer| pool.give(buffer));
    }

    /// Checks that a command succeeded and moved all its data undamaged.
    fn judge(part: &T::Part, cqe: &Cqe, received: u32, intact: bool) -> Result<(), Judgement> {
        if !cqe.status().is_success() {
            return Err(Judgement::Status);
        }
        match intact {
            false => Err(Judgement::Damaged),
            true if part.is_short(received) => Err(Judgement::Short),
            true => Ok(()),
        }
    }
}

impl<T: Transport> Commands<T> for Table<T> {
    fn command(&mut self, slot: SlotId) -> Option<Moving<'_, T>> {
        let Slot { active: index, start, part, .. } = &mut self.slots[usize::from(slot.0)];
        let (index, start) = (*index, *start);
        let active = self.actives.get_mut(index as usize)?.as_mut()?;
        Some(Moving { index, start, part, place: &mut active.place })
    }

    fn place(&mut self, index: u32) -> &mut T::Place {
        &mut self.actives[index as usize].as_mut().expect("the transport used its buffer").place
    }

    fn find(&self, is_it: impl Fn(&T::Place) -> bool) -> Option<u32> {
        let is_it = |active: &Option<Active<T::Place>>| {
            active.as_ref().is_some_and(|active| is_it(&active.place))
        };
        self.actives.iter().position(is_it).map(|index| index as u32)
    }

    fn finish(&mut self, index: u32) {
        let entry = &mut self.actives[index as usize];
        let Some(active) = entry else { return };
        if active.commands_in_flight > 0 || !active.issued_all || active.place.is_away() {
            return;
        }
        if let Some(delay) = active.again.take()
            && active.result.is_ok()
        {
            active.retries += 1;
            (active.issued_blocks, active.issued_all) = (0, false);
            return match delay.is_zero() {
                true => self.waiting.push_back(index),
                false => self.delayed.push((os::now() + delay, index)),
            };
        }
        let Active { mut op, kind, place, result, .. } =
            entry.take().expect("the operation exists");
        if let Some(buffer) = place.take() {
            if kind.has_own_buffer() {
                self.reactor.buffers().give(buffer);
            } else {
                op.buffer = Some(buffer);
            }
        }
        self.active_count -= 1;
        self.free_actives.push(index);
        self.done.push(op.complete(result));
    }

    fn complete(&mut self, id: SlotId, cqe: &Cqe, received: u32, intact: bool) {
        if self.is_traced {
            let (nsid, status) = (self.settings.nsid, cqe.status());
            trace!(target: QUEUE, nsid, slot = id.0, "answered: {received} bytes, {status}");
        }
        let slot = std::mem::replace(&mut self.slots[usize::from(id.0)], Slot::UNUSED);
        self.free_slots.push(id);
        let nsid = self.settings.nsid;
        let active = self.actives[slot.active as usize].as_mut().expect("a slot in use is active");
        active.commands_in_flight -= 1;
        if let Err(judgement) = Table::<T>::judge(&slot.part, cqe, received, intact) {
            let command = active.op.command;
            let status = cqe.status();
            let error = match judgement {
                Judgement::Status => status::block_error(status, command),
                // The host closes the connection after this error, so report it as a lost
                // connection. A disk then repeats the operation on another one.
                Judgement::Short => BlockError::Disconnected,
                _ if command.reads() => BlockError::ReadFailed,
                _ => BlockError::WriteFailed,
            };
            if matches!(judgement, Judgement::Short) {
                self.breach = Some(match command.reads() {
                    true => "it reported success for a read without sending all data",
                    false => "it reported success for a write without requesting all data",
                });
            }
            // Issue no further commands of this operation.
            if !std::mem::replace(&mut active.issued_all, true) {
                self.waiting.retain(|&index| index != slot.active);
            }
            let is_worth_it = judgement.is_passing(status, error);
            if is_worth_it && active.retries < limits::COMMAND_RETRIES {
                let delay = match usize::from(status.retry_delay()) {
                    0 if error == BlockError::NotReady => limits::NOT_READY_PAUSE,
                    0 => Duration::ZERO,
                    which => self.settings.retry_delays[which - 1].min(limits::RETRY_DELAY_MAX),
                };
                active.again = active.again.max(Some(delay));
            } else if active.result.is_ok() {
                // Keep only the first error of the operation.
                active.result = Err(error);
            }
            let (lba, blocks) = (active.op.lba, active.op.blocks);
            self.failures.log(|| match judgement {
                Judgement::Status => {
                    tracing::info!(nsid, ?command, lba, blocks, %status, "a command failed");
                }
                Judgement::Damaged => {
                    tracing::info!(nsid, ?command, lba, blocks, "a data digest does not match");
                }
                Judgement::Short => {
                    tracing::info!(
                        nsid,
                        ?command,
                        lba,
                        blocks,
                        "the controller reported success without moving all data"
                    );
                }
            });
        }
        self.finish(slot.active);
    }
}

enum Judgement {
    /// The controller returned an error.
    Status,
    /// A digest did not match.
    Damaged,
    /// The controller reported success, but did not move all data.
    Short,
}

impl Judgement {
    /// Whether the error is transient, so that a retry on this path may succeed.
    fn is_passing(&self, status: Status, error: BlockError) -> bool {
        use BlockError::{NotReady, ReadFailed, WriteFailed};
        let failed = matches!(error, ReadFailed | WriteFailed | NotReady);
        match self {
            Judgement::Status => failed && !status.is_dnr(),
            Judgement::Damaged => true,
            Judgement::Short => false,
        }
    }
}

/// Returns the number of blocks per command for a deallocation of `blocks` blocks. If the
/// controller's limit would require more than [`limits::DEALLOCATE_COMMANDS`] commands, the number
/// exceeds that limit, and the controller refuses the commands.
fn deallocate_blocks(settings: &Settings, blocks: u32) -> u32 {
    settings.deallocate_blocks.max(blocks.div_ceil(limits::DEALLOCATE_COMMANDS))
}
