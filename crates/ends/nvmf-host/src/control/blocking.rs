//! What may take its time, on a thread of its own for as long as it takes.

use super::reply::reply;
use crate::error::Error;
use farblock_reactor::os;

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
