//! A namespace that consists of a part of another namespace.
//!
//! The ranges of one namespace do not overlap. A range has a fixed start. A range without a length
//! reaches to the end of the namespace, and grows and shrinks with it. A range can also make a
//! namespace read-only.

use std::sync::{Arc, Mutex, PoisonError};

use farblock_block::{
    Availability, BlockError, Changes, Command, Completion, Geometry, Namespace, Op, Part, Queue,
};
use farblock_reactor::{Buffer, Reactor, TaskId};

use crate::error::OpenError;
use farblock_block::size::Size;

/// A range of another namespace; see the [module](self).
pub struct Range {
    place: RangePlace,
    /// Declared before `inner`, so that a dropped range releases its reservation first. Once
    /// `inner` is dropped, another namespace may have its address, and the reservation would then
    /// apply to the new namespace.
    _taken: Option<Taken>,
    inner: Arc<dyn Namespace>,
}

/// The reserved ranges: the address of the namespace, the first block, and the block after the
/// last.
static TAKEN: Mutex<Vec<(usize, u64, u64)>> = Mutex::new(Vec::new());

/// A reservation of a range in [`TAKEN`].
struct Taken(usize, u64, u64);

impl Taken {
    /// Reserves a range. `None` if another reservation contains one of the blocks.
    fn new(inner: &Arc<dyn Namespace>, start: u64, end: u64) -> Option<Taken> {
        let whole = Arc::as_ptr(inner).cast::<()>().addr();
        let mut all = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let overlaps =
            |&(other, from, to): &(usize, u64, u64)| other == whole && from < end && start < to;
        if all.iter().any(overlaps) {
            return None;
        }
        all.push((whole, start, end));
        Some(Taken(whole, start, end))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut all = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|&(whole, start, end)| (whole, start, end) != (self.0, self.1, self.2));
    }
}

#[derive(Clone, Copy)]
struct RangePlace {
    start: u64,
    /// The number of blocks; `None` if the range reaches to the end of the namespace.
    blocks: Option<u64>,
    read_only: bool,
}

impl RangePlace {
    /// The geometry of the range. If `inner` has become too short, the range has fewer blocks.
    fn of(&self, inner: &Geometry) -> Geometry {
        let left = inner.blocks.saturating_sub(self.start);
        let blocks = self.blocks.map_or(left, |blocks| blocks.min(left));
        Geometry { blocks, read_only: inner.read_only || self.read_only, ..*inner }
    }
}

impl Range {
    /// Creates a range of `bytes` at an offset. Both must be multiples of the block size, and no
    /// other range of the namespace may overlap.
    pub fn new(
        inner: Arc<dyn Namespace>,
        offset_bytes: u64,
        bytes: u64,
    ) -> Result<Range, OpenError> {
        let geometry = inner.geometry();
        let size = u64::from(geometry.block_size);
        let fault = |sentence: String| Err(OpenError::Set(sentence));
        if !offset_bytes.is_multiple_of(size) || !bytes.is_multiple_of(size) || bytes == 0 {
            return fault(format!(
                "a range of {} at {} does not consist of whole {size}-byte blocks: choose \
                 multiples",
                Size(bytes),
                Size(offset_bytes)
            ));
        }
        let (start, blocks) = (offset_bytes / size, bytes / size);
        if start.checked_add(blocks).is_none_or(|end| end > geometry.blocks) {
            return fault(format!(
                "a range of {} at {} ends beyond {}",
                Size(bytes),
                Size(offset_bytes),
                inner.describe()
            ));
        }
        let Some(taken) = Taken::new(&inner, start, start + blocks) else {
            return fault(format!(
                "a range of {} at {} overlaps another range of {}",
                Size(bytes),
                Size(offset_bytes),
                inner.describe()
            ));
        };
        let place = RangePlace { start, blocks: Some(blocks), read_only: false };
        Ok(Range { inner, place, _taken: Some(taken) })
    }

    /// Creates a read-only view of the whole namespace.
    pub fn read_only(inner: Arc<dyn Namespace>) -> Range {
        let place = RangePlace { start: 0, blocks: None, read_only: true };
        Range { inner, place, _taken: None }
    }
}

impl Namespace for Range {
    fn geometry(&self) -> Geometry {
        self.place.of(&self.inner.geometry())
    }

    fn changes(&self) -> Option<&Changes> {
        self.inner.changes()
    }

    fn availability(&self) -> Availability {
        self.inner.availability()
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        self.inner.parts()
    }

    fn describe(&self) -> String {
        let (geometry, inner) = (self.geometry(), self.inner.describe());
        match self.place.blocks {
            None => format!("{inner}, read-only"),
            Some(_) => format!(
                "{} at offset {} of {inner}",
                Size(geometry.capacity_bytes()),
                Size(geometry.offset(self.place.start))
            ),
        }
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let queue = self.inner.open(reactor, parent)?;
        let (inner, place) = (Arc::clone(&self.inner), self.place);
        Ok(Box::new(RangeQueue { inner, place, queue, refused: Vec::new() }))
    }
}

struct RangeQueue {
    inner: Arc<dyn Namespace>,
    place: RangePlace,
    queue: Box<dyn Queue>,
    /// The completions of operations outside of the range.
    refused: Vec<Completion>,
}

impl RangeQueue {
    /// Converts an address in the range to the address in `inner`. `None` if a block is out of
    /// range.
    fn at(&self, lba: u64, blocks: u32) -> Option<u64> {
        let end = lba.checked_add(u64::from(blocks))?;
        let mine = self.place.of(&self.inner.geometry()).blocks;
        (end <= mine).then(|| self.place.start + lba)
    }
}

impl Queue for RangeQueue {
    fn submit(&mut self, mut op: Op) {
        let checked = op.check(&self.place.of(&self.inner.geometry()));
        if checked.is_err() {
            return self.refused.push(op.complete(checked));
        }
        if op.command != Command::Flush {
            op.lba += self.place.start;
        }
        self.queue.submit(op);
    }

    fn expect_read(&mut self, lba: u64) {
        if let Some(lba) = self.at(lba, 1) {
            self.queue.expect_read(lba);
        }
    }

    fn read_borrowed(
        &mut self,
        lba: u64,
        blocks: u32,
        into: &mut Vec<Buffer>,
    ) -> Option<Result<(), BlockError>> {
        self.queue.read_borrowed(self.at(lba, blocks)?, blocks, into)
    }

    fn write_inline(
        &mut self,
        lba: u64,
        blocks: u32,
        fua: bool,
        data: &[u8],
    ) -> Option<Result<(), BlockError>> {
        // Return `None` for a read-only range. The caller then submits the write, and `submit`
        // refuses it.
        let at = self.at(lba, blocks).filter(|_| !self.place.read_only)?;
        self.queue.write_inline(at, blocks, fua, data)
    }

    fn abandon(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        self.queue.abandon(unwanted);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.refused);
        self.queue.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight() + self.refused.len()
    }
}
