//! Handles a session's completions, passes commands to the session, and posts its requests.

use super::queue::{Done, Flight};
use super::{Command, Life, Out, Piece, Rdma};
use crate::admissions::Reason;
use crate::context::Context;
use crate::door::{End, unwatch};
use crate::limits;
use crate::notices::NoticeKind;
use crate::session::Session;
use crate::transport::Transport;
use farblock_proto::capsule::{self, SlotId};
use farblock_reactor::os;
use farblock_verbs::{Chunk, Completion, Operation, Payload, SendRequest, Slice, Status};
use farblock_wire::rdma::MAX_DESCRIPTORS;
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, SglDescriptor, Sqe, Status as WireStatus};
use std::fmt::Display;

/// The maximum number of requests that one call posts. A response with data needs two.
const SEND_BATCH: usize = 16;

/// A request to post.
#[derive(Clone, Copy)]
struct Prepared {
    id: u64,
    operation: Operation,
    local: Local,
    signaled: bool,
}

#[derive(Clone, Copy)]
enum Local {
    Registered([Slice; 1]),
    Inline([u8; Cqe::LEN]),
}

impl Prepared {
    fn request(&self) -> SendRequest<'_> {
        let payload = match &self.local {
            Local::Registered(slices) => Payload::Registered(slices),
            Local::Inline(bytes) => Payload::Inline(bytes),
        };
        let Self { id, operation, signaled, .. } = *self;
        SendRequest { id, operation, payload, signaled, fence: false }
    }
}

/// The reason why a request cannot be posted now.
enum Full {
    /// The send queue is full, or the connection has reached its limit of registered memory.
    Own,
    /// Other connections use the registered memory.
    Memory,
    /// The device could not register memory. The text is the reason.
    Failed(String),
}

impl Session<Rdma> {
    /// Handles completions, and arms the completion queue for the next one.
    pub(super) fn look(&mut self, cx: &mut Context) {
        let mut out = [Completion::default(); limits::RDMA_COMPLETIONS_PER_ROUND];
        let mut left = out.len();
        while left > 0 {
            let Some(queue) = &mut self.transport.queue else { return };
            match queue.poll(&mut out[..left]) {
                Ok(0) => return,
                Ok(count) => {
                    left -= count;
                    out[..count].iter().for_each(|completion| self.complete_one(cx, completion));
                }
                Err(error) => return self.break_off(cx, &error),
            }
        }
        self.list(cx);
    }

    fn complete_one(&mut self, cx: &mut Context, completion: &Completion) {
        let rdma = &mut self.transport;
        let Some(queue) = &mut rdma.queue else { return };
        let done = queue.done(completion);
        let status = completion.status;
        if queue.is_quiet() {
            rdma.output.sending_since = None;
        } else if status.is_success() && matches!(done, Some(Done::Sent(_))) {
            // Requests complete in order, so this completion shows that the host makes progress.
            rdma.output.sending_since = Some(cx.memory.epoch());
            self.note_progress(cx);
        }
        let rdma = &mut self.transport;
        let is_intact = status.is_success() && rdma.life == Life::Open;
        if !status.is_success() && rdma.life == Life::Open {
            self.fail(cx, status);
        }
        match done {
            Some(Done::Received(receive, bytes)) if is_intact => {
                self.transport.capsules.arrived.push_back((receive, bytes));
            }
            Some(Done::Sent(flight)) => self.landed(cx, flight, is_intact),
            _ => {}
        }
    }

    /// Marks the session as broken. Logs the error, unless the host has merely disconnected.
    fn fail(&mut self, cx: &mut Context, status: Status) {
        match status {
            Status::WR_FLUSH_ERR => self.transport.life = Life::Broken,
            _ => self.break_off(cx, &status),
        }
    }

