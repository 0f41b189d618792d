//! [`Reactor`]: the public interface of an event loop, with its tasks and its engine.

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

/// The number of checks for work between two reads of the clock, while the loop busy-polls.
const LOOKS_PER_CLOCK: u32 = 8;
/// The interval at which a busy-polling loop yields its processor. The thread that must answer, or
/// a kernel thread for loopback traffic, may need the same processor. Without the yield, it would
/// wait for milliseconds, until the scheduler's next tick.
const YIELD_EVERY: Duration = Duration::from_micros(20);

/// A yield that takes longer than this shows that other threads use the processor. One of them may
/// be the peer's thread, so the loop then yields after each check. Otherwise every response would
/// take [`YIELD_EVERY`].
const SHARED_YIELD: Duration = Duration::from_nanos(1500);
/// After this many short yields in a row, the loop considers the processor unshared.
const VAIN_OFFERS: u32 = 8;

/// The event loop of one thread; the [crate's documentation](crate) describes it. All clones refer
/// to the same loop.
#[derive(Clone)]
pub struct Reactor {
    inner: Rc<Inner>,
}

struct Inner {
    kind: EngineKind,
    shared: Arc<WakerShared>,
    /// Declared before `pool`, so that the drop of the engine can return buffers to the pool.
    state: RefCell<LoopState>,
    pool: BufferPool,
}

struct LoopState {
    engine: Engine,
    tasks: Tasks,
    spin: Spin,
    /// The time at which the last wait ended and the current work began.
    working_since: Instant,
    woken: Vec<Woken>,
    offers: Offers,
}

/// Decides how often a busy-polling loop yields its processor to other threads. Only for loops that
/// do not measure the gain of busy-polling ([`Spin`]): more yields did not speed up the loops that
/// measure it.
struct Offers {
    /// The number of short yields in a row.
    in_vain: u32,
}

impl Offers {
    /// Whether other threads want the processor. The loop then yields after each check for work.
    fn are_taken(&self) -> bool {
        self.in_vain < VAIN_OFFERS
    }

    /// Records the length of a yield.
    fn note(&mut self, lasted: Duration) {
        self.in_vain = if lasted > SHARED_YIELD { 0 } else { self.in_vain.saturating_add(1) };
    }
}

impl Reactor {
    /// Creates a loop with the given options. [`EngineKind::Auto`] falls back to the portable
    /// engine, and logs the reason with `tracing`.
    ///
    /// # Errors
    ///
    /// Fails if this system does not support the requested engine. The text contains the reason.
    pub fn new(config: &Config) -> io::Result<Reactor> {
        let shared = WakerShared::new();
        let pool = BufferPool::new();
        let engine = Engine::new(config, &shared)?;
        let kind = engine.kind();
        tracing::debug!(engine = %kind, "reactor started");
        // Busy-polling needs a real clock, which a simulation does not have.
        let polling = if os::is_simulated() { Polling::Never } else { config.polling };
        let spin = Spin::new(polling);
        let (tasks, working_since) = (Tasks::new(), os::now());
        let offers = Offers { in_vain: VAIN_OFFERS };
        let state = LoopState { engine, tasks, spin, working_since, woken: Vec::new(), offers };
        Ok(Reactor { inner: Rc::new(Inner { kind, shared, state: RefCell::new(state), pool }) })
    }

    /// Returns the engine in use, never [`EngineKind::Auto`].
    pub fn engine(&self) -> EngineKind {
        self.inner.kind
    }

    /// Returns the buffer pool of this reactor.
    pub fn buffers(&self) -> &BufferPool {
        &self.inner.pool
    }

    /// Adds a task with an empty mailbox.
    pub fn add_task(&self) -> TaskId {
        self.inner.state.borrow_mut().tasks.add()
    }

    /// Adds a child task with its own mailbox, for example for one queue. When the child has
    /// events, `poll` reports its root task (the topmost parent) as ready, whose owner then takes
    /// the child's events. After the root is removed, its children get no more events, but the
    /// caller must still remove them.
    pub fn add_child(&self, parent: TaskId) -> TaskId {
        self.inner.state.borrow_mut().tasks.add_child(parent)
    }

    /// Removes a task. The reactor drops all its events, including later ones, and returns their
    /// buffers to the pool. The task's streams and listeners stay open until the caller closes
    /// them.
    pub fn remove_task(&self, task: TaskId) {
        self.inner.state.borrow_mut().tasks.remove(task, &self.inner.pool);
    }

