//! An in-memory transport for a host in the same process, for tests. The tests show that a session
//! needs neither PDUs nor byte streams. As over RDMA, the host names its data with keyed
//! descriptors.
//!
//! Host and controller share a [`Wire`], which carries capsules in one direction and responses in
//! the other. The transport copies data from and to the host's registered memory. A key or range
//! that is not registered ends the connection, and so does a command beyond the queue depth.

mod aborting;
mod advertised;
mod conformance;
mod copying;
mod fusing;
#[allow(dead_code, unreachable_pub, reason = "the tests over TCP use the rest")]
#[path = "../../../tests/rig/gate.rs"]
mod gate;
mod namespaces;
mod peer;
mod reserving;
mod scripted;

use super::Transport;
use crate::context::Context;
use crate::limits;
use crate::session::Session;
pub(crate) use farblock_host::memory::Wire;
use farblock_proto::capsule::{DataPointer, RemoteForm, SlotId};
use farblock_proto::controller::{Connected, QueueKind};
use farblock_proto::limits::{ADMIN_IN_CAPSULE_BYTES, KEYED_IN_CAPSULE_BYTES, UNCONNECTED_DEPTH};
use farblock_reactor::{Buffer, Event, TaskId};
use farblock_wire::{Cqe, Sqe, Status};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A command that has no response yet, and its in-capsule data.
struct Taken {
    sqe: Sqe,
    capsule: Vec<u8>,
}

/// The state of the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// The host named memory that it has not registered, or sent a capsule that does not fit the
    /// queue.
    Broken,
    Closed,
    Gone,
}

/// The controller's end of a [`Wire`].
pub(crate) struct Memory {
    wire: Arc<Wire>,
    slots: Vec<Option<Taken>>,
    in_capsule_bytes: usize,
    /// The commands whose pulled data have arrived.
    arrived: VecDeque<SlotId>,
    /// The buffers of pushed data. They return to the session at the end of the tick.
    sent: Vec<(usize, Buffer)>,
    life: Life,
}

impl Memory {
    /// Returns the controller's end of a wire, before the host has sent a Connect command.
    pub(crate) fn new(wire: Arc<Wire>) -> Self {
        Self {
            wire,
            slots: (0..UNCONNECTED_DEPTH).map(|_| None).collect(),
            in_capsule_bytes: ADMIN_IN_CAPSULE_BYTES as usize,
            arrived: VecDeque::new(),
            sent: Vec::new(),
            life: Life::Open,
        }
    }

    fn taken(&mut self, slot: SlotId) -> &mut Taken {
        self.slots[usize::from(slot.0)].as_mut().expect("a command is in the slot")
    }

    fn break_unless(&mut self, intact: bool) {
        if !intact && self.life == Life::Open {
            self.life = Life::Broken;
        }
    }
}

impl Transport for Memory {
    const REMOTE: RemoteForm = RemoteForm::Keyed;

    fn start(session: &mut Session<Self>, cx: &mut Context) {
        let waker = cx.reactor.waker(session.task());
        session.transport.wire.attend(waker);
        session.list(cx);
    }

    fn handle(_: &mut Session<Self>, _: &mut Context, event: Event) {
        unreachable!("unexpected event {event:?}")
    }

    fn finish_tick(session: &mut Session<Self>, cx: &mut Context) {
        for (held_bytes, buffer) in std::mem::take(&mut session.transport.sent) {
            session.give_back(cx, held_bytes, buffer);
        }
        session.bring(cx);
        match session.transport.life {
            Life::Open if session.transport.wire.is_left() => session.close(cx),
            Life::Broken => session.close(cx),
            Life::Closed => {
                session.transport.life = Life::Gone;
                session.gone(cx);
            }
            Life::Open | Life::Gone => {}
        }
    }

    fn resume(_: &mut Session<Self>, _: &mut Context) {
        // This transport defers no input.
    }

    fn pull(
        session: &mut Session<Self>,
        _: &mut Context,
        slot: SlotId,
        pointer: DataPointer,
    ) -> Result<(), Status> {
        let memory = &mut session.transport;
        let there = memory.taken(slot).capsule.len();
        if pointer.is_in_capsule() && there != pointer.length() as usize {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        }
        memory.arrived.push_back(slot);
        Ok(())
    }

    fn is_in_data(&self) -> bool {
        false
    }

