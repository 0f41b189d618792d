//! Compares two reports of the same loads, to decide whether the second is slower. A comparison has
//! medians, the change with its interval, and a verdict.
//!
//! **Change.** The geometric mean of the second report's runs relative to the first report's, with
//! its 95 % confidence interval. The interval is from Welch's t-test on the logarithms, because
//! there are few runs, and their noise is proportional to their values. If either report has only a
//! single run, there is no interval, and no verdict except for the [`limit`](Comparison::failures).
//!
//! **Verdict.** Only an interval that excludes zero shows a change. Latency and processor time are
//! better when they fall. For the limit, only throughput and mean latency count as *slower*, since
//! the 99th percentile of a few seconds has little meaning.

mod student;
mod text;

use serde::{Deserialize, Serialize};

use crate::format;
use crate::html::IOPS_BLOCK_LIMIT_BYTES;
use crate::progress::SideName;
use crate::result::{Figures, PatternReport, Report, RunFigures};

pub use text::render_within;

/// A value that is measured in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// I/Os per second.
    Iops,
    /// MiB per second, for patterns of large blocks.
    MibPerSecond,
    /// The mean latency in µs.
    MeanLatencyUs,
    /// The 99th percentile of the latency in µs.
    P99LatencyUs,
    /// The processor time per I/O of host and target, in µs.
    CpuUsPerIo,
}

impl Metric {
    /// The name of the metric for people, with its unit.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Iops => "IOPS",
            Metric::MibPerSecond => "MiB/s",
            Metric::MeanLatencyUs => "mean latency, µs",
            Metric::P99LatencyUs => "p99 latency, µs",
            Metric::CpuUsPerIo => "CPU per I/O, µs",
        }
    }

    fn more_is_better(self) -> bool {
        matches!(self, Metric::Iops | Metric::MibPerSecond)
    }

    /// Whether the limit for failures applies to this metric.
    fn is_judged(self) -> bool {
        matches!(self, Metric::Iops | Metric::MibPerSecond | Metric::MeanLatencyUs)
    }
}

/// The values of one metric in all runs of one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The metric.
    pub metric: Metric,
    /// The value of each run.
    pub runs: Vec<f64>,
}

/// One load of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The name of the load. Loads with the same name are compared.
    pub name: String,
    /// The parameters of the load. If they differ, the loads are not compared.
    pub setup: String,
    /// All metrics. Empty if the load failed.
    pub series: Vec<Series>,
    /// The reason for missing runs.
    pub failure: Option<String>,
}

/// The part of a report to compare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// A title that distinguishes this report from the other report.
    pub title: String,
    /// The conditions that must be equal for a fair comparison: the machine and the method.
    pub conditions: Vec<String>,
    /// The loads, in the order of the report.
    pub loads: Vec<Load>,
}

/// The verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The interval is on the good side of zero.
    Better,
    /// The interval is on the bad side of zero.
    Worse,
    /// The interval includes zero, so the runs do not show a change.
    NoDifference,
    /// There are too few runs for an interval.
    NoInterval,
}

/// The change of one metric of one load between two reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The metric.
    pub metric: Metric,
    /// The median of the first report's runs.
    pub median_a: f64,
    /// The median of the second report's runs.
    pub median_b: f64,
    /// The percentage by which the geometric mean of the second report exceeds that of the first.
    pub percent: f64,
    /// The ends of the 95 % interval of `percent`, if there are enough runs.
    pub interval_percent: Option<[f64; 2]>,
    /// The verdict.
    pub verdict: Verdict,
}

/// The changes of one load between two reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The name of the load.
    pub name: String,
    /// The parameters of the load.
    pub setup: String,
    /// The number of runs in the first report, and in the second.
    pub runs: [usize; 2],
    /// The metrics that both reports have.
    pub changes: Vec<Change>,
}

/// A comparison of two reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The titles of the first and the second report.
    pub titles: [String; 2],
    /// The loads that both reports have.
    pub loads: Vec<Compared>,
    /// Sentences about loads of the first report that failed or are missing in the second report.
    pub missing: Vec<String>,
    /// Other sentences for the reader.
    pub remarks: Vec<String>,
}

impl Comparison {
    /// Compares `b` with `a`.
    pub fn of(a: &Subject, b: &Subject) -> Comparison {
        let mut comparison = Comparison {
            titles: [a.title.clone(), b.title.clone()],
            loads: Vec::new(),
            missing: Vec::new(),
            remarks: Vec::new(),
        };
        for (left, right) in a.conditions.iter().zip(&b.conditions) {
            if left != right {
                comparison.remarks.push(format!("A and B differ: {left} in A, {right} in B"));
            }
        }
        for load in &a.loads {
            comparison.add(load, b.loads.iter().find(|other| other.name == load.name));
        }
        for load in &b.loads {
            if !a.loads.iter().any(|other| other.name == load.name) {
                comparison.remarks.push(format!("{} is only in B", load.name));
            }
        }
        comparison
    }

