//! Writers that know what they wrote: each block holds its address and a version, is read back
//! again and again, and once more at the end.

use farblock_block::Namespace;
use farblock_block::blocking::Blocking;
use farblock_host::Disk;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Threads with one operation at a time each.
pub(super) const WRITERS: usize = 8;
/// Bytes of an operation.
const BLOCK: usize = 4096;
/// Blocks that one operation reads at the end.
const SWEEP_BLOCKS: usize = 16;

/// What they count.
#[derive(Default)]
pub(super) struct Load {
    stop: AtomicBool,
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    /// Ended with an error.
    pub(super) failed: AtomicU64,
    /// Blocks that held something else than what was acknowledged.
    pub(super) lost: AtomicU64,
    /// Blocks that were read at the end.
    pub(super) swept: AtomicU64,
    /// The first thing that was wrong.
    pub(super) wrong: Mutex<Option<String>>,
    /// The longest read and write since somebody asked, in microseconds.
    longest: [AtomicU64; 2],
    /// Operations of each writer.
    turns: [AtomicU64; WRITERS],
}

impl Load {
    /// Has the writers read everything once more, and end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// The longest read and the longest write since the last time.
    pub(super) fn longest(&self) -> [Duration; 2] {
        self.longest.each_ref().map(|longest| Duration::from_micros(longest.swap(0, Relaxed)))
    }

    /// How much each writer has done.
    pub(super) fn turns(&self) -> [u64; WRITERS] {
        self.turns.each_ref().map(|turns| turns.load(Relaxed))
    }

    fn complain(&self, what: String) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.get_or_insert(what);
    }
}

/// One thread's work, on its own part of the disk.
pub(super) fn write_and_compare(disk: &Disk, number: usize, load: &Load) {
    let mut blocks = match Blocking::new(disk) {
        Ok(blocks) => blocks,
        Err(error) => {
            load.failed.fetch_add(1, Relaxed);
            return load.complain(format!("no queue can be opened: {error}"));
        }
    };
    let per_block = BLOCK as u64 / u64::from(blocks.geometry().block_size);
    let count = disk.geometry().blocks / per_block / WRITERS as u64;
    let first = number as u64 * count;
    let versions = vec![Some(0); count as usize];
    let data = vec![0; BLOCK];
    let mut writer = Writer { blocks: &mut blocks, load, number, first, per_block, versions, data };
    let mut turn: u64 = 0;
    while !load.stop.load(Relaxed) {
        turn += 1;
        let scattered = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        writer.write((scattered % count) as usize, turn);
        // One that was written a while ago.
        let earlier = (turn - turn % 64 / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let at = (earlier % count) as usize;
        writer.compare(at..at + 1, &load.reads);
    }
    for at in (0..count as usize).step_by(SWEEP_BLOCKS) {
        writer.compare(at..(at + SWEEP_BLOCKS).min(count as usize), &load.swept);
    }
}

struct Writer<'a> {
    blocks: &'a mut Blocking,
    load: &'a Load,
    number: usize,
    /// Its first block.
    first: u64,
    /// The disk's blocks in one of these.
    per_block: u64,
    /// What was acknowledged; unknown after a write that failed.
    versions: Vec<Option<u64>>,
    data: Vec<u8>,
}

impl Writer<'_> {
    fn write(&mut self, at: usize, version: u64) {
        let block = self.first + at as u64;
        fill(&mut self.data, block, version);
        let began = Instant::now();
        let done = self.blocks.write(block * self.per_block, &self.data);
        self.took(1, began);
        self.versions[at] = match done {
            Ok(()) => {
                self.load.writes.fetch_add(1, Relaxed);
                Some(version)
            }
            Err(error) => {
                self.load.failed.fetch_add(1, Relaxed);
                self.load.complain(format!("a write failed: {error}"));
                None
            }
        };
    }

    fn compare(&mut self, range: Range<usize>, count: &AtomicU64) {
        let mut found = vec![0; range.len() * BLOCK];
        let lba = (self.first + range.start as u64) * self.per_block;
        let began = Instant::now();
        let done = self.blocks.read(lba, &mut found);
        self.took(0, began);
        if let Err(error) = done {
            self.load.failed.fetch_add(1, Relaxed);
            return self.load.complain(format!("a read failed: {error}"));
        }
        for (at, found) in range.zip(found.chunks_exact(BLOCK)) {
            count.fetch_add(1, Relaxed);
            let Some(version) = self.versions[at] else { continue };
            let block = self.first + at as u64;
            fill(&mut self.data, block, version);
            if found != self.data {
                self.load.lost.fetch_add(1, Relaxed);
                self.load.complain(format!("block {block} is not what was acknowledged"));
            }
        }
    }

    fn took(&self, which: usize, began: Instant) {
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.load.longest[which].fetch_max(us, Relaxed);
        self.load.turns[self.number].fetch_add(1, Relaxed);
    }
}

/// Version 0 is a block that was never written.
fn fill(data: &mut [u8], block: u64, version: u64) {
    let block = if version == 0 { 0 } else { block };
    for chunk in data.chunks_exact_mut(16) {
        chunk[..8].copy_from_slice(&version.to_le_bytes());
        chunk[8..].copy_from_slice(&block.to_le_bytes());
    }
}
