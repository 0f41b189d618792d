//! The state that the threads of a FUSE server share: the namespace's geometry, and the cores'
//! inboxes.

use super::callers::Caller;
use super::inboxes::{Inboxes, Message, Work};
use super::limits;
use farblock_block::{BlockError, Command, Geometry};
use farblock_frontend::Disk;
use farblock_reactor::{Buffer, allowance};
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The reply object of a request. Dropping an unused reply answers the request with an I/O error.
pub(super) enum Reply {
    Read(ReplyData),
    Write(ReplyWrite),
    Done(ReplyEmpty),
    /// The caller already has its answer.
    Sent,
}

impl Reply {
    pub(super) fn error(self, errno: Errno) {
        match self {
            Reply::Read(reply) => reply.error(errno),
            Reply::Write(reply) => reply.error(errno),
            Reply::Done(reply) => reply.error(errno),
            Reply::Sent => {}
        }
    }
}

/// A request for a core. Its range was inside the namespace when the reader thread checked it.
pub(super) struct Job {
    pub(super) reply: Reply,
    pub(super) caller: Caller,
    pub(super) command: Command,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) fua: bool,
    /// The data of a write, in a buffer of whole blocks that covers the write. In the first and
    /// last block, the bytes outside of the write are undefined.
    pub(super) buffer: Option<Buffer>,
}

impl Work for Job {
    fn held_bytes(&self) -> usize {
        if self.command.moves_data() { self.length as usize } else { 0 }
    }

    fn fail(self) {
        self.reply.error(Errno::EIO);
    }
}

/// The state that all threads of a server share.
pub(super) struct MountShared {
    disk: Disk,
    /// The namespace's size in bytes, for the threads that read requests.
    capacity_bytes: AtomicU64,
    inboxes: Inboxes<Job>,
    next_reader: AtomicUsize,
    /// True if the kernel can resend unanswered requests (Linux 6.9).
    resends: AtomicBool,
}

impl MountShared {
    pub(super) fn new(disk: Disk) -> MountShared {
        let capacity_bytes = AtomicU64::new(disk.geometry().capacity_bytes());
        MountShared {
            disk,
            capacity_bytes,
            inboxes: Inboxes::new(allowance::portion(
                limits::CORE_BUFFER_BYTES,
                allowance::loops(),
            )),
            next_reader: AtomicUsize::new(0),
            resends: AtomicBool::new(false),
        }
    }

    pub(super) fn inboxes(&self) -> &Inboxes<Job> {
        &self.inboxes
    }

    pub(super) fn set_resends(&self, can: bool) {
        self.resends.store(can, Ordering::Relaxed);
    }

    pub(super) fn resends(&self) -> bool {
        self.resends.load(Ordering::Relaxed)
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

    /// Reads the namespace's size again, and posts the change to the cores.
    pub(super) fn resized(&self) {
        self.capacity_bytes.store(self.geometry().capacity_bytes(), Ordering::Relaxed);
        self.inboxes.post_all(Message::Resized);
    }

    /// Chooses the core for a new reader thread. The thread sends all its requests to this core.
    pub(super) fn core_of_reader(&self) -> usize {
        self.next_reader.fetch_add(1, Ordering::Relaxed) % self.inboxes.count()
    }
}

/// The error number that the kernel receives when a block operation fails.
pub(super) fn errno(command: Command, error: BlockError) -> Errno {
    match error {
        BlockError::OutOfRange if command.writes() => Errno::ENOSPC,
        BlockError::TooLarge => Errno::EINVAL,
        BlockError::ReadOnly => Errno::EROFS,
        BlockError::NoSpace => Errno::ENOSPC,
        BlockError::Conflict => Errno::from_i32(libc::EBADE),
        BlockError::Denied => Errno::EACCES,
        BlockError::NotReady => Errno::from_i32(libc::EREMOTEIO),
        BlockError::AtomicExceeded => Errno::EINVAL,
        BlockError::Unsupported => Errno::EOPNOTSUPP,
        BlockError::NoResources => Errno::ENOMEM,
        _ => Errno::EIO,
    }
}