    fn add(&mut self, a: &Load, b: Option<&Load>) {
        let name = &a.name;
        let Some(b) = b else {
            return self.missing.push(format!("{name}: B does not have this load"));
        };
        if a.setup != b.setup {
            let (a, b) = (&a.setup, &b.setup);
            return self.missing.push(format!("{name}: the loads differ: {a} in A, {b} in B"));
        }
        if let (false, Some(why)) = (a.series.is_empty(), &b.failure) {
            self.missing.push(format!("{name}: B failed: {why}"));
        }
        let changes: Vec<Change> = a.series.iter().filter_map(|series| change(series, b)).collect();
        let runs = |load: &Load| load.series.first().map_or(0, |series| series.runs.len());
        if !changes.is_empty() {
            let (name, setup) = (name.clone(), a.setup.clone());
            self.loads.push(Compared { name, setup, runs: [runs(a), runs(b)], changes });
        }
    }

    /// Sentences about all loads that are missing, or slower by more than `limit_percent`. If there
    /// are any, an automatic check should fail. A change whose interval includes zero does not
    /// count.
    pub fn failures(&self, limit_percent: f64) -> Vec<String> {
        let mut failures = self.missing.clone();
        for load in &self.loads {
            for change in load.changes.iter().filter(|change| change.metric.is_judged()) {
                let slower =
                    if change.metric.more_is_better() { -change.percent } else { change.percent };
                let is_shown = matches!(change.verdict, Verdict::Worse | Verdict::NoInterval);
                if slower > limit_percent && is_shown {
                    let (metric, percent) = (change.metric.name(), signed(change.percent));
                    failures.push(format!("{}: {metric} changed by {percent} %", load.name));
                }
            }
        }
        failures
    }
}

fn change(a: &Series, b: &Load) -> Option<Change> {
    let metric = a.metric;
    let b = b.series.iter().find(|series| series.metric == metric)?;
    let logarithms = |series: &Series| -> Option<Vec<f64>> {
        let log = |value: &f64| (value.is_finite() && *value > 0.0).then(|| value.ln());
        series.runs.iter().map(log).collect::<Option<Vec<f64>>>().filter(|runs| !runs.is_empty())
    };
    let (left, right) = (logarithms(a)?, logarithms(b)?);
    let percent = |log: f64| (log.exp() - 1.0) * 100.0;
    let difference = student::mean(&right) - student::mean(&left);
    let interval = student::margin_95(&left, &right)
        .map(|margin| [percent(difference - margin), percent(difference + margin)]);
    let verdict = match interval {
        None => Verdict::NoInterval,
        Some([low, high]) if low <= 0.0 && high >= 0.0 => Verdict::NoDifference,
        Some([low, _]) if (low > 0.0) == metric.more_is_better() => Verdict::Better,
        Some(_) => Verdict::Worse,
    };
    Some(Change {
        metric,
        median_a: median(&a.runs),
        median_b: median(&b.runs),
        percent: percent(difference),
        interval_percent: interval,
        verdict,
    })
}

/// The 95 % interval of the ratio of the second rates to the first rates, in percent: 100 means
/// equal. `None` if either side has fewer than two runs.
pub(crate) fn ratio_interval(base: &[f64], other: &[f64]) -> Option<[f64; 2]> {
    let logarithms = |runs: &[f64]| -> Option<Vec<f64>> {
        runs.iter().map(|rate| (*rate > 0.0).then(|| rate.ln())).collect()
    };
    let (base, other) = (logarithms(base)?, logarithms(other)?);
    let margin = student::margin_95(&base, &other)?;
    let difference = student::mean(&other) - student::mean(&base);
    Some([(difference - margin).exp() * 100.0, (difference + margin).exp() * 100.0])
}

/// The percentage by which the fastest run exceeds the slowest run.
pub(crate) fn spread_percent(rates: &[f64]) -> Option<f64> {
    let slowest = rates.iter().copied().reduce(f64::min).filter(|rate| *rate > 0.0)?;
    let fastest = rates.iter().copied().reduce(f64::max)?;
    (rates.len() > 1).then(|| (fastest / slowest - 1.0) * 100.0)
}

/// The middle value, or the mean of the two middle values; 0 if there are no values.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

