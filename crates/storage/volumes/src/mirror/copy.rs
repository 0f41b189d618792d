//! Copies data from a leg in sync to the other legs, chunk by chunk.
//!
//! The keeper (the mirror's thread) first copies suspect regions, in which legs in sync may differ.
//! It starts with the regions for which reads wait. Then it copies to legs that are catching up.
//! While the keeper copies a chunk, writes to its region wait. The keeper compares first, and
//! writes only where a leg has other data.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farblock_block::Op;
use farblock_reactor::{Buffer, os};

use super::keeper::Keeper;
use super::panel::Ended;
use super::regions::Regions;
use super::shared::{Difference, LegState, bit, lock, members};
use crate::limits::{CHUNK_BYTES, DIFFERENCES};

/// The reason to copy or compare a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    Suspect,
    CatchUp,
    Verify,
}

/// A part of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    why: Why,
    region: usize,
    lba: u64,
    blocks: u32,
    last: bool,
}

pub(crate) enum Job {
    None,
    Later(Instant),
    Chunk(Chunk),
    Promote,
}

pub(crate) struct Copying {
    pub(crate) read_first: Vec<usize>,
    pub(crate) suspects: BTreeSet<usize>,
    /// The time until which writes of an earlier process or a dropped queue may still change
    /// suspect regions.
    pub(crate) settled: Instant,
    /// The next region to copy to the legs that catch up.
    pub(crate) cursor: Option<usize>,
    pub(crate) verify: Option<usize>,
    /// The region in progress: the reason, the region, and the first block of the next chunk.
    current: Option<(Why, usize, u64)>,
    /// The end time of the last chunk that was not suspect, and the number of its bytes. They
    /// determine when the speed limit permits the next chunk.
    last: Option<(Instant, u64)>,
}

impl Copying {
    pub(crate) fn new(now: Instant) -> Copying {
        Copying {
            read_first: Vec::new(),
            suspects: BTreeSet::new(),
            settled: now,
            cursor: None,
            verify: None,
            current: None,
            last: None,
        }
    }

    /// Restarts the copy in progress if it copies one of these suspect regions, because the chunks
    /// that are already copied may differ again.
    pub(crate) fn begin_again(&mut self, suspects: &[usize], regions: &Regions) {
        let again =
            |&mut (why, region, _): &mut _| why == Why::Suspect && suspects.contains(&region);
        if let Some((_, region, _)) = self.current.take_if(again) {
            regions.open(region);
        }
    }

    /// Whether no region is left to copy: no region is suspect, and no leg catches up.
    pub(crate) fn is_idle(&self) -> bool {
        self.suspects.is_empty() && self.cursor.is_none() && self.current.is_none()
    }
}

impl Keeper {
    pub(crate) fn next_job(&mut self) -> Job {
        if let Some((why, region, at)) = self.copying.current {
            return self.chunk_job(why, region, at);
        }
        let now = os::now();
        let suspects = &mut self.copying;
        let urgent = suspects.read_first.drain(..).find(|at| suspects.suspects.contains(at));
        if let Some(region) = urgent.or_else(|| suspects.suspects.first().copied()) {
            if suspects.settled > now {
                return Job::Later(suspects.settled);
            }
            return self.begin(Why::Suspect, region);
        }
        if let Some(cursor) = self.copying.cursor {
            let next = (cursor..self.shared.regions.len()).find(|&at| self.is_marked(at));
            let catching_up =
                self.shared.legs.iter().any(|leg| leg.state() == LegState::CatchingUp);
            return match next {
                _ if !catching_up => {
                    self.copying.cursor = None;
                    self.next_job()
                }
                None => Job::Promote,
                Some(region) => {
                    self.copying.cursor = Some(region);
                    self.begin(Why::CatchUp, region)
                }
            };
        }
        match self.copying.verify {
            Some(region) => self.begin(Why::Verify, region),
            None => Job::None,
        }
    }

    /// Restarts the copy of the region in progress. A leg that was just added lacks the chunks that
    /// the keeper has already copied.
    pub(crate) fn copy_from_the_beginning(&mut self) {
        if let Some((_, region, _)) = self.copying.current.take_if(|(why, ..)| *why == Why::CatchUp)
        {
            self.shared.regions.open(region);
        }
        self.copying.cursor = Some(0);
    }

