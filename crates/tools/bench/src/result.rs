//! The results of a benchmark, as types and as JSON.
//!
//! The JSON is stable. Fields may be added. Fields are renamed or redefined only with an increase
//! of [`SCHEMA`]. The name of a field ends in its unit, if it has one. Numbers that were not
//! measured are `null`.
//!
//! ```json
//! { "schema": 1, "tool": "farblock-bench 0.1.0", "date": "2026-11-21T05:06:13Z",
//!   "command_line": "farblock bench …",
//!   "machine": { "cpu_model": "…", "cores": 2, "kernel": "Linux 6.18.44", … },
//!   "engine": "uring", "interrupted": false,
//!   "method": { "runtime_seconds": 30.0, "ramp_seconds": 5.0, "runs": 3, … },
//!   "local": "file disk.img (1 GiB, 512-byte blocks)", "remote": "…", "floor": null,
//!   "patterns": [ {
//!     "pattern": { "name": "4k random read", "rw": "randread", "iodepth": 32, "numjobs": 2, … },
//!     "local": { "iops": 1.0, "mib_per_second": 1.0, "latency": { "mean_ns": 1.0, … }, … },
//!     "remote": { … },
//!     "remote_percent_of_local": { "iops": 97.3, "throughput": 97.3, "mean_latency": 102.8, … },
//!     "floor": null, "remote_percent_of_floor": null,
//!     "errors": []
//!   } ] }
//! ```
//!
//! For a whole report, see the snapshot beside the tests of this module.

use serde::{Deserialize, Serialize};

use crate::cpu::CpuUse;
use crate::generator::Sample;
use crate::latency::{Latencies, LatencySummary};
use crate::machine::Machine;
use crate::pattern::Pattern;
use crate::progress::SideName;
use farblock_reactor::Polling;

/// The version of the JSON.
pub const SCHEMA: u32 = 1;
const MIB: f64 = (1 << 20) as f64;

/// All results of one benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The [`SCHEMA`] of the program that wrote the report.
    pub schema: u32,
    /// The name and version of the program that wrote the report.
    pub tool: String,
    /// The start of the benchmark in UTC: `2026-11-21T05:06:13Z`.
    pub date: String,
    /// The command line of the benchmark.
    pub command_line: String,
    /// The machine that ran the benchmark.
    pub machine: Machine,
    /// The event loop of the load generator: `uring` or `portable`.
    pub engine: String,
    /// The method of the measurement.
    pub method: Method,
    /// The description of the local namespace, if one was measured.
    pub local: Option<String>,
    /// The description of the remote namespace, if one was measured.
    pub remote: Option<String>,
    /// The description of the floor (bare sockets over the same network), if it was measured.
    pub floor: Option<String>,
    /// The results of each pattern, in the order of the plan.
    pub patterns: Vec<PatternReport>,
    /// Sentences for the reader, about the subject of the measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Whether the benchmark was cancelled. If so, the last pattern may lack runs, and later
    /// patterns are missing.
    pub interrupted: bool,
}

/// The method of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// The measured time of each run. With `io_size_bytes`, this is the maximum.
    pub runtime_seconds: f64,
    /// The time of unmeasured load at the start of each run.
    pub ramp_seconds: f64,
    /// The time of unmeasured load before the first run of each pattern on a side.
    pub warm_up_seconds: f64,
    /// The number of runs of each pattern on each side, whose figures are averaged.
    pub runs: u32,
    /// The spin mode of the load generator's event loops, as for `--spin`.
    #[serde(default = "usual_spin")]
    pub spin: String,
    /// The number of bytes used of each namespace, from its start. `null` means all.
    pub size_bytes: Option<u64>,
    /// The number of bytes after which each job of a run ended.
    pub io_size_bytes: Option<u64>,
    /// Sentences about the order of the runs, the regions of sequential jobs, and the averages.
    pub notes: Vec<String>,
}

/// The value of `spin` for reports that lack this field.
fn usual_spin() -> String {
    Polling::default().to_string()
}

/// The results of one pattern on all sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PatternReport {
    /// The pattern, as it ran.
    pub pattern: Pattern,
    /// The figures of the local side, if it was measured.
    pub local: Option<Figures>,
    /// The figures of the remote side, if it was measured.
    pub remote: Option<Figures>,
    /// The figures of the floor, if it was measured.
    pub floor: Option<Figures>,
    /// The remote side relative to the local side, if both were measured.
    pub remote_percent_of_local: Option<Percent>,
    /// The remote side relative to the floor, if both were measured.
    pub remote_percent_of_floor: Option<Percent>,
    /// The failed runs. They are the reason for missing figures, or for figures from fewer runs
    /// than planned.
    pub errors: Vec<Failure>,
}

