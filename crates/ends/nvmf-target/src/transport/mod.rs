//! What carries a session: the transport under it.
//!
//! A [`Session`](crate::session::Session) knows commands, data and answers; a [`Transport`] knows
//! how they travel. The session names no PDU, and the transport no opcode:
//!
//! ```text
//!   session                                     transport
//!   command(slot, sqe)                    <---  a capsule came
//!   pull(slot, pointer)                   --->  bring these bytes
//!   landing(slot), then pulled(slot)      <---  where they go; they are there
//!   push(slot, buffers, cqe)              --->  send these bytes, and the answer behind them
//!   respond(slot, cqe)                    --->  send the answer
//!   give_back(held, buffer)               <---  these bytes have left
//!   close()                               --->  end it
//!   gone()                                <---  it has ended
//! ```
//!
//! Which transport it is, is known when the program is compiled: nothing of this is a virtual call.

#[cfg(test)]
pub(crate) mod memory;
pub(crate) mod tcp;

use crate::core::Context;
use crate::session::Session;
use farblock_proto::capsule::{DataPointer, RemoteForm, SlotId};
use farblock_proto::controller::Connected;
use farblock_reactor::{Buffer, Event};
use farblock_tls::Named;
use farblock_wire::{Cqe, Status};

/// See the module's text.
pub(crate) trait Transport: Sized {
    /// How its commands name data outside their capsules.
    const REMOTE: RemoteForm;

    /// Begins to bring what the host sends.
    fn start(session: &mut Session<Self>, cx: &mut Context);

    /// Does what an event of the session's task asks for. The timer is the session's own.
    fn handle(session: &mut Session<Self>, cx: &mut Context, event: Event);

    /// Everything of this tick was handled: sends what there is to send, and goes on with what had
    /// to wait for room.
    fn finish_tick(session: &mut Session<Self>, cx: &mut Context);

    /// It is the session's turn to have looked at what came and was left for later.
    fn resume(session: &mut Session<Self>, cx: &mut Context);

    /// Begins to bring a command's data, and calls [`Session::pulled`] when they are there; not
    /// from within this call, unless it is an error.
    ///
    /// # Errors
    /// The status to answer the command with.
    fn pull(
        session: &mut Session<Self>,
        cx: &mut Context,
        slot: SlotId,
        pointer: DataPointer,
    ) -> Result<(), Status>;

    /// Whether a command's data have begun to come and their end has not.
    fn is_in_data(&self) -> bool;

    /// Sends `length` bytes of data, which may be in parts, and ends the command with `cqe`. They
    /// come back with [`Session::give_back`], with `held_bytes` once.
    fn push(
        &mut self,
        slot: SlotId,
        length: u32,
        parts: impl IntoIterator<Item = Buffer>,
        held_bytes: usize,
        cqe: &Cqe,
    );

    /// Ends a command; `cqe` is without the command's identifier.
    fn respond(&mut self, slot: SlotId, cqe: &Cqe);

    /// Gives up a command that is never answered.
    fn forget(&mut self, slot: SlotId);

    /// The queue is connected: from now on it is as deep and as wide as that says.
    fn connected(&mut self, connected: &Connected);

    /// For whom the key is that the host has proved to have, if it did.
    fn peer(&self) -> Option<&Named> {
        None
    }

    /// Since when the host has not taken what is being sent to it, as the core's account of memory
    /// counts; none if nothing is.
    fn sending_since(&self) -> Option<u32>;

    /// Gives back what is only kept for comfort.
    fn save_memory(&mut self);

    /// Whether nothing waits to be sent.
    fn is_idle(&self) -> bool;

    /// Ends the connection at once; [`Session::gone`] is called when nothing is left of it.
    fn close(&mut self, cx: &mut Context);

    /// Gives back every buffer that is not under way any more; called once, at the end.
    fn abandon(session: &mut Session<Self>, cx: &mut Context);
}
