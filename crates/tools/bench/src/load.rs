//! One load on one namespace, begun at an agreed time: what a fleet puts together from many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farblock_block::Namespace;
use farblock_reactor::Config;

use crate::addresses::check_fit;
use crate::cpu::Meters;
use crate::error::{BenchError, RunError};
use crate::generator::{self, RunSpec, Tick};
use crate::latency::Latencies;
use crate::limits::{DRAIN_LIMIT, MAX_BUFFER_BYTES};
use crate::pattern::Pattern;
use crate::progress::Cancel;
use crate::slots::buffer_bytes;

/// What to put on the namespace.
#[derive(Clone, Debug)]
pub struct LoadSpec<'a> {
    /// Its jobs are all started, however few processors there are.
    pub pattern: &'a Pattern,
    /// The event loop of each job.
    pub reactor: &'a Config,
    /// Where random addresses and data begin.
    pub seed: u64,
    /// When to begin. It has to be soon enough for the queues to be opened; without, it begins
    /// when they are.
    pub start: Option<Instant>,
    /// Unmeasured load from then on.
    pub ramp: Duration,
    /// Measured time after that.
    pub runtime: Duration,
}

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    /// Reads that completed in the measured time.
    pub reads: u64,
    /// Writes that did.
    pub writes: u64,
    /// The measured time.
    pub elapsed: Duration,
    /// Latencies of all of them.
    pub latencies: Latencies,
}

/// Carries the load out. Whether the namespace may be written is for the caller to know.
/// `on_tick` is told the I/Os per second now and then, and 0 at the end.
///
/// # Errors
/// If the load does not fit the namespace, or, inside, if it came to a bad end.
pub fn run(
    namespace: &Arc<dyn Namespace>,
    spec: &LoadSpec<'_>,
    cancel: &Cancel,
    on_tick: &mut dyn FnMut(f64),
) -> Result<Result<Measured, RunError>, BenchError> {
    let pattern = spec.pattern;
    pattern.validate()?;
    if buffer_bytes(pattern) > MAX_BUFFER_BYTES {
        let why = format!("its buffers take more than {MAX_BUFFER_BYTES} bytes");
        return Err(BenchError::BadPattern { text: pattern.name.clone(), why });
    }
    let (geometry, name) = (namespace.geometry(), namespace.describe());
    let span = check_fit(&geometry, &name, pattern, None)?;
    if pattern.rw.writes() && geometry.read_only {
        let what = format!("the pattern {}", pattern.name);
        return Err(BenchError::ReadOnly { what, namespace: name });
    }
    let meters =
        Meters { host_cpu: None, target_cpu: None, host_process: None, target_process: None };
    let run = RunSpec {
        pattern,
        span,
        reactor: spec.reactor,
        connections: 1,
        seed: spec.seed,
        start: spec.start,
        ramp: spec.ramp,
        runtime: Some(spec.runtime),
        io_size: None,
        drain_limit: DRAIN_LIMIT,
        meters: &meters,
    };
    let sample = generator::run(namespace, &run, cancel, &mut |tick: Tick| on_tick(tick.iops));
    Ok(sample.map(|sample| Measured {
        reads: sample.reads,
        writes: sample.writes,
        elapsed: sample.elapsed,
        latencies: sample.latencies,
    }))
}
