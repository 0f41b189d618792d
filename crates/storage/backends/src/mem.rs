//! A RAM disk, which any number of threads may share. It allocates memory at the first write.
//!
//! The capacity is divided into chunks. Each chunk has a lock, which guards its bytes, or `None`
//! for a chunk of zeroes. Where the system has huge pages, chunks that are allocated one after
//! another share a huge page. See [`pages`] for the reuse and release of memory. The first writes
//! allocate the table of chunks in groups, so an empty disk of any capacity costs almost nothing.
//! One bit per chunk records whether the chunk has bytes, so zeroing empty ranges is cheap, too.
//!
//! A disk takes at most this memory: its capacity, one huge page, 1/1024 of the capacity for the
//! table, and the replaced chunks that slow readers still borrow (see below). While readers borrow
//! too many replaced chunks, the disk copies the data of further reads. In the worst case, the
//! replaced chunks that readers still borrow take as much memory as the capacity.
//!
//! An operation locks its chunks one at a time. Per 64 KiB, a lock takes two uncontended atomic
//! operations: about 20 ns, against microseconds for the copy. Threads contend only within a chunk.
//!
//! A read may borrow the memory of the chunks ([`Queue::read_borrowed`]). A write to a borrowed
//! chunk replaces the chunk with a changed copy, so that no reader sees half a block. The disk does
//! not lend the new chunk for a while. Otherwise each write to a busy block would copy 64 KiB. The
//! disk reuses or frees a replaced chunk once its readers have finished. While there are many
//! replaced chunks, the disk lends no chunk.

mod pages;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use farblock_block::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_mem::{copy_to_memory, prefetch};
use farblock_reactor::{Buffer, HUGE_PAGE_BYTES, Reactor, SharedBuffer, TaskId};

use crate::error::{self, OpenError};
use farblock_block::size::Size;
use pages::Pages;

/// The size of a chunk, in bytes: the unit of allocation, locking and freeing.
pub const CHUNK_BYTES: usize = 64 << 10;
const _: () = assert!(HUGE_PAGE_BYTES.is_multiple_of(CHUNK_BYTES));
/// The largest capacity, in bytes. Its table of groups takes 16 MiB.
pub const MAX_BYTES: u64 = 1 << 46;

/// The number of chunks in one entry of the table.
const GROUP_CHUNKS: usize = 1024;
/// The bytes to prefetch for a read that copies. The processor's own prefetcher fetches the rest.
const PREFETCH_BYTES: usize = 256;
/// The bytes to prefetch for a read that borrows memory, which the kernel copies later. With more
/// bytes, the processor would wait for the first cache lines before it could request the last.
const PREFETCH_LENT_BYTES: usize = 512;
/// After a write has replaced a chunk, this many reads of the chunk copy its bytes instead of
/// borrowing them.
const READS_NOT_LENT: u8 = 64;
/// The maximum number of replaced chunks that readers may borrow; beyond it, reads are copied. A
/// slow reader of one block borrows 64 KiB, and so prevents the release of a huge page.
const MOST_REPLACED: usize = 64;
/// A search for a replaced chunk without readers examines at most this many chunks.
const REPLACED_AT_ONCE: usize = 4;
/// One `poll` zeroes at most this many bytes, in about a millisecond, and then lets other work run.
const ZERO_AT_ONCE_BYTES: u64 = 4 << 20;
/// After zeroing this many bytes for one operation, a queue continues with the next operation.
const ZERO_TURN_BYTES: u64 = 1 << 20;
/// Freeing a chunk counts as this many zeroed bytes, because it takes at most as long.
const FREE_COST_BYTES: u64 = 8 << 10;
/// Skipping [`WORD_CHUNKS`] empty chunks counts as this many zeroed bytes, as it takes as long.
const LOOK_COST_BYTES: u64 = 64;
/// The number of chunks for which one word of [`Group::taken`] has bits.
const WORD_CHUNKS: usize = 64;

/// A RAM disk. Its contents live as long as the disk or one of its queues. No data is durable.
///
/// If the system refuses memory for the first write of a chunk, the write fails with
/// [`BlockError::NoSpace`].
pub struct Mem {
    geometry: Geometry,
    store: Arc<Store>,
}

