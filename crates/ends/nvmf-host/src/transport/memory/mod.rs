//! The memory transport: a controller in the same process, for tests, which show that a queue needs
//! neither PDUs nor byte streams. As over RDMA, commands refer to data outside their capsules with
//! keyed descriptors. The host registers an operation's buffer while one of the operation's
//! commands is in flight.
//!
//! ```text
//!         register                      answer to its last command, or the controller has closed
//!  Here ------------> Registered(key) --------------------------------------------------> Here
//! ```

mod greeting;
mod wire;

pub(crate) use greeting::Greeted;
pub use wire::{Region, Wire};

use super::{Commands, Loss, Order, Transport};
use farblock_proto::capsule::SlotId;
use farblock_proto::host::{Command, Data};
use farblock_reactor::{Buffer, Event, Reactor, TaskId};
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, SglDescriptor, Sqe};
use std::io;
use std::sync::Arc;

/// A function that returns the host's end of a new wire. A controller serves the other end.
pub type Dial = Arc<dyn Fn() -> Arc<Wire> + Send + Sync>;

/// The location of an operation's buffer; see the module documentation for a diagram.
pub(crate) enum MemoryPlace {
    /// No buffer.
    Nowhere,
    /// The buffer is in the table.
    Here(Buffer),
    /// The buffer is registered for this number of commands.
    Registered { key: u32, commands: u32 },
}

impl super::DataPlace for MemoryPlace {
    const NOWHERE: MemoryPlace = MemoryPlace::Nowhere;

    fn here(buffer: Buffer) -> MemoryPlace {
        MemoryPlace::Here(buffer)
    }

    fn is_away(&self) -> bool {
        matches!(self, MemoryPlace::Registered { .. })
    }

    fn take(self) -> Option<Buffer> {
        match self {
            MemoryPlace::Here(buffer) => Some(buffer),
            _ => None,
        }
    }
}

/// The data of a command in flight.
#[derive(Clone, Copy)]
pub(crate) struct MemoryPart {
    /// Whether the command moves data of a registered buffer.
    is_keyed: bool,
    /// The number of bytes that the command moves on success.
    bytes: u32,
}

impl super::Part for MemoryPart {
    const NONE: MemoryPart = MemoryPart { is_keyed: false, bytes: 0 };

    /// Always false: the controller answers only after it has moved all data.
    fn is_short(&self, _: u32) -> bool {
        false
    }
}

/// The sending side, which sends every command at once.
pub(crate) struct Outgoing {
    wire: Arc<Wire>,
    next_key: u32,
}

impl Outgoing {
    /// Registers a buffer and returns a descriptor of a part of it.
    fn register(
        &mut self,
        place: &mut MemoryPlace,
        start: usize,
        length_bytes: u32,
    ) -> SglDescriptor {
        let key = match std::mem::replace(place, MemoryPlace::Nowhere) {
            MemoryPlace::Here(buffer) => {
                let key = self.next_key;
                self.next_key = key.wrapping_add(1);
                self.wire.register(key, Region::Buffer(buffer));
                *place = MemoryPlace::Registered { key, commands: 1 };
                key
            }
            MemoryPlace::Registered { key, commands } => {
                *place = MemoryPlace::Registered { key, commands: commands + 1 };
                key
            }
            MemoryPlace::Nowhere => unreachable!("a command that moves data has a buffer"),
        };
        let address = start as u64;
        SglDescriptor::keyed(KeyedBlock { address, length_bytes, key, invalidate: false })
    }

    /// Records that a command no longer uses the buffer.
    fn release(&self, place: &mut MemoryPlace) {
        match place {
            MemoryPlace::Registered { key, commands: 1 } => {
                *place = MemoryPlace::Here(self.deregister(*key))
            }
            MemoryPlace::Registered { commands, .. } => *commands -= 1,
            MemoryPlace::Nowhere | MemoryPlace::Here(_) => {
                unreachable!("the buffer is registered for a command")
            }
        }
    }

    /// Deregisters the buffer with this key and returns it.
    fn deregister(&self, key: u32) -> Buffer {
        match self.wire.deregister(key) {
            Some((Region::Buffer(buffer), _)) => buffer,
            _ => unreachable!("a place has the key of its buffer"),
        }
    }
}

