//! The progress of a benchmark, and its cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;

/// The name of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SideName {
    /// The storage itself.
    Local,
    /// The same kind of storage, through the network.
    Remote,
    /// Bare sockets over the same network, without storage.
    Floor,
}

impl SideName {
    /// The name as text: `local`, `remote` or `floor`.
    pub fn name(self) -> &'static str {
        match self {
            SideName::Local => "local",
            SideName::Remote => "remote",
            SideName::Floor => "floor",
        }
    }
}

/// A phase of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The benchmark fills a fresh namespace with data to read.
    Fill,
    /// The long unmeasured load before the first run of a pattern.
    WarmUp,
    /// The short unmeasured load at the start of each run.
    Ramp,
    /// The benchmark counts I/Os.
    Measure,
    /// The run waits for its last I/Os.
    Drain,
}

impl Phase {
    /// One or two words for a progress bar.
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

/// The current position of a benchmark, which it reports a few times a second.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The index of the pattern, from 0. It is 0 while the benchmark fills a namespace.
    pub pattern_index: usize,
    /// The number of patterns.
    pub pattern_count: usize,
    /// The pattern, as it runs on this machine.
    pub pattern: &'a Pattern,
    /// The side that is being measured.
    pub side: SideName,
    /// The number of the run of this pattern on this side, from 0.
    pub run: u32,
    /// The number of runs.
    pub runs: u32,
    /// The current phase.
    pub phase: Phase,
    /// The time since the start of the phase.
    pub elapsed: Duration,
    /// The planned time of the phase, if known. A fill ends after a number of bytes, not after a
    /// time.
    pub planned: Option<Duration>,
    /// The I/Os per second since the last snapshot.
    pub iops: f64,
    /// The MiB per second since the last snapshot.
    pub mib_per_second: f64,
    /// The completed fraction of the plan's time, from 0 to 1.
    pub plan_fraction: f64,
}

/// Receives snapshots on the thread that called [`compare`](crate::compare()). A closure can
/// implement this.
pub trait Progress {
    /// Receives a snapshot, a few times a second and at each change of phase.
    fn update(&mut self, snapshot: &Snapshot<'_>);
}

impl<F: FnMut(&Snapshot<'_>)> Progress for F {
    fn update(&mut self, snapshot: &Snapshot<'_>) {
        self(snapshot);
    }
}

/// A [`Progress`] that ignores snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn update(&mut self, _snapshot: &Snapshot<'_>) {}
}

/// Cancels a benchmark from another thread or a signal handler. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Creates a handle for a benchmark, which is not cancelled yet.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Cancels the benchmark. It ends within a fraction of a second, plus the time that its I/Os in
    /// flight take.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the benchmark is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