impl Mem {
    /// Creates a RAM disk full of zeroes. The capacity must be a multiple of the block size.
    pub fn new(block_size: u32, bytes: u64) -> Result<Mem, OpenError> {
        let blocks = error::whole_blocks(block_size, bytes)?;
        if bytes > MAX_BYTES {
            return Err(OpenError::TooLarge { bytes, max_bytes: MAX_BYTES });
        }
        let geometry = Geometry { deallocate: true, ..Geometry::new(block_size, blocks) };
        Ok(Mem { geometry, store: Arc::new(Store::new(bytes)) })
    }

    /// Makes the disk read-only, so it always reads as zeroes.
    pub fn read_only(mut self) -> Mem {
        self.geometry.read_only = true;
        self
    }

    /// The memory of the chunks in use, in bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.store.allocated_bytes.load(Ordering::Relaxed)
    }

    /// The memory of all allocated pages, in bytes, including their free chunks.
    pub fn held_bytes(&self) -> u64 {
        self.store.pages.bytes()
    }
}

impl Namespace for Mem {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn describe(&self) -> String {
        let Geometry { block_size, .. } = self.geometry;
        format!("memory ({}, {block_size}-byte blocks)", Size(self.geometry.capacity_bytes()))
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        Ok(Box::new(MemQueue {
            geometry: self.geometry,
            store: Arc::clone(&self.store),
            begun: Vec::new(),
            done: Vec::new(),
            zeroing: VecDeque::new(),
            reactor: reactor.clone(),
            parent,
        }))
    }
}

struct MemQueue {
    geometry: Geometry,
    store: Arc<Store>,
    /// Submitted operations that `poll` has not executed yet; their data is being prefetched.
    begun: Vec<Op>,
    done: Vec<Completion>,
    /// Operations that zero large ranges. Every `poll` zeroes a part.
    zeroing: VecDeque<Zeroing>,
    reactor: Reactor,
    parent: TaskId,
}

struct Zeroing {
    op: Op,
    /// The range that remains to be zeroed, in bytes.
    left: Range<u64>,
}

impl MemQueue {
    fn transfer(&self, op: &mut Op) -> Result<(), BlockError> {
        op.check(&self.geometry)?;
        match (op.command, &mut op.buffer) {
            (Command::Read, Some(buffer)) => {
                self.store.read(self.geometry.offset(op.lba), buffer);
                Ok(())
            }
            (Command::Write, Some(buffer)) => {
                self.store.write(self.geometry.offset(op.lba), buffer)
            }
            _ => Ok(()), // a flush, or a transfer of no blocks
        }
    }

    fn submit_zeroes(&mut self, op: Op) {
        if let Err(error) = op.check(&self.geometry) {
            return self.done.push(op.complete(Err(error)));
        }
        let start = self.geometry.offset(op.lba);
        let left = start..start + self.geometry.offset(u64::from(op.blocks));
        self.zeroing.push_back(Zeroing { op, left });
    }

    /// Zeroes parts of the queued ranges, one after the other. Schedules another call for the rest.
    fn advance_zeroes(&mut self) {
        let mut budget = ZERO_AT_ONCE_BYTES;
        while let Some(mut zeroing) = self.zeroing.pop_front() {
            if budget == 0 {
                self.zeroing.push_front(zeroing);
                return self.reactor.notify(self.parent);
            }
            let mut turn = budget.min(ZERO_TURN_BYTES);
            budget -= turn;
            let keep = zeroing.op.command == Command::WriteZeroes { deallocate: false };
            let result = self.store.zero(&mut zeroing.left, !keep, &mut turn);
            budget += turn;
            if result.is_ok() && !zeroing.left.is_empty() {
                self.zeroing.push_back(zeroing);
            } else {
                self.done.push(zeroing.op.complete(result));
            }
        }
    }
}

impl Queue for MemQueue {
    fn submit(&mut self, op: Op) {
        if matches!(op.command, Command::WriteZeroes { .. } | Command::Deallocate) {
            return self.submit_zeroes(op);
        }
        self.store.prefetch(self.geometry.block_size, &op);
        self.begun.push(op);
    }

