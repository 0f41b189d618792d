//! State that the queues of a mirror and its keeper (the mirror's thread) share.
//!
//! The state of a leg differs from its standing in the records. The mirror puts a failed leg out at
//! once. The leg counts as *behind* later, when the records of the other legs say so. Until then,
//! the mirror acknowledges no write that the leg lacks.
//!
//! ```text
//!            failed or unavailable                 available again
//!   InSync -----------------------------> Out ---------------------------> Catching up
//!     ^                                    ^                                  |   |
//!     |                                    +----------------------------------+   |
//!     +---------------------------------------------------------------------------+
//!          everything is copied, and recorded
//! ```

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use farblock_block::size::ExactSize;
use farblock_block::{Availability, Change, Changes, Geometry, Namespace, Watch};
use farblock_reactor::{Waker, os};

use super::regions::Regions;

/// The state of a leg in its mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LegState {
    /// The leg has all data, and serves reads.
    InSync,
    /// The leg gets writes, and the keeper copies the data that the leg lacks.
    CatchingUp,
    /// The mirror does not use the leg, so the leg lacks more and more data.
    Out,
}

const IN_SYNC: u8 = 0;
const CATCHING_UP: u8 = 1;
const OUT: u8 = 2;

/// The reason why a leg is out, if the leg has reported no other reason.
const OTHER_CONTENTS: &str =
    "the leg's file or its target's process may have changed: the mirror compares the data";

/// A set of legs, one bit per leg.
pub(crate) type LegSet = u64;

pub(crate) fn bit(leg: usize) -> LegSet {
    1 << leg
}

pub(crate) fn members(set: LegSet) -> impl Iterator<Item = usize> + Clone {
    (0..64).filter(move |&leg| set & bit(leg) != 0)
}

/// An open leg.
pub(crate) struct Opened {
    pub(crate) namespace: Arc<dyn Namespace>,
    /// The size of the leg at open, in blocks. When a leg grows, its record stays in place.
    blocks: u64,
    _watch: Option<Watch>,
}

pub(crate) struct Leg {
    pub(crate) name: String,
    /// Whether the leg is in this machine.
    pub(crate) is_local: bool,
    state: AtomicU8,
    /// The number of times that the leg was opened. A queue that was opened on an earlier instance
    /// of the leg must be replaced.
    pub(crate) instance: AtomicU64,
    opened: Mutex<Option<Opened>>,
    /// The number of writes that have completed for their callers although this leg, which is out,
    /// may still execute them. The leg can return only when they have ended.
    late: AtomicU64,
    /// The reason why the leg is out.
    pub(crate) reason: Mutex<String>,
    /// The doubt count: it rises with each event after which the leg may have other contents, for
    /// example a new target process.
    doubts: AtomicU64,
    /// Whether the source must open the leg again, since its name may lead to another disk.
    pub(crate) reopens: AtomicBool,
}

impl Leg {
    pub(crate) fn new(name: String, is_local: bool, state: LegState) -> Leg {
        let state = AtomicU8::new(number(state));
        let (instance, opened) = (AtomicU64::new(0), Mutex::new(None));
        let (late, reason) = (AtomicU64::new(0), Mutex::new(String::new()));
        let (doubts, reopens) = (AtomicU64::new(0), AtomicBool::new(false));
        Leg { name, is_local, state, instance, opened, late, reason, doubts, reopens }
    }

    pub(crate) fn state(&self) -> LegState {
        match self.state.load(Ordering::SeqCst) {
            IN_SYNC => LegState::InSync,
            CATCHING_UP => LegState::CatchingUp,
            _ => LegState::Out,
        }
    }

    pub(crate) fn namespace(&self) -> Option<Arc<dyn Namespace>> {
        lock(&self.opened).as_ref().map(|opened| Arc::clone(&opened.namespace))
    }

    /// The size of the leg at open, in blocks.
    pub(crate) fn blocks(&self) -> Option<u64> {
        lock(&self.opened).as_ref().map(|opened| opened.blocks)
    }

    fn has_shrunk(&self) -> bool {
        let opened = lock(&self.opened);
        opened.as_ref().is_some_and(|it| it.namespace.geometry().blocks < it.blocks)
    }

    /// A warning about a leg that has grown since it was opened: its record is no longer at its
    /// end.
    pub(crate) fn growth(&self) -> Option<String> {
        let opened = lock(&self.opened);
        let (before, now) = opened.as_ref().map(|it| (it.blocks, it.namespace.geometry()))?;
        let former = before * u64::from(now.block_size);
        (now.blocks > before).then(|| {
            format!(
                "the leg has grown from {} to {}, and the next start would not find its record: \
                 stop the mirror first, then give it its former size (a file: truncate -s \
                 {former})",
                ExactSize(former),
                ExactSize(now.capacity_bytes())
            )
        })
    }

