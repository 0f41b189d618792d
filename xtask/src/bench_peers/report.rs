//! The results: tables for people, JSON for programs.

use std::fmt::Write;
use std::time::SystemTime;

use farblock_bench::{Machine, command_line, utc};
use serde::Serialize;

use super::facts::Fact;
use super::goals::{self, GoalReport};
use super::measure::Figures;
use super::network;
use super::sides::{self, Side, Times};
use super::work::{Backend, Load, Row};

/// Text for a missing number.
const NOTHING: &str = "–";

/// All results of one run of the stand.
#[derive(Serialize)]
pub(crate) struct Report {
    date: String,
    command_line: String,
    machine: Machine,
    rounds: u32,
    runtime_seconds: f64,
    ramp_seconds: f64,
    /// The default TCP congestion control.
    congestion_control: String,
    /// Why sides are missing.
    missing: Vec<String>,
    goals: Vec<GoalReport>,
    facts: Vec<Fact>,
    rows: Vec<RowReport>,
}

/// One load on one backend.
#[derive(Serialize)]
pub(crate) struct RowReport {
    pub(crate) name: String,
    pub(crate) backend: Backend,
    pub(crate) load: Load,
    pub(crate) sides: Vec<SideReport>,
}

/// One side of a row.
#[derive(Serialize)]
pub(crate) struct SideReport {
    pub(crate) name: &'static str,
    pub(crate) median: Option<Figures>,
    pub(crate) error: Option<String>,
    pub(crate) runs: Vec<Figures>,
}

impl SideReport {
    pub(crate) fn new(side: &Side) -> SideReport {
        SideReport { name: side.name, median: None, error: None, runs: Vec::new() }
    }
}

impl RowReport {
    pub(crate) fn new(row: &Row, sides: Vec<SideReport>) -> RowReport {
        RowReport { name: row.slug(), backend: row.backend, load: row.load, sides }
    }

    /// A side's medians, if measured.
    pub(crate) fn of(&self, side: Side) -> Option<&Figures> {
        self.sides.iter().find(|report| report.name == side.name)?.median.as_ref()
    }
}

impl Report {
    pub(crate) fn new(
        rows: Vec<RowReport>,
        facts: Vec<Fact>,
        missing: Vec<String>,
        rounds: u32,
        times: Times,
    ) -> Report {
        Report {
            date: utc(SystemTime::now()),
            command_line: command_line(),
            machine: Machine::this(),
            rounds,
            runtime_seconds: times.runtime.as_secs_f64(),
            ramp_seconds: times.ramp.as_secs_f64(),
            congestion_control: network::congestion_control(),
            missing,
            goals: goals::compare(&rows),
            facts,
            rows,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.facts.is_empty()
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let machine = &self.machine;
        let _ = write!(
            text,
            "{}, {} processors, {}. {}. Medians of {} runs of {} s, sides interleaved, target and \
             host pinned to a processor each, TCP congestion control {}. `{}`\n\n",
            machine.cpu_model,
            machine.cores,
            machine.kernel,
            self.date,
            self.rounds,
            self.runtime_seconds,
            self.congestion_control,
            self.command_line,
        );
        for sentence in &self.missing {
            let _ = writeln!(text, "* not measured: {}", sentence.replace('\n', " "));
        }
        goals::markdown(&self.goals, &mut text);
        if !self.facts.is_empty() {
            text.push_str("\n| what | goal | measured | met |\n| --- | --- | --- | --- |\n");
            self.facts.iter().for_each(|fact| text.push_str(&fact.markdown()));
        }
        for backend in Backend::ALL {
            let rows: Vec<_> = self.rows.iter().filter(|row| row.backend == backend).collect();
            if !rows.is_empty() {
                table(backend, &rows, &mut text);
            }
        }
        text
    }
}

fn table(backend: Backend, rows: &[&RowReport], text: &mut String) {
    let _ = write!(
        text,
        "\n### Disk: {}\n\n\
         | load | side | IOPS | MiB/s | p50 µs | p99 | p99.9 | host µs/IO | target µs/IO | \
         host MiB | target MiB | of floor |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        backend.name()
    );
    for row in rows {
        let floor = row.of(sides::FLOOR).map(|floor| floor.iops);
        let mut heading = row.load.words();
        for side in &row.sides {
            let name = std::mem::take(&mut heading);
            match (&side.median, &side.error) {
                (Some(figures), _) => line(&name, side.name, figures, floor, text),
                (None, Some(error)) => {
                    let error = error.replace(['\n', '|'], " ");
                    let _ =
                        writeln!(text, "| {name} | {} | {error} | | | | | | | | | |", side.name);
                }
                (None, None) => {}
            }
        }
    }
}

fn line(load: &str, side: &str, figures: &Figures, floor: Option<f64>, text: &mut String) {
    let tenth = |value: Option<f64>| value.map_or(NOTHING.to_owned(), |v| format!("{v:.1}"));
    let fine = |value: Option<f64>| value.map_or(NOTHING.to_owned(), |v| format!("{v:.2}"));
    let _ = writeln!(
        text,
        "| {load} | {side} | {:.0} | {:.0} | {} | {} | {} | {} | {} | {} | {} | {} |",
        figures.iops,
        figures.mib_per_second,
        tenth(figures.p50_us),
        tenth(figures.p99_us),
        tenth(figures.p99_9_us),
        fine(Some(figures.host_cpu_us)),
        fine(figures.target_cpu_us),
        tenth(figures.host_memory_mib),
        tenth(figures.target_memory_mib),
        fine(floor.map(|floor| figures.iops / floor)),
    );
}

/// Puts `tables` between the markers of `name` in `document`; appends the markers if missing.
pub(crate) fn between_markers(document: &str, name: &str, tables: &str) -> String {
    let [begin, end] = ["begin", "end"].map(|which| format!("<!-- {name}:{which} -->"));
    let block = format!("{begin}\n\n{tables}\n{end}");
    match (document.find(&begin), document.find(&end)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{block}{}", &document[..from], &document[to + end.len()..])
        }
        _ => format!("{}\n\n{block}\n", document.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_replace_what_was_between_the_markers() {
        let (begin, end) = ("<!-- x:begin -->", "<!-- x:end -->");
        let first = between_markers("# Speed\n", "x", "old");
        assert_eq!(first, format!("# Speed\n\n{begin}\n\nold\n{end}\n"));
        let second = between_markers(&(first + "More.\n"), "x", "new");
        assert_eq!(second, format!("# Speed\n\n{begin}\n\nnew\n{end}\nMore.\n"));
    }
}
