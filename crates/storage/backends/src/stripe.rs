//! RAID 0: the blocks of several namespaces in turn, a chunk from each.
//!
//! Reads and writes are cut at the borders of chunks, their buffers too, without copying. What
//! makes ranges zero or gives them back moves no data, and the chunks that a range has on one child
//! lie side by side there, so that each child gets one such operation at most. An operation
//! completes when all its parts have; the first error is its result.
//!
//! When all children grow, so does the whole.
//!
//! When a child fails, so does what touches it: RAID 0 has no redundancy.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farblock_block::{
    Availability, BlockError, Change, Changes, Command, Completion, Geometry, Namespace, Op, Queue,
    Watch,
};
use farblock_reactor::{Buffer, Reactor, TaskId};

use crate::error::OpenError;
use farblock_block::size::Size;
use farblock_block::slab::Slab;

/// The chunk size unless another one is chosen.
pub const DEFAULT_CHUNK_BYTES: u64 = 64 << 10;
/// The most namespaces in a set.
pub const MAX_CHILDREN: usize = 256;

/// Several namespaces as one, in chunks.
pub struct Stripe {
    layout: Layout,
    shape: Arc<Shape>,
    children: Vec<Arc<dyn Namespace>>,
    _watches: Vec<Watch>,
}

/// The whole as its children are at present.
struct Shape {
    /// As it was made; but for the capacity and whether it can be written, that stays.
    made: Geometry,
    chunk_blocks: u64,
    blocks: AtomicU64,
    read_only: AtomicBool,
    children: Vec<Weak<dyn Namespace>>,
    changes: Changes,
    /// One look at a time, so that the last one counts.
    looking: Mutex<()>,
}

impl Shape {
    fn geometry(&self) -> Geometry {
        let blocks = self.blocks.load(Ordering::Relaxed);
        Geometry { blocks, read_only: self.read_only.load(Ordering::Relaxed), ..self.made }
    }

    /// A child has changed.
    fn handle_change(&self, change: Change) {
        if change != Change::Geometry || self.look() {
            self.changes.tell(change);
        }
    }

    /// Looks at the children again; true if the whole has changed.
    fn look(&self) -> bool {
        let _one = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let children: Option<Vec<_>> = self.children.iter().map(Weak::upgrade).collect();
        let Some(children) = children else { return false };
        let geometries = children.iter().map(|child| child.geometry());
        let (smallest, read_only) =
            geometries.fold((u64::MAX, false), |(smallest, read_only), child| {
                (smallest.min(child.blocks), read_only | child.read_only)
            });
        let before = self.geometry();
        // As with the size at the beginning: no file offset reaches further.
        let most = i64::MAX as u64 / u64::from(self.made.block_size) / children.len() as u64;
        let whole = smallest.min(most) / self.chunk_blocks * self.chunk_blocks;
        self.blocks.store(whole * children.len() as u64, Ordering::Relaxed);
        self.read_only.store(read_only, Ordering::Relaxed);
        self.geometry() != before
    }
}

