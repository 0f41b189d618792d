//! The mirror's thread (the keeper): it writes records and the bitmap, copies data, and adds
//! returning legs.
//!
//! The keeper executes one task at a time. Requests for which queues wait (to mark a region dirty,
//! or to record a leg as behind) come first, also between two chunks of a copy.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farblock_block::{Availability, Change, Namespace, Op};
use farblock_reactor::{Buffer, os};

use super::assemble::random;
use super::audit::Audit;
use super::copy::{Copying, Job};
use super::panel::Panel;
use super::record::{BITMAP_OFFSET, RECORD_BYTES, Record, SLOT_OFFSETS, Standing};
use super::shared::{Leg, LegSet, LegState, Shared, bit, lock, members};
use super::{LegSource, MirrorOptions, claim, pages, rejoin};
use crate::limits::{
    CLEAN_EVERY, FIRST_RETRY, LAST_RETRY, RENEWALS, RENEWED_GENERATIONS, RESERVED_BYTES, SETTLE,
};

/// The pause after the keeper has failed to write the record to the last leg in sync.
const UNRECORDABLE_PAUSE: Duration = Duration::from_millis(200);

/// The schedule of attempts to add a leg that is out.
pub(crate) struct Retry {
    pub(crate) at: Instant,
    pub(crate) wait: Duration,
    /// The result of the thread that opens the leg.
    pub(crate) opening: Option<Arc<Mutex<Option<Opening>>>>,
}

pub(crate) type Opening = Result<Arc<dyn Namespace>, String>;

pub(crate) struct Keeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) panel: Panel,
    pub(crate) options: MirrorOptions,
    pub(crate) sources: Vec<Arc<dyn LegSource>>,
    /// The record that the keeper wrote last.
    pub(crate) record: Record,
    /// For each leg, the slot of its next record.
    pub(crate) slots: Vec<usize>,
    /// The bitmap as the keeper has last written it to every leg that gets writes. If a write
    /// failed, the bitmap on a leg may list fewer regions.
    pub(crate) bitmap: Vec<u8>,
    /// Whether the last write of the bitmap failed, so that possibly no leg has `bitmap`.
    owes_pages: bool,
    /// The number of bitmap pages written to legs.
    pub(crate) page_count: u64,
    /// The legs that had the newest record at the start. Where legs may differ, the keeper copies
    /// from one of these legs.
    pub(crate) newest: LegSet,
    /// Whether the last check for idle regions succeeded: it made all earlier data durable, and
    /// then wrote a record to each leg.
    has_looked: bool,
    /// Whether the keeper has written a second record since the start. The second one confirms that
    /// each leg has the first.
    is_confirmed: bool,
    pub(crate) retries: Vec<Retry>,
    pub(crate) copying: Copying,
    wanted: BTreeSet<usize>,
    next_clean: Option<Instant>,
    /// The schedule of renewed records while a leg is out; otherwise `None`.
    renewal: Option<Renewal>,
    /// The check of the records that the legs must have.
    pub(crate) audit: Audit,
}

/// The time of the next record of a mirror that lacks legs.
struct Renewal {
    /// The time at which the keeper first noticed that a leg was missing.
    since: Instant,
    next: Instant,
}

impl Keeper {
    pub(crate) fn new(
        shared: Arc<Shared>,
        panel: Panel,
        options: MirrorOptions,
        sources: Vec<Arc<dyn LegSource>>,
        found: super::Read,
    ) -> Keeper {
        let now = os::now();
        let retry = |_| Retry { at: now, wait: FIRST_RETRY, opening: None };
        Keeper {
            retries: (0..sources.len()).map(retry).collect(),
            audit: Audit::new(sources.len(), now),
            copying: Copying::new(now),
            wanted: BTreeSet::new(),
            next_clean: Some(now + CLEAN_EVERY),
            renewal: None,
            shared,
            panel,
            options,
            sources,
            record: found.record,
            slots: found.slots,
            bitmap: found.bitmap,
            owes_pages: false,
            page_count: found.page_count,
            newest: found.newest,
            has_looked: false,
            is_confirmed: false,
        }
    }

