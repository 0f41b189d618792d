//! Reasons for a failed operation on blocks. Frontends map them to their own status codes.

use std::fmt;
use std::io;

use crate::op::Command;

/// The reason why an operation failed. The reasons describe the effect for the submitter, not the
/// failed system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockError {
    /// The range is not within the namespace.
    OutOfRange,
    /// The operation transfers more blocks than
    /// [`Geometry::max_blocks`](crate::Geometry::max_blocks).
    TooLarge,
    /// The namespace is read-only, or has become read-only (for example, the kernel has remounted
    /// its file system read-only after an error).
    ReadOnly,
    /// The storage of the namespace is full.
    NoSpace,
    /// A reservation of another host forbids the operation.
    Conflict,
    /// This host must not execute the operation: the namespace is locked, or the host lacks the
    /// right.
    Denied,
    /// The namespace is not usable yet: it is starting, or another command is formatting or
    /// sanitizing it. A later attempt may succeed.
    NotReady,
    /// The write is larger than the namespace's atomic write unit.
    AtomicExceeded,
    /// The namespace could not read the data.
    ReadFailed,
    /// The namespace could not write the data. For a flush, it could not write earlier data.
    WriteFailed,
    /// The namespace does not support the operation.
    Unsupported,
    /// The connection to the namespace is lost.
    Disconnected,
    /// The submitter cancelled the operation.
    Aborted,
    /// The system lacks a resource that the operation needs (memory, open files, queues).
    NoResources,
}

impl BlockError {
    /// Maps an error of the operating system. Errors without their own variant become `ReadFailed`
    /// or `WriteFailed`, depending on `command`.
    pub fn from_io(command: Command, error: &io::Error) -> BlockError {
        use io::ErrorKind as Kind;
        let failed = if command.reads() { BlockError::ReadFailed } else { BlockError::WriteFailed };
        match error.kind() {
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge if !command.reads() => {
                BlockError::NoSpace
            }
            // Only a command that changes blocks fails with `ReadOnly`. For a flush, these errors
            // become `WriteFailed`, because earlier writes may be lost.
            Kind::ReadOnlyFilesystem | Kind::PermissionDenied if command.writes() => {
                BlockError::ReadOnly
            }
            Kind::OutOfMemory => BlockError::NoResources,
            Kind::Unsupported => BlockError::Unsupported,
            Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::NetworkDown
            | Kind::NetworkUnreachable
            | Kind::HostUnreachable => BlockError::Disconnected,
            _ => Self::from_os(error).filter(|_| !command.reads()).unwrap_or(failed),
        }
    }

    /// Maps error numbers for which the standard library has no kind.
    fn from_os(error: &io::Error) -> Option<BlockError> {
        // The error of a write through a handle that was opened for reading. The number is the same
        // on every Unix.
        const EBADF: i32 = 9;
        match error.raw_os_error() {
            Some(EBADF) if cfg!(unix) => Some(BlockError::ReadOnly),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Some(95) => Some(BlockError::Unsupported), // EOPNOTSUPP
            _ => None,
        }
    }
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockError::OutOfRange => "the range lies outside of the namespace",
            BlockError::TooLarge => "the operation exceeds the namespace's transfer limit",
            BlockError::ReadOnly => "the namespace is read-only",
            BlockError::NoSpace => "no space is left on the namespace's storage",
            BlockError::Conflict => "another host has reserved the namespace",
            BlockError::Denied => "the namespace denies access to this host",
            BlockError::NotReady => "the namespace is not ready",
            BlockError::AtomicExceeded => "the write exceeds the namespace's atomic write size",
            BlockError::ReadFailed => "reading failed",
            BlockError::WriteFailed => "writing failed",
            BlockError::Unsupported => "the namespace does not support the operation",
            BlockError::Disconnected => "the connection to the namespace is lost",
            BlockError::Aborted => "the operation was aborted",
            BlockError::NoResources => "the system is out of memory, open files or queues",
        })
    }
}

impl std::error::Error for BlockError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_errors_map_by_the_direction_of_the_command() {
        let read = |kind: io::ErrorKind| BlockError::from_io(Command::Read, &kind.into());
        let write = |kind: io::ErrorKind| BlockError::from_io(Command::Write, &kind.into());
        assert_eq!(write(io::ErrorKind::StorageFull), BlockError::NoSpace);
        assert_eq!(read(io::ErrorKind::StorageFull), BlockError::ReadFailed);
        assert_eq!(write(io::ErrorKind::ReadOnlyFilesystem), BlockError::ReadOnly);
        assert_eq!(write(io::ErrorKind::PermissionDenied), BlockError::ReadOnly);
        let flush = io::ErrorKind::ReadOnlyFilesystem.into();
        assert_eq!(BlockError::from_io(Command::Flush, &flush), BlockError::WriteFailed);
        assert_eq!(read(io::ErrorKind::PermissionDenied), BlockError::ReadFailed);
        assert_eq!(read(io::ErrorKind::UnexpectedEof), BlockError::ReadFailed);
        assert_eq!(write(io::ErrorKind::Other), BlockError::WriteFailed);
        assert_eq!(write(io::ErrorKind::ConnectionReset), BlockError::Disconnected);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_error_numbers_become_block_errors() {
        let of =
            |command, number| BlockError::from_io(command, &io::Error::from_raw_os_error(number));
        const EIO: i32 = 5;
        assert_eq!(of(Command::Read, EIO), BlockError::ReadFailed);
        assert_eq!(of(Command::Write, EIO), BlockError::WriteFailed);
        assert_eq!(of(Command::Flush, EIO), BlockError::WriteFailed);
        assert_eq!(of(Command::Write, 9), BlockError::ReadOnly);
        assert_eq!(of(Command::Read, 9), BlockError::ReadFailed);
        assert_eq!(of(Command::Write, 13), BlockError::ReadOnly);
        assert_eq!(of(Command::Write, 28), BlockError::NoSpace);
        assert_eq!(of(Command::Write, 30), BlockError::ReadOnly);
        assert_eq!(of(Command::Write, 122), BlockError::NoSpace);
        assert_eq!(of(Command::Deallocate, 95), BlockError::Unsupported);
    }
}