    fn expect_read(&mut self, lba: u64) {
        if let Some((chunk, _)) = self.store.find(self.geometry.block_size, lba) {
            prefetch(std::ptr::from_ref(chunk).cast(), size_of::<Chunk>());
        }
    }

    fn read_borrowed(
        &mut self,
        lba: u64,
        blocks: u32,
        into: &mut Vec<Buffer>,
    ) -> Option<Result<(), BlockError>> {
        if let Err(error) = self.geometry.check(Command::Read, lba, u64::from(blocks)) {
            return Some(Err(error));
        }
        let (offset, length) = (self.geometry.offset(lba), self.geometry.bytes(blocks));
        let before = into.len();
        let lent = self.store.lend(offset, length as u64, into);
        if !lent {
            into.truncate(before);
        }
        lent.then_some(Ok(()))
    }

    fn write_inline(
        &mut self,
        lba: u64,
        blocks: u32,
        _fua: bool,
        data: &[u8],
    ) -> Option<Result<(), BlockError>> {
        assert_eq!(data.len(), self.geometry.bytes(blocks), "`data` has a wrong length");
        let checked = self.geometry.check(Command::Write, lba, u64::from(blocks));
        Some(checked.and_then(|()| self.store.write(self.geometry.offset(lba), data)))
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut begun = std::mem::take(&mut self.begun);
        for mut op in begun.drain(..) {
            let result = self.transfer(&mut op);
            self.done.push(op.complete(result));
        }
        self.begun = begun;
        self.advance_zeroes();
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.begun.len() + self.done.len() + self.zeroing.len()
    }
}

impl Drop for MemQueue {
    fn drop(&mut self) {
        let zeroing = self.zeroing.drain(..).map(|Zeroing { op, .. }| op);
        self.begun.drain(..).chain(zeroing).for_each(|op| drop(op.abandon()));
    }
}

/// The bytes of a chunk; `None` if all are zero.
type Bytes = Option<SharedBuffer>;

/// A chunk. It has its own cache line, because the first access is usually a cache miss.
#[derive(Default)]
#[repr(align(64))]
struct Chunk {
    bytes: RwLock<Bytes>,
    /// The current or former address of the bytes. With it, a prefetch need not take the lock.
    address: AtomicPtr<u8>,
    /// This many further reads copy the bytes instead of borrowing them.
    not_lent: AtomicU8,
}

impl Chunk {
    // Ignore poisoning: a panic cannot leave the bytes of a chunk half-changed.

