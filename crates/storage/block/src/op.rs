//! An operation, its token, and its completion.

use std::collections::VecDeque;
use std::fmt;

use farblock_reactor::Buffer;

use crate::error::BlockError;
use crate::geometry::Geometry;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Fills the buffer from the range.
    Read,
    /// Stores the buffer in the range.
    Write,
    /// Makes all completed operations durable. Ignores the range.
    Flush,
    /// Makes the range read as zeroes, without a data transfer.
    WriteZeroes {
        /// Whether the namespace may free the space.
        deallocate: bool,
    },
    /// Declares that the contents of the range are no longer needed.
    Deallocate,
}

impl Command {
    /// Whether the command reads blocks.
    pub fn reads(self) -> bool {
        self == Command::Read
    }

    /// Whether the command may change blocks. A read-only namespace refuses such a command.
    pub fn writes(self) -> bool {
        !matches!(self, Command::Read | Command::Flush)
    }

    /// Whether the command needs a buffer.
    pub fn moves_data(self) -> bool {
        matches!(self, Command::Read | Command::Write)
    }
}

/// Identifies an operation. The submitter chooses the value, and the completion returns it.
///
/// Every operation must be finished. Dropping an unfinished token therefore panics, unless the
/// thread is already panicking. To finish a token, use [`Op::complete`], or [`Op::abandon`] for a
/// queue that is dropped.
#[derive(PartialEq, Eq)]
pub struct Token(u64);

impl Token {
    /// Creates a token with the submitter's value.
    pub fn new(value: u64) -> Token {
        Token(value)
    }

    /// Returns the submitter's value.
    pub fn value(&self) -> u64 {
        self.0
    }

    /// Consumes the token and returns its value. A decorator uses this when it replaces the
    /// submitter's token.
    pub fn finish(self) -> u64 {
        let value = self.0;
        std::mem::forget(self);
        value
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:#x})", self.0)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("an operation (token {:#x}) was dropped without its completion", self.0);
        }
    }
}

/// One operation on a namespace, which owns its buffer until its completion.
pub struct Op {
    /// The kind of operation.
    pub command: Command,
    /// The first block.
    pub lba: u64,
    /// The number of blocks.
    pub blocks: u32,
    /// Force unit access: whether a write must be durable when it completes. Other commands ignore
    /// it.
    pub fua: bool,
    /// For `Read` and `Write`, a buffer of exactly [`Geometry::bytes`] of `blocks`. `None` for
    /// other commands.
    pub buffer: Option<Buffer>,
    /// Identifies the operation to its submitter.
    pub token: Token,
}

impl Op {
    /// Creates an operation that reads `blocks` blocks from `lba` into `buffer`.
    pub fn read(lba: u64, blocks: u32, buffer: Buffer, token: u64) -> Op {
        Op::with(Command::Read, lba, blocks, Some(buffer), token)
    }

    /// Creates an operation that writes `buffer` to `blocks` blocks from `lba`.
    pub fn write(lba: u64, blocks: u32, buffer: Buffer, token: u64) -> Op {
        Op::with(Command::Write, lba, blocks, Some(buffer), token)
    }

    /// Creates an operation that makes all completed operations durable.
    pub fn flush(token: u64) -> Op {
        Op::with(Command::Flush, 0, 0, None, token)
    }

    /// Creates an operation that makes a range read as zeroes.
    pub fn write_zeroes(lba: u64, blocks: u32, deallocate: bool, token: u64) -> Op {
        Op::with(Command::WriteZeroes { deallocate }, lba, blocks, None, token)
    }

    /// Creates an operation that deallocates a range.
    pub fn deallocate(lba: u64, blocks: u32, token: u64) -> Op {
        Op::with(Command::Deallocate, lba, blocks, None, token)
    }

    /// Creates an operation with any command, without `fua`.
    pub fn with(command: Command, lba: u64, blocks: u32, buffer: Option<Buffer>, token: u64) -> Op {
        Op { command, lba, blocks, fua: false, buffer, token: Token::new(token) }
    }