impl Stripe {
    /// A set of namespaces with the same block size. Of each as much is used as the smallest has.
    pub fn new(children: Vec<Arc<dyn Namespace>>, chunk_bytes: u64) -> Result<Stripe, OpenError> {
        let fault = |sentence: String| Err(OpenError::Stripe(sentence));
        let Some(first) = children.first().map(|child| child.geometry()) else {
            return fault("a stripe set needs at least one disk: list them".to_owned());
        };
        if children.len() > MAX_CHILDREN {
            let count = children.len();
            return fault(format!("{count} disks are too many: stripe at most {MAX_CHILDREN}"));
        }
        let block_size = first.block_size;
        if let Some(other) = children.iter().find(|child| child.geometry().block_size != block_size)
        {
            return fault(format!(
                "the disks of a stripe set must have the same block size: {} differs from {}",
                other.describe(),
                children[0].describe()
            ));
        }
        let chunk = chunk_bytes / u64::from(block_size);
        let whole = chunk > 0 && chunk_bytes.is_multiple_of(u64::from(block_size));
        let Some(chunk_blocks) = u32::try_from(chunk).ok().filter(|_| whole) else {
            return fault(format!(
                "chunks of {} do not suit {block_size}-byte blocks: choose a multiple of the block \
                 size, usually 64KiB",
                Size(chunk_bytes)
            ));
        };
        let geometries: Vec<Geometry> = children.iter().map(|child| child.geometry()).collect();
        let smallest = geometries.iter().map(|child| child.blocks).min().unwrap_or(0);
        let chunks = smallest / u64::from(chunk_blocks);
        let count = children.len() as u64;
        let blocks = chunks.checked_mul(u64::from(chunk_blocks)).and_then(|n| n.checked_mul(count));
        let reach = i64::MAX as u64 / u64::from(block_size);
        let Some(blocks) = blocks.filter(|&blocks| blocks > 0 && blocks <= reach) else {
            return fault(format!(
                "the smallest disk of the stripe set has {}, which makes no stripe set with chunks \
                 of {}",
                Size(smallest * u64::from(block_size)),
                Size(chunk_bytes)
            ));
        };
        let any = |property: fn(&Geometry) -> bool| geometries.iter().any(property);
        let geometry = Geometry {
            read_only: any(|child| child.read_only),
            volatile_cache: any(|child| child.volatile_cache),
            deallocate: any(|child| child.deallocate),
            optimal_blocks: if count == 1 { first.optimal_blocks } else { chunk_blocks },
            preferred_blocks: geometries.iter().map(|g| g.preferred_blocks).max().unwrap_or(0),
            ..Geometry::new(block_size, blocks)
        };
        let piece = geometries.iter().map(|child| child.max_blocks).filter(|&max| max > 0).min();
        let layout = Layout { children: count, chunk_blocks, max_blocks: piece.unwrap_or(0) };
        let shape = Arc::new(Shape {
            made: geometry,
            chunk_blocks: u64::from(chunk_blocks),
            blocks: AtomicU64::new(blocks),
            read_only: AtomicBool::new(geometry.read_only),
            children: children.iter().map(Arc::downgrade).collect(),
            changes: Changes::new(),
            looking: Mutex::new(()),
        });
        let watch = |changes: &Changes| {
            let shape = Arc::clone(&shape);
            changes.watch(move |change| shape.handle_change(change))
        };
        let watches = children.iter().filter_map(|child| child.changes()).map(watch).collect();
        // What changed before somebody listened.
        shape.look();
        Ok(Stripe { layout, shape, children, _watches: watches })
    }
}

impl Namespace for Stripe {
    fn geometry(&self) -> Geometry {
        self.shape.geometry()
    }

    fn changes(&self) -> Option<&Changes> {
        Some(&self.shape.changes)
    }

    /// That of the worst child.
    fn availability(&self) -> Availability {
        let mut worst = Availability::Ready;
        for child in &self.children {
            match child.availability() {
                Availability::Gone => return Availability::Gone,
                Availability::Waiting => worst = Availability::Waiting,
                Availability::Ready => {}
            }
        }
        worst
    }

    fn describe(&self) -> String {
        let geometry = self.geometry();
        let chunk = geometry.offset(u64::from(self.layout.chunk_blocks));
        let children: Vec<String> = self.children.iter().map(|child| child.describe()).collect();
        format!(
            "stripe of {} ({}, {}-byte blocks, chunks of {}): {}",
            children.len(),
            Size(geometry.capacity_bytes()),
            geometry.block_size,
            Size(chunk),
            children.join(", ")
        )
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let queues: Result<Vec<_>, _> =
            self.children.iter().map(|child| child.open(reactor, parent)).collect();
        Ok(Box::new(StripeQueue {
            layout: self.layout,
            shape: Arc::clone(&self.shape),
            children: queues?,
            wholes: Slab::new(),
            parts: Slab::new(),
            spare: Vec::new(),
            arrived: Vec::new(),
            done: Vec::new(),
        }))
    }
}

/// Where blocks are.
#[derive(Clone, Copy, Debug)]
struct Layout {
    children: u64,
    chunk_blocks: u32,
    /// The most blocks in a part that moves data; 0: no limit.
    max_blocks: u32,
}

/// Blocks that lie side by side on one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    child: usize,
    lba: u64,
    blocks: u32,
}

