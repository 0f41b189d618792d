//! Progress of a benchmark, and its cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;

/// The measured side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SideName {
    /// The storage itself.
    Local,
    /// The same kind of storage, through the network.
    Remote,
    /// Bare sockets over the same network, with no storage at all.
    Floor,
}

impl SideName {
    /// `local`, `remote` or `floor`.
    pub fn name(self) -> &'static str {
        match self {
            SideName::Local => "local",
            SideName::Remote => "remote",
            SideName::Floor => "floor",
        }
    }
}

/// The current phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A fresh namespace is filled with data to read.
    Fill,
    /// The long unmeasured load before the first run of a pattern.
    WarmUp,
    /// The short unmeasured load at the start of each run.
    Ramp,
    /// I/Os are counted.
    Measure,
    /// The run waits for the last I/Os.
    Drain,
}

impl Phase {
    /// A word or two for a progress bar.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Fill => "fill",
            Phase::WarmUp => "warm-up",
            Phase::Ramp => "ramp",
            Phase::Measure => "measure",
            Phase::Drain => "drain",
        }
    }
}

/// The current position of a benchmark, reported a few times a second.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The index of the pattern, from 0. While a namespace is filled: 0.
    pub pattern_index: usize,
    /// The number of patterns.
    pub pattern_count: usize,
    /// The pattern, as it runs.
    pub pattern: &'a Pattern,
    /// The measured side.
    pub side: SideName,
    /// The run of this pattern on this side, from 0.
    pub run: u32,
    /// The number of runs.
    pub runs: u32,
    /// The current phase.
    pub phase: Phase,
    /// Time since the start of the phase.
    pub elapsed: Duration,
    /// The planned time of the phase, if known: a fill ends after bytes, not after a time.
    pub planned: Option<Duration>,
    /// I/Os per second since the last snapshot.
    pub iops: f64,
    /// MiB per second since the last snapshot.
    pub mib_per_second: f64,
    /// The completed fraction of the plan's time, 0 to 1.
    pub plan_fraction: f64,
}

/// Receives snapshots on the thread that called [`compare`](crate::compare()), for example as a
/// closure.
pub trait Progress {
    /// Called a few times a second, and at each change of phase.
    fn update(&mut self, snapshot: &Snapshot<'_>);
}

impl<F: FnMut(&Snapshot<'_>)> Progress for F {
    fn update(&mut self, snapshot: &Snapshot<'_>) {
        self(snapshot);
    }
}

/// Ignores snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn update(&mut self, _snapshot: &Snapshot<'_>) {}
}

/// Cancels a benchmark from another thread or a signal handler. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A new cancel, not yet requested.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Requests the end of the benchmark within a fraction of a second (plus the time that
    /// outstanding I/Os take).
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the benchmark was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
