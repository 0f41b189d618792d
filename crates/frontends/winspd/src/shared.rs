//! What WinSpd's threads, the one that works on their requests, and whoever started them share: a
//! mailbox, spare buffers, and how far the end has come.

use crate::limits;
use farblock_block::Geometry;
use farblock_frontend::Disk;
use farblock_reactor::{Buffer, Waker};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Blocks of one range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
}

/// What is to be done.
pub(crate) enum Command {
    Read(Range),
    /// The data are the first bytes of the buffer, which has the size of a whole transfer.
    Write(Range, Buffer, Fua),
    Flush,
    Unmap(Vec<Range>),
}

/// Whether a write has to be durable when it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fua(pub(crate) bool);

/// A request of WinSpd.
pub(crate) struct SpdRequest {
    /// Its name. Windows gives it to another request when it has given this one up.
    pub(crate) hint: u64,
    pub(crate) command: Command,
}

/// How it all ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum End {
    /// It does not.
    Never,
    /// When what was accepted is answered, and flushed.
    Drained,
    /// At once.
    Forced,
}

#[derive(Debug)]
struct UnitState {
    requests: Vec<SpdRequest>,
    /// Requests that were accepted and not answered.
    accepted: usize,
    end: End,
    resized: bool,
    /// The thread that works on requests is at its end.
    finished: bool,
    /// WinSpd sends no more requests: the disk is gone.
    dispatched_all: bool,
}

impl std::fmt::Debug for SpdRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "request {:#x}", self.hint)
    }
}

/// See the module's text.
pub(crate) struct UnitShared {
    disk: Disk,
    max_transfer_bytes: u32,
    state: Mutex<UnitState>,
    /// There is room for a request, or the end has come nearer.
    changed: Condvar,
    spares: Mutex<Vec<Buffer>>,
    waker: OnceLock<Waker>,
}

impl UnitShared {
    pub(crate) fn new(disk: Disk, max_transfer_bytes: u32) -> UnitShared {
        let state = UnitState {
            requests: Vec::with_capacity(limits::MAX_REQUESTS),
            accepted: 0,
            end: End::Never,
            resized: false,
            finished: false,
            dispatched_all: false,
        };
        UnitShared {
            disk,
            max_transfer_bytes,
            state: Mutex::new(state),
            changed: Condvar::new(),
            spares: Mutex::default(),
            waker: OnceLock::new(),
        }
    }

    pub(crate) fn set_waker(&self, waker: Waker) {
        assert!(self.waker.set(waker).is_ok(), "the waker is set once");
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    /// Bytes of data that one request moves at most.
    pub(crate) fn max_transfer_bytes(&self) -> u32 {
        self.max_transfer_bytes
    }

    fn state(&self) -> MutexGuard<'_, UnitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Takes a request, as soon as there is room for it. False, when the end has come: nobody will
    /// answer it.
    pub(crate) fn accept(&self, request: SpdRequest) -> bool {
        let mut state = self.state();
        while state.accepted >= limits::MAX_REQUESTS && state.end == End::Never {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.end != End::Never || state.finished {
            return false;
        }
        state.accepted += 1;
        let is_first = state.requests.is_empty();
        state.requests.push(request);
        drop(state);
        // Whoever was woken takes all that is there.
        if is_first {
            self.wake();
        }
        true
    }

    /// Moves what has come into `requests`, which must be empty, and says how it is to end.
    pub(crate) fn take_requests(&self, requests: &mut Vec<SpdRequest>) -> End {
        let mut state = self.state();
        std::mem::swap(&mut state.requests, requests);
        if std::mem::take(&mut state.resized) {
            tracing::info!(
                "the disk has another size now, which WinSpd cannot tell Windows: detach it and \
                 attach it again"
            );
        }
        state.end
    }

    /// Whether requests have come that nobody has taken yet.
    pub(crate) fn has_requests(&self) -> bool {
        !self.state().requests.is_empty()
    }

    /// This many requests were answered, or will not be.
    pub(crate) fn answered(&self, count: usize) {
        let mut state = self.state();
        state.accepted -= count;
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn accepted(&self) -> usize {
        self.state().accepted
    }

    pub(crate) fn resized(&self) {
        self.state().resized = true;
        self.wake();
    }

    /// Asks for the end. What was asked for stays, or becomes more urgent.
    pub(crate) fn stop(&self, end: End) {
        let mut state = self.state();
        state.end = state.end.max(end);
        drop(state);
        self.changed.notify_all();
        self.wake();
    }

    /// The thread that works on requests is at its end.
    pub(crate) fn finish(&self) {
        let mut state = self.state();
        state.finished = true;
        state.end = state.end.max(End::Drained);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the thread is at its end, or for this long. True if it is.
    pub(crate) fn wait_finished(&self, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), time, |state| !state.finished);
        waited.unwrap_or_else(PoisonError::into_inner).0.finished
    }

    /// WinSpd sends no more requests.
    pub(crate) fn dispatched_all(&self) {
        self.state().dispatched_all = true;
        // What was written is to be safe, even if nobody looks after the server for a while.
        self.stop(End::Drained);
    }

    pub(crate) fn has_dispatched_all(&self) -> bool {
        self.state().dispatched_all
    }

    /// A buffer of a whole transfer, with anything in it.
    pub(crate) fn take_buffer(&self) -> Buffer {
        let spare = self.spares.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Buffer::new(self.max_transfer_bytes as usize))
    }

    /// Keeps a buffer of a whole transfer for the next request.
    pub(crate) fn give_buffer(&self, buffer: Buffer) {
        assert!(buffer.len() == self.max_transfer_bytes as usize, "a whole transfer's buffer");
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        if spares.len() < limits::SPARE_BUFFERS {
            spares.push(buffer);
        }
    }
}
