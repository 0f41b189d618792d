//! A worker of the vhost-user back end: one thread with one ring, one event loop and one queue into
//! the namespace.
//!
//! A tick (one round of the event loop) takes descriptor chains (requests) from the ring, submits
//! block operations, handles completions, returns chains, and then notifies the guest once. While
//! the worker takes chains, the guest does not kick (notify) it.
//!
//! ```text
//! Idle ──run──> Running ──halt──> Halting ──all finished──> Idle
//!                  └──leave──> Leaving ──all finished──> Idle
//! ```

use super::blk::{self, RANGE_BYTES, Range, SECTOR_BYTES, request, status};
use super::chain::{self, BlkRequest};
use super::limits;
use super::memory::Guest;
use super::ring::{Ring, Setup};
use super::server::DeviceShared;
use farblock_block::{BlockError, Command, Completion, Geometry, Op, Queue};
use farblock_frontend::{Core, Seat};
use farblock_reactor::{Reactor, TaskId, WatchId, allowance};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use vm_memory::Bytes;

/// A message to a worker. If a message contains a `Sender`, the thread that posted the message
/// waits for an answer through it.
pub(super) enum Order {
    /// Serve the ring with these settings.
    Run(Box<Setup>, Sender<Result<(), String>>),
    /// Notify the guest through this eventfd from now on.
    Call(Option<OwnedFd>),
    /// Use this guest memory from now on.
    Memory(Arc<Guest>, Sender<()>),
    /// Take no more requests, finish the taken requests, and return the index of the next chain.
    Halt(Sender<Option<u16>>),
    /// The monitor has disconnected: do not access the guest's memory, and wait for the operations
    /// in flight.
    Leave(Sender<()>),
    /// The namespace's geometry has changed.
    Resized,
    /// Exit.
    Stop,
}

/// A request. The head of its chain (the first descriptor's index) is its index in the table of
/// slots.
#[derive(Default)]
struct Slot {
    request: BlkRequest,
    /// The number of block operations in flight.
    pending: u32,
    /// The status byte for the guest.
    status: u8,
    /// The size of the buffers that the request holds, in bytes.
    held: u64,
    /// The number of bytes to write to the guest's memory.
    wanted: u64,
}

pub(super) struct Worker {
    // Drop the queue before the reactor, with which the queue is registered.
    queue: Box<dyn Queue>,
    queue_task: TaskId,
    mail: TaskId,
    kicks: TaskId,
    reactor: Reactor,
    index: usize,
    shared: Arc<DeviceShared>,
    geometry: Geometry,
    ring: Option<Ring>,
    watch: Option<WatchId>,
    slots: Vec<Slot>,
    /// The size of the buffers that all requests hold, in bytes.
    held: u64,
    /// The request that waits for buffers.
    parked: Option<u16>,
    halting: Option<Sender<Option<u16>>>,
    leaving: Option<Sender<()>>,
    /// True if the worker must check the ring for requests.
    look: bool,
    /// True if the worker must poll the queue for completions.
    dirty: bool,
    stopping: bool,
}

impl Worker {
    /// Makes the state of the calling thread's worker.
    pub(super) fn new(seat: Seat, shared: Arc<DeviceShared>) -> Worker {
        let Seat { index, queue, queue_task, reactor, mail, .. } = seat;
        Worker {
            queue,
            queue_task,
            mail,
            kicks: reactor.add_task(),
            reactor,
            geometry: shared.device.geometry(),
            index,
            shared,
            ring: None,
            watch: None,
            slots: Vec::new(),
            held: 0,
            parked: None,
            halting: None,
            leaving: None,
            look: false,
            dirty: false,
            stopping: false,
        }
    }

    /// Serves the ring and handles completions. Returns true if more work is ready.
    fn settle(&mut self, done: &mut Vec<Completion>) -> bool {
        for _ in 0..limits::ROUNDS_PER_TICK {
            if std::mem::take(&mut self.look) {
                self.serve();
            }
            if std::mem::take(&mut self.dirty) {
                self.queue.poll(done);
                for completion in done.drain(..) {
                    self.complete(completion);
                }
            }
            if !self.look && !self.dirty {
                break;
            }
        }
        if let Some(ring) = &mut self.ring {
            ring.announce();
        }
        self.report();
        self.look || self.dirty
    }

