//! How a namespace tells of its changes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What changed about a namespace. What it is now is asked of the namespace, which is like that
/// already when it tells.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// Its [geometry](crate::Namespace::geometry): the capacity, whether it can be written, or
    /// whether it has a volatile cache.
    Geometry,
    /// Its [availability](crate::Namespace::availability), or what that is made of.
    Availability,
    /// What it has acknowledged since the last flush may be lost, as when the machine that had it
    /// in its cache was started anew. Told before anything is done after that.
    Loss,
    /// Its contents may not be what its users wrote: what stores it was cut short, replaced or
    /// swapped for a copy, or may have been while it was away. Told before it is used after that.
    Contents,
}

/// Whether operations on a namespace can be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Availability {
    /// They are carried out.
    Ready,
    /// They wait, for a connection for example.
    Waiting,
    /// They fail, and will.
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

/// Where a namespace tells of its changes. Clones are the same place.
#[derive(Clone, Default)]
pub struct Changes(Arc<Watchers>);

impl Changes {
    /// A place where nobody listens yet.
    #[must_use]
    pub fn new() -> Changes {
        Changes::default()
    }

    /// Has `callback` called after every change, by a thread of the namespace's: it is to be quick,
    /// and not to drop the namespace. What changed before is not told: whoever needs to know looks
    /// at the namespace once after this.
    pub fn watch(&self, callback: impl Fn(Change) + Send + Sync + 'static) -> Watch {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.lock().push((id, Arc::new(callback)));
        Watch { watchers: Arc::clone(&self.0), id }
    }

    /// Tells everybody who listens. For the namespace: after the change, and without a lock that
    /// looking at it needs.
    pub fn tell(&self, change: Change) {
        self.0.generation.fetch_add(1, Ordering::AcqRel);
        // Called without the lock: a callback may add or drop a watch.
        let callbacks = self.0.lock().clone();
        callbacks.iter().for_each(|(_, callback)| callback(change));
    }

    /// Whether anybody listens: if nobody does, telling takes no time.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// How many changes there were: a number that is cheap to look at.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Changes({} told)", self.generation())
    }
}

/// Keeps a callback in place that [`Changes::watch`] was given; dropping it ends that. One call may
/// be under way then.
#[must_use = "the callback is forgotten with the watch"]
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
    fn a_watch_hears_of_changes_until_it_is_dropped() {
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
    fn a_callback_may_watch_and_forget() {
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
