//! Telling users of changes.

use super::hub::Hub;
use farblock_block::Geometry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What changed about a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The capacity, whether it can be written, or whether it has a volatile cache. The disk's
    /// geometry is this one already.
    Geometry(Geometry),
    /// The state of a path.
    Paths,
}

type Callback = dyn Fn(Change) + Send + Sync;

/// Who wants to know.
#[derive(Default)]
pub(super) struct Watchers {
    callbacks: Mutex<Vec<(u64, Arc<Callback>)>>,
    next: AtomicU64,
    generation: AtomicU64,
}

impl Watchers {
    /// How many changes there were.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn tell(&self, change: Change) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        // Called without the lock: a callback may add or drop a watch.
        let callbacks = self.lock().clone();
        callbacks.iter().for_each(|(_, callback)| callback(change));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Arc<Callback>)>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a callback in place that [`Disk::on_change`](super::Disk::on_change) was given; dropping
/// it ends that.
#[must_use = "the callback is forgotten with the watch"]
pub struct Watch {
    hub: Arc<Hub>,
    id: u64,
}

impl Watch {
    pub(super) fn new(hub: Arc<Hub>, callback: Arc<Callback>) -> Watch {
        let id = hub.watchers.next.fetch_add(1, Ordering::Relaxed);
        hub.watchers.lock().push((id, callback));
        Watch { hub, id }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.hub.watchers.lock().retain(|(id, _)| *id != self.id);
    }
}