/// A failed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The side of the run.
    pub side: SideName,
    /// The number of the run, from 0.
    pub run: u32,
    /// The reason, as a sentence.
    pub message: String,
}

/// The figures of one side for one pattern. Unless a field says otherwise, they are means of all
/// runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// I/Os per second.
    pub iops: f64,
    /// Throughput in MiB per second.
    pub mib_per_second: f64,
    /// Latencies. The mean is the mean of the means of all runs. The percentiles and the maximum
    /// cover the I/Os of all runs together.
    pub latency: LatencySummary,
    /// The processor use of the host.
    pub host_cpu: Option<CpuUse>,
    /// The processor use of the target.
    pub target_cpu: Option<CpuUse>,
    /// The number of sleeps of this process's threads per I/O. It includes the target's threads if
    /// the target is in this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeps_per_io: Option<f64>,
    /// The largest resident memory of the host's process after a run, in bytes.
    pub host_memory_bytes: Option<u64>,
    /// The largest resident memory of the target's process after a run, in bytes.
    pub target_memory_bytes: Option<u64>,
    /// The number of measured reads, in all runs.
    pub reads: u64,
    /// The number of measured writes, in all runs.
    pub writes: u64,
    /// The figures of each run.
    pub runs: Vec<RunFigures>,
}

/// The figures of one run on one side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFigures {
    /// The measured time in seconds.
    pub seconds: f64,
    /// I/Os per second.
    pub iops: f64,
    /// Throughput in MiB per second.
    pub mib_per_second: f64,
    /// Latencies.
    pub latency: LatencySummary,
    /// The processor use of the host.
    pub host_cpu: Option<CpuUse>,
    /// The processor use of the target.
    pub target_cpu: Option<CpuUse>,
    /// The number of sleeps of this process's threads per I/O.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeps_per_io: Option<f64>,
}

/// The remote side as a percentage of the local side, or of the floor. 100 means equal. For I/Os
/// and throughput, more is better; for all other values, less is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percent {
    /// I/Os per second.
    pub iops: f64,
    /// Throughput.
    pub throughput: f64,
    /// The mean latency.
    pub mean_latency: f64,
    /// The median latency.
    pub p50_latency: f64,
    /// The 99th percentile of the latency.
    pub p99_latency: f64,
    /// The 99.9th percentile of the latency.
    pub p99_9_latency: f64,
    /// The processor time per I/O of host and target together, if it was measured.
    pub cpu_per_io: Option<f64>,
}

impl Report {
    /// The report as indented JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every report can be written as JSON")
    }

    /// Parses a report that [`to_json`](Report::to_json) wrote.
    ///
    /// # Errors
    ///
    /// The text is not a report, or has a newer schema.
    pub fn from_json(text: &str) -> Result<Report, serde_json::Error> {
        use serde::de::Error;
        let report: Report = serde_json::from_str(text)?;
        if report.schema > SCHEMA {
            let schema = report.schema;
            return Err(Error::custom(format_args!("schema {schema} is newer than {SCHEMA}")));
        }
        Ok(report)
    }

    /// Whether any run failed.
    pub fn has_errors(&self) -> bool {
        self.patterns.iter().any(|pattern| !pattern.errors.is_empty())
    }

    /// Whether any run on a disk failed.
    pub fn disks_have_errors(&self) -> bool {
        let mut errors = self.patterns.iter().flat_map(|pattern| &pattern.errors);
        errors.any(|failure| failure.side != SideName::Floor)
    }
}

impl Report {
    /// The measured sides, with their descriptions.
    pub(crate) fn sides(&self) -> impl Iterator<Item = (SideName, &str)> {
        let all = [
            (SideName::Local, &self.local),
            (SideName::Remote, &self.remote),
            (SideName::Floor, &self.floor),
        ];
        all.into_iter().filter_map(|(name, side)| Some((name, side.as_deref()?)))
    }

    /// The measured sides, with their figures for this pattern.
    pub(crate) fn figures<'a>(
        &self,
        pattern: &'a PatternReport,
    ) -> impl Iterator<Item = (SideName, Option<&'a Figures>)> {
        self.sides().map(|(name, _)| (name, pattern.figures(name)))
    }

    pub(crate) fn all_figures(&self) -> impl Iterator<Item = &Figures> {
        self.patterns.iter().flat_map(|p| [&p.local, &p.remote, &p.floor]).flatten()
    }
}

impl PatternReport {
    /// A warning if the remote disk was faster than the floor. No block server can be faster than a
    /// floor that has enough processors.
    pub fn floor_doubt(&self) -> Option<&'static str> {
        let percent = self.remote_percent_of_floor?;
        (percent.iops > 100.0).then_some(
            "the floor was slower than the remote disk, so it does not count as a floor: its \
             threads never sleep, and lacked processors for themselves",
        )
    }

    /// The figures of one side.
    pub fn figures(&self, side: SideName) -> Option<&Figures> {
        match side {
            SideName::Local => self.local.as_ref(),
            SideName::Remote => self.remote.as_ref(),
            SideName::Floor => self.floor.as_ref(),
        }
    }
}