    fn read_orders(&mut self) {
        for order in self.shared.orders.take(self.index) {
            match order {
                Order::Run(setup, answer) => {
                    let result = self.start_ring(*setup);
                    let _ = answer.send(result);
                }
                Order::Call(call) => {
                    if let Some(ring) = &mut self.ring {
                        ring.call = call;
                        // The guest may have missed a notification through the old eventfd, so
                        // notify it again.
                        ring.call();
                    }
                }
                Order::Memory(guest, answer) => {
                    if let Some(ring) = &mut self.ring {
                        ring.guest = guest;
                    }
                    let _ = answer.send(());
                }
                Order::Halt(answer) => {
                    self.unwatch();
                    self.look = true;
                    self.halting = Some(answer);
                }
                Order::Leave(answer) => {
                    self.unwatch();
                    (self.ring, self.parked, self.halting) = (None, None, None);
                    self.leaving = Some(answer);
                }
                Order::Resized => self.geometry = self.shared.device.geometry(),
                Order::Stop => self.stopping = true,
            }
        }
    }

    fn start_ring(&mut self, setup: Setup) -> Result<(), String> {
        assert!(
            self.ring.is_none() && self.queue.in_flight() == 0,
            "a ring starts only after the previous ring's last operation has completed"
        );
        let (ring, kick) = Ring::new(setup)?;
        let watch = self.reactor.watch(self.kicks, kick).map_err(|e| format!("a kick: {e}"))?;
        self.watch = Some(watch);
        self.slots.resize_with(usize::from(ring.table.size), Slot::default);
        self.geometry = self.shared.device.geometry();
        self.ring = Some(ring);
        // Check the ring even without a kick: the guest may have kicked a previous server.
        self.look = true;
        Ok(())
    }

    fn unwatch(&mut self) {
        if let Some(watch) = self.watch.take() {
            self.reactor.unwatch(watch);
        }
    }

    /// Answers the threads that wait until no operation is in flight.
    fn report(&mut self) {
        if self.leaving.is_some() && self.queue.in_flight() == 0 {
            self.held = 0;
            let _ = self.leaving.take().expect("a leave order is pending").send(());
        }
        if self.ring.as_ref().is_none_or(|ring| ring.outstanding() == 0)
            && let Some(answer) = self.halting.take()
        {
            let _ = answer.send(self.ring.take().map(|ring| ring.next_avail()));
        }
    }

    /// Takes the requests in the ring, and starts them.
    fn serve(&mut self) {
        let only_old = self.halting.is_some();
        if let Some(head) = self.parked.take() {
            self.start(head);
        }
        if let Some(ring) = &mut self.ring {
            if ring.guest.is_lost() {
                ring.break_down("the monitor removed memory that the ring uses");
            }
            ring.disable_kicks();
        }
        // Limit the number of requests per call: a guest may add requests as fast as the worker
        // takes them, and the worker must also handle completions.
        let mut left = self.slots.len();
        while left > 0
            && self.parked.is_none()
            && let Some(head) = self.ring.as_mut().and_then(|ring| ring.take(only_old))
        {
            self.read(head);
            left -= 1;
        }
        if left == 0 {
            self.look = true;
        } else if self.parked.is_none()
            && !only_old
            && let Some(ring) = &mut self.ring
        {
            self.look |= ring.enable_kicks();
        }
    }

    fn read(&mut self, head: u16) {
        let ring = self.ring.as_mut().expect("the request came from this ring");
        let slot = &mut self.slots[usize::from(head)];
        match slot.request.read(&ring.guest, ring.table, head) {
            Ok(()) => self.start(head),
            Err(broken) => {
                tracing::debug!(head, "a guest's request is malformed: {}", broken.0);
                ring.put(head, 0);
            }
        }
    }

    /// Executes a request, parks it until buffers are free, or refuses it.
    fn start(&mut self, head: u16) {
        let slot = &mut self.slots[usize::from(head)];
        (slot.pending, slot.status, slot.held, slot.wanted) = (0, status::OK, 0, 0);
        let result = match slot.request.kind {
            request::IN => self.transfer(head, Command::Read),
            request::OUT => self.transfer(head, Command::Write),
            request::FLUSH => {
                self.submit(head, Op::flush(u64::from(head)));
                Ok(())
            }
            request::GET_ID => self.identify(head),
            request::DISCARD | request::WRITE_ZEROES => self.ranges(head),
            _ => Err(status::UNSUPP),
        };
        let slot = &mut self.slots[usize::from(head)];
        if let Err(status) = result {
            slot.status = status;
        }
        // Some operations of the request may have been submitted before the error. Answer only
        // after these have completed.
        if slot.pending == 0 && self.parked != Some(head) {
            self.finish(head);
        }
    }