    /// Logs this error and marks the session as broken. The end of the tick closes the session.
    fn break_off(&mut self, cx: &mut Context, error: &dyn Display) {
        if self.transport.life != Life::Open {
            return;
        }
        self.transport.life = Life::Broken;
        cx.notice(NoticeKind::Fault, self.peer.ip(), || {
            let peer = self.peer;
            tracing::warn!(%peer, "closing the RDMA connection: {error}");
        });
        self.list(cx);
    }

    /// Handles a completed request. Passes the data of a READ to the session, and releases the
    /// request's memory.
    fn landed(&mut self, cx: &mut Context, flight: Flight, is_intact: bool) {
        match flight {
            Flight::Read { slot, offset, bytes, chunk } => {
                if is_intact {
                    let mut buffer = self.take_landing(cx, slot);
                    let staging = self.transport.staging.borrow();
                    staging.read(&chunk, &mut buffer[offset..offset + bytes]);
                    drop(staging);
                    self.put_landing(slot, buffer);
                }
                self.give_chunk(cx, chunk, bytes);
                let command = self.transport.command(slot);
                command.reads -= 1;
                let is_last = command.reads == 0;
                if is_intact {
                    self.note_data(cx, slot);
                    if is_last {
                        self.pulled(cx, slot, true, None);
                    }
                }
            }
            Flight::Write { chunk, bytes } => self.give_chunk(cx, chunk, bytes),
            Flight::Response { data, held_bytes } => {
                if let Some((chunk, bytes)) = data {
                    self.give_chunk(cx, chunk, bytes);
                }
                self.release_besides(cx, held_bytes);
            }
        }
        self.list(cx);
    }

    fn give_chunk(&mut self, cx: &mut Context, chunk: Chunk, bytes: usize) {
        let rdma = &mut self.transport;
        rdma.output.staged_bytes -= bytes;
        rdma.staging.borrow_mut().give(chunk);
        self.release_besides(cx, bytes);
        self.transport.wake_next(cx);
    }

    /// Passes commands and their data to the session, as far as the limits allow.
    pub(super) fn bring(&mut self, cx: &mut Context) {
        if !self.transport.capsules.arrived.is_empty() {
            self.note_arrival(cx);
        }
        while self.takes_commands() && self.transport.life == Life::Open {
            while let Some(slot) = self.transport.capsules.in_capsule.pop_front() {
                self.land_capsule(cx, slot);
            }
            if self.transport.capsules.arrived.is_empty() || self.parked {
                break;
            }
            if self.holds_too_much(cx) {
                self.park(cx);
                break;
            }
            if self.coming_bytes() > limits::OUTBOX_BYTES {
                self.list(cx);
                break;
            }
            if self.waits_for_share() || self.has_had_its_part(cx) {
                self.wait_for_share(cx);
                break;
            }
            let arrived = self.transport.capsules.arrived.pop_front();
            let Some((slot, sqe, checked)) =
                arrived.and_then(|(receive, bytes)| self.transport.take_in(receive, bytes))
            else {
                self.break_off(cx, &"the host sent an invalid capsule, or too many commands");
                break;
            };
            match checked {
                Ok(()) => self.command(cx, slot, sqe),
                Err(status) => self.refuse(cx, slot, sqe, status),
            }
        }
        self.read_expected(cx, 0);
    }

    fn land_capsule(&mut self, cx: &mut Context, slot: SlotId) {
        let mut buffer = self.take_landing(cx, slot);
        let rdma = &mut self.transport;
        let taken = rdma.command(slot).capsule.take();
        if let (Some((receive, _)), Some(queue)) = (taken, &rdma.queue) {
            queue.read(receive, Sqe::LEN, &mut buffer);
            rdma.capsules.used.push(receive);
        }
        self.put_landing(slot, buffer);
        self.note_data(cx, slot);
        self.pulled(cx, slot, true, None);
    }

