//! Concatenates several namespaces (the children) into one.
//!
//! [`Concat::new`] and [`Concat::of`] set the position of each child in the concatenation, which
//! never changes afterwards. When the last child grows or shrinks, the concatenation grows or
//! shrinks with it. The concatenation does not use blocks that another child gains later. If
//! another child shrinks, reads and writes of its missing blocks fail. To keep the layout when a
//! child changes its size, give [`Concat::of`] the number of bytes to use of each child.
//!
//! When a child fails, the operations on its blocks fail.

use std::sync::Arc;

use farblock_block::{Availability, BlockError, Changes, Geometry, Namespace, Part, Queue};
use farblock_reactor::{Reactor, TaskId};

use crate::error::OpenError;
use crate::set::{self, Extent, Layout, Set};
use farblock_block::size::Size;

/// Several namespaces as one namespace, end to end.
pub struct Concat(Set<Row>);

impl Concat {
    /// Concatenates namespaces in this order. All must have the same block size.
    pub fn new(children: Vec<Arc<dyn Namespace>>) -> Result<Concat, OpenError> {
        Concat::of(children.into_iter().map(|child| (child, None)).collect())
    }

    /// Like [`Concat::new`], but the caller may limit each child: with `Some(bytes)`, the
    /// concatenation uses only the first `bytes` bytes of the child.
    pub fn of(parts: Vec<(Arc<dyn Namespace>, Option<u64>)>) -> Result<Concat, OpenError> {
        let (children, fronts): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let mut geometries = set::geometries("a concatenation", &children)?;
        for ((child, geometry), front) in children.iter().zip(&mut geometries).zip(&fronts) {
            geometry.blocks = front_blocks(&**child, geometry, *front)?;
        }
        let mut starts = Vec::with_capacity(children.len());
        let mut end = 0_u64;
        let reach = i64::MAX as u64 / u64::from(geometries[0].block_size);
        for (child, geometry) in children.iter().zip(&geometries) {
            starts.push(end);
            let longer = end.checked_add(geometry.blocks).filter(|&end| end <= reach);
            end = longer.filter(|_| geometry.blocks > 0).ok_or_else(|| {
                let child = child.describe();
                OpenError::Set(format!("{child} is empty, or makes the concatenation too large"))
            })?;
        }
        let made = set::whole(&geometries, end);
        // If the last child has an explicit size, the concatenation does not grow with the child.
        let ends = fronts.last().is_some_and(Option::is_some);
        let reach = if ends { end } else { reach };
        let row = Row { starts: starts.into(), max_blocks: set::max_blocks(&geometries), reach };
        Ok(Concat(Set::new(row, made, children)))
    }
}

/// The number of blocks of a child that the concatenation uses.
fn front_blocks(
    child: &dyn Namespace,
    geometry: &Geometry,
    front: Option<u64>,
) -> Result<u64, OpenError> {
    let Some(bytes) = front else { return Ok(geometry.blocks) };
    let block_size = u64::from(geometry.block_size);
    if bytes == 0 || !bytes.is_multiple_of(block_size) {
        return Err(OpenError::Set(format!(
            "{} of {} is not a whole number of {block_size}-byte blocks: choose a multiple",
            Size(bytes),
            child.describe()
        )));
    }
    let blocks = bytes / block_size;
    if blocks > geometry.blocks {
        return Err(OpenError::Set(format!(
            "{} is shorter than its part of the concatenation, {}: it was truncated, or is another \
             disk; restore its former size and data",
            child.describe(),
            Size(bytes)
        )));
    }
    Ok(blocks)
}

impl Namespace for Concat {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn changes(&self) -> Option<&Changes> {
        Some(self.0.changes())
    }

    fn availability(&self) -> Availability {
        self.0.availability()
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble()
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        self.0.parts()
    }

