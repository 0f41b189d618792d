//! Warns of operations without a timeout that take long, such as opening a disk on a dead share.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The time until the warning: after the attempts to lock a file, which have their own message, and
/// before an unanswered connection times out.
const SOON: Duration = Duration::from_secs(4);

/// Runs `work` on the disk called `name`, and warns if it takes long.
pub(crate) fn named<T>(name: &dyn std::fmt::Display, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = channel::<()>();
    let name = &name.to_string();
    std::thread::scope(|scope| {
        let watch = move || {
            if is_done.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(
                    "{name} has not answered for {} seconds, and is waited for: see what is wrong \
                     with what stores it",
                    SOON.as_secs()
                );
            }
        };
        // If the thread cannot be started, only the warning is missing.
        let watched =
            std::thread::Builder::new().name("slow".to_owned()).spawn_scoped(scope, watch);
        if let Err(error) = watched {
            tracing::debug!("nobody looks whether {name} is slow: {error}");
        }
        let worked = work();
        drop(done);
        worked
    })
}