    pub(crate) fn is_there(&self) -> bool {
        self.namespace().is_some_and(|leg| leg.availability() == Availability::Ready)
    }

    /// The reason to report while the leg is unavailable.
    pub(crate) fn absence(&self) -> String {
        match self.namespace().and_then(|leg| leg.trouble()) {
            Some(why) => format!("the leg is unavailable: {why}"),
            None => "the leg is unavailable".to_owned(),
        }
    }

    /// The number of events after which the leg may have other contents.
    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::SeqCst)
    }

    pub(crate) fn has_late(&self) -> bool {
        self.late.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn say(&self, reason: impl Into<String>) {
        *lock(&self.reason) = reason.into();
    }
}

fn number(state: LegState) -> u8 {
    match state {
        LegState::InSync => IN_SYNC,
        LegState::CatchingUp => CATCHING_UP,
        LegState::Out => OUT,
    }
}

/// The queues' requests to the keeper.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Regions to mark dirty.
    pub(crate) wanted: Vec<usize>,
    /// Suspect regions for which reads wait.
    pub(crate) read_first: Vec<usize>,
    /// Regions that may differ between legs since a queue failed an operation.
    pub(crate) suspects: Vec<usize>,
    pub(crate) verify: bool,
    pub(crate) stop: bool,
}

/// A chunk that differs between legs in sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The first block of the chunk.
    pub lba: u64,
    /// The length of the chunk in blocks. Not all of its blocks need to differ.
    pub blocks: u32,
}

/// The progress of the keeper, for the status.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) copied_bytes: u64,
    pub(crate) to_copy_bytes: u64,
    pub(crate) verified_bytes: u64,
    pub(crate) verifying: bool,
    pub(crate) verifies: u64,
    /// The bytes of chunks that a leg could not read, or for which only one leg was in sync.
    pub(crate) uncompared_bytes: u64,
    /// The legs that had read errors.
    pub(crate) unread_legs: LegSet,
    /// The size of the chunks that differed in the last verification, in bytes.
    pub(crate) differing_bytes: u64,
    /// The first of the chunks that differed.
    pub(crate) differences: Vec<Difference>,
}

pub(crate) struct Shared {
    pub(crate) geometry: Geometry,
    pub(crate) region_blocks: u64,
    pub(crate) regions: Regions,
    pub(crate) legs: Vec<Leg>,
    /// The legs that are behind according to the records of all other legs.
    pub(crate) behind: AtomicU64,
    /// Counts the changes of the shared state for which queues may be waiting.
    epoch: AtomicU64,
    /// The legs whose last record the keeper must find before the mirror uses them again. Only the
    /// last leg in sync gets into this set, after an event that may have changed its contents.
    unproven: AtomicU64,
    /// Whether all legs in sync have been unavailable for so long that operations fail.
    hopeless: AtomicBool,
    /// Whether the last leg in sync cannot record that other legs are behind.
    pub(crate) unrecordable: AtomicBool,
    /// Whether a flush of the last leg has failed, but no user has received the error. The next
    /// flush of a user then fails, too.
    pub(crate) owes_failure: AtomicBool,
    /// Whether the keeper is flushing. A leg reports lost data only once, possibly to this flush.
    /// So if a leg completes a user's flush meanwhile, the user's flush succeeds only after the
    /// keeper's flush has succeeded.
    keeper_flushes: AtomicBool,
    pub(crate) inbox: Mutex<Inbox>,
    pub(crate) progress: Mutex<Progress>,
    /// The limit in bytes per second for copies to legs that catch up, and for verification; 0
    /// means no limit.
    pub(crate) copy_speed: AtomicU64,
    /// The UUIDs of the namespaces whose data is, wholly or partly, on this mirror.
    pub(super) wholes: Mutex<Vec<[u8; 16]>>,
    queues: Mutex<Vec<(u64, Waker)>>,
    next_queue: AtomicU64,
    keeper: OnceLock<Waker>,
    pub(crate) changes: Changes,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(geometry: Geometry, region_bytes: u64, legs: Vec<Leg>) -> Shared {
        let region_blocks = region_bytes / u64::from(geometry.block_size);
        let regions = Regions::new(geometry.blocks.div_ceil(region_blocks) as usize);
        Shared {
            geometry,
            region_blocks,
            regions,
            legs,
            behind: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            unproven: AtomicU64::new(0),
            hopeless: AtomicBool::new(false),
            unrecordable: AtomicBool::new(false),
            owes_failure: AtomicBool::new(false),
            keeper_flushes: AtomicBool::new(false),
            inbox: Mutex::default(),
            progress: Mutex::default(),
            copy_speed: AtomicU64::new(0),
            wholes: Mutex::default(),
            queues: Mutex::default(),
            next_queue: AtomicU64::new(0),
            keeper: OnceLock::new(),
            changes: Changes::new(),
        }
    }

