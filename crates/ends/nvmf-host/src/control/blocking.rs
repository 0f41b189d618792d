//! What may take its time, on a thread of its own for as long as it takes.

use super::reply::reply;
use crate::error::Error;
use farblock_block::{Change, Changes};
use farblock_reactor::os;

/// Tells of a change. Whoever listens may take its time, wait for locks, and use what changed.
pub(crate) async fn tell(changes: &Changes, change: Change) {
    if !changes.is_watched() {
        return changes.tell(change);
    }
    let for_thread = changes.clone();
    if let Err(error) = blocking(move || for_thread.tell(change)).await {
        tracing::warn!("nobody is told of a change: {error}");
    }
}

/// Does something on another thread.
///
/// # Errors
/// When there is no thread to be had, or it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (sender, answer) = reply();
    let run = move || sender.send(act());
    os::spawn("farblock-aside".to_owned(), run).map_err(Error::system)?;
    answer.await.ok_or_else(|| Error::Lost("a thread that was to help with it panicked".into()))
}
