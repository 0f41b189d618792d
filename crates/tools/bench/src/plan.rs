//! The plan of a benchmark: the patterns to measure, the sides, and the times.

use std::sync::Arc;
use std::time::Duration;

use farblock_block::Namespace;
use farblock_reactor::Config;

use crate::addresses::{Span, check_fit};
use crate::cpu::Meters;
use crate::error::BenchError;
use crate::floor::Floor;
use crate::limits::{MAX_BUFFER_BYTES, MAX_RUNS};
use crate::machine;
use crate::pattern::{Pattern, Rw};
use crate::slots::buffer_bytes;
use crate::times::Times;

/// The parameters of a benchmark. Start from [`Plan::quick`] or [`Plan::full`].
#[derive(Clone, Debug)]
pub struct Plan {
    /// The patterns, in order.
    pub patterns: Vec<Pattern>,
    /// The measured time of each run.
    pub runtime: Duration,
    /// The time of unmeasured load at the start of each run.
    pub ramp: Duration,
    /// The time of unmeasured load before the first run of each pattern on a side.
    pub warm_up: Duration,
    /// The number of runs of each pattern on each side. The report contains their averages.
    pub runs: u32,
    /// With two sides: repeat the runs until the 95 % interval of the ratio of the sides is narrow,
    /// but at most this often.
    pub most_runs: Option<u32>,
    /// Sentences for the reader of the report.
    pub remarks: Vec<String>,
    /// Whether write patterns may overwrite data on namespaces that were not made for the
    /// benchmark.
    pub allow_writes: bool,
    /// The number of bytes to use of each namespace, from its start (fio's `size`). `None` means
    /// all.
    pub size: Option<u64>,
    /// The number of bytes after which each job of a run ends (fio's `io_size`), unless `runtime`
    /// ends it first.
    pub io_size: Option<u64>,
    /// The maximum number of jobs of a pattern. `None` means the number of cores.
    pub max_jobs: Option<u32>,
    /// The number of queues (for a remote namespace: connections) over which each job spreads its
    /// I/Os.
    pub connections: u32,
    /// The event loop of each job.
    pub reactor: Config,
    /// The floor to measure beside the namespaces, if any: bare sockets, which show the network's
    /// limit.
    pub floor: Option<Floor>,
    /// The seed of random addresses and data. The same seed gives the same I/Os.
    pub seed: u64,
}

impl Plan {
    /// The six patterns with one run of five seconds each, about a minute and a half for both
    /// sides.
    pub fn quick() -> Plan {
        Plan {
            patterns: Pattern::six(),
            runtime: Duration::from_secs(5),
            ramp: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            runs: 1,
            most_runs: None,
            remarks: Vec::new(),
            allow_writes: false,
            size: None,
            io_size: None,
            max_jobs: None,
            connections: 1,
            reactor: Config::default(),
            floor: None,
            seed: 0x6661_7262_6c6f_636b,
        }
    }

    /// The method of StarWind's published test in less time: a warm-up, and then three averaged
    /// runs of half a minute.
    pub fn full() -> Plan {
        Plan {
            runtime: Duration::from_secs(30),
            ramp: Duration::from_secs(5),
            warm_up: Duration::from_secs(30),
            runs: 3,
            ..Plan::quick()
        }
    }

    /// The duration of the plan for this number of disks and the floor, without filling the disks.
    pub fn duration(&self, disks: usize) -> Duration {
        let of_side = |times: Times| {
            (times.ramp + times.runtime)
                .saturating_mul(self.last_run())
                .saturating_add(times.warm_up)
        };
        let times = self.times(0);
        let disks = of_side(times).saturating_mul(u32::try_from(disks).unwrap_or(u32::MAX));
        let floor = self.floor.as_ref().map(|floor| of_side(floor.times(times)));
        let pattern = disks.saturating_add(floor.unwrap_or_default());
        pattern.saturating_mul(u32::try_from(self.patterns.len()).unwrap_or(u32::MAX))
    }

    /// The maximum number of runs of a pattern on each side.
    pub fn last_run(&self) -> u32 {
        self.most_runs.unwrap_or(self.runs).max(self.runs)
    }

    /// The phases of a run on a disk. `run` is the number of the run of a pattern, from 0.
    pub(crate) fn times(&self, run: u32) -> Times {
        let warm_up = if run == 0 { self.warm_up } else { Duration::ZERO };
        Times { warm_up, ramp: self.ramp, runtime: self.runtime }
    }

    /// The patterns as they run on this machine, with no more jobs than cores.
    pub fn scaled_patterns(&self) -> Vec<Pattern> {
        let cores = self.max_jobs.unwrap_or_else(machine::cores);
        self.patterns.iter().map(|pattern| pattern.scaled_to(cores)).collect()
    }

    /// Checks everything that can be known before the first I/O.
    pub(crate) fn check(&self, sides: &[&Side]) -> Result<(), BenchError> {
        if sides.is_empty() {
            return Err(BenchError::BadPlan("it has neither a local nor a remote namespace"));
        }
        if self.patterns.is_empty() {
            return Err(BenchError::BadPlan("it has no patterns"));
        }
        if self.runs == 0 || self.last_run() > MAX_RUNS {
            return Err(BenchError::BadPlan("the number of runs is between 1 and 1000"));
        }
        if self.runtime.is_zero() && self.io_size.is_none() {
            return Err(BenchError::BadPlan("it has no measuring time"));
        }
        for pattern in &self.scaled_patterns() {
            pattern.validate()?;
            if buffer_bytes(pattern) > MAX_BUFFER_BYTES {
                let why = format!("its buffers take more than {MAX_BUFFER_BYTES} bytes");
                return Err(BenchError::BadPattern { text: pattern.name.clone(), why });
            }
        }
        for side in sides {
            side.check(self)?;
        }
        self.floor.as_ref().map_or(Ok(()), |floor| floor.check(self.runtime, &self.patterns))
    }
}

