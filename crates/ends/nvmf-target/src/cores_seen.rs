//! What each core is at the moment, to those who look from outside.

use farblock_reactor::os;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// See the module's text.
#[derive(Default)]
pub(crate) struct CoresSeen(Mutex<Vec<Seen>>);

#[derive(Clone, Copy, Default)]
struct Seen {
    connections: usize,
    /// The number that the system gave its thread.
    thread: Option<u32>,
}

impl CoresSeen {
    fn lock(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().expect("no holder panics")
    }

    fn with(&self, core: usize, change: impl FnOnce(&mut Seen)) {
        let mut all = self.lock();
        if all.len() <= core {
            all.resize_with(core + 1, Seen::default);
        }
        change(&mut all[core]);
    }

    /// A core runs on the calling thread.
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

    /// Connections of a core, and the processor time of its thread, if the system tells that.
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

/// Nanoseconds on a processor are what the file begins with.
fn processor_time(thread: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
