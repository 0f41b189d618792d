//! Writes `six-patterns.csv` from reports of `farblock bench --json`.

use std::path::PathBuf;

use clap::Args;
use farblock_bench::{PatternReport, Report};

use crate::data::{Data, Head};

const COLUMNS: [&str; 8] = [
    "pattern",
    "jobs",
    "depth",
    "local IOPS",
    "remote IOPS",
    "% of local",
    "host + target µs/IO",
    "local µs/IO",
];
const FIGURES: usize = 5;

/// Write the six patterns, remote beside local, from reports of `farblock bench --json`
#[derive(Args)]
pub(crate) struct Options {
    /// Reports of several runs; the table has the medians
    #[arg(required = true)]
    reports: Vec<PathBuf>,
    /// Directory for six-patterns.csv
    #[arg(long, value_name = "DIR", default_value = "docs/performance")]
    data: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Report::from_json(&text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let reports: Vec<Report> = options.reports.iter().map(read).collect::<Result<_, _>>()?;
    let table = table(&reports);
    if table.rows.is_empty() {
        return Err("no report has a pattern that was measured on both sides".to_owned());
    }
    print!("{}", table.report());
    table.write(&options.data, "six-patterns")
}

/// The table. It has each pattern once, in the order of the first report.
fn table(reports: &[Report]) -> Data {
    let mut table = Data::new(head(reports), &COLUMNS);
    for pattern in reports.first().map_or(&[][..], |first| &first.patterns) {
        let pattern = &pattern.pattern;
        let runs: Vec<[Option<f64>; FIGURES]> = reports
            .iter()
            .flat_map(|report| &report.patterns)
            .filter(|run| run.pattern.name == pattern.name)
            .filter_map(figures)
            .collect();
        if runs.is_empty() {
            continue;
        }
        let mut row =
            vec![pattern.name.clone(), pattern.numjobs.to_string(), pattern.iodepth.to_string()];
        row.extend((0..FIGURES).map(|field| {
            let value = median(runs.iter().filter_map(|run| run[field]).collect());
            // Only the processor times, which follow the first three figures, have a decimal place.
            let decimals = usize::from(field > 2);
            value.map_or(String::new(), |value| format!("{value:.decimals$}"))
        }));
        table.push(row);
    }
    table
}

/// The machine, date and command of the first report.
fn head(reports: &[Report]) -> Head {
    let what = "the six patterns of farblock bench: a remote disk beside the same disk locally";
    let method = format!(
        "each figure is the median of {} runs, and % of local is the median of the runs' own \
         ratios",
        reports.len()
    );
    let head = Head::of_this_run(what, method);
    let Some(first) = reports.first() else { return head };
    let (machine, date) = (Head::machine(&first.machine), first.date.clone());
    Head { machine, date, command: first.command_line.clone(), ..head }
}

fn figures(run: &PatternReport) -> Option<[Option<f64>; FIGURES]> {
    let (local, remote) = (run.local.as_ref()?, run.remote.as_ref()?);
    let both = remote.host_cpu.zip(remote.target_cpu);
    Some([
        Some(local.iops),
        Some(remote.iops),
        Some(run.remote_percent_of_local?.iops),
        both.map(|(host, target)| host.us_per_io + target.us_per_io),
        local.host_cpu.map(|cpu| cpu.us_per_io),
    ])
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[half]),
        _ => Some(f64::midpoint(values[half - 1], values[half])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_two_is_their_mean() {
        assert!(table(&[]).rows.is_empty());
        assert_eq!(median(vec![4.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn a_row_has_the_medians_of_the_reports() {
        let snapshot = include_str!(
            "../../crates/tools/bench/src/snapshots/farblock_bench__result__tests__\
             json_round_trips_and_a_newer_schema_is_refused.snap"
        );
        let json = &snapshot[snapshot.find("\n{").expect("the snapshot contains JSON")..];
        let report = Report::from_json(json).expect("the report is valid");
        let table = table(&[report.clone(), report]);
        assert_eq!(table.head.date, "2026-11-21T05:06:13Z");
        assert_eq!(table.rows.len(), 5, "a pattern without a remote result has a row");
        assert_eq!(table.rows[1].join(","), "4k random write,2,4,195992,197787,101,5.0,1.6");
    }
}