impl Figures {
    /// Averages the runs of one pattern. `None` if there are no runs.
    pub(crate) fn average(pattern: &Pattern, samples: &[Sample]) -> Option<Figures> {
        if samples.is_empty() {
            return None;
        }
        let runs: Vec<RunFigures> = samples.iter().map(|s| RunFigures::new(pattern, s)).collect();
        let mut latencies = Latencies::new();
        samples.iter().for_each(|sample| latencies.merge(&sample.latencies));
        let latency = LatencySummary {
            mean_ns: mean(runs.iter().map(|run| run.latency.mean_ns)),
            ..latencies.summary()
        };
        Some(Figures {
            iops: mean(runs.iter().map(|run| run.iops)),
            mib_per_second: mean(runs.iter().map(|run| run.mib_per_second)),
            latency,
            host_cpu: mean_cpu(&runs, |run| run.host_cpu),
            target_cpu: mean_cpu(&runs, |run| run.target_cpu),
            sleeps_per_io: mean_sleeps(&runs),
            host_memory_bytes: samples.iter().filter_map(|s| s.host_memory_bytes).max(),
            target_memory_bytes: samples.iter().filter_map(|s| s.target_memory_bytes).max(),
            reads: samples.iter().map(|sample| sample.reads).sum(),
            writes: samples.iter().map(|sample| sample.writes).sum(),
            runs,
        })
    }

    /// The processor time per I/O of host and target together, in microseconds.
    pub fn cpu_us_per_io(&self) -> Option<f64> {
        let parts = [self.host_cpu, self.target_cpu];
        parts.into_iter().flatten().map(|cpu| cpu.us_per_io).reduce(|a, b| a + b)
    }
}

impl RunFigures {
    fn new(pattern: &Pattern, sample: &Sample) -> RunFigures {
        let seconds = sample.elapsed.as_secs_f64();
        let count = (sample.reads + sample.writes) as f64;
        let iops = if seconds > 0.0 { count / seconds } else { 0.0 };
        let cpu = |used| CpuUse::new(used, sample.cpu_elapsed, iops);
        RunFigures {
            seconds,
            iops,
            mib_per_second: iops * f64::from(pattern.block_size_bytes) / MIB,
            latency: sample.latencies.summary(),
            host_cpu: sample.host_cpu.and_then(cpu),
            target_cpu: sample.target_cpu.and_then(cpu),
            sleeps_per_io: sample.sleeps.map(|sleeps| sleeps as f64 / count.max(1.0)),
        }
    }
}