    fn begin(&mut self, why: Why, region: usize) -> Job {
        let at = region as u64 * self.shared.region_blocks;
        self.copying.current = Some((why, region, at));
        self.chunk_job(why, region, at)
    }

    fn chunk_job(&mut self, why: Why, region: usize, lba: u64) -> Job {
        let next = self.next_chunk_at().filter(|&next| why != Why::Suspect && next > os::now());
        if let Some(next) = next {
            if self.copying.suspects.is_empty() {
                return Job::Later(next);
            }
            // Interrupt this copy, since suspect regions come first. It starts again later.
            self.copying.current = None;
            return self.next_job();
        }
        let shared = &self.shared;
        let end = (region as u64 + 1) * shared.region_blocks;
        let end = end.min(shared.geometry.blocks);
        let limit = match shared.geometry.max_blocks {
            0 => u32::MAX,
            limit => limit,
        };
        let chunk = CHUNK_BYTES / u64::from(shared.geometry.block_size);
        let blocks = (end - lba).min(chunk).min(u64::from(limit)) as u32;
        let last = lba + u64::from(blocks) == end;
        Job::Chunk(Chunk { why, region, lba, blocks, last })
    }

    /// The earliest time at which to copy or compare the next chunk; `None` if that may happen now.
    /// Reads the speed limit on each call, because the limit may change.
    fn next_chunk_at(&self) -> Option<Instant> {
        let (done, bytes) = self.copying.last?;
        let speed = self.shared.copy_speed.load(Ordering::Relaxed);
        let nanos = bytes.saturating_mul(1_000_000_000).checked_div(speed)?;
        Some(done + Duration::from_nanos(nanos))
    }

    /// Processes one chunk. Returns false if the chunk must wait for writes in its region.
    pub(crate) fn do_chunk(&mut self, chunk: Chunk) -> bool {
        let regions = &self.shared.regions;
        regions.close(chunk.region);
        if !regions.is_empty(chunk.region) && !os::has_mistake("a copy beside writes") {
            return false; // when the last write leaves the region, it wakes the keeper
        }
        match chunk.why {
            Why::Verify => self.compare(chunk),
            Why::Suspect | Why::CatchUp => self.copy(chunk),
        }
        let bytes = self.shared.geometry.bytes(chunk.blocks) as u64;
        self.copying.current = match chunk.last {
            false => Some((chunk.why, chunk.region, chunk.lba + u64::from(chunk.blocks))),
            true => None,
        };
        if chunk.last {
            self.end_region(chunk);
        }
        self.shared.regions.open(chunk.region);
        self.shared.wake_queues();
        if chunk.why != Why::Suspect {
            self.copying.last = Some((os::now(), bytes));
        }
        true
    }

    fn end_region(&mut self, chunk: Chunk) {
        match chunk.why {
            Why::Suspect => {
                // Flush before any queue can read the copy. Otherwise a leg could lose the copy in
                // a power cut, and a read would then return older data than an earlier read.
                let alone = self.shared.in_sync().count_ones() == 1;
                let durable = alone || self.flush(self.shared.in_sync());
                let inbox = lock(&self.shared.inbox);
                if durable && !inbox.suspects.contains(&chunk.region) {
                    self.copying.suspects.remove(&chunk.region);
                    self.shared.regions.trust(chunk.region);
                }
            }
            // If another leg was added meanwhile, the cursor has changed, and the copy starts
            // again.
            Why::CatchUp if self.copying.cursor == Some(chunk.region) => {
                self.copying.cursor = Some(chunk.region + 1);
            }
            Why::CatchUp => {}
            Why::Verify => {
                let next = chunk.region + 1;
                let over = next == self.shared.regions.len();
                self.copying.verify = (!over).then_some(next);
                let mut progress = lock(&self.shared.progress);
                progress.verifying = !over;
                progress.verifies += u64::from(over);
            }
        }
    }

    fn read_op(&self, chunk: Chunk) -> Op {
        let buffer = Buffer::new(self.shared.geometry.bytes(chunk.blocks));
        Op::read(chunk.lba, chunk.blocks, buffer, 0)
    }

