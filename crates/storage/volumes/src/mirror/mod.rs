//! A mirror: the same blocks on several legs. See the [crate] for its contract.

mod assemble;
mod audit;
mod choice;
mod claim;
mod content;
mod copy;
mod find;
mod former;
mod keeper;
mod nested;
mod pages;
mod panel;
mod queue;
mod record;
mod regions;
mod rejoin;
mod shared;
mod start;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use farblock_block::size::Size;
use farblock_block::{Availability, BlockError, Changes, Geometry, Namespace, Part, Queue};
use farblock_reactor::os::{self, JoinHandle};
use farblock_reactor::{EngineKind, Reactor, TaskId};

use assemble::{Found, Plan, What};
use former::Search;
use keeper::Keeper;
use panel::Panel;
use record::Record;
pub use shared::{Difference, LegState};
use shared::{Leg, LegSet, Shared, bit, lock, members};
use start::Start;

/// Opens a leg, and opens it again after the leg was lost.
pub trait LegSource: Send + Sync {
    /// The name of the leg, for logs and the operator.
    fn name(&self) -> String;

    /// Whether the leg is in this machine. The mirror prefers a local leg for reads until another
    /// leg proves faster.
    fn is_local(&self) -> bool {
        true
    }

    /// Makes sure that a dead process's writes to the leg can no longer take effect after new
    /// writes. The mirror calls this before [`open`](LegSource::open), and again after an error.
    /// The call may wait for up to [`WAIT_LIMIT`](crate::limits::WAIT_LIMIT).
    ///
    /// # Errors
    /// Returns a sentence about the old writes, if they may still take effect. The mirror then does
    /// not write to the leg.
    fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether to continue opening the mirror. False if the process is to exit.
    fn is_wanted(&self) -> bool {
        true
    }

    /// Opens the leg, without a time limit. If the last [`settle`](LegSource::settle) failed, the
    /// mirror does not write to the namespace.
    ///
    /// # Errors
    /// Returns a sentence with the reason why the leg is unavailable.
    fn open(&self) -> Result<Arc<dyn Namespace>, String>;
}

/// The legs that the mirror may overwrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Taking {
    /// No leg: all legs already belong to the mirror.
    #[default]
    Members,
    /// The legs without a record that look empty. If no leg has a record, [`Mirror::open`] creates
    /// a new mirror with the data of the first leg.
    Empty,
}

/// The options of a mirror.
#[derive(Clone, Debug, Default)]
pub struct MirrorOptions {
    /// The legs that the mirror may overwrite.
    pub taking: Taking,
    /// Open the mirror even if a leg in sync is missing. The operator asserts that the missing leg
    /// has no newer data.
    pub degraded: bool,
    /// The limit in bytes per second for copies to legs that catch up, and for
    /// verification. `None` means no limit.
    pub copy_bytes_per_second: Option<u64>,
    /// The engine of the keeper thread's event loop.
    pub engine: EngineKind,
}

/// The reason why a mirror cannot be opened, as a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MirrorError(pub(crate) String);

impl fmt::Display for MirrorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MirrorError {}

/// The state of a leg.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LegStatus {
    /// The name of the leg, from its source.
    pub name: String,
    /// The state of the leg in the mirror.
    pub state: LegState,
    /// The reason why the leg is out, or why the mirror does not use it at present.
    pub reason: Option<String>,
}

/// The state of a mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MirrorStatus {
    /// The legs.
    pub legs: Vec<LegStatus>,
    /// The size of the regions in which legs may differ or lack data, in bytes.
    pub dirty_bytes: u64,
    /// The size of the regions in which legs in sync may differ, in bytes.
    pub suspect_bytes: u64,
    /// The bytes copied to legs since the mirror was opened.
    pub copied_bytes: u64,
    /// Whether a verification ([`Mirror::verify`]) is running.
    pub verifying: bool,
    /// The bytes that the current or last verification has compared on all legs in sync.
    pub verified_bytes: u64,
    /// The bytes that the current or last verification could not compare, because a leg in sync
    /// had a read error, or only one leg was in sync.
    pub uncompared_bytes: u64,
    /// The names of the legs on which the current or last verification had read errors.
    pub unread_legs: Vec<String>,
    /// The total size, in bytes, of the chunks that the current or last verification found to
    /// differ between legs in sync.
    pub differing_bytes: u64,
    /// The first chunks that the current or last verification found to differ.
    pub differences: Vec<Difference>,
    /// The limit in bytes per second for copies to legs that catch up, and for
    /// verification. `None` means no limit.
    pub copy_bytes_per_second: Option<u64>,
    /// The number of completed runs of [`Mirror::verify`].
    pub verifies: u64,
}