    /// Runs the keeper. Calls `started` once, after the first attempt to write the records. If the
    /// attempt failed and no leg in sync is available, passes the reason, and returns. Otherwise
    /// passes `None`, and repeats a failed attempt until it succeeds.
    pub(crate) fn run(mut self, started: impl FnOnce(Option<String>)) {
        self.panel.is_starting = true;
        let whole = self.start();
        self.panel.is_starting = false;
        if let Some(lost) = self.lost().filter(|_| !whole) {
            return started(Some(lost));
        }
        started(None);
        while !whole && !self.start() {
            if self.shared.is_stopped() {
                return;
            }
            self.panel.wait(Some(UNRECORDABLE_PAUSE));
            self.prove();
        }
        while !self.shared.is_stopped() {
            self.panel.has_run = false;
            let away = self.panel.look_for_absence();
            self.prove();
            self.take_inbox();
            let is_proven = self.shared.unproven() == 0;
            let recorded = is_proven && self.record_absence() && self.confirm();
            let granted = recorded && self.grant();
            let mut deadline = self.next_clean;
            if granted {
                self.audit_in_time(&mut deadline);
                self.look_at_missing_legs(&mut deadline);
                if self.copy_step(&mut deadline) {
                    continue;
                }
                self.clean();
                if self.panel.has_run {
                    continue;
                }
            }
            let deadline = deadline.filter(|_| granted);
            let pause = !granted || away;
            self.sleep(deadline, pause.then_some(UNRECORDABLE_PAUSE));
        }
        self.finish();
    }

    /// The reason why no leg in sync is available at the start; `None` if one is available.
    fn lost(&self) -> Option<String> {
        let legs = &self.shared.legs;
        let in_sync = self.shared.in_sync();
        if members(in_sync).any(|leg| legs[leg].is_there()) {
            return None;
        }
        let leg = &legs[members(in_sync).next()?];
        Some(format!(
            "{} became unavailable while the mirror started, and no other leg has all data ({}): \
             make it available, and start again",
            leg.name,
            leg.absence()
        ))
    }

    fn sleep(&mut self, deadline: Option<Instant>, pause: Option<Duration>) {
        let now = os::now();
        let left = deadline.map(|at| at.saturating_duration_since(now));
        let timeout = [left, pause].into_iter().flatten().min();
        self.panel.wait(timeout);
    }

    /// Writes the bitmap and the record to all legs in sync, before any data. Returns false if a
    /// write failed.
    fn start(&mut self) -> bool {
        let pages = self.pages().collect();
        // The first leg of a new mirror. It gets a claim before its first record.
        let new = if self.record.generation == 1 { self.shared.in_sync() } else { 0 };
        let mine = claim::emit(self.record.mirror);
        let is_claimed = members(new).all(|leg| self.claim(leg, &mine).is_ok());
        let started = is_claimed && self.write_pages(&pages) && self.write_record(None);
        if started {
            // If the removal of a claim fails, the claim does no harm, because the leg has a record
            // now.
            members(new).for_each(|leg| drop(self.claim(leg, &claim::NONE)));
        }
        for region in 0..self.shared.regions.len() {
            if started && self.is_marked(region) {
                self.shared.regions.set_dirty(region);
            }
        }
        if started {
            self.shared.wake_queues();
        }
        started
    }

    fn take_inbox(&mut self) {
        let mut inbox = lock(&self.shared.inbox);
        self.wanted.extend(inbox.wanted.drain(..));
        if !inbox.suspects.is_empty() {
            self.copying.begin_again(&inbox.suspects, &self.shared.regions);
            self.copying.suspects.extend(inbox.suspects.drain(..));
            self.copying.settled = os::now() + SETTLE;
        }
        self.copying.read_first.append(&mut inbox.read_first);
        if std::mem::take(&mut inbox.verify) {
            self.copying.verify = Some(0);
            let mut progress = lock(&self.shared.progress);
            (progress.verifying, progress.verified_bytes) = (true, 0);
            (progress.uncompared_bytes, progress.unread_legs) = (0, 0);
            progress.differing_bytes = 0;
            progress.differences.clear();
        }
    }

    pub(crate) fn is_marked(&self, region: usize) -> bool {
        self.bitmap[region / 8] & (1 << (region % 8)) != 0
    }

