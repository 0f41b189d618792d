//! The role of the driver: puts requests into a ring, and takes answers from it.

use super::super::blk::{RANGE_BYTES, SECTOR_BYTES, request, status};
use super::super::limits::{MAX_SEGMENT_BYTES, MAX_ZEROES_SECTORS};
use super::{AVAILABLE_AT, FrontEndShared, Layout, MOST_PARTS, RING_SIZE, USED_AT};
use farblock_block::{BlockError, Command, Completion, Op, Queue};
use farblock_reactor::{Reactor, TaskId, WatchId};
use rustix::event::EventfdFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The offset in bytes of the header in a request's frame, the shared memory of the request. The
/// descriptor table comes first.
pub(super) const HEADER_AT: u64 = 128;
const STATUS_AT: u64 = 144;
const RANGE_AT: u64 = 160;
/// The length of a descriptor, in bytes.
const DESCRIPTOR: u64 = 16;
/// Flags of a descriptor. `NEXT`: another descriptor follows. `WRITE`: the device writes the
/// memory. `INDIRECT`: the memory is a descriptor table.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A ring and the operations in it.
pub(super) struct Ring {
    memory: GuestMemoryMmap<()>,
    layout: Layout,
    base: u64,
    pub(super) kick: OwnedFd,
    pub(super) call: OwnedFd,
    /// The next index of the available ring. `kicked` is its value at the last kick (notification
    /// of the back end).
    available: u16,
    kicked: u16,
    /// The next index of the used ring.
    used: u16,
    free: Vec<u16>,
    /// The operations in the ring, by slot. A slot that is neither here nor in `free` belongs to an
    /// operation of a dropped queue, and becomes free when the back end answers.
    flights: Vec<Option<Flight>>,
}

/// An operation that is in the ring.
struct Flight {
    op: Op,
    /// True if the write has completed and the device now flushes its data.
    is_flush: bool,
}

/// A request, and the guest address and length of its data.
struct RingRequest {
    kind: u32,
    sector: u64,
    /// True if the device writes the data.
    is_read: bool,
    data: (u64, u32),
}

impl Ring {
    pub(super) fn new(
        memory: &GuestMemoryMmap<()>,
        layout: Layout,
        index: usize,
    ) -> io::Result<Ring> {
        let event = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Ring {
            memory: memory.clone(),
            layout,
            base: index as u64 * layout.ring_bytes(),
            kick: event()?,
            call: event()?,
            available: 0,
            kicked: 0,
            used: 0,
            free: (0..layout.depth).collect(),
            flights: (0..layout.depth).map(|_| None).collect(),
        })
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory
            .write_slice(bytes, GuestAddress(at))
            .expect("the address is in the shared memory");
    }

    fn load(&self, at: u64) -> u16 {
        let index = self.memory.load::<u16>(GuestAddress(at), Ordering::Acquire);
        u16::from_le(index.expect("the address is in the shared memory"))
    }

    fn store(&self, at: u64, index: u16) {
        let stored = self.memory.store(index.to_le(), GuestAddress(at), Ordering::Release);
        stored.expect("the address is in the shared memory");
    }

    /// Puts a request into the ring, but does not kick the back end.
    fn place(&mut self, slot: u16, wanted: &RingRequest) {
        let (frame, _) = self.layout.slot(self.base, slot);
        let mut header = [0; 16];
        header[..4].copy_from_slice(&wanted.kind.to_le_bytes());
        header[8..].copy_from_slice(&wanted.sector.to_le_bytes());
        self.write(frame + HEADER_AT, &header);
        let mut table = Table { bytes: [0; _], count: 0 };
        table.add(frame + HEADER_AT, header.len() as u32, 0);
        let (mut at, mut left) = wanted.data;
        while left > 0 {
            let part = left.min(MAX_SEGMENT_BYTES);
            table.add(at, part, if wanted.is_read { WRITE } else { 0 });
            (at, left) = (at + u64::from(part), left - part);
        }
        table.add(frame + STATUS_AT, 1, WRITE);
        let bytes = table.end();
        self.write(frame, bytes);
        let descriptor = descriptor(frame, bytes.len() as u32, INDIRECT, 0);
        self.write(self.base + u64::from(slot) * DESCRIPTOR, &descriptor);
        let ring = self.base + AVAILABLE_AT;
        self.write(ring + 4 + u64::from(self.available % RING_SIZE) * 2, &slot.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.store(ring + 2, self.available);
    }

    /// Kicks the back end if there are new requests and the back end wants a kick.
    fn announce(&mut self) {
        let new = self.available.wrapping_sub(self.kicked);
        if new == 0 {
            return;
        }
        // This fence makes the new requests visible before the check. Otherwise the back end could
        // go idle without a kick.
        fence(Ordering::SeqCst);
        let event = self.load(self.base + USED_AT + 4 + u64::from(RING_SIZE) * 8);
        self.kicked = self.available;
        if self.available.wrapping_sub(event).wrapping_sub(1) < new {
            // This write fails only if the eventfd's 64-bit counter overflows.
            let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
        }
    }

    /// Takes the next slot from the used ring. If the used ring is empty, requests an interrupt for
    /// its next entry.
    fn take(&mut self) -> Option<u16> {
        let index = self.base + USED_AT + 2;
        if self.load(index) == self.used {
            self.store(self.base + AVAILABLE_AT + 4 + u64::from(RING_SIZE) * 2, self.used);
            fence(Ordering::SeqCst);
            if self.load(index) == self.used {
                return None;
            }
        }
        let element = self.base + USED_AT + 4 + u64::from(self.used % RING_SIZE) * 8;
        self.used = self.used.wrapping_add(1);
        Some(self.load(element))
    }

    fn status(&self, slot: u16) -> u8 {
        let (frame, _) = self.layout.slot(self.base, slot);
        let mut byte = [0];
        self.memory
            .read_slice(&mut byte, GuestAddress(frame + STATUS_AT))
            .expect("the address is in the shared memory");
        byte[0]
    }
}

