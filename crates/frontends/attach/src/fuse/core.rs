//! A core: one thread with a reactor and a queue into the namespace. A core executes any number of
//! requests concurrently, and answers each request when it completes.

use super::callers::Caller;
use super::inboxes::{Message, Work};
use super::limits;
use super::shared::{Job, MountShared, Reply, errno};
use farblock_block::{BlockError, Command, Completion, Geometry, Op, Queue};
use farblock_frontend::pieces::{self, Piece};
use farblock_frontend::writes::{Arbiter, Gate, Order, Report};
use farblock_frontend::{Core, Seat};
use farblock_reactor::{Buffer, Reactor, TaskId};
use fuser::Errno;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of bits of an operation's token that hold the piece. The bits above hold the slot.
const PIECE_BITS: u32 = 32;

/// A request in progress.
struct FuseRequest {
    reply: Reply,
    caller: Caller,
    /// True if the request was already in progress at the last check for signals.
    waits: bool,
    /// True after the caller received a signal or exited.
    interrupted: bool,
    command: Command,
    fua: bool,
    /// The length of the request, in bytes.
    length: u64,
    /// The offset of the part of the request that has not started yet, in bytes.
    offset: u64,
    left: u64,
    /// True if some pieces are shorter than a block. They need a read-modify-write (a merge),
    /// during which other writes wait.
    merges: bool,
    /// The pieces in progress.
    pieces: Vec<Piece>,
    operations: usize,
    result: Result<(), BlockError>,
    held_bytes: usize,
}

/// The requests of one core, and the core's state.
pub(super) struct Requests {
    // Drop the queue before the reactor, because the queue's drop may deregister it from the
    // reactor.
    queue: Box<dyn Queue>,
    reactor: Reactor,
    mail: TaskId,
    queue_task: TaskId,
    index: usize,
    shared: Arc<MountShared>,
    geometry: Geometry,
    gate: Gate<usize>,
    arbiter: Option<Arbiter>,
    requests: Vec<Option<FuseRequest>>,
    free: Vec<usize>,
    /// Empty vectors of pieces for reuse, so that a request allocates none.
    spare: Vec<Vec<Piece>>,
    /// True if operations may have completed since the core last polled the queue.
    dirty: bool,
    /// True after the current merge has completed.
    merged: bool,
    /// The number of requests answered in this tick of the event loop. The next two fields are the
    /// bytes that these requests held, and the buffers of the writes among them.
    answered: usize,
    released_bytes: usize,
    written: Vec<Buffer>,
    /// The time of the next check for signals. `None` without requests.
    look_at: Option<Instant>,
    /// The time at which a stopping core stops even if requests are unanswered. `None` before the
    /// stop.
    deadline: Option<Instant>,
}

impl Requests {
    /// Creates the state of a core, on the core's thread.
    pub(super) fn new(seat: Seat, shared: Arc<MountShared>) -> Requests {
        let Seat { index, count, queue, queue_task, reactor, mail } = seat;
        Requests {
            queue,
            reactor,
            mail,
            queue_task,
            index,
            geometry: shared.geometry(),
            shared,
            gate: Gate::new(),
            arbiter: (index == 0).then(|| Arbiter::new(count)),
            requests: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            dirty: false,
            merged: false,
            answered: 0,
            released_bytes: 0,
            written: Vec::new(),
            look_at: None,
            deadline: None,
        }
    }

    fn is_over(&self) -> bool {
        let Some(deadline) = self.deadline else { return false };
        self.shared.inboxes().is_over() || deadline <= Instant::now()
    }

