//! RAID 0: distributes chunks over several namespaces (the children).
//!
//! The stripe set splits reads and writes at chunk boundaries.
//!
//! When all children grow, the stripe set grows.
//!
//! When a child fails, operations on its blocks fail, because RAID 0 has no redundancy.

use std::sync::Arc;

use farblock_block::{Availability, BlockError, Changes, Geometry, Namespace, Part, Queue};
use farblock_reactor::{Reactor, TaskId};

use crate::error::OpenError;
use crate::set::{self, Extent, Layout, Set};
use farblock_block::size::Size;

pub use crate::set::MAX_CHILDREN;

/// Several namespaces as one: consecutive chunks are on consecutive namespaces.
pub struct Stripe {
    chunk_blocks: u32,
    set: Set<Chunks>,
}

impl Stripe {
    /// Creates a set of namespaces with the same block size. It uses as many whole chunks of each
    /// child as the smallest child has.
    pub fn new(children: Vec<Arc<dyn Namespace>>, chunk_bytes: u64) -> Result<Stripe, OpenError> {
        let geometries = set::geometries("a stripe set", &children)?;
        let block_size = geometries[0].block_size;
        let fault = |sentence: String| Err(OpenError::Set(sentence));
        let chunk = chunk_bytes / u64::from(block_size);
        let whole = chunk > 0 && chunk_bytes.is_multiple_of(u64::from(block_size));
        let Some(chunk_blocks) = u32::try_from(chunk).ok().filter(|_| whole) else {
            return fault(format!(
                "chunks of {} do not suit {block_size}-byte blocks: choose a multiple of the block \
                 size, usually 64KiB",
                Size(chunk_bytes)
            ));
        };
        let smallest = geometries.iter().map(|child| child.blocks).min().unwrap_or(0);
        let chunks = smallest / u64::from(chunk_blocks);
        let count = children.len() as u64;
        let blocks = chunks.checked_mul(u64::from(chunk_blocks)).and_then(|n| n.checked_mul(count));
        let reach = i64::MAX as u64 / u64::from(block_size);
        let Some(blocks) = blocks.filter(|&blocks| blocks > 0 && blocks <= reach) else {
            return fault(format!(
                "the smallest disk of the stripe set has {}, which does not suit chunks of {}",
                Size(smallest * u64::from(block_size)),
                Size(chunk_bytes)
            ));
        };
        let first = geometries[0].optimal_blocks;
        let geometry = Geometry {
            optimal_blocks: if count == 1 { first } else { chunk_blocks },
            ..set::whole(&geometries, blocks)
        };
        let max_blocks = set::max_blocks(&geometries);
        let layout = Chunks { children: count, chunk_blocks, max_blocks, most: reach / count };
        Ok(Stripe { chunk_blocks, set: Set::new(layout, geometry, children) })
    }
}

impl Namespace for Stripe {
    fn geometry(&self) -> Geometry {
        self.set.geometry()
    }

    fn changes(&self) -> Option<&Changes> {
        Some(self.set.changes())
    }

    fn availability(&self) -> Availability {
        self.set.availability()
    }

    fn trouble(&self) -> Option<String> {
        self.set.trouble()
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        self.set.parts()
    }

    fn describe(&self) -> String {
        let geometry = self.geometry();
        format!(
            "stripe of {} ({}, {}-byte blocks, chunks of {}): {}",
            self.set.children.len(),
            Size(geometry.capacity_bytes()),
            geometry.block_size,
            Size(geometry.offset(u64::from(self.chunk_blocks))),
            self.set.describe_children()
        )
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.set.open(reactor, parent)
    }
}

/// The layout of a stripe set.
#[derive(Clone, Copy, Debug)]
struct Chunks {
    children: u64,
    chunk_blocks: u32,
    /// The maximum number of blocks that a child accepts in one read or write; 0 means no limit.
    max_blocks: u32,
    /// The maximum number of blocks to use of a child. It keeps byte offsets within the range of a
    /// file offset.
    most: u64,
}

impl Layout for Chunks {
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

    fn share(&self, child: usize, lba: u64, blocks: u32) -> Extent {
        let before = self.blocks_before(child, lba);
        let after = self.blocks_before(child, lba + u64::from(blocks));
        // The cast cannot truncate: the part on one child is no larger than the whole range, whose
        // length is a `u32`.
        Extent { child, lba: before, blocks: (after - before) as u32 }
    }

    fn blocks(&self, children: &mut dyn Iterator<Item = u64>) -> u64 {
        let smallest = children.min().unwrap_or(0).min(self.most);
        let chunk_blocks = u64::from(self.chunk_blocks);
        smallest / chunk_blocks * chunk_blocks * self.children
    }
}

impl Chunks {
    /// The child that stores a block, and the address of the block on the child.
    fn locate(&self, lba: u64) -> (usize, u64) {
        let chunk_blocks = u64::from(self.chunk_blocks);
        let (chunk, within) = (lba / chunk_blocks, lba % chunk_blocks);
        ((chunk % self.children) as usize, chunk / self.children * chunk_blocks + within)
    }

    /// The number of blocks on a child that have addresses below `lba` in the set.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A slow reference implementation for the tests: it locates each block separately.
    fn walk(layout: &Chunks, lba: u64, blocks: u32) -> Vec<(usize, u64)> {
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

    fn layouts() -> impl Strategy<Value = Chunks> {
        (1..6_u64, 1..20_u32, 0..8_u32).prop_map(|(children, chunk_blocks, max_blocks)| Chunks {
            children,
            chunk_blocks,
            max_blocks,
            most: u64::MAX,
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
        fn the_parts_cover_a_range(layout in layouts(), lba in 0..400_u64, blocks in 0..200_u32) {
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
        fn no_two_blocks_have_the_same_location(
            layout in layouts(), a in 0..10_000_u64, b in 0..10_000_u64
        ) {
            prop_assert_eq!(a == b, layout.locate(a) == layout.locate(b));
        }
    }
}
