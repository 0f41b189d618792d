//! A queue on a file. It turns each operation into a sequence of system calls.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farblock_block::{BlockError, Command, Completion, Op, Queue};
use farblock_reactor::os::{self, File};
use farblock_reactor::{Buffer, Event, FileId, FileOp, Reactor, TaskId, Waker};

use super::FileShared;
use super::overlaps::Ticket;
use farblock_block::slab::Slab;

/// The number of zero bytes per write, if the file system cannot zero ranges.
const FILL_BYTES: u64 = 1 << 20;

/// The current step of an operation, which the system is executing.
///
/// ```text
/// read, write   Transfer or Copy ───────────────────────────────────────► complete
/// flush         Sync ───────────────────────────────────────────────────► complete
/// write zeroes  (Punch, if it may) ► ZeroRange ► Fill ► (Sync, if fua) ─► complete
/// deallocate    Punch ──────────────────────────────────────────────────► complete
/// ```
///
/// To write zeroes, the queue has three steps to choose from: `Punch`, `ZeroRange` and `Fill`. If
/// the system refuses one, the queue tries the next. If the system refuses `Punch` for deallocate,
/// the operation completes without a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The system reads or writes the buffer of the operation.
    Transfer,
    /// The system reads or writes an aligned copy of the buffer.
    Copy,
    /// The system flushes the file.
    Sync,
    /// The system punches a hole.
    Punch,
    /// The system marks a range as zero.
    ZeroRange,
    /// The system writes zeroes. This many bytes have been written so far.
    Fill(u64),
}

/// The result of a finished step: another step or a completion.
enum Next {
    Step(Step),
    Complete(Result<(), BlockError>),
}

struct Pending {
    op: Op,
    step: Step,
    /// The claim on the operation's range, if the file serializes overlapping operations.
    ticket: Option<Ticket>,
}

pub(super) struct FileQueue {
    shared: Arc<FileShared>,
    reactor: Reactor,
    task: TaskId,
    file: FileId,
    pending: Slab<Pending>,
    /// The operations that wait for a claim, because other operations have claimed overlapping
    /// ranges.
    waiting: Vec<u64>,
    /// Woken when a claim of a waiting operation is granted.
    waker: Arc<Waker>,
    /// Completions that `poll` has not returned yet.
    done: Vec<Completion>,
    /// The queue keeps this vector to reuse its memory.
    events: Vec<Event>,
    /// Operations that have finished since the last poll started. Their results are valid only if
    /// no program has truncated the file.
    ended: Vec<(Op, Result<(), BlockError>)>,
}

impl FileQueue {
    pub(super) fn new(
        file: File,
        shared: Arc<FileShared>,
        reactor: &Reactor,
        parent: TaskId,
    ) -> io::Result<FileQueue> {
        let file = reactor.add_file(file)?;
        let task = reactor.add_child(parent);
        Ok(FileQueue {
            shared,
            reactor: reactor.clone(),
            task,
            file,
            pending: Slab::new(),
            waiting: Vec::new(),
            waker: Arc::new(reactor.waker(task)),
            done: Vec::new(),
            events: Vec::new(),
            ended: Vec::new(),
        })
    }

    fn first(&self, op: &Op) -> Next {
        if let Err(error) = op.check(&self.shared.geometry()) {
            return Next::Complete(Err(error));
        }
        if let Err(error) = self.shared.check_extent(op) {
            return Next::Complete(Err(error));
        }
        if op.command.writes() {
            self.shared.extent.note_write();
        }
        match op.command {
            // The file was opened read-only, so this queue has written nothing that needs a flush.
            Command::Flush if self.shared.geometry.read_only => Next::Complete(Ok(())),
            Command::Flush if os::has_mistake("file: a flush does nothing") => {
                Next::Complete(Ok(()))
            }
            Command::Flush => Next::Step(Step::Sync),
            _ if op.blocks == 0 => Next::Complete(Ok(())),
            Command::Read | Command::Write => {
                let buffer = op.buffer.as_ref().expect("the operation has a buffer");
                let aligned = buffer.is_aligned(self.shared.memory_alignment);
                Next::Step(if aligned { Step::Transfer } else { Step::Copy })
            }
            Command::Deallocate if self.shared.may(&self.shared.can_punch) => {
                Next::Step(Step::Punch)
            }
            Command::Deallocate => Next::Complete(Ok(())),
            Command::WriteZeroes { .. } if os::has_mistake("file: zeroes are not written") => {
                Next::Complete(Ok(()))
            }
            Command::WriteZeroes { deallocate } => Next::Step(self.zero_step(deallocate)),
        }
    }

