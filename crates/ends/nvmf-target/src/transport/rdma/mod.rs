//! The RDMA transport (NVMe RDMA Transport Specification 1.0c). Each session has one queue pair.
//! Host and target SEND capsules; the target READs the host's data, and WRITEs data to the host.
//!
//! ```text
//!   Open --------------> Broken       a request failed, the host disconnected, or the device is
//!    |                     |          being removed
//!    |  close()            |  close()
//!    +--------> Closing <--+          requests in flight complete with errors
//!                  |  all have completed, the timeout expired, or the device is being removed
//!                  v
//!                Gone                 the queue pair is destroyed
//! ```
//!
//! - **Order.** The target sends a response after its data on the same queue pair, so the response
//!   never arrives before the data.
//! - **Flow control.** The target posts a receive again before it responds to the command that used
//!   the receive. So a host that keeps to the queue's depth always finds a receive.
//! - **Fairness.** Connections take registered memory in turn. The target closes the connection of
//!   a host that does not receive its responses: sooner if other connections wait for memory.
//! - **Memory.** The receives and the data in flight count towards the memory limits. Before
//!   Connect, a queue has one receive. Data move through registered memory of the core
//!   ([`Staging`]); the transport copies between this memory and the session's buffers.
//! - **Errors.** A wrong key or length, a message longer than its receive, and a command beyond the
//!   queue's depth close only this queue pair.

mod moving;
mod queue;
mod staging;
#[cfg(test)]
mod tests;

pub(crate) use staging::Staging;

use super::Transport;
use crate::context::Context;
use crate::door::{ConnectionRequest, Link, unwatch, watch};
use crate::limits;
use crate::session::Session;
use farblock_proto::capsule::{DataPointer, RemoteForm, SlotId};
use farblock_proto::controller::Connected;
use farblock_proto::limits::UNCONNECTED_DEPTH;
use farblock_proto::rdma::Announced;
use farblock_reactor::{Buffer, Event, Reactor, TaskId, WatchId, os};
use farblock_verbs::{Verbs, VerbsError};
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, Sqe, Status};
use queue::QueuePair;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// A command that has no response yet.
struct Command {
    sqe: Sqe,
    /// The blocks of the host's memory, if the capsule has a list of descriptors. `sqe` then has a
    /// descriptor with their total length.
    blocks: Vec<KeyedBlock>,
    /// The receive with the command's in-capsule data, and their length in bytes. `None` if the
    /// command has no such data, or once the transport has copied them.
    capsule: Option<(u16, usize)>,
    /// The number of READs that have not completed.
    reads: u32,
}

/// A part of a command's data, which one READ or WRITE transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    /// The address and key in the host's memory.
    address: u64,
    key: u32,
    /// The position in the command's data.
    offset: usize,
    bytes: usize,
}

/// A request that waits for a place in the send queue.
enum Out {
    /// READ a part of a command's data.
    Read { slot: SlotId, piece: Piece },
    /// WRITE a part of a response's data: the next bytes of `Output::parts`.
    Write { piece: Piece },
    /// WRITE the last part of a response's data, if it has data, and SEND the response.
    Response { data: Option<Piece>, cqe: Cqe, invalidate: Option<u32>, held: usize },
}

/// The state of a connection: see the module's diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Open,
    Broken,
    /// Requests in flight may complete until this time; `None`: do not wait for them.
    Closing(Option<Instant>),
    Gone,
}

/// The controller's end of a queue pair.
pub(crate) struct Rdma {
    /// `None` once the queue pair is destroyed.
    queue: Option<QueuePair>,
    staging: Rc<RefCell<Staging>>,
    link: Arc<Link>,
    watch: Option<WatchId>,
    task: TaskId,
    capsules: Capsules,
    output: Output,
    life: Life,
}

/// Commands without a response, and the receives that contain their capsules.
struct Capsules {
    announced: Announced,
    /// The number of queue entries that the target granted in its answer to the connection request.
    entries: u16,
    /// The number of receives that the queue must have.
    receives: u16,
    /// The bytes of the queue pair's memory before Connect.
    first_bytes: usize,
    slots: Vec<Option<Command>>,
    /// Capsules to pass to the session, the oldest first: the receive, and the length in bytes.
    arrived: VecDeque<(u16, usize)>,
    /// Commands that are ready for the session: it has requested their in-capsule data, or they
    /// have no data.
    in_capsule: VecDeque<SlotId>,
    /// Receives to post again.
    used: Vec<u16>,
}