    fn describe(&self) -> String {
        let geometry = self.geometry();
        format!(
            "concatenation of {} ({}, {}-byte blocks): {}",
            self.0.children.len(),
            Size(geometry.capacity_bytes()),
            geometry.block_size,
            self.0.describe_children()
        )
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.0.open(reactor, parent)
    }
}

/// The layout of a concatenation: the first block of each child.
#[derive(Clone, Debug)]
struct Row {
    starts: Arc<[u64]>,
    /// The maximum number of blocks that a child accepts in one read or write; 0 means no limit.
    max_blocks: u32,
    /// The concatenation has at most this many blocks, so that every byte offset fits in a file
    /// offset.
    reach: u64,
}

impl Row {
    /// The first block after a child; `u64::MAX` for the last child.
    fn end(&self, child: usize) -> u64 {
        self.starts.get(child + 1).copied().unwrap_or(u64::MAX)
    }
}

impl Layout for Row {
    fn extent(&self, lba: u64, blocks: u32) -> Extent {
        // The first child starts at block 0, so the subtraction cannot underflow.
        let child = self.starts.partition_point(|&start| start <= lba) - 1;
        let mut length = u64::from(blocks).min(self.end(child) - lba) as u32;
        if self.max_blocks > 0 {
            length = length.min(self.max_blocks);
        }
        Extent { child, lba: lba - self.starts[child], blocks: length }
    }

    fn share(&self, child: usize, lba: u64, blocks: u32) -> Extent {
        let start = self.starts[child];
        let from = lba.max(start);
        let to = (lba + u64::from(blocks)).min(self.end(child));
        let blocks = to.saturating_sub(from) as u32;
        Extent { child, lba: from - start, blocks }
    }

    fn blocks(&self, children: &mut dyn Iterator<Item = u64>) -> u64 {
        let last = self.starts.last().copied().unwrap_or(0);
        last.saturating_add(children.last().unwrap_or(0)).min(self.reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A slow reference implementation for the tests: it locates each block separately.
    fn walk(sizes: &[u64], lba: u64, blocks: u32) -> Vec<(usize, u64)> {
        let all = sizes
            .iter()
            .enumerate()
            .flat_map(|(child, &size)| (0..size).map(move |at| (child, at)));
        all.skip(lba as usize).take(blocks as usize).collect()
    }

    fn row(sizes: &[u64], max_blocks: u32) -> Row {
        let starts = sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end - size)
        });
        Row { starts: starts.collect(), max_blocks, reach: u64::MAX }
    }

    proptest! {
        #[test]
        fn extents_and_shares_cover_a_range(
            sizes in prop::collection::vec(1..40_u64, 1..6),
            lba in 0..100_u64, blocks in 1..100_u32, max_blocks in 0..8_u32,
        ) {
            let all = sizes.iter().sum::<u64>();
            let lba = lba % all;
            let blocks = blocks.min((all - lba) as u32);
            let row = row(&sizes, max_blocks);
            let wanted = walk(&sizes, lba, blocks);
            let (mut at, mut left, mut places) = (lba, blocks, Vec::new());
            while left > 0 {
                let extent = row.extent(at, left);
                prop_assert!(extent.blocks > 0 && extent.blocks <= left);
                prop_assert!(max_blocks == 0 || extent.blocks <= max_blocks);
                let blocks = 0..u64::from(extent.blocks);
                places.extend(blocks.map(|n| (extent.child, extent.lba + n)));
                at += u64::from(extent.blocks);
                left -= extent.blocks;
            }
            prop_assert_eq!(&places, &wanted);
            let shares = (0..sizes.len()).flat_map(|child| {
                let share = row.share(child, lba, blocks);
                (0..share.blocks).map(move |n| (child, share.lba + u64::from(n)))
            });
            prop_assert_eq!(shares.collect::<Vec<_>>(), wanted);
            prop_assert_eq!(row.blocks(&mut sizes.iter().copied()), all);
        }
    }
}