impl Layout {
    /// Where a block is: its child, and its address there.
    fn locate(&self, lba: u64) -> (usize, u64) {
        let chunk_blocks = u64::from(self.chunk_blocks);
        let (chunk, within) = (lba / chunk_blocks, lba % chunk_blocks);
        ((chunk % self.children) as usize, chunk / self.children * chunk_blocks + within)
    }

    /// The first extent of a range that moves data: as far as it is in one piece on one child.
    fn extent(&self, lba: u64, blocks: u32) -> Extent {
        let (child, at) = self.locate(lba);
        let mut length = blocks;
        if self.children > 1 {
            let within = (lba % u64::from(self.chunk_blocks)) as u32;
            length = length.min(self.chunk_blocks - within);
        }
        if self.max_blocks > 0 {
            length = length.min(self.max_blocks);
        }
        Extent { child, lba: at, blocks: length }
    }

    /// All that a range has on one child. It is in one piece there, or nothing.
    fn share(&self, child: usize, lba: u64, blocks: u32) -> Extent {
        let before = self.blocks_before(child, lba);
        let after = self.blocks_before(child, lba + u64::from(blocks));
        // No child has a larger share than the whole.
        Extent { child, lba: before, blocks: (after - before) as u32 }
    }

    /// How many of the blocks below `lba` are on a child.
    fn blocks_before(&self, child: usize, lba: u64) -> u64 {
        let chunk_blocks = u64::from(self.chunk_blocks);
        let (chunk, within) = (lba / chunk_blocks, lba % chunk_blocks);
        let (row, column) = (chunk / self.children, (chunk % self.children) as usize);
        let in_row = match child.cmp(&column) {
            std::cmp::Ordering::Less => chunk_blocks,
            std::cmp::Ordering::Equal => within,
            std::cmp::Ordering::Greater => 0,
        };
        row * chunk_blocks + in_row
    }
}

/// An operation that is in parts.
struct Whole {
    op: Op,
    /// Parts that have not completed.
    left: u32,
    error: Option<BlockError>,
    /// The parts of its buffer, in order; `None` while a child has them.
    buffers: Vec<Option<Buffer>>,
}

/// What a child's completion belongs to.
struct Part {
    whole: u64,
    /// Which part of the buffer.
    index: u32,
}

struct StripeQueue {
    layout: Layout,
    shape: Arc<Shape>,
    children: Vec<Box<dyn Queue>>,
    wholes: Slab<Whole>,
    /// Its keys are the children's tokens.
    parts: Slab<Part>,
    /// Emptied `Whole::buffers`, kept for their capacity.
    spare: Vec<Vec<Option<Buffer>>>,
    /// Kept for its capacity.
    arrived: Vec<Completion>,
    /// Completed, to be handed out.
    done: Vec<Completion>,
}

impl StripeQueue {
    fn submit_part(&mut self, whole: u64, extent: Extent, buffer: Option<Buffer>) {
        let parent = self.wholes.at(whole);
        let index = parent.buffers.len() as u32;
        if buffer.is_some() {
            parent.buffers.push(None);
        }
        parent.left += 1;
        let (command, fua) = (parent.op.command, parent.op.fua);
        let token = self.parts.insert(Part { whole, index });
        let op = Op::with(command, extent.lba, extent.blocks, buffer, token);
        self.children[extent.child].submit(Op { fua, ..op });
    }

    fn submit_transfer(&mut self, whole: u64) {
        let op = &mut self.wholes.at(whole).op;
        let (mut lba, mut left) = (op.lba, op.blocks);
        let mut rest = op.buffer.take().expect("checked at submission");
        loop {
            let extent = self.layout.extent(lba, left);
            lba += u64::from(extent.blocks);
            left -= extent.blocks;
            if left == 0 {
                return self.submit_part(whole, extent, Some(rest));
            }
            let front = rest.split_to(self.shape.made.bytes(extent.blocks));
            self.submit_part(whole, extent, Some(front));
        }
    }