    /// Returns the same operation with `fua`, so that it is durable when it completes.
    pub fn durable(mut self) -> Op {
        self.fua = true;
        self
    }

    /// Checks the range of the operation with [`Geometry::check`], and the length of its buffer. A
    /// backend calls this before it starts the operation.
    ///
    /// # Panics
    /// Panics if a valid read or write does not have a buffer of the right length. This is a bug of
    /// the submitter.
    pub fn check(&self, geometry: &Geometry) -> Result<(), BlockError> {
        geometry.check(self.command, self.lba, u64::from(self.blocks))?;
        if self.command.moves_data() {
            let length = length(&self.buffer);
            let expected = geometry.bytes(self.blocks);
            assert!(
                length == expected,
                "the buffer has {length} bytes, but the operation needs {expected}"
            );
        }
        Ok(())
    }

    /// Ends the operation and returns its completion.
    pub fn complete(self, result: Result<(), BlockError>) -> Completion {
        Completion { token: self.token.finish(), result, buffer: self.buffer }
    }

    /// Ends the operation without a completion and returns its buffer. Use this only when a whole
    /// queue is dropped.
    pub fn abandon(self) -> Option<Buffer> {
        self.token.finish();
        self.buffer
    }
}

/// The single, final result of an operation.
pub struct Completion {
    /// The submitter's value of the token.
    pub token: u64,
    /// The result.
    pub result: Result<(), BlockError>,
    /// The operation's own whole buffer, after a success and after a failure.
    pub buffer: Option<Buffer>,
}

// Show the length of the buffer instead of its contents.
impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} blocks at {}", self.command, self.blocks, self.lba)?;
        if self.fua {
            f.write_str(", durable")?;
        }
        write!(f, ", {} bytes of buffer, {:?}", length(&self.buffer), self.token)
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = length(&self.buffer);
        write!(f, "token {:#x}: {:?}, {length} bytes of buffer", self.token, self.result)
    }
}

fn length(buffer: &Option<Buffer>) -> usize {
    buffer.as_ref().map_or(0, |buffer| buffer.len())
}

/// Implements [`Queue::abandon`](crate::Queue::abandon) for the operations in `waiting`, which have
/// not started. Ends the unwanted operations, and keeps the order of the others.
pub fn abandon_waiting(
    waiting: &mut VecDeque<Op>,
    unwanted: &mut dyn FnMut(u64) -> bool,
    done: &mut Vec<Completion>,
) {
    for op in std::mem::take(waiting) {
        if unwanted(op.token.value()) {
            done.push(op.complete(Err(BlockError::Aborted)));
        } else {
            waiting.push_back(op);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completing_an_operation_returns_token_and_buffer() {
        let buffer = Buffer::new(512);
        let address = buffer.as_ptr();
        let done = Op::read(0, 1, buffer, 7).complete(Err(BlockError::ReadFailed));
        assert_eq!((done.token, done.result), (7, Err(BlockError::ReadFailed)));
        assert_eq!(done.buffer.map(|buffer| (buffer.as_ptr(), buffer.len())), Some((address, 512)));
    }

    #[test]
    #[should_panic(expected = "token 0x2a")]
    fn dropping_an_unfinished_operation_panics() {
        drop(Op::flush(42));
    }

    #[test]
    fn abandoning_an_operation_does_not_panic() {
        assert!(Op::write(0, 1, Buffer::new(512), 1).abandon().is_some());
    }

    #[test]
    #[should_panic(expected = "the buffer has 511 bytes, but the operation needs 512")]
    fn a_buffer_of_the_wrong_length_panics() {
        let op = Op::read(0, 1, Buffer::new(511), 1);
        let _ = op.check(&Geometry::new(512, 1));
    }

    #[test]
    fn a_range_beyond_the_end_is_an_error_even_with_a_wrong_buffer() {
        let op = Op::read(9, 1, Buffer::new(1), 1);
        assert_eq!(op.check(&Geometry::new(512, 1)), Err(BlockError::OutOfRange));
        op.abandon();
    }
}
