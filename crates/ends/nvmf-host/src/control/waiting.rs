//! Blocks a thread until a future completes.

use farblock_reactor::os;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

#[derive(Default)]
struct Signal {
    is_given: Mutex<bool>,
    given: Condvar,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.lock() = true;
        self.given.notify_all();
    }
}

/// Blocks the calling thread until the future completes. Must not be called on a control loop,
/// where it would block other futures.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    debug_assert!(!super::is_here(), "a control loop would wait for itself");
    let signal = Arc::new(Signal::default());
    let waker = Waker::from(Arc::clone(&signal));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        os::wait_while(&signal.is_given, &signal.given, Duration::MAX, |is_given| !*is_given);
        *signal.lock() = false;
    }
}
