//! Functions that combine futures.

use super::Local;
use farblock_reactor::os;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

/// Runs all futures concurrently and waits until all have completed.
pub(crate) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, done) in waiting.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(output) = future.as_mut().poll(context)
            {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Returns the output of `future`. If `other` completes first, drops `future` and returns `None`.
pub(crate) async fn unless<F: Future>(other: impl Future, future: F) -> Option<F::Output> {
    let (mut other, mut future) = (pin!(other), pin!(future));
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        other.as_mut().poll(context).map(|_| None)
    })
    .await
}

impl Local {
    /// Returns the output of `future`. If `deadline` passes first, drops `future` and returns
    /// `None`.
    pub(crate) async fn until<F: Future>(&self, deadline: Instant, future: F) -> Option<F::Output> {
        if deadline <= os::now() {
            return None;
        }
        unless(self.sleep_until(deadline), future).await
    }
}