/// Several legs as one namespace; see the [crate] documentation.
pub struct Mirror {
    life: Arc<Life>,
    record: Record,
}

/// The keeper thread of a mirror. It exits when the mirror and its queues are dropped.
struct Life {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Life {
    fn drop(&mut self) {
        lock(&self.shared.inbox).stop = true;
        self.shared.wake_keeper();
        if let Some(thread) = lock(&self.thread).take().filter(|thread| !thread.is_current()) {
            // If the thread has panicked, the panic has been logged already.
            let _ = thread.join();
        }
    }
}

/// The merged contents of the reserved parts of all legs.
struct Read {
    record: Record,
    slots: Vec<usize>,
    bitmap: Vec<u8>,
    page_count: u64,
    newest: LegSet,
}

impl Mirror {
    /// Opens the legs, reads their records, and starts the mirror.
    ///
    /// # Errors
    /// Fails if the legs are not a mirror, or if it is not safe to open the mirror with these
    /// options.
    pub fn open(
        sources: Vec<Arc<dyn LegSource>>,
        options: MirrorOptions,
    ) -> Result<Mirror, MirrorError> {
        let Start { found, reads, opened, plan } = start::find_out(&sources, &options)?;
        let read = gather(&plan, &found, &reads);
        let shared = share(&plan, &sources, (&found, &opened), &read.bitmap);
        let speed = options.copy_bytes_per_second.map_or(0, |speed| speed.max(1));
        shared.copy_speed.store(speed, Ordering::Relaxed);
        let record = plan.record.clone();
        let sources = plan.named.iter().map(|&named| Arc::clone(&sources[named])).collect();
        let (for_thread, kept) = (Arc::clone(&shared), options);
        let (tell, told) = std::sync::mpsc::channel();
        let thread =
            os::spawn("farblock-mirror".to_owned(), move || {
                match Panel::new(&for_thread, kept.engine) {
                    Ok(panel) => {
                        for_thread.set_keeper(panel.reactor.waker(panel.task));
                        let keeper = Keeper::new(for_thread, panel, kept, sources, read);
                        keeper.run(|lost| drop(tell.send(lost)));
                    }
                    Err(error) => {
                        drop(tell.send(Some(format!(
                            "the mirror could not start an event loop: {error}"
                        ))));
                    }
                }
            });
        let thread = thread.map_err(|error| {
            MirrorError(format!("the mirror could not start a thread: {error}"))
        })?;
        if let Ok(Some(error)) = os::recv(&told) {
            // Wait for the thread, so that the legs are closed when this function returns.
            let _ = thread.join();
            return Err(MirrorError(error));
        }
        let life = Life { shared, thread: Mutex::new(Some(thread)) };
        Ok(Mirror { life: Arc::new(life), record })
    }

