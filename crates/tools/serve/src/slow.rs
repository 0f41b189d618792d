//! Logs a warning if an operation without a timeout takes long, such as opening a disk on a dead
//! network share.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The delay before the warning. It is longer than the wait for a file lock, which has its own
/// message, and shorter than the timeout of a connection.
const SOON: Duration = Duration::from_secs(4);

/// Runs `work`, which uses the disk `name`, and logs a warning if it takes longer than [`SOON`].
pub(crate) fn named<T>(name: &dyn std::fmt::Display, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = channel::<()>();
    let name = &name.to_string();
    std::thread::scope(|scope| {
        let watch = move || {
            if is_done.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(
                    "{name} has not answered for {} seconds, and this process still waits: check \
                     the storage under it",
                    SOON.as_secs()
                );
            }
        };
        // If the thread cannot be started, the work still runs, without the warning.
        let watched =
            std::thread::Builder::new().name("slow".to_owned()).spawn_scoped(scope, watch);
        if let Err(error) = watched {
            tracing::debug!("cannot watch whether {name} is slow: {error}");
        }
        let worked = work();
        drop(done);
        worked
    })
}
