//! Events, which a loop delivers to its tasks.

use std::io;
use std::net::SocketAddr;

use crate::batch::SendBatch;
use crate::ids::{ListenerId, StreamId};
use crate::os::Socket;
use farblock_mem::Buffer;

/// An event for the task that owns the stream, listener or operation.
#[derive(Debug)]
pub enum Event {
    /// A connection arrived, or an accept failed. After a failure, the listener pauses and then
    /// accepts again.
    Accepted {
        /// The listener.
        listener: ListenerId,
        /// The connection and the address of the peer. The blocking mode of the socket is
        /// unspecified: [`add_stream`](crate::Reactor::add_stream) sets the mode that its reactor
        /// needs.
        result: io::Result<(Socket, SocketAddr)>,
    },
    /// A [`connect`](crate::Reactor::connect) completed. After an error the caller must still
    /// [`close`](crate::Reactor::close) the stream.
    Connected {
        /// The stream.
        stream: StreamId,
        /// The result.
        result: io::Result<()>,
    },
    /// A [`recv`](crate::Reactor::recv) completed.
    Received {
        /// The stream.
        stream: StreamId,
        /// The received bytes; empty at the end of the stream.
        result: io::Result<Buffer>,
    },
    /// A [`recv_into`](crate::Reactor::recv_into) completed.
    ReceivedInto {
        /// The stream.
        stream: StreamId,
        /// The caller's buffer.
        buffer: Buffer,
        /// The number of received bytes, from the start of the range. At the end of the stream,
        /// there may be fewer bytes than the range holds.
        result: io::Result<usize>,
    },
    /// A [`send`](crate::Reactor::send) completed.
    Sent {
        /// The stream.
        stream: StreamId,
        /// The caller's batch, unchanged.
        batch: SendBatch,
        /// `Ok` when the system accepted the whole batch. After an error, the system may have sent
        /// a part of the batch.
        result: io::Result<()>,
    },
    /// The stream is closed. This is the last event of the stream.
    Closed {
        /// The stream, whose identifier is now stale.
        stream: StreamId,
    },
    /// A [`file`](crate::Reactor::file) operation completed.
    File {
        /// The caller's `user_data`.
        user_data: u64,
        /// The operation's buffer, if it has one. After a failed read the content is unspecified.
        buffer: Option<Buffer>,
        /// The result.
        result: io::Result<()>,
    },
    /// The task's timer expired. It expires again only if the caller sets it again.
    Timer,
}