    /// Returns the step with which to write zeroes: the most efficient of those that the system has
    /// not refused.
    fn zero_step(&self, deallocate: bool) -> Step {
        if deallocate && self.shared.may(&self.shared.can_punch) {
            Step::Punch
        } else if self.shared.may(&self.shared.can_zero) {
            Step::ZeroRange
        } else {
            Step::Fill(0)
        }
    }

    /// Submits the current step of an operation. `spare` is a buffer of zeroes to reuse.
    fn start(&mut self, key: u64, spare: Option<Buffer>) {
        let geometry = &self.shared.geometry;
        let Pending { op, step, .. } = self.pending.at(key);
        // The range fields of a flush may contain anything, so ignore them.
        let (lba, blocks) = if *step == Step::Sync { (0, 0) } else { (op.lba, op.blocks) };
        let (offset, len) = (geometry.offset(lba), geometry.offset(u64::from(blocks)));
        let request = match *step {
            Step::Transfer => {
                let buffer = op.buffer.take().expect("a transfer has a buffer");
                transfer(op, buffer, offset)
            }
            Step::Copy => {
                let own = op.buffer.as_ref().expect("a transfer has a buffer");
                let mut copy = self.reactor.buffers().take(own.len());
                if op.command == Command::Write {
                    copy.copy_from_slice(own);
                }
                transfer(op, copy, offset)
            }
            Step::Sync => FileOp::Sync,
            Step::Punch => FileOp::PunchHole { offset, len },
            Step::ZeroRange => FileOp::ZeroRange { offset, len },
            Step::Fill(filled) => {
                let length = FILL_BYTES.min(len - filled) as usize;
                let mut zeroes = spare.unwrap_or_else(|| {
                    let mut buffer = self.reactor.buffers().take(length);
                    buffer.fill(0);
                    buffer
                });
                zeroes.truncate(length);
                FileOp::Write { buffer: zeroes, offset: offset + filled, durable: false }
            }
        };
        self.reactor.file(self.task, self.file, request, key);
    }

    /// Handles the result of a step.
    fn advance(&mut self, key: u64, mut buffer: Option<Buffer>, result: io::Result<()>) {
        let next = self.next(key, &mut buffer, result);
        match next {
            Next::Step(step) => {
                self.pending.at(key).step = step;
                self.start(key, buffer);
            }
            Next::Complete(result) => {
                if let Some(buffer) = buffer {
                    self.reactor.buffers().give(buffer);
                }
                let Pending { op, ticket, .. } = self.pending.remove(key);
                self.release(ticket);
                self.ended.push((op, result));
            }
        }
    }

    /// Completes the finished operations. If another program has truncated the file meanwhile,
    /// operations on missing blocks fail: a write may be lost, and a read may have returned zeroes
    /// from a gap.
    fn conclude(&mut self) {
        let has = |command: fn(&Op, bool) -> bool| {
            self.ended.iter().any(|(op, result)| command(op, result.is_ok()))
        };
        let is_whole = if has(|op, is_ok| is_ok && op.command.writes()) {
            self.shared.is_whole_after_writes()
        } else {
            if has(|op, is_ok| !is_ok && op.command.reads()) {
                self.shared.look_after_failed_read();
            }
            !self.shared.extent.is_cut()
        };
        for (op, result) in self.ended.drain(..) {
            let result =
                if is_whole { result } else { result.and_then(|()| self.shared.extent.check(&op)) };
            self.done.push(op.complete(result));
        }
    }

    /// Claims the range of an operation if the file needs claims. Returns false if the operation
    /// must wait.
    fn claim(&mut self, key: u64) -> bool {
        let Some(overlaps) = &self.shared.overlaps else { return true };
        let Pending { op, ticket, .. } = self.pending.at(key);
        if op.command == Command::Flush {
            return true;
        }
        let start = self.shared.geometry.offset(op.lba);
        let range = start..start + self.shared.geometry.offset(u64::from(op.blocks));
        let (claim, is_granted) = overlaps.claim(range, op.command.writes(), &self.waker);
        *ticket = Some(claim);
        is_granted
    }

    fn release(&self, ticket: Option<Ticket>) {
        if let (Some(overlaps), Some(ticket)) = (&self.shared.overlaps, ticket) {
            overlaps.release(ticket);
        }
    }

    /// Starts the waiting operations whose claims have been granted.
    fn start_granted(&mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(overlaps) = &shared.overlaps else { return };
        let mut at = 0;
        while let Some(&key) = self.waiting.get(at) {
            let ticket = self.pending.at(key).ticket.expect("the operation waits for its claim");
            if overlaps.is_granted(ticket) {
                self.waiting.swap_remove(at);
                self.start(key, None);
            } else {
                at += 1;
            }
        }
    }

