//! [`Waker`]: marks a task ready from any thread.
//!
//! The loop and its wakers share one state. `AWAKE`: the loop will check for wakes before it
//! sleeps. `NOTIFIED`: a wake is pending. `SLEEPING`: a wake needs a system call. So between two
//! sleeps, any number of wakes need at most one system call.

use std::fmt;
use std::sync::{OnceLock, PoisonError};

use crate::ids::TaskId;
// These are the standard library's types. In `tests/wakes.rs` they are loom's types, which try
// every order of threads.
use crate::sync::{Arc, AtomicBool, AtomicU8, Mutex, Ordering};

const AWAKE: u8 = 0;
const NOTIFIED: u8 = 1;
const SLEEPING: u8 = 2;

/// Ends the loop's sleep. Each engine implements it.
pub(crate) trait Alarm: Send + Sync {
    fn ring(&self);
}

/// A woken task. Holds no reference to the shared state: the shared state may hold this entry, and
/// a reference cycle would leak both.
pub(crate) struct Woken {
    queued: Arc<AtomicBool>,
    task: TaskId,
}

/// The state of a loop that other threads share.
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

    /// Makes the loop check for data from other threads.
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

    /// The loop calls this function before it sleeps. Returns `false` if it must not sleep, because
    /// a wake is pending.
    pub(crate) fn try_sleep(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(AWAKE, SLEEPING, success, failure).is_ok()
    }

    /// The loop calls this function when it checks for wakes. Returns `true` if a wake was pending.
    pub(crate) fn awake(&self) -> bool {
        self.state.load(Ordering::Relaxed) != AWAKE
            && self.state.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }

    /// Passes the woken tasks to `found`. `scratch` must be empty; this function reuses its
    /// capacity.
    pub(crate) fn drain(&self, scratch: &mut Vec<Woken>, mut found: impl FnMut(TaskId)) {
        std::mem::swap(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner), scratch);
        for Woken { queued, task } in scratch.drain(..) {
            // Clear the mark before the task runs, so that later wakes queue the task again. Use a
            // swap, so that the task sees the data of every thread that found the mark set.
            queued.swap(false, Ordering::AcqRel);
            found(task);
        }
    }
}

/// Marks its task as ready from any thread, which ends the loop's sleep. The call is cheap when the
/// task is already marked.
#[derive(Clone)]
pub struct Waker {
    shared: Arc<WakerShared>,
    /// True between a wake and the loop's check for wakes. All clones share it.
    queued: Arc<AtomicBool>,
    task: TaskId,
}

impl Waker {
    pub(crate) fn new(shared: Arc<WakerShared>, task: TaskId) -> Waker {
        Waker { shared, queued: Arc::new(AtomicBool::new(false)), task }
    }

    /// Marks the task as ready. Does nothing if the task or the reactor no longer exists.
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
