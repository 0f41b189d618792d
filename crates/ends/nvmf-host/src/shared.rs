//! State that a controller's admin queue, I/O queues and users share. Operations take no lock:
//! queues read one flag and the atomic values of their namespace.

use crate::control::{self, Sender};
use crate::error::Error;
use crate::known::KnownNamespace;
use crate::limits;
use crate::transport::Loss;
use farblock_block::{Change, Changes, Geometry};
use farblock_proto::host::{Command, NamespaceInfo};
use farblock_reactor::Waker;
use farblock_wire::Cqe;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

pub(crate) type Answer = Result<(Cqe, Vec<u8>), Error>;

pub(crate) struct AdminRequest {
    pub(crate) command: Command,
    pub(crate) data: Vec<u8>,
    pub(crate) reply: Sender<Answer>,
}

/// An event of a controller. Any thread may pass it to the controller's watcher (a function), which
/// must not block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// The controller is lost.
    Lost,
    /// The admin queue has read the properties of a namespace in use again.
    Namespace(u32),
    /// The access states of namespaces (ANA) may have changed.
    Access,
}

type Watcher = Box<dyn Fn(Notice) + Send + Sync>;

/// The shared state of a controller; see the module documentation.
#[derive(Default)]
pub(crate) struct ControllerShared {
    lost: AtomicBool,
    stopping: AtomicBool,
    state: Mutex<AdminState>,
    watcher: OnceLock<Watcher>,
    namespaces: Mutex<HashMap<u32, Weak<NamespaceState>>>,
    /// The number of namespace changes that the controller reported.
    changes: AtomicU64,
    /// The agreed depth of the I/O queue that was connected last; 0 before the first.
    depth: AtomicU16,
}

#[derive(Default)]
struct AdminState {
    reason: Option<Arc<str>>,
    /// Why a connection was first lost, and whether that was a breach of the protocol.
    loss: Option<(Arc<str>, bool)>,
    requests: VecDeque<AdminRequest>,
    admin: Option<Waker>,
    wakers: Vec<(u16, Waker)>,
    queues: Queues,
}

/// The identifiers of the I/O queues in use.
#[derive(Default)]
struct Queues {
    used: Vec<bool>,
    /// The index where the next search starts. The host assigns identifiers in turn, so that it
    /// reuses a released identifier late: the controller may still be closing that queue.
    next: usize,
}

impl ControllerShared {
    pub(crate) fn new(queues: u16) -> ControllerShared {
        let shared = ControllerShared::default();
        shared.state().queues.used = vec![false; usize::from(queues)];
        shared
    }

    fn state(&self) -> MutexGuard<'_, AdminState> {
        // A panic cannot leave this state half-changed, so ignore poisoning.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Records the depth of an I/O queue, as both ends have agreed.
    pub(crate) fn note_depth(&self, depth: u16) {
        self.depth.store(depth, Ordering::Relaxed);
    }

    /// The agreed depth of the I/O queues; `None` before the first is connected.
    pub(crate) fn depth(&self) -> Option<u16> {
        Some(self.depth.load(Ordering::Relaxed)).filter(|depth| *depth > 0)
    }

    /// Returns the error for calls that need the controller after its loss.
    pub(crate) fn lost_error(&self) -> Error {
        let reason = self.state().reason.clone();
        Error::Lost(reason.unwrap_or_else(|| "the host shut the controller down".into()))
    }

    /// Records why a connection of the controller is lost. Keeps the first loss. But the first
    /// breach of the protocol replaces a loss of another kind, since the breach is probably the
    /// cause.
    pub(crate) fn note_loss(&self, loss: &Loss) {
        let noted = &mut self.state().loss;
        if noted.is_none() || (loss.is_breach() && noted.as_ref().is_some_and(|(_, is)| !is)) {
            *noted = Some((loss.to_string().into(), loss.is_breach()));
        }
    }

    pub(crate) fn loss(&self) -> Option<Arc<str>> {
        let state = self.state();
        state.loss.as_ref().map(|(why, _)| Arc::clone(why)).or_else(|| state.reason.clone())
    }