impl Percent {
    /// Computes `remote` as a percentage of `local`, or of another base. `None` if the base is
    /// zero.
    pub fn new(local: &Figures, remote: &Figures) -> Option<Percent> {
        let of = |remote: f64, local: f64| (local > 0.0).then(|| remote / local * 100.0);
        let (l, r) = (&local.latency, &remote.latency);
        let cpu = local.cpu_us_per_io().zip(remote.cpu_us_per_io());
        Some(Percent {
            iops: of(remote.iops, local.iops)?,
            throughput: of(remote.mib_per_second, local.mib_per_second)?,
            mean_latency: of(r.mean_ns, l.mean_ns)?,
            p50_latency: of(r.p50_ns as f64, l.p50_ns as f64)?,
            p99_latency: of(r.p99_ns as f64, l.p99_ns as f64)?,
            p99_9_latency: of(r.p99_9_ns as f64, l.p99_9_ns as f64)?,
            cpu_per_io: cpu.and_then(|(local, remote)| of(remote, local)),
        })
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    if count == 0 { 0.0 } else { values.sum::<f64>() / count as f64 }
}

/// The mean, if every run has a value. The mean of only some runs would be misleading.
fn mean_cpu(runs: &[RunFigures], of: impl Fn(&RunFigures) -> Option<CpuUse>) -> Option<CpuUse> {
    let all: Vec<CpuUse> = runs.iter().map(of).collect::<Option<_>>()?;
    Some(CpuUse {
        percent_of_core: mean(all.iter().map(|cpu| cpu.percent_of_core)),
        us_per_io: mean(all.iter().map(|cpu| cpu.us_per_io)),
    })
}

/// The mean number of sleeps, if every run has a value.
fn mean_sleeps(runs: &[RunFigures]) -> Option<f64> {
    let all: Vec<f64> = runs.iter().map(|run| run.sleeps_per_io).collect::<Option<_>>()?;
    Some(mean(all.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Rw;
    use crate::testing::{figures, report};
    use farblock_reactor::EngineKind;
    use std::time::Duration;

    fn sample(ios: u64, seconds: u64, latency_us: u64) -> Sample {
        let mut latencies = Latencies::new();
        (0..ios).for_each(|_| latencies.record(Duration::from_micros(latency_us)));
        Sample {
            reads: ios,
            writes: 0,
            latencies,
            elapsed: Duration::from_secs(seconds),
            host_cpu: Some(Duration::from_millis(500 * seconds)),
            target_cpu: None,
            sleeps: Some(ios / 2),
            cpu_elapsed: Duration::from_secs(seconds),
            host_memory_bytes: Some(ios),
            target_memory_bytes: None,
            engine: EngineKind::Portable,
        }
    }

    #[test]
    fn runs_are_averaged() {
        let pattern = Pattern::new(Rw::Read, 1 << 20, 1, 1);
        let samples = [sample(1000, 10, 100), sample(4000, 20, 400)];
        let figures = Figures::average(&pattern, &samples).expect("there are enough runs");
        assert_eq!((figures.iops, figures.mib_per_second), (150.0, 150.0));
        assert_eq!(figures.latency.mean_ns, 250_000.0, "the mean of the runs' means");
        assert_eq!(figures.latency.max_ns, 400_000);
        assert_eq!(figures.latency.p50_ns / 1000, 400, "the median of all I/Os");
        let cpu = figures.host_cpu.expect("measured on both sides");
        assert!((cpu.percent_of_core - 50.0).abs() < 1e-9);
        assert!((cpu.us_per_io - (5000.0 + 2500.0) / 2.0).abs() < 1e-6);
        assert_eq!((figures.target_cpu, figures.reads), (None, 5000));
        assert_eq!(figures.sleeps_per_io, Some(0.5));
        assert_eq!((figures.host_memory_bytes, figures.runs.len()), (Some(4000), 2));
        assert_eq!(Figures::average(&pattern, &[]), None);
    }

    #[test]
    fn a_figure_that_some_runs_lack_is_not_averaged() {
        let pattern = Pattern::new(Rw::Read, 4096, 1, 1);
        let without = Sample { host_cpu: None, sleeps: None, ..sample(10, 1, 1) };
        let figures = Figures::average(&pattern, &[sample(10, 1, 1), without])
            .expect("there are enough runs");
        assert_eq!((figures.host_cpu, figures.sleeps_per_io), (None, None));
    }

    #[test]
    fn percentages_match_the_published_ones() {
        // StarWind's 4k random read: 5,540,879 remote IOPS at 0.369 ms, and 5,696,000 local IOPS at
        // 0.359 ms.
        let local = figures(5_696_000.0, 4096, 359_000.0, None);
        let remote = figures(5_540_879.0, 4096, 369_000.0, None);
        let percent = Percent::new(&local, &remote).expect("both sides were measured");
        assert_eq!(format!("{:.1} {:.1}", percent.iops, percent.mean_latency), "97.3 102.8");
        assert!((percent.iops - percent.throughput).abs() < 1e-9);
        let nothing = figures(0.0, 4096, 0.0, None);
        assert_eq!(Percent::new(&nothing, &remote), None);
    }

    #[test]
    fn a_floor_slower_than_the_remote_disk_gives_a_warning() {
        let mut report = crate::testing::with_floor(report());
        assert!(report.patterns.iter().all(|pattern| pattern.floor_doubt().is_none()));
        let pattern = &mut report.patterns[0];
        let remote = pattern.remote.clone().expect("the pattern was measured");
        let slower = figures(remote.iops * 0.9, 4096, 1e6, None);
        pattern.remote_percent_of_floor = Percent::new(&slower, &remote);
        assert!(pattern.floor_doubt().is_some());
        for text in [crate::table::render(&report), crate::html::render(&report)] {
            assert_eq!(text.matches("lacked processors").count(), 1, "{text}");
        }
    }

    #[test]
    fn processor_time_includes_both_ends() {
        let local = figures(1000.0, 4096, 1000.0, Some((2.0, None)));
        let remote = figures(1000.0, 4096, 1000.0, Some((5.0, Some(4.0))));
        let percent = Percent::new(&local, &remote).expect("both sides were measured");
        assert_eq!(percent.cpu_per_io, Some(450.0));
    }

    #[test]
    fn json_round_trips_and_a_newer_schema_is_refused() {
        let report = report();
        let text = report.to_json();
        assert_eq!(
            Report::from_json(&text).expect("the report was written by this program"),
            report
        );
        let newer = text.replacen("\"schema\": 1", "\"schema\": 2", 1);
        let error = Report::from_json(&newer).expect_err("the newer schema was accepted");
        assert!(error.to_string().contains("schema 2 is newer than 1"), "{error}");
        insta::assert_snapshot!(text);
    }
}
