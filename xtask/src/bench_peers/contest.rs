//! Compares clients and their servers, for comparisons outside the main stand.
//!
//! The rules are the stand's: row by row and round by round, all entrants run in succession, and
//! each round starts with the next one. Clients and servers have one processor each. Results are
//! medians.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use farblock_bench::{Machine, command_line, utc};

use super::measure::{self, Figures, Window};
use super::process::Process;
use super::sides::{Client, Times};
use super::work::Load;
use super::{Options, report, write};

/// Warm-up time of each entrant before the measurement. A client may need this long until its load
/// is on; SPDK's needs a second.
const RAMP: Duration = Duration::from_millis(1500);

/// The entrant that all others are compared with, if present.
pub(super) const LOCAL: &str = "local";

/// A contestant.
pub(super) struct Entrant<'a> {
    pub(super) name: &'static str,
    /// The process that serves the load.
    pub(super) server: Option<&'a Process>,
    /// The server polls even when idle, so it is paused outside its turn.
    pub(super) polls: bool,
    pub(super) client: NewClient<'a>,
}

/// Creates a client that runs a row's load for some time.
type NewClient<'a> = Box<dyn Fn(&Row, Times) -> Client + 'a>;

/// A load for all entrants.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) load: Load,
}

/// An entrant's results in a row.
struct Outcome {
    row: String,
    entrant: &'static str,
    runs: Vec<Figures>,
    error: Option<String>,
}

/// The warm-up and run times.
pub(super) fn times(options: &Options) -> Result<Times, String> {
    let seconds = options.seconds.unwrap_or(if options.quick { 1.5 } else { 3.0 });
    let runtime = Duration::try_from_secs_f64(seconds).map_err(|_| "--seconds is not a time")?;
    Ok(Times { ramp: RAMP, runtime })
}

/// The window for processor time: it starts when the slowest entrant has started, and closes before
/// the fastest one finishes. The load during warm-up is the same.
fn window(times: Times) -> Window {
    let load = times.ramp + times.runtime;
    let length = load.saturating_sub(times.ramp).mul_f64(0.9);
    Window { start: times.ramp, length, limit: times.ramp + load }
}

/// Measures all entrants in all rows, prints the tables, and writes them to the options' file
/// between the markers of `name`.
pub(super) fn hold(
    name: &str,
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
    let tables = markdown(&outcomes, options, times, remarks);
    print!("{tables}");
    if let Some(path) = &options.markdown {
        put_between(path, name, &tables)?;
    }
    Ok(())
}

fn put_between(path: &Path, name: &str, tables: &str) -> Result<(), String> {
    let before = fs::read_to_string(path).unwrap_or_default();
    write(path, &report::between_markers(&before, name, tables))
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
                continue; // an error persists
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

fn markdown(outcomes: &[Outcome], options: &Options, times: Times, remarks: &[String]) -> String {
    let machine = Machine::this();
    let runs: Vec<Figures> = outcomes.iter().flat_map(|outcome| outcome.runs.clone()).collect();
    let noise = measure::median(&runs).map_or(0.0, |median| median.noise_percent);
    let mut text = format!(
        "{}, {} processors, {}. {}. Medians of {} alternating runs of {} s, server and client \
         pinned to a processor each; everything else used {noise:.0} % of a processor (median). \
         `{}`\n\n",
        machine.cpu_model,
        machine.cores,
        machine.kernel,
        utc(SystemTime::now()),
        options.rounds.max(1),
        times.runtime.as_secs_f64(),
        command_line(),
    );
    remarks.iter().for_each(|remark| text += &format!("* {remark}\n"));
    let is_compared = outcomes.iter().any(|outcome| outcome.entrant == LOCAL);
    text += "\n| load | who | IOPS | MiB/s | p50 µs | p99 µs | client µs/IO | server µs/IO |";
    text += if is_compared { " of local |\n" } else { "\n" };
    text += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |";
    text += if is_compared { " ---: |\n" } else { "\n" };
    let (mut heading, mut local) = ("", None);
    for outcome in outcomes {
        let row = if heading == outcome.row { "" } else { &outcome.row };
        heading = &outcome.row;
        if outcome.entrant == LOCAL {
            local = measure::median(&outcome.runs).map(|figures| figures.iops);
        }
        line(row, outcome, local.filter(|_| is_compared), &mut text);
    }
    text
}

fn line(row: &str, outcome: &Outcome, local: Option<f64>, text: &mut String) {
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1}"));
    let _ = match (measure::median(&outcome.runs), &outcome.error) {
        (_, Some(error)) => {
            let error = error.replace(['\n', '|'], " ");
            writeln!(text, "| {row} | {} | {error} | | | | | |", outcome.entrant)
        }
        (None, None) => Ok(()),
        (Some(figures), None) => writeln!(
            text,
            "| {row} | {} | {:.0} | {:.0} | {} | {} | {} | {} |{}",
            outcome.entrant,
            figures.iops,
            figures.mib_per_second,
            number(figures.p50_us),
            number(figures.p99_us),
            number(Some(figures.host_cpu_us)),
            number(figures.target_cpu_us),
            local.map_or(String::new(), |local| format!(" {:.2} |", figures.iops / local)),
        ),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_within_everybodys_load() {
        for runtime in [1.0, 1.5, 3.0] {
            let times = Times { ramp: RAMP, runtime: Duration::from_secs_f64(runtime) };
            let window = window(times);
            assert!(window.start >= RAMP, "the slowest has begun");
            assert!(window.start + window.length < times.ramp + times.runtime, "nobody has ended");
            assert!(window.length > Duration::ZERO);
        }
    }

    #[test]
    fn a_row_is_named_once_and_errors_stay_in_their_cell() {
        let outcome = |error: Option<&str>| Outcome {
            row: "4k".to_owned(),
            entrant: "somebody",
            runs: vec![Figures { iops: 5.0, host_cpu_us: 1.0, ..Figures::default() }],
            error: error.map(str::to_owned),
        };
        let mut text = String::new();
        line("4k", &outcome(None), None, &mut text);
        line("", &outcome(Some("it\nfailed | twice")), None, &mut text);
        line("", &outcome(None), Some(20.0), &mut text);
        assert_eq!(
            text,
            "| 4k | somebody | 5 | 0 | – | – | 1.0 | – |\n\
             |  | somebody | it failed   twice | | | | | |\n\
             |  | somebody | 5 | 0 | – | – | 1.0 | – | 0.25 |\n"
        );
    }
}