    fn push(
        &mut self,
        slot: SlotId,
        length: u32,
        parts: impl IntoIterator<Item = Buffer>,
        held_bytes: usize,
        cqe: &Cqe,
    ) {
        let block = self.taken(slot).sqe.dptr.keyed_block().expect("a keyed descriptor");
        let (mut offset, mut held) = (0, held_bytes);
        for buffer in parts {
            let intact = self.wire.write(&block, offset, &buffer);
            self.break_unless(intact);
            offset += buffer.len();
            self.sent.push((std::mem::take(&mut held), buffer));
        }
        assert_eq!(
            (offset, held),
            (length as usize, 0),
            "all data and all held bytes are sent once"
        );
        self.respond(slot, cqe);
    }

    fn respond(&mut self, slot: SlotId, cqe: &Cqe) {
        let taken = self.slots[usize::from(slot.0)].take().expect("answered once");
        let block = taken.sqe.dptr.keyed_block();
        if let Some(block) = block.filter(|block| block.invalidate) {
            self.wire.invalidate(block.key);
        }
        self.wire.answer(Cqe { cid: taken.sqe.cid, ..*cqe });
    }

    fn forget(&mut self, slot: SlotId) {
        self.slots[usize::from(slot.0)] = None;
    }

    fn connected(&mut self, connected: &Connected) {
        let depth = usize::from(connected.depth).max(self.slots.len());
        self.slots.resize_with(depth, || None);
        if connected.kind == QueueKind::Io {
            self.in_capsule_bytes = KEYED_IN_CAPSULE_BYTES as usize;
        }
    }

    fn sending_since(&self) -> Option<u32> {
        None
    }

    fn save_memory(&mut self) {}

    fn is_idle(&self) -> bool {
        self.sent.is_empty()
    }

    fn close(&mut self, _: &mut Context) {
        self.life = Life::Closed;
        self.wire.close();
    }

    fn abandon(session: &mut Session<Self>, cx: &mut Context) {
        for (held_bytes, buffer) in std::mem::take(&mut session.transport.sent) {
            session.give_back(cx, held_bytes, buffer);
        }
    }
}

impl Session<Memory> {
    /// Takes commands and their data from the wire until the session reaches one of its limits.
    fn bring(&mut self, cx: &mut Context) {
        while self.takes_commands() && self.transport.life == Life::Open {
            while let Some(slot) = self.transport.arrived.pop_front() {
                self.arrived(cx, slot);
            }
            if self.holds_too_much(cx) {
                return self.park(cx);
            }
            if self.coming_bytes() > limits::OUTBOX_BYTES {
                return self.list(cx);
            }
            let Some((sqe, capsule)) = self.transport.wire.take_command() else { break };
            let free = self.transport.slots.iter().position(Option::is_none);
            let Some(slot) = free.filter(|_| capsule.len() <= self.transport.in_capsule_bytes)
            else {
                self.transport.life = Life::Broken;
                break;
            };
            self.transport.slots[slot] = Some(Taken { sqe, capsule });
            self.command(cx, SlotId(slot as u16), sqe);
        }
        self.read_expected(cx, 0);
        self.list_if_moved(cx);
    }

    fn arrived(&mut self, cx: &mut Context, slot: SlotId) {
        self.note_data(cx, slot);
        if !self.was_asked_for(slot) {
            let capsule = std::mem::take(&mut self.transport.taken(slot).capsule);
            return self.pulled(cx, slot, true, Some(&capsule));
        }
        let block = self.transport.taken(slot).sqe.dptr.keyed_block();
        let block = block.expect("a keyed descriptor");
        let mut buffer = self.take_landing(cx, slot);
        let intact = self.transport.wire.read(&block, &mut buffer);
        self.put_landing(slot, buffer);
        self.transport.break_unless(intact);
        if intact {
            self.pulled(cx, slot, true, None);
        }
    }

    /// Lists the session for the end of the tick if a push or pull has moved data or ended the
    /// connection.
    fn list_if_moved(&mut self, cx: &mut Context) {
        let memory = &self.transport;
        let is_over = matches!(memory.life, Life::Closed | Life::Broken);
        if is_over || !memory.sent.is_empty() || !memory.arrived.is_empty() {
            self.list(cx);
        }
    }
}

/// Returns a session on a wire.
pub(crate) fn session(
    route: crate::route::Route,
    task: TaskId,
    wire: Arc<Wire>,
) -> Session<Memory> {
    let peer = (Ipv4Addr::LOCALHOST, 0).into();
    Session::new(route, task, Memory::new(wire), peer, peer)
}
