//! The transport that carries a queue's commands.
//!
//! A queue creates [`Commands`] and handles their results. A [`Transport`] moves the commands and
//! their data. The queue knows no PDUs, and the transport knows no opcodes. They call each other:
//!
//! ```text
//!   queue                                   transport
//!   issue(order, place)               --->  send this command; its data are at this place
//!   resume(commands)                  --->  resume deferred data transfers
//!   flush()                           --->  send the gathered commands
//!   command(slot)                     <---  get the place of this command's data
//!   finish(index)                     <---  return the operation's buffer
//!   complete(slot, cqe, ..)           <---  complete the command
//!   fail(loss)                        --->  end the connection
//! ```
//!
//! A [`DataPlace`] is the location of an operation's buffer, which several commands of the
//! operation may share. TCP keeps the buffer in the batch that it sends, or passes it to the event
//! loop to receive into it. The memory transport keeps the buffer registered while a command may
//! move its data.
//!
//! [`dial`] starts connections. Each transport describes the end of a connection in a [`Loss`]. If
//! the protocol requires it, the transport sends its peer a last message (for TCP, a terminate
//! PDU).
//!
//! The transport is a type parameter, so there are no virtual calls.

pub(crate) mod dial;
#[cfg(feature = "memory")]
pub(crate) mod memory;
pub(crate) mod rdma;
pub(crate) mod tcp;

use farblock_proto::capsule::SlotId;
use farblock_proto::host::Command;
use farblock_reactor::{Buffer, Event, Reactor, TaskId};
use farblock_wire::Cqe;
use std::fmt;
use std::io;

/// The reason why a connection has ended.
#[derive(Clone, Debug)]
pub(crate) enum Loss {
    /// The controller closed the connection.
    Closed,
    /// The network failed.
    Io(String),
    /// The controller broke the protocol. Contains a description.
    Fault(String),
    /// The controller reports that the host broke the protocol. Contains a description.
    Terminated(String),
    /// The controller did not answer a command in time.
    Timeout,
    /// The controller did not answer a keep alive in time.
    KeepAlive,
    /// The controller that the queue belongs to is lost.
    Controller,
    /// The host closed the connection.
    Shutdown,
}

impl Loss {
    /// Whether the controller broke the protocol, which would probably occur again. A wrong digest
    /// is not a breach: the network may have damaged the bytes.
    pub(crate) fn is_breach(&self) -> bool {
        matches!(self, Loss::Fault(_))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Closed => f.write_str("the controller closed the connection"),
            Loss::Io(reason) => write!(f, "the connection failed: {reason}"),
            Loss::Fault(fault) => write!(f, "the controller broke the protocol: {fault}"),
            Loss::Terminated(reason) => write!(f, "the controller ended the connection: {reason}"),
            Loss::Timeout => f.write_str("the controller did not answer a command in time"),
            Loss::KeepAlive => f.write_str("the controller did not answer the keep alive"),
            Loss::Controller => f.write_str("the connection of the admin queue is lost"),
            Loss::Shutdown => f.write_str("the host shut the controller down"),
        }
    }
}

/// The connection of a connected queue, before its move to an event loop.
pub(crate) enum Opened {
    Tcp(Box<tcp::Connected>),
    Rdma(Box<rdma::Connected>),
    #[cfg(feature = "memory")]
    Memory(std::sync::Arc<memory::Wire>),
}

impl Opened {
    /// See [`dial::Greeted::depth`].
    pub(crate) fn depth(&self, requested: u16) -> u16 {
        match self {
            Opened::Rdma(connected) => connected.depth,
            _ => requested,
        }
    }
}

pub(crate) struct Order<'a> {
    pub(crate) slot: SlotId,
    /// The index of the command's operation.
    pub(crate) index: u32,
    pub(crate) command: &'a Command,
    /// The start of the command's data in the operation's buffer.
    pub(crate) start: usize,
    /// The maximum number of data bytes to send in the command capsule.
    pub(crate) in_capsule_bytes: u32,
}