    /// Posts receives and output, and wakes the next connection that waits for memory.
    pub(super) fn post(&mut self, cx: &mut Context) {
        if self.is_closed() || self.transport.life != Life::Open {
            return;
        }
        if let Err(error) = self.post_receives(cx) {
            return self.break_off(cx, &error);
        }
        self.post_output(cx);
        if !self.transport.is_idle() {
            self.watch_data(cx);
        }
        self.transport.wake_next(cx);
    }

    /// Posts used receives again. For a queue that has just connected, charges and posts its
    /// further receives.
    fn post_receives(&mut self, cx: &mut Context) -> Result<(), String> {
        let Some(queue) = &self.transport.queue else { return Ok(()) };
        let bytes = queue.missing_bytes(self.transport.capsules.receives);
        if bytes > 0 && !self.keep(cx, bytes) {
            cx.shared.admissions.refused(Reason::Memory);
            return Err(format!(
                "the memory limits leave no room for the queue's receives ({bytes} bytes)"
            ));
        }
        self.transport.post_receives()
    }

    /// Posts as much of the output as fits.
    fn post_output(&mut self, cx: &mut Context) {
        while !self.transport.output.requests.is_empty() {
            let (batch, full) = self.next_batch(cx);
            let requests = batch.each_ref().map(|prepared| {
                prepared
                    .as_ref()
                    .map_or(SendRequest::new(0, Operation::Send, &[]), |it| it.request())
            });
            let count = batch.iter().flatten().count();
            let Some(queue) = &self.transport.queue else { return };
            if count > 0 {
                let posted = queue.post(&requests[..count]);
                self.transport.output.sending_since.get_or_insert(cx.memory.epoch());
                if let Err(error) = posted {
                    return self.break_off(cx, &error);
                }
            }
            match full {
                Some(Full::Own | Full::Memory) => return,
                Some(Full::Failed(error)) => return self.break_off(cx, &error),
                None => {}
            }
        }
    }

    /// Returns the next requests to post. If the request after them must wait, also returns the
    /// reason.
    fn next_batch(&mut self, cx: &mut Context) -> ([Option<Prepared>; SEND_BATCH], Option<Full>) {
        let mut batch = [None; SEND_BATCH];
        let mut next = 0;
        while next + 1 < SEND_BATCH {
            let Some(out) = self.transport.output.requests.front() else { break };
            let (entries, bytes) = out.needs();
            let chunk = match self.transport.reserve(entries, bytes) {
                Ok(chunk) => chunk,
                Err(full) => return (batch, Some(full)),
            };
            if chunk.is_some() {
                self.hold_besides(cx, bytes);
            }
            let out = self.transport.output.requests.pop_front().expect("found just now");
            let (first, second) = self.build(cx, out, chunk);
            batch[next] = Some(first);
            batch[next + 1] = second;
            next += 1 + usize::from(second.is_some());
        }
        (batch, None)
    }

    fn build(
        &mut self,
        cx: &mut Context,
        out: Out,
        chunk: Option<Chunk>,
    ) -> (Prepared, Option<Prepared>) {
        let signaled = true;
        match (out, chunk) {
            (Out::Read { slot, piece }, Some(chunk)) => {
                let Piece { address, key: rkey, offset, bytes } = piece;
                let local = self.transport.slice(&chunk, bytes);
                let operation = Operation::Read { address, rkey };
                let id = self.transport.begin(Flight::Read { slot, offset, bytes, chunk });
                (Prepared { id, operation, local, signaled }, None)
            }
            (Out::Write { piece }, Some(chunk)) => {
                let Piece { address, key: rkey, bytes, .. } = piece;
                self.stage(cx, &chunk, bytes);
                let local = self.transport.slice(&chunk, bytes);
                let operation = Operation::Write { address, rkey };
                let id = self.transport.begin(Flight::Write { chunk, bytes });
                (Prepared { id, operation, local, signaled }, None)
            }
            (Out::Response { data, cqe, invalidate, held }, chunk) => {
                let data = data.zip(chunk).map(|(piece, chunk)| {
                    let Piece { address, key: rkey, bytes, .. } = piece;
                    self.stage(cx, &chunk, bytes);
                    let local = self.transport.slice(&chunk, bytes);
                    ((Operation::Write { address, rkey }, local), (chunk, bytes))
                });
                let (write, data) = data.unzip();
                let id = self.transport.begin(Flight::Response { data, held_bytes: held });
                let mut bytes = [0; Cqe::LEN];
                cqe.emit(&mut bytes);
                let operation = match invalidate {
                    Some(key) => Operation::SendWithInvalidate(key),
                    None => Operation::Send,
                };
                let send = Prepared { id, operation, local: Local::Inline(bytes), signaled };
                match write {
                    Some((operation, local)) => {
                        (Prepared { id, operation, local, signaled: false }, Some(send))
                    }
                    None => (send, None),
                }
            }
            (Out::Read { .. } | Out::Write { .. }, None) => {
                unreachable!("memory was reserved for data")
            }
        }
    }