    /// The first block of the reserved part of a leg.
    pub(crate) fn reserved_lba(&self, leg: usize) -> u64 {
        let blocks = self.shared.legs[leg].blocks().unwrap_or(self.record.blocks);
        blocks - RESERVED_BYTES / u64::from(self.record.block_size)
    }

    /// A durable write to the reserved part of a leg.
    pub(crate) fn reserved_write(&self, leg: usize, offset: u64, bytes: &[u8]) -> Op {
        let block_size = u64::from(self.record.block_size);
        let blocks = (bytes.len() as u64).div_ceil(block_size);
        let mut buffer = Buffer::new((blocks * block_size) as usize);
        buffer.fill(0);
        buffer[..bytes.len()].copy_from_slice(bytes);
        let lba = self.reserved_lba(leg) + offset / block_size;
        let op = Op::write(lba, blocks as u32, buffer, 0);
        if os::has_mistake("a bitmap that is not durable") { op } else { op.durable() }
    }

    /// Writes a claim to a leg, or [`claim::NONE`] to remove the claim.
    pub(crate) fn claim(&mut self, leg: usize, claim: &[u8]) -> Result<(), String> {
        let write = self.reserved_write(leg, claim::OFFSET, claim);
        let done = self.panel.run_one(leg, write);
        done.result
            .map_err(|error| format!("the mirror could not write its claim to the leg: {error}"))
    }

    pub(crate) fn record_write(&self, leg: usize, record: &Record) -> Op {
        let mut bytes = vec![0; RECORD_BYTES];
        Record { leg, ..record.clone() }.emit(&mut bytes);
        self.reserved_write(leg, SLOT_OFFSETS[self.slots[leg]], &bytes)
    }

    /// Writes a new record to every leg that gets writes. The record says which legs are in sync,
    /// including `promoted`. Legs in sync get the record first, so that no other leg has a newer
    /// one. Returns false if the last leg in sync did not get the record.
    pub(crate) fn write_record(&mut self, promoted: Option<usize>) -> bool {
        if os::has_mistake("an acknowledgement before the record") {
            // The pause gives simulations time to cut the power at this point.
            self.panel.wait(Some(Duration::from_millis(50)));
        }
        loop {
            let number = random().map(u64::from_le_bytes);
            self.record.advance(number.expect("random numbers were available before"));
            let in_sync = self.shared.in_sync() | promoted.map_or(0, bit);
            let standing = |leg| match in_sync & bit(leg) {
                0 => Standing::Behind,
                _ => Standing::InSync,
            };
            let standings: Vec<_> = (0..self.shared.legs.len()).map(standing).collect();
            let is_news = self.record.standings != standings;
            self.record.standings = standings;
            let first = self.shared.in_sync();
            let Some(one) = self.write_record_to(first) else { return false };
            let later = self.shared.written() & !first;
            let Some(other) = self.write_record_to(later) else { return false };
            if one && other {
                let behind = self.shared.all() & !in_sync;
                self.shared.behind.store(behind, Ordering::SeqCst);
                self.shared.unrecordable.store(false, Ordering::SeqCst);
                self.shared.wake_queues();
                if is_news {
                    self.shared.changes.tell(Change::Availability);
                }
                return true;
            }
        }
    }

    /// Writes the record to these legs. Returns true if all of them have got it. `None`: the last
    /// leg in sync did not get the record, or must not be used.
    fn write_record_to(&mut self, legs: u64) -> Option<bool> {
        // Check first that each leg is still the right one: a record written to another copy would
        // make that copy look like the leg.
        self.audit(legs);
        if legs & self.shared.unproven() != 0 {
            return None;
        }
        let wanted = legs;
        let legs = legs & self.shared.written();
        let doubts: Vec<u64> = self.shared.legs.iter().map(Leg::doubts).collect();
        let ops = members(legs).map(|leg| (leg, self.record_write(leg, &self.record)));
        let ops = ops.collect();
        let mut whole = legs == wanted;
        for ended in self.panel.run(ops) {
            match ended.done.result {
                Ok(()) => whole &= self.has_record(ended.leg, doubts[ended.leg]),
                Err(_) => {
                    self.has_no_record(ended.leg, doubts[ended.leg]);
                    whole &= self.reserve_failed(ended.leg)?;
                }
            }
        }
        Some(whole)
    }

