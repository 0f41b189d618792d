//! [`Reactor`]: the public interface to the tasks and one engine.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::SendBatch;
use crate::config::{Config, EngineKind, Polling};
use crate::context::{Context, Wait};
use crate::engine::Engine;
use crate::event::Event;
use crate::file_op::FileOp;
use crate::ids::{FileId, ListenerId, StreamId, TaskId};
use crate::os::{self, File, ListenSocket, Socket};
use crate::spin::{Budget, Spin};
use crate::task::Tasks;
use crate::waker::{Waker, WakerShared, Woken};
use farblock_mem::Buffer;
use farblock_mem::BufferPool;

/// While it spins, the loop reads the clock once in this many attempts to find work.
const LOOKS_PER_CLOCK: u32 = 8;
/// While it spins, the loop yields the processor once in this time: to the peer's thread, if it
/// shares the processor, and to kernel threads. Linux leaves heavy loopback traffic to kernel
/// threads. A loop that does not yield to them waits for its data until the scheduler's next tick,
/// for milliseconds.
const YIELD_EVERY: Duration = Duration::from_micros(20);

/// A yield that takes longer than this shows that other threads use the processor, perhaps the
/// peer. If two loops on one processor took turns to spin for a whole [`YIELD_EVERY`], each answer
/// would take that long.
const SHARED_YIELD: Duration = Duration::from_nanos(1500);
/// After this many short yields in a row the processor counts as unshared.
const VAIN_OFFERS: u32 = 8;

/// An event loop of one thread: see the [crate]. Clones are the same loop.
#[derive(Clone)]
pub struct Reactor {
    inner: Rc<Inner>,
}

struct Inner {
    kind: EngineKind,
    shared: Arc<WakerShared>,
    /// Declared before `pool`, so that the engine returns its buffers before the pool is dropped.
    state: RefCell<LoopState>,
    pool: BufferPool,
}

struct LoopState {
    engine: Engine,
    tasks: Tasks,
    spin: Spin,
    /// The end of the last wait.
    working_since: Instant,
    woken: Vec<Woken>,
    offers: Offers,
}

/// The interval at which a loop without trials yields its processor to other threads. More yields
/// did not speed up loops with trials ([`Spin`]).
struct Offers {
    /// Short yields in a row.
    in_vain: u32,
}

impl Offers {
    /// Whether other threads want the processor: then the loop yields after each look.
    fn are_taken(&self) -> bool {
        self.in_vain < VAIN_OFFERS
    }

    /// Notes the length of a yield.
    fn note(&mut self, lasted: Duration) {
        self.in_vain = if lasted > SHARED_YIELD { 0 } else { self.in_vain.saturating_add(1) };
    }
}

impl Reactor {
    /// Makes a loop as configured. [`EngineKind::Auto`] falls back to the portable engine, and logs
    /// the reason through `tracing`.
    ///
    /// # Errors
    ///
    /// If the requested engine does not work here, with the reason in the text.
    pub fn new(config: &Config) -> io::Result<Reactor> {
        let shared = WakerShared::new();
        let pool = BufferPool::new();
        let engine = Engine::new(config, &shared)?;
        let kind = engine.kind();
        tracing::debug!(engine = %kind, "reactor started");
        // Looking for work takes real time, which a simulated world does not have.
        let polling = if os::is_simulated() { Polling::Never } else { config.polling };
        let spin = Spin::new(polling);
        let (tasks, working_since) = (Tasks::new(), os::now());
        let offers = Offers { in_vain: VAIN_OFFERS };
        let state = LoopState { engine, tasks, spin, working_since, woken: Vec::new(), offers };
        Ok(Reactor { inner: Rc::new(Inner { kind, shared, state: RefCell::new(state), pool }) })
    }

    /// The engine in use: [`EngineKind::Uring`] or [`EngineKind::Portable`].
    pub fn engine(&self) -> EngineKind {
        self.inner.kind
    }

    /// The buffers of this reactor.
    pub fn buffers(&self) -> &BufferPool {
        &self.inner.pool
    }

    /// A new task: an empty mailbox.
    pub fn add_task(&self) -> TaskId {
        self.inner.state.borrow_mut().tasks.add()
    }

    /// Adds a task with its own mailbox for an object that `parent`'s owner polls, such as a queue.
    /// When the child has events, `poll` reports its root task as ready instead. Once the root is
    /// removed, its children get no more events; the caller must still remove them.
    pub fn add_child(&self, parent: TaskId) -> TaskId {
        self.inner.state.borrow_mut().tasks.add_child(parent)
    }