    /// Reads a chunk. Returns the leg in sync that supplied the data, and the data. `None` if no
    /// leg could read it.
    fn read_source(&mut self, chunk: Chunk) -> Option<(usize, Buffer)> {
        let in_sync = self.shared.in_sync();
        let first = in_sync & self.newest;
        for leg in members(first).chain(members(in_sync & !first)) {
            let done = self.panel.run_one(leg, self.read_op(chunk));
            // If the mirror has put this leg out meanwhile, ignore its answer: the leg may have
            // lost data before it answered.
            let counts = self.shared.in_sync() & bit(leg) != 0;
            if let (true, Ok(()), Some(buffer)) = (counts, done.result, done.buffer) {
                return Some((leg, buffer));
            }
        }
        None
    }

    fn copy(&mut self, chunk: Chunk) {
        let Some((source, data)) = self.read_source(chunk) else {
            for leg in members(self.shared.written() & !self.shared.in_sync()) {
                self.shared.put_out(leg, "no leg in sync could read the data that this leg lacks");
            }
            return;
        };
        let targets = self.shared.written() & !bit(source);
        let reads = members(targets).map(|leg| (leg, self.read_op(chunk))).collect();
        let mut writes = Vec::new();
        for ended in self.panel.run(reads) {
            let same = ended.done.result.is_ok()
                && ended.done.buffer.as_deref().is_some_and(|found| *found == *data);
            if !same {
                let copy = Buffer::copy_of(&data);
                writes.push((ended.leg, Op::write(chunk.lba, chunk.blocks, copy, 0)));
            }
        }
        let bytes = data.len() as u64;
        lock(&self.shared.progress).copied_bytes += bytes * writes.len() as u64;
        for ended in self.panel.run(writes) {
            if let Err(error) = ended.done.result {
                self.shared.put_out(
                    ended.leg,
                    &format!("the mirror could not copy data to the leg: {error}"),
                );
            }
        }
    }

    fn compare(&mut self, chunk: Chunk) {
        let legs = members(self.shared.in_sync());
        let reads = legs.map(|leg| (leg, self.read_op(chunk))).collect();
        let mut ended = self.panel.run(reads);
        // Leave out legs that the mirror has put out since the reads started.
        let in_sync = self.shared.in_sync();
        ended.retain(|ended| in_sync & bit(ended.leg) != 0);
        let (read, unread): (Vec<_>, Vec<_>) =
            ended.iter().partition(|ended| ended.done.result.is_ok());
        let mut found = read.iter().filter_map(|ended| ended.done.buffer.as_deref());
        let first = found.next();
        let differ = found.any(|other| Some(other) != first);
        let bytes = self.shared.geometry.bytes(chunk.blocks) as u64;
        unread.iter().for_each(|ended| self.could_not_read(ended, chunk));
        let mut progress = lock(&self.shared.progress);
        match unread.is_empty() && read.len() > 1 {
            true => progress.verified_bytes += bytes,
            false => progress.uncompared_bytes += bytes,
        }
        if differ {
            progress.differing_bytes += bytes;
            if progress.differences.len() < DIFFERENCES {
                progress.differences.push(Difference { lba: chunk.lba, blocks: chunk.blocks });
            }
            tracing::error!(
                lba = chunk.lba,
                blocks = chunk.blocks,
                "legs in sync differ in these blocks"
            );
        }
    }

    /// Logs a read error once per leg and verify: on a dead disk every chunk fails.
    fn could_not_read(&self, ended: &Ended, chunk: Chunk) {
        let unread = &mut lock(&self.shared.progress).unread_legs;
        let Err(error) = &ended.done.result else { return };
        if *unread & bit(ended.leg) == 0 {
            let leg = &self.shared.legs[ended.leg].name;
            tracing::warn!(
                %leg, lba = chunk.lba,
                "the verify cannot compare these blocks of the leg, because a read failed: {error}"
            );
        }
        *unread |= bit(ended.leg);
    }
}

#[cfg(test)]
mod tests {
    use super::super::regions::Entry;
    use super::*;

    #[test]
    fn a_region_marked_during_its_copy_is_copied_again() {
        let (regions, mut copying) = (Regions::new(2), Copying::new(os::now()));
        copying.current = Some((Why::Suspect, 1, 8));
        regions.close(1);
        copying.begin_again(&[0], &regions);
        assert_eq!(
            copying.current,
            Some((Why::Suspect, 1, 8)),
            "marking another region restarted the copy"
        );
        copying.begin_again(&[1], &regions);
        assert_eq!(copying.current, None);
        assert_eq!(
            regions.enter(1..2, &mut Vec::new()),
            Entry::Wait,
            "the restarted region is still closed to writes"
        );
    }
}
