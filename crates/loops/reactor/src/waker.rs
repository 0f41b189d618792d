//! [`Waker`]: marks a task ready from any thread.
//!
//! The loop and the wakers share one state: `AWAKE` (the loop will check for wakes before it
//! sleeps), `NOTIFIED` (a wake is pending) or `SLEEPING` (a wake needs a system call). So any
//! number of wakes costs at most one system call per sleep.

use std::fmt;
use std::sync::{OnceLock, PoisonError};

use crate::ids::TaskId;
// The standard library's types, or in `tests/wakes.rs` loom's, which try every order of threads.
use crate::sync::{Arc, AtomicBool, AtomicU8, Mutex, Ordering};

const AWAKE: u8 = 0;
const NOTIFIED: u8 = 1;
const SLEEPING: u8 = 2;

/// Ends the loop's sleep; each engine has its own.
pub(crate) trait Alarm: Send + Sync {
    fn ring(&self);
}

/// A woken task. Holds no reference to the shared state, which may itself hold this entry for ever.
pub(crate) struct Woken {
    queued: Arc<AtomicBool>,
    task: TaskId,
}

/// The part of a loop that other threads share.
pub(crate) struct WakerShared {
    state: AtomicU8,
    woken: Mutex<Vec<Woken>>,
    alarm: OnceLock<Box<dyn Alarm>>,
}

impl WakerShared {
    pub(crate) fn new() -> Arc<WakerShared> {
        Arc::new(WakerShared {
            state: AtomicU8::new(AWAKE),
            woken: Mutex::new(Vec::new()),
            alarm: OnceLock::new(),
        })
    }

    pub(crate) fn set_alarm(&self, alarm: Box<dyn Alarm>) {
        assert!(self.alarm.set(alarm).is_ok(), "the alarm is set once");
    }

    /// Makes the loop check the data from other threads.
    pub(crate) fn notify(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == SLEEPING
            && let Some(alarm) = self.alarm.get()
        {
            alarm.ring();
        }
    }

    pub(crate) fn is_notified(&self) -> bool {
        self.state.load(Ordering::Relaxed) == NOTIFIED
    }

    /// Called when the loop is about to sleep; false if it must not sleep, because a wake is
    /// pending.
    pub(crate) fn try_sleep(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(AWAKE, SLEEPING, success, failure).is_ok()
    }

    /// Called when the loop checks for wakes; true if one was pending.
    pub(crate) fn awake(&self) -> bool {
        self.state.load(Ordering::Relaxed) != AWAKE
            && self.state.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }

    /// Passes the woken tasks to `found`. `scratch` must be empty; its capacity is reused.
    pub(crate) fn drain(&self, scratch: &mut Vec<Woken>, mut found: impl FnMut(TaskId)) {
        std::mem::swap(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner), scratch);
        for Woken { queued, task } in scratch.drain(..) {
            // Clear the mark before the task runs, so that later wakes queue the task again. A
            // swap, so that the task sees the data of every thread that found the mark set.
            queued.swap(false, Ordering::AcqRel);
            found(task);
        }
    }
}

/// Marks its task ready from any thread, ending the loop's sleep. Cheap when the task is already
/// marked.
#[derive(Clone)]
pub struct Waker {
    shared: Arc<WakerShared>,
    /// True between a wake and the loop's check. Clones share it.
    queued: Arc<AtomicBool>,
    task: TaskId,
}

impl Waker {
    pub(crate) fn new(shared: Arc<WakerShared>, task: TaskId) -> Waker {
        Waker { shared, queued: Arc::new(AtomicBool::new(false)), task }
    }

    /// Marks the task ready. Does nothing if the task, or the reactor, no longer exists.
    pub fn wake(&self) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut woken = self.shared.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.push(Woken { queued: Arc::clone(&self.queued), task: self.task });
        drop(woken);
        self.shared.notify();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waker({:?})", self.task)
    }
}
