//! Runs blocking work on a separate thread: files, name resolution, calculations, and users'
//! callbacks.

use super::reply::reply;
use farblock_block::{Change, Changes};
use farblock_reactor::os;
use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    static IS_ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a helper thread, for whose work a future on the control loop waits.
pub(super) fn is_aside() -> bool {
    IS_ASIDE.try_with(Cell::get).unwrap_or(false)
}

/// Calls the listeners of a change on another thread, where they may block and may use the changed
/// object.
pub(crate) async fn tell(changes: &Changes, change: Change) {
    if !changes.is_watched() {
        return changes.tell(change);
    }
    let for_thread = changes.clone();
    if let Err(error) = blocking(move || for_thread.tell(change)).await {
        tracing::warn!("cannot notify the listeners of a change: {error}");
    }
}

/// The error if a function panicked on another thread. The log has the panic's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Panicked;

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a helper thread panicked")
    }
}

/// Runs a function on another thread, or on this thread if the system cannot start another.
///
/// # Errors
/// Fails if the function panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Panicked> {
    let (sender, answer) = reply();
    let act = Arc::new(Mutex::new(Some(act)));
    let take = |act: &Mutex<Option<_>>| act.lock().unwrap_or_else(PoisonError::into_inner).take();
    let for_thread = Arc::clone(&act);
    let run = move || {
        if let Some(act) = take(&for_thread) {
            IS_ASIDE.set(true);
            let result = act();
            IS_ASIDE.set(false);
            sender.send(result);
        }
    };
    if let Err(error) = os::spawn("farblock-aside".to_owned(), run) {
        tracing::warn!("cannot start a helper thread for the control loop: {error}");
        let act = take(&act).expect("no thread took the function");
        return Ok(act());
    }
    answer.await.ok_or(Panicked)
}