    fn shared(&self) -> RwLockReadGuard<'_, Bytes> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Bytes> {
        self.bytes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether to lend this chunk to a read. Counts down `not_lent`.
    fn may_be_lent(&self) -> bool {
        let left = self.not_lent.load(Ordering::Relaxed);
        if left > 0 {
            // Two reads at the same time may count as one, which does no harm.
            self.not_lent.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// Replaces the bytes of the chunk.
    fn put(&self, bytes: SharedBuffer, place: &mut Bytes) {
        self.address.store(bytes.as_ptr().cast_mut(), Ordering::Relaxed);
        *place = Some(bytes);
    }
}

/// A group of chunks, which one allocation creates.
struct Group {
    chunks: [Chunk; GROUP_CHUNKS],
    /// One bit for each chunk, set if the chunk has bytes. The lock of the chunk guards changes.
    taken: [AtomicU64; GROUP_CHUNKS / WORD_CHUNKS],
}

impl Group {
    fn new() -> Box<Group> {
        let chunks = std::array::from_fn(|_| Chunk::default());
        Box::new(Group { chunks, taken: std::array::from_fn(|_| AtomicU64::new(0)) })
    }

    fn set_taken(&self, chunk: usize, is_taken: bool) {
        let (word, bit) = (&self.taken[chunk / WORD_CHUNKS], 1 << (chunk % WORD_CHUNKS));
        match is_taken {
            true => word.fetch_or(bit, Ordering::Release),
            false => word.fetch_and(!bit, Ordering::Release),
        };
    }

    /// Searches the bits of `taken` from `chunk` to the end of their word. `Ok` is the first chunk
    /// with bytes. `Err` is the number of chunks up to the end of the word, if all are empty.
    fn next_taken(&self, chunk: usize) -> Result<usize, usize> {
        let within = chunk % WORD_CHUNKS;
        let word = self.taken[chunk / WORD_CHUNKS].load(Ordering::Acquire) >> within;
        if word == 0 {
            Err(WORD_CHUNKS - within)
        } else {
            Ok(chunk + word.trailing_zeros() as usize)
        }
    }
}

struct Store {
    groups: Box<[OnceLock<Box<Group>>]>,
    pages: Pages,
    /// The chunks that writes replaced while readers borrowed them. Some may still have readers.
    replaced: Mutex<VecDeque<SharedBuffer>>,
    /// The number of chunks in `replaced`.
    replaced_chunks: AtomicUsize,
    /// A chunk of zeroes, lent for chunks that were never written.
    zeroes: SharedBuffer,
    allocated_bytes: AtomicU64,
}

/// The part of a range within one chunk.
struct ChunkPart {
    /// The index of the chunk.
    chunk: usize,
    /// The range of bytes within the chunk.
    within: Range<usize>,
}

/// Splits a range of bytes at the chunk boundaries.
fn parts(offset: u64, length: u64) -> impl Iterator<Item = ChunkPart> {
    let (mut at, end) = (offset, offset + length);
    std::iter::from_fn(move || {
        let size = CHUNK_BYTES as u64;
        let (chunk, start) = (at / size, at % size);
        let stop = size.min(start + (end - at));
        at += stop - start;
        let within = start as usize..stop as usize;
        (stop > start).then_some(ChunkPart { chunk: chunk as usize, within })
    })
}

impl Store {
    fn new(bytes: u64) -> Store {
        let groups = bytes.div_ceil((CHUNK_BYTES * GROUP_CHUNKS) as u64);
        let groups = (0..groups).map(|_| OnceLock::new()).collect();
        Store {
            groups,
            pages: Pages::default(),
            replaced: Mutex::default(),
            replaced_chunks: AtomicUsize::new(0),
            zeroes: SharedBuffer::new(Buffer::new(CHUNK_BYTES)),
            allocated_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the chunk, if any chunk of its group was ever written.
    fn chunk(&self, chunk: usize) -> Option<&Chunk> {
        let group = self.groups.get(chunk / GROUP_CHUNKS)?.get()?;
        Some(&group.chunks[chunk % GROUP_CHUNKS])
    }

    /// The chunk that contains a block, and the offset of the block in it. `None` if the group was
    /// never written or the block is out of range; an out-of-range read fails later.
    fn find(&self, block_size: u32, lba: u64) -> Option<(&Chunk, usize)> {
        let offset = lba.checked_mul(u64::from(block_size))?;
        let size = CHUNK_BYTES as u64;
        self.chunk((offset / size) as usize).map(|chunk| (chunk, (offset % size) as usize))
    }

    /// Prefetches the first bytes that a read will copy.
    fn prefetch(&self, block_size: u32, op: &Op) {
        if op.command == Command::Read
            && let Some((chunk, start)) = self.find(block_size, op.lba)
        {
            let address = chunk.address.load(Ordering::Relaxed);
            prefetch(address.wrapping_add(start), PREFETCH_BYTES);
        }
    }

    fn read(&self, offset: u64, mut data: &mut [u8]) {
        for ChunkPart { chunk, within } in parts(offset, data.len() as u64) {
            let (part, rest) = data.split_at_mut(within.len());
            data = rest;
            match self.chunk(chunk).map(Chunk::shared).as_deref() {
                Some(Some(bytes)) => part.copy_from_slice(&bytes[within]),
                Some(None) | None => part.fill(0),
            }
        }
    }

    /// Appends views of a range. Returns false if the disk cannot lend some part of the range.
    fn lend(&self, offset: u64, length: u64, into: &mut Vec<Buffer>) -> bool {
        if self.is_lent_too_much() {
            return false;
        }
        let mut to_prefetch = PREFETCH_LENT_BYTES;
        for ChunkPart { chunk, within } in parts(offset, length) {
            let view = match self.chunk(chunk) {
                None => self.zeroes.view(within),
                Some(chunk) if !chunk.may_be_lent() => return false,
                Some(chunk) => match &*chunk.shared() {
                    Some(bytes) => bytes.view(within),
                    None => self.zeroes.view(within),
                },
            };
            let bytes = to_prefetch.min(view.len());
            prefetch(view.as_ptr(), bytes);
            to_prefetch -= bytes;
            into.push(view);
        }
        true
    }

    fn write(&self, offset: u64, mut data: &[u8]) -> Result<(), BlockError> {
        for ChunkPart { chunk: index, within } in parts(offset, data.len() as u64) {
            let (part, rest) = data.split_at(within.len());
            data = rest;
            let group = self.groups[index / GROUP_CHUNKS].get_or_init(Group::new);
            let chunk = &group.chunks[index % GROUP_CHUNKS];
            let mut place = chunk.exclusive();
            if place.is_none() {
                chunk.put(self.allocate(within.len() < CHUNK_BYTES)?, &mut place);
                group.set_taken(index % GROUP_CHUNKS, true);
            }
            copy_to_memory(self.to_change(chunk, &mut place, within)?, part);
        }
        Ok(())
    }

    /// Returns a part of a chunk, to change in place. First replaces a borrowed chunk with a copy.
    fn to_change<'a>(
        &self,
        chunk: &Chunk,
        place: &'a mut Bytes,
        within: Range<usize>,
    ) -> Result<&'a mut [u8], BlockError> {
        let bytes = place.as_mut().expect("the caller checked that the chunk has bytes");
        if bytes.exclusive().is_none() {
            let mut copy = self.allocate_to_replace()?;
            let others = copy.exclusive().expect("no reader has the new chunk");
            others[..within.start].copy_from_slice(&bytes[..within.start]);
            others[within.end..].copy_from_slice(&bytes[within.end..]);
            let replaced = place.take().expect("the chunk has the bytes copied above");
            chunk.put(copy, place);
            chunk.not_lent.store(READS_NOT_LENT, Ordering::Relaxed);
            self.free(replaced);
        }
        let bytes = place.as_mut().expect("the chunk has its own memory or the copy's");
        let bytes = bytes.exclusive().expect("no reader can borrow without the lock");
        Ok(&mut bytes[within])
    }

    /// Zeroes as much of the start of `range` as `budget` allows, and reduces `range` and `budget`
    /// by the work done. With `free`, this releases the memory of whole chunks.
    fn zero(&self, range: &mut Range<u64>, free: bool, budget: &mut u64) -> Result<(), BlockError> {
        let size = CHUNK_BYTES as u64;
        while !range.is_empty() && *budget > 0 {
            let index = (range.start / size) as usize;
            let place = self.groups[index / GROUP_CHUNKS].get();
            let found = match place {
                Some(group) => group.next_taken(index % GROUP_CHUNKS),
                None => Err(GROUP_CHUNKS - index % GROUP_CHUNKS),
            };
            let (first, cost) = match (found, place) {
                (Ok(taken), Some(group)) if taken == index % GROUP_CHUNKS => {
                    let end = range.end.min((index as u64 + 1) * size);
                    let within =
                        (range.start % size) as usize..(end - index as u64 * size) as usize;
                    let cost = self.zero_chunk(group, taken, within, free)?;
                    (index + 1, cost)
                }
                (Ok(taken), _) => (index - index % GROUP_CHUNKS + taken, LOOK_COST_BYTES),
                (Err(empty), _) => (index + empty, LOOK_COST_BYTES),
            };
            range.start = range.end.min(first as u64 * size);
            *budget = budget.saturating_sub(cost);
        }
        Ok(())
    }

    /// Zeroes a part of a chunk, or frees the chunk. Returns the cost: the number of bytes that
    /// could be zeroed in the same time.
    fn zero_chunk(
        &self,
        group: &Group,
        index: usize,
        within: Range<usize>,
        free: bool,
    ) -> Result<u64, BlockError> {
        let chunk = &group.chunks[index];
        let mut place = chunk.exclusive();
        if free && within.len() == CHUNK_BYTES {
            if let Some(bytes) = place.take() {
                group.set_taken(index, false);
                self.free(bytes);
            }
            return Ok(FREE_COST_BYTES);
        }
        let cost = within.len() as u64;
        if place.is_some() {
            self.to_change(chunk, &mut place, within)?.fill(0);
        }
        Ok(cost)
    }

    /// Allocates a chunk, of zeroes if `zeroed`. Returns an error if the system refuses memory.
    fn allocate(&self, zeroed: bool) -> Result<SharedBuffer, BlockError> {
        let chunk = self.pages.take(zeroed)?;
        self.allocated_bytes.fetch_add(CHUNK_BYTES as u64, Ordering::Relaxed);
        Ok(chunk)
    }

    /// Allocates a chunk with arbitrary contents. If there is a replaced chunk without readers,
    /// reuses it.
    fn allocate_to_replace(&self) -> Result<SharedBuffer, BlockError> {
        match self.take_idle() {
            Some(idle) => Ok(idle),
            None => self.allocate(false),
        }
    }

    /// Frees the memory of a chunk once the chunk has no readers.
    fn free(&self, mut bytes: SharedBuffer) {
        if bytes.exclusive().is_some() {
            self.give_back(bytes);
        } else {
            self.replaced().push_front(bytes);
            self.replaced_chunks.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn give_back(&self, bytes: SharedBuffer) {
        self.allocated_bytes.fetch_sub(CHUNK_BYTES as u64, Ordering::Relaxed);
        self.pages.give(bytes);
    }

    /// Takes a replaced chunk without readers. Each call examines at most [`REPLACED_AT_ONCE`]
    /// chunks; the next call examines other chunks.
    fn take_idle(&self) -> Option<SharedBuffer> {
        let mut replaced = self.replaced();
        for _ in 0..replaced.len().min(REPLACED_AT_ONCE) {
            let mut bytes = replaced.pop_back()?;
            if bytes.exclusive().is_some() {
                self.replaced_chunks.fetch_sub(1, Ordering::Relaxed);
                return Some(bytes);
            }
            replaced.push_front(bytes);
        }
        None
    }

    /// Whether readers still borrow so many replaced chunks that reads must be copied.
    fn is_lent_too_much(&self) -> bool {
        if self.replaced_chunks.load(Ordering::Relaxed) > MOST_REPLACED
            && let Some(idle) = self.take_idle()
        {
            self.give_back(idle);
        }
        self.replaced_chunks.load(Ordering::Relaxed) > MOST_REPLACED
    }

    fn replaced(&self) -> MutexGuard<'_, VecDeque<SharedBuffer>> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn the_parts_of_a_range_cover_each_byte_once() {
        let chunk = CHUNK_BYTES as u64;
        for (offset, length) in [(0, 0), (5, 1), (0, chunk), (chunk - 1, 2), (7, 3 * chunk)] {
            let mut at = offset;
            for part in parts(offset, length) {
                let start = part.chunk as u64 * chunk + part.within.start as u64;
                assert_eq!(start, at);
                assert!(!part.within.is_empty() && part.within.end <= CHUNK_BYTES);
                at += part.within.len() as u64;
            }
            assert_eq!(at, offset + length);
        }
    }

    #[test]
    fn memory_is_allocated_and_freed_in_chunks() {
        let mem = Mem::new(512, 1 << 32).unwrap();
        let store = &mem.store;
        let chunk = CHUNK_BYTES as u64;
        store.write(chunk - 512, &[1; 1024]).unwrap();
        assert_eq!(mem.allocated_bytes(), 2 * chunk);
        zero(store, 0, chunk, false);
        assert_eq!(mem.allocated_bytes(), 2 * chunk, "zeroing without `free` freed a chunk");
        zero(store, 0, 2 * chunk - 512, true);
        assert_eq!(mem.allocated_bytes(), chunk, "a partly covered chunk was freed");
        let mut byte = [9];
        store.read(chunk, &mut byte);
        assert_eq!(byte, [0]);
        zero(store, 0, 1 << 32, true);
        assert_eq!(mem.allocated_bytes(), 0);
    }

    fn zero(store: &Store, offset: u64, length: u64, free: bool) {
        let mut budget = u64::MAX;
        store.zero(&mut (offset..offset + length), free, &mut budget).unwrap();
    }

    /// The bytes that a disk may take beyond its capacity.
    const BEYOND_BYTES: u64 = HUGE_PAGE_BYTES as u64;

    #[test]
    fn freed_chunks_are_reused_although_others_share_their_page() {
        let bytes = 32 << 20;
        let mem = Mem::new(512, bytes).unwrap();
        let (store, chunk) = (&mem.store, CHUNK_BYTES as u64);
        // Repeatedly write the whole disk, and then free all but one chunk of every page.
        for round in 0..32 {
            for at in (0..bytes).step_by(CHUNK_BYTES) {
                store.write(at, &[1; 512]).unwrap();
            }
            for index in (0..bytes / chunk).filter(|index| index % 32 != round) {
                zero(store, index * chunk, chunk, true);
            }
            assert!(mem.held_bytes() <= bytes + BEYOND_BYTES, "{} bytes", mem.held_bytes());
        }
        // A reused chunk reads as zeroes, like a new one.
        store.write(0, &[2; 512]).unwrap();
        let mut rest = vec![9; CHUNK_BYTES - 512];
        zero(store, 0, chunk, true);
        store.write(0, &[2; 512]).unwrap();
        store.read(512, &mut rest);
        assert!(rest.iter().all(|&byte| byte == 0));
        zero(store, 0, bytes, true);
        assert_eq!((mem.allocated_bytes(), mem.held_bytes()), (0, BEYOND_BYTES));
    }

    #[test]
    fn zeroing_unallocated_ranges_is_cheap() {
        let bytes = 1 << 40;
        let mem = Mem::new(512, bytes).unwrap();
        let (store, chunk) = (&mem.store, CHUNK_BYTES as u64);
        for at in [5, 63, 64, 1023, 1024, 5000] {
            store.write(at * chunk, &[1; 512]).unwrap();
        }
        let (mut left, mut budget) = (512..bytes, ZERO_AT_ONCE_BYTES);
        store.zero(&mut left, true, &mut budget).unwrap();
        assert_eq!((left, mem.allocated_bytes()), (bytes..bytes, 0));
        // When the budget is spent, a part of the range is still not zeroed.
        (0..4).for_each(|at| store.write(at * chunk, &[1; 512]).unwrap());
        let (mut left, mut budget) = (512..4 * chunk, chunk + 1);
        store.zero(&mut left, false, &mut budget).unwrap();
        assert_eq!((left, budget), (2 * chunk..4 * chunk, 0));
    }

    fn lend(store: &Store, offset: u64, length: u64) -> Option<Vec<Buffer>> {
        let mut views = Vec::new();
        store.lend(offset, length, &mut views).then_some(views)
    }

    #[test]
    fn lent_buffers_keep_their_data_after_writes() {
        let mem = Mem::new(512, 1 << 20).unwrap();
        let store = &mem.store;
        let chunk = CHUNK_BYTES as u64;
        store.write(chunk - 512, &[1; 1024]).unwrap();
        let views = lend(store, chunk - 1024, 3 * chunk).unwrap();
        let bytes = |views: &[Buffer]| views.iter().flat_map(|view| view.to_vec()).collect();
        let before: Vec<u8> = bytes(&views);
        let mut expected = vec![0; 3 * CHUNK_BYTES];
        expected[512..1536].fill(1);
        assert_eq!(before, expected);
        store.write(0, &[2; 4 * CHUNK_BYTES]).unwrap();
        zero(store, 0, chunk - 512, false);
        zero(store, chunk, chunk, true);
        assert_eq!(bytes(&views), expected);
        let mut now = [9; 1024];
        store.read(chunk - 512, &mut now);
        assert_eq!((now[0], now[511], now[512], now[1023]), (2, 2, 0, 0));
        drop(mem);
        assert_eq!(bytes(&views), expected);
    }

    #[test]
    fn blocks_under_constant_reads_and_writes_are_rarely_copied() {
        let mem = Mem::new(512, 1 << 20).unwrap();
        let store = &mem.store;
        store.write(0, &[0; 512]).unwrap();
        let mut copies = 0;
        for round in 1..=u8::MAX {
            let view = lend(store, 0, 512);
            let address = store.chunk(0).unwrap().address.load(Ordering::Relaxed);
            store.write(0, &[round; 512]).unwrap();
            copies +=
                usize::from(store.chunk(0).unwrap().address.load(Ordering::Relaxed) != address);
            assert!(view.is_none_or(|view| view[0].iter().all(|&byte| byte == round - 1)));
        }
        assert!((1..=4).contains(&copies), "{copies}");
        // The disk reuses the replaced chunk.
        assert_eq!(mem.allocated_bytes(), 2 * CHUNK_BYTES as u64);
    }

    #[test]
    fn slow_readers_hold_little_memory() {
        let bytes: u64 = 4 << 20;
        let mem = Mem::new(512, bytes).unwrap();
        let store = &mem.store;
        let chunk = CHUNK_BYTES as u64;
        let mut views = Vec::new();
        for round in 0..1000 {
            let offset = round * chunk % bytes;
            store.write(offset, &[1; 512]).unwrap();
            views.extend(lend(store, offset, 512));
            match round % 2 {
                0 => zero(store, offset, chunk, true),
                _ => store.write(offset, &[2; 512]).unwrap(),
            }
        }
        assert!(views.len() <= MOST_REPLACED + 1, "{} views", views.len());
        let most = bytes + (MOST_REPLACED as u64 + 1) * chunk;
        assert!(mem.allocated_bytes() <= most, "{} bytes", mem.allocated_bytes());
        // Once the readers have finished, the disk reuses their memory, and lends chunks again.
        drop(views);
        zero(store, 0, bytes, true);
        for _ in 0..1000 {
            let view = lend(store, 0, 512).expect("the disk lends a view");
            store.write(0, &[3; 512]).unwrap();
            drop(view);
            store.chunk(0).unwrap().not_lent.store(0, Ordering::Relaxed);
        }
        assert!(mem.allocated_bytes() <= most, "{} bytes", mem.allocated_bytes());
    }

    #[test]
    fn stalled_readers_hold_at_most_as_much_as_the_capacity() {
        let bytes: u64 = 16 << 20;
        let mem = Mem::new(512, bytes).unwrap();
        let store = &mem.store;
        let more = (MOST_REPLACED + 1) as u64 * CHUNK_BYTES as u64;
        let offsets = || (0..bytes).step_by(CHUNK_BYTES);
        offsets().for_each(|offset| store.write(offset, &[1; 512]).unwrap());
        let mut views = Vec::new();
        for round in 0..5 {
            // Let the disk lend every chunk again, although a write has just replaced it.
            for offset in offsets() {
                store.chunk(offset as usize / CHUNK_BYTES).unwrap().not_lent.store(0, Relaxed);
                views.extend(lend(store, offset, 512).into_iter().flatten());
            }
            offsets().for_each(|offset| store.write(offset, &[round; 512]).unwrap());
            let (held, most) = (mem.allocated_bytes(), 2 * bytes + more);
            assert!((2 * bytes..=most).contains(&held), "{held} bytes in round {round}");
        }
        drop(views);
        // When the readers are dropped, the disk frees their chunks.
        offsets().chain(offsets()).for_each(|_| drop(lend(store, 0, 512)));
        assert!(mem.allocated_bytes() <= bytes + more);
    }

    #[test]
    fn invalid_capacities_are_refused() {
        assert!(Mem::new(512, MAX_BYTES).is_ok());
        assert!(matches!(Mem::new(512, MAX_BYTES + 512), Err(OpenError::TooLarge { .. })));
        assert!(matches!(Mem::new(512, 0), Err(OpenError::NoCapacity)));
        assert!(matches!(Mem::new(512, 1000), Err(OpenError::PartialBlock { .. })));
        assert!(matches!(Mem::new(1000, 1000), Err(OpenError::BlockSize(1000))));
    }
}
