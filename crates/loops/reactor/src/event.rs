//! Identifiers, file operations and events.

use std::io;
use std::net::SocketAddr;

use crate::batch::SendBatch;
use crate::os::Socket;
use crate::slab::Key;
use farblock_mem::Buffer;

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name(pub(crate) Key);
    )*};
}

identifiers! {
    /// A mailbox of events with a "ready" mark. Calls with a removed task do nothing.
    TaskId
    /// A TCP connection. Calls with a closed stream do nothing; their buffers return to the pool.
    StreamId
    /// A listening socket. Calls with a closed listener do nothing.
    ListenerId
    /// A file or block device. An operation on a removed file fails with
    /// [`io::ErrorKind::NotFound`].
    FileId
    /// A watched descriptor. Calls after it was unwatched do nothing.
    WatchId
}

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

/// An event in the mailbox of the task to which the stream, listener or operation belongs.
#[derive(Debug)]
pub enum Event {
    /// A connection arrived, or accepting failed (it resumes after a pause).
    Accepted {
        /// The listener.
        listener: ListenerId,
        /// The connection and the peer's address. The socket's blocking mode is unspecified:
        /// [`add_stream`](crate::Reactor::add_stream) of any reactor sets the mode that it needs.
        result: io::Result<(Socket, SocketAddr)>,
    },
    /// A [`connect`](crate::Reactor::connect) ended. After an error the caller must still
    /// [`close`](crate::Reactor::close) the stream.
    Connected {
        /// The stream.
        stream: StreamId,
        /// The result.
        result: io::Result<()>,
    },
    /// A [`recv`](crate::Reactor::recv) ended.
    Received {
        /// The stream.
        stream: StreamId,
        /// Exactly the bytes received; empty at the end of the stream.
        result: io::Result<Buffer>,
    },
    /// A [`recv_into`](crate::Reactor::recv_into) ended.
    ReceivedInto {
        /// The stream.
        stream: StreamId,
        /// The caller's buffer.
        buffer: Buffer,
        /// The number of bytes filled from the range's start: fewer than the range at the end of
        /// the stream.
        result: io::Result<usize>,
    },
    /// A [`send`](crate::Reactor::send) ended.
    Sent {
        /// The stream.
        stream: StreamId,
        /// The caller's batch, unchanged.
        batch: SendBatch,
        /// `Ok` when the system took the whole batch. After an error, the system may have sent a
        /// part.
        result: io::Result<()>,
    },
    /// The stream is closed: the last event of this stream.
    Closed {
        /// The stream, stale from now on.
        stream: StreamId,
    },
    /// A [`file`](crate::Reactor::file) operation ended.
    File {
        /// The caller's value.
        user_data: u64,
        /// The operation's buffer, if it had one. After a failed read its contents are unspecified.
        buffer: Option<Buffer>,
        /// The result.
        result: io::Result<()>,
    },
    /// The task's timer expired and is disarmed.
    Timer,
}
