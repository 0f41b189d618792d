//! Notifications of changes of a namespace.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kind of a change of a namespace. The change is already in effect when watchers are notified.
/// Watchers query the namespace for the new state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// The [geometry](crate::Namespace::geometry) has changed: the capacity, whether the namespace
    /// is writable, or whether it has a volatile cache.
    Geometry,
    /// The [availability](crate::Namespace::availability), or the state of a part that determines
    /// it, has changed.
    Availability,
    /// Data acknowledged since the last flush may be lost, for example because the machine that
    /// cached it has restarted. The namespace reports this before it executes another operation.
    Loss,
    /// The blocks may no longer hold the data that users wrote. The underlying file or disk was
    /// truncated, or another one may have replaced it, for example while it was disconnected. The
    /// namespace reports this before it executes another operation.
    Contents,
    /// The UUIDs that the namespace's [parts](crate::Namespace::parts) report have changed.
    Parts,
}

/// Whether a namespace can execute operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Availability {
    /// Operations proceed.
    Ready,
    /// Operations wait, for example for a connection.
    Waiting,
    /// Operations fail permanently.
    Gone,
}

type Callback = dyn Fn(Change) + Send + Sync;

#[derive(Default)]
struct Watchers {
    callbacks: Mutex<Vec<(u64, Arc<Callback>)>>,
    next: AtomicU64,
    generation: AtomicU64,
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Arc<Callback>)>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watchers of a namespace's changes. All clones share the watchers.
#[derive(Clone, Default)]
pub struct Changes(Arc<Watchers>);

impl Changes {
    /// Creates a value without watchers.
    #[must_use]
    pub fn new() -> Changes {
        Changes::default()
    }

    /// Calls `callback` after every later change, on the thread that calls [`tell`](Self::tell).
    /// The callback must be quick and must not drop the namespace. A watcher that needs the current
    /// state must read it once after this call.
    pub fn watch(&self, callback: impl Fn(Change) + Send + Sync + 'static) -> Watch {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.lock().push((id, Arc::new(callback)));
        Watch { watchers: Arc::clone(&self.0), id }
    }

    /// Notifies all watchers. The namespace calls this function after the change. During the call,
    /// the namespace must not hold a lock that its getters take.
    pub fn tell(&self, change: Change) {
        self.0.generation.fetch_add(1, Ordering::AcqRel);
        // Do not hold the lock during the calls: a callback may add or drop a watch.
        let callbacks = self.0.lock().clone();
        callbacks.iter().for_each(|(_, callback)| callback(change));
    }

    /// Whether there are watchers. If not, the caller need not prepare a notification.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Returns the number of changes so far. The call is cheap.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Changes({} reported)", self.generation())
    }
}

/// Keeps a callback of [`Changes::watch`] registered. Dropping it deregisters the callback. After
/// the drop, one call may still be in progress.
#[must_use = "dropping the watch removes the callback"]
pub struct Watch {
    watchers: Arc<Watchers>,
    id: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watchers.lock().retain(|(id, _)| *id != self.id);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_watch_reports_changes_until_it_is_dropped() {
        let (changes, heard) = (Changes::new(), Arc::new(AtomicUsize::new(0)));
        changes.tell(Change::Geometry);
        let count = Arc::clone(&heard);
        let watch = changes.watch(move |change| {
            assert_eq!(change, Change::Availability);
            count.fetch_add(1, Ordering::SeqCst);
        });
        changes.clone().tell(Change::Availability);
        assert_eq!((heard.load(Ordering::SeqCst), changes.generation()), (1, 2));
        drop(watch);
        changes.tell(Change::Availability);
        assert_eq!((heard.load(Ordering::SeqCst), Arc::strong_count(&heard)), (1, 1));
    }

    #[test]
    fn a_callback_may_add_and_drop_watches() {
        let changes = Changes::new();
        let (place, watches) = (changes.clone(), Arc::new(Mutex::new(Vec::new())));
        let kept = Arc::clone(&watches);
        let watch = changes.watch(move |_| {
            let mut kept = kept.lock().unwrap();
            kept.clear();
            kept.push(place.watch(|_| {}));
        });
        changes.tell(Change::Geometry);
        changes.tell(Change::Geometry);
        assert_eq!((watches.lock().unwrap().len(), changes.0.lock().len()), (1, 2));
        drop(watch);
    }
}
