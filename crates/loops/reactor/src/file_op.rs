//! Operations on files.

use farblock_mem::Buffer;

/// An operation on a file.
#[derive(Debug)]
pub enum FileOp {
    /// Fills the whole buffer, or fails: with [`io::ErrorKind::UnexpectedEof`] if the file is too
    /// short.
    Read {
        /// The destination; its length is the number of bytes.
        buffer: Buffer,
        /// Position in the file in bytes.
        offset: u64,
    },
    /// Writes all of the buffer, or fails.
    Write {
        /// The data; the event returns it.
        buffer: Buffer,
        /// Position in the file in bytes.
        offset: u64,
        /// Completes only when the data is on stable storage (`RWF_DSYNC`, or a write and a sync).
        durable: bool,
    },
    /// Makes durable all writes that completed before (`fdatasync`).
    Sync,
    /// Deallocates a range, which then reads as zeroes. Keeps the file's size. Fails with
    /// [`io::ErrorKind::Unsupported`] if the system or the file system cannot do this.
    PunchHole {
        /// Position in the file in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Zeroes a range and keeps it allocated. Keeps the file's size. Fails with
    /// [`io::ErrorKind::Unsupported`] if the system or the file system cannot do this.
    ZeroRange {
        /// Position in the file in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl FileOp {
    /// The operation's buffer, if it has one.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            FileOp::Read { buffer, .. } | FileOp::Write { buffer, .. } => Some(buffer),
            FileOp::Sync | FileOp::PunchHole { .. } | FileOp::ZeroRange { .. } => None,
        }
    }

    /// Whether the range fits in signed offsets, as systems require. Linux treats some negative
    /// offsets as "the current position".
    pub(crate) fn range_is_valid(&self) -> bool {
        let (offset, len) = match self {
            FileOp::Read { buffer, offset } | FileOp::Write { buffer, offset, .. } => {
                (*offset, buffer.len() as u64)
            }
            FileOp::PunchHole { offset, len } | FileOp::ZeroRange { offset, len } => {
                (*offset, *len)
            }
            FileOp::Sync => (0, 0),
        };
        offset.checked_add(len).is_some_and(|end| i64::try_from(end).is_ok())
    }
}
