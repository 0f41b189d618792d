//! The part of each core's state that other threads may read.

use farblock_reactor::os;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct CoreStates(Mutex<Vec<CoreState>>);

#[derive(Clone, Copy, Default)]
struct CoreState {
    connections: usize,
    /// The system's identifier of the core's thread.
    thread: Option<u32>,
}

impl CoreStates {
    fn lock(&self) -> MutexGuard<'_, Vec<CoreState>> {
        self.0.lock().expect("no holder panics")
    }

    fn with(&self, core: usize, change: impl FnOnce(&mut CoreState)) {
        let mut all = self.lock();
        if all.len() <= core {
            all.resize_with(core + 1, CoreState::default);
        }
        change(&mut all[core]);
    }

    pub(crate) fn runs(&self, core: usize) {
        let thread = (!os::is_simulated()).then(this_thread).flatten();
        self.with(core, |seen| seen.thread = thread);
    }

    pub(crate) fn connected(&self, core: usize) {
        self.with(core, |seen| seen.connections += 1);
    }

    pub(crate) fn disconnected(&self, core: usize) {
        self.with(core, |seen| seen.connections -= 1);
    }

    /// Returns the core's number of connections, and its thread's processor time if the system
    /// reports it.
    pub(crate) fn look(&self, core: usize) -> (usize, Option<Duration>) {
        let seen = self.lock().get(core).copied().unwrap_or_default();
        (seen.connections, seen.thread.and_then(processor_time))
    }
}

#[cfg(target_os = "linux")]
fn this_thread() -> Option<u32> {
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok()
}

#[cfg(not(target_os = "linux"))]
fn this_thread() -> Option<u32> {
    None
}

/// Returns the processor time of a thread. It is the first number in the thread's `schedstat` file,
/// in nanoseconds.
fn processor_time(thread: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