    /// The description of the controller's breach of the protocol, if a connection was lost for
    /// this reason.
    pub(crate) fn breach(&self) -> Option<Arc<str>> {
        self.state().loss.as_ref().filter(|(_, is_breach)| *is_breach).map(|(why, _)| why.clone())
    }

    /// Marks the controller as lost, fails waiting requests and wakes every queue. A later reason
    /// does not replace the first one.
    pub(crate) fn lose(&self, reason: &str) {
        let mut state = self.state();
        let reason = Arc::clone(state.reason.get_or_insert_with(|| reason.into()));
        self.lost.store(true, Ordering::Release);
        let requests = std::mem::take(&mut state.requests);
        for (_, waker) in &state.wakers {
            waker.wake();
        }
        drop(state);
        for request in requests {
            request.reply.send(Err(Error::Lost(Arc::clone(&reason))));
        }
        self.notify(Notice::Lost);
    }

    /// Gives up the controller: closes every connection at once, without a shutdown.
    pub(crate) fn abort(&self, reason: &str) {
        self.lose(reason);
        self.wake_admin(&self.state());
    }

    /// Sets the controller's only watcher, which receives all later events.
    pub(crate) fn watch(&self, watcher: Watcher) {
        assert!(self.watcher.set(watcher).is_ok(), "a controller has one watcher");
    }

    pub(crate) fn notify(&self, notice: Notice) {
        if let Some(watcher) = self.watcher.get() {
            watcher(notice);
        }
    }

    /// Whether the admin queue must shut the controller down.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake_admin(&self.state());
    }

    pub(crate) fn set_admin(&self, waker: Waker) {
        self.state().admin = Some(waker);
    }

    fn wake_admin(&self, state: &AdminState) {
        if let Some(waker) = &state.admin {
            waker.wake();
        }
    }

    /// Passes an admin command to the admin queue.
    pub(crate) fn request(&self, request: AdminRequest) -> Result<(), Error> {
        let mut state = self.state();
        if let Some(reason) = &state.reason {
            return Err(Error::Lost(Arc::clone(reason)));
        }
        if state.requests.len() >= limits::ADMIN_REQUESTS {
            return Err(Error::Busy);
        }
        state.requests.push_back(request);
        self.wake_admin(&state);
        Ok(())
    }

    pub(crate) fn next_request(&self) -> Option<AdminRequest> {
        self.state().requests.pop_front()
    }

    pub(crate) fn take_queue(&self) -> Option<u16> {
        let queues = &mut self.state().queues;
        let count = queues.used.len();
        let free =
            (queues.next..queues.next + count).map(|at| at % count).find(|&at| !queues.used[at])?;
        queues.used[free] = true;
        queues.next = free + 1;
        Some(free as u16 + 1)
    }

    pub(crate) fn return_queue(&self, qid: u16) {
        self.state().queues.used[usize::from(qid) - 1] = false;
    }

    pub(crate) fn add_waker(&self, qid: u16, waker: Waker) {
        self.state().wakers.push((qid, waker));
    }

    pub(crate) fn remove_waker(&self, qid: u16) {
        self.state().wakers.retain(|(other, _)| *other != qid);
    }

    fn namespaces(&self) -> MutexGuard<'_, HashMap<u32, Weak<NamespaceState>>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a namespace, shared by all its users.
    pub(crate) fn namespace(
        &self,
        info: &NamespaceInfo,
        geometry: Geometry,
        serial: &str,
    ) -> Arc<NamespaceState> {
        let mut namespaces = self.namespaces();
        namespaces.retain(|_, state| state.strong_count() > 0);
        if let Some(state) = namespaces.get(&info.nsid).and_then(Weak::upgrade) {
            // False means that another namespace has replaced the one in use.
            if state.refresh(Some(info)) {
                return state;
            }
        }
        let known = KnownNamespace::new(info, serial, geometry.volatile_cache);
        let state = Arc::new(NamespaceState::new(geometry, known));
        state.set_contents(&info.contents);
        namespaces.insert(info.nsid, Arc::downgrade(&state));
        state
    }

    /// Records that the controller reported changed namespaces.
    pub(crate) fn namespaces_changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of reports of changed namespaces.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn used_namespaces(&self) -> Vec<u32> {
        let namespaces = self.namespaces();
        namespaces.iter().filter(|(_, state)| state.strong_count() > 0).map(|(id, _)| *id).collect()
    }

    /// Updates a namespace from the controller's answer; `None` means that the namespace was
    /// removed. Returns the namespace if the caller must run [`NamespaceState::tell`]: the geometry
    /// has changed, and no call of that function is running.
    #[must_use]
    pub(crate) fn refresh(
        &self,
        nsid: u32,
        info: Option<&NamespaceInfo>,
    ) -> Option<Arc<NamespaceState>> {
        let state = self.namespaces().get(&nsid).and_then(Weak::upgrade)?;
        let before = state.geometry();
        state.refresh(info);
        self.notify(Notice::Namespace(nsid));
        let has_changed = state.geometry() != before;
        (has_changed && state.untold.fetch_add(1, Ordering::AcqRel) == 0).then_some(state)
    }
}