    /// Removes a task. The reactor drops its events, including later ones, and recycles their
    /// buffers. Its streams and listeners stay open until they are closed.
    pub fn remove_task(&self, task: TaskId) {
        self.inner.state.borrow_mut().tasks.remove(task, &self.inner.pool);
    }

    /// Marks a task ready without an event: the next [`poll`](Reactor::poll) does not wait, and
    /// reports it.
    pub fn notify(&self, task: TaskId) {
        self.inner.state.borrow_mut().tasks.mark_ready(task);
    }

    /// A handle that marks the task ready from any thread. Make it once and clone it.
    pub fn waker(&self, task: TaskId) -> Waker {
        Waker::new(Arc::clone(&self.inner.shared), task)
    }

    /// Arms, moves or disarms the task's only timer. It expires with [`Event::Timer`].
    pub fn set_timer(&self, task: TaskId, deadline: Option<Instant>) {
        self.inner.state.borrow_mut().tasks.set_timer(task, deadline);
    }

    /// Appends all events of the mailbox to `events`, in the order they happened.
    pub fn take_events(&self, task: TaskId, events: &mut Vec<Event>) {
        self.inner.state.borrow_mut().tasks.take_events(task, events);
    }

    /// Submits all queued operations and waits until a task is ready, at most for `timeout`
    /// (`None`: without limit). Replaces the contents of `ready` by the ready tasks: roots, each
    /// once. If the caller does not take a task's events, the task is reported again only when more
    /// arrive.
    ///
    /// # Errors
    ///
    /// Only if the operating system's queue itself fails; the reactor is unusable after that.
    pub fn poll(&self, timeout: Option<Duration>, ready: &mut Vec<TaskId>) -> io::Result<()> {
        ready.clear();
        let mut state = self.inner.state.borrow_mut();
        let result = state.poll(&self.inner.shared, &self.inner.pool, timeout);
        state.tasks.take_ready(ready);
        result
    }

    /// Accepts connections until [`close_listener`](Reactor::close_listener): [`Event::Accepted`].
    /// After an error, accepting pauses for 100 ms.
    ///
    /// # Errors
    ///
    /// If the socket cannot be prepared.
    pub fn listen(
        &self,
        task: TaskId,
        listener: impl Into<ListenSocket>,
    ) -> io::Result<ListenerId> {
        let listener = listener.into();
        self.with(|engine, _| engine.listen(task, listener)).map(ListenerId)
    }

    /// Stops accepting and closes the socket, at the latest in the next [`poll`](Reactor::poll).
    pub fn close_listener(&self, id: ListenerId) {
        self.with(|engine, _| engine.close_listener(id.0));
    }

    /// Starts a connection: [`Event::Connected`]. Until then, operations on the stream fail with
    /// [`io::ErrorKind::NotConnected`].
    ///
    /// # Errors
    ///
    /// If the system cannot create a socket.
    pub fn connect(&self, task: TaskId, address: SocketAddr) -> io::Result<StreamId> {
        self.with(|engine, _| engine.connect(task, address)).map(StreamId)
    }

    /// Takes a connection over, and sets `TCP_NODELAY` and the blocking mode the engine needs.
    ///
    /// # Errors
    ///
    /// If the socket cannot be prepared.
    pub fn add_stream(&self, task: TaskId, socket: impl Into<Socket>) -> io::Result<StreamId> {
        let socket = socket.into();
        self.with(|engine, _| engine.add_stream(task, socket)).map(StreamId)
    }

    /// Removes a stream without closing it, so that another loop can use its socket. It has no more
    /// events here. `None` if it is not open or has an outstanding operation.
    pub fn take_stream(&self, stream: StreamId) -> Option<Socket> {
        self.with(|engine, _| engine.take_stream(stream.0))
    }

    /// Receives the next bytes, up to the size of a pool buffer: [`Event::Received`]. An idle
    /// stream holds no buffer while it waits.
    ///
    /// # Panics
    ///
    /// If a `recv` or `recv_into` of this stream is outstanding.
    pub fn recv(&self, stream: StreamId) {
        self.with(|engine, cx| engine.recv(cx, stream.0, 0));
    }

