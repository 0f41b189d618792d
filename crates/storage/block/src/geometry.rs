//! The sizes and capabilities of a namespace. All code checks ranges with [`Geometry::check`].

use crate::error::BlockError;
use crate::op::Command;

/// The smallest allowed block size, in bytes.
pub const MIN_BLOCK_SIZE_BYTES: u32 = 512;
/// The largest allowed block size, in bytes.
pub const MAX_BLOCK_SIZE_BYTES: u32 = 64 * 1024;

/// The sizes and capabilities of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The block size in bytes: a power of two, [`MIN_BLOCK_SIZE_BYTES`] to
    /// [`MAX_BLOCK_SIZE_BYTES`].
    pub block_size: u32,
    /// The capacity in blocks.
    pub blocks: u64,
    /// Whether the namespace refuses every operation that would change it.
    pub read_only: bool,
    /// Whether a power cut can lose completed writes until a flush completes.
    pub volatile_cache: bool,
    /// Whether `Deallocate` frees space. Otherwise it succeeds and does nothing.
    pub deallocate: bool,
    /// Optimal I/O boundary in blocks, such as NVMe's NOIOB or the chunk of a stripe. Operations
    /// that do not cross a multiple of it are fastest. 0: no preference.
    pub optimal_blocks: u32,
    /// Preferred write size and alignment in blocks: writes in multiples of it avoid a
    /// read-modify-write in the storage below. 0: no preference.
    pub preferred_blocks: u32,
    /// The largest number of blocks in one read or write. 0: no limit.
    pub max_blocks: u32,
}

impl Geometry {
    /// Creates the geometry of a writable namespace with default properties.
    ///
    /// # Panics
    /// Panics if `block_size` is not a power of two within the limits, or if the capacity in bytes
    /// exceeds `i64::MAX` (the range of file offsets).
    pub fn new(block_size: u32, blocks: u64) -> Geometry {
        assert!(Self::is_block_size(block_size), "{block_size} bytes is not a valid block size");
        let bytes = blocks.checked_mul(u64::from(block_size));
        assert!(bytes.is_some_and(|n| i64::try_from(n).is_ok()), "{blocks} blocks are too many");
        Geometry {
            block_size,
            blocks,
            read_only: false,
            volatile_cache: false,
            deallocate: false,
            optimal_blocks: 0,
            preferred_blocks: 0,
            max_blocks: 0,
        }
    }

    /// Whether a namespace may have blocks of `bytes` bytes.
    pub fn is_block_size(bytes: u32) -> bool {
        bytes.is_power_of_two() && (MIN_BLOCK_SIZE_BYTES..=MAX_BLOCK_SIZE_BYTES).contains(&bytes)
    }

    /// Checks that `command` is valid on the `blocks` blocks from `lba`. A frontend must check this
    /// before it submits an operation. A backend must check it again.
    ///
    /// `blocks` has 64 bits, although an operation has a 32-bit block count: a frontend checks the
    /// number from its peer before it converts the number.
    pub fn check(&self, command: Command, lba: u64, blocks: u64) -> Result<(), BlockError> {
        if command == Command::Flush {
            return Ok(());
        }
        if self.read_only && command.writes() {
            return Err(BlockError::ReadOnly);
        }
        let end = lba.checked_add(blocks).ok_or(BlockError::OutOfRange)?;
        if end > self.blocks {
            return Err(BlockError::OutOfRange);
        }
        if self.max_blocks != 0 && command.moves_data() && blocks > u64::from(self.max_blocks) {
            return Err(BlockError::TooLarge);
        }
        Ok(())
    }

    /// Returns the length in bytes of a buffer for `blocks` blocks.
    ///
    /// # Panics
    /// Panics if the length exceeds the address space, which only happens with 32-bit addresses.
    pub fn bytes(&self, blocks: u32) -> usize {
        let bytes = u64::from(blocks) * u64::from(self.block_size);
        usize::try_from(bytes).expect("a buffer larger than the address space")
    }

    /// Returns the offset of `lba` in bytes. `lba` must have passed [`check`](Self::check).
    ///
    /// # Panics
    /// Panics if the product overflows.
    pub fn offset(&self, lba: u64) -> u64 {
        lba.checked_mul(u64::from(self.block_size)).expect("an unchecked block address")
    }

    /// Returns the capacity in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.offset(self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_at_the_edges_are_checked() {
        let geometry = Geometry { max_blocks: 8, ..Geometry::new(512, 100) };
        let check = |lba, blocks| geometry.check(Command::Read, lba, blocks);
        assert_eq!(check(0, 8), Ok(()));
        assert_eq!(check(92, 8), Ok(()));
        assert_eq!(check(93, 8), Err(BlockError::OutOfRange));
        assert_eq!(check(100, 0), Ok(()));
        assert_eq!(check(101, 0), Err(BlockError::OutOfRange));
        assert_eq!(check(u64::MAX, 1), Err(BlockError::OutOfRange));
        assert_eq!(check(1, u64::MAX), Err(BlockError::OutOfRange));
        assert_eq!(check(0, 9), Err(BlockError::TooLarge));
        assert_eq!(geometry.check(Command::Deallocate, 0, 100), Ok(()));
        assert_eq!(geometry.check(Command::Flush, u64::MAX, u64::MAX), Ok(()));
    }

    #[test]
    fn a_read_only_geometry_refuses_changes() {
        let geometry = Geometry { read_only: true, ..Geometry::new(4096, 4) };
        let zeroes = Command::WriteZeroes { deallocate: true };
        for command in [Command::Write, zeroes, Command::Deallocate] {
            assert_eq!(geometry.check(command, 0, 1), Err(BlockError::ReadOnly));
        }
        assert_eq!(geometry.check(Command::Read, 0, 1), Ok(()));
        assert_eq!(geometry.check(Command::Flush, 0, 0), Ok(()));
    }

    #[test]
    fn block_sizes_and_byte_counts_are_computed() {
        assert!(Geometry::is_block_size(512) && Geometry::is_block_size(4096));
        assert!(!Geometry::is_block_size(0) && !Geometry::is_block_size(520));
        assert!(!Geometry::is_block_size(256) && !Geometry::is_block_size(128 * 1024));
        let geometry = Geometry::new(4096, 4);
        assert_eq!((geometry.bytes(3), geometry.offset(3)), (12288, 12288));
        assert_eq!(geometry.capacity_bytes(), 16384);
    }
}
