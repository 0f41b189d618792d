//! State that a disk's paths, queues and users share. Queues read most of this state only after a
//! notification. For each operation they read only the geometry. The *keeper* of a path
//! ([`keeper`](super::keeper)) is the future that connects the path and reconnects it.

use super::cache::Cache;
use super::fencing::{Fencing, Journal, Predecessor, Record};
use super::latency::Meters;
use super::nesting::Nesting;
use super::options::DiskOptions;
use super::path::{Path, PathState, WaitLimit};
use super::paths::Paths;
use super::refusal::Refusal;
use super::session::Session;
use crate::control::Local;
use crate::error::Error;
use crate::known::{Hex, KnownNamespace};
use crate::namespace::ConnectedQueue;
use crate::shared::NamespaceState;
use farblock_block::{BlockError, Changes, Geometry};
use farblock_reactor::{Waker, os};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

/// A keeper's message to one of the disk's queues: a connected queue on the keeper's path, or the
/// reason why there is none.
pub(super) struct Arrival {
    // Rust drops fields in the order of their declarations. The queue must be dropped before
    // `session`, because only the keeper may drop the last reference to the session.
    pub(super) queue: Result<ConnectedQueue, Error>,
    pub(super) session: Arc<Session>,
}

/// Delivers connections and notifications to one of the disk's queues.
pub(super) struct Mailbox {
    pub(super) id: u64,
    waker: Waker,
    notified: AtomicBool,
    arrivals: Mutex<Vec<Arrival>>,
}

impl Mailbox {
    pub(super) fn post(&self, arrival: Arrival) {
        lock(&self.arrivals).push(arrival);
        self.notify();
    }

    fn notify(&self) {
        // A wake takes a lock, so wake the queue only if it has polled since the last wake.
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Whether the queue was notified since the last call.
    pub(super) fn take_notice(&self) -> bool {
        self.notified.load(Ordering::Relaxed) && self.notified.swap(false, Ordering::AcqRel)
    }

    pub(super) fn take_arrivals(&self) -> Vec<Arrival> {
        std::mem::take(&mut lock(&self.arrivals))
    }
}

/// Wakes the keepers of all paths.
#[derive(Default)]
pub(super) struct KeeperSignal(Mutex<Signal>);

#[derive(Default)]
struct Signal {
    count: u64,
    waiting: Vec<task::Waker>,
}

impl KeeperSignal {
    pub(super) fn notify(&self) {
        let mut signal = lock(&self.0);
        signal.count += 1;
        let waiting = std::mem::take(&mut signal.waiting);
        drop(signal);
        waiting.into_iter().for_each(task::Waker::wake);
    }

    /// The number of notifications so far.
    pub(super) fn notified(&self) -> u64 {
        lock(&self.0).count
    }

    /// Waits for the first notification after the count `notified`, or until `timeout` has passed.
    pub(super) async fn wait(&self, local: &Local, notified: u64, timeout: Duration) {
        local.until(os::now() + timeout, self.changed(notified)).await;
    }

    /// Waits until `holds` returns true. Code that changes the result of `holds` must call
    /// `notify`.
    pub(super) async fn until(&self, holds: impl Fn() -> bool) {
        loop {
            let notified = self.notified();
            if holds() {
                return;
            }
            self.changed(notified).await;
        }
    }

