//! The inboxes through which reader threads pass requests to the cores, and cores send each other
//! messages. A core is a thread that executes requests. The requests of one core may hold a limited
//! number of buffer bytes.

// These types come from the standard library and the reactor. `tests/fuse_inboxes.rs` replaces them
// with loom's types to try every order of threads.
use super::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, Waker};
use farblock_frontend::writes::{Order, Report};
use farblock_reactor::{Buffer, BufferPool};
use std::sync::{OnceLock, PoisonError};

/// A request for a core.
pub(super) trait Work {
    /// The size of the data buffers that the request holds, in bytes.
    fn held_bytes(&self) -> usize;

    /// Fails the request, because no core will execute it.
    fn fail(self);
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// The namespace's geometry has changed.
    Resized,
    /// Check whether the core may exit. A stopping server sends this message to all cores once the
    /// last request is answered.
    Look,
    /// An order from the arbiter, which decides which core may write partial blocks. This core's
    /// gate then holds back or releases writes (see [`farblock_frontend::writes`]).
    Order(Order),
    /// A report to the arbiter, which is on the first core, from the gate of the core with this
    /// number.
    Report(usize, Report),
    /// Stop after finishing the accepted requests.
    Stop,
}

/// The requests and messages for a core.
struct Inbox<W> {
    work: Vec<W>,
    messages: Vec<Message>,
    /// The size of the buffers that unanswered requests hold, in bytes.
    held_bytes: usize,
    /// The buffers for the data of writes. The reader threads take buffers from this pool.
    pool: BufferPool,
    /// True after the core has exited: later requests fail.
    closed: bool,
}

/// A core's inbox, and the waker of the core.
struct Mailbox<W> {
    inbox: Mutex<Inbox<W>>,
    /// Wakes the reader threads that wait for the core's requests to release buffer bytes.
    room: Condvar,
    waker: Waker,
}

impl<W> Mailbox<W> {
    fn new(waker: Waker) -> Mailbox<W> {
        let inbox = Inbox {
            work: Vec::new(),
            messages: Vec::new(),
            held_bytes: 0,
            pool: BufferPool::default(),
            closed: false,
        };
        Mailbox { inbox: Mutex::new(inbox), room: Condvar::new(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox<W>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flag in `unanswered`: the cores are stopping. The flag and the count of unanswered requests
/// share one atomic number, so exactly one thread sees the flag with a count of 0. That thread
/// tells the cores to exit.
const STOPPING: usize = 1 << (usize::BITS - 1);

/// The inboxes of all cores.
pub(super) struct Inboxes<W> {
    all: OnceLock<Vec<Mailbox<W>>>,
    /// The limit on the buffers that the requests of one core hold, in bytes. A core whose requests
    /// hold no bytes accepts a request of any size.
    core_bytes: usize,
    /// The number of unanswered requests, and the flag [`STOPPING`].
    unanswered: AtomicUsize,
    /// True after a core has failed; the other cores then stop.
    failed: AtomicBool,
}

impl<W: Work> Inboxes<W> {
    pub(super) fn new(core_bytes: usize) -> Inboxes<W> {
        Inboxes {
            all: OnceLock::new(),
            core_bytes,
            unanswered: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// Makes an inbox for each core. The waker with the same index wakes that core.
    pub(super) fn open(&self, wakers: Vec<Waker>) {
        let all = wakers.into_iter().map(Mailbox::new).collect();
        assert!(self.all.set(all).is_ok(), "the inboxes are already open");
    }

    /// The inboxes of all cores. Empty until the server starts.
    fn all(&self) -> &[Mailbox<W>] {
        self.all.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn count(&self) -> usize {
        self.all().len()
    }

    /// Takes a buffer for the data of a write from the core's pool.
    pub(super) fn buffer(&self, core: usize, bytes: usize) -> Buffer {
        self.all()[core].lock().pool.take(bytes)
    }

    /// Posts a request to a core. Blocks while the core's requests hold too many bytes. Fails the
    /// request if the core has exited.
    pub(super) fn post_work(&self, core: usize, work: W) {
        let mailbox = &self.all()[core];
        let bytes = work.held_bytes();
        let mut inbox = mailbox.lock();
        while bytes > 0
            && inbox.held_bytes > 0
            && inbox.held_bytes + bytes > self.core_bytes
            && !inbox.closed
        {
            inbox = mailbox.room.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        if inbox.closed {
            drop(inbox);
            return work.fail();
        }
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        inbox.held_bytes += bytes;
        inbox.work.push(work);
        drop(inbox);
        mailbox.waker.wake();
    }

    pub(super) fn post(&self, core: usize, message: Message) {
        let mailbox = &self.all()[core];
        mailbox.lock().messages.push(message);
        mailbox.waker.wake();
    }

    pub(super) fn post_all(&self, message: Message) {
        (0..self.count()).for_each(|core| self.post(core, message));
    }

    /// Swaps the core's requests and messages into these vectors, which must be empty.
    pub(super) fn take(&self, core: usize, work: &mut Vec<W>, messages: &mut Vec<Message>) {
        let mut inbox = self.all()[core].lock();
        std::mem::swap(&mut inbox.work, work);
        std::mem::swap(&mut inbox.messages, messages);
    }

    /// Subtracts answered requests from the count of unanswered requests, and `bytes` from the
    /// bytes that the core holds. Returns `buffers` to the core's pool.
    pub(super) fn answered(
        &self,
        core: usize,
        count: usize,
        bytes: usize,
        buffers: &mut Vec<Buffer>,
    ) {
        if bytes > 0 {
            let mailbox = &self.all()[core];
            let mut inbox = mailbox.lock();
            buffers.drain(..).for_each(|buffer| inbox.pool.give(buffer));
            inbox.held_bytes -= bytes;
            drop(inbox);
            mailbox.room.notify_all();
        }
        self.settle(count);
    }

    fn settle(&self, count: usize) {
        if self.unanswered.fetch_sub(count, Ordering::AcqRel) == count | STOPPING {
            self.post_all(Message::Look);
        }
    }

    pub(super) fn stop(&self) {
        self.unanswered.fetch_or(STOPPING, Ordering::AcqRel);
        self.post_all(Message::Stop);
    }

    /// True if the cores of a stopping server may exit: all requests are answered, or a core has
    /// failed.
    pub(super) fn is_over(&self) -> bool {
        self.unanswered.load(Ordering::Acquire) == STOPPING || self.failed.load(Ordering::Acquire)
    }

    /// Closes the inbox of a core that exits. Fails its queued requests and all later requests.
    pub(super) fn close(&self, core: usize) {
        let mailbox = &self.all()[core];
        let mut inbox = mailbox.lock();
        inbox.closed = true;
        let work = std::mem::take(&mut inbox.work);
        drop(inbox);
        mailbox.room.notify_all();
        for work in work {
            work.fail();
            self.settle(1);
        }
    }

    /// Records that a core has failed. The other cores then stop, and every later request fails.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        (0..self.count()).for_each(|core| self.close(core));
        self.stop();
    }
}
