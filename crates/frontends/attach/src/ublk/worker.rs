//! A worker: one thread with one hardware queue of the device, one event loop and one queue into
//! the namespace.
//!
//! A tick (one round of the event loop) takes requests from the kernel, submits block operations,
//! handles completions, and then sends all answers to the kernel in one system call. Each tag (the
//! number of a request's slot) is in one of three states:
//!
//! ```text
//! kernel has it ──request──> worker has it ──answer──> kernel has it
//!        └──────device stops──────> ended
//! ```

use super::kernel::{Commands, Done};
use super::limits;
use super::uapi::{Descriptor, SECTOR_BYTES, flag, operation};
use farblock_block::{BlockError, Command, Completion, Geometry, Op, Queue};
use farblock_frontend::pieces::{self, Piece};
use farblock_frontend::{Core, Disk, Mailboxes, Seat};
use farblock_reactor::{Buffer, Reactor, TaskId};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The number of low bits of a block operation's token (its identifier) that hold the piece's
/// number. A piece is a part of a request. The higher bits hold the request's tag.
const PIECE_BITS: u32 = 32;

/// A message to a worker.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// The namespace's geometry has changed.
    Resized,
    /// The device is about to stop. Fail the requests that are still in flight at this time limit.
    Drain(Instant),
    /// Exit, and leave the device to another server.
    Leave,
}

/// The state that the threads of a server share.
pub(super) struct UblkShared {
    pub(super) disk: Disk,
    pub(super) orders: Mailboxes<Order>,
}

/// The request with a tag, if `busy`. Otherwise only the last request's memory, for reuse.
struct Slot {
    busy: bool,
    command: Command,
    fua: bool,
    /// The length of a read or write in bytes, which is the result of a success.
    bytes: u32,
    pieces: Vec<Piece>,
    /// The part of the buffer that the request does not use.
    rest: Option<Buffer>,
    /// The number of block operations of the request in flight.
    pending: usize,
    result: Result<(), BlockError>,
}

impl Slot {
    fn new() -> Slot {
        Slot {
            busy: false,
            command: Command::Flush,
            fua: false,
            bytes: 0,
            pieces: Vec::new(),
            rest: None,
            pending: 0,
            result: Ok(()),
        }
    }

    /// Joins the pieces of the buffer, and returns the whole buffer. `None` if a piece is missing.
    fn take_buffer(&mut self) -> Option<Buffer> {
        let mut whole: Option<Buffer> = None;
        for piece in self.pieces.drain(..) {
            // Only the operations of reads and writes have pieces of the buffer.
            if self.command.moves_data() {
                let part = piece.buffer?;
                match &mut whole {
                    Some(front) => front.unsplit(part),
                    None => whole = Some(part),
                }
            }
        }
        let rest = self.rest.take()?;
        match whole {
            Some(mut whole) => {
                whole.unsplit(rest);
                Some(whole)
            }
            None => Some(rest),
        }
    }
}

pub(super) struct Worker {
    /// `None` after the worker has given up: it has abandoned its operations, and fails all later
    /// requests.
    queue: Option<Box<dyn Queue>>,
    queue_task: TaskId,
    mail: TaskId,
    requests: TaskId,
    commands: Commands,
    // Drop the queue before the reactor, with which the queue is registered.
    reactor: Reactor,
    index: usize,
    shared: Arc<UblkShared>,
    /// Receives whether the kernel accepted this worker's first commands.
    asked: Sender<io::Result<()>>,
    geometry: Geometry,
    request_bytes: u32,
    /// The size of the part of each buffer that gets memory in advance, in bytes.
    resident_bytes: usize,
    slots: Vec<Slot>,
    /// The number of requests from the kernel that this worker has not answered.
    busy: usize,
    /// True if the worker has commands to submit to the kernel, or completed commands to fetch.
    look: bool,
    /// True if the queue may have completions.
    dirty: bool,
    deadline: Option<Instant>,
    leaving: bool,
}

