//! A channel for one answer, for which a thread or a future can wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

struct ReplyState<T> {
    answer: Option<T>,
    /// Whether the sender has answered or was dropped.
    is_over: bool,
    waker: Option<Waker>,
}

struct ReplyShared<T>(Mutex<ReplyState<T>>);

impl<T> ReplyShared<T> {
    fn lock(&self) -> MutexGuard<'_, ReplyState<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, answer: Option<T>) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.answer = answer;
        state.is_over = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Sends the answer. Dropping the sender signals that there is no answer.
pub(crate) struct Sender<T>(Arc<ReplyShared<T>>);

/// Receives the answer, as a future or with [`Receiver::wait`]. Yields `None` if the sender was
/// dropped.
pub(crate) struct Receiver<T>(Arc<ReplyShared<T>>);

pub(crate) fn reply<T>() -> (Sender<T>, Receiver<T>) {
    let state = ReplyState { answer: None, is_over: false, waker: None };
    let shared = Arc::new(ReplyShared(Mutex::new(state)));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    pub(crate) fn send(self, answer: T) {
        self.0.end(Some(answer));
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

impl<T> Receiver<T> {
    /// Blocks the calling thread until the answer arrives. Must not be called on the control loop,
    /// since the loop may have to produce the answer.
    pub(crate) fn wait(self) -> Option<T> {
        super::wait(self)
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if state.is_over {
            return Poll::Ready(state.answer.take());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
