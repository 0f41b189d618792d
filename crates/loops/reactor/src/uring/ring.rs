//! The two queues of io_uring: queues operations, submits them to the kernel, and collects
//! completions. Knows nothing about streams and files.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use io_uring::squeue::Entry;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, opcode};

use super::keys::{CompletionKind, NO_SLOT, pack, unpack};
use crate::context::Wait;
use crate::slab::Key;

/// The size of the submission queue, in operations.
const SUBMISSIONS: u32 = 512;
/// The size of the completion queue, in completions. The kernel keeps further completions in its
/// own memory.
const COMPLETIONS: u32 = 4096;
/// The io_uring operations that the engine requires.
const OPCODES: [(&str, u8); 11] = [
    ("accept", opcode::AcceptMulti::CODE),
    ("cancel", opcode::AsyncCancel::CODE),
    ("connect", opcode::Connect::CODE),
    ("recv", opcode::Recv::CODE),
    ("send", opcode::Send::CODE),
    ("sendmsg", opcode::SendMsg::CODE),
    ("read", opcode::Read::CODE),
    ("write", opcode::Write::CODE),
    ("fsync", opcode::Fsync::CODE),
    ("fallocate", opcode::Fallocate::CODE),
    ("poll", opcode::PollAdd::CODE),
];

/// One result from the kernel.
#[derive(Clone, Copy)]
pub(super) struct Completion {
    pub(super) kind: CompletionKind,
    pub(super) key: Key,
    result: i32,
    flags: u32,
}

impl Completion {
    pub(super) fn result(&self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }

    /// Returns the error number if the result is an error.
    pub(super) fn errno(&self) -> Option<i32> {
        (self.result < 0).then_some(-self.result)
    }

    /// Returns the identifier of the buffer that the kernel picked (see
    /// [`provided`](super::provided)).
    pub(super) fn buffer_id(&self) -> Option<u16> {
        io_uring::cqueue::buffer_select(self.flags)
    }

    /// Whether the socket had more bytes after this receive.
    pub(super) fn has_more_bytes(&self) -> bool {
        io_uring::cqueue::sock_nonempty(self.flags)
    }

    /// Whether the operation will have more completions.
    pub(super) fn more(&self) -> bool {
        io_uring::cqueue::more(self.flags)
    }
}

pub(super) struct Ring {
    uring: IoUring,
    /// Operations that did not fit in the submission queue: the kernel was short of memory, and
    /// accepted no entries.
    backlog: VecDeque<Entry>,
    /// The number of operations that will have further completions.
    in_flight: usize,
    enter_flags: EnterFlags,
}