impl Worker {
    /// Makes the state of the calling thread's worker.
    ///
    /// # Errors
    /// Fails if the reactor cannot watch the descriptor of the commands.
    pub(super) fn new(
        seat: Seat,
        shared: Arc<UblkShared>,
        (commands, event): (Commands, OwnedFd),
        (depth, request_bytes): (u16, u32),
        asked: Sender<io::Result<()>>,
    ) -> io::Result<Worker> {
        let Seat { index, count, queue, queue_task, reactor, mail } = seat;
        let requests = reactor.add_task();
        reactor.watch(requests, event)?;
        Ok(Worker {
            queue: Some(queue),
            queue_task,
            mail,
            requests,
            commands,
            geometry: shared.disk.geometry(),
            reactor,
            index,
            shared,
            asked,
            request_bytes,
            resident_bytes: limits::RESIDENT_BYTES / (usize::from(depth) * count),
            slots: (0..depth).map(|_| Slot::new()).collect(),
            busy: 0,
            look: true,
            dirty: false,
            deadline: None,
            leaving: false,
        })
    }

    /// Sends the first command for every tag.
    ///
    /// # Errors
    /// Fails if the kernel refuses the commands.
    fn ask(&mut self) -> io::Result<()> {
        for (tag, _) in (0..).zip(&self.slots) {
            self.commands.fetch(tag, resident(self.request_bytes as usize, self.resident_bytes));
        }
        let mut done = Vec::new();
        self.commands.enter(&mut done)?;
        done.into_iter().find_map(|done| done.request.err()).map_or(Ok(()), Err)
    }

    fn is_over(&self) -> bool {
        self.leaving || (self.busy == 0 && self.commands.with_kernel() == 0)
    }

    fn read_orders(&mut self) {
        for order in self.shared.orders.take(self.index) {
            match order {
                Order::Resized => self.geometry = self.shared.disk.geometry(),
                Order::Drain(deadline) => self.deadline = Some(deadline),
                Order::Leave => self.leaving = true,
            }
        }
    }

    /// Handles completions, answers requests, and fetches new ones. Returns true if more work is
    /// ready at once.
    fn settle(&mut self, asked: &mut Vec<Done>, done: &mut Vec<Completion>) -> io::Result<bool> {
        for _ in 0..limits::ROUNDS_PER_TICK {
            // Handle completions first, so that `enter` below sends their answers.
            if std::mem::take(&mut self.dirty)
                && let Some(queue) = &mut self.queue
            {
                queue.poll(done);
                done.drain(..).for_each(|completion| self.complete(completion));
            }
            if std::mem::take(&mut self.look) {
                self.commands.enter(asked)?;
                self.look = self.commands.is_behind();
                asked.drain(..).for_each(|done| self.begin(done));
            }
            if !self.dirty && !self.look {
                break;
            }
        }
        Ok(self.dirty || self.look)
    }

    /// Handles a completed command: a request, or an error if the kernel will send no more requests
    /// with this tag.
    fn begin(&mut self, Done { tag, request, buffer }: Done) {
        let request = match request {
            Ok(request) => request,
            Err(error) => return tracing::debug!(tag, "the kernel ended a ublk command: {error}"),
        };
        self.busy += 1;
        let slot = &mut self.slots[usize::from(tag)];
        (slot.busy, slot.pending, slot.bytes, slot.result) = (true, 0, 0, Ok(()));
        slot.rest = Some(buffer);
        if let Err(error) = self.start(tag, &request) {
            self.slots[usize::from(tag)].result = Err(error);
            self.finish(tag);
        }
    }