/// Sizes, features and identity of a namespace. The values that can change are atomic, and the
/// admin queue keeps them up to date.
pub(crate) struct NamespaceState {
    geometry: Geometry,
    known: KnownNamespace,
    blocks: AtomicU64,
    read_only: AtomicBool,
    volatile_cache: AtomicBool,
    /// UUIDs of the remote namespaces of which this one consists.
    contents: Mutex<Vec<[u8; 16]>>,
    changes: Changes,
    /// The number of changes not yet reported to listeners.
    untold: AtomicU64,
}

impl NamespaceState {
    pub(crate) fn new(geometry: Geometry, known: KnownNamespace) -> NamespaceState {
        NamespaceState {
            geometry,
            known,
            blocks: AtomicU64::new(geometry.blocks),
            read_only: AtomicBool::new(geometry.read_only),
            volatile_cache: AtomicBool::new(geometry.volatile_cache),
            contents: Mutex::default(),
            changes: Changes::new(),
            untold: AtomicU64::new(0),
        }
    }

    /// Reports geometry changes to listeners, one report at a time. One report may cover several
    /// changes, because a controller may report changes faster than listeners handle them.
    pub(crate) async fn tell(&self) {
        loop {
            let told = self.untold.load(Ordering::Acquire);
            control::tell(&self.changes, Change::Geometry).await;
            if self.untold.fetch_sub(told, Ordering::AcqRel) == told {
                return;
            }
        }
    }

    /// The namespace's identity at the time of the lookup.
    pub(crate) fn known(&self) -> &KnownNamespace {
        &self.known
    }