    /// Determines what follows a finished step. If `buffer` is the buffer of the operation, this
    /// moves it back into the operation.
    fn next(&mut self, key: u64, buffer: &mut Option<Buffer>, result: io::Result<()>) -> Next {
        // Borrow `shared` instead of cloning the `Arc`, because all cores would then write to its
        // reference count.
        let FileQueue { shared, pending, .. } = self;
        let Pending { op, step, .. } = pending.at(key);
        let command = op.command;
        let refused = result.as_ref().is_err_and(is_refusal);
        if let Err(error) = &result
            && !command.reads()
        {
            shared.protection.note_refusal(error);
        }
        let result = result.map_err(|error| BlockError::from_io(command, &error));
        match *step {
            Step::Transfer => {
                op.buffer = buffer.take();
                if os::has_mistake("file: a failed operation counts as done") {
                    return Next::Complete(Ok(()));
                }
                Next::Complete(result)
            }
            Step::Copy => {
                if let (Ok(()), Command::Read) = (result, command)
                    && let (Some(own), Some(copy)) = (&mut op.buffer, buffer)
                {
                    own.copy_from_slice(copy);
                }
                Next::Complete(result)
            }
            Step::Punch if refused => {
                forget(&shared.can_punch, result);
                match command {
                    Command::Deallocate => Next::Complete(Ok(())),
                    _ if shared.may(&shared.can_zero) => Next::Step(Step::ZeroRange),
                    _ => Next::Step(Step::Fill(0)),
                }
            }
            Step::ZeroRange if refused => {
                forget(&shared.can_zero, result);
                Next::Step(Step::Fill(0))
            }
            Step::Fill(filled) if result.is_ok() => {
                let filled = filled + buffer.as_ref().map_or(0, |buffer| buffer.len() as u64);
                if filled < shared.geometry.offset(u64::from(op.blocks)) {
                    return Next::Step(Step::Fill(filled));
                }
                after_zeroes(op)
            }
            Step::Punch | Step::ZeroRange if result.is_ok() => after_zeroes(op),
            Step::Sync | Step::Punch | Step::ZeroRange | Step::Fill(_) => Next::Complete(result),
        }
    }
}

impl Queue for FileQueue {
    fn submit(&mut self, op: Op) {
        match self.first(&op) {
            Next::Complete(result) => self.done.push(op.complete(result)),
            Next::Step(step) => {
                let key = self.pending.insert(Pending { op, step, ticket: None });
                if self.claim(key) {
                    self.start(key, None);
                } else {
                    self.waiting.push(key);
                }
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut events = std::mem::take(&mut self.events);
        self.reactor.take_events(self.task, &mut events);
        for event in events.drain(..) {
            match event {
                Event::File { user_data, buffer, result } => {
                    self.advance(user_data, buffer, result);
                }
                other => unreachable!("a file queue has no sockets and no timer: {other:?}"),
            }
        }
        self.events = events;
        self.conclude();
        if !self.waiting.is_empty() {
            self.start_granted();
        }
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.pending.len() + self.ended.len() + self.done.len()
    }
}

impl Drop for FileQueue {
    fn drop(&mut self) {
        let pending: Vec<_> = self.pending.drain().collect();
        for Pending { op, ticket, .. } in pending {
            self.release(ticket);
            op.abandon();
        }
        // The reactor recycles the buffers that the system still uses.
        self.reactor.remove_task(self.task);
        self.reactor.remove_file(self.file);
    }
}

fn transfer(op: &Op, buffer: Buffer, offset: u64) -> FileOp {
    match op.command {
        Command::Read => FileOp::Read { buffer, offset },
        _ => FileOp::Write { buffer, offset, durable: op.fua },
    }
}

fn after_zeroes(op: &Op) -> Next {
    let durable = op.fua && op.command != Command::Deallocate;
    if durable { Next::Step(Step::Sync) } else { Next::Complete(Ok(())) }
}

/// Whether the error means that the system does not support the operation, in general or for this
/// range. An operation that fails with such an error has not changed the range.
fn is_refusal(error: &io::Error) -> bool {
    let meaning = BlockError::from_io(Command::Deallocate, error);
    meaning == BlockError::Unsupported || error.kind() == io::ErrorKind::InvalidInput
}

/// Clears `ability` if the system does not support the operation at all. Ignores a refusal that
/// concerns one range.
fn forget(ability: &AtomicBool, result: Result<(), BlockError>) {
    if result == Err(BlockError::Unsupported) {
        ability.store(false, Ordering::Relaxed);
    }
}
