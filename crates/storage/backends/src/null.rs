//! The null device. It discards writes, reads zeroes, and completes every operation at once.

use farblock_block::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Buffer, Reactor, SharedBuffer, TaskId};

use crate::error::{self, OpenError};
use farblock_block::size::Size;

/// The size of the buffer of zeroes that reads borrow, in bytes.
const LENT_BYTES: usize = 64 << 10;

/// A namespace without contents. Benchmarks use it to measure the cost of all other layers.
///
/// Reads borrow zeroes, or fill their buffer with zeroes. An unfilled buffer could show one peer
/// the data of another. The `memset` costs far less than sending the same bytes.
#[derive(Clone, Debug)]
pub struct Null {
    geometry: Geometry,
}

impl Null {
    /// Creates a null device. Its capacity must be a multiple of the block size.
    pub fn new(block_size: u32, bytes: u64) -> Result<Null, OpenError> {
        let blocks = error::whole_blocks(block_size, bytes)?;
        Ok(Null { geometry: Geometry { deallocate: true, ..Geometry::new(block_size, blocks) } })
    }

    /// Makes the device read-only.
    pub fn read_only(mut self) -> Null {
        self.geometry.read_only = true;
        self
    }
}

impl Namespace for Null {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn describe(&self) -> String {
        let Geometry { block_size, .. } = self.geometry;
        format!("null ({}, {block_size}-byte blocks)", Size(self.geometry.capacity_bytes()))
    }

    fn open(&self, _: &Reactor, _: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let zeroes = SharedBuffer::new(Buffer::new(LENT_BYTES));
        Ok(Box::new(NullQueue { geometry: self.geometry, done: Vec::new(), zeroes }))
    }
}

struct NullQueue {
    geometry: Geometry,
    done: Vec<Completion>,
    /// The zeroes that all reads borrow.
    zeroes: SharedBuffer,
}

impl Queue for NullQueue {
    fn submit(&mut self, mut op: Op) {
        let result = op.check(&self.geometry);
        if let (Ok(()), Command::Read, Some(buffer)) = (result, op.command, &mut op.buffer) {
            buffer.fill(0);
        }
        self.done.push(op.complete(result));
    }

    fn read_borrowed(
        &mut self,
        lba: u64,
        blocks: u32,
        into: &mut Vec<Buffer>,
    ) -> Option<Result<(), BlockError>> {
        let result = self.geometry.check(Command::Read, lba, u64::from(blocks));
        let mut left = if result.is_ok() { self.geometry.bytes(blocks) } else { 0 };
        while left > 0 {
            let length = left.min(self.zeroes.len());
            into.push(self.zeroes.view(0..length));
            left -= length;
        }
        Some(result)
    }

    fn write_inline(
        &mut self,
        lba: u64,
        blocks: u32,
        _fua: bool,
        data: &[u8],
    ) -> Option<Result<(), BlockError>> {
        assert_eq!(data.len(), self.geometry.bytes(blocks), "`data` has a wrong length");
        Some(self.geometry.check(Command::Write, lba, u64::from(blocks)))
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }
}