    fn submit(&mut self, head: u16, op: Op) {
        self.slots[usize::from(head)].pending += 1;
        self.queue.submit(op);
        self.dirty = true;
    }

    /// The first block and the number of blocks of a range. Returns an error status if the range is
    /// invalid for `command`.
    fn blocks(&self, command: Command, sector: u64, sectors: u64) -> Result<(u64, u32), u8> {
        let per_block = u64::from(self.geometry.block_size) / SECTOR_BYTES;
        if !sector.is_multiple_of(per_block) || !sectors.is_multiple_of(per_block) {
            return Err(status::IOERR);
        }
        let (lba, blocks) = (sector / per_block, sectors / per_block);
        // Ignore the namespace's limit on one operation: the worker splits a longer request.
        let whole = Geometry { max_blocks: 0, ..self.geometry };
        whole.check(command, lba, blocks).map_err(code)?;
        Ok((lba, u32::try_from(blocks).map_err(|_| status::IOERR)?))
    }

    /// The number of blocks that one operation transfers at most.
    fn piece_blocks(&self) -> u32 {
        let blocks = limits::PIECE_BYTES / self.geometry.block_size;
        if self.geometry.max_blocks == 0 { blocks } else { blocks.min(self.geometry.max_blocks) }
    }

    fn transfer(&mut self, head: u16, command: Command) -> Result<(), u8> {
        let request = &self.slots[usize::from(head)].request;
        let sector = request.sector;
        let segments = if command.reads() { &request.to_guest } else { &request.from_guest };
        let bytes = chain::total(segments);
        if bytes > limits::MAX_REQUEST_BYTES || !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(status::IOERR);
        }
        let (lba, blocks) = self.blocks(command, sector, bytes / SECTOR_BYTES)?;
        let most = allowance::portion(limits::QUEUE_BUFFER_BYTES, allowance::loops());
        if self.held > 0 && self.held + bytes > most as u64 {
            self.parked = Some(head);
            return Ok(());
        }
        self.held += bytes;
        let slot = &mut self.slots[usize::from(head)];
        slot.held = bytes;
        slot.wanted = if command.reads() { bytes } else { 0 };
        let piece_blocks = self.piece_blocks();
        for (piece, first) in (0..blocks).step_by(piece_blocks as usize).enumerate() {
            let count = piece_blocks.min(blocks - first);
            let mut buffer = self.reactor.buffers().take(self.geometry.bytes(count));
            if command.writes() {
                let ring = self.ring.as_ref().expect("the request came from this ring");
                let segments = &self.slots[usize::from(head)].request.from_guest;
                let offset = self.geometry.bytes(first) as u64;
                let copied = chain::copy_from(&ring.guest, segments, offset, &mut buffer);
                // If the monitor has truncated the memory, the copy may contain zeroes instead of
                // the guest's data.
                if copied.is_none() || ring.guest.is_lost() {
                    self.reactor.buffers().give(buffer);
                    return Err(status::IOERR);
                }
            }
            let token = u64::from(head) | (piece as u64) << 16;
            let op = Op::with(command, lba + u64::from(first), count, Some(buffer), token);
            let fua = command.writes() && self.shared.device.write_through();
            self.submit(head, Op { fua, ..op });
        }
        Ok(())
    }

    fn identify(&mut self, head: u16) -> Result<(), u8> {
        let ring = self.ring.as_ref().expect("the request came from this ring");
        let slot = &mut self.slots[usize::from(head)];
        let segments = &slot.request.to_guest;
        let length = chain::total(segments).min(blk::ID_BYTES as u64);
        let id = &self.shared.device.id[..length as usize];
        slot.wanted = length;
        chain::copy_to(&ring.guest, segments, 0, id).ok_or(status::IOERR)
    }

    /// Executes a discard or Write Zeroes request. Starts nothing unless all ranges are valid.
    fn ranges(&mut self, head: u16) -> Result<(), u8> {
        const MAX_BYTES: usize = RANGE_BYTES * limits::MAX_RANGES as usize;
        let request = &self.slots[usize::from(head)].request;
        let discard = request.kind == request::DISCARD;
        let length = usize::try_from(chain::total(&request.from_guest)).unwrap_or(usize::MAX);
        if length == 0 || length > MAX_BYTES || !length.is_multiple_of(RANGE_BYTES) {
            return Err(status::IOERR);
        }
        let mut bytes = [0; MAX_BYTES];
        let ring = self.ring.as_ref().expect("the request came from this ring");
        chain::copy_from(&ring.guest, &request.from_guest, 0, &mut bytes[..length])
            .filter(|()| !ring.guest.is_lost())
            .ok_or(status::IOERR)?;
        let mut parsed = [(Command::Deallocate, 0, 0); limits::MAX_RANGES as usize];
        let ranges = bytes[..length].chunks_exact(RANGE_BYTES).map(Range::parse);
        let count = length / RANGE_BYTES;
        for (range, parsed) in ranges.zip(&mut parsed) {
            let allowed = if discard { 0 } else { blk::UNMAP };
            if range.flags & !allowed != 0 {
                return Err(status::UNSUPP);
            }
            if !discard && range.sectors > limits::MAX_ZEROES_SECTORS {
                return Err(status::IOERR);
            }
            let command = if discard {
                Command::Deallocate
            } else {
                Command::WriteZeroes { deallocate: range.flags & blk::UNMAP != 0 }
            };
            let (lba, blocks) = self.blocks(command, range.sector, range.sectors.into())?;
            *parsed = (command, lba, blocks);
        }
        for &(command, lba, blocks) in &parsed[..count] {
            let op = Op::with(command, lba, blocks, None, u64::from(head));
            let fua = !discard && self.shared.device.write_through();
            self.submit(head, Op { fua, ..op });
        }
        Ok(())
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { token, result, buffer } = completion;
        let head = token as u16;
        let piece_bytes = self.geometry.bytes(self.piece_blocks()) as u64;
        let offset = (token >> 16) * piece_bytes;
        let slot = &mut self.slots[usize::from(head)];
        slot.pending -= 1;
        let read = buffer.as_ref().filter(|_| slot.request.kind == request::IN);
        let result = match (&self.ring, result, read) {
            // The worker has left the ring, and must not access the guest's memory.
            (None, ..) => Ok(()),
            (_, Err(error), _) => Err(code(error)),
            (Some(ring), Ok(()), Some(buffer)) => {
                let segments = &slot.request.to_guest;
                chain::copy_to(&ring.guest, segments, offset, buffer).ok_or(status::IOERR)
            }
            (Some(_), Ok(()), None) => Ok(()),
        };
        if let Err(status) = result {
            slot.status = status;
        }
        let finished = slot.pending == 0;
        if let Some(buffer) = buffer {
            self.reactor.buffers().give(buffer);
        }
        if finished {
            self.finish(head);
        }
    }

    /// Returns a request's chain to the guest.
    fn finish(&mut self, head: u16) {
        let slot = &mut self.slots[usize::from(head)];
        self.held -= std::mem::take(&mut slot.held);
        // A parked request may be waiting for these buffers.
        self.look |= self.parked.is_some();
        let Some(ring) = &mut self.ring else { return };
        let written = if slot.status == status::OK { slot.wanted as u32 } else { 0 };
        match ring.guest.write_obj(slot.status, slot.request.status) {
            Ok(()) => ring.put(head, written + 1),
            Err(_) => ring.put(head, 0),
        }
    }
}

impl Core for Worker {
    /// Runs until an order stops the worker.
    fn run(mut self) -> io::Result<()> {
        let (mut ready, mut done) = (Vec::new(), Vec::new());
        let mut more = false;
        while !self.stopping {
            self.reactor.poll(more.then_some(Duration::ZERO), &mut ready)?;
            for task in ready.drain(..) {
                if task == self.mail {
                    self.read_orders();
                } else if task == self.queue_task {
                    self.dirty = true;
                } else if task == self.kicks {
                    self.look = true;
                }
            }
            more = self.settle(&mut done);
        }
        Ok(())
    }
}

/// Maps a block error to one of the two error statuses of virtio-blk.
fn code(error: BlockError) -> u8 {
    match error {
        BlockError::Unsupported => status::UNSUPP,
        _ => status::IOERR,
    }
}