impl Ring {
    /// Creates the queues. Checks that they work and that the kernel supports all required
    /// operations.
    pub(super) fn new() -> io::Result<Ring> {
        let uring: IoUring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_clamp()
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(SUBMISSIONS)
            .map_err(explain_setup)?;
        let parameters = uring.params();
        if !parameters.is_feature_ext_arg() || !parameters.is_feature_nodrop() {
            return Err(unsupported("the kernel's io_uring is too old"));
        }
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe).map_err(explain_use)?;
        for (name, code) in OPCODES {
            if !probe.is_supported(code) {
                return Err(unsupported(&format!("the kernel's io_uring has no {name}")));
            }
        }
        let mut enter_flags = EnterFlags::GETEVENTS;
        if parameters.is_feature_no_iowait() {
            // The loop waits for peers, not for disks. With this flag, the kernel counts that time
            // as idle, not as iowait.
            enter_flags |= EnterFlags::NO_IOWAIT;
        }
        let mut ring = Ring { uring, backlog: VecDeque::new(), in_flight: 0, enter_flags };
        ring.try_nop().map_err(explain_use)?;
        Ok(ring)
    }

    fn try_nop(&mut self) -> io::Result<()> {
        let nop = opcode::Nop::new().build().user_data(pack(CompletionKind::Probe, NO_SLOT));
        // SAFETY: a nop refers to no memory.
        unsafe { self.push(nop) };
        self.enter(Wait::Until(None))?;
        let mut completions = Vec::new();
        self.reap(&mut completions);
        match completions[..] {
            [completion] if completion.kind == CompletionKind::Probe => {
                completion.result().map(drop)
            }
            _ => Err(unsupported("io_uring did not complete a nop")),
        }
    }

    pub(super) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.uring.submitter()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues an operation. The next [`enter`](Ring::enter) submits it.
    ///
    /// # Safety
    ///
    /// All memory to which the entry refers must stay valid until its last completion, and no other
    /// code may access it.
    pub(super) unsafe fn push(&mut self, entry: Entry) {
        self.in_flight += 1;
        if !self.backlog.is_empty() {
            return self.backlog.push_back(entry);
        }
        // SAFETY: the caller guarantees that the memory of the entry stays valid.
        if unsafe { self.uring.submission().push(&entry) }.is_ok() {
            return;
        }
        // The queue is full, so submit its entries without waiting. If the kernel does not accept
        // them, append the new entry to the backlog, which keeps the order.
        if let Err(error) = self.uring.submitter().submit() {
            tracing::debug!(%error, "submitting a full queue");
        }
        // SAFETY: the caller guarantees that the memory of the entry stays valid.
        if unsafe { self.uring.submission().push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        }
    }

    fn push_backlog(&mut self) {
        let mut submission = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the caller of `push` guarantees that the memory of the entry stays valid.
            if unsafe { submission.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
    }

    /// Whether `enter` or `reap` has work to do.
    pub(super) fn has_work(&mut self) -> bool {
        if !self.uring.completion().is_empty() {
            return true;
        }
        let submission = self.uring.submission();
        submission.taskrun() || submission.cq_overflow() || !submission.is_empty()
    }

    /// Submits queued operations and waits for a completion, with one system call. Makes no system
    /// call if there is nothing to do.
    pub(super) fn enter(&mut self, wait: Wait) -> io::Result<()> {
        if !self.backlog.is_empty() {
            self.push_backlog();
        }
        let submission = self.uring.submission();
        let to_submit = submission.len() as u32;
        let idle = to_submit == 0 && !submission.taskrun() && !submission.cq_overflow();
        drop(submission);
        let flags = self.enter_flags;
        let submitter = self.uring.submitter();
        let result = match wait {
            Wait::No | Wait::Look if idle => Ok(0),
            // SAFETY: the counts are correct and there is no argument.
            Wait::No | Wait::Look => unsafe {
                submitter.enter::<SubmitArgs<'_, '_>>(to_submit, 0, flags.bits(), None)
            },
            // SAFETY: the counts are correct and there is no argument.
            Wait::Until(None) => unsafe {
                submitter.enter::<SubmitArgs<'_, '_>>(to_submit, 1, flags.bits(), None)
            },
            Wait::Until(Some(until)) => {
                let timeout = until.saturating_duration_since(Instant::now());
                let timeout = Timespec::from(timeout);
                let arguments = SubmitArgs::new().timespec(&timeout);
                let flags = flags | EnterFlags::EXT_ARG;
                // SAFETY: the counts are correct, and `EXT_ARG` announces the argument.
                unsafe { submitter.enter(to_submit, 1, flags.bits(), Some(&arguments)) }
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Timeout; signal; completions must be collected first; no memory now. Operations
                // that were not submitted stay in the queue.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Appends the available completions.
    pub(super) fn reap(&mut self, into: &mut Vec<Completion>) {
        let in_flight = &mut self.in_flight;
        into.extend(self.uring.completion().map(|entry| {
            let (kind, key) = unpack(entry.user_data());
            let completion = Completion { kind, key, result: entry.result(), flags: entry.flags() };
            if !completion.more() {
                *in_flight -= 1;
            }
            completion
        }));
    }
}

fn unsupported(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, reason)
}

fn explain_setup(error: io::Error) -> io::Error {
    let reason = match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring",
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden (kernel.io_uring_disabled, or a container's seccomp filter)"
        }
        Some(libc::EINVAL) => "the kernel's io_uring is too old (Linux 6.1 is needed)",
        _ => "io_uring cannot be set up",
    };
    io::Error::new(error.kind(), format!("{reason}: {error}"))
}

fn explain_use(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("io_uring can be set up but not used: {error}"))
}