    /// Handles a failed write to the reserved part of a leg: puts the leg out. Returns `None` if it
    /// is the last leg in sync, which stays in use.
    fn reserve_failed(&mut self, leg: usize) -> Option<bool> {
        if self.shared.put_out(leg, "the mirror could not write its record to the leg") {
            return Some(false);
        }
        self.shared.unrecordable.store(true, Ordering::SeqCst);
        self.shared.wake_queues();
        None
    }

    /// Writes a record in which every leg that is out is behind, unless the last record already
    /// says so. Returns false if the write failed.
    fn record_absence(&mut self) -> bool {
        let out = self.shared.all() & !self.shared.written();
        let is_known = out & !self.shared.behind() == 0;
        for leg in members(out & !self.shared.behind()) {
            let retry = &mut self.retries[leg];
            retry.at = os::now() + retry.wait;
            retry.wait = (retry.wait * 2).min(LAST_RETRY);
        }
        is_known || self.write_record(None)
    }

    /// Writes a second record, which confirms that each leg has the first one. Only a confirmed
    /// record identifies an older copy of a leg.
    fn confirm(&mut self) -> bool {
        self.is_confirmed = self.is_confirmed || self.write_record(None);
        self.is_confirmed
    }

    /// Marks the requested regions dirty. Returns false if a write failed. The first write after an
    /// idle time waits for another record. So a copy that was made of a leg during the idle time
    /// does not have the last record.
    fn grant(&mut self) -> bool {
        if self.wanted.is_empty() {
            return true;
        }
        let was_idle = self.bitmap.iter().all(|&byte| byte == 0);
        if was_idle && !self.write_record(None) {
            return false;
        }
        let regions: Vec<usize> = std::mem::take(&mut self.wanted).into_iter().collect();
        if !self.mark(&regions) {
            self.wanted.extend(regions);
            return false;
        }
        true
    }

    /// Marks regions dirty in the bitmap of every leg that gets writes. Returns false if a write
    /// failed.
    pub(crate) fn mark(&mut self, regions: &[usize]) -> bool {
        let mut pages = BTreeSet::new();
        for &region in regions.iter().filter(|&&region| !self.is_marked(region)).collect::<Vec<_>>()
        {
            self.bitmap[region / 8] |= 1 << (region % 8);
            pages.insert(self.page_of(region));
        }
        // If the last write of a page failed, write all pages.
        let pages = if self.owes_pages { self.pages().collect() } else { pages };
        self.owes_pages = !self.write_pages(&pages);
        if self.owes_pages {
            return false;
        }
        self.shared.unrecordable.store(false, Ordering::SeqCst);
        regions.iter().for_each(|&region| self.shared.regions.set_dirty(region));
        self.next_clean.get_or_insert(os::now() + CLEAN_EVERY);
        self.shared.wake_queues();
        true
    }

    fn page_of(&self, region: usize) -> usize {
        region / 8 / pages::payload_bytes(self.record.block_size)
    }

    pub(crate) fn pages(&self) -> std::ops::Range<usize> {
        0..self.bitmap.len().div_ceil(pages::payload_bytes(self.record.block_size))
    }

    pub(crate) fn page_write(&self, leg: usize, page: usize) -> Op {
        let payload = pages::payload_bytes(self.record.block_size);
        let end = self.bitmap.len().min((page + 1) * payload);
        let bits = &self.bitmap[page * payload..end];
        let bytes = pages::emit(&self.record, page, self.page_count, bits);
        self.reserved_write(leg, BITMAP_OFFSET + (page * bytes.len()) as u64, &bytes)
    }

    /// Writes pages of the bitmap to every leg that gets writes. Returns false if the last leg in
    /// sync failed.
    fn write_pages(&mut self, pages: &BTreeSet<usize>) -> bool {
        for &page in pages {
            self.page_count += 1;
            let legs = members(self.shared.written());
            let ops = legs.map(|leg| (leg, self.page_write(leg, page)));
            for ended in self.panel.run(ops.collect()) {
                if ended.done.result.is_err() && self.reserve_failed(ended.leg).is_none() {
                    return false;
                }
            }
        }
        true
    }

