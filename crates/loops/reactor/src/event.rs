//! Events: what a loop reports to its tasks.

use std::io;
use std::net::SocketAddr;

use crate::batch::SendBatch;
use crate::ids::{ListenerId, StreamId};
use crate::os::Socket;
use farblock_mem::Buffer;

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