    /// Like [`recv`](Reactor::recv), but receives up to `most` bytes: at least 1, at most 256 KiB.
    /// A small limit is for a caller that expects a header, and then a payload to receive straight
    /// [into](Reactor::recv_into) its place. A large limit is for a caller that expects several
    /// payloads and copies them.
    ///
    /// # Panics
    ///
    /// If a `recv` or `recv_into` of this stream is outstanding.
    pub fn recv_at_most(&self, stream: StreamId, most: u32) {
        let limit = most.max(1);
        self.with(|engine, cx| engine.recv(cx, stream.0, limit));
    }

    /// Receives until `range` of `buffer` is full or the stream has ended: [`Event::ReceivedInto`].
    /// Callers must treat any shorter result as progress.
    ///
    /// # Panics
    ///
    /// If a `recv` or `recv_into` of this stream is outstanding, or the range is empty or not
    /// inside the buffer.
    pub fn recv_into(&self, stream: StreamId, buffer: Buffer, range: Range<usize>) {
        assert!(!buffer[range.clone()].is_empty(), "receiving into an empty range");
        self.with(|engine, cx| engine.recv_into(cx, stream.0, buffer, range));
    }

    /// Sends all of a batch: [`Event::Sent`].
    ///
    /// # Panics
    ///
    /// If a `send` of this stream is outstanding.
    pub fn send(&self, stream: StreamId, batch: SendBatch) {
        self.with(|engine, cx| engine.send(cx, stream.0, batch));
    }

    /// Sends last bytes on a stream that the caller closes next: as much as the socket takes at
    /// once, even without another [`poll`](Reactor::poll). It does not wait and causes no event. It
    /// sends nothing while a send is outstanding, because the bytes would land in the middle of
    /// that send.
    pub fn send_final(&self, stream: StreamId, bytes: &[u8]) {
        self.with(|engine, _| engine.send_final(stream.0, bytes));
    }

    /// Closes a stream. Outstanding operations complete first, unfinished ones with
    /// [`io::ErrorKind::ConnectionAborted`], then [`Event::Closed`] follows. The system still
    /// transmits data that was sent before.
    pub fn close(&self, stream: StreamId) {
        self.with(|engine, cx| engine.close(cx, stream.0));
    }

    /// Takes a file over. Offsets are always explicit; its position is neither used nor preserved.
    ///
    /// # Errors
    ///
    /// None at present.
    pub fn add_file(&self, file: impl Into<File>) -> io::Result<FileId> {
        let file = file.into();
        self.with(|engine, _| engine.add_file(file)).map(FileId)
    }

    /// Removes a file; the reactor closes it when its last operation is done.
    pub fn remove_file(&self, file: FileId) {
        self.with(|engine, _| engine.remove_file(file.0));
    }

    /// Starts a file operation: [`Event::File`] with `user_data`. Any number may be outstanding, in
    /// any order.
    pub fn file(&self, task: TaskId, file: FileId, op: FileOp, user_data: u64) {
        self.with(|engine, cx| engine.file(cx, task, file.0, op, user_data));
    }

    /// Marks the task ready whenever the descriptor becomes readable, and once at the start if it
    /// already is. The reactor delivers no event and does not read. Meant for event descriptors.
    /// After the other end has closed, the task is not marked any more.
    ///
    /// # Errors
    ///
    /// If the system cannot wait for such a descriptor (a file, for example).
    #[cfg(unix)]
    pub fn watch(
        &self,
        task: TaskId,
        descriptor: std::os::fd::OwnedFd,
    ) -> io::Result<crate::WatchId> {
        self.with(|engine, _| engine.watch(task, descriptor)).map(crate::WatchId)
    }

    /// Stops watching, and closes the descriptor.
    #[cfg(unix)]
    pub fn unwatch(&self, watch: crate::WatchId) {
        self.with(|engine, _| engine.unwatch(watch.0));
    }

    fn with<R>(&self, call: impl FnOnce(&mut Engine, &mut Context<'_>) -> R) -> R {
        let LoopState { engine, tasks, .. } = &mut *self.inner.state.borrow_mut();
        call(engine, &mut Context { tasks, pool: &self.inner.pool })
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reactor({})", self.inner.kind)
    }
}

impl LoopState {
    fn poll(
        &mut self,
        shared: &WakerShared,
        pool: &BufferPool,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let may_wait = timeout != Some(Duration::ZERO);
        if self.spin.budget() != Budget::None {
            // First of all, even before reading the clock: peers wait for the data to send.
            self.turn(shared, pool, Wait::Look)?;
            if !may_wait || self.tasks.has_ready() {
                return Ok(());
            }
        } else {
            self.look_around(shared, pool);
            if !may_wait || self.tasks.has_ready() {
                return self.turn(shared, pool, Wait::No);
            }
        }
        // A timeout beyond the end of the clock means no limit.
        let deadline = timeout.and_then(|timeout| os::now().checked_add(timeout));
        loop {
            if self.spin.budget() != Budget::None && self.spin(shared, pool, deadline)? {
                return Ok(());
            }
            if shared.try_sleep() {
                self.sleep(shared, pool, deadline)?;
            }
            self.look_around(shared, pool);
            if self.tasks.has_ready() || deadline.is_some_and(|at| at <= os::now()) {
                return Ok(());
            }
        }
    }

