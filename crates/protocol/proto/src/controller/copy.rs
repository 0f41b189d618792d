//! The source ranges of the Copy command (NVM Command Set Specification 1.1, "Copy command").

use super::namespace::{NamespaceInfo, NamespaceTable};
use crate::ids::{BlockCount, Lba, NamespaceId};
use alloc::vec::Vec;
use farblock_wire::nvm::CopyRange;
use farblock_wire::status::Status;

/// A run of source blocks of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopySource {
    /// The source namespace.
    pub namespace: NamespaceId,
    /// The first block.
    pub lba: Lba,
    /// The number of blocks.
    pub blocks: BlockCount,
}

/// The destination of a Copy command, and the format of its ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyPlan {
    /// The destination namespace.
    pub namespace: NamespaceId,
    /// The first destination block.
    pub lba: Lba,
    /// The number of source ranges, 1 to 128.
    pub ranges: u16,
    /// Whether each range contains a namespace identifier (descriptor format 2).
    pub across: bool,
}

/// A run of blocks of a Copy command that the target copies in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyPart {
    /// The source blocks.
    pub from: CopySource,
    /// The destination namespace.
    pub namespace: NamespaceId,
    /// The first destination block.
    pub to: Lba,
}

impl CopyPart {
    /// Checks the part against the current namespaces.
    ///
    /// # Errors
    /// Returns the status with which to complete the Copy command.
    pub fn check(&self, table: &NamespaceTable) -> Result<(), Status> {
        let into = table.find(self.namespace).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        table.check_reach(self.namespace)?;
        if into.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        check_source(&self.from, into, table)?;
        check_blocks(self.to, self.from.blocks.0.into(), into)
    }
}

/// The progress of a Copy command. The target copies the ranges in ascending order, and the blocks
/// of each range in ascending order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CopyRanges {
    sources: Vec<CopySource>,
    into: Option<(NamespaceId, Lba)>,
    /// The number of the range that contains the next part.
    next: usize,
    /// The number of blocks of range `next` that earlier parts cover.
    begun_blocks: u32,
    /// The number of completely copied ranges.
    copied: usize,
}

impl CopyRanges {
    /// Reads the ranges of a command.
    ///
    /// # Errors
    /// - Command Size Limit Exceeded if the ranges exceed MSSRL or MCL.
    /// - LBA Out of Range if a range is not within its namespace.
    /// - Incompatible Namespace or Format if block sizes differ.
    /// - Overlapping I/O Range if the command would both read and write a block.
    /// - Fast Copy Not Possible if a range requires a fast copy.
    /// - The status for an inaccessible namespace.
    pub fn parse(data: &[u8], plan: &CopyPlan, table: &NamespaceTable) -> Result<Self, Status> {
        let bytes = data
            .get(..usize::from(plan.ranges) * CopyRange::LEN)
            .ok_or(Status::DATA_SGL_LENGTH_INVALID.with_dnr())?;
        let into = table.find(plan.namespace).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        let sources = bytes.chunks_exact(CopyRange::LEN).map(|range| source(range, plan));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let total: u64 = sources.iter().map(|source| u64::from(source.blocks.0)).sum();
        let longest = sources.iter().map(|source| source.blocks.0).max().unwrap_or(0);
        if longest > into.copy_range_blocks().into() || total > into.copy_blocks().into() {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr());
        }
        check_blocks(plan.lba, total, into)?;
        sources.iter().try_for_each(|source| check_source(source, into, table))?;
        let overlaps = |source: &CopySource| {
            source.namespace == plan.namespace
                && source.lba.0 < plan.lba.0 + total
                && plan.lba.0 < source.lba.0 + u64::from(source.blocks.0)
        };
        if sources.iter().any(overlaps) {
            return Err(Status::OVERLAPPING_IO_RANGE.with_dnr());
        }
        let into = Some((plan.namespace, plan.lba));
        Ok(Self { sources, into, ..Self::default() })
    }

    /// Returns the next part, of at most `most` blocks (at least one); `None` if the target has
    /// begun all parts.
    #[must_use]
    pub fn peek(&self, most: u32) -> Option<CopyPart> {
        let source = self.sources.get(self.next)?;
        let (namespace, to) = self.into?;
        let blocks = BlockCount((source.blocks.0 - self.begun_blocks).min(most.max(1)));
        let lba = Lba(source.lba.0 + u64::from(self.begun_blocks));
        Some(CopyPart { from: CopySource { lba, blocks, ..*source }, namespace, to })
    }

    /// Advances past a part, which the target now begins to copy.
    pub fn begin(&mut self, part: &CopyPart) {
        self.begun_blocks += part.from.blocks.0;
        self.into = Some((part.namespace, Lba(part.to.0 + u64::from(part.from.blocks.0))));
        if self.begun_blocks == self.sources[self.next].blocks.0 {
            (self.next, self.begun_blocks) = (self.next + 1, 0);
        }
    }

    /// Reports that the target has written all parts that it has begun.
    pub fn written(&mut self) {
        self.copied = self.next;
    }

    /// Returns the number of the lowest range that is not completely copied. This is the result of
    /// a failed command.
    #[must_use]
    pub fn copied(&self) -> usize {
        self.copied
    }

    /// Whether there are parts that the target has not begun.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.next < self.sources.len()
    }

    /// Returns the remaining ranges, starting with the range that contains the next part.
    pub fn sources(&self) -> impl Iterator<Item = &CopySource> {
        self.sources.iter().skip(self.next)
    }
}

fn source(bytes: &[u8], plan: &CopyPlan) -> Result<CopySource, Status> {
    let range = CopyRange::parse(bytes).expect("each chunk has the length of a range");
    let namespace = if plan.across { NamespaceId(range.snsid.get()) } else { plan.namespace };
    if plan.across && range.sopt.get() & CopyRange::SOPT_FAST_ONLY != 0 {
        return Err(Status::FAST_COPY_NOT_POSSIBLE.with_dnr());
    }
    let blocks = BlockCount(range.block_count());
    Ok(CopySource { namespace, lba: Lba(range.slba.get()), blocks })
}

fn check_source(
    source: &CopySource,
    into: &NamespaceInfo,
    table: &NamespaceTable,
) -> Result<(), Status> {
    let info = table.find(source.namespace).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
    table.check_reach(source.namespace)?;
    if info.block_size != into.block_size {
        return Err(Status::INCOMPATIBLE_NAMESPACE.with_dnr());
    }
    check_blocks(source.lba, source.blocks.0.into(), info)
}

/// Checks that `blocks` blocks from `lba` are within a namespace.
fn check_blocks(lba: Lba, blocks: u64, info: &NamespaceInfo) -> Result<(), Status> {
    match lba.0.checked_add(blocks) {
        Some(end) if end <= info.blocks => Ok(()),
        _ => Err(Status::LBA_OUT_OF_RANGE.with_dnr()),
    }
}
