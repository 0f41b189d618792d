//! The state that WinSpd's threads, the worker and the server share: waiting requests, spare
//! buffers, and the progress of a stop.

use crate::limits;
use farblock_block::Geometry;
use farblock_frontend::Disk;
use farblock_reactor::{Buffer, Waker};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
}

pub(crate) enum Command {
    Read(Range),
    /// The buffer is as long as the largest transfer, and starts with the data.
    Write(Range, Buffer, Fua),
    Flush,
    Unmap(Vec<Range>),
}

/// True if a write must be durable when the server answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fua(pub(crate) bool);

pub(crate) struct SpdRequest {
    /// The request's hint (identifier). Windows may reuse the hint after it has abandoned this
    /// request.
    pub(crate) hint: u64,
    pub(crate) command: Command,
}

/// The kind of a stop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum End {
    /// The server does not stop.
    Never,
    /// The server stops after it has answered all accepted requests and flushed their writes.
    Drained,
    /// The server stops at once.
    Forced,
}

#[derive(Debug)]
struct UnitState {
    requests: Vec<SpdRequest>,
    /// The number of requests that the server has accepted and not answered.
    accepted: usize,
    end: End,
    resized: bool,
    /// True after the worker has ended.
    finished: bool,
    /// True after WinSpd has sent its last request, because the disk was removed.
    dispatched_all: bool,
}

impl std::fmt::Debug for SpdRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "request {:#x}", self.hint)
    }
}

/// The state that all threads of a server share.
pub(crate) struct UnitShared {
    disk: Disk,
    max_transfer_bytes: u32,
    state: Mutex<UnitState>,
    /// Signals that a request may be accepted, or that a stop has made progress.
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

    /// The maximum length of one request, in bytes.
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

    /// Accepts a request. Waits while the server has no room for it. Returns false if the server is
    /// stopping and will not answer the request.
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
        // Wake the worker only for the first request, because the worker takes all of them.
        if is_first {
            self.wake();
        }
        true
    }

    /// Moves the waiting requests into `requests`, which must be empty. Returns the kind of stop,
    /// if one was requested.
    pub(crate) fn take_requests(&self, requests: &mut Vec<SpdRequest>) -> End {
        let mut state = self.state();
        std::mem::swap(&mut state.requests, requests);
        if std::mem::take(&mut state.resized) {
            tracing::info!(
                "the disk's size changed, but WinSpd cannot notify Windows: detach the disk and \
                 attach it again"
            );
        }
        state.end
    }

    /// True if the worker has not taken all requests yet.
    pub(crate) fn has_requests(&self) -> bool {
        !self.state().requests.is_empty()
    }

    /// Subtracts requests that the worker has answered, or will not answer, from the accepted ones.
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

    /// Requests a stop. A forced stop replaces a stop that drains, but not the other way round.
    pub(crate) fn stop(&self, end: End) {
        let mut state = self.state();
        state.end = state.end.max(end);
        drop(state);
        self.changed.notify_all();
        self.wake();
    }

    /// Records that the worker has exited.
    pub(crate) fn finish(&self) {
        let mut state = self.state();
        state.finished = true;
        state.end = state.end.max(End::Drained);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits at most `time` until the worker has exited. Returns false on timeout.
    pub(crate) fn wait_finished(&self, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), time, |state| !state.finished);
        waited.unwrap_or_else(PoisonError::into_inner).0.finished
    }

    /// Records that WinSpd sends no more requests.
    pub(crate) fn dispatched_all(&self) {
        self.state().dispatched_all = true;
        // WinSpd has removed the disk. Flush now: the program that runs the server may call
        // `is_gone` only later.
        self.stop(End::Drained);
    }

    pub(crate) fn has_dispatched_all(&self) -> bool {
        self.state().dispatched_all
    }

    /// Takes a buffer as long as the largest transfer, with undefined content.
    pub(crate) fn take_buffer(&self) -> Buffer {
        let spare = self.spares.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Buffer::new(self.max_transfer_bytes as usize))
    }

    /// Keeps a buffer for a later request, unless enough spare buffers exist.
    pub(crate) fn give_buffer(&self, buffer: Buffer) {
        assert!(
            buffer.len() == self.max_transfer_bytes as usize,
            "the buffer does not have the length of a transfer"
        );
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        if spares.len() < limits::SPARE_BUFFERS {
            spares.push(buffer);
        }
    }
}
