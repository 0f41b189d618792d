//! What the threads of a server share: the geometry, and the cores' inboxes.

use super::limits;
use farblock_block::{BlockError, Command, Geometry};
use farblock_frontend::Disk;
use farblock_frontend::writes::{Order, Report};
use farblock_reactor::{Buffer, BufferPool, Waker};
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// Whom to answer. One that is dropped has answered with an I/O error.
pub(super) enum Reply {
    Read(ReplyData),
    Write(ReplyWrite),
    Done(ReplyEmpty),
}

impl Reply {
    pub(super) fn error(self, errno: Errno) {
        match self {
            Reply::Read(reply) => reply.error(errno),
            Reply::Write(reply) => reply.error(errno),
            Reply::Done(reply) => reply.error(errno),
        }
    }
}

/// A request for a core. Its range lies in the namespace, as far as anybody knows.
pub(super) struct Job {
    pub(super) reply: Reply,
    pub(super) command: Command,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) fua: bool,
    /// What a write writes: the whole blocks around it. Those bytes of the first and the last that
    /// it does not write are anything.
    pub(super) buffer: Option<Buffer>,
}

impl Job {
    /// Data buffers that it holds, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        if self.command.moves_data() { self.length as usize } else { 0 }
    }
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
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) jobs: Vec<Job>,
    pub(super) messages: Vec<Message>,
    /// Bytes of buffers of requests that are not answered yet.
    held_bytes: usize,
    /// For the data of writes, which other threads read than write it.
    pool: BufferPool,
}

/// A core's inbox, and how to have it looked at.
pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    /// Somebody waits for less to be held.
    room: Condvar,
    waker: Waker,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Mailbox {
        Mailbox { inbox: Mutex::default(), room: Condvar::new(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module's text.
pub(super) struct MountShared {
    disk: Disk,
    /// The namespace's size, for the threads that read requests.
    capacity_bytes: AtomicU64,
    mailboxes: OnceLock<Vec<Mailbox>>,
    next_reader: AtomicUsize,
    /// Requests that are not answered yet.
    jobs: AtomicUsize,
    stopping: AtomicBool,
    /// A core ended before its time: no use in giving anybody work.
    failed: AtomicBool,
    /// The kernel can hand out again what was not answered.
    resends: AtomicBool,
}

impl MountShared {
    pub(super) fn new(disk: Disk) -> MountShared {
        let capacity_bytes = AtomicU64::new(disk.geometry().capacity_bytes());
        MountShared {
            disk,
            capacity_bytes,
            mailboxes: OnceLock::new(),
            next_reader: AtomicUsize::new(0),
            jobs: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            resends: AtomicBool::new(false),
        }
    }

    pub(super) fn set_resends(&self, can: bool) {
        self.resends.store(can, Ordering::Relaxed);
    }

    pub(super) fn resends(&self) -> bool {
        self.resends.load(Ordering::Relaxed)
    }

    /// Makes one for each core; the waker has it looked at.
    pub(super) fn open_mailboxes(&self, wakers: Vec<Waker>) {
        let mailboxes = wakers.into_iter().map(Mailbox::new).collect();
        assert!(self.mailboxes.set(mailboxes).is_ok(), "the mailboxes are opened once");
    }

    fn mailboxes(&self) -> &[Mailbox] {
        self.mailboxes.get().expect("set before any core runs")
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// Looks at the namespace's size again.
    pub(super) fn resized(&self) {
        self.capacity_bytes.store(self.geometry().capacity_bytes(), Ordering::Relaxed);
        self.post_all(Message::Resized);
    }

    /// Which core a thread that reads requests gives them to: always the same.
    pub(super) fn core_of_reader(&self) -> usize {
        self.next_reader.fetch_add(1, Ordering::Relaxed) % self.mailboxes().len()
    }

    /// A buffer for the data of a write.
    pub(super) fn buffer(&self, core: usize, bytes: usize) -> Buffer {
        self.mailboxes()[core].lock().pool.take(bytes)
    }

    /// Gives a core a request; waits if it has too many.
    pub(super) fn post_job(&self, core: usize, job: Job) {
        let mailbox = &self.mailboxes()[core];
        let bytes = job.held_bytes();
        let mut inbox = mailbox.lock();
        while bytes > 0
            && inbox.held_bytes > 0
            && inbox.held_bytes + bytes > limits::CORE_BUFFER_BYTES
            && !self.failed.load(Ordering::Acquire)
        {
            inbox = mailbox.room.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        // Under the lock: a core that fails sees every request, or every request the failure.
        if self.failed.load(Ordering::Acquire) {
            drop(inbox);
            return job.reply.error(Errno::EIO);
        }
        self.jobs.fetch_add(1, Ordering::Relaxed);
        inbox.held_bytes += bytes;
        inbox.jobs.push(job);
        drop(inbox);
        mailbox.waker.wake();
    }

    pub(super) fn post(&self, core: usize, message: Message) {
        let mailbox = &self.mailboxes()[core];
        mailbox.lock().messages.push(message);
        mailbox.waker.wake();
    }

    pub(super) fn post_all(&self, message: Message) {
        // None yet if a server does not even start.
        let count = self.mailboxes.get().map_or(0, Vec::len);
        (0..count).for_each(|core| self.post(core, message));
    }

    /// Exchanges what came in for nothing. The vectors are empty ones, and lend their capacity.
    pub(super) fn take(&self, core: usize, jobs: &mut Vec<Job>, messages: &mut Vec<Message>) {
        let mut inbox = self.mailboxes()[core].lock();
        std::mem::swap(&mut inbox.jobs, jobs);
        std::mem::swap(&mut inbox.messages, messages);
    }

    /// A core answered so many requests, that held so many bytes, and these buffers.
    pub(super) fn answered(
        &self,
        core: usize,
        jobs: usize,
        bytes: usize,
        buffers: &mut Vec<Buffer>,
    ) {
        if bytes > 0 {
            let mailbox = &self.mailboxes()[core];
            let mut inbox = mailbox.lock();
            buffers.drain(..).for_each(|buffer| inbox.pool.give(buffer));
            inbox.held_bytes -= bytes;
            drop(inbox);
            mailbox.room.notify_all();
        }
        let before = self.jobs.fetch_sub(jobs, Ordering::AcqRel);
        if before == jobs && self.stopping.load(Ordering::Acquire) {
            self.post_all(Message::Look);
        }
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.post_all(Message::Stop);
    }

    /// Whether a stopping core may end.
    pub(super) fn is_over(&self) -> bool {
        self.jobs.load(Ordering::Acquire) == 0 || self.failed.load(Ordering::Acquire)
    }

    /// A core has ended before its time: from now on requests fail, and the others end.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        for mailbox in self.mailboxes() {
            // Those who wait for room see it.
            let jobs = std::mem::take(&mut mailbox.lock().jobs);
            mailbox.room.notify_all();
            jobs.into_iter().for_each(|job| job.reply.error(Errno::EIO));
        }
        self.stop();
    }
}

/// What the kernel is told of a block operation's error.
pub(super) fn errno(command: Command, error: BlockError) -> Errno {
    match error {
        BlockError::OutOfRange if command.writes() => Errno::ENOSPC,
        BlockError::TooLarge => Errno::EINVAL,
        BlockError::ReadOnly => Errno::EROFS,
        BlockError::NoSpace => Errno::ENOSPC,
        BlockError::Unsupported => Errno::EOPNOTSUPP,
        BlockError::NoResources => Errno::ENOMEM,
        _ => Errno::EIO,
    }
}