    /// Submits a request to the namespace. After an error, nothing was submitted.
    fn start(&mut self, tag: u16, request: &Descriptor) -> Result<(), BlockError> {
        let queue = self.queue.as_mut().ok_or(BlockError::Aborted)?;
        let command = match request.operation {
            operation::READ => Command::Read,
            operation::WRITE => Command::Write,
            operation::FLUSH => Command::Flush,
            operation::DISCARD => Command::Deallocate,
            operation::WRITE_ZEROES => {
                Command::WriteZeroes { deallocate: request.flags & flag::NOUNMAP == 0 }
            }
            _ => return Err(BlockError::Unsupported),
        };
        let slot = &mut self.slots[usize::from(tag)];
        slot.command = command;
        slot.fua = request.flags & flag::FUA != 0;
        let token = |piece: usize| u64::from(tag) << PIECE_BITS | piece as u64;
        self.dirty = true;
        if command == Command::Flush {
            slot.pending = 1;
            queue.submit(Op::flush(token(0)));
            return Ok(());
        }
        let (offset, length) = range(&self.geometry, command, request)?;
        if command.moves_data() {
            let rest = slot.rest.as_mut().expect("the request's buffer");
            if length as usize > rest.len() {
                return Err(BlockError::TooLarge);
            }
            slot.bytes = length;
            pieces::cut(command, offset, length, &self.geometry, &mut slot.pieces);
            for piece in &mut slot.pieces {
                piece.buffer = Some(rest.split_to(self.geometry.bytes(piece.blocks)));
            }
        } else {
            pieces::cut(command, offset, length, &self.geometry, &mut slot.pieces);
        }
        slot.pending = slot.pieces.len();
        let (block_size, pool) = (self.geometry.block_size, self.reactor.buffers());
        for (index, piece) in slot.pieces.iter_mut().enumerate() {
            queue.submit(piece.begin(command, slot.fua, block_size, pool, token(index)));
        }
        if slot.pending == 0 {
            self.finish(tag);
        }
        Ok(())
    }

    /// Handles the completion of a block operation.
    fn complete(&mut self, mut done: Completion) {
        let (tag, index) = ((done.token >> PIECE_BITS) as u16, done.token as u32 as usize);
        let slot = &mut self.slots[usize::from(tag)];
        if let Some(piece) = slot.pieces.get_mut(index) {
            let next = piece.end(&mut done, slot.fua, self.reactor.buffers());
            assert!(next.is_none(), "the kernel requests only whole blocks");
        }
        slot.result = slot.result.and(done.result);
        slot.pending -= 1;
        if slot.pending == 0 {
            self.finish(tag);
        }
    }

    fn finish(&mut self, tag: u16) {
        let slot = &mut self.slots[usize::from(tag)];
        let result = match slot.result {
            Ok(()) => i32::try_from(slot.bytes).expect("a request has less than 2 GiB"),
            Err(error) => {
                tracing::debug!(command = ?slot.command, "a ublk request failed: {error}");
                -errno(error).raw_os_error()
            }
        };
        slot.busy = false;
        let buffer = slot.take_buffer();
        let (bytes, ready) = (self.request_bytes as usize, self.resident_bytes);
        let buffer = buffer.unwrap_or_else(|| resident(bytes, ready));
        self.busy -= 1;
        self.commands.commit(tag, result, buffer);
        self.look = true;
    }

    /// Fails all requests in flight and all later requests.
    fn give_up(&mut self) {
        if self.queue.take().is_none() {
            return;
        }
        if self.busy > 0 {
            tracing::warn!("the ublk server abandoned {} requests in flight", self.busy);
        }
        for tag in 0..self.slots.len() as u16 {
            let slot = &mut self.slots[usize::from(tag)];
            if slot.busy {
                slot.result = Err(BlockError::Aborted);
                self.finish(tag);
            }
        }
    }
}

impl Core for Worker {
    /// Runs until the device has stopped, or an order tells the worker to leave the device.
    fn run(mut self) -> io::Result<()> {
        let begun = self.ask();
        let failed = begun.is_err();
        let _ = self.asked.send(begun);
        if failed {
            return Ok(());
        }
        let (mut ready, mut asked, mut done) = (Vec::new(), Vec::new(), Vec::new());
        let mut more = true;
        while !self.is_over() {
            let timeout = if more {
                Some(Duration::ZERO)
            } else {
                self.deadline.map(|at| at.saturating_duration_since(Instant::now()))
            };
            self.reactor.poll(timeout, &mut ready)?;
            for task in ready.drain(..) {
                if task == self.mail {
                    self.read_orders();
                } else if task == self.queue_task {
                    self.dirty = true;
                } else if task == self.requests {
                    self.look = true;
                }
            }
            if self.deadline.is_some_and(|at| at <= Instant::now()) {
                self.deadline = None;
                self.give_up();
            }
            more = self.settle(&mut asked, &mut done)?;
        }
        Ok(())
    }
}

