//! Formats the results of the measuring stand as tables for people and as JSON for programs.

use std::time::SystemTime;

use farblock_bench::{Machine, command_line, utc};
use serde::Serialize;

use super::facts::{self, Fact};
use super::goals::{self, GoalReport};
use super::map;
use super::measure::Figures;
use super::network;
use super::sides::{self, Side, Times};
use super::work::{Backend, Load, Row};
use crate::data::{Data, Head};

const COLUMNS: [&str; 12] = [
    "load",
    "side",
    "IOPS",
    "MiB/s",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "host µs/IO",
    "target µs/IO",
    "host MiB",
    "target MiB",
    "of floor",
];

/// All results of one run of the stand.
#[derive(Serialize)]
pub(crate) struct Report {
    date: String,
    command_line: String,
    machine: Machine,
    rounds: u32,
    runtime_seconds: f64,
    ramp_seconds: f64,
    congestion_control: String,
    missing: Vec<String>,
    goals: Vec<GoalReport>,
    facts: Vec<Fact>,
    rows: Vec<RowReport>,
}

/// The results for one load on one backend.
#[derive(Serialize)]
pub(crate) struct RowReport {
    pub(crate) name: String,
    pub(crate) backend: Backend,
    pub(crate) load: Load,
    pub(crate) sides: Vec<SideReport>,
}

/// The results of one side of a row.
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

    /// The medians of a side, if it was measured.
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
        serde_json::to_string_pretty(self).expect("every report can be written as JSON") + "\n"
    }

    /// The tables, with the names of their files.
    pub(crate) fn tables(&self) -> Vec<(String, Data)> {
        let mut tables = Vec::new();
        if !self.goals.is_empty() {
            let what = "goals of bench-peers: the bound, and the ratio of the medians";
            let mut table = Data::new(self.head(what), &goals::COLUMNS);
            self.goals.iter().for_each(|goal| table.push(goal.row()));
            tables.push(("peers-goals".to_owned(), table));
        }
        if !self.facts.is_empty() {
            let what = "a target with many connections: processor time, memory, I/Os per second";
            let mut table = Data::new(self.head(what), &facts::COLUMNS);
            self.facts.iter().for_each(|fact| table.push(fact.row()));
            tables.push(("peers-facts".to_owned(), table));
        }
        for backend in Backend::ALL {
            let rows: Vec<_> = self.rows.iter().filter(|row| row.backend == backend).collect();
            if !rows.is_empty() {
                tables.push((format!("peers-{}", backend.name()), self.table(backend, &rows)));
            }
        }
        tables
    }

    /// The map of block sizes, with the name of its file.
    pub(crate) fn map(&self) -> (String, Data) {
        let what = "farblock, SPDK and bare sockets on a RAM disk, by block size and depth";
        let mut table = Data::new(self.head(what), &map::COLUMNS);
        table.remarks = self.remarks();
        self.rows.iter().for_each(|row| table.push(map::cells(row)));
        (map::NAME.to_owned(), table)
    }

    fn remarks(&self) -> Vec<String> {
        self.missing.iter().map(|sentence| format!("Not measured: {sentence}.")).collect()
    }

    fn head(&self, what: &str) -> Head {
        let method = format!(
            "medians of {} runs of {} s, sides interleaved, target and host pinned to a processor \
             each, TCP congestion control {}",
            self.rounds, self.runtime_seconds, self.congestion_control,
        );
        let date = self.date.clone();
        Head { date, ..Head::of_this_run(what, method) }
    }

    fn table(&self, backend: Backend, rows: &[&RowReport]) -> Data {
        let what = format!(
            "farblock, SPDK, iSCSI, NBD, bare sockets (floor) and local access, disk: {}",
            backend.name()
        );
        let mut table = Data::new(self.head(&what), &COLUMNS);
        table.remarks = self.remarks();
        for row in rows {
            let floor = row.of(sides::FLOOR).map(|floor| floor.iops);
            for side in &row.sides {
                match (&side.median, &side.error) {
                    (Some(figures), _) => {
                        table.push(cells(&row.load.words(), side.name, figures, floor));
                    }
                    (None, Some(error)) => {
                        table.push(vec![row.load.words(), side.name.to_owned(), error.clone()]);
                    }
                    (None, None) => {}
                }
            }
        }
        table
    }
}

fn cells(load: &str, side: &str, figures: &Figures, floor: Option<f64>) -> Vec<String> {
    let tenth = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.1}"));
    let fine = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.2}"));
    vec![
        load.to_owned(),
        side.to_owned(),
        format!("{:.0}", figures.iops),
        format!("{:.0}", figures.mib_per_second),
        tenth(figures.p50_us),
        tenth(figures.p99_us),
        tenth(figures.p99_9_us),
        fine(Some(figures.host_cpu_us)),
        fine(figures.target_cpu_us),
        tenth(figures.host_memory_mib),
        tenth(figures.target_memory_mib),
        fine(floor.map(|floor| figures.iops / floor)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_cell_for_each_column_even_without_a_figure() {
        let figures = Figures { iops: 5.0, host_cpu_us: 1.0, ..Figures::default() };
        let row = cells("4k", "floor", &figures, Some(10.0));
        assert_eq!(row.len(), COLUMNS.len());
        assert_eq!(row.join(","), "4k,floor,5,0,,,,1.00,,,,0.50");
    }
}