/// The descriptor table of a request.
struct Table {
    bytes: [u8; DESCRIPTOR as usize * MOST_PARTS],
    count: u16,
}

impl Table {
    fn add(&mut self, address: u64, length: u32, flags: u16) {
        let at = usize::from(self.count) * DESCRIPTOR as usize;
        self.count += 1;
        let bytes = descriptor(address, length, flags | NEXT, self.count);
        self.bytes[at..at + DESCRIPTOR as usize].copy_from_slice(&bytes);
    }

    /// The finished table. Clears the flag `NEXT` of its last descriptor.
    fn end(&mut self) -> &[u8] {
        let end = usize::from(self.count) * DESCRIPTOR as usize;
        self.bytes[end - 4..end].copy_from_slice(&[WRITE as u8, 0, 0, 0]);
        &self.bytes[..end]
    }
}

fn descriptor(address: u64, length: u32, flags: u16, next: u16) -> [u8; DESCRIPTOR as usize] {
    let mut bytes = [0; DESCRIPTOR as usize];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

/// The namespace queue that owns a ring.
pub(super) struct FrontQueue {
    shared: Arc<FrontEndShared>,
    /// `None` only during the drop of the queue.
    ring: Option<Ring>,
    reactor: Reactor,
    task: TaskId,
    watch: WatchId,
    /// The operations that wait for a free slot in the ring.
    waiting: VecDeque<Op>,
    done: Vec<Completion>,
    in_ring: usize,
}

impl FrontQueue {
    pub(super) fn new(
        shared: Arc<FrontEndShared>,
        ring: Ring,
        reactor: &Reactor,
        parent: TaskId,
    ) -> Result<FrontQueue, BlockError> {
        let task = reactor.add_child(parent);
        let call = ring.call.try_clone().and_then(|call| reactor.watch(task, call));
        let Ok(watch) = call else {
            reactor.remove_task(task);
            shared.rings().push(ring);
            return Err(BlockError::NoResources);
        };
        let (reactor, waiting) = (reactor.clone(), VecDeque::new());
        let (ring, done) = (Some(ring), Vec::new());
        Ok(FrontQueue { shared, ring, reactor, task, watch, waiting, done, in_ring: 0 })
    }

    fn ring(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("the ring exists until the drop")
    }

    /// The result of an operation that needs no request, because it is invalid or empty. `None` if
    /// it needs one.
    fn known(&self, op: &Op) -> Option<Result<(), BlockError>> {
        let geometry = &self.shared.geometry;
        if let Err(error) = op.check(geometry) {
            return Some(Err(error));
        }
        let sectors = geometry.offset(u64::from(op.blocks)) / SECTOR_BYTES;
        match op.command {
            Command::Deallocate => Some(Ok(())),
            Command::Flush => geometry.read_only.then_some(Ok(())),
            _ if op.blocks == 0 => Some(Ok(())),
            Command::WriteZeroes { .. } if sectors > u64::from(MAX_ZEROES_SECTORS) => {
                Some(Err(BlockError::TooLarge))
            }
            _ => None,
        }
    }

    /// Puts waiting operations into the ring until the ring is full.
    fn fill(&mut self) {
        let ring = self.ring.as_mut().expect("the ring exists until the drop");
        while let Some(&slot) = ring.free.last()
            && let Some(op) = self.waiting.pop_front()
        {
            ring.free.pop();
            let (frame, data) = ring.layout.slot(ring.base, slot);
            let bytes = op.buffer.as_ref().map_or(0, |buffer| buffer.len()) as u32;
            // Ignore the block address of a flush: any value is valid.
            let first = if op.command == Command::Flush { 0 } else { op.lba };
            let sector = self.shared.geometry.offset(first) / SECTOR_BYTES;
            let (kind, sector, data) = match op.command {
                Command::Read => (request::IN, sector, (data, bytes)),
                Command::Write => {
                    let buffer = op.buffer.as_ref().expect("a write has a buffer");
                    ring.write(data, buffer);
                    (request::OUT, sector, (data, bytes))
                }
                Command::WriteZeroes { .. } => {
                    let sectors = self.shared.geometry.offset(u64::from(op.blocks)) / SECTOR_BYTES;
                    let mut range = [0; RANGE_BYTES];
                    range[..8].copy_from_slice(&sector.to_le_bytes());
                    range[8..12].copy_from_slice(&(sectors as u32).to_le_bytes());
                    ring.write(frame + RANGE_AT, &range);
                    (request::WRITE_ZEROES, 0, (frame + RANGE_AT, RANGE_BYTES as u32))
                }
                Command::Flush | Command::Deallocate => (request::FLUSH, 0, (data, 0)),
            };
            let is_read = op.command.reads();
            ring.place(slot, &RingRequest { kind, sector, is_read, data });
            ring.flights[usize::from(slot)] = Some(Flight { op, is_flush: false });
            self.in_ring += 1;
        }
    }

    /// Handles a slot that the back end has returned, after its request has completed.
    fn land(&mut self, slot: u16) {
        let has_cache = self.shared.geometry.volatile_cache;
        let ring = self.ring();
        let Some(flight) = ring.flights.get_mut(usize::from(slot)).and_then(Option::take) else {
            // The slot is invalid or belongs to a dropped queue.
            if slot < ring.layout.depth && !ring.free.contains(&slot) {
                ring.free.push(slot);
            }
            return;
        };
        let Flight { mut op, is_flush } = flight;
        let result = match ring.status(slot) {
            status::OK => Ok(()),
            status::UNSUPP => Err(BlockError::Unsupported),
            _ if op.command.reads() => Err(BlockError::ReadFailed),
            _ => Err(BlockError::WriteFailed),
        };
        let is_durable = !op.fua || !op.command.writes() || !has_cache || is_flush;
        if result.is_ok() && !is_durable {
            // virtio-blk has no FUA, so flush after the write, as Linux's driver does.
            let data = (0, 0);
            ring.place(
                slot,
                &RingRequest { kind: request::FLUSH, sector: 0, is_read: false, data },
            );
            ring.flights[usize::from(slot)] = Some(Flight { op, is_flush: true });
            return;
        }
        if result.is_ok()
            && let (Command::Read, Some(buffer)) = (op.command, &mut op.buffer)
        {
            let (_, data) = ring.layout.slot(ring.base, slot);
            ring.memory
                .read_slice(buffer, GuestAddress(data))
                .expect("the address is in the shared memory");
        }
        ring.free.push(slot);
        self.in_ring -= 1;
        self.done.push(op.complete(result));
    }
}

impl Queue for FrontQueue {
    fn submit(&mut self, op: Op) {
        match self.known(&op) {
            Some(result) => self.done.push(op.complete(result)),
            None => self.waiting.push_back(op),
        }
    }

    fn abandon(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        farblock_block::abandon_waiting(&mut self.waiting, unwanted, &mut self.done);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.fill();
        self.ring().announce();
        while let Some(slot) = self.ring().take() {
            self.land(slot);
        }
        // Use the freed slots for waiting operations.
        self.fill();
        self.ring().announce();
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.in_ring + self.done.len()
    }
}

impl Drop for FrontQueue {
    fn drop(&mut self) {
        self.reactor.unwatch(self.watch);
        self.reactor.remove_task(self.task);
        self.waiting.drain(..).for_each(|op| drop(op.abandon()));
        if let Some(mut ring) = self.ring.take() {
            // The back end accesses only the shared memory, so the operations' buffers can be freed
            // even if their requests are still in the ring.
            let flights = ring.flights.iter_mut().filter_map(Option::take);
            flights.for_each(|flight| drop(flight.op.abandon()));
            self.shared.rings().push(ring);
        }
    }
}
