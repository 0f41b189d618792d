//! File operations of the io_uring engine.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::opcode;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags};

use super::keys::{CompletionKind, pack};
use super::{Completion, Uring};
use crate::context::Context;
use crate::file_op::FileOp;
use crate::ids::TaskId;
use crate::slab::Key;

/// The maximum number of bytes that one system call transfers. Further calls transfer the rest.
const BYTES_PER_CALL: usize = 1 << 30;

pub(super) struct FileSlot {
    file: Arc<File>,
    in_flight: usize,
    /// Whether the caller has removed the file. The engine then closes it after its last operation.
    removed: bool,
}

impl FileSlot {
    pub(super) fn new(file: Arc<File>) -> FileSlot {
        FileSlot { file, in_flight: 0, removed: false }
    }
}

/// The stage of a file operation. If the file system does not support `RWF_DSYNC`, a durable write
/// becomes a plain write and a sync.
///
/// ```text
/// Direct ──file system without RWF_DSYNC──> Plain ──all data written──> Sync
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The operation as requested.
    Direct,
    /// A durable write without the `RWF_DSYNC` flag.
    Plain,
    /// The sync that makes the write durable.
    Sync,
}

/// A file operation in flight, with its buffer.
pub(super) struct Operation {
    task: TaskId,
    file: Key,
    user_data: u64,
    op: FileOp,
    /// The number of bytes transferred so far.
    done: usize,
    stage: Stage,
    /// Whether a kernel thread should execute the operation, because the direct attempt failed with
    /// `EAGAIN`.
    from_thread: bool,
}

impl Uring {
    /// Removes a file. The slot stays until the last operation of the file has completed.
    pub(crate) fn remove_file(&mut self, key: Key) {
        if let Some(slot) = self.files.find_mut(key) {
            slot.removed = true;
            if slot.in_flight == 0 {
                self.files.remove(key);
            }
        }
    }

    pub(crate) fn file(
        &mut self,
        cx: &mut Context<'_>,
        task: TaskId,
        key: Key,
        op: FileOp,
        user_data: u64,
    ) {
        let Some(slot) = self.files.find_mut(key).filter(|slot| !slot.removed) else {
            return cx.deliver_file(task, user_data, op, Err(io::ErrorKind::NotFound.into()));
        };
        slot.in_flight += 1;
        let stage = Stage::Direct;
        let operation =
            Operation { task, file: key, user_data, op, done: 0, stage, from_thread: false };
        let key = self.operations.insert(operation);
        self.submit_file(key);
    }

    fn submit_file(&mut self, key: Key) {
        let operation = self.operations.find_mut(key).expect("the operation is in flight");
        let slot = self
            .files
            .find(operation.file)
            .expect("the file is open while its operation is in flight");
        let mut entry = operation.entry(Fd(slot.file.as_raw_fd()));
        if operation.from_thread {
            entry = entry.flags(Flags::ASYNC);
        }
        // SAFETY: the operation's slot owns the buffer, and no other code accesses it until the
        // completion.
        unsafe { self.ring.push(entry.user_data(pack(CompletionKind::File, key))) };
    }

    pub(super) fn complete_file(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let key = completion.key;
        let operation =
            self.operations.find_mut(key).expect("the operation was in flight until now");
        let Some(result) = operation.advance(&completion) else {
            return self.submit_file(key);
        };
        let operation = self.operations.remove(key).expect("the operation was found just now");
        cx.deliver_file(operation.task, operation.user_data, operation.op, result);
        let slot = self
            .files
            .find_mut(operation.file)
            .expect("the file is open while its operation is in flight");
        slot.in_flight -= 1;
        if slot.removed && slot.in_flight == 0 {
            self.files.remove(operation.file);
        }
    }
}

impl Operation {
    /// Returns the next system call of this operation.
    fn entry(&mut self, fd: Fd) -> Entry {
        let (done, stage) = (self.done, self.stage);
        let len_from = |len: usize| (len - done).min(BYTES_PER_CALL) as u32;
        let data_sync = opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build();
        match &mut self.op {
            FileOp::Read { buffer, offset } => {
                let len = len_from(buffer.len());
                let into = buffer[done..].as_mut_ptr();
                opcode::Read::new(fd, into, len).offset(*offset + done as u64).build()
            }
            FileOp::Write { .. } if stage == Stage::Sync => data_sync,
            FileOp::Write { buffer, offset, durable } => {
                let flags = if *durable && stage == Stage::Direct { libc::RWF_DSYNC } else { 0 };
                let write = opcode::Write::new(fd, buffer[done..].as_ptr(), len_from(buffer.len()));
                write.offset(*offset + done as u64).rw_flags(flags).build()
            }
            FileOp::Sync => data_sync,
            FileOp::PunchHole { offset, len } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, *len).offset(*offset).mode(mode).build()
            }
            FileOp::ZeroRange { offset, len } => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, *len).offset(*offset).mode(mode).build()
            }
        }
    }

    /// Processes the result of a system call. `None`: the operation needs another call.
    fn advance(&mut self, completion: &Completion) -> Option<io::Result<()>> {
        match completion.errno() {
            None => {}
            Some(libc::EINTR) => return None,
            Some(libc::EAGAIN) => {
                self.from_thread = true;
                return None;
            }
            Some(libc::EOPNOTSUPP) if self.is_durable_write() && self.stage == Stage::Direct => {
                self.stage = Stage::Plain;
                return None;
            }
            // Direct I/O cannot continue at an unaligned offset. A read that was cut short there
            // has reached the end of the file.
            Some(libc::EINVAL) if self.done > 0 && matches!(self.op, FileOp::Read { .. }) => {
                return Some(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            Some(_) => return Some(completion.result().map(drop)),
        }
        let count = completion.result().expect("errors are handled above");
        let (len, at_end) = match &self.op {
            FileOp::Read { buffer, .. } => (buffer.len(), io::ErrorKind::UnexpectedEof),
            FileOp::Write { buffer, .. } => (buffer.len(), io::ErrorKind::WriteZero),
            FileOp::Sync | FileOp::PunchHole { .. } | FileOp::ZeroRange { .. } => {
                return Some(Ok(()));
            }
        };
        if self.stage == Stage::Sync {
            return Some(Ok(()));
        }
        self.done += count;
        if self.done < len {
            return if count == 0 { Some(Err(at_end.into())) } else { None };
        }
        if self.stage == Stage::Plain {
            self.stage = Stage::Sync;
            return None;
        }
        Some(Ok(()))
    }

    fn is_durable_write(&self) -> bool {
        matches!(self.op, FileOp::Write { durable: true, .. })
    }
}