/// The requests to post, and the registered memory of the requests in flight.
#[derive(Default)]
struct Output {
    requests: VecDeque<Out>,
    /// The data of `requests`, in order. The first `start` bytes of the first part are already
    /// copied to registered memory.
    parts: VecDeque<Buffer>,
    start: usize,
    /// Bytes of registered memory in use.
    staged_bytes: usize,
    /// The epoch of [`crate::memory`] in which the oldest output in flight was sent.
    sending_since: Option<u32>,
}

impl Capsules {
    fn command(&mut self, slot: SlotId) -> &mut Command {
        self.slots[usize::from(slot.0)].as_mut().expect("a command is in the slot")
    }
}

impl Rdma {
    /// Returns the maximum number of bytes that the connection of a request may keep until it
    /// closes.
    pub(crate) fn most_bytes(request: &ConnectionRequest) -> usize {
        QueuePair::sizes(&request.admission).1
    }

    /// Accepts a connection request on this core. The events of the connection wake `task`.
    ///
    /// # Errors
    /// Fails if a verb fails. The caller then rejects the request.
    pub(crate) fn accept(
        reactor: &Reactor,
        task: TaskId,
        request: &ConnectionRequest,
        staging: Rc<RefCell<Staging>>,
    ) -> Result<Self, VerbsError> {
        let queue = QueuePair::new(request, &staging)?;
        let source = request.verbs.cq_source(queue.cq());
        let watch = watch(reactor, task, source).map_err(|error| VerbsError::Refused {
            verb: "watching the completion queue",
            error,
        })?;
        request.link.attend(reactor.waker(task));
        let rdma = Self {
            queue: Some(queue),
            staging,
            link: Arc::clone(&request.link),
            watch,
            task,
            capsules: Capsules {
                announced: request.admission.announced,
                entries: request.admission.entries,
                receives: UNCONNECTED_DEPTH,
                first_bytes: QueuePair::sizes(&request.admission).0,
                slots: Vec::new(),
                arrived: VecDeque::new(),
                in_capsule: VecDeque::new(),
                used: Vec::new(),
            },
            output: Output::default(),
            life: Life::Open,
        };
        let accepted = rdma.queue.as_ref().map_or(Ok(()), |queue| queue.accept(request));
        match accepted {
            Ok(()) => Ok(rdma),
            Err(error) => {
                rdma.watch.into_iter().for_each(|watch| unwatch(reactor, watch));
                Err(error)
            }
        }
    }

    fn command(&mut self, slot: SlotId) -> &mut Command {
        self.capsules.command(slot)
    }

    /// Removes a command that gets its response. The transport can then post the command's receive
    /// again, if it has one.
    fn take(&mut self, slot: SlotId) -> Command {
        let command = self.capsules.slots[usize::from(slot.0)].take().expect("answered once");
        assert_eq!(command.reads, 0, "a response was sent before all READs had completed");
        self.capsules.used.extend(command.capsule.map(|(receive, _)| receive));
        command
    }

    /// Returns the response to a command, and the key to invalidate with it.
    fn response(&self, command: &Command, cqe: &Cqe) -> (Cqe, Option<u32>) {
        let block = command.sqe.dptr.keyed_block().filter(|block| block.invalidate);
        let can = self.staging.borrow().can_invalidate();
        (Cqe { cid: command.sqe.cid, ..*cqe }, block.filter(|_| can).map(|block| block.key))
    }
}

impl Transport for Rdma {
    const REMOTE: RemoteForm = RemoteForm::Keyed;

    fn start(session: &mut Session<Self>, cx: &mut Context) {
        let bytes = session.transport.capsules.first_bytes;
        if !session.keep(cx, bytes) {
            session.transport.life = Life::Broken;
        }
        session.list(cx);
    }

    fn handle(_: &mut Session<Self>, _: &mut Context, event: Event) {
        unreachable!("unexpected event {event:?}")
    }

    fn finish_tick(session: &mut Session<Self>, cx: &mut Context) {
        session.look(cx);
        session.bring(cx);
        session.post(cx);
        session.check_end(cx);
    }

    fn resume(session: &mut Session<Self>, cx: &mut Context) {
        session.list(cx);
    }