/// Makes a buffer whose first `ready_bytes` bytes already have memory. When the kernel writes to
/// this disk in order to free memory, it may have no memory left for the buffer.
fn resident(bytes: usize, ready_bytes: usize) -> Buffer {
    let mut buffer = Buffer::new(bytes);
    buffer[..ready_bytes.min(bytes)].fill(0);
    buffer
}

/// A request's offset and length, in bytes. Fails if the range is invalid for the command.
fn range(
    geometry: &Geometry,
    command: Command,
    request: &Descriptor,
) -> Result<(u64, u32), BlockError> {
    let bytes = |sectors: u64| sectors.checked_mul(u64::from(SECTOR_BYTES));
    let offset = bytes(request.sector).ok_or(BlockError::OutOfRange)?;
    let length = bytes(request.sectors.into()).and_then(|length| u32::try_from(length).ok());
    let length = length.ok_or(BlockError::TooLarge)?;
    let block_size = geometry.block_size;
    if !offset.is_multiple_of(block_size.into()) || !length.is_multiple_of(block_size) {
        return Err(BlockError::OutOfRange);
    }
    // Ignore the namespace's limit on one operation: the worker splits a longer request.
    let whole = Geometry { max_blocks: 0, ..*geometry };
    whole.check(command, offset / u64::from(block_size), u64::from(length / block_size))?;
    Ok((offset, length))
}

/// Maps a block error to the error number that the kernel returns to the caller.
fn errno(error: BlockError) -> Errno {
    match error {
        BlockError::NoSpace => Errno::NOSPC,
        BlockError::Unsupported => Errno::OPNOTSUPP,
        // The kernel's NVMe host returns the same numbers for a reservation conflict and for target
        // errors.
        BlockError::Conflict => Errno::BADE,
        BlockError::OutOfRange | BlockError::NotReady => Errno::REMOTEIO,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(sector: u64, sectors: u32) -> Descriptor {
        Descriptor { operation: operation::WRITE, flags: 0, sectors, sector }
    }

    #[test]
    fn invalid_ranges_are_refused() {
        let geometry = Geometry { max_blocks: 1, ..Geometry::new(4096, 100) };
        let check = |sector, sectors| range(&geometry, Command::Write, &request(sector, sectors));
        assert_eq!(check(8, 16), Ok((4096, 8192)), "a request longer than one operation is valid");
        assert_eq!(check(792, 8), Ok((792 * 512, 4096)));
        assert_eq!(check(792, 16), Err(BlockError::OutOfRange));
        assert_eq!(check(1, 8), Err(BlockError::OutOfRange), "the range does not start at a block");
        assert_eq!(check(0, 7), Err(BlockError::OutOfRange), "the range is shorter than a block");
        assert_eq!(check(u64::MAX, 8), Err(BlockError::OutOfRange));
        assert_eq!(check(0, u32::MAX), Err(BlockError::TooLarge));
        let geometry = Geometry { read_only: true, ..geometry };
        let result = range(&geometry, Command::Deallocate, &request(0, 8));
        assert_eq!(result, Err(BlockError::ReadOnly));
    }

    #[test]
    fn a_buffer_is_reassembled_from_its_pieces() {
        let geometry = Geometry { max_blocks: 2, ..Geometry::new(512, 100) };
        let mut slot = Slot { command: Command::Write, ..Slot::new() };
        let mut rest = Buffer::new(65_536);
        let address = rest.as_ptr();
        pieces::cut(Command::Write, 512, 5 * 512, &geometry, &mut slot.pieces);
        for piece in &mut slot.pieces {
            piece.buffer = Some(rest.split_to(geometry.bytes(piece.blocks)));
        }
        assert_eq!((slot.pieces.len(), rest.len()), (3, 65_536 - 5 * 512));
        slot.rest = Some(rest);
        let whole = slot.take_buffer().expect("a whole buffer");
        assert_eq!((whole.as_ptr(), whole.len()), (address, 65_536));
        // Without pieces, as for a flush, the call returns the buffer. A second call finds no
        // buffer.
        slot.rest = Some(whole);
        assert_eq!(slot.take_buffer().map(|buffer| buffer.len()), Some(65_536));
        assert!(slot.take_buffer().is_none());
    }
}
