//! Combines several namespaces (the children) into one, for stripe sets and concatenations.
//!
//! A [`Layout`] places the blocks on the children. The set splits reads and writes and their
//! buffers without copying. Write zeroes and deallocate move no data, and the blocks of a range on
//! one child are contiguous there. So each of these commands becomes at most one operation per
//! child. An operation completes when its last part completes. Its result is the first error of a
//! part, but errors that a retry would not cure take precedence.
//!
//! While a child is unavailable, only operations on its blocks wait or fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farblock_block::{
    Availability, BlockError, Change, Changes, Command, Completion, Geometry, Namespace, Op, Part,
    Queue, Watch,
};
use farblock_reactor::{Buffer, Reactor, TaskId};

use crate::error::OpenError;
use farblock_block::slab::Slab;

/// The maximum number of namespaces in a set.
pub const MAX_CHILDREN: usize = 256;

/// A run of blocks that are contiguous on one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) child: usize,
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
}

/// A mapping of blocks to children.
pub(crate) trait Layout: Clone + Send + Sync + 'static {
    /// Returns the first part of a range to read or write: as many blocks from `lba` on as are
    /// contiguous on one child.
    fn extent(&self, lba: u64, blocks: u32) -> Extent;

    /// The blocks of a range that one child stores, which are contiguous there; empty if there are
    /// none.
    fn share(&self, child: usize, lba: u64, blocks: u32) -> Extent;

    /// The number of blocks of a set with children of these sizes.
    fn blocks(&self, children: &mut dyn Iterator<Item = u64>) -> u64;
}

/// Namespaces that form one namespace; see the [module](self).
pub(crate) struct Set<L> {
    shape: Arc<Shape<L>>,
    pub(crate) children: Vec<Arc<dyn Namespace>>,
    _watches: Vec<Watch>,
}

/// The part of a set that depends on the sizes of its children.
struct Shape<L> {
    layout: L,
    /// The geometry at creation. Only the capacity and the write protection change later.
    made: Geometry,
    blocks: AtomicU64,
    read_only: AtomicBool,
    children: Vec<Weak<dyn Namespace>>,
    changes: Changes,
    /// Serializes updates, so that an older result does not overwrite a newer one.
    looking: Mutex<()>,
}

impl<L: Layout> Shape<L> {
    fn geometry(&self) -> Geometry {
        let blocks = self.blocks.load(Ordering::Relaxed);
        Geometry { blocks, read_only: self.read_only.load(Ordering::Relaxed), ..self.made }
    }

    /// The number of blocks of the set, calculated from the sizes that the children have now.
    fn blocks_now(&self) -> u64 {
        let children: Option<Vec<_>> = self.children.iter().map(Weak::upgrade).collect();
        let mut blocks = children.iter().flatten().map(|child| child.geometry().blocks);
        self.layout.blocks(&mut blocks)
    }

    /// Handles a change that a child reports.
    fn handle_change(&self, change: Change) {
        if change != Change::Geometry || self.look() {
            self.changes.tell(change);
        }
    }

    /// Reads the geometries of the children again. Returns true if this changes the geometry of the
    /// set.
    fn look(&self) -> bool {
        let _one = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let children: Option<Vec<_>> = self.children.iter().map(Weak::upgrade).collect();
        let Some(children) = children else { return false };
        let geometries: Vec<Geometry> = children.iter().map(|child| child.geometry()).collect();
        let before = self.geometry();
        let blocks = self.layout.blocks(&mut geometries.iter().map(|child| child.blocks));
        self.blocks.store(blocks, Ordering::Relaxed);
        let read_only = geometries.iter().any(|child| child.read_only);
        self.read_only.store(read_only, Ordering::Relaxed);
        self.geometry() != before
    }
}