    /// The state of the mirror and its legs.
    pub fn status(&self) -> MirrorStatus {
        let shared = &self.life.shared;
        let legs = shared.legs.iter().enumerate().map(|(at, leg)| {
            let state = leg.state();
            let reason = lock(&leg.reason).clone();
            let is_used = state == LegState::InSync && shared.unproven() & bit(at) == 0;
            let reason = match is_used {
                // The last leg in sync stays `InSync` even while it is unavailable. The reason then
                // says that the leg is unavailable.
                true if !leg.is_there() => Some(leg.absence()),
                true => leg.growth(),
                false => Some(reason).filter(|reason| !reason.is_empty()),
            };
            LegStatus { name: leg.name.clone(), state, reason }
        });
        let region_bytes = self.record.region_bytes();
        let suspects = (0..shared.regions.len()).filter(|&at| shared.regions.is_suspect(at));
        let progress = lock(&shared.progress).clone();
        let name = |leg: usize| shared.legs[leg].name.clone();
        MirrorStatus {
            legs: legs.collect(),
            dirty_bytes: shared.regions.dirty_count() as u64 * region_bytes,
            suspect_bytes: suspects.count() as u64 * region_bytes,
            copied_bytes: progress.copied_bytes,
            verifying: progress.verifying,
            verified_bytes: progress.verified_bytes,
            uncompared_bytes: progress.uncompared_bytes,
            unread_legs: members(progress.unread_legs).map(name).collect(),
            differing_bytes: progress.differing_bytes,
            differences: progress.differences,
            copy_bytes_per_second: match shared.copy_speed.load(Ordering::Relaxed) {
                0 => None,
                speed => Some(speed),
            },
            verifies: progress.verifies,
        }
    }

    /// Starts a comparison of all legs in sync. [`status`](Mirror::status) reports the result.
    pub fn verify(&self) {
        lock(&self.life.shared.progress).verifying = true;
        lock(&self.life.shared.inbox).verify = true;
        self.life.shared.wake_keeper();
    }

    /// Sets the limit in bytes per second for copies to legs that catch up, and for
    /// verification. `None` means no limit.
    pub fn set_copy_speed(&self, bytes_per_second: Option<u64>) {
        let speed = bytes_per_second.map_or(0, |speed| speed.max(1));
        self.life.shared.copy_speed.store(speed, Ordering::Relaxed);
        // The keeper may be waiting as the old limit requires, so wake it.
        self.life.shared.wake_keeper();
    }

