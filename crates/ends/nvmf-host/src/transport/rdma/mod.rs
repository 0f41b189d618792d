//! The RDMA transport (NVMe RDMA Transport Specification 1.0c). The host SENDs capsules, and the
//! controller SENDs responses. The controller READs and WRITEs the data of commands in this host's
//! registered memory.
//!
//! - **Memory.** Each queue has a separate protection domain with registered memory, so a
//!   controller reaches only the data of its queue. The queue copies data between this memory and
//!   the operations' buffers. The device never uses these buffers, so an operation can end at once
//!   when the connection is lost.
//! - **Flow control.** A queue posts one receive for each command in flight, and posts it again
//!   before the next command.
//! - **End.** The connection manager's events arrive on the control loop ([`ends`]).
//!
//! Not implemented: fast registration of operations' buffers, and invalidation by the controller.

mod dial;
mod ends;
mod limits;
mod queue;

pub(crate) use dial::{Connected, Greeted, RdmaAddress};

use super::{Commands, Loss, Order, Transport};
use ends::{Kept, unwatch, watch};
use farblock_proto::capsule::SlotId;
use farblock_proto::host::{Command, Data};
use farblock_reactor::{Buffer, Event, Reactor, TaskId, WatchId};
use farblock_verbs::{Chunk, Status, Verbs};
use farblock_wire::{Cqe, SglDescriptor, Sqe};
use queue::{Failure, QueuePair};
use std::collections::VecDeque;
use std::io;

/// The location of an operation's buffer: always the queue's table, because the device uses copies.
pub(crate) enum RdmaPlace {
    /// No buffer.
    Nowhere,
    /// In the table.
    Here(Buffer),
}

impl super::DataPlace for RdmaPlace {
    const NOWHERE: RdmaPlace = RdmaPlace::Nowhere;

    fn here(buffer: Buffer) -> RdmaPlace {
        RdmaPlace::Here(buffer)
    }

    fn is_away(&self) -> bool {
        false
    }

    fn take(self) -> Option<Buffer> {
        match self {
            RdmaPlace::Here(buffer) => Some(buffer),
            RdmaPlace::Nowhere => None,
        }
    }
}

/// The transport's state for the data of a command in flight.
#[derive(Clone, Copy)]
pub(crate) struct RdmaPart {
    /// Bytes that the controller sends on success.
    bytes: u32,
}

impl super::Part for RdmaPart {
    const NONE: RdmaPart = RdmaPart { bytes: 0 };

    /// Always false: the controller answers only after it has moved all data.
    fn is_short(&self, _: u32) -> bool {
        false
    }
}

/// A command that waits for registered memory.
struct Deferred {
    slot: SlotId,
    command: Command,
}

/// A command in flight.
struct Sent {
    /// The registered memory that its descriptor names.
    chunk: Option<Chunk>,
}

/// The sending side.
pub(crate) struct Outgoing {
    queue: QueuePair,
    is_io: bool,
    /// The commands that the controller may answer, by slot.
    sent: Vec<Option<Sent>>,
    deferred: VecDeque<Deferred>,
    failure: Option<Failure>,
}

impl Outgoing {
    /// Sends a command. `data` is the command's part of its operation's buffer. Returns false if
    /// the queue has no free registered memory for the data.
    fn try_issue(&mut self, slot: SlotId, command: &Command, data: &[u8], capsule: u32) -> bool {
        let Command { sqe, data: kind } = command;
        let (length, sent) = match *kind {
            Data::None => (0, &[][..]),
            // The controller may return less data than this. So copy the command's buffer of zeroes
            // into the registered memory, which may contain data of an earlier command.
            Data::FromController(length) if !self.is_io => (length, &data[..length as usize]),
            Data::FromController(length) => (length, &[][..]),
            Data::ToController(length) => (length, &data[..length as usize]),
        };
        if length == 0 {
            self.queue.send(slot, &Sqe { dptr: queue::NO_DATA, ..*sqe });
            return self.note(slot, None);
        }
        let is_to_controller = matches!(kind, Data::ToController(_));
        let is_in_capsule = self.is_io && is_to_controller && length <= capsule;
        let bytes = length as usize + if is_in_capsule { Sqe::LEN } else { 0 };
        let chunk = match self.queue.take(bytes) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return false,
            Err(error) => {
                self.failure.get_or_insert(error.into());
                return self.note(slot, None);
            }
        };
        if is_in_capsule {
            let dptr = SglDescriptor::in_capsule(0, length);
            self.queue.send_with(slot, &Sqe { dptr, ..*sqe }, chunk, sent);
            return self.note(slot, None);
        }
        self.queue.write(&chunk, sent);
        let dptr = self.queue.keyed(&chunk, length);
        self.queue.send(slot, &Sqe { dptr, ..*sqe });
        self.note(slot, Some(chunk))
    }

    /// Records that the controller may answer a command.
    fn note(&mut self, slot: SlotId, chunk: Option<Chunk>) -> bool {
        self.sent[usize::from(slot.0)] = Some(Sent { chunk });
        true
    }
}

/// The host's end of a queue pair.
pub(crate) struct Rdma {
    reactor: Reactor,
    watch: Option<WatchId>,
    ends: Kept,
    out: Outgoing,
    loss: Option<Loss>,
    answers: Vec<Cqe>,
}

