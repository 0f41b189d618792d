//! The thread of a mirror: records, the bitmap, copying, and legs that come back.
//!
//! It does one thing after the other. What queues wait for (a region that is to become dirty, a
//! leg that is to be recorded as behind) comes first, and between any two chunks that are copied.

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
use crate::limits::{CLEAN_EVERY, FIRST_RETRY, LAST_RETRY, RESERVED_BYTES, SETTLE};

/// The pause after the last leg could not be written.
const UNRECORDABLE_PAUSE: Duration = Duration::from_millis(200);

/// When a leg that is out is tried again.
pub(crate) struct Retry {
    pub(crate) at: Instant,
    pub(crate) wait: Duration,
    /// A thread that opens it.
    pub(crate) opening: Option<Arc<Mutex<Option<Opening>>>>,
}

pub(crate) type Opening = Result<Arc<dyn Namespace>, String>;

pub(crate) struct Keeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) panel: Panel,
    pub(crate) options: MirrorOptions,
    pub(crate) sources: Vec<Arc<dyn LegSource>>,
    /// As it was written last.
    pub(crate) record: Record,
    /// Where each leg's next record goes.
    pub(crate) slots: Vec<usize>,
    /// As it is on every leg that is written, or with more in it.
    pub(crate) bitmap: Vec<u8>,
    /// It was not written, and no leg may have what is in it.
    owes_pages: bool,
    /// How many pages of the bitmap were written to legs.
    pub(crate) page_count: u64,
    /// Legs with the newest that was found: where they may differ, these count.
    pub(crate) newest: LegSet,
    /// Since a look at what is quiet everything is durable, and each leg has a record of after it.
    has_looked: bool,
    /// What each leg had when the mirror started is in a record.
    is_confirmed: bool,
    pub(crate) retries: Vec<Retry>,
    pub(crate) copying: Copying,
    wanted: BTreeSet<usize>,
    next_clean: Option<Instant>,
    /// What each leg has to show.
    pub(crate) audit: Audit,
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

    /// Tells by `started` when records are written, or cannot be; a sentence, and nothing more
    /// happens, if nobody is there who could have them.
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

    /// Why there is nothing to start with.
    fn lost(&self) -> Option<String> {
        let legs = &self.shared.legs;
        let in_sync = self.shared.in_sync();
        if members(in_sync).any(|leg| legs[leg].is_there()) {
            return None;
        }
        let leg = &legs[members(in_sync).next()?];
        Some(format!(
            "{} was lost while the mirror started, and no other leg has all of the data ({}): \
             bring it back, and start again",
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

    /// Writes bitmap and record to all legs in sync, before anything else is.
    fn start(&mut self) -> bool {
        let pages = self.pages().collect();
        // The first leg of a new mirror.
        let new = if self.record.generation == 1 { self.shared.in_sync() } else { 0 };
        let mine = claim::emit(self.record.mirror);
        let is_claimed = members(new).all(|leg| self.claim(leg, &mine).is_ok());
        let started = is_claimed && self.write_pages(&pages) && self.write_record(None);
        if started {
            // One that stays does no harm beside a record.
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

    /// Where the reserved part of a leg begins.
    pub(crate) fn reserved_lba(&self, leg: usize) -> u64 {
        let blocks = self.shared.legs[leg].blocks().unwrap_or(self.record.blocks);
        blocks - RESERVED_BYTES / u64::from(self.record.block_size)
    }

    /// A durable write into the reserved part.
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

    /// Says that a leg is about to become one, or takes that back.
    pub(crate) fn claim(&mut self, leg: usize, claim: &[u8]) -> Result<(), String> {
        let write = self.reserved_write(leg, claim::OFFSET, claim);
        let done = self.panel.run_one(leg, write);
        done.result.map_err(|error| format!("it cannot be claimed: {error}"))
    }

    pub(crate) fn record_write(&self, leg: usize, record: &Record) -> Op {
        let mut bytes = vec![0; RECORD_BYTES];
        Record { leg, ..record.clone() }.emit(&mut bytes);
        self.reserved_write(leg, SLOT_OFFSETS[self.slots[leg]], &bytes)
    }

    /// Records who is in sync, on every leg that is written; `promoted` is from now on. Legs in
    /// sync are first: none of them may know less of another one than that one does.
    pub(crate) fn write_record(&mut self, promoted: Option<usize>) -> bool {
        if os::has_mistake("an acknowledgement before the record") {
            // Else the moment in which that matters is too short to be met.
            self.panel.wait(Some(Duration::from_millis(50)));
        }
        loop {
            let number = random().map(u64::from_le_bytes);
            self.record.advance(number.expect("there were random numbers before"));
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

    /// Gives whether all of them have it; none if the last one in sync has not.
    fn write_record_to(&mut self, legs: u64) -> Option<bool> {
        // A record on a copy that was put in a leg's place would make it look like the leg.
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

    /// A leg's reserved part cannot be written. None if it is the last one.
    fn reserve_failed(&mut self, leg: usize) -> Option<bool> {
        if self.shared.put_out(leg, "its record cannot be written") {
            return Some(false);
        }
        self.shared.unrecordable.store(true, Ordering::SeqCst);
        self.shared.wake_queues();
        None
    }

    /// Records legs that were put out.
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

    /// Writes a second record: that each leg has the first one is known only when that is written,
    /// and an older copy of any of them is known as that when it is written down.
    fn confirm(&mut self) -> bool {
        self.is_confirmed = self.is_confirmed || self.write_record(None);
        self.is_confirmed
    }

    /// Makes wanted regions dirty.
    fn grant(&mut self) -> bool {
        if self.wanted.is_empty() {
            return true;
        }
        let regions: Vec<usize> = std::mem::take(&mut self.wanted).into_iter().collect();
        if !self.mark(&regions) {
            self.wanted.extend(regions);
            return false;
        }
        true
    }

    /// Puts regions into the bitmap.
    pub(crate) fn mark(&mut self, regions: &[usize]) -> bool {
        let mut pages = BTreeSet::new();
        for &region in regions.iter().filter(|&&region| !self.is_marked(region)).collect::<Vec<_>>()
        {
            self.bitmap[region / 8] |= 1 << (region % 8);
            pages.insert(self.page_of(region));
        }
        // A part that could not be written the last time may be among them.
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

    /// Writes parts of the bitmap to every leg that is written.
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

    /// Tries legs that are out again, when it is time, and when that they are out is recorded: what
    /// was written without them waits for that.
    fn look_at_missing_legs(&mut self, deadline: &mut Option<Instant>) {
        let out = self.shared.all() & !self.shared.written();
        for leg in members(out & self.shared.behind()) {
            let Retry { at, opening, .. } = &self.retries[leg];
            let is_opened = opening.as_ref().is_some_and(|slot| lock(slot).is_some());
            if *at > os::now() && !is_opened {
                sooner(deadline, *at);
            } else if self.shared.legs[leg].is_there() && self.shared.legs[leg].has_late() {
                // Whoever ends the last one wakes the keeper.
                self.shared.legs[leg].say("writes of before are not over there");
            } else if let Err(reason) = rejoin::attempt(self, leg) {
                tracing::debug!(leg = %self.shared.legs[leg].name, reason, "not let in");
                // What is known of it is better than that.
                let is_opening = reason == rejoin::OPENING;
                if !is_opening || lock(&self.shared.legs[leg].reason).is_empty() {
                    self.shared.legs[leg].say(reason);
                }
                let retry = &mut self.retries[leg];
                retry.at = os::now() + retry.wait;
                // That it is being opened is no failure: what comes of that is.
                if !is_opening {
                    retry.wait = (retry.wait * 2).min(LAST_RETRY);
                }
                sooner(deadline, retry.at);
            }
        }
    }

    /// Takes regions that nobody writes out of the bitmap.
    fn clean(&mut self) {
        let now = os::now();
        if self.next_clean.is_none_or(|at| at > now) {
            return;
        }
        let whole = self.shared.in_sync() == self.shared.all()
            || os::has_mistake("a degraded mirror that forgets");
        if whole && self.copying.is_idle() {
            self.clear_idle();
        }
        // Another look is needed for as long as there is something to take out.
        let some = self.shared.regions.dirty_count() > 0;
        self.next_clean = some.then_some(now + CLEAN_EVERY);
    }

    /// What is in the bitmap, is on all legs, and was not touched since the last look, goes.
    ///
    /// A look is: forget who touched what, flush, and write a record. So whatever goes was flushed
    /// before each leg had the record of the last look, and the one of this look says that it has
    /// that. An older copy of a leg that lacks it is recognised, and one that is not lacks only
    /// what is still in the bitmap.
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

    /// Makes durable what legs have; false if one of them was put out, or cannot.
    pub(crate) fn flush(&mut self, legs: u64) -> bool {
        self.shared.begin_keepers_flush();
        let shared = Arc::clone(&self.shared);
        let ops = members(legs).map(|leg| (leg, Op::flush(0))).collect();
        // At once: it is not read any more while others take their time.
        let ended = self.panel.run_telling(ops, |ended| {
            if ended.done.result.is_err() && !shared.put_out(ended.leg, "a flush failed there") {
                // A leg may say so only once, and it was not the mirror's user who heard it.
                shared.owes_failure.store(true, Ordering::SeqCst);
            }
        });
        self.shared.end_keepers_flush();
        ended.iter().all(|ended| ended.done.result.is_ok())
    }

    /// Leaves the bitmap as empty as it can be.
    fn finish(&mut self) {
        self.take_inbox();
        let whole = self.shared.in_sync() == self.shared.all();
        if whole && self.copying.is_idle() && self.shared.behind() == 0 {
            // The first look is at what may have been written just now.
            self.clear_idle();
            self.clear_idle();
        }
        tracing::debug!("the mirror is closed");
    }

    /// A step of copying or comparing; true if there may be another one at once.
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

    /// Everything is copied: legs that were catching up are in sync.
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
                tracing::info!(leg = %self.shared.legs[leg].name, "in sync again");
                self.retries[leg].wait = FIRST_RETRY;
                self.shared.legs[leg].say("");
                self.next_clean.get_or_insert(os::now() + CLEAN_EVERY);
            } else {
                // The record may say that it is in sync: another one has to say that it is not.
                self.shared.put_out(leg, "it was lost while it came into sync");
            }
            self.shared.wake_queues();
            self.shared.changes.tell(Change::Availability);
        }
    }
}

pub(crate) fn sooner(deadline: &mut Option<Instant>, at: Instant) {
    *deadline = Some(deadline.map_or(at, |before| before.min(at)));
}

/// Whether a namespace will never be of use again.
pub(crate) fn is_gone(namespace: &Arc<dyn Namespace>) -> bool {
    namespace.availability() == Availability::Gone
}
