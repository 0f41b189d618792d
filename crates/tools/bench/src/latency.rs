//! Latencies of many I/Os in little memory, and what is said about them.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::{Deserialize, Serialize};

use crate::limits::{LATENCY_DIGITS, MAX_ENCODED_BYTES, MAX_LATENCY};

/// A histogram of latencies in nanoseconds, with three digits, an exact mean and an exact maximum.
///
/// It has its final size from the start, so recording allocates nothing.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
}

impl Latencies {
    /// An empty histogram.
    pub fn new() -> Latencies {
        let max_ns = MAX_LATENCY.as_nanos() as u64;
        let histogram = Histogram::new_with_bounds(1, max_ns, LATENCY_DIGITS)
            .expect("constant bounds that the histogram takes");
        Latencies { histogram, sum_ns: 0, max_ns: 0 }
    }

    /// Adds one latency. What exceeds [`MAX_LATENCY`] goes to the last bucket.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(ns);
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the same latency so many times.
    pub fn record_many(&mut self, latency: Duration, count: u64) {
        if count == 0 {
            return;
        }
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record_n(ns, count);
        self.sum_ns += u128::from(ns) * u128::from(count);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds everything that `other` has recorded.
    pub fn merge(&mut self, other: &Latencies) {
        self.histogram.add(&other.histogram).expect("histograms of the same bounds");
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many latencies there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The exact mean in nanoseconds; 0 of nothing.
    pub fn mean_ns(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 }
    }

    /// The latency that `percent` of all I/Os did not exceed, never more than the maximum.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        if self.count() == 0 {
            return 0;
        }
        self.histogram.value_at_percentile(percent).min(self.max_ns)
    }

    /// What goes into a report.
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

/// Latencies on their way from one process to another, or in a file: nothing of them is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedLatencies {
    /// The histogram in HdrHistogram's V2 encoding, in Base64: nanoseconds, three digits.
    pub histogram: String,
    /// The exact sum.
    pub sum_ns: u64,
    /// The exact maximum.
    pub max_ns: u64,
}

impl RecordedLatencies {
    /// What `latencies` holds.
    #[must_use]
    pub fn of(latencies: &Latencies) -> RecordedLatencies {
        let mut bytes = Vec::new();
        let written = V2Serializer::new().serialize(&latencies.histogram, &mut bytes);
        written.expect("memory takes it, and there are fewer counts than an encoding holds");
        RecordedLatencies {
            histogram: STANDARD.encode(bytes),
            sum_ns: u64::try_from(latencies.sum_ns).unwrap_or(u64::MAX),
            max_ns: latencies.max_ns,
        }
    }

    /// What was recorded.
    ///
    /// # Errors
    /// What is wrong with it, for it may come from a stranger.
    pub fn latencies(&self) -> Result<Latencies, String> {
        if self.histogram.len() > MAX_ENCODED_BYTES {
            return Err(format!("a histogram of more than {MAX_ENCODED_BYTES} characters"));
        }
        let bytes = STANDARD.decode(&self.histogram).map_err(|error| error.to_string())?;
        // Cookie, length, offset, digits: others than ours could make it take a lot of memory.
        let digits = bytes.get(12..16).map(|digits| u32::from_be_bytes(digits.try_into().unwrap()));
        if digits != Some(u32::from(LATENCY_DIGITS)) {
            return Err("a histogram with other digits than ours".to_owned());
        }
        let read = Deserializer::new().deserialize::<u64, _>(&mut bytes.as_slice());
        let histogram = read.map_err(|error| format!("no histogram: {error}"))?;
        let mut latencies = Latencies::new();
        let added = latencies.histogram.add(&histogram);
        added.map_err(|error| format!("a histogram of other bounds: {error}"))?;
        latencies.sum_ns = u128::from(self.sum_ns);
        latencies.max_ns = self.max_ns;
        Ok(latencies)
    }
}

/// Latencies of a run or of several, from submission to completion, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The arithmetic mean.
    pub mean_ns: f64,
    /// The median.
    pub p50_ns: u64,
    /// What 99 % of the I/Os did not exceed.
    pub p99_ns: u64,
    /// What 99.9 % of the I/Os did not exceed.
    pub p99_9_ns: u64,
    /// The longest.
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
    fn percentiles_have_three_digits() {
        let summary = of((1..=100_000).map(|i| i * 10)).summary();
        assert!((summary.mean_ns - 500_005.0).abs() < 1e-6, "the mean is exact");
        assert!(near(summary.p50_ns, 500_000), "{}", summary.p50_ns);
        assert!(near(summary.p99_ns, 990_000), "{}", summary.p99_ns);
        assert!(near(summary.p99_9_ns, 999_000), "{}", summary.p99_9_ns);
        assert_eq!(summary.max_ns, 1_000_000);
    }

    #[test]
    fn merged_is_the_same_as_recorded_together() {
        let mut merged = of([100, 200, 300]);
        merged.merge(&of([1_000_000, 50]));
        let together = of([100, 200, 300, 1_000_000, 50]);
        assert_eq!(merged.count(), 5);
        assert_eq!(merged.summary(), together.summary());
    }

    #[test]
    fn what_is_recorded_is_read_without_loss() {
        let mut latencies = of((1..=1000).map(|i| i * i * 37));
        latencies.record(Duration::from_secs(100_000));
        let read = RecordedLatencies::of(&latencies).latencies().expect("our own");
        assert_eq!(read.summary(), latencies.summary());
        assert_eq!(read.histogram, latencies.histogram);
        let mut both = read;
        both.merge(&of([5]));
        latencies.merge(&of([5]));
        assert_eq!(both.histogram, latencies.histogram);
        let nothing = RecordedLatencies::of(&Latencies::new()).latencies().expect("our own");
        assert_eq!(nothing.summary(), LatencySummary::default());
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let good = RecordedLatencies::of(&of([1, 2, 3]));
        let bytes = STANDARD.decode(&good.histogram).expect("our own");
        let with = |bytes: &[u8]| {
            let histogram = STANDARD.encode(bytes);
            RecordedLatencies { histogram, ..good.clone() }.latencies()
        };
        for end in 0..bytes.len() - 1 {
            assert!(with(&bytes[..end]).is_err(), "{end} bytes");
        }
        let mut digits = bytes.clone();
        digits[15] = 5;
        assert!(with(&digits).is_err_and(|error| error.contains("digits")));
        for at in 0..bytes.len() {
            for value in [0, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                // Whatever comes of it, it is no panic.
                drop(with(&changed));
            }
        }
        assert!(RecordedLatencies { histogram: "?".into(), ..good }.latencies().is_err());
    }

    #[test]
    fn nothing_is_zero_and_too_long_is_kept() {
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