    /// Copies the next bytes of the outgoing data into registered memory.
    fn stage(&mut self, cx: &mut Context, chunk: &Chunk, bytes: usize) {
        let mut done = 0;
        while done < bytes {
            let rdma = &mut self.transport;
            let part = rdma.output.parts.front().expect("all data were counted");
            let start = rdma.output.start;
            let count = (part.len() - start).min(bytes - done);
            rdma.staging.borrow().write(chunk, done, &part[start..start + count]);
            done += count;
            rdma.output.start += count;
            if rdma.output.start == part.len() {
                rdma.output.start = 0;
                let part = rdma.output.parts.pop_front().expect("found just now");
                self.give_back(cx, 0, part);
            }
        }
    }

    /// Closes the session if the connection has ended. Destroys the queue pair of a closed session
    /// when its requests have completed, or when there is no more reason to wait for them.
    pub(super) fn check_end(&mut self, cx: &mut Context) {
        let end = self.transport.link.end();
        if end == End::Removed {
            self.transport.staging.borrow_mut().is_removed = true;
        }
        match self.transport.life {
            Life::Open if end != End::Open => {
                self.transport.life = Life::Broken;
                self.close(cx);
            }
            Life::Broken => self.close(cx),
            Life::Closing(until) => {
                let is_quiet = self.transport.queue.as_ref().is_none_or(|it| it.is_quiet());
                let is_over = until.is_none_or(|until| os::now() >= until);
                if is_quiet || is_over || end == End::Removed {
                    self.destroy(cx);
                    self.gone(cx);
                }
            }
            Life::Open | Life::Gone => {}
        }
    }

    fn destroy(&mut self, cx: &mut Context) {
        let rdma = &mut self.transport;
        rdma.life = Life::Gone;
        rdma.watch.take().into_iter().for_each(|watch| unwatch(&cx.reactor, watch));
        cx.reactor.set_timer(rdma.task, None);
        let Some(mut queue) = rdma.queue.take() else { return };
        let lost: Vec<_> = queue.take_flights().collect();
        drop(queue);
        for flight in lost {
            if let Flight::Response { held_bytes, .. } = flight {
                self.release_besides(cx, held_bytes);
            }
            if let Some((chunk, bytes)) = flight.into_chunk() {
                self.give_chunk(cx, chunk, bytes);
            }
        }
        let rdma = &mut self.transport;
        rdma.capsules.arrived.clear();
    }
}

impl Out {
    /// Returns the numbers of send queue entries and registered bytes that the request needs.
    fn needs(&self) -> (u32, usize) {
        match self {
            Self::Read { piece, .. } | Self::Write { piece } => (1, piece.bytes),
            Self::Response { data: Some(piece), .. } => (2, piece.bytes),
            Self::Response { data: None, .. } => (1, 0),
        }
    }
}