    /// The UUID of the mirror, which does not depend on its legs.
    pub fn uuid(&self) -> uuid::Uuid {
        self.record.mirror
    }
}

/// The UUID of the mirror to which a leg belongs, from the last MiB of the leg. `None` if that part
/// has no valid record.
pub fn mirror_of(reserved: &[u8]) -> Option<uuid::Uuid> {
    let whole = reserved.len() as u64 >= record::USED_BYTES;
    whole.then(|| record::newest(reserved).ok()).flatten().map(|(record, _)| record.mirror)
}

/// Reads the reserved parts of all legs that could be opened.
fn probe(
    names: Vec<String>,
    opened: &[keeper::Opening],
    engine: EngineKind,
) -> Result<Vec<(Found, find::Read)>, MirrorError> {
    let leg = |name: &String| Leg::new(name.clone(), true, LegState::CatchingUp);
    let legs = names.iter().map(leg).collect();
    let shared = Arc::new(Shared::new(Geometry::new(512, 1), 512, legs));
    for (leg, opened) in opened.iter().enumerate() {
        if let Ok(namespace) = opened {
            shared.install(leg, Arc::clone(namespace));
        }
    }
    let mut panel = Panel::new(&shared, engine).map_err(|error| {
        MirrorError(format!("the mirror could not start an event loop: {error}"))
    })?;
    let read = opened.iter().enumerate().map(|(leg, opened)| match opened {
        Ok(namespace) => find::read(&mut panel, leg, namespace, Search::Far),
        Err(reason) => find::Read::without(What::Absent(reason.clone())),
    });
    let reads: Vec<find::Read> = read.collect();
    let found = names.into_iter().zip(reads).map(|(name, mut read)| {
        let what = std::mem::replace(&mut read.what, What::Absent(String::new()));
        (Found { name, what }, read)
    });
    Ok(found.collect())
}

/// Merges the bitmaps of the legs. A region is dirty if it is dirty in one bitmap. A damaged page
/// makes all of its regions dirty, unless a leg in sync has the same page undamaged: the bitmap of
/// every leg in sync contains all regions in which legs may differ.
fn gather(plan: &Plan, found: &[Found], reads: &[find::Read]) -> Read {
    let mut bitmap = vec![0; plan.record.regions().div_ceil(8)];
    let payload = pages::payload_bytes(plan.record.block_size);
    let legs = || plan.named.iter().zip(&plan.in_sync).enumerate();
    let in_sync = || legs().filter(|(_, (_, in_sync))| **in_sync).map(|(leg, (at, _))| (leg, *at));
    for (page, part) in bitmap.chunks_mut(payload).enumerate() {
        let is_known = in_sync().any(|(_, named)| reads[named].bitmap.has_whole(page));
        for read in reads {
            let is_damaged = read.bitmap.damaged.get(page) == Some(&true);
            let bits = read.bitmap.bits.iter().skip(page * payload);
            if !(is_damaged && is_known) {
                part.iter_mut().zip(bits).for_each(|(all, one)| *all |= one);
            }
        }
    }
    let age = |named: usize| match &found[named].what {
        What::Marked(record) => (record.generation, reads[named].bitmap.count),
        _ => (0, 0),
    };
    let most = in_sync().map(|(_, named)| age(named)).max();
    let newest = in_sync().filter(|(_, named)| Some(age(*named)) == most);
    let newest = newest.map(|(leg, _)| bit(leg)).sum();
    let page_count = reads.iter().map(|read| read.bitmap.count).max().unwrap_or(0);
    if let Some(extra) = bitmap.last_mut()
        && !plan.record.regions().is_multiple_of(8)
    {
        *extra &= (1 << (plan.record.regions() % 8)) - 1;
    }
    let slots = plan.named.iter().map(|&named| reads[named].slot).collect();
    Read { record: plan.record.clone(), slots, bitmap, page_count, newest }
}

fn share(
    plan: &Plan,
    sources: &[Arc<dyn LegSource>],
    (found, opened): (&[Found], &[keeper::Opening]),
    bitmap: &[u8],
) -> Arc<Shared> {
    let record = &plan.record;
    let geometry = Geometry {
        volatile_cache: true,
        deallocate: record.deallocate,
        max_blocks: record.max_blocks,
        ..Geometry::new(record.block_size, record.blocks)
    };
    let legs = plan.named.iter().zip(&plan.in_sync).map(|(&named, &in_sync)| {
        let state = if in_sync { LegState::InSync } else { LegState::Out };
        let leg = Leg::new(found[named].name.clone(), sources[named].is_local(), state);
        if let What::Absent(reason) = &found[named].what {
            leg.say(reason.clone());
        }
        leg
    });
    let shared = Arc::new(Shared::new(geometry, record.region_bytes(), legs.collect()));
    for (leg, &named) in plan.named.iter().enumerate() {
        if let Ok(namespace) = &opened[named] {
            shared.install(leg, Arc::clone(namespace));
        }
    }
    // The dirty regions may have had writes in flight when the mirror was last in use, so the legs
    // may differ there.
    let trusting = os::has_mistake("legs trusted after a power cut");
    for region in find::marked(bitmap, shared.regions.len()).filter(|_| !trusting) {
        shared.regions.suspect(region);
        lock(&shared.inbox).suspects.push(region);
    }
    shared
}

impl Namespace for Mirror {
    fn geometry(&self) -> Geometry {
        self.life.shared.geometry
    }

    fn describe(&self) -> String {
        let geometry = self.geometry();
        let legs: Vec<&str> = self.life.shared.legs.iter().map(|leg| &*leg.name).collect();
        format!(
            "mirror of {} ({}, {}-byte blocks): {}",
            legs.len(),
            Size(geometry.capacity_bytes()),
            geometry.block_size,
            legs.join(", ")
        )
    }

    fn changes(&self) -> Option<&Changes> {
        Some(&self.life.shared.changes)
    }

    /// The best availability of all legs in sync.
    fn availability(&self) -> Availability {
        let shared = &self.life.shared;
        let in_sync = shared.legs.iter().filter(|leg| leg.state() == LegState::InSync);
        let each = in_sync.map(|leg| leg.namespace().map(|leg| leg.availability()));
        let each: Vec<Option<Availability>> = each.collect();
        if each.contains(&Some(Availability::Ready)) {
            Availability::Ready
        } else if each.contains(&Some(Availability::Waiting)) {
            Availability::Waiting
        } else {
            Availability::Gone
        }
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        vec![Arc::clone(&self.life.shared) as Arc<dyn Part>]
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        Ok(Box::new(queue::MirrorQueue::new(&self.life, reactor, parent)))
    }
}