    fn pull(
        session: &mut Session<Self>,
        cx: &mut Context,
        slot: SlotId,
        pointer: DataPointer,
    ) -> Result<(), Status> {
        let rdma = &mut session.transport;
        let length = pointer.length() as usize;
        let command = rdma.capsules.command(slot);
        if pointer.is_in_capsule() {
            if command.capsule.is_none_or(|(_, bytes)| bytes < length) {
                return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
            }
            rdma.capsules.in_capsule.push_back(slot);
        } else {
            command.reads = command.pieces(length).count() as u32;
            let read = |piece| Out::Read { slot, piece };
            rdma.output.requests.extend(command.pieces(length).map(read));
            if length == 0 {
                // There is nothing to READ.
                rdma.capsules.in_capsule.push_back(slot);
            }
        }
        session.list(cx);
        Ok(())
    }

    /// Returns whether requests are in flight. Meanwhile the host must make progress, or the timer
    /// closes the connection.
    fn is_in_data(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| !queue.is_quiet())
    }

    fn push(
        &mut self,
        slot: SlotId,
        length: u32,
        parts: impl IntoIterator<Item = Buffer>,
        held_bytes: usize,
        cqe: &Cqe,
    ) {
        let command = self.take(slot);
        let (cqe, invalidate) = self.response(&command, cqe);
        let before = self.output.parts.len();
        self.output.parts.extend(parts.into_iter().filter(|part| !part.is_empty()));
        let there: usize = self.output.parts.iter().skip(before).map(Buffer::len).sum();
        assert_eq!(there, length as usize, "the parts do not add up to the length");
        let mut data = None;
        for piece in command.pieces(length as usize) {
            let before = data.replace(piece).map(|piece| Out::Write { piece });
            self.output.requests.extend(before);
        }
        self.output.requests.push_back(Out::Response { data, cqe, invalidate, held: held_bytes });
    }

    fn respond(&mut self, slot: SlotId, cqe: &Cqe) {
        let command = self.take(slot);
        let (cqe, invalidate) = self.response(&command, cqe);
        self.output.requests.push_back(Out::Response { data: None, cqe, invalidate, held: 0 });
    }

    fn forget(&mut self, slot: SlotId) {
        self.take(slot);
    }

    fn announced(&self) -> Option<Announced> {
        Some(self.capsules.announced)
    }

    fn connected(&mut self, connected: &Connected) {
        // A host may not use a larger queue than it has announced.
        self.capsules.receives = connected.depth.clamp(UNCONNECTED_DEPTH, self.capsules.entries);
    }

    fn sending_since(&self) -> Option<u32> {
        self.output.sending_since
    }

    fn save_memory(&mut self) {
        self.output.requests.shrink_to(0);
        self.output.parts.shrink_to(0);
    }

    fn is_idle(&self) -> bool {
        self.output.requests.is_empty() && self.queue.as_ref().is_none_or(QueuePair::is_quiet)
    }

    fn close(&mut self, cx: &mut Context) {
        self.staging.borrow_mut().leave(self.task);
        self.wake_next(cx);
        let flushes = self.queue.as_ref().is_some_and(QueuePair::disconnect);
        let until = os::now() + limits::RDMA_FLUSH_TIMEOUT;
        self.life = Life::Closing(flushes.then_some(until));
        cx.reactor.set_timer(self.task, Some(until));
    }

    fn abandon(session: &mut Session<Self>, cx: &mut Context) {
        for part in std::mem::take(&mut session.transport.output.parts) {
            session.give_back(cx, 0, part);
        }
        for out in std::mem::take(&mut session.transport.output.requests) {
            if let Out::Response { held, .. } = out {
                session.release_besides(cx, held);
            }
        }
    }
}

impl Command {
    /// Splits the first `bytes` of the command's data into transfers. No transfer is empty.
    fn pieces(&self, bytes: usize) -> impl Iterator<Item = Piece> {
        const MOST: usize = limits::STAGING_SLAB_BYTES;
        let one = self.sqe.dptr.keyed_block().filter(|_| self.blocks.is_empty());
        let mut start = 0;
        one.into_iter().chain(self.blocks.iter().copied()).flat_map(move |block| {
            let first = start;
            let end = bytes.min(first + block.length_bytes as usize);
            start = end;
            (first..end).step_by(MOST).map(move |offset| Piece {
                address: block.address.wrapping_add((offset - first) as u64),
                key: block.key,
                offset,
                bytes: MOST.min(end - offset),
            })
        })
    }
}