impl Rdma {
    /// Puts the command of a capsule into a free slot. Returns the slot, the submission queue
    /// entry, and the status for a command with an invalid list of descriptors. `None` if the
    /// capsule is too short, or if the host has more commands than its queue has entries.
    fn take_in(
        &mut self,
        receive: u16,
        bytes: usize,
    ) -> Option<(SlotId, Sqe, Result<(), WireStatus>)> {
        let mut entry = [0; Sqe::LEN];
        let data_bytes = bytes.checked_sub(Sqe::LEN)?;
        self.queue.as_ref()?.read(receive, 0, &mut entry);
        let mut sqe = Sqe::parse(&entry)?;
        let listed = match sqe.dptr.is_segment_in_capsule() {
            true => self.listed(receive, data_bytes, &sqe).map(|(blocks, whole)| {
                sqe.dptr = whole;
                blocks
            }),
            false => Ok(Vec::new()),
        };
        let checked = listed.as_ref().map(|_| ()).map_err(|status| *status);
        let blocks = listed.unwrap_or_default();
        let capsule = sqe.dptr.is_in_capsule().then_some((receive, data_bytes));
        if capsule.is_none() {
            self.capsules.used.push(receive);
        }
        let free = self.capsules.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.capsules.slots.len());
        if slot >= usize::from(self.capsules.receives) {
            return None;
        }
        if slot == self.capsules.slots.len() {
            self.capsules.slots.push(None);
        }
        self.capsules.slots[slot] = Some(Command { sqe, blocks, capsule, reads: 0 });
        Some((SlotId(slot as u16), sqe, checked))
    }

    /// Reads the list of descriptors in a capsule with this receive.
    fn listed(
        &self,
        receive: u16,
        data_bytes: usize,
        sqe: &Sqe,
    ) -> Result<(Vec<KeyedBlock>, SglDescriptor), WireStatus> {
        let range = capsule::segment_range(&sqe.dptr, data_bytes)?;
        let mut segment = [0; MAX_DESCRIPTORS as usize * SglDescriptor::LEN];
        let segment = &mut segment[..range.len()];
        let queue = self.queue.as_ref().expect("an open queue pair received it");
        queue.read(receive, Sqe::LEN + range.start, segment);
        capsule::segment_blocks(segment)
    }

    fn post_receives(&mut self) -> Result<(), String> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        queue
            .add_receives(&self.staging, self.capsules.receives)
            .map_err(|error| error.to_string())?;
        queue.post_receives(&self.capsules.used).map_err(|error| error.to_string())?;
        self.capsules.used.clear();
        Ok(())
    }

    /// Reserves entries of the send queue and registered memory.
    fn reserve(&mut self, entries: u32, bytes: usize) -> Result<Option<Chunk>, Full> {
        let is_too_much = self.output.staged_bytes > 0
            && self.output.staged_bytes + bytes > limits::STAGING_BYTES_PER_CONNECTION;
        let has_room = self.queue.as_ref().is_some_and(|queue| queue.has_room(entries));
        if !has_room || (bytes > 0 && is_too_much) {
            return Err(Full::Own);
        }
        if bytes == 0 {
            return Ok(None);
        }
        let taken = self.staging.borrow_mut().take(self.task, bytes);
        match taken {
            Ok(Some(chunk)) => {
                self.output.staged_bytes += bytes;
                Ok(Some(chunk))
            }
            Ok(None) => Err(Full::Memory),
            Err(error) => Err(Full::Failed(error.to_string())),
        }
    }

    /// Wakes the connection whose turn it is to take registered memory.
    pub(super) fn wake_next(&self, cx: &Context) {
        let next = self.staging.borrow().next().filter(|next| *next != self.task);
        if let Some(next) = next {
            cx.reactor.notify(next);
        }
    }

    fn slice(&self, chunk: &Chunk, bytes: usize) -> Local {
        Local::Registered([self.staging.borrow().slice(chunk, bytes)])
    }

    fn begin(&mut self, flight: Flight) -> u64 {
        self.queue.as_mut().expect("reserved just now").begin(flight)
    }
}
