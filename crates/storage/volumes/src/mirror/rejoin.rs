//! Adds a leg that was unavailable or was replaced.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use farblock_block::Namespace;
use farblock_reactor::os;

use super::assemble::{Found, OLDER_COPY, TWO_HISTORIES, What, fits, may_take};
use super::former::Search;
use super::keeper::{Keeper, Retry, is_gone};
use super::record::Record;
use super::shared::lock;
use super::{Taking, claim, find};

/// While the source of a leg is still opening it, the leg's status shows this text as the reason
/// why the leg is out.
pub(crate) const OPENING: &str = "the mirror is still opening the leg";

/// Adds a leg that is out, if the leg is available and belongs to this mirror. The keeper (the
/// mirror's thread) copies the data later.
pub(crate) fn attempt(keeper: &mut Keeper, leg: usize) -> Result<(), String> {
    let Some(namespace) = open(keeper, leg)? else { return Ok(()) };
    if !keeper.shared.legs[leg].is_there() {
        return Err(keeper.shared.legs[leg].absence());
    }
    let name = keeper.shared.legs[leg].name.clone();
    fits(&name, &namespace.geometry(), &keeper.record).map_err(|error| error.to_string())?;
    let doubts = keeper.shared.legs[leg].doubts();
    let bytes = keeper.record.blocks * u64::from(keeper.record.block_size);
    let read = find::read(&mut keeper.panel, leg, &namespace, Search::Near(bytes));
    let found = Found { name, what: read.what };
    let mut is_new = false;
    let missed: Vec<usize> = match &found.what {
        What::Marked(record) => {
            judge(keeper, leg, record)?;
            // The mirror has continued without the leg's record, whose generation number may be
            // higher. Advance until this mirror's record is the newer one.
            while !keeper.record.descends_from(record)
                && keeper.record.generation <= record.generation
            {
                if !keeper.write_record(None) {
                    return Err(
                        "the mirror could not write a newer record to the legs in sync".to_owned()
                    );
                }
            }
            keeper.slots[leg] = read.slot;
            let lacks = find::marked(&read.bitmap.bits, keeper.shared.regions.len());
            match keeper.misleads(leg) || keeper.record.outlived(record) {
                true => (0..keeper.shared.regions.len()).collect(),
                false => lacks.collect(),
            }
        }
        What::Unmarked { geometry, .. } => {
            let take = keeper.options.taking == Taking::Empty;
            may_take(&found, geometry, &keeper.record, take).map_err(|error| error.to_string())?;
            keeper.slots[leg] = 0;
            is_new = true;
            (0..keeper.shared.regions.len()).collect()
        }
        What::Absent(reason) => return Err(reason.clone()),
        What::Unusable(_) => {
            return Err("the leg's mirror record is damaged, or in a newer format".to_owned());
        }
    };
    // Before this leg gets a record, the bitmaps of the other legs must have the regions that this
    // leg lacks. Otherwise, after a power cut, this leg would look as if it had the same data as
    // the others.
    if !missed.is_empty() && !keeper.mark(&missed) {
        return Err("the mirror could not write the bitmap to the legs in sync".to_owned());
    }
    prepare(keeper, leg, is_new)?;
    if !keeper.shared.let_in(leg, doubts) {
        return Err("writes from before the outage may still change the leg".to_owned());
    }
    keeper.vouches_again(leg);
    tracing::info!(
        leg = %keeper.shared.legs[leg].name,
        "the leg catches up: the mirror copies the missing data to it"
    );
    keeper.copy_from_the_beginning();
    keeper.shared.wake_queues();
    keeper.shared.changes.tell(farblock_block::Change::Availability);
    Ok(())
}

/// Checks that a leg with a record is an earlier state of this mirror.
fn judge(keeper: &Keeper, leg: usize, record: &Record) -> Result<(), String> {
    if record.mirror != keeper.record.mirror || record.leg != leg {
        return Err(
            "the leg holds the record of another leg or mirror: name the right leg".to_owned()
        );
    }
    let legs = 0..keeper.record.standings.len();
    let in_sync = legs.into_iter().find(|&leg| !keeper.record.is_behind(leg)).unwrap_or(0);
    match keeper.record.supersedes(record) {
        true if keeper.record.is_newer_than_leg(record) => Err(format!("the leg {OLDER_COPY}")),
        true => Ok(()),
        false => Err(format!("the leg and {} {TWO_HISTORIES}", keeper.shared.legs[in_sync].name)),
    }
}

/// Writes the bitmap to the leg, and then a record which says that the leg is behind, before any
/// data. The keeper first writes a claim to a new leg, which would no longer look empty after a
/// partial write of the record.
fn prepare(keeper: &mut Keeper, leg: usize, is_new: bool) -> Result<(), String> {
    if is_new {
        keeper.claim(leg, &claim::emit(keeper.record.mirror))?;
    }
    let write = keeper.record_write(leg, &keeper.record.clone());
    let doubts = keeper.shared.legs[leg].doubts();
    let done = keeper.panel.run_one(leg, write);
    done.result
        .map_err(|error| format!("the mirror could not write its record to the leg: {error}"))?;
    keeper.has_record(leg, doubts);
    keeper.page_count += 1;
    for page in keeper.pages() {
        let write = keeper.page_write(leg, page);
        let done = keeper.panel.run_one(leg, write);
        done.result.map_err(|error| {
            format!("the mirror could not write the bitmap to the leg: {error}")
        })?;
    }
    if is_new { keeper.claim(leg, &claim::NONE) } else { Ok(()) }
}

/// The namespace that the leg's source opens. A thread opens it, because that may take long. `None`
/// while the thread is running.
fn open(keeper: &mut Keeper, leg: usize) -> Result<Option<Arc<dyn Namespace>>, String> {
    let shared = &keeper.shared;
    if let Some(namespace) = shared.legs[leg].namespace() {
        let reopens = shared.legs[leg].reopens.swap(false, Ordering::SeqCst);
        if !is_gone(&namespace) && !reopens {
            return Ok(Some(namespace));
        }
        drop(namespace);
        // Close the leg first, so that its lock is free when the source opens it again.
        keeper.panel.forget(leg);
        shared.uninstall(leg);
        shared.wake_queues();
    }
    let Retry { opening, .. } = &mut keeper.retries[leg];
    if let Some(slot) = opening {
        let Some(result) = lock(slot).take() else { return Err(OPENING.to_owned()) };
        *opening = None;
        shared.install(leg, result?);
        // The queues then end their operations on the leg's previous namespace.
        shared.wake_queues();
        return Ok(shared.legs[leg].namespace());
    }
    let slot = Arc::new(Mutex::new(None));
    let (source, result) = (Arc::clone(&keeper.sources[leg]), Arc::clone(&slot));
    let weak = Arc::downgrade(shared);
    let started = os::spawn("farblock-leg".to_owned(), move || {
        *lock(&result) = Some(source.settle().and_then(|()| source.open()));
        if let Some(shared) = weak.upgrade() {
            shared.wake_keeper();
        }
    });
    started.map_err(|error| format!("the mirror could not start a thread: {error}"))?;
    *opening = Some(slot);
    Err(OPENING.to_owned())
}