    pub(crate) fn all(&self) -> LegSet {
        (1 << self.legs.len()) - 1
    }

    fn having(&self, holds: impl Fn(LegState) -> bool) -> LegSet {
        let bits = self.legs.iter().enumerate().filter(|(_, leg)| holds(leg.state()));
        bits.map(|(leg, _)| bit(leg)).sum()
    }

    pub(crate) fn in_sync(&self) -> LegSet {
        if os::has_mistake("reads from a leg that catches up") {
            return self.written();
        }
        self.having(|state| state == LegState::InSync)
    }

    /// The legs in sync that the mirror may use: all except the legs on which the keeper must
    /// first find their last record.
    pub(crate) fn trusted(&self) -> LegSet {
        self.in_sync() & !self.unproven()
    }

    pub(crate) fn unproven(&self) -> LegSet {
        self.unproven.load(Ordering::SeqCst)
    }

    /// Registers that the keeper has found the expected record on a leg.
    pub(crate) fn prove(&self, leg: usize) {
        self.unproven.fetch_and(!bit(leg), Ordering::SeqCst);
        self.wake_queues();
    }

    pub(crate) fn is_hopeless(&self) -> bool {
        self.hopeless.load(Ordering::SeqCst)
    }

    pub(crate) fn set_hopeless(&self, is_hopeless: bool) {
        if self.hopeless.swap(is_hopeless, Ordering::SeqCst) != is_hopeless {
            if is_hopeless {
                tracing::error!("no leg in sync is available: operations fail until one returns");
            }
            self.wake_queues();
        }
    }

    /// Registers that the contents of a leg may have changed. Puts the leg out. If it is the last
    /// leg in sync, no queue uses the leg until the keeper has found its last record there.
    pub(crate) fn doubt(&self, leg: usize, reason: &str) {
        let Leg { doubts, reopens, is_local, .. } = &self.legs[leg];
        doubts.fetch_add(1, Ordering::SeqCst);
        reopens.store(*is_local, Ordering::SeqCst);
        if !self.put_out(leg, reason) {
            self.unproven.fetch_or(bit(leg), Ordering::SeqCst);
            self.legs[leg].say(reason);
        }
        self.wake_keeper();
    }

    /// The legs that get writes.
    pub(crate) fn written(&self) -> LegSet {
        self.having(|state| state != LegState::Out)
    }

    pub(crate) fn behind(&self) -> LegSet {
        self.behind.load(Ordering::SeqCst)
    }

    /// Puts a leg out, unless it is the last one in sync. The keeper then records that the leg is
    /// behind.
    pub(crate) fn put_out(&self, leg: usize, reason: &str) -> bool {
        let inbox = lock(&self.inbox);
        let state = self.legs[leg].state();
        if state == LegState::Out {
            return true;
        }
        if self.in_sync() == bit(leg) {
            return false;
        }
        self.legs[leg].state.store(OUT, Ordering::SeqCst);
        self.unproven.fetch_and(!bit(leg), Ordering::SeqCst);
        self.legs[leg].say(reason);
        drop(inbox);
        tracing::warn!(
            leg = %self.legs[leg].name, was = ?state,
            "the leg is out of the mirror: {reason}"
        );
        self.wake_keeper();
        true
    }

    /// Lets a leg that was out get writes from now on. Returns false, without a change, if the leg
    /// has late writes or its doubt count is no longer `doubts`.
    pub(crate) fn let_in(&self, leg: usize, doubts: u64) -> bool {
        let _inbox = lock(&self.inbox);
        let may = !self.legs[leg].has_late() && self.legs[leg].doubts() == doubts;
        if may {
            self.legs[leg].state.store(CATCHING_UP, Ordering::SeqCst);
        }
        may
    }

    /// If all these legs are out, registers a completed write that they may still execute, and
    /// returns true. The mirror then lets none of these legs in before [`Self::end_late`], so the
    /// caller can remove the write from its regions at once.
    pub(crate) fn expect_late(&self, legs: LegSet) -> bool {
        let _inbox = lock(&self.inbox);
        let are_out = legs & self.written() == 0;
        for leg in members(legs).filter(|_| are_out) {
            self.legs[leg].late.fetch_add(1, Ordering::SeqCst);
        }
        are_out
    }

