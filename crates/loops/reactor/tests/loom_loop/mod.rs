//! An event loop that sleeps until a wake-up, for loom tests of communication between threads. Loom
//! tries every order of threads. A test that includes this module needs `ids` at its root, and a
//! `sync` module with loom's types for `waker`.

#[path = "../../src/waker.rs"]
#[allow(dead_code, unreachable_pub)]
pub(crate) mod waker;

/// Replaces the crate's `ids` module, which `waker` uses.
pub(crate) mod ids {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct TaskId(pub(crate) u32);
}

use ids::TaskId;
use loom::sync::{Arc, Notify};
use waker::{Alarm, Waker, WakerShared};

/// Replaces the system call that wakes the loop.
struct NotifyAlarm(Arc<Notify>);

impl Alarm for NotifyAlarm {
    fn ring(&self) {
        self.0.notify();
    }
}

pub(crate) struct Loop {
    pub(crate) shared: Arc<WakerShared>,
    alarm: Arc<Notify>,
}

impl Loop {
    pub(crate) fn new() -> Loop {
        let (shared, alarm) = (WakerShared::new(), Arc::new(Notify::new()));
        shared.set_alarm(Box::new(NotifyAlarm(Arc::clone(&alarm))));
        Loop { shared, alarm }
    }

    pub(crate) fn waker(&self, task: u32) -> Waker {
        Waker::new(Arc::clone(&self.shared), TaskId(task))
    }

    /// Sleeps until a wake-up. Returns the woken tasks, if any.
    pub(crate) fn poll(&self) -> Vec<TaskId> {
        let mut ready = Vec::new();
        if self.shared.try_sleep() {
            self.alarm.wait();
        }
        if self.shared.awake() {
            self.shared.drain(&mut Vec::new(), |task| ready.push(task));
        }
        ready
    }
}

/// Runs `check` in every order of threads with at most two interruptions. All orders would take too
/// long, and two interruptions find most bugs, by loom's authors.
pub(crate) fn in_every_order(check: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(check);
}