/// The geometries of the children. Returns an error if they do not fit together. `what` names the
/// set in the error.
pub(crate) fn geometries(
    what: &str,
    children: &[Arc<dyn Namespace>],
) -> Result<Vec<Geometry>, OpenError> {
    let fault = |sentence: String| Err(OpenError::Set(sentence));
    let geometries: Vec<Geometry> = children.iter().map(|child| child.geometry()).collect();
    let Some(first) = geometries.first() else {
        return fault(format!("{what} needs at least one disk: list its disks"));
    };
    if children.len() > MAX_CHILDREN {
        let count = children.len();
        return fault(format!("{count} disks are too many: {what} has at most {MAX_CHILDREN}"));
    }
    let differs = |child: &Geometry| child.block_size != first.block_size;
    if let Some(other) = geometries.iter().position(differs) {
        return fault(format!(
            "the disks of {what} must have the same block size: {} differs from {}",
            children[other].describe(),
            children[0].describe()
        ));
    }
    Ok(geometries)
}

/// The geometry of a set of these children with this number of blocks.
pub(crate) fn whole(geometries: &[Geometry], blocks: u64) -> Geometry {
    let any = |property: fn(&Geometry) -> bool| geometries.iter().any(property);
    Geometry {
        read_only: any(|child| child.read_only),
        volatile_cache: any(|child| child.volatile_cache),
        deallocate: any(|child| child.deallocate),
        preferred_blocks: geometries.iter().map(|g| g.preferred_blocks).max().unwrap_or(0),
        ..Geometry::new(geometries[0].block_size, blocks)
    }
}

/// The maximum number of blocks that every child accepts in one operation; 0 means no limit.
pub(crate) fn max_blocks(geometries: &[Geometry]) -> u32 {
    geometries.iter().map(|child| child.max_blocks).filter(|&max| max > 0).min().unwrap_or(0)
}

impl<L: Layout> Set<L> {
    pub(crate) fn new(layout: L, made: Geometry, children: Vec<Arc<dyn Namespace>>) -> Set<L> {
        let shape = Arc::new(Shape {
            layout,
            made,
            blocks: AtomicU64::new(made.blocks),
            read_only: AtomicBool::new(made.read_only),
            children: children.iter().map(Arc::downgrade).collect(),
            changes: Changes::new(),
            looking: Mutex::new(()),
        });
        let watch = |changes: &Changes| {
            let shape = Arc::clone(&shape);
            changes.watch(move |change| shape.handle_change(change))
        };
        let watches = children.iter().filter_map(|child| child.changes()).map(watch).collect();
        // Notice changes that happened before the watches were set.
        shape.look();
        Set { shape, children, _watches: watches }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.shape.geometry()
    }

    pub(crate) fn changes(&self) -> &Changes {
        &self.shape.changes
    }

    /// The worst availability of all children.
    pub(crate) fn availability(&self) -> Availability {
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

    /// The text of the first child that reports trouble.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.children.iter().find_map(|child| child.trouble())
    }

    /// The remote namespaces among the children and inside of them.
    pub(crate) fn parts(&self) -> Vec<Arc<dyn Part>> {
        self.children.iter().flat_map(|child| child.parts()).collect()
    }

    /// The descriptions of the children, in one text.
    pub(crate) fn describe_children(&self) -> String {
        let children: Vec<String> = self.children.iter().map(|child| child.describe()).collect();
        children.join(", ")
    }