    /// Registers that these legs no longer execute a write that [`Self::expect_late`] registered.
    pub(crate) fn end_late(&self, legs: LegSet) {
        for leg in members(legs) {
            if self.legs[leg].late.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.wake_keeper();
            }
        }
    }

    /// From now on, the mirror acknowledges a write only when this leg has completed it, too.
    /// Returns false if the mirror has put the leg out meanwhile.
    pub(crate) fn begin_promotion(&self, leg: usize) -> bool {
        let _inbox = lock(&self.inbox);
        let ready = self.legs[leg].state() == LegState::CatchingUp;
        if ready {
            self.behind.fetch_and(!bit(leg), Ordering::SeqCst);
        }
        ready
    }

    /// Marks the leg in sync. Returns false if the mirror has put the leg out meanwhile.
    pub(crate) fn promote(&self, leg: usize) -> bool {
        let _inbox = lock(&self.inbox);
        let states = (CATCHING_UP, IN_SYNC);
        let state = &self.legs[leg].state;
        state.compare_exchange(states.0, states.1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Installs the namespace that a leg's source has opened. From then on, the mirror handles its
    /// changes.
    pub(crate) fn install(self: &Arc<Self>, leg: usize, namespace: Arc<dyn Namespace>) {
        let weak = Arc::downgrade(self);
        let watch = namespace.changes().map(|changes| {
            changes.watch(move |change| {
                if let Some(shared) = weak.upgrade() {
                    shared.handle_change(leg, change);
                }
            })
        });
        let blocks = namespace.geometry().blocks;
        let opened = Opened { namespace: Arc::clone(&namespace), blocks, _watch: watch };
        *lock(&self.legs[leg].opened) = Some(opened);
        self.legs[leg].instance.fetch_add(1, Ordering::SeqCst);
        self.nest(&*namespace);
    }

    /// Handles a change that a leg reports. The mirror stops reading from a leg that may have lost
    /// data. But the last leg in sync stays in use, and the mirror passes the change on to its own
    /// user.
    fn handle_change(&self, leg: usize, change: Change) {
        if change == Change::Contents {
            // Only a local disk reports a current reason. A remote disk may report an earlier
            // outage.
            let known = Some(&self.legs[leg]).filter(|leg| leg.is_local).and_then(Leg::namespace);
            let trouble = known.and_then(|leg| leg.trouble());
            self.doubt(leg, trouble.as_deref().unwrap_or(OTHER_CONTENTS));
        }
        if change == Change::Parts {
            self.changes.tell(change);
        }
        if change == Change::Geometry && self.legs[leg].has_shrunk() {
            // A leg that has shrunk has lost the record at its end, and some of its data.
            self.put_out(leg, "the leg has shrunk");
        }
        if change == Change::Geometry
            && let Some(growth) = self.legs[leg].growth()
        {
            tracing::warn!(leg = %self.legs[leg].name, "{growth}");
        }
        if change == Change::Loss
            && !self.put_out(leg, "the leg may have lost writes that were not flushed")
        {
            self.changes.tell(Change::Loss);
        }
        self.wake_keeper();
    }

    pub(crate) fn uninstall(&self, leg: usize) {
        let opened = lock(&self.legs[leg].opened).take();
        self.legs[leg].instance.fetch_add(1, Ordering::SeqCst);
        drop(opened);
    }

    pub(crate) fn begin_keepers_flush(&self) {
        self.keeper_flushes.store(true, Ordering::SeqCst);
    }

    /// Registers that the result of the keeper's flush is known.
    pub(crate) fn end_keepers_flush(&self) {
        self.keeper_flushes.store(false, Ordering::SeqCst);
        self.wake_queues();
    }

    pub(crate) fn keeper_flushes(&self) -> bool {
        self.keeper_flushes.load(Ordering::SeqCst)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Makes every queue check its waiting operations.
    pub(crate) fn wake_queues(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        lock(&self.queues).iter().for_each(|(_, waker)| waker.wake());
    }

    pub(crate) fn add_queue(&self, waker: Waker) -> u64 {
        let id = self.next_queue.fetch_add(1, Ordering::Relaxed);
        lock(&self.queues).push((id, waker));
        id
    }

    pub(crate) fn remove_queue(&self, id: u64) {
        lock(&self.queues).retain(|(other, _)| *other != id);
    }

    pub(crate) fn set_keeper(&self, waker: Waker) {
        let _ = self.keeper.set(waker);
    }

    pub(crate) fn wake_keeper(&self) {
        if let Some(waker) = self.keeper.get() {
            waker.wake();
        }
    }

    /// The regions that a range of blocks touches.
    pub(crate) fn regions_of(&self, lba: u64, blocks: u32) -> std::ops::Range<usize> {
        let end = (lba + u64::from(blocks)).div_ceil(self.region_blocks);
        (lba / self.region_blocks) as usize..end as usize
    }

    pub(crate) fn is_stopped(&self) -> bool {
        lock(&self.inbox).stop
    }
}
