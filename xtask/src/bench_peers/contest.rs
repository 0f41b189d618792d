//! Compares *entrants* (a client with its server), for measurements other than `bench-peers`
//! ([`super`]).
//!
//! The rules are the same as there. For each row, all entrants run one after the other in each
//! round. Each round starts with the entrant that was second in the round before. Clients and
//! servers have one processor each. Results are medians.

use std::time::Duration;

use super::Options;
use super::measure::{self, Figures, Window};
use super::process::Process;
use super::sides::{Client, Times};
use super::work::Load;
use crate::data::{Data, Head};

/// The last column exists only if a local disk is an entrant.
const COLUMNS: [&str; 9] = [
    "load",
    "entrant",
    "IOPS",
    "MiB/s",
    "p50 µs",
    "p99 µs",
    "client µs/IO",
    "server µs/IO",
    "of local",
];

/// The warm-up time of each entrant before the measurement. A client may need this long to reach
/// its full load. SPDK's client needs a second.
const RAMP: Duration = Duration::from_millis(1500);

/// The name of the entrant without a server, which uses the disk locally. All others are compared
/// with it, if it takes part.
pub(super) const LOCAL: &str = "local";

/// A client with its server; without a server, the client uses the disk locally.
pub(super) struct Entrant<'a> {
    pub(super) name: &'static str,
    pub(super) server: Option<&'a Process>,
    /// Whether the server polls even when it is idle, so that it must be paused while other
    /// entrants run.
    pub(super) polls: bool,
    pub(super) client: NewClient<'a>,
}

/// A function that creates a client, which runs the load of a row for the given times.
type NewClient<'a> = Box<dyn Fn(&Row, Times) -> Client + 'a>;

/// A load that all entrants run.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) load: Load,
}

/// The results of an entrant in a row.
struct Outcome {
    row: String,
    entrant: &'static str,
    runs: Vec<Figures>,
    error: Option<String>,
}

pub(super) fn times(options: &Options) -> Result<Times, String> {
    let seconds = options.seconds.unwrap_or(if options.quick { 1.5 } else { 3.0 });
    let runtime = Duration::try_from_secs_f64(seconds).map_err(|_| "--seconds is not a time")?;
    Ok(Times { ramp: RAMP, runtime })
}

/// The window in which processor time is measured, the same for all entrants. It opens when the
/// slowest entrant has started its load, and closes before the fastest entrant finishes. A slow
/// entrant may still be in its warm-up then, which runs the same load.
fn window(times: Times) -> Window {
    let load = times.ramp + times.runtime;
    let length = load.saturating_sub(times.ramp).mul_f64(0.9);
    Window { start: times.ramp, length, limit: times.ramp + load }
}