    /// The listeners for changes that the controller reports.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks.load(Ordering::Relaxed),
            read_only: self.read_only.load(Ordering::Relaxed),
            volatile_cache: self.volatile_cache.load(Ordering::Relaxed),
            ..self.geometry
        }
    }

    /// The UUIDs of the namespace and of its remote parts, as last reported by the target.
    pub(crate) fn contents(&self) -> Vec<[u8; 16]> {
        let contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        self.known.uuid.iter().chain(&*contents).copied().collect()
    }

    fn set_contents(&self, uuids: &[[u8; 16]]) {
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        contents.clear();
        contents.extend_from_slice(uuids);
    }

    /// Updates the changeable values. Returns whether any of them changed.
    pub(crate) fn set(&self, geometry: Geometry) -> bool {
        let blocks = self.blocks.swap(geometry.blocks, Ordering::Relaxed);
        let read_only = self.read_only.swap(geometry.read_only, Ordering::Relaxed);
        let volatile_cache = self.volatile_cache.swap(geometry.volatile_cache, Ordering::Relaxed);
        (blocks, read_only, volatile_cache)
            != (geometry.blocks, geometry.read_only, geometry.volatile_cache)
    }

    /// Updates the values from the controller's answer. If the answer describes another namespace,
    /// marks this one as removed and returns false.
    fn refresh(&self, info: Option<&NamespaceInfo>) -> bool {
        let info = info.filter(|info| {
            let found = KnownNamespace::new(info, &self.known.serial, self.known.volatile_cache);
            let same = self.known.check(&found);
            if let Err(difference) = &same {
                tracing::warn!(
                    nsid = info.nsid,
                    "another namespace replaced a namespace in use: {difference}"
                );
            }
            same.is_ok()
        });
        self.blocks.store(info.map_or(0, |info| info.blocks), Ordering::Relaxed);
        self.read_only.store(info.is_some_and(|info| info.read_only), Ordering::Relaxed);
        if let Some(info) = info {
            self.set_contents(&info.contents);
        }
        info.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Control, reply};
    use farblock_reactor::EngineKind;
    use std::sync::mpsc::channel;

    #[test]
    fn queue_identifiers_are_reused_in_turn() {
        let shared = ControllerShared::new(3);
        assert_eq!([shared.take_queue(), shared.take_queue()], [Some(1), Some(2)]);
        shared.return_queue(1);
        assert_eq!([shared.take_queue(), shared.take_queue()], [Some(3), Some(1)]);
        assert_eq!(shared.take_queue(), None);
        assert_eq!(ControllerShared::new(0).take_queue(), None);
    }

    #[test]
    fn the_first_reason_of_a_loss_is_kept() {
        let shared = ControllerShared::new(1);
        assert!(!shared.is_lost());
        shared.lose("first");
        shared.lose("second");
        assert!(shared.is_lost());
        assert!(shared.lost_error().to_string().ends_with("first"));
    }

    #[test]
    fn users_of_a_namespace_see_its_changes() {
        let shared = ControllerShared::new(1);
        let info = NamespaceInfo { nsid: 7, block_size: 512, blocks: 100, ..Default::default() };
        let state = shared.namespace(&info, Geometry::new(512, 100), "");
        assert_eq!(shared.used_namespaces(), [7]);
        let _ =
            shared.refresh(7, Some(&NamespaceInfo { blocks: 50, read_only: true, ..info.clone() }));
        assert_eq!((state.geometry().blocks, state.geometry().read_only), (50, true));
        let again = shared.namespace(&info, Geometry::new(512, 100), "");
        assert!(Arc::ptr_eq(&state, &again));
        assert_eq!(state.geometry(), Geometry::new(512, 100));
        let other = NamespaceInfo { uuid: Some([1; 16]), ..info.clone() };
        let _ = shared.refresh(7, Some(&other));
        assert_eq!(state.geometry().blocks, 0, "a namespace with another name changes");
        let other = NamespaceInfo { block_size: 4096, ..info.clone() };
        let other = shared.namespace(&other, Geometry::new(4096, 100), "");
        assert_eq!((state.geometry().blocks, other.geometry().blocks), (0, 100));
        let _ = shared.refresh(7, None);
        assert_eq!(other.geometry().blocks, 0);
        drop((state, again, other));
        assert!(shared.used_namespaces().is_empty());
    }

    /// While a listener handles one report, further changes start no more reports.
    #[test]
    fn changes_are_reported_one_at_a_time_and_the_last_is_always_reported() {
        let shared = ControllerShared::new(1);
        let info =
            |blocks| NamespaceInfo { nsid: 7, block_size: 512, blocks, ..Default::default() };
        let state = shared.namespace(&info(1), Geometry::new(512, 1), "");
        let (heard, sizes) = channel();
        let (go_on, gate) = channel::<()>();
        let (listens, gate) = (Arc::downgrade(&state), Mutex::new(gate));
        let _watch = state.changes().watch(move |_| {
            let state = listens.upgrade().expect("a live state");
            heard.send(state.geometry().blocks).expect("a receiver");
            gate.lock().expect("one caller at a time").recv().expect("the test sends");
        });
        let tells = shared.refresh(7, Some(&info(2))).expect("a change to report");
        let control = Control::shared(EngineKind::Portable).expect("a loop");
        let (over, is_over) = reply();
        control.spawn(move |_| async move {
            tells.tell().await;
            over.send(());
        });
        assert_eq!(sizes.recv(), Ok(2));
        for blocks in 3..100 {
            assert!(shared.refresh(7, Some(&info(blocks))).is_none(), "a report is in progress");
        }
        go_on.send(()).expect("the listener waits");
        assert_eq!(sizes.recv(), Ok(99), "one report for all changes");
        go_on.send(()).expect("the listener waits");
        assert_eq!(is_over.wait(), Some(()));
        assert!(shared.refresh(7, Some(&info(1))).is_some(), "a later change is reported again");
    }
}