impl Rdma {
    fn answered(&mut self, cqe: &Cqe, commands: &mut impl Commands<Rdma>) {
        let slot = SlotId(cqe.cid.get());
        // The table also has commands that wait for memory and are not sent yet.
        let sent = self.out.sent.get_mut(usize::from(slot.0)).and_then(Option::take);
        let found = sent.and_then(|sent| Some((sent, commands.command(slot)?)));
        let Some((Sent { chunk }, moving)) = found else {
            let reason = "an answer to a command that is not in flight".to_owned();
            return self.fail(Loss::Fault(reason), commands);
        };
        let (part, start) = (*moving.part, moving.start);
        let is_success = cqe.status().is_success();
        if let (Some(chunk), true, RdmaPlace::Here(buffer)) = (&chunk, is_success, moving.place)
            && part.bytes > 0
        {
            self.out.queue.read(chunk, &mut buffer[start..start + part.bytes as usize]);
        }
        chunk.into_iter().for_each(|chunk| self.out.queue.give(chunk));
        commands.complete(slot, cqe, if is_success { part.bytes } else { 0 }, true);
    }

    fn close(&mut self, loss: Loss) {
        if self.loss.is_none() {
            self.loss = Some(loss);
            self.out.queue.disconnect();
            self.watch.take().into_iter().for_each(|watch| unwatch(&self.reactor, watch));
        }
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        self.close(Loss::Shutdown);
    }
}

impl Transport for Rdma {
    type Connected = Box<Connected>;
    type Place = RdmaPlace;
    type Part = RdmaPart;
    type Outgoing = Outgoing;

    fn open(
        reactor: &Reactor,
        task: TaskId,
        connected: Box<Connected>,
        _: &mut impl Commands<Rdma>,
    ) -> io::Result<Rdma> {
        let Connected { queue, ends, is_io, depth } = *connected;
        let watch = match watch(reactor, task, queue.verbs.cq_source(queue.cq())) {
            Ok(watch) => watch,
            Err(error) => {
                queue.disconnect();
                return Err(error);
            }
        };
        ends.attend(reactor.waker(task));
        // Completions may have arrived before this task could be woken, so wake it now.
        reactor.notify(task);
        let sent = (0..depth).map(|_| None).collect();
        let out = Outgoing { queue, is_io, sent, deferred: VecDeque::new(), failure: None };
        Ok(Rdma { reactor: reactor.clone(), watch, ends, out, loss: None, answers: Vec::new() })
    }

    fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.out
    }

    fn issue(out: &mut Outgoing, order: &Order<'_>, place: &mut RdmaPlace) -> RdmaPart {
        let bytes = match order.command.data {
            Data::FromController(length) => length,
            Data::None | Data::ToController(_) => 0,
        };
        let data = match place {
            RdmaPlace::Here(buffer) => &buffer[order.start..],
            RdmaPlace::Nowhere => &[],
        };
        // Commands start in order.
        let is_first = out.deferred.is_empty();
        if !is_first || !out.try_issue(order.slot, order.command, data, order.in_capsule_bytes) {
            out.deferred.push_back(Deferred { slot: order.slot, command: *order.command });
        }
        RdmaPart { bytes }
    }

    fn resume(out: &mut Outgoing, commands: &mut impl Commands<Rdma>) {
        while let Some(Deferred { slot, command }) = out.deferred.pop_front() {
            let Some(moving) = commands.command(slot) else { continue };
            let data = match moving.place {
                RdmaPlace::Here(buffer) => &buffer[moving.start..],
                RdmaPlace::Nowhere => &[],
            };
            if !out.try_issue(slot, &command, data, 0) {
                out.deferred.push_front(Deferred { slot, command });
                return;
            }
        }
    }

    fn flush(&mut self) {
        if self.loss.is_some() || self.out.failure.is_some() {
            return;
        }
        if let Err(failure) = self.out.queue.post() {
            self.out.failure = Some(failure);
        }
        if self.out.failure.is_some() {
            // The next poll ends the connection.
            self.ends.wake();
        }
    }

    fn handle(&mut self, event: Event, _: &mut impl Commands<Rdma>) {
        assert!(matches!(event, Event::Timer), "unexpected event {event:?}");
    }

    fn poll(&mut self, commands: &mut impl Commands<Rdma>) {
        if self.loss.is_some() {
            return;
        }
        // Read this flag before polling: an answer that arrives before the connection ends still
        // counts.
        let has_left = self.ends.has_left();
        let mut answers = std::mem::take(&mut self.answers);
        let polled = self.out.queue.poll(&mut answers);
        for cqe in answers.drain(..) {
            if self.loss.is_none() {
                self.answered(&cqe, commands);
            }
        }
        self.answers = answers;
        let failure = self.out.failure.take().or(polled.err());
        match failure {
            Some(Failure::Request(Status::WR_FLUSH_ERR)) => self.fail(Loss::Closed, commands),
            Some(failure @ (Failure::Message(_) | Failure::Invalidated(_))) => {
                self.fail(Loss::Fault(failure.to_string()), commands);
            }
            Some(failure) => self.fail(Loss::Io(failure.to_string()), commands),
            None if has_left => self.fail(Loss::Closed, commands),
            None => {}
        }
    }

    fn is_open(&self) -> bool {
        self.loss.is_none()
    }

    fn is_closed(&self) -> bool {
        self.loss.is_some()
    }

    fn loss(&self) -> Option<&Loss> {
        self.loss.as_ref()
    }

    fn fail(&mut self, loss: Loss, _: &mut impl Commands<Rdma>) {
        self.close(loss);
    }

    fn discard(&mut self, _: &mut impl Commands<Rdma>) {}

    fn abandon(&mut self) {
        self.close(Loss::Shutdown);
    }
}