    /// Answers completed requests. Returns true if more work is ready at once.
    fn settle(&mut self, done: &mut Vec<Completion>) -> bool {
        let mut rounds = 0;
        while self.dirty && rounds < limits::ROUNDS_PER_TICK {
            self.dirty = false;
            self.queue.poll(done);
            done.drain(..).for_each(|completion| self.complete(completion));
            if std::mem::take(&mut self.merged) {
                self.merge();
            }
            rounds += 1;
        }
        if self.answered > 0 {
            let (jobs, bytes) = (self.answered, self.released_bytes);
            (self.answered, self.released_bytes) = (0, 0);
            self.shared.inboxes().answered(self.index, jobs, bytes, &mut self.written);
        }
        self.dirty
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Resized => self.geometry = self.shared.geometry(),
            Message::Look => {}
            Message::Order(order) => self.obey(order),
            Message::Report(core, report) => {
                let arbiter = self.arbiter.as_mut().expect("reports go to the first core");
                let inboxes = self.shared.inboxes();
                arbiter.handle(core, report, |core, order| {
                    inboxes.post(core, Message::Order(order));
                });
            }
            Message::Stop => self.deadline = Some(Instant::now() + limits::DRAIN_TIMEOUT),
        }
    }

    /// Assigns a slot to a request, and starts the request.
    fn begin(&mut self, job: Job) {
        let held_bytes = job.held_bytes();
        let Job { reply, caller, command, offset, length, fua, buffer } = job;
        let mut request = FuseRequest {
            reply,
            caller,
            waits: false,
            interrupted: false,
            command,
            fua,
            length,
            offset,
            left: length,
            merges: false,
            pieces: self.spare.pop().unwrap_or_default(),
            operations: 0,
            result: Ok(()),
            held_bytes,
        };
        self.cut(&mut request, buffer);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[slot] = Some(request);
        self.start(slot);
    }

    /// Cuts the next step of a request into pieces. `data` holds the data of a write.
    fn cut(&self, request: &mut FuseRequest, data: Option<Buffer>) {
        let Geometry { block_size, .. } = self.geometry;
        let step = request.left.min(u64::from(limits::STEP_BYTES)) as u32;
        let pieces = &mut request.pieces;
        pieces.clear();
        if request.command == Command::Flush {
            return;
        }
        pieces::cut(request.command, request.offset, step, &self.geometry, pieces);
        request.offset += u64::from(step);
        request.left -= u64::from(step);
        let has_part = pieces.iter().any(|piece| piece.is_part(block_size));
        request.merges = request.command.writes() && has_part;
        if request.command.moves_data() {
            let bytes = pieces.iter().map(|piece| self.geometry.bytes(piece.blocks)).sum();
            // All pieces share one buffer, so that the data of a read is contiguous.
            let mut rest = data.unwrap_or_else(|| self.reactor.buffers().take(bytes));
            for piece in pieces {
                piece.buffer = Some(rest.split_to(self.geometry.bytes(piece.blocks)));
            }
        }
    }

    /// Submits a request to the namespace, or queues a write until the core's
    /// [gate](farblock_frontend::writes) admits it.
    fn start(&mut self, slot: usize) {
        let request = self.request(slot);
        if request.merges {
            let report = self.gate.enter_merge(slot);
            self.report(report);
        } else if !request.command.writes() || self.gate.enter(slot).is_some() {
            self.submit(slot);
        }
    }

    fn request(&mut self, slot: usize) -> &mut FuseRequest {
        self.requests[slot].as_mut().expect("a request outlives its operations")
    }

    fn submit(&mut self, slot: usize) {
        let request = self.requests[slot].as_mut().expect("the slot has a request");
        let token = |piece| (slot as u64) << PIECE_BITS | piece as u64;
        self.dirty = true;
        if request.command == Command::Flush {
            request.operations = 1;
            return self.queue.submit(Op::flush(token(0)));
        }
        request.operations = request.pieces.len();
        let (block_size, pool) = (self.geometry.block_size, self.reactor.buffers());
        for (index, piece) in request.pieces.iter_mut().enumerate() {
            let op = piece.begin(request.command, request.fua, block_size, pool, token(index));
            self.queue.submit(op);
        }
        if request.operations == 0 {
            self.step_ended(slot);
        }
    }

    /// Handles the completion of a block operation.
    fn complete(&mut self, mut done: Completion) {
        let (slot, index) = ((done.token >> PIECE_BITS) as usize, done.token as u32 as usize);
        let request = self.requests[slot].as_mut().expect("a request outlives its operations");
        if let Some(piece) = request.pieces.get_mut(index)
            && let Some(op) = piece.end(&mut done, request.fua, self.reactor.buffers())
        {
            self.queue.submit(op);
            self.dirty = true;
            return;
        }
        request.result = request.result.and(done.result);
        request.operations -= 1;
        if request.operations == 0 {
            self.step_ended(slot);
        }
    }

    /// Continues or answers a request whose pieces have all completed.
    fn step_ended(&mut self, slot: usize) {
        let mut request = self.requests[slot].take().expect("the request was in progress");
        if request.merges {
            self.merged = true;
        } else if request.command.writes() {
            let report = self.gate.leave();
            self.report(report);
        }
        if request.result.is_ok() && request.left > 0 {
            self.cut(&mut request, None);
            self.requests[slot] = Some(request);
            return self.start(slot);
        }
        self.free.push(slot);
        self.answer(request);
    }

    fn answer(&mut self, request: FuseRequest) {
        let FuseRequest { reply, command, length, mut pieces, result, held_bytes, .. } = request;
        match (result, reply) {
            (Err(BlockError::Aborted), reply) if request.interrupted => reply.error(Errno::EINTR),
            (Err(error), reply) => {
                tracing::debug!(?command, "a FUSE request failed: {error}");
                reply.error(errno(command, error));
            }
            (Ok(()), Reply::Read(reply)) => {
                let start = pieces.first().map_or(0, |piece| piece.start as usize);
                let parts = pieces.iter_mut().map(|piece| piece.buffer.take());
                let whole = parts.flatten().reduce(|mut front, next| {
                    front.unsplit(next);
                    front
                });
                let whole = whole.expect("a read has a length");
                reply.data(&whole[start..start + length as usize]);
                self.reactor.buffers().give(whole);
            }
            (Ok(()), Reply::Write(reply)) => reply.written(length as u32),
            (Ok(()), Reply::Done(reply)) => reply.ok(),
            (Ok(()), Reply::Sent) => {}
        }
        // The buffers of writes return to the threads that read requests from the kernel.
        self.written.extend(pieces.drain(..).filter_map(|piece| piece.buffer));
        self.spare.push(pieces);
        self.answered += 1;
        self.released_bytes += held_bytes;
    }

    /// Interrupts requests that have waited for at least one check interval, if their callers
    /// received a signal.
    fn look_for_signals(&mut self) {
        let (mut interrupted, mut left) = (false, false);
        for request in self.requests.iter_mut().flatten() {
            left = true;
            if std::mem::replace(&mut request.waits, true) && request.caller.is_interrupted() {
                (request.interrupted, interrupted) = (true, true);
                // Do not interrupt a write that has started: its result is unknown until it
                // completes.
                if !request.command.writes() {
                    std::mem::replace(&mut request.reply, Reply::Sent).error(Errno::EINTR);
                    request.caller = Caller::default();
                }
            }
        }
        if interrupted {
            let requests = &self.requests;
            self.queue.abandon(&mut |token| {
                let slot = (token >> PIECE_BITS) as usize;
                requests[slot].as_ref().is_some_and(|request| request.interrupted)
            });
            self.dirty = true;
        }
        self.look_at = left.then(|| Instant::now() + limits::SIGNAL_INTERVAL);
    }

    /// The time until the next check for signals or the deadline. `None` without either.
    fn timeout(&mut self) -> Option<Duration> {
        if self.requests.len() == self.free.len() {
            self.look_at = None;
        } else if self.look_at.is_none() {
            self.look_at = Some(Instant::now() + limits::SIGNAL_INTERVAL);
        }
        let next = self.deadline.into_iter().chain(self.look_at).min();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn obey(&mut self, order: Order) {
        let report = self.gate.obey(order);
        self.report(report);
        match order {
            Order::Close => {}
            Order::Grant => self.merge(),
            Order::Open => {
                while let Some(slot) = self.gate.next_parked() {
                    self.submit(slot);
                }
            }
        }
    }

    /// Executes the next merge (read-modify-write). If no merge may run, lets other writes proceed.
    fn merge(&mut self) {
        match self.gate.next_merge() {
            Ok(slot) => self.submit(slot),
            Err(report) => {
                self.report(Some(report));
                let more = self.gate.wants_more();
                self.report(more);
            }
        }
    }

    /// Sends a report to the arbiter. The arbiter is on the first core, and decides which core may
    /// merge.
    fn report(&mut self, report: Option<Report>) {
        if let Some(report) = report {
            self.shared.inboxes().post(0, Message::Report(self.index, report));
        }
    }
}

impl Core for Requests {
    /// Runs until the server stops and no core has requests any more: before that, other cores may
    /// need reports from this core's gate.
    fn run(mut self) -> io::Result<()> {
        let (mut ready, mut events, mut done) = (Vec::new(), Vec::new(), Vec::new());
        let (mut jobs, mut messages) = (Vec::new(), Vec::new());
        let mut more = false;
        while !self.is_over() {
            let timeout = if more { Some(Duration::ZERO) } else { self.timeout() };
            self.reactor.poll(timeout, &mut ready)?;
            for task in ready.drain(..) {
                if task == self.queue_task {
                    self.dirty = true;
                } else if task == self.mail {
                    self.shared.inboxes().take(self.index, &mut jobs, &mut messages);
                    messages.drain(..).for_each(|message| self.handle(message));
                    jobs.drain(..).for_each(|job| self.begin(job));
                }
                // This thread expects no events, so drop stale events.
                self.reactor.take_events(task, &mut events);
                events.clear();
            }
            if self.look_at.is_some_and(|at| at <= Instant::now()) {
                self.look_for_signals();
            }
            more = self.settle(&mut done);
        }
        self.shared.inboxes().close(self.index);
        Ok(())
    }
}
