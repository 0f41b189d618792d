//! What a run tells while it runs, and how it is called off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;

/// What is measured.
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

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Data is written to a fresh namespace, so that there is something to read.
    Fill,
    /// The long unmeasured load before the first run of a pattern.
    WarmUp,
    /// The short unmeasured load at the start of each run.
    Ramp,
    /// I/Os are counted.
    Measure,
    /// The last I/Os are waited for.
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

/// Where a benchmark is, a few times a second.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The pattern, from 0. While a namespace is filled: 0.
    pub pattern_index: usize,
    /// How many patterns there are.
    pub pattern_count: usize,
    /// The pattern, as it is run.
    pub pattern: &'a Pattern,
    /// What is measured.
    pub side: SideName,
    /// The run of this pattern on this side, from 0.
    pub run: u32,
    /// How many there are.
    pub runs: u32,
    /// What is going on.
    pub phase: Phase,
    /// Since the start of the phase.
    pub elapsed: Duration,
    /// How long the phase takes, where that is known: bytes end a fill, not time.
    pub planned: Option<Duration>,
    /// I/Os per second since the last snapshot.
    pub iops: f64,
    /// MiB per second since the last snapshot.
    pub mib_per_second: f64,
    /// Part of the whole plan that is done, 0 to 1, by time.
    pub plan_fraction: f64,
}

/// Takes snapshots, on the thread that called [`compare`](crate::compare()). A closure will do.
pub trait Progress {
    /// Called a few times a second, and at each change of phase.
    fn update(&mut self, snapshot: &Snapshot<'_>);
}

impl<F: FnMut(&Snapshot<'_>)> Progress for F {
    fn update(&mut self, snapshot: &Snapshot<'_>) {
        self(snapshot);
    }
}

/// Takes snapshots and does nothing with them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn update(&mut self, _snapshot: &Snapshot<'_>) {}
}

/// Calls a benchmark off from another thread or a signal handler: clones are one and the same.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Not cancelled yet.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the benchmark within a fraction of a second (plus the time that outstanding I/Os take).
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// It was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
