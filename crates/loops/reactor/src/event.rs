//! What goes in and comes out: identifiers, file operations and events.

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
    /// A mailbox of events with a "ready" mark. Calls that name a removed task do nothing.
    TaskId
    /// A TCP connection. Calls that name a stream after its close do nothing; the buffers that they
    /// were given go to the pool.
    StreamId
    /// A listening socket. Calls that name a closed listener do nothing.
    ListenerId
    /// A file or block device. An operation on a removed file fails with
    /// [`io::ErrorKind::NotFound`].
    FileId
    /// A descriptor that is watched. Calls that name one that is watched no longer do nothing.
    WatchId
}

/// An operation on a file.
#[derive(Debug)]
pub enum FileOp {
    /// Fills the buffer, all of it, or fails: with [`io::ErrorKind::UnexpectedEof`] if the file is
    /// too short.
    Read {
        /// Where to; its length is how much.
        buffer: Buffer,
        /// Position in the file in bytes.
        offset: u64,
    },
    /// Writes all of the buffer, or fails.
    Write {
        /// What; comes back with the event.
        buffer: Buffer,
        /// Position in the file in bytes.
        offset: u64,
        /// Completes only when the data is on stable storage (`RWF_DSYNC`, or a write and a sync).
        durable: bool,
    },
    /// Makes all that was completed before stable (`fdatasync`).
    Sync,
    /// Deallocates a range, which then reads as zeroes. The file's size stays.
    /// [`io::ErrorKind::Unsupported`] where the system or the file system has none.
    PunchHole {
        /// Position in the file in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Zeroes a range and keeps it allocated. The file's size stays.
    /// [`io::ErrorKind::Unsupported`] where the system or the file system has none.
    ZeroRange {
        /// Position in the file in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// Something happened; found in the mailbox of the task that the stream, listener or operation was
/// given.
#[derive(Debug)]
pub enum Event {
    /// A connection came in, or accepting failed (and is resumed after a pause).
    Accepted {
        /// On which listener.
        listener: ListenerId,
        /// The connection and the peer's address. The socket's blocking mode is unspecified:
        /// [`add_stream`](crate::Reactor::add_stream) of any reactor sets what it needs.
        result: io::Result<(Socket, SocketAddr)>,
    },
    /// A [`connect`](crate::Reactor::connect) ended. After an error the stream still wants a
    /// [`close`](crate::Reactor::close).
    Connected {
        /// The stream.
        stream: StreamId,
        /// How it went.
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
        /// The buffer that was given.
        buffer: Buffer,
        /// How many bytes from the range's start were filled: fewer than the range at the end of
        /// the stream.
        result: io::Result<usize>,
    },
    /// A [`send`](crate::Reactor::send) ended.
    Sent {
        /// The stream.
        stream: StreamId,
        /// The batch that was given, unchanged.
        batch: SendBatch,
        /// `Ok` when the system took all of it. After an error, some of it may have gone.
        result: io::Result<()>,
    },
    /// The stream is gone: the last event of this stream.
    Closed {
        /// The stream, stale from now on.
        stream: StreamId,
    },
    /// A [`file`](crate::Reactor::file) operation ended.
    File {
        /// What the caller gave.
        user_data: u64,
        /// The operation's buffer, if it had one. After a failed read its contents are unspecified.
        buffer: Option<Buffer>,
        /// How it went.
        result: io::Result<()>,
    },
    /// The task's timer expired and is disarmed.
    Timer,
}