/// The location of an operation's buffer.
pub(crate) trait DataPlace {
    /// No buffer.
    const NOWHERE: Self;

    /// Returns a location in the table, with this buffer.
    fn here(buffer: Buffer) -> Self;

    /// Whether the transport uses the buffer. The operation cannot end before the transport returns
    /// the buffer.
    fn is_away(&self) -> bool;

    /// Returns the buffer, if it is in the table.
    fn take(self) -> Option<Buffer>;
}

/// The transport's state for the data of a command in flight.
pub(crate) trait Part: Copy {
    /// The value for a command slot without a command.
    const NONE: Self;

    /// Whether a successful command moved fewer bytes than it should have.
    fn is_short(&self, received: u32) -> bool;
}

/// The data of a command in flight.
pub(crate) struct Moving<'a, T: Transport> {
    /// The index of the command's operation.
    pub(crate) index: u32,
    /// The start of the command's data in the operation's buffer.
    pub(crate) start: usize,
    pub(crate) part: &'a mut T::Part,
    /// The location of the operation's buffer.
    pub(crate) place: &'a mut T::Place,
}

/// The commands of a queue, as a transport uses them.
pub(crate) trait Commands<T: Transport> {
    /// Returns the data of the command in a slot, if there is one.
    fn command(&mut self, slot: SlotId) -> Option<Moving<'_, T>>;

    /// Returns the location of an operation's buffer. `index` is the operation's index. The
    /// transport must be using the buffer.
    fn place(&mut self, index: u32) -> &mut T::Place;

    /// Returns the index of the first operation for whose buffer location `is_it` returns true.
    fn find(&self, is_it: impl Fn(&T::Place) -> bool) -> Option<u32>;

    /// Records that the transport has returned an operation's buffer. Completes the operation if
    /// nothing else of it is outstanding.
    fn finish(&mut self, index: u32);

    /// Completes a command. `received` is the number of data bytes received. If `intact` is false,
    /// the data are damaged, and the queue must not use them.
    fn complete(&mut self, slot: SlotId, cqe: &Cqe, received: u32, intact: bool);
}

pub(crate) trait Transport: Sized {
    /// The connection of a connected queue, before its move to an event loop.
    type Connected;
    type Place: DataPlace;
    type Part: Part;
    /// The commands and data that the transport will send next.
    type Outgoing;

    /// Moves a connection to an event loop.
    fn open(
        reactor: &Reactor,
        task: TaskId,
        connected: Self::Connected,
        commands: &mut impl Commands<Self>,
    ) -> io::Result<Self>;

    fn outgoing(&mut self) -> &mut Self::Outgoing;

    /// Queues a command, with its in-capsule data, for the next [`Self::flush`].
    fn issue(out: &mut Self::Outgoing, order: &Order<'_>, place: &mut Self::Place) -> Self::Part;

    /// Resumes data transfers that waited for the return of their buffer.
    fn resume(out: &mut Self::Outgoing, commands: &mut impl Commands<Self>);

    /// Sends all queued commands and data.
    fn flush(&mut self);

    /// Handles an event of the queue's task. The queue handles the timer itself.
    fn handle(&mut self, event: Event, commands: &mut impl Commands<Self>);

    /// Receives data that arrive without an event. The queue calls this at every poll.
    fn poll(&mut self, _: &mut impl Commands<Self>) {}

    fn is_open(&self) -> bool;

    /// Whether the connection has ended and the transport has returned every buffer.
    fn is_closed(&self) -> bool;

    /// The reason why the connection has ended; `None` while it is open.
    fn loss(&self) -> Option<&Loss>;

    /// Ends the connection and discards unsent data.
    fn fail(&mut self, loss: Loss, commands: &mut impl Commands<Self>);

    /// Returns the buffers of commands that were queued after the loss of the connection.
    fn discard(&mut self, commands: &mut impl Commands<Self>);

    /// Closes the connection at once, when the owner is dropped.
    fn abandon(&mut self);
}