    /// Marks a task as ready without an event. The next [`poll`](Reactor::poll) does not wait, and
    /// reports the task.
    pub fn notify(&self, task: TaskId) {
        self.inner.state.borrow_mut().tasks.mark_ready(task);
    }

    /// Creates a handle that marks the task as ready from any thread. Create it once and clone it.
    pub fn waker(&self, task: TaskId) -> Waker {
        Waker::new(Arc::clone(&self.inner.shared), task)
    }

    /// Sets or clears the task's only timer. When it expires, the task gets [`Event::Timer`].
    pub fn set_timer(&self, task: TaskId, deadline: Option<Instant>) {
        self.inner.state.borrow_mut().tasks.set_timer(task, deadline);
    }

    /// Moves all events of the task's mailbox to the end of `events`, in the order in which they
    /// happened.
    pub fn take_events(&self, task: TaskId, events: &mut Vec<Event>) {
        self.inner.state.borrow_mut().tasks.take_events(task, events);
    }

    /// Submits all queued operations and waits until a task is ready, at most for `timeout`
    /// (`None`: no limit). Replaces the contents of `ready` with the ready root tasks, each once.
    /// If the caller leaves events in a task's mailbox, a later call reports the task only after
    /// new events.
    ///
    /// # Errors
    ///
    /// Fails only if the system's event queue fails. The reactor is unusable afterwards.
    pub fn poll(&self, timeout: Option<Duration>, ready: &mut Vec<TaskId>) -> io::Result<()> {
        ready.clear();
        let mut state = self.inner.state.borrow_mut();
        let result = state.poll(&self.inner.shared, &self.inner.pool, timeout);
        state.tasks.take_ready(ready);
        result
    }

    /// Accepts connections until [`close_listener`](Reactor::close_listener). Each connection is an
    /// [`Event::Accepted`]. After an error, the listener pauses for 100 ms.
    ///
    /// # Errors
    ///
    /// Fails if the reactor cannot prepare the socket.
    pub fn listen(
        &self,
        task: TaskId,
        listener: impl Into<ListenSocket>,
    ) -> io::Result<ListenerId> {
        let listener = listener.into();
        self.with(|engine, _| engine.listen(task, listener)).map(ListenerId)
    }

    /// Stops accepting and closes the socket. The socket closes in the next [`poll`](Reactor::poll)
    /// at the latest.
    pub fn close_listener(&self, id: ListenerId) {
        self.with(|engine, _| engine.close_listener(id.0));
    }

    /// Starts a connection, which completes with [`Event::Connected`]. Before that event,
    /// operations on the stream fail with [`io::ErrorKind::NotConnected`].
    ///
    /// # Errors
    ///
    /// Fails if the system cannot create a socket.
    pub fn connect(&self, task: TaskId, address: SocketAddr) -> io::Result<StreamId> {
        self.with(|engine, _| engine.connect(task, address)).map(StreamId)
    }

    /// Takes ownership of a connection. Sets `TCP_NODELAY` and the blocking mode that the engine
    /// needs.
    ///
    /// # Errors
    ///
    /// Fails if the reactor cannot prepare the socket.
    pub fn add_stream(&self, task: TaskId, socket: impl Into<Socket>) -> io::Result<StreamId> {
        let socket = socket.into();
        self.with(|engine, _| engine.add_stream(task, socket)).map(StreamId)
    }

    /// Removes a stream without closing it, and returns its socket for use by another loop. This
    /// loop delivers no more events of the stream. `None` if the stream is not open or has an
    /// outstanding operation.
    pub fn take_stream(&self, stream: StreamId) -> Option<Socket> {
        self.with(|engine, _| engine.take_stream(stream.0))
    }

    /// Receives the next bytes, up to the size of a pool buffer. Completes with
    /// [`Event::Received`]. A stream holds no buffer while it waits for data.
    ///
    /// # Panics
    ///
    /// Panics if a `recv` or `recv_into` is already outstanding on this stream.
    pub fn recv(&self, stream: StreamId) {
        self.with(|engine, cx| engine.recv(cx, stream.0, 0));
    }

    /// Like [`recv`](Reactor::recv), but receives up to `most` bytes: at least 1, at most 256 KiB.
    ///
    /// Use a small limit for a header whose payload [`recv_into`](Reactor::recv_into) then receives
    /// directly into its destination. Use a large limit to receive several payloads that the caller
    /// copies.
    ///
    /// # Panics
    ///
    /// Panics if a `recv` or `recv_into` is already outstanding on this stream.
    pub fn recv_at_most(&self, stream: StreamId, most: u32) {
        let limit = most.max(1);
        self.with(|engine, cx| engine.recv(cx, stream.0, limit));
    }