/// Formats a number with one decimal and an explicit sign: `+1.2`, `−3.4`.
fn signed(value: f64) -> String {
    let digits = format::tenths(value.abs());
    let sign = if digits == "0.0" { "" } else { if value < 0.0 { "−" } else { "+" } };
    format!("{sign}{digits}")
}

impl Report {
    /// The part of this report to compare with another report.
    pub fn subject(&self) -> Subject {
        let machine = &self.machine;
        let (cpu, cores) = (&machine.cpu_model, machine.cores);
        Subject {
            title: format!("{}, {}", self.tool, self.date),
            conditions: vec![
                format!("{cpu} with {cores} processors"),
                machine.kernel.clone(),
                format!("the {} engine", self.engine),
                format::method(&self.method),
            ],
            loads: self.patterns.iter().flat_map(|pattern| self.loads(pattern)).collect(),
        }
    }

    fn loads<'a>(&'a self, pattern: &'a PatternReport) -> impl Iterator<Item = Load> + 'a {
        let p = &pattern.pattern;
        let rate = p.rate_iops.map_or_else(String::new, |rate| format!(", {rate} I/Os a second"));
        let mix = if p.rw.reads() && p.rw.writes() {
            format!(", {} % reads", p.rwmixread)
        } else {
            String::new()
        };
        let (bytes, load) = (p.block_size_bytes, format::jobs_and_depth(p));
        let setup = format!("{} of {bytes} bytes, {load}{mix}{rate}", p.rw);
        // The floor (bare sockets) is not a disk. A comparison of two reports leaves it out.
        let disks = self.figures(pattern).filter(|(side, _)| *side != SideName::Floor);
        disks.map(move |(side, figures)| Load {
            name: format!("{}, {}", p.name, side.name()),
            setup: setup.clone(),
            series: figures.map_or_else(Vec::new, |f| series(f, p.block_size_bytes)),
            failure: failure(pattern, side),
        })
    }
}

fn failure(pattern: &PatternReport, side: SideName) -> Option<String> {
    let of_side = pattern.errors.iter().find(|failure| failure.side == side);
    of_side.map(|failure| failure.message.clone())
}