/// The host's end of a [`Wire`].
pub(crate) struct Memory {
    out: Outgoing,
    loss: Option<Loss>,
    /// Whether the connection has ended, and the host has deregistered every buffer.
    is_closed: bool,
}

impl Memory {
    fn answered(&mut self, cqe: &Cqe, commands: &mut impl Commands<Memory>) {
        let slot = SlotId(cqe.cid.get());
        let Some(moving) = commands.command(slot) else {
            let reason = "an answer to a command that is not in flight".to_owned();
            return self.fail(Loss::Fault(reason), commands);
        };
        let part = *moving.part;
        if part.is_keyed {
            self.out.release(moving.place);
        }
        let received = if cqe.status().is_success() { part.bytes } else { 0 };
        commands.complete(slot, cqe, received, true);
    }
}

impl Transport for Memory {
    type Connected = Arc<Wire>;
    type Place = MemoryPlace;
    type Part = MemoryPart;
    type Outgoing = Outgoing;

    fn open(
        reactor: &Reactor,
        task: TaskId,
        wire: Arc<Wire>,
        _: &mut impl Commands<Memory>,
    ) -> io::Result<Memory> {
        wire.listen(reactor.waker(task));
        let out = Outgoing { wire, next_key: 1 };
        Ok(Memory { out, loss: None, is_closed: false })
    }

    fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.out
    }

    fn issue(out: &mut Outgoing, order: &Order<'_>, place: &mut MemoryPlace) -> MemoryPart {
        let Command { sqe, data } = order.command;
        let sqe = Sqe { cid: order.slot.0.into(), ..*sqe };
        let mut part = MemoryPart { is_keyed: false, bytes: 0 };
        let dptr = match *data {
            Data::None | Data::FromController(0) | Data::ToController(0) => SglDescriptor::NONE,
            Data::ToController(length) if length <= order.in_capsule_bytes => {
                if let MemoryPlace::Here(buffer) = place {
                    let dptr = SglDescriptor::in_capsule(0, length);
                    let capsule = &buffer[order.start..][..length as usize];
                    out.wire.send(Sqe { dptr, ..sqe }, capsule);
                    return part;
                }
                part.is_keyed = true;
                out.register(place, order.start, length)
            }
            Data::FromController(length) | Data::ToController(length) => {
                part = MemoryPart { is_keyed: true, bytes: length };
                out.register(place, order.start, length)
            }
        };
        out.wire.send(Sqe { dptr, ..sqe }, &[]);
        part
    }

    fn resume(_: &mut Outgoing, _: &mut impl Commands<Memory>) {}

    fn flush(&mut self) {}

    fn handle(&mut self, event: Event, _: &mut impl Commands<Memory>) {
        assert!(matches!(event, Event::Timer), "unexpected event {event:?}");
    }

    fn poll(&mut self, commands: &mut impl Commands<Memory>) {
        let closed = self.out.wire.is_closed();
        // Ignore answers after the host has given up the connection.
        for cqe in self.out.wire.take_answers() {
            if self.loss.is_none() {
                self.answered(&cqe, commands);
            }
        }
        if !closed || self.is_closed {
            return;
        }
        self.fail(Loss::Closed, commands);
        self.is_closed = true;
        while let Some(index) = commands.find(super::DataPlace::is_away) {
            let place = commands.place(index);
            if let MemoryPlace::Registered { key, .. } = *place {
                *place = MemoryPlace::Here(self.out.deregister(key));
            }
            commands.finish(index);
        }
    }

    fn is_open(&self) -> bool {
        self.loss.is_none()
    }

    fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn loss(&self) -> Option<&Loss> {
        self.loss.as_ref()
    }

    fn fail(&mut self, loss: Loss, _: &mut impl Commands<Memory>) {
        if self.loss.is_none() {
            self.loss = Some(loss);
            self.out.wire.leave();
        }
    }

    fn discard(&mut self, _: &mut impl Commands<Memory>) {}

    fn abandon(&mut self) {
        self.loss.get_or_insert(Loss::Shutdown);
        self.out.wire.leave();
    }
}
