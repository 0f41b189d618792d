//! Operations on files.

use farblock_mem::Buffer;

/// An operation on a file.
#[derive(Debug)]
pub enum FileOp {
    /// Fills the whole buffer. Fails with [`io::ErrorKind::UnexpectedEof`] if the file is too
    /// short.
    Read {
        /// The destination. Its length is the number of bytes to read.
        buffer: Buffer,
        /// Offset in the file in bytes.
        offset: u64,
    },
    /// Writes the whole buffer.
    Write {
        /// The data. The event returns the buffer.
        buffer: Buffer,
        /// Offset in the file in bytes.
        offset: u64,
        /// If true, the write completes only when the data is on stable storage (`RWF_DSYNC`, or a
        /// write and a sync).
        durable: bool,
    },
    /// Makes all completed writes durable (`fdatasync`).
    Sync,
    /// Deallocates a range, which then reads as zeroes. The size of the file does not change. Fails
    /// with [`io::ErrorKind::Unsupported`] if the system or the file system does not support this.
    PunchHole {
        /// Offset in the file in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Zeroes a range and keeps it allocated. The size of the file does not change. Fails with
    /// [`io::ErrorKind::Unsupported`] if the system or the file system does not support this.
    ZeroRange {
        /// Offset in the file in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl FileOp {
    /// Returns the operation's buffer, if it has one.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            FileOp::Read { buffer, .. } | FileOp::Write { buffer, .. } => Some(buffer),
            FileOp::Sync | FileOp::PunchHole { .. } | FileOp::ZeroRange { .. } => None,
        }
    }

    /// Whether the end of the range fits in a signed 64-bit offset, as systems require. (Linux
    /// interprets some negative offsets as "the current position".)
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
