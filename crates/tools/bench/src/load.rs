//! Runs one load on one namespace, from a given start time on. `farblock fleet` runs such loads on
//! many machines at the same time.

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

/// The load to run.
#[derive(Clone, Debug)]
pub struct LoadSpec<'a> {
    /// The pattern. All of its jobs are started, even if there are fewer processors.
    pub pattern: &'a Pattern,
    /// The event loop of each job.
    pub reactor: &'a Config,
    /// The seed of random addresses and data.
    pub seed: u64,
    /// The start time, late enough for all queues to be open. `None` means as soon as they are
    /// open.
    pub start: Option<Instant>,
    /// The time of unmeasured load after the start.
    pub ramp: Duration,
    /// The measured time after the ramp.
    pub runtime: Duration,
}

/// The results of a load.
#[derive(Debug)]
pub struct Measured {
    /// The number of reads that completed in the measured time.
    pub reads: u64,
    /// The number of writes that completed in the measured time.
    pub writes: u64,
    /// The measured time.
    pub elapsed: Duration,
    /// The latencies of all these reads and writes.
    pub latencies: Latencies,
}

/// Runs the load. The caller decides whether the load may write to the namespace. `on_tick` gets
/// the I/Os per second at each [`TICK`](crate::limits::TICK), and 0 at the end.
///
/// # Errors
/// The outer error: the load does not fit the namespace. The inner error: the load failed while it
/// ran.
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
