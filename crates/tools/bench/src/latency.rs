//! Records the latencies of many I/Os in little memory, and summarizes them.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::limits::{LATENCY_DIGITS, MAX_LATENCY};

/// A histogram of latencies in nanoseconds with three significant digits, an exact mean and an
/// exact maximum.
///
/// The size of the histogram is fixed, so recording does not allocate.
#[derive(Clone, Debug)]
pub struct Latencies {
    pub(crate) histogram: Histogram<u64>,
    pub(crate) sum_ns: u128,
    pub(crate) max_ns: u64,
}

impl Latencies {
    /// Creates an empty histogram.
    pub fn new() -> Latencies {
        let max_ns = MAX_LATENCY.as_nanos() as u64;
        let histogram = Histogram::new_with_bounds(1, max_ns, LATENCY_DIGITS)
            .expect("the histogram accepts these constant bounds");
        Latencies { histogram, sum_ns: 0, max_ns: 0 }
    }

    /// Adds one latency. A latency above [`MAX_LATENCY`] goes to the last bucket.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(ns);
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the same latency `count` times.
    pub fn record_many(&mut self, latency: Duration, count: u64) {
        if count == 0 {
            return;
        }
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record_n(ns, count);
        self.sum_ns += u128::from(ns) * u128::from(count);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all latencies of `other`.
    pub fn merge(&mut self, other: &Latencies) {
        self.histogram.add(&other.histogram).expect("both histograms have the same bounds");
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The number of latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The exact mean in nanoseconds; 0 if the histogram is empty.
    pub fn mean_ns(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 }
    }

    /// The latency in nanoseconds that `percent` of all I/Os did not exceed. It is at most the
    /// maximum.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        if self.count() == 0 {
            return 0;
        }
        self.histogram.value_at_percentile(percent).min(self.max_ns)
    }

    /// The summary for a report.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            mean_ns: self.mean_ns(),
            p50_ns: self.percentile_ns(50.0),
            p99_ns: self.percentile_ns(99.0),
            p99_9_ns: self.percentile_ns(99.9),
            max_ns: self.max_ns,
        }
    }
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

/// A summary of the latencies of one or several runs, from submission to completion, in
/// nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The arithmetic mean.
    pub mean_ns: f64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p99_9_ns: u64,
    /// The maximum.
    pub max_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(latencies: impl IntoIterator<Item = u64>) -> Latencies {
        let mut all = Latencies::new();
        latencies.into_iter().for_each(|ns| all.record(Duration::from_nanos(ns)));
        all
    }

    fn near(value: u64, expected: u64) -> bool {
        value.abs_diff(expected) * 1000 <= expected
    }

    #[test]
    fn percentiles_are_exact_to_three_digits() {
        let summary = of((1..=100_000).map(|i| i * 10)).summary();
        assert!((summary.mean_ns - 500_005.0).abs() < 1e-6, "an inexact mean");
        assert!(near(summary.p50_ns, 500_000), "{}", summary.p50_ns);
        assert!(near(summary.p99_ns, 990_000), "{}", summary.p99_ns);
        assert!(near(summary.p99_9_ns, 999_000), "{}", summary.p99_9_ns);
        assert_eq!(summary.max_ns, 1_000_000);
    }

    #[test]
    fn merged_latencies_equal_latencies_recorded_together() {
        let mut merged = of([100, 200, 300]);
        merged.merge(&of([1_000_000, 50]));
        let together = of([100, 200, 300, 1_000_000, 50]);
        assert_eq!(merged.count(), 5);
        assert_eq!(merged.summary(), together.summary());
    }

    #[test]
    fn an_empty_histogram_gives_zero_and_too_long_latencies_are_counted() {
        assert_eq!(Latencies::new().summary(), LatencySummary::default());
        let mut long = Latencies::new();
        long.record(Duration::from_secs(100_000));
        assert_eq!(long.count(), 1);
        assert_eq!(long.summary().max_ns, 100_000_000_000_000);
        assert!(long.percentile_ns(50.0) >= MAX_LATENCY.as_nanos() as u64);
    }

    #[test]
    fn a_single_value_is_every_percentile() {
        let summary = of([123_456_789]).summary();
        assert_eq!((summary.p50_ns, summary.p99_9_ns), (123_456_789, 123_456_789));
    }
}
