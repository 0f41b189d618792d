//! A counter of the group's changes. Other threads can wait for the next change.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The number of changes of the group so far, as this member has seen them.
#[derive(Clone, Default, Debug)]
pub struct Changes(Arc<(Mutex<u64>, Condvar)>);

impl Changes {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) {
        *self.lock() += 1;
        self.0.1.notify_all();
    }

    /// Waits until the number of changes differs from `seen`, or for `limit`. Returns the number.
    #[must_use]
    pub fn wait(&self, seen: u64, limit: Duration) -> u64 {
        let waited = self.0.1.wait_timeout_while(self.lock(), limit, |now| *now == seen);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