    async fn changed(&self, notified: u64) {
        poll_fn(|context| {
            let mut signal = lock(&self.0);
            if signal.count != notified {
                return Poll::Ready(());
            }
            if !signal.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                signal.waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// The result for operations that found no usable path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Wait, and check again at this time or after a notification.
    Wait(Option<Instant>),
    /// Fail with this error.
    Fail(BlockError),
}

/// The shared state of a disk; see the module documentation.
pub(super) struct Hub {
    pub(super) options: DiskOptions,
    pub(super) nsid: u32,
    pub(super) paths: Paths,
    /// The namespace to which every path must lead. A predecessor or the first connected path
    /// determines it.
    known: Mutex<Option<KnownNamespace>>,
    namespace: OnceLock<NamespaceState>,
    /// Whether the disk once told its users that completed writes are durable. Such users do not
    /// flush, so the disk must make every write durable (FUA).
    write_through: AtomicBool,
    mailboxes: Mutex<Vec<Arc<Mailbox>>>,
    next_mailbox: AtomicU64,
    /// Lost controllers that may still execute commands.
    lost: Mutex<Vec<Arc<Fencing>>>,
    pub(super) journal: Journal,
    pub(super) cache: Cache,
    /// The number of lost controllers that may still execute writes for which no user waits:
    /// controllers of a predecessor process, and controllers with writes that the disk reported as
    /// failed.
    indeterminate: AtomicUsize,
    pub(super) keepers: Arc<KeeperSignal>,
    stopping: AtomicBool,
    pub(super) changes: Changes,
    pub(super) meters: Meters,
    pub(super) refusal: Refusal,
    /// Whether an operation has succeeded since a keeper last reset this flag.
    has_progressed: AtomicBool,
    pub(super) nesting: Nesting,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave this state half-changed, so ignore poisoning.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(super) fn new(options: DiskOptions, nsid: u32, paths: Vec<Path>) -> Hub {
        Hub {
            options,
            nsid,
            paths: Paths::new(paths),
            known: Mutex::default(),
            namespace: OnceLock::new(),
            write_through: AtomicBool::new(false),
            mailboxes: Mutex::default(),
            next_mailbox: AtomicU64::new(0),
            lost: Mutex::default(),
            journal: Journal::default(),
            cache: Cache::default(),
            indeterminate: AtomicUsize::new(0),
            keepers: Arc::default(),
            stopping: AtomicBool::new(false),
            changes: Changes::new(),
            meters: Meters::default(),
            refusal: Refusal::default(),
            has_progressed: AtomicBool::new(false),
            nesting: Nesting::default(),
        }
    }

    /// Records that an operation succeeded.
    pub(super) fn note_progress(&self) {
        if !self.has_progressed.load(Ordering::Relaxed) {
            self.has_progressed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether an operation has succeeded since the last call.
    pub(super) fn take_progress(&self) -> bool {
        self.has_progressed.swap(false, Ordering::Relaxed)
    }

    /// Takes over the state of a dead process. From now on `record` stores the state for the next
    /// successor.
    pub(super) fn succeed(&mut self, predecessor: Predecessor, record: Box<dyn Record>) {
        let Predecessor { namespace, controllers } = predecessor;
        for life in &controllers {
            let path = self.paths.iter().position(|path| path.url == life.url);
            if namespace.as_ref().is_none_or(|it| it.volatile_cache) {
                self.cache.inherit(path, life);
            }
        }
        let forgets = os::has_mistake("host: a successor does not end its predecessor");
        let lost = controllers.iter().filter(|life| !life.is_mark() && !forgets).map(|life| {
            let fencing = Fencing::new(life.clone());
            fencing.lost_since();
            // The dead process may have left unfinished writes that this process does not know, and
            // that users may repeat.
            fencing.mark_indeterminate();
            Arc::new(fencing)
        });
        let lost: Vec<_> = lost.collect();
        self.indeterminate = AtomicUsize::new(lost.len());
        *lock(&self.lost) = lost;
        self.journal = Journal::new(controllers, record);
        self.write_through = namespace.as_ref().is_some_and(|it| !it.volatile_cache).into();
        self.known = Mutex::new(namespace);
    }

    /// Sets the record of a disk that no later process takes over. The record stores the
    /// controllers that the next user of the namespace must close.
    pub(super) fn record(&mut self, record: Box<dyn Record>) {
        self.journal = Journal::of_its_own(record);
    }

    /// Whether the disk knows its namespace. If so, a path to another namespace fails alone, not
    /// the whole disk.
    pub(super) fn is_decided(&self) -> bool {
        lock(&self.known).is_some()
    }

    /// The namespace's size and features; a size of 0 until the first path connects.
    pub(super) fn geometry(&self) -> Geometry {
        let known = self.namespace.get();
        known.map_or_else(|| Geometry::new(512, 0), NamespaceState::geometry)
    }

    /// Checks that a path leads to the disk's namespace; the first path determines that namespace.
    pub(super) fn agree(&self, found: &KnownNamespace) -> Result<(), Error> {
        let mut known = lock(&self.known);
        self.check(known.as_ref(), found).map_err(Error::Namespace)?;
        // If the disk has once reported no volatile cache to its users, they do not flush.
        let told = known.as_ref().is_none_or(|known| known.volatile_cache);
        let now = KnownNamespace { volatile_cache: told && found.volatile_cache, ..found.clone() };
        if known.as_ref().is_none_or(|known| known.volatile_cache != now.volatile_cache) {
            self.journal.namespace(&now)?;
            self.write_through.store(!now.volatile_cache, Ordering::Release);
            *known = Some(now);
        }
        drop(known);
        if found.volatile_cache && self.is_write_through() {
            tracing::warn!(
                "the target now has a volatile cache, but the disk's users do not flush because it \
                 had none before: the disk makes every write durable (FUA)"
            );
        }
        Ok(())
    }

    /// Adopts the geometry that a new path reports, before the disk uses the path. Returns whether
    /// the geometry changed.
    pub(super) fn adopt(&self, found: &KnownNamespace, geometry: Geometry) -> bool {
        let state = self.namespace.get_or_init(|| NamespaceState::new(geometry, found.clone()));
        state.set(geometry)
    }

    fn check(&self, known: Option<&KnownNamespace>, found: &KnownNamespace) -> Result<(), String> {
        let another = |difference: String| {
            format!(
                "namespace {} is not the namespace of this disk: {difference}; share the right \
                 namespace there again, or detach this disk and attach that address separately",
                self.nsid
            )
        };
        if let Some(uuid) = self.options.uuid
            && found.uuid != Some(uuid)
        {
            let found =
                found.uuid.map_or("no UUID".to_owned(), |it| format!("the UUID {}", Hex(&it)));
            return Err(another(format!("it has {found}, but {} was requested", Hex(&uuid))));
        }
        if self.paths.len() > 1 && !found.is_named() {
            return Err(format!(
                "namespace {} has no UUID, NGUID or EUI-64, so the host cannot tell whether two \
                 paths lead to the same namespace: give one address",
                self.nsid
            ));
        }
        known.map_or(Ok(()), |known| known.check(found).map_err(another))
    }

    /// The namespace to which every path must lead; `None` until the first path connects.
    pub(super) fn known(&self) -> Option<KnownNamespace> {
        lock(&self.known).clone()
    }

    /// Whether the disk must make every write durable (FUA).
    pub(super) fn is_write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    /// Sets the namespace's new sizes. Returns whether they changed.
    pub(super) fn resized(&self, geometry: Geometry) -> bool {
        self.namespace.get().is_some_and(|state| state.set(geometry))
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.keepers.notify();
        self.ring_queues();
    }

    /// Adds a mailbox for a new queue of the disk. Every keeper then connects an I/O queue for it.
    pub(super) fn add_mailbox(&self, waker: Waker) -> Arc<Mailbox> {
        let id = self.next_mailbox.fetch_add(1, Ordering::Relaxed);
        let mailbox =
            Mailbox { id, waker, notified: AtomicBool::new(false), arrivals: Mutex::default() };
        let mailbox = Arc::new(mailbox);
        lock(&self.mailboxes).push(Arc::clone(&mailbox));
        self.keepers.notify();
        mailbox
    }

    pub(super) fn remove_mailbox(&self, id: u64) {
        lock(&self.mailboxes).retain(|mailbox| mailbox.id != id);
        self.keepers.notify();
    }

    pub(super) fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        lock(&self.mailboxes).clone()
    }

    pub(super) fn ring_queues(&self) {
        lock(&self.mailboxes).iter().for_each(|mailbox| mailbox.notify());
    }

    /// Records that a path's session is lost. The disk resends its writes only after all commands
    /// of the session have ended.
    pub(super) fn lose(&self, session: &Arc<Session>, reason: &str) {
        let mut lost = lock(&self.lost);
        session.fencing.lost_since();
        lost.push(Arc::clone(&session.fencing));
        self.paths[session.path].lost(reason);
        drop(lost);
        self.keepers.notify();
        self.ring_queues();
    }

    /// Lost controllers whose commands may not have ended.
    pub(super) fn unfinished(&self) -> Vec<Arc<Fencing>> {
        lock(&self.lost).clone()
    }

    /// Removes the lost controllers whose commands have ended, and resumes the operations that
    /// waited for them.
    pub(super) fn forget_finished(&self) {
        let mut lost = lock(&self.lost);
        let finished: Vec<_> = lost.extract_if(.., |fencing| fencing.is_finished()).collect();
        let indeterminate =
            finished.iter().filter(|fencing| fencing.has_indeterminate_writes()).count();
        self.indeterminate.fetch_sub(indeterminate, Ordering::AcqRel);
        drop(lost);
        finished.iter().for_each(|fencing| self.journal.remove(&fencing.life));
        if !finished.is_empty() {
            self.ring_queues();
        }
    }

    /// Records that the disk is about to report a write of this session as failed.
    pub(super) fn mark_indeterminate(&self, session: &Session) {
        let lost = lock(&self.lost);
        if !session.fencing.is_finished() && !session.fencing.mark_indeterminate() {
            self.indeterminate.fetch_add(1, Ordering::AcqRel);
        }
        drop(lost);
    }

    /// Whether a controller may still execute a write that the disk reported as failed. As long as
    /// this is true, the disk sends no writes.
    pub(super) fn has_indeterminate_writes(&self) -> bool {
        self.indeterminate.load(Ordering::Acquire) > 0
    }

    /// Puts a new session into use. Writes of lost sessions wait until all commands of these
    /// sessions have ended; other operations continue.
    pub(super) fn publish(&self, session: &Arc<Session>) {
        self.paths[session.path].connected(session);
        self.ring_queues();
    }

    /// Decides whether operations without a usable path wait or fail. `refused`: whether the
    /// controller of a path has no I/O queue left for the caller.
    pub(super) fn verdict(&self, now: Instant, refused: impl Fn(usize) -> bool) -> Verdict {
        if self.is_stopping() {
            return Verdict::Fail(BlockError::Disconnected);
        }
        let mut until = None;
        let mut is_refused = false;
        for (index, path) in self.paths.iter().enumerate() {
            if path.state() == PathState::Live && refused(index) {
                is_refused = true;
                continue;
            }
            match path.wait_limit(&self.options) {
                WaitLimit::Unlimited => return Verdict::Wait(None),
                WaitLimit::Until(at) if at > now => until = until.max(Some(at)),
                WaitLimit::Until(_) => {}
            }
        }
        match until {
            Some(_) => Verdict::Wait(until),
            None if is_refused => Verdict::Fail(BlockError::NoResources),
            None => Verdict::Fail(BlockError::Disconnected),
        }
    }
}