impl Default for Plan {
    fn default() -> Plan {
        Plan::quick()
    }
}

/// A namespace to measure, and the permitted operations on it.
#[derive(Clone)]
pub struct Side {
    /// The namespace.
    pub namespace: Arc<dyn Namespace>,
    /// The sources of processor time and memory use.
    pub meters: Meters,
    /// Whether the namespace was made for the benchmark, so that it contains no data to lose.
    pub scratch: bool,
    /// Whether to fill the namespace with random data first. A disk returns unwritten blocks faster
    /// than stored data.
    pub fill: bool,
}

impl Side {
    /// A namespace that may contain data. Write patterns require [`Plan::allow_writes`].
    pub fn new(namespace: Arc<dyn Namespace>) -> Side {
        Side { namespace, meters: Meters::default(), scratch: false, fill: false }
    }

    /// Marks the namespace as made for the benchmark, so that the benchmark may write to it.
    #[must_use]
    pub fn scratch(mut self) -> Side {
        self.scratch = true;
        self
    }

    /// Requests that the benchmark fills the namespace with random data first.
    #[must_use]
    pub fn fill(mut self) -> Side {
        self.fill = true;
        self
    }

    /// Sets the sources of processor time and memory use.
    #[must_use]
    pub fn meters(mut self, meters: Meters) -> Side {
        self.meters = meters;
        self
    }

    fn check(&self, plan: &Plan) -> Result<(), BenchError> {
        let namespace = self.namespace.describe();
        let geometry = self.namespace.geometry();
        for pattern in &plan.scaled_patterns() {
            if pattern.rw.writes() {
                self.check_writes(plan, format!("the pattern {}", pattern.name))?;
            }
            check_fit(&geometry, &namespace, pattern, plan.size)?;
        }
        if self.fill {
            self.check_writes(plan, "filling it with data".to_owned())?;
            self.fill_span(plan)?;
        }
        Ok(())
    }

    fn check_writes(&self, plan: &Plan, what: String) -> Result<(), BenchError> {
        let namespace = self.namespace.describe();
        if self.namespace.geometry().read_only {
            return Err(BenchError::ReadOnly { what, namespace });
        }
        if !plan.allow_writes && !self.scratch {
            return Err(BenchError::WritesRefused { what, namespace });
        }
        Ok(())
    }

    /// The pattern to fill a namespace with, and the span to fill once.
    pub(crate) fn fill_span(&self, plan: &Plan) -> Result<(Pattern, Span), BenchError> {
        let geometry = self.namespace.geometry();
        let size = plan.size.unwrap_or(geometry.capacity_bytes());
        let block_size_bytes = fill_block_bytes(size).max(geometry.block_size);
        let mut pattern = Pattern::new(Rw::Write, block_size_bytes, 1, 8);
        pattern.name = "fill".to_owned();
        let span = check_fit(&geometry, &self.namespace.describe(), &pattern, Some(size))?;
        Ok((pattern, span))
    }
}

/// The largest I/O size up to 1 MiB that divides `size`. If there is no suitable size, 64 KiB,
/// which leaves less than 64 KiB unwritten at the end.
fn fill_block_bytes(size: u64) -> u32 {
    let divisor = 1 << size.trailing_zeros().min(20);
    if size >= 64 << 10 { divisor.max(64 << 10) } else { divisor }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fill_uses_large_blocks() {
        assert_eq!(fill_block_bytes(1 << 30), 1 << 20);
        assert_eq!(fill_block_bytes((1 << 30) + (256 << 10)), 256 << 10);
        assert_eq!(fill_block_bytes((1 << 30) + 512), 64 << 10);
        assert_eq!(fill_block_bytes(12 << 10), 4 << 10);
    }

    #[test]
    fn the_duration_of_a_plan_is_the_sum_of_its_runs() {
        let quick = Plan::quick();
        assert_eq!(quick.duration(2), Duration::from_secs(6 * 2 * 6));
        assert_eq!(Plan::full().duration(1), Duration::from_secs(6 * (30 + 3 * 35)));
        let floor = |briefly| {
            let (address, meters) = (([127, 0, 0, 1], 1).into(), Meters::default());
            Some(Floor { address, threads: 1, meters, briefly })
        };
        let longer = Plan { floor: floor(None), ..Plan::full() };
        assert_eq!(longer.duration(1), Plan::full().duration(2));
        let longer = Plan { floor: floor(Some(Duration::from_secs(1))), ..Plan::full() };
        let brief = Duration::from_millis(6 * 3 * 1500);
        assert_eq!(longer.duration(1), Plan::full().duration(1) + brief);
        let brief = Plan { runtime: Duration::from_millis(400), ..longer };
        assert_eq!(brief.duration(1), Plan { floor: None, ..brief.clone() }.duration(2));
    }

    #[test]
    fn patterns_are_scaled_to_the_maximum_number_of_jobs() {
        let plan = Plan { max_jobs: Some(2), ..Plan::quick() };
        let jobs: Vec<u32> = plan.scaled_patterns().iter().map(|p| p.numjobs).collect();
        assert_eq!(jobs, [2, 2, 2, 2, 2, 1]);
    }
}
