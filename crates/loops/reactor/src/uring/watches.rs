//! Watched descriptors of the io_uring engine. Each has a multishot poll, which continues until it
//! is cancelled.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::opcode;
use io_uring::types::Fd;

use super::keys::{CompletionKind, pack};
use super::{Completion, Uring};
use crate::context::Context;
use crate::ids::TaskId;
use crate::slab::Key;

/// ```text
/// Armed ──unwatch──> Cancelled ──last completion──> (gone)
///   └───error, hang-up───> Ended ──unwatch──> (gone)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WatchState {
    /// A poll is in flight.
    Armed,
    /// The caller has stopped watching. The kernel has not confirmed the cancellation yet.
    Cancelled,
    /// The poll has ended, and the watch causes no more events.
    Ended,
}

pub(super) struct Watch {
    task: TaskId,
    descriptor: OwnedFd,
    state: WatchState,
}

impl Uring {
    pub(crate) fn watch(&mut self, task: TaskId, descriptor: OwnedFd) -> io::Result<Key> {
        refuse_files(&descriptor)?;
        let key = self.watches.insert(Watch { task, descriptor, state: WatchState::Armed });
        self.arm_watch(key);
        Ok(key)
    }

    /// Stops a watch. The slot and the descriptor stay until the kernel has released the
    /// descriptor.
    pub(crate) fn unwatch(&mut self, key: Key) {
        let Some(watch) = self.watches.find_mut(key) else { return };
        match watch.state {
            WatchState::Armed => {
                watch.state = WatchState::Cancelled;
                self.cancel(CompletionKind::Watch, key);
            }
            WatchState::Cancelled => {}
            WatchState::Ended => drop(self.watches.remove(key)),
        }
    }

    fn arm_watch(&mut self, key: Key) {
        let watch = self.watches.find(key).expect("an armed watch is listed");
        let fd = Fd(watch.descriptor.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
        // SAFETY: a poll refers to no memory. The descriptor stays open until the last completion
        // of the poll.
        unsafe { self.ring.push(entry.user_data(pack(CompletionKind::Watch, key))) };
    }

    pub(super) fn complete_watch(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let key = completion.key;
        let watch = self.watches.find_mut(key).expect("the watch exists until its last completion");
        if watch.state == WatchState::Cancelled {
            if !completion.more() {
                self.watches.remove(key);
            }
            return;
        }
        cx.tasks.mark_ready(watch.task);
        if completion.more() {
            return;
        }
        // If the kernel ended the poll for lack of resources, start a new one. It misses nothing:
        // the descriptor is still readable, because no code reads it.
        let hung_up = (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) as usize;
        if completion.result().is_ok_and(|events| events & hung_up == 0) {
            self.arm_watch(key);
        } else {
            watch.state = WatchState::Ended;
        }
    }
}

/// Refuses files, which are always readable and would cause events without end.
fn refuse_files(descriptor: &OwnedFd) -> io::Result<()> {
    use rustix::fs::FileType;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(descriptor)?.st_mode);
    match kind {
        FileType::RegularFile | FileType::Directory | FileType::BlockDevice => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "a file is always readable"))
        }
        _ => Ok(()),
    }
}
