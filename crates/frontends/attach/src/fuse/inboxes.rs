//! What comes in for the cores: requests, of which no core is given more than so many bytes, and
//! messages; and when all that came is answered.

// The standard library's and the reactor's; `tests/fuse_inboxes.rs` has others that try every order
// of threads.
use super::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, Waker};
use farblock_frontend::writes::{Order, Report};
use farblock_reactor::{Buffer, BufferPool};
use std::sync::{OnceLock, PoisonError};

/// A request for a core.
pub(super) trait Work {
    /// Data buffers that it holds, in bytes.
    fn held_bytes(&self) -> usize;

    /// No core will carry it out.
    fn fail(self);
}

/// What a core is told besides requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// The namespace has another size.
    Resized,
    /// See whether all is over.
    Look,
    /// To the gate of its writes.
    Order(Order),
    /// From a core's gate to the arbiter.
    Report(usize, Report),
    /// Finish what was accepted and end.
    Stop,
}

/// What came in for a core.
struct Inbox<W> {
    work: Vec<W>,
    messages: Vec<Message>,
    /// Bytes of buffers of requests that are not answered yet.
    held_bytes: usize,
    /// For the data of writes, which other threads read than write it.
    pool: BufferPool,
    /// Its core has ended: nobody would take what comes.
    closed: bool,
}

/// A core's inbox, and how to have it looked at.
struct Mailbox<W> {
    inbox: Mutex<Inbox<W>>,
    /// Somebody waits for less to be held.
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

/// Beside the count of requests: the cores are to end. In one number, so that whoever counts the
/// last one sees it, or whoever is told to end sees that it was the last.
const STOPPING: usize = 1 << (usize::BITS - 1);

/// See the module's text.
pub(super) struct Inboxes<W> {
    all: OnceLock<Vec<Mailbox<W>>>,
    /// What the requests of a core may hold, in bytes; one may hold more, alone.
    core_bytes: usize,
    /// Requests that are not answered yet, and [`STOPPING`].
    unanswered: AtomicUsize,
    /// A core ended before its time: so do the others.
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

    /// Makes one for each core; the waker has it looked at.
    pub(super) fn open(&self, wakers: Vec<Waker>) {
        let all = wakers.into_iter().map(Mailbox::new).collect();
        assert!(self.all.set(all).is_ok(), "the inboxes are opened once");
    }

    /// None until a server starts.
    fn all(&self) -> &[Mailbox<W>] {
        self.all.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn count(&self) -> usize {
        self.all().len()
    }

    /// A buffer for the data of a write.
    pub(super) fn buffer(&self, core: usize, bytes: usize) -> Buffer {
        self.all()[core].lock().pool.take(bytes)
    }

    /// Gives a core a request; waits if it has too many. If the core has ended, the request fails.
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

    /// Exchanges what came in for nothing. The vectors are empty ones, and lend their capacity.
    pub(super) fn take(&self, core: usize, work: &mut Vec<W>, messages: &mut Vec<Message>) {
        let mut inbox = self.all()[core].lock();
        std::mem::swap(&mut inbox.work, work);
        std::mem::swap(&mut inbox.messages, messages);
    }

    /// A core answered so many requests, that held so many bytes, and these buffers.
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

    /// Whether a core that was told to stop may end.
    pub(super) fn is_over(&self) -> bool {
        self.unanswered.load(Ordering::Acquire) == STOPPING || self.failed.load(Ordering::Acquire)
    }

    /// A core has ended: what it has not taken fails, and what comes.
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

    /// A core has ended before its time: from now on requests fail, and the others end.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        (0..self.count()).for_each(|core| self.close(core));
        self.stop();
    }
}