    /// Tries to add the legs that are out, when their next attempt is due. A record must first say
    /// that a leg is behind, because writes that the leg lacks wait for that record.
    fn look_at_missing_legs(&mut self, deadline: &mut Option<Instant>) {
        let out = self.shared.all() & !self.shared.written();
        for leg in members(out & self.shared.behind()) {
            let Retry { at, opening, .. } = &self.retries[leg];
            let is_opened = opening.as_ref().is_some_and(|slot| lock(slot).is_some());
            if *at > os::now() && !is_opened {
                sooner(deadline, *at);
            } else if self.shared.legs[leg].is_there() && self.shared.legs[leg].has_late() {
                // No timer is needed: when the last late write ends, its queue wakes the keeper.
                self.shared.legs[leg].say("writes from before the outage may still change the leg");
            } else if let Err(reason) = rejoin::attempt(self, leg) {
                tracing::debug!(
                    leg = %self.shared.legs[leg].name, reason,
                    "cannot add the leg again yet"
                );
                // While the leg is opening, keep an earlier reason, which is more specific.
                let is_opening = reason == rejoin::OPENING;
                if !is_opening || lock(&self.shared.legs[leg].reason).is_empty() {
                    self.shared.legs[leg].say(reason);
                }
                let retry = &mut self.retries[leg];
                retry.at = os::now() + retry.wait;
                // A leg that is still opening has not failed. Do not wait longer for the next
                // attempt.
                if !is_opening {
                    retry.wait = (retry.wait * 2).min(LAST_RETRY);
                }
                sooner(deadline, retry.at);
            }
        }
    }

    /// Clears idle regions from the bitmap, if it is time for the next check of idle regions.
    fn clean(&mut self) {
        let now = os::now();
        if self.next_clean.is_none_or(|at| at > now) {
            return;
        }
        let whole = self.shared.in_sync() == self.shared.all()
            || os::has_mistake("a degraded mirror that forgets");
        if !whole {
            self.renew(now);
        } else if self.copying.is_idle() {
            self.clear_idle();
        }
        // Set the time of the next check as long as there are dirty regions.
        let some = self.shared.regions.dirty_count() > 0;
        self.next_clean = some.then_some(now + CLEAN_EVERY);
    }

    /// Writes another record while a leg is out. Otherwise, until the absent leg returns, an old
    /// copy of a leg in sync would still have the right record and could not be detected. The
    /// interval grows with the duration of the outage, since the generation of a returning leg must
    /// be among the last [`HISTORY`].
    ///
    /// [`HISTORY`]: crate::limits::HISTORY
    fn renew(&mut self, now: Instant) {
        if !self.may_renew() {
            return;
        }
        let renewal = self.renewal.get_or_insert(Renewal { since: now, next: now });
        if renewal.next > now {
            return;
        }
        renewal.next = now + CLEAN_EVERY.max((now - renewal.since) / RENEWALS);
        // If this fails, `confirm` tries again before the next write to a clean region.
        self.is_confirmed &= self.write_record(None);
    }

    /// Whether the history has room for renewals. Renewals are frequent after each start of the
    /// process, so without this check many restarts could push the generation of an absent leg out
    /// of the history.
    fn may_renew(&self) -> bool {
        let out = members(self.shared.all() & !self.shared.written());
        let had = out.map(|leg| self.record.had[leg]).filter(|&generation| generation > 0);
        had.min().is_none_or(|oldest| self.record.generation - oldest < RENEWED_GENERATIONS)
    }