/// Measures all entrants in all rows and prints the table. Also writes the table to `NAME.csv` in
/// the directory from the options.
pub(super) fn hold(
    (name, what): (&str, &str),
    options: &Options,
    rows: &[Row],
    entrants: &[Entrant<'_>],
    times: Times,
    remarks: &[String],
) -> Result<(), String> {
    let mut outcomes = Vec::new();
    for row in rows {
        outcomes.extend(measure_row(row, entrants, options, times));
    }
    let head = Head::of_this_run(what, method(&outcomes, options, times));
    let mut table = table(head, &outcomes);
    table.remarks = remarks.to_vec();
    print!("{}", table.report());
    options.data.as_ref().map_or(Ok(()), |folder| table.write(folder, name))
}

fn measure_row(
    row: &Row,
    entrants: &[Entrant<'_>],
    options: &Options,
    times: Times,
) -> Vec<Outcome> {
    let new = |entrant: &Entrant<'_>| Outcome {
        row: row.name.clone(),
        entrant: entrant.name,
        runs: Vec::new(),
        error: None,
    };
    let mut outcomes: Vec<Outcome> = entrants.iter().map(new).collect();
    for round in 0..options.rounds.max(1) {
        for turn in 0..entrants.len() {
            let index = (turn + round as usize) % entrants.len();
            if outcomes[index].error.is_some() {
                continue; // the next round would fail, too
            }
            let (entrant, outcome) = (&entrants[index], &mut outcomes[index]);
            let client = (entrant.client)(row, times);
            let poller = entrant.server.filter(|_| entrant.polls);
            poller.inspect(|server| server.resume());
            let result = measure::run_client(
                client,
                options.host_cpu,
                entrant.server,
                &row.load,
                window(times),
            );
            poller.inspect(|server| server.pause());
            let said = match &result {
                Ok(figures) => format!("{:.0} IOPS", figures.iops),
                Err(sentence) => sentence.clone(),
            };
            eprintln!("{} {}, round {}: {said}", row.name, entrant.name, round + 1);
            match result {
                Ok(figures) => outcome.runs.push(figures),
                Err(sentence) => outcome.error = Some(sentence),
            }
        }
    }
    outcomes
}

fn method(outcomes: &[Outcome], options: &Options, times: Times) -> String {
    let runs: Vec<Figures> = outcomes.iter().flat_map(|outcome| outcome.runs.clone()).collect();
    let noise = measure::median(&runs).map_or(0.0, |median| median.noise_percent);
    format!(
        "medians of {} alternating runs of {} s, server and client pinned to a processor each; \
         everything else used {noise:.0} % of a processor (median)",
        options.rounds.max(1),
        times.runtime.as_secs_f64(),
    )
}

fn table(head: Head, outcomes: &[Outcome]) -> Data {
    let is_compared = outcomes.iter().any(|outcome| outcome.entrant == LOCAL);
    let mut table = Data::new(head, &COLUMNS[..COLUMNS.len() - usize::from(!is_compared)]);
    let mut local = None;
    for outcome in outcomes {
        if outcome.entrant == LOCAL {
            local = measure::median(&outcome.runs).map(|figures| figures.iops);
        }
        if let Some(row) = cells(outcome, local.filter(|_| is_compared)) {
            table.push(row);
        }
    }
    table
}

fn cells(outcome: &Outcome, local: Option<f64>) -> Option<Vec<String>> {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1}"));
    let mut row = vec![outcome.row.clone(), outcome.entrant.to_owned()];
    if let Some(error) = &outcome.error {
        row.push(error.clone());
        return Some(row);
    }
    let figures = measure::median(&outcome.runs)?;
    row.extend([
        format!("{:.0}", figures.iops),
        format!("{:.0}", figures.mib_per_second),
        number(figures.p50_us),
        number(figures.p99_us),
        number(Some(figures.host_cpu_us)),
        number(figures.target_cpu_us),
    ]);
    row.extend(local.map(|local| format!("{:.2}", figures.iops / local)));
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_window_is_within_the_load_of_all_entrants() {
        for runtime in [1.0, 1.5, 3.0] {
            let times = Times { ramp: RAMP, runtime: Duration::from_secs_f64(runtime) };
            let window = window(times);
            assert!(
                window.start >= RAMP,
                "the window opens before the slowest entrant has started"
            );
            assert!(
                window.start + window.length < times.ramp + times.runtime,
                "the window closes after the fastest entrant has finished"
            );
            assert!(window.length > Duration::ZERO);
        }
    }

    #[test]
    fn a_row_has_the_figures_or_the_error_of_an_entrant() {
        let outcome = |error: Option<&str>| Outcome {
            row: "4k".to_owned(),
            entrant: "floor",
            runs: vec![Figures { iops: 5.0, host_cpu_us: 1.0, ..Figures::default() }],
            error: error.map(str::to_owned),
        };
        let row =
            |error, local| cells(&outcome(error), local).expect("the entrant has a row").join(",");
        assert_eq!(row(None, None), "4k,floor,5,0,,,1.0,");
        assert_eq!(row(Some("it failed"), None), "4k,floor,it failed");
        assert_eq!(row(None, Some(20.0)), "4k,floor,5,0,,,1.0,,0.25");
    }
}
