//! A histogram of the durations of operations. One core adds to it, and any thread may read it.
//!
//! Only the core that owns a [`Latency`] adds to it, so adding takes a load and a store, without a
//! lock. Code that stores the [`Latency`] values of several cores must put them on different cache
//! lines.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of counts in a [`LatencyCounts`]. The first count covers durations up to 1 µs. Each
/// further count covers durations up to twice the bound of the count before it. The last count
/// covers all longer durations.
pub const LATENCY_STEPS: usize = 28;

/// Returns the longest duration that count number `step` covers, in microseconds; `None` for the
/// last count.
#[must_use]
pub fn latency_bound_us(step: usize) -> Option<u64> {
    (step + 1 < LATENCY_STEPS).then(|| 1 << step)
}

/// The sum and the histogram of the durations of operations.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LatencyCounts {
    /// The sum of all durations, in nanoseconds.
    pub sum_ns: u64,
    /// The number of operations by duration; see [`latency_bound_us`].
    pub counts: [u64; LATENCY_STEPS],
}

impl AddAssign<&Self> for LatencyCounts {
    fn add_assign(&mut self, other: &Self) {
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
    }
}

/// The durations of the operations of one core; see the [module](self).
#[derive(Default, Debug)]
pub struct Latency {
    sum_ns: AtomicU64,
    counts: [AtomicU64; LATENCY_STEPS],
}

impl Latency {
    /// Counts an operation that took this long. Only the owner may call this function.
    pub fn count(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&self.sum_ns, ns);
        add(&self.counts[step(ns)], 1);
    }

    /// Returns the current counts.
    pub fn counts(&self) -> LatencyCounts {
        LatencyCounts { sum_ns: load(&self.sum_ns), counts: self.counts.each_ref().map(load) }
    }
}

/// Adds to a counter. Only the owner writes, so no other write can interfere.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(load(counter).wrapping_add(count), Ordering::Relaxed);
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Returns the index of the count for this many nanoseconds.
fn step(ns: u64) -> usize {
    let us = ns.div_ceil(1000).max(1);
    let step = (us - 1).checked_ilog2().map_or(0, |log| log as usize + 1);
    step.min(LATENCY_STEPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_is_counted_in_the_step_of_its_bound() {
        for step_of in 0..LATENCY_STEPS - 1 {
            let bound_ns = latency_bound_us(step_of).expect("the last step is not tested") * 1000;
            assert_eq!(step(bound_ns), step_of);
            assert_eq!(step(bound_ns + 1), step_of + 1);
        }
        assert_eq!((step(0), step(u64::MAX)), (0, LATENCY_STEPS - 1));
        assert_eq!(latency_bound_us(LATENCY_STEPS - 1), None);
    }
}