/// The values of all metrics for runs with blocks of this size.
pub fn series(figures: &Figures, block_size_bytes: u32) -> Vec<Series> {
    let of = |metric, value: &dyn Fn(&RunFigures) -> Option<f64>| {
        let runs: Option<Vec<f64>> = figures.runs.iter().map(value).collect();
        Some(Series { metric, runs: runs.filter(|runs| !runs.is_empty())? })
    };
    let rate = match block_size_bytes <= IOPS_BLOCK_LIMIT_BYTES {
        true => of(Metric::Iops, &|run| Some(run.iops)),
        false => of(Metric::MibPerSecond, &|run| Some(run.mib_per_second)),
    };
    let cpu = |run: &RunFigures| {
        let parts = [run.host_cpu, run.target_cpu];
        parts.into_iter().flatten().map(|cpu| cpu.us_per_io).reduce(|a, b| a + b)
    };
    let all = [
        rate,
        of(Metric::MeanLatencyUs, &|run| Some(run.latency.mean_ns / 1000.0)),
        of(Metric::P99LatencyUs, &|run| Some(run.latency.p99_ns as f64 / 1000.0)),
        of(Metric::CpuUsPerIo, &cpu),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_rates_give_a_wide_ratio_interval() {
        let [low, high] =
            ratio_interval(&[100.0, 100.0], &[90.0, 90.0]).expect("there are enough runs");
        assert!((low - 90.0).abs() < 1e-9 && (high - 90.0).abs() < 1e-9, "{low} {high}");
        let [low, high] =
            ratio_interval(&[50.0, 100.0], &[60.0, 90.0]).expect("there are enough runs");
        assert!(low < 50.0 && high > 200.0, "{low} {high}");
        assert_eq!(ratio_interval(&[100.0], &[90.0]), None);
        assert_eq!(ratio_interval(&[0.0, 1.0], &[1.0, 1.0]), None);
        assert_eq!(spread_percent(&[100.0, 125.0, 110.0]), Some(25.0));
        assert_eq!(spread_percent(&[100.0]), None);
    }
    use crate::testing::report;

    fn runs_of(report: &mut Report, factors: &[f64]) {
        for pattern in &mut report.patterns {
            for figures in [&mut pattern.local, &mut pattern.remote].into_iter().flatten() {
                let run = figures.runs[0];
                let scaled = |factor: &f64| {
                    let mut scaled = run;
                    scaled.iops *= factor;
                    scaled.mib_per_second *= factor;
                    scaled.latency.mean_ns /= factor;
                    scaled
                };
                figures.runs = factors.iter().map(scaled).collect();
            }
        }
    }

    fn with_runs(factors: &[f64]) -> Subject {
        let mut report = report();
        runs_of(&mut report, factors);
        report.patterns.pop(); // it failed on one side
        report.subject()
    }

    #[test]
    fn only_differences_beyond_the_noise_give_a_verdict() {
        let a = with_runs(&[0.99, 1.0, 1.01]);
        let compare = |factors: &[f64]| Comparison::of(&a, &with_runs(factors));
        let first = |comparison: &Comparison| comparison.loads[0].changes[0].clone();

        let slower = compare(&[0.89, 0.90, 0.91]);
        let change = first(&slower);
        assert_eq!((change.metric, change.verdict), (Metric::Iops, Verdict::Worse));
        assert!((change.percent + 10.0).abs() < 0.1, "{change:?}");
        let [low, high] = change.interval_percent.expect("there are enough runs");
        assert!(low < -10.0 && (-10.0..0.0).contains(&high), "{low} {high}");
        let latency = &slower.loads[0].changes[1];
        assert_eq!((latency.metric, latency.verdict), (Metric::MeanLatencyUs, Verdict::Worse));
        assert!(latency.percent > 11.0);

        assert_eq!(first(&compare(&[1.09, 1.1, 1.11])).verdict, Verdict::Better);
        assert_eq!(first(&compare(&[0.97, 1.0, 1.02])).verdict, Verdict::NoDifference);
        assert_eq!(
            first(&compare(&[0.7, 0.9, 1.1])).verdict,
            Verdict::NoDifference,
            "noise counts as a change"
        );
    }

    #[test]
    fn a_limit_fails_only_for_significant_slowdowns() {
        let a = with_runs(&[0.99, 1.0, 1.01]);
        let fails =
            |factors: &[f64], limit| Comparison::of(&a, &with_runs(factors)).failures(limit).len();
        assert_eq!(
            fails(&[0.89, 0.90, 0.91], 5.0),
            20,
            "the failures: rate and mean latency of ten loads"
        );
        assert_eq!(fails(&[0.89, 0.90, 0.91], 12.0), 0);
        assert_eq!(fails(&[0.7, 0.9, 1.1], 5.0), 0, "noise counts as a change");
        assert_eq!(fails(&[1.2, 1.2, 1.2], 5.0), 0, "a faster report failed");
        assert_eq!(fails(&[0.9], 5.0), 20, "the failures of reports with one run");
        assert_eq!(fails(&[0.96], 5.0), 0);
    }

    #[test]
    fn missing_and_failed_loads_fail_the_comparison() {
        let whole = with_runs(&[1.0, 1.0]);
        let mut less = whole.clone();
        less.loads.remove(0);
        less.loads[0].setup = "randread of 4096 bytes, 9 × 9".to_owned();
        less.loads[1].failure = Some("the wire was cut".to_owned());
        let comparison = Comparison::of(&whole, &less);
        let failures = comparison.failures(5.0);
        assert_eq!(failures.len(), 3, "{failures:?}");
        assert!(failures[0].ends_with("B does not have this load"), "{failures:?}");
        assert!(failures[1].contains("the loads differ: "), "{failures:?}");
        assert!(failures[2].ends_with("B failed: the wire was cut"), "{failures:?}");
        let back = Comparison::of(&less, &whole);
        assert!(back.remarks[0].ends_with("is only in B"), "{back:?}");
    }

    #[test]
    fn a_comparison_notes_that_the_machines_differ() {
        let here = with_runs(&[1.0]);
        let mut there = here.clone();
        there.conditions[0] = "another processor".to_owned();
        let comparison = Comparison::of(&here, &there);
        assert_eq!(comparison.remarks.len(), 1);
        assert!(comparison.remarks[0].contains("another processor in B"), "{comparison:?}");
    }

    #[test]
    fn zero_rates_and_empty_runs_give_no_change() {
        let a = with_runs(&[1.0, 1.1]);
        let zero = with_runs(&[0.0, 1.0]);
        let metrics: Vec<Metric> =
            Comparison::of(&a, &zero).loads[0].changes.iter().map(|c| c.metric).collect();
        assert!(!metrics.contains(&Metric::Iops), "a metric was compared with zero: {metrics:?}");
        assert_eq!(median(&[]), 0.0);
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (2.0, 2.5));
        assert_eq!(
            (signed(-0.04), signed(-3.16), signed(2.0)),
            ("0.0".into(), "−3.2".into(), "+2.0".into())
        );
    }
}
