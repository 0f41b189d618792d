//! [`Waker`]: marks a task as ready from any thread.
//!
//! The loop and its wakers share one state. `AWAKE`: the loop will check for wake-ups before it
//! sleeps. `NOTIFIED`: a wake-up is pending. `SLEEPING`: waking the loop needs a system call. So
//! any number of wake-ups between two sleeps needs at most one system call.

use std::fmt;
use std::sync::{OnceLock, PoisonError};

use crate::ids::TaskId;
// These types come from the standard library. `tests/wakes.rs` replaces them with loom's, which try
// every order of threads.
use crate::sync::{Arc, AtomicBool, AtomicU8, Mutex, Ordering};

const AWAKE: u8 = 0;
const NOTIFIED: u8 = 1;
const SLEEPING: u8 = 2;

/// Ends the loop's sleep. Each engine implements it.
pub(crate) trait Alarm: Send + Sync {
    fn ring(&self);
}

/// A woken task. Has no reference to the shared state, whose list may contain this entry: a cycle
/// of references would leak both.
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

    /// Makes the loop handle data from other threads, and wakes it if it sleeps.
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
    /// a wake-up is pending.
    pub(crate) fn try_sleep(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(AWAKE, SLEEPING, success, failure).is_ok()
    }

    /// The loop calls this function when it checks for wake-ups. Returns `true` if one was pending.
    pub(crate) fn awake(&self) -> bool {
        self.state.load(Ordering::Relaxed) != AWAKE
            && self.state.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }

    /// Passes the woken tasks to `found`. `scratch` must be empty; this function reuses its
    /// capacity.
    pub(crate) fn drain(&self, scratch: &mut Vec<Woken>, mut found: impl FnMut(TaskId)) {
        std::mem::swap(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner), scratch);
        for Woken { queued, task } in scratch.drain(..) {
            // Clear the mark before the task runs, so that a later wake-up queues the task again.
            // Use a swap: the task must see the data of every thread that found the mark set.
            queued.swap(false, Ordering::AcqRel);
            found(task);
        }
    }
}

/// A handle that marks its task as ready from any thread, and wakes the loop. A call is cheap if
/// the task is already marked.
#[derive(Clone)]
pub struct Waker {
    shared: Arc<WakerShared>,
    /// True between a wake-up and the loop's next check. All clones share it.
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