    /// Clears the regions that are in the bitmap, equal on all legs, and untouched since the last
    /// check.
    ///
    /// Each check notes which regions are written from then on, flushes the legs, and writes a
    /// record. A region is cleared if nothing was written to it since the last check. Its data was
    /// therefore durable before each leg got the record of the last check, and the record of this
    /// check confirms that one. So a copy of a leg that lacks the region's data has an older
    /// record, by which the mirror recognizes it. Any other leg lacks at most regions that are
    /// still in the bitmap.
    fn clear_idle(&mut self) {
        let regions = &self.shared.regions;
        if regions.dirty_count() == 0 {
            return;
        }
        let had_looked = std::mem::take(&mut self.has_looked);
        let quiet: Vec<usize> = match had_looked {
            true => (0..regions.len()).filter(|&region| regions.is_quiet(region)).collect(),
            false => Vec::new(),
        };
        regions.forget_touches();
        let flushed =
            os::has_mistake("a clean region without a flush") || self.flush(self.shared.in_sync());
        if !flushed || !self.write_record(None) {
            return;
        }
        self.has_looked = true;
        let mut pages = BTreeSet::new();
        for region in quiet {
            if self.shared.regions.clear_if_idle(region) {
                self.bitmap[region / 8] &= !(1 << (region % 8));
                pages.insert(self.page_of(region));
            }
        }
        self.write_pages(&pages);
    }

    /// Flushes legs. Returns false if a flush failed.
    pub(crate) fn flush(&mut self, legs: u64) -> bool {
        self.shared.begin_keepers_flush();
        let shared = Arc::clone(&self.shared);
        let ops = members(legs).map(|leg| (leg, Op::flush(0))).collect();
        // Put a failed leg out at once, so that no queue reads it while flushes of other legs are
        // slow.
        let ended = self.panel.run_telling(ops, |ended| {
            if ended.done.result.is_err() && !shared.put_out(ended.leg, "a flush of the leg failed")
            {
                // A leg reports lost data only once, and the keeper got this report instead of a
                // user. So the next flush of a user must fail.
                shared.owes_failure.store(true, Ordering::SeqCst);
            }
        });
        self.shared.end_keepers_flush();
        ended.iter().all(|ended| ended.done.result.is_ok())
    }

    /// Empties the bitmap as far as possible, when the mirror is closed.
    fn finish(&mut self) {
        self.take_inbox();
        let whole = self.shared.in_sync() == self.shared.all();
        if whole && self.copying.is_idle() && self.shared.behind() == 0 {
            // Call this twice: a check clears only regions without writes since an earlier check.
            self.clear_idle();
            self.clear_idle();
        } else if self.shared.regions.dirty_count() > 0 {
            self.write_record(None);
        }
        tracing::debug!("closed the mirror");
    }

    /// Copies or compares a chunk. Returns true if another chunk may follow at once.
    fn copy_step(&mut self, deadline: &mut Option<Instant>) -> bool {
        match self.next_job() {
            Job::None => false,
            Job::Later(at) => {
                sooner(deadline, at);
                false
            }
            Job::Chunk(chunk) => self.do_chunk(chunk),
            Job::Promote => {
                self.promote();
                true
            }
        }
    }

    /// Records the legs that were catching up as in sync, after all data is copied.
    fn promote(&mut self) {
        self.copying.cursor = None;
        for leg in 0..self.shared.legs.len() {
            let catching_up = self.shared.legs[leg].state() == LegState::CatchingUp;
            let flushed = catching_up
                && (os::has_mistake("a promotion without a flush") || self.flush(bit(leg)));
            if !flushed || !self.shared.begin_promotion(leg) {
                continue;
            }
            if self.write_record(Some(leg)) && self.shared.promote(leg) {
                tracing::info!(leg = %self.shared.legs[leg].name, "the leg is in sync again");
                self.retries[leg].wait = FIRST_RETRY;
                self.shared.legs[leg].say("");
                self.renewal = None;
                self.next_clean.get_or_insert(os::now() + CLEAN_EVERY);
            } else {
                // A record on some leg may already say that this leg is in sync. Request another
                // record to correct it.
                self.shared.put_out(
                    leg,
                    "the leg became unavailable while the mirror recorded it as in sync",
                );
            }
            self.shared.wake_queues();
            self.shared.changes.tell(Change::Availability);
        }
    }
}

pub(crate) fn sooner(deadline: &mut Option<Instant>, at: Instant) {
    *deadline = Some(deadline.map_or(at, |before| before.min(at)));
}

/// Whether a namespace is unavailable permanently.
pub(crate) fn is_gone(namespace: &Arc<dyn Namespace>) -> bool {
    namespace.availability() == Availability::Gone
}
