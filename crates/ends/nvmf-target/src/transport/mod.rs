//! The transport under a session.
//!
//! A [`Session`](crate::session::Session) handles commands, data and responses. A [`Transport`]
//! carries them. The session does not know PDUs, and the transport does not know opcodes.
//!
//! ```text
//!   session                                     transport
//!   command(slot, sqe)                    <---  a capsule has arrived
//!   pull(slot, pointer)                   --->  receive these bytes
//!   landing(slot)                         <---  get the buffer for these bytes
//!   pulled(slot)                          <---  all these bytes have arrived
//!   push(slot, buffers, cqe)              --->  send these bytes, and then the response
//!   respond(slot, cqe)                    --->  send the response
//!   give_back(held, buffer)               <---  these bytes were sent
//!   close()                               --->  close the connection
//!   gone()                                <---  the connection has closed
//! ```
//!
//! The transport is a type parameter of the session, so no call is virtual.

#[cfg(test)]
pub(crate) mod memory;
pub(crate) mod rdma;
pub(crate) mod tcp;

use crate::context::Context;
use crate::session::Session;
use farblock_proto::capsule::{DataPointer, RemoteForm, SlotId};
use farblock_proto::controller::Connected;
use farblock_proto::rdma::Announced;
use farblock_reactor::{Buffer, Event};
use farblock_tls::Named;
use farblock_wire::{Cqe, Status};

/// The transport of a session.
pub(crate) trait Transport: Sized {
    /// The SGL descriptor form that commands use for data outside the capsule.
    const REMOTE: RemoteForm;

    /// Starts receiving from the host.
    fn start(session: &mut Session<Self>, cx: &mut Context);

    /// Handles an event of the session's task, except for timers.
    fn handle(session: &mut Session<Self>, cx: &mut Context, event: Event);

    /// Ends a tick of the event loop after all events were handled. Sends the output. Continues
    /// parsing if it had stopped for lack of room in the output.
    fn finish_tick(session: &mut Session<Self>, cx: &mut Context);

    /// Parses input that the session had deferred.
    fn resume(session: &mut Session<Self>, cx: &mut Context);

    /// Starts a command's data transfer. Once the data have arrived, the transport calls
    /// [`Session::pulled`], but never before this call has returned.
    ///
    /// # Errors
    /// Returns the status for the command.
    fn pull(
        session: &mut Session<Self>,
        cx: &mut Context,
        slot: SlotId,
        pointer: DataPointer,
    ) -> Result<(), Status>;

    /// Returns whether the input parsed so far ends within a command's data.
    fn is_in_data(&self) -> bool;

    /// Sends `length` bytes of data, possibly in parts, and ends the command with `cqe`. Later
    /// returns each buffer with [`Session::give_back`]. One of these calls also returns
    /// `held_bytes`.
    fn push(
        &mut self,
        slot: SlotId,
        length: u32,
        parts: impl IntoIterator<Item = Buffer>,
        held_bytes: usize,
        cqe: &Cqe,
    );

    /// Sends a command's response `cqe`. The transport fills in the command identifier.
    fn respond(&mut self, slot: SlotId, cqe: &Cqe);

    /// Drops a command without sending a response.
    fn forget(&mut self, slot: SlotId);

    /// Returns the queue that the connection request has announced, if the transport has connection
    /// requests.
    fn announced(&self) -> Option<Announced> {
        None
    }

    /// Applies the depth and sizes of the connected queue.
    fn connected(&mut self, connected: &Connected);

    /// Returns the owner of the host's TLS key, if any.
    fn peer(&self) -> Option<&Named> {
        None
    }

    /// Returns the epoch of [`crate::memory`] in which the current send started. `None`: no send is
    /// in progress.
    fn sending_since(&self) -> Option<u32>;

    fn save_memory(&mut self);

    /// Returns whether no output waits to be sent.
    fn is_idle(&self) -> bool;

    /// Closes the connection at once. The transport calls [`Session::gone`] after the close.
    fn close(&mut self, cx: &mut Context);

    /// Gives back every buffer that neither the reactor nor a namespace uses. The session calls
    /// this once, after the transport has closed.
    fn abandon(session: &mut Session<Self>, cx: &mut Context);
}