    /// Receives until `range` of `buffer` is full or the stream has ended. Completes with
    /// [`Event::ReceivedInto`]. A shorter result means that the stream ended.
    ///
    /// # Panics
    ///
    /// Panics if a `recv` or `recv_into` is already outstanding on this stream, or the range is
    /// empty or not inside the buffer.
    pub fn recv_into(&self, stream: StreamId, buffer: Buffer, range: Range<usize>) {
        assert!(!buffer[range.clone()].is_empty(), "receiving into an empty range");
        self.with(|engine, cx| engine.recv_into(cx, stream.0, buffer, range));
    }

    /// Sends a whole batch. Completes with [`Event::Sent`].
    ///
    /// # Panics
    ///
    /// Panics if a `send` is already outstanding on this stream.
    pub fn send(&self, stream: StreamId, batch: SendBatch) {
        self.with(|engine, cx| engine.send(cx, stream.0, batch));
    }

    /// Sends the final bytes on a stream that the caller then closes. Sends as much as the socket
    /// accepts immediately, even without another [`poll`](Reactor::poll). Does not wait and causes
    /// no event. Sends nothing while a send is outstanding, because the bytes would arrive in the
    /// middle of its data.
    pub fn send_final(&self, stream: StreamId, bytes: &[u8]) {
        self.with(|engine, _| engine.send_final(stream.0, bytes));
    }

    /// Closes a stream. Unfinished operations fail with [`io::ErrorKind::ConnectionAborted`]. Then
    /// [`Event::Closed`] follows. The system still transmits data of completed sends.
    pub fn close(&self, stream: StreamId) {
        self.with(|engine, cx| engine.close(cx, stream.0));
    }

    /// Takes ownership of a file. Operations always have explicit offsets and may change the
    /// position of the file.
    ///
    /// # Errors
    ///
    /// No engine returns an error at present.
    pub fn add_file(&self, file: impl Into<File>) -> io::Result<FileId> {
        let file = file.into();
        self.with(|engine, _| engine.add_file(file)).map(FileId)
    }

    /// Removes a file. The reactor closes it when its last operation has completed.
    pub fn remove_file(&self, file: FileId) {
        self.with(|engine, _| engine.remove_file(file.0));
    }

    /// Starts a file operation, which completes with [`Event::File`] and `user_data`. Any number of
    /// operations may be outstanding. They complete in any order.
    pub fn file(&self, task: TaskId, file: FileId, op: FileOp, user_data: u64) {
        self.with(|engine, cx| engine.file(cx, task, file.0, op, user_data));
    }

    /// Marks the task as ready whenever the descriptor becomes readable, and once at the start if
    /// it is already readable. The reactor delivers no event, and does not read the descriptor.
    /// This function is meant for eventfds. After the other end of a pipe or socket has closed, the
    /// reactor no longer marks the task.
    ///
    /// # Errors
    ///
    /// Fails if the system cannot wait for this kind of descriptor (for example, a file).
    #[cfg(unix)]
    pub fn watch(
        &self,
        task: TaskId,
        descriptor: std::os::fd::OwnedFd,
    ) -> io::Result<crate::WatchId> {
        self.with(|engine, _| engine.watch(task, descriptor)).map(crate::WatchId)
    }

    /// Stops watching and closes the descriptor.
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
            // Send queued data before reading the clock: peers wait for the data.
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
        // A timeout that exceeds the range of the clock means no limit.
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

    /// Runs one turn of the engine. Then collects wake-ups, results of other threads and expired
    /// timers.
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

    /// Busy-polls for work for as long as the policy allows. Returns `true` if it found work.
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

    /// Returns the earliest deadline of the caller, the tasks and the engine.
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
    fn a_loop_yields_until_no_other_thread_runs() {
        let mut offers = Offers { in_vain: VAIN_OFFERS };
        assert!(!offers.are_taken());
        offers.note(SHARED_YIELD);
        assert!(!offers.are_taken(), "a yield of this length is short");
        offers.note(SHARED_YIELD * 2);
        for _ in 0..VAIN_OFFERS {
            assert!(offers.are_taken());
            offers.note(SHARED_YIELD / 2);
        }
        assert!(!offers.are_taken());
    }
}
