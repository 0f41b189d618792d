//! Latencies of a disk's operations, from submission to completion.
//!
//! Each operation counts once, even if the disk tried several paths. Its latency includes the wait
//! for a path. The queues read no clock until a user enables the measurement.

use farblock_block::{Command, Latency, LatencyCounts};
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Latencies of successful operations during a measurement. Counts never decrease.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiskLatency {
    /// Reads.
    pub reads: LatencyCounts,
    /// Writes.
    pub writes: LatencyCounts,
    /// Flushes.
    pub flushes: LatencyCounts,
    /// Write zeroes and deallocations.
    pub others: LatencyCounts,
}

impl AddAssign<&Self> for DiskLatency {
    fn add_assign(&mut self, other: &Self) {
        self.reads += &other.reads;
        self.writes += &other.writes;
        self.flushes += &other.flushes;
        self.others += &other.others;
    }
}

/// The latencies of one queue. The alignment prevents false sharing: two meters are never in one
/// cache line, or in two lines that a processor fetches together.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Meter {
    reads: Latency,
    writes: Latency,
    flushes: Latency,
    others: Latency,
}

impl Meter {
    /// Counts an operation. Only the queue that owns this meter may call this function.
    pub(super) fn count(&self, command: Command, took: Duration) {
        let latency = match command {
            Command::Read => &self.reads,
            Command::Write => &self.writes,
            Command::Flush => &self.flushes,
            Command::WriteZeroes { .. } | Command::Deallocate => &self.others,
        };
        latency.count(took);
    }

    fn counts(&self) -> DiskLatency {
        DiskLatency {
            reads: self.reads.counts(),
            writes: self.writes.counts(),
            flushes: self.flushes.counts(),
            others: self.others.counts(),
        }
    }
}

/// Latencies of all queues.
#[derive(Default)]
pub(super) struct Meters {
    measures: AtomicBool,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    open: Vec<Arc<Meter>>,
    /// The counts of closed queues.
    gone: DiskLatency,
}

impl Meters {
    pub(super) fn measures(&self) -> bool {
        self.measures.load(Ordering::Relaxed)
    }

    pub(super) fn measure(&self, measure: bool) {
        self.measures.store(measure, Ordering::Relaxed);
    }

    /// Creates a meter for a new queue.
    pub(super) fn open(&self) -> Arc<Meter> {
        let meter = Arc::new(Meter::default());
        self.lock().open.push(Arc::clone(&meter));
        meter
    }

    /// Removes the meter of a closing queue and keeps its counts.
    pub(super) fn close(&self, meter: &Arc<Meter>) {
        let mut all = self.lock();
        all.open.retain(|other| !Arc::ptr_eq(other, meter));
        all.gone += &meter.counts();
    }

    pub(super) fn sum(&self) -> DiskLatency {
        let all = self.lock();
        let mut sum = all.gone;
        all.open.iter().for_each(|meter| sum += &meter.counts());
        sum
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        // A panic cannot leave this state half-changed, so ignore poisoning.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_by_kind_and_survive_their_queue() {
        let meters = Meters::default();
        let (one, other) = (meters.open(), meters.open());
        let took = Duration::from_micros(3);
        let zeroes = Command::WriteZeroes { deallocate: true };
        one.count(Command::Read, took);
        other.count(Command::Write, took);
        let flushes = [Command::Flush; 3];
        let all = flushes.into_iter().chain([zeroes, Command::Deallocate, Command::Write]);
        all.for_each(|command| one.count(command, took));
        let before = meters.sum();
        let DiskLatency { reads, writes, flushes, others } = before;
        let counts = [reads, writes, flushes, others].map(|of| (of.counts[2], of.sum_ns));
        assert_eq!(counts, [(1, 3000), (2, 6000), (3, 9000), (2, 6000)]);
        meters.close(&one);
        assert_eq!((meters.sum(), meters.lock().open.len()), (before, 1));
        other.count(Command::Read, took);
        assert_eq!(meters.sum().reads.counts[2], 2);
    }
}
