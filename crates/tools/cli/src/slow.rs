//! What is waited for without an end, such as a disk on a share whose server is gone: nobody is to
//! wait for that without a word.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// What takes longer is named: longer than a file's lock is tried for, which has its own sentence,
/// and before a connection that gets no answer is given up.
const SOON: Duration = Duration::from_secs(4);

/// Does something with what has this name, and says so if that takes long.
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
        // It is only to be said: without a thread nobody says it.
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
