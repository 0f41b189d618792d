//! What carries the commands of a queue: the transport under it.
//!
//! A queue knows its [`Commands`] and what they came to; a [`Transport`] knows how they and their
//! data travel. The queue names no PDU, and the transport no opcode:
//!
//! ```text
//!   queue                                   transport
//!   issue(order, place)               --->  send this command; the data are in this place
//!   resume(commands)                  --->  go on with what had to wait
//!   flush()                           --->  send what was gathered
//!   command(slot)                     <---  where this command's data are, or go
//!   finish(index)                     <---  the operation's buffer is back
//!   complete(slot, cqe, ..)           <---  the command is over
//!   fail(loss)                        --->  end the connection
//! ```
//!
//! A [`DataPlace`] says where an operation's buffer is, which several of its commands may share.
//! TCP has it in the batch that is being sent, or lends it to be received into; memory has it
//! registered for as long as a command may move it.
//!
//! How a connection begins is [`dial`]'s. Each transport has its own words for why one ends, and
//! puts them into a [`Loss`]; what it owes its peer then (a terminate PDU, of TCP) it sends itself.
//!
//! Which transport it is, is known when the program is compiled: nothing of this is a virtual call.

pub(crate) mod dial;
#[cfg(feature = "memory")]
pub(crate) mod memory;
pub(crate) mod tcp;

use farblock_proto::capsule::SlotId;
use farblock_proto::host::Command;
use farblock_reactor::{Buffer, Event, Reactor, TaskId};
use farblock_wire::Cqe;
use std::fmt;
use std::io;

/// Why a connection is over.
#[derive(Clone, Debug)]
pub(crate) enum Loss {
    /// The controller closed it.
    Closed,
    /// The network failed.
    Io(String),
    /// The controller broke the transport's protocol, in the transport's words.
    Fault(String),
    /// The controller says that we broke it, likewise.
    Terminated(String),
    /// A command took too long.
    Timeout,
    /// The controller's keep alive went unanswered.
    KeepAlive,
    /// The controller that the queue belongs to is lost.
    Controller,
    /// On purpose.
    Shutdown,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Closed => f.write_str("the controller closed the connection"),
            Loss::Io(reason) => write!(f, "the connection failed: {reason}"),
            Loss::Fault(fault) => write!(f, "the controller broke the protocol: {fault}"),
            Loss::Terminated(reason) => write!(f, "the controller ended the connection: {reason}"),
            Loss::Timeout => f.write_str("a command was not answered in time"),
            Loss::KeepAlive => f.write_str("the controller did not answer the keep alive"),
            Loss::Controller => f.write_str("the connection of the admin queue is lost"),
            Loss::Shutdown => f.write_str("it was shut down"),
        }
    }
}

/// A connection whose queue is connected, on its way to an event loop.
pub(crate) enum Opened {
    Tcp(Box<tcp::Connected>),
    #[cfg(feature = "memory")]
    Memory(std::sync::Arc<memory::Wire>),
}

/// A command to be sent.
pub(crate) struct Order<'a> {
    pub(crate) slot: SlotId,
    /// The operation it is a part of.
    pub(crate) index: u32,
    pub(crate) command: &'a Command,
    /// Where its data begin in the operation's buffer.
    pub(crate) start: usize,
    /// So much data may go with the command.
    pub(crate) in_capsule_bytes: u32,
}

/// Where an operation's buffer is.
pub(crate) trait DataPlace {
    /// There is none.
    const NOWHERE: Self;

    /// In the table.
    fn here(buffer: Buffer) -> Self;

    /// With the transport: the operation cannot end before the buffer is back.
    fn is_away(&self) -> bool;

    /// The buffer, if it is in the table.
    fn take(self) -> Option<Buffer>;
}

/// What a transport knows of the data of a command in flight.
pub(crate) trait Part: Copy {
    /// Of no command.
    const NONE: Self;

    /// Fewer data were moved than the command moves if it succeeds.
    fn is_short(&self, received: u32) -> bool;
}

/// What a command in flight moves.
pub(crate) struct Moving<'a, T: Transport> {
    /// The operation it is a part of.
    pub(crate) index: u32,
    /// Where its data begin in the operation's buffer.
    pub(crate) start: usize,
    pub(crate) part: &'a mut T::Part,
    /// Where the operation's buffer is.
    pub(crate) place: &'a mut T::Place,
}

/// The commands of a queue, for what carries them.
pub(crate) trait Commands<T: Transport> {
    /// What the command in a slot moves, if there is one.
    fn command(&mut self, slot: SlotId) -> Option<Moving<'_, T>>;

    /// Where an operation's buffer is that the transport has.
    fn place(&mut self, index: u32) -> &mut T::Place;

    /// The first operation whose buffer is in such a place.
    fn find(&self, is_it: impl Fn(&T::Place) -> bool) -> Option<u32>;

    /// An operation's buffer is back: ends it, if nothing else of it is outstanding.
    fn finish(&mut self, index: u32);

    /// A command is over, of whose data so many bytes were received; they are not to be used
    /// unless they are intact.
    fn complete(&mut self, slot: SlotId, cqe: &Cqe, received: u32, intact: bool);
}

/// See the module's text.
pub(crate) trait Transport: Sized {
    /// A connection whose queue is connected, on its way to an event loop.
    type Connected;
    type Place: DataPlace;
    type Part: Part;
    /// What is to be sent next.
    type Outgoing;

    /// Puts a connection on an event loop.
    fn open(
        reactor: &Reactor,
        task: TaskId,
        connected: Self::Connected,
        commands: &mut impl Commands<Self>,
    ) -> io::Result<Self>;

    fn outgoing(&mut self) -> &mut Self::Outgoing;

    /// Gathers a command to be sent, with what of its data goes along.
    fn issue(out: &mut Self::Outgoing, order: &Order<'_>, place: &mut Self::Place) -> Self::Part;

    /// Goes on with data that had to wait for their buffer.
    fn resume(out: &mut Self::Outgoing, commands: &mut impl Commands<Self>);

    /// Sends what was gathered.
    fn flush(&mut self);

    /// Does what an event of the queue's task asks for. The timer is the queue's own.
    fn handle(&mut self, event: Event, commands: &mut impl Commands<Self>);

    /// Takes what came without an event; called whenever the queue is looked at.
    fn poll(&mut self, _: &mut impl Commands<Self>) {}

    fn is_open(&self) -> bool;

    /// Nothing is outstanding any more, and every buffer has come back.
    fn is_closed(&self) -> bool;

    /// Why the connection is over, if it is.
    fn loss(&self) -> Option<&Loss>;

    /// Ends the connection. What was not sent yet is not sent.
    fn fail(&mut self, loss: Loss, commands: &mut impl Commands<Self>);

    /// Gives back what was gathered after the connection was lost.
    fn discard(&mut self, commands: &mut impl Commands<Self>);

    /// Closes at once, for an owner that goes away.
    fn abandon(&mut self);
}
