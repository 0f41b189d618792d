//! RDMA: capsules by SEND, the host's data by READ, data to the host by WRITE, on one queue pair a
//! session (NVMe RDMA Transport Specification 1.0c).
//!
//! ```text
//!   Open --------------> Broken       a request failed, or the host or the device left
//!    |  close()            |  close()
//!    +--------> Closing <--+          requests in flight complete with errors
//!                  |  all have, or it takes too long
//!                  v
//!                Gone                 the queue pair is destroyed
//! ```
//!
//! - **Order.** A response is sent behind its data on the same queue pair, so it never arrives
//!   before them.
//! - **Credit.** A receive is posted again before the response of the command that used it. A host
//!   with at most as many commands as the queue has entries always finds a receive.
//! - **Memory.** Before Connect a queue has one receive. Transfers use registered memory of the
//!   core ([`Staging`]); the session's buffers are copied.
//! - **Errors.** A wrong key or length, a message longer than its receive, and a command beyond the
//!   queue's depth end this queue pair, and nothing else.

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

/// A command without a response.
struct Command {
    sqe: Sqe,
    /// The receive with the capsule, as long as its data are needed, and their length.
    capsule: Option<(u16, usize)>,
    /// READs that have not completed.
    reads: u32,
}

/// A request that waits for a place in the send queue.
enum Out {
    /// Bring a part of a command's data.
    Read { slot: SlotId, block: KeyedBlock, offset: usize, bytes: usize },
    /// Send a part of the data, the first bytes of `parts`.
    Write { address: u64, key: u32, bytes: usize },
    /// Send a response, behind the last part of its data.
    Response { data: Option<(KeyedBlock, usize)>, cqe: Cqe, invalidate: Option<u32>, held: usize },
}

/// See the module's diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Open,
    Broken,
    /// Until this time.
    Closing(Option<Instant>),
    Gone,
}

/// The controller's end of a queue pair.
pub(crate) struct Rdma {
    /// `None` once it is destroyed.
    queue: Option<QueuePair>,
    staging: Rc<RefCell<Staging>>,
    link: Arc<Link>,
    watch: Option<WatchId>,
    task: TaskId,
    capsules: Capsules,
    output: Output,
    life: Life,
}

/// Commands and the receives with their capsules.
struct Capsules {
    /// Entries of the queue, as agreed on when the host connected.
    entries: u16,
    /// Receives that the queue shall have.
    receives: u16,
    slots: Vec<Option<Command>>,
    /// Capsules that have arrived, in order: receive and length.
    arrived: VecDeque<(u16, usize)>,
    /// Commands whose in-capsule data were requested.
    in_capsule: VecDeque<SlotId>,
    /// Receives to post again.
    used: Vec<u16>,
}

/// Requests to post, and what requests in flight use.
#[derive(Default)]
struct Output {
    requests: VecDeque<Out>,
    /// Data of the requests, in order. `start`: bytes of the first part that are already sent.
    parts: VecDeque<Buffer>,
    start: usize,
    /// Bytes of registered memory in use.
    staged_bytes: usize,
    /// The memory epoch in which the oldest output in flight was sent.
    sending_since: Option<u32>,
}

impl Rdma {
    /// Accepts a request on this core. The events of the connection wake `task`.
    ///
    /// # Errors
    /// The verb that failed. The caller rejects the request.
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
                entries: request.admission.entries,
                receives: UNCONNECTED_DEPTH,
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
        self.capsules.slots[usize::from(slot.0)].as_mut().expect("a command is in the slot")
    }

    /// Takes a command that gets its response, and lets its capsule go.
    fn take(&mut self, slot: SlotId) -> Command {
        let command = self.capsules.slots[usize::from(slot.0)].take().expect("answered once");
        assert_eq!(command.reads, 0, "a command waits for its data");
        self.capsules.used.extend(command.capsule.map(|(receive, _)| receive));
        command
    }

    /// The response to a command, and the key to invalidate with it.
    fn response(&self, command: &Command, cqe: &Cqe) -> (Cqe, Option<u32>) {
        let block = command.sqe.dptr.keyed_block().filter(|block| block.invalidate);
        let can = self.staging.borrow().can_invalidate();
        (Cqe { cid: command.sqe.cid, ..*cqe }, block.filter(|_| can).map(|block| block.key))
    }
}

impl Transport for Rdma {
    const REMOTE: RemoteForm = RemoteForm::Keyed;

    fn start(session: &mut Session<Self>, cx: &mut Context) {
        session.list(cx);
    }

    fn handle(_: &mut Session<Self>, _: &mut Context, event: Event) {
        unreachable!("a queue pair has no {event:?}")
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
        let command = rdma.command(slot);
        if pointer.is_in_capsule() {
            if command.capsule.is_none_or(|(_, bytes)| bytes < length) {
                return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
            }
            rdma.capsules.in_capsule.push_back(slot);
        } else {
            let block = command.sqe.dptr.keyed_block().expect("checked by the session");
            let pieces = pieces(length);
            command.reads = pieces.clone().count() as u32;
            let read = |(offset, bytes)| Out::Read { slot, block, offset, bytes };
            rdma.output.requests.extend(pieces.map(read));
        }
        session.list(cx);
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
        let command = self.take(slot);
        let block = command.sqe.dptr.keyed_block().expect("checked by the session");
        let (cqe, invalidate) = self.response(&command, cqe);
        let before = self.output.parts.len();
        self.output.parts.extend(parts.into_iter().filter(|part| !part.is_empty()));
        let there: usize = self.output.parts.iter().skip(before).map(Buffer::len).sum();
        assert_eq!(there, length as usize, "all of the data, and no more");
        let mut data = None;
        for (offset, bytes) in pieces(length as usize) {
            let address = block.address.wrapping_add(offset as u64);
            let place = (KeyedBlock { address, ..block }, bytes);
            if let Some((block, bytes)) = data.replace(place) {
                self.output.requests.push_back(Out::Write {
                    address: block.address,
                    key: block.key,
                    bytes,
                });
            }
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

/// The offsets and lengths of transfers for this many bytes.
fn pieces(bytes: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let most = limits::STAGING_SLAB_BYTES;
    (0..bytes).step_by(most).map(move |offset| (offset, most.min(bytes - offset)))
}