    fn arrive(&mut self, done: Completion) {
        let Part { whole, index } = self.parts.remove(done.token);
        let parent = self.wholes.at(whole);
        parent.left -= 1;
        parent.error = parent.error.or(done.result.err());
        if done.buffer.is_some() {
            parent.buffers[index as usize] = done.buffer;
        }
        if parent.left == 0 {
            let Whole { mut op, error, mut buffers, .. } = self.wholes.remove(whole);
            op.buffer = op.buffer.or_else(|| join(&mut buffers));
            self.spare.push(buffers);
            self.done.push(op.complete(error.map_or(Ok(()), Err)));
        }
    }
}

/// Puts the parts of a buffer together again.
fn join(buffers: &mut Vec<Option<Buffer>>) -> Option<Buffer> {
    let mut parts =
        buffers.drain(..).map(|part| part.expect("a child completed without its buffer"));
    let mut whole = parts.next()?;
    parts.for_each(|part| whole.unsplit(part));
    Some(whole)
}

impl Queue for StripeQueue {
    fn submit(&mut self, op: Op) {
        let checked = op.check(&self.shape.geometry());
        let nothing = op.command != Command::Flush && op.blocks == 0;
        if checked.is_err() || nothing {
            return self.done.push(op.complete(checked));
        }
        let (command, lba, blocks) = (op.command, op.lba, op.blocks);
        let buffers = self.spare.pop().unwrap_or_default();
        let whole = self.wholes.insert(Whole { op, left: 0, error: None, buffers });
        if command.moves_data() {
            return self.submit_transfer(whole);
        }
        for child in 0..self.children.len() {
            let extent = match command {
                Command::Flush => Extent { child, lba: 0, blocks: 0 },
                _ => self.layout.share(child, lba, blocks),
            };
            if extent.blocks > 0 || command == Command::Flush {
                self.submit_part(whole, extent, None);
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for child in &mut self.children {
            child.poll(&mut arrived);
        }
        for completion in arrived.drain(..) {
            self.arrive(completion);
        }
        self.arrived = arrived;
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.wholes.len() + self.done.len()
    }
}

impl Drop for StripeQueue {
    fn drop(&mut self) {
        for Whole { op, .. } in self.wholes.drain() {
            op.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The slow and obvious way: one block after the other.
    fn walk(layout: &Layout, lba: u64, blocks: u32) -> Vec<(usize, u64)> {
        let chunk_blocks = u64::from(layout.chunk_blocks);
        let mut next = vec![0; layout.children as usize];
        let mut places = Vec::new();
        for at in 0..lba + u64::from(blocks) {
            let child = (at / chunk_blocks % layout.children) as usize;
            if at >= lba {
                places.push((child, next[child]));
            }
            next[child] += 1;
        }
        places
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        (1..6_u64, 1..20_u32, 0..8_u32).prop_map(|(children, chunk_blocks, max_blocks)| Layout {
            children,
            chunk_blocks,
            max_blocks,
        })
    }

    proptest! {
        #[test]
        fn extents_cover_a_range_in_order(
            layout in layouts(), lba in 0..400_u64, blocks in 1..200_u32
        ) {
            let (mut at, mut left) = (lba, blocks);
            let mut places = Vec::new();
            while left > 0 {
                let extent = layout.extent(at, left);
                prop_assert!(extent.blocks > 0 && extent.blocks <= left);
                prop_assert!(layout.max_blocks == 0 || extent.blocks <= layout.max_blocks);
                let blocks = 0..u64::from(extent.blocks);
                places.extend(blocks.map(|n| (extent.child, extent.lba + n)));
                at += u64::from(extent.blocks);
                left -= extent.blocks;
            }
            prop_assert_eq!(places, walk(&layout, lba, blocks));
        }

        #[test]
        fn shares_cover_a_range(layout in layouts(), lba in 0..400_u64, blocks in 0..200_u32) {
            let mut places = Vec::new();
            for child in 0..layout.children as usize {
                let share = layout.share(child, lba, blocks);
                places.extend((0..share.blocks).map(|n| (child, share.lba + u64::from(n))));
            }
            let mut expected = walk(&layout, lba, blocks);
            expected.sort_unstable();
            prop_assert_eq!(places, expected);
        }

        #[test]
        fn no_two_blocks_share_a_place(
            layout in layouts(), a in 0..10_000_u64, b in 0..10_000_u64
        ) {
            prop_assert_eq!(a == b, layout.locate(a) == layout.locate(b));
        }
    }
}
