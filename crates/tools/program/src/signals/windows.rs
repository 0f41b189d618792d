//! Windows console events: Ctrl-C, Ctrl-Break, a closed window, and the end of the session. After
//! the last two, Windows kills the process at once, so unanswered NVMe commands may be incomplete.

use super::EXIT_CODE;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Tells whether a console event has requested a stop of this process.
#[derive(Clone)]
pub struct Stop {
    shared: Arc<SignalShared>,
}

#[derive(Default)]
struct SignalShared {
    requested: Mutex<bool>,
    changed: Condvar,
}

impl SignalShared {
    /// Ignores a poisoned lock: no code panics while holding it.
    fn requested(&self) -> MutexGuard<'_, bool> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stop {
    pub(super) fn try_install() -> io::Result<Stop> {
        let shared = Arc::new(SignalShared::default());
        let stop = Stop { shared: Arc::clone(&shared) };
        let handler = move || {
            let again = std::mem::replace(&mut *shared.requested(), true);
            if again {
                std::process::exit(EXIT_CODE);
            }
            shared.changed.notify_all();
        };
        ctrlc::set_handler(handler).map_err(io::Error::other)?;
        Ok(stop)
    }

    /// Does the same as `try_install`, which also handles a closed window.
    pub(super) fn try_install_with_hangup() -> io::Result<Stop> {
        Stop::try_install()
    }

    /// Whether an event has arrived.
    pub fn requested(&self) -> bool {
        *self.shared.requested()
    }

    /// Sleeps until an event arrives.
    pub fn wait(&self) {
        let requested = self.shared.requested();
        let waited = self.shared.changed.wait_while(requested, |requested| !*requested);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Calls `heard` for each event, on a thread.
pub fn on_each(heard: impl FnMut() + Send + 'static) -> io::Result<()> {
    ctrlc::set_handler(heard).map_err(io::Error::other)
}

/// Does nothing: Windows has no such signals.
pub fn outlive_others() -> io::Result<()> {
    Ok(())
}

/// Does nothing: Windows has no such limit.
pub fn survive_file_size_limit() {}