    /// Lets the engine work once, then collects wakes, results of other threads and expired timers.
    fn turn(&mut self, shared: &WakerShared, pool: &BufferPool, wait: Wait) -> io::Result<()> {
        self.engine.turn(&mut Context { tasks: &mut self.tasks, pool }, wait)?;
        self.look_around(shared, pool);
        Ok(())
    }

    fn look_around(&mut self, shared: &WakerShared, pool: &BufferPool) {
        if shared.awake() {
            shared.drain(&mut self.woken, |task| {
                self.tasks.mark_ready(task);
            });
            self.engine.collect(&mut Context { tasks: &mut self.tasks, pool });
        }
        if self.tasks.next_deadline().is_some() {
            self.tasks.expire_timers(os::now(), pool);
        }
    }

    /// Looks for work without sleeping, as long as the policy allows; true if it found work.
    fn spin(
        &mut self,
        shared: &WakerShared,
        pool: &BufferPool,
        deadline: Option<Instant>,
    ) -> io::Result<bool> {
        let start = os::now();
        self.spin.worked(start - self.working_since);
        let end = match self.spin.budget() {
            Budget::None => return Ok(false),
            Budget::Limited(time) => Some(start + time),
            Budget::Unlimited => None,
        };
        let until = [end, self.earliest(deadline)].into_iter().flatten().min();
        let (mut looks, mut yielded) = (0, start);
        loop {
            if shared.is_notified() || self.engine.has_work() {
                self.turn(shared, pool, Wait::Look)?;
            } else {
                self.engine.look(&mut Context { tasks: &mut self.tasks, pool });
            }
            if self.tasks.has_ready() {
                self.working_since = os::now();
                self.spin.found(self.working_since - start, self.tasks.arrived());
                return Ok(true);
            }
            looks += 1;
            let is_shared = self.spin.is_unjudged() && self.offers.are_taken();
            if is_shared || looks % LOOKS_PER_CLOCK == 0 {
                let now = os::now();
                if until.is_some_and(|until| now >= until) {
                    self.working_since = now;
                    self.spin.missed(now - start);
                    return Ok(false);
                }
                if is_shared || now - yielded >= YIELD_EVERY {
                    std::thread::yield_now();
                    yielded = os::now();
                    self.offers.note(yielded - now);
                }
            }
            std::hint::spin_loop();
        }
    }

    fn sleep(
        &mut self,
        shared: &WakerShared,
        pool: &BufferPool,
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        let until = self.earliest(deadline);
        if !self.spin.is_adaptive() {
            return self.turn(shared, pool, Wait::Until(until));
        }
        let start = os::now();
        self.spin.worked(start - self.working_since);
        let result = self.turn(shared, pool, Wait::Until(until));
        self.working_since = os::now();
        if self.tasks.has_ready() {
            self.spin.slept(self.working_since - start, self.tasks.arrived());
        }
        result
    }

    /// The earliest deadline of the caller, the tasks and the engine.
    fn earliest(&self, deadline: Option<Instant>) -> Option<Instant> {
        let own = [deadline, self.tasks.next_deadline(), self.engine.next_deadline()];
        own.into_iter().flatten().min()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let LoopState { engine, tasks, .. } = self.state.get_mut();
        engine.shut_down(&mut Context { tasks, pool: &self.pool });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_processor_is_offered_until_nobody_takes_it() {
        let mut offers = Offers { in_vain: VAIN_OFFERS };
        assert!(!offers.are_taken());
        offers.note(SHARED_YIELD);
        assert!(!offers.are_taken(), "nobody else ran");
        offers.note(SHARED_YIELD * 2);
        for _ in 0..VAIN_OFFERS {
            assert!(offers.are_taken());
            offers.note(SHARED_YIELD / 2);
        }
        assert!(!offers.are_taken());
    }
}