    pub(crate) fn open(
        &self,
        reactor: &Reactor,
        parent: TaskId,
    ) -> Result<Box<dyn Queue>, BlockError> {
        let queues: Result<Vec<_>, _> =
            self.children.iter().map(|child| child.open(reactor, parent)).collect();
        Ok(Box::new(SetQueue {
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

/// An operation that the queue has split into parts.
struct Whole {
    op: Op,
    /// The number of parts in flight.
    left: u32,
    error: Option<BlockError>,
    /// The buffers of the parts, in order; `None` while a child has the buffer.
    buffers: Vec<Option<Buffer>>,
}

/// The split operation and the part to which an operation of a child belongs.
struct ChildPart {
    whole: u64,
    /// The index of the part's buffer in `Whole::buffers`.
    index: u32,
}

struct SetQueue<L: Layout> {
    shape: Arc<Shape<L>>,
    children: Vec<Box<dyn Queue>>,
    wholes: Slab<Whole>,
    /// The parts in flight. Their keys are the tokens of the children's operations.
    parts: Slab<ChildPart>,
    /// Empty vectors for `Whole::buffers`, kept to reuse their memory.
    spare: Vec<Vec<Option<Buffer>>>,
    /// The queue keeps this vector to reuse its memory.
    arrived: Vec<Completion>,
    /// Completions that `poll` has not returned yet.
    done: Vec<Completion>,
}

impl<L: Layout> SetQueue<L> {
    fn submit_part(&mut self, whole: u64, extent: Extent, buffer: Option<Buffer>) {
        let parent = self.wholes.at(whole);
        let index = parent.buffers.len() as u32;
        if buffer.is_some() {
            parent.buffers.push(None);
        }
        parent.left += 1;
        let (command, fua) = (parent.op.command, parent.op.fua);
        let token = self.parts.insert(ChildPart { whole, index });
        let op = Op::with(command, extent.lba, extent.blocks, buffer, token);
        self.children[extent.child].submit(Op { fua, ..op });
    }

    fn submit_transfer(&mut self, whole: u64) {
        let op = &mut self.wholes.at(whole).op;
        let (mut lba, mut left) = (op.lba, op.blocks);
        let mut rest = op.buffer.take().expect("a read or write has a buffer");
        loop {
            let extent = self.shape.layout.extent(lba, left);
            lba += u64::from(extent.blocks);
            left -= extent.blocks;
            if left == 0 {
                return self.submit_part(whole, extent, Some(rest));
            }
            let front = rest.split_to(self.shape.made.bytes(extent.blocks));
            self.submit_part(whole, extent, Some(front));
        }
    }

    /// Converts the error of a child to an error of the set. A child that has shrunk reports that
    /// blocks are out of range. If the set still has these blocks, the set reports a failed read
    /// or write instead.
    fn error_of_child(&mut self, whole: u64, error: BlockError) -> BlockError {
        let Op { command, lba, blocks, .. } = self.wholes.at(whole).op;
        let end = lba.saturating_add(u64::from(blocks));
        match error {
            BlockError::OutOfRange if end > self.shape.blocks_now() => error,
            BlockError::OutOfRange if command.reads() => BlockError::ReadFailed,
            BlockError::OutOfRange => BlockError::WriteFailed,
            error => error,
        }
    }

    fn arrive(&mut self, done: Completion) {
        let ChildPart { whole, index } = self.parts.remove(done.token);
        let error = done.result.err().map(|error| self.error_of_child(whole, error));
        let parent = self.wholes.at(whole);
        parent.left -= 1;
        parent.error = graver(parent.error, error);
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

/// Selects the error to report. An error that a retry or another path would not cure takes
/// precedence: a flush that lost data must report the loss, even if another child was unavailable.
fn graver(one: Option<BlockError>, other: Option<BlockError>) -> Option<BlockError> {
    use BlockError::{Aborted, Disconnected, NoResources, NotReady};
    let passes =
        |error: &BlockError| matches!(error, Aborted | Disconnected | NoResources | NotReady);
    let lasts = |error: &BlockError| !passes(error);
    one.filter(lasts).or(other.filter(lasts)).or(one).or(other)
}

/// Joins the buffers of the parts into one.
fn join(buffers: &mut Vec<Option<Buffer>>) -> Option<Buffer> {
    let mut parts =
        buffers.drain(..).map(|part| part.expect("a child completed without its buffer"));
    let mut whole = parts.next()?;
    parts.for_each(|part| whole.unsplit(part));
    Some(whole)
}

impl<L: Layout> Queue for SetQueue<L> {
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
                _ => self.shape.layout.share(child, lba, blocks),
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

    fn abandon(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        let SetQueue { parts, wholes, children, .. } = self;
        for child in children {
            child.abandon(&mut |token| {
                let whole = parts.at(token).whole;
                unwanted(wholes.at(whole).op.token.value())
            });
        }
    }

    fn in_flight(&self) -> usize {
        self.wholes.len() + self.done.len()
    }
}

impl<L: Layout> Drop for SetQueue<L> {
    fn drop(&mut self) {
        for Whole { op, .. } in self.wholes.drain() {
            op.abandon();
        }
    }
}
