//! The load of the demonstration: writers that verify their data. Each block contains its address
//! and a version. A writer repeatedly reads some of its blocks back, and reads all of them at the
//! end.

use farblock_fleet::versioned::{Tally, Versioned};
use farblock_host::Disk;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The number of writers. Each writer is a thread with one operation at a time.
pub(super) const WRITERS: usize = 8;

/// The writers' counters.
#[derive(Default)]
pub(super) struct Load {
    stop: AtomicBool,
    pub(super) tally: Tally,
    pub(super) reads: AtomicU64,
    /// Blocks read in the final sweep.
    pub(super) swept: AtomicU64,
    /// The longest read and write since the last call of `longest`, in microseconds.
    longest: [AtomicU64; 2],
    /// Operations that each writer has done.
    turns: [AtomicU64; WRITERS],
}

impl Load {
    /// Tells the writers to read all their blocks once more, and to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Returns the duration of the longest read and of the longest write since the last call.
    pub(super) fn longest(&self) -> [Duration; 2] {
        self.longest.each_ref().map(|longest| Duration::from_micros(longest.swap(0, Relaxed)))
    }

    /// Returns the number of operations that each writer has done.
    pub(super) fn turns(&self) -> [u64; WRITERS] {
        self.turns.each_ref().map(|turns| turns.load(Relaxed))
    }

    fn timed<T>(&self, which: usize, number: usize, operation: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = operation();
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.longest[which].fetch_max(us, Relaxed);
        self.turns[number].fetch_add(1, Relaxed);
        done
    }
}

/// Runs one writer on its share of the disk.
pub(super) fn write_and_compare(disk: &Disk, number: usize, load: &Load) {
    let mut blocks = match Versioned::new(disk, (number, WRITERS), u64::MAX, true) {
        Ok(blocks) => blocks,
        Err(why) => return load.tally.fail(why),
    };
    let mut turn: u64 = 0;
    while !load.stop.load(Relaxed) {
        turn += 1;
        let at = blocks.scattered(turn);
        load.tally.wrote(load.timed(1, number, || blocks.write(at, turn)));
        // Compare a block that this writer wrote some turns ago.
        let at = blocks.scattered(turn - turn % 64 / 2);
        load.tally.compared(load.timed(0, number, || blocks.compare(at..at + 1)), &load.reads);
    }
    for range in blocks.sweep() {
        load.tally.compared(load.timed(0, number, || blocks.compare(range)), &load.swept);
    }
}
