//! The report of a simulation.

use crate::settings::Settings;
use farblock_bench::table::wrap;
use farblock_bench::{group, tenths};
use farblock_fleet::text::Table;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The identifier of the format of a simulation report.
pub const SIMULATION_SCHEMA: &str = "farblock-fleet-simulation-1";

/// The simulated fleets, and their results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SimulationReport {
    /// The format: [`SIMULATION_SCHEMA`].
    pub schema: String,
    /// The name and version of the program.
    pub tool: String,
    /// The results of each fleet.
    pub fleets: Vec<FleetReport>,
}

/// The results of one fleet.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FleetReport {
    /// The settings of the fleet.
    pub settings: Settings,
    /// The scenes of the fleet, in order.
    pub scenes: Vec<SceneReport>,
    /// A digest of all events. It is the same for the same settings and the same program.
    pub trace: String,
}

/// The results of one scene of a fleet.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SceneReport {
    /// The name of the scene, in words.
    pub name: String,
    /// The number of hosts that started or lost a connection in this scene.
    pub hosts: u64,
    /// The number of these hosts that had not resumed I/O when the simulation gave up the scene.
    pub never: u64,
    /// The times from the start of the scene until a host did I/O with all of its disks again.
    pub seconds: Times,
    /// The connections at all targets.
    pub connections: Connections,
    /// The number of reads and writes that failed.
    pub failed_operations: u64,
    /// The real processor time of the simulation, in seconds.
    pub cpu_seconds: f64,
    /// The real time of the simulation, in seconds.
    pub real_seconds: f64,
    /// The memory that the simulation uses at the end of the scene, in bytes.
    pub memory_bytes: Option<u64>,
}

/// The times until hosts did I/O with all of their disks again, in virtual seconds.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Times {
    /// The time of the fastest host.
    pub first: f64,
    /// The median of the times of all hosts.
    pub median: f64,
    /// The 99th percentile of the times of all hosts.
    pub p99: f64,
    /// The time of the slowest host.
    pub last: f64,
}

impl Times {
    pub(crate) fn new(mut all: Vec<Duration>) -> Times {
        all.sort_unstable();
        let at = |part: f64| {
            let place = (all.len() as f64 * part).ceil() as usize;
            all.get(place.max(1) - 1).map_or(0.0, Duration::as_secs_f64)
        };
        Times { first: at(0.0), median: at(0.5), p99: at(0.99), last: at(1.0) }
    }
}

/// The connections that targets accepted and refused.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Connections {
    /// The number of accepted connections.
    pub accepted: u64,
    /// The maximum number of connections that all targets together accepted in one second.
    pub busiest_second: u64,
    /// The maximum number of connections that one target accepted in one second.
    pub busiest_second_of_a_target: u64,
    /// The number of refused connections by reason. `backlog`: the listen backlog of the target was
    /// full, and the host repeated its SYN.
    pub refused: BTreeMap<String, u64>,
}

impl SimulationReport {
    /// The report as JSON.
    ///
    /// # Panics
    /// Never panics, because a report is plain data.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a serializable report")
    }

    /// Whether a host never resumed I/O, or an operation failed.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        let scenes = self.fleets.iter().flat_map(|fleet| &fleet.scenes);
        scenes.into_iter().any(|scene| scene.never > 0 || scene.failed_operations > 0)
    }

    /// Renders the report as text, at most this many columns wide.
    #[must_use]
    pub fn render_within(&self, columns: usize) -> String {
        let mut text = String::new();
        for (at, fleet) in self.fleets.iter().enumerate() {
            let gap = if at == 0 { "" } else { "\n" };
            let _ = writeln!(text, "{gap}{}", wrap(&fleet.words(), 2, columns));
            for (title, table) in fleet.tables() {
                let _ = writeln!(text, "\n{}\n", wrap(title, 0, columns));
                for line in table.lines() {
                    let _ = writeln!(text, "{}", line.trim_end());
                }
            }
            for remark in fleet.remarks() {
                let _ = writeln!(text, "\n{}", wrap(&remark, 2, columns));
            }
        }
        text
    }
}

impl FleetReport {
    fn words(&self) -> String {
        let Settings { hosts, targets, disks, away, reconnect, seed, accept_us, message_us } =
            self.settings;
        let number = |count: u32| group(&count.to_string());
        format!(
            "{} hosts of {disks} disks, {} targets of one core; dead targets and the switch are \
             down for {away} s; hosts pause for {reconnect} s at most; a target takes {accept_us} \
             µs for a connection and {message_us} µs for a message; seed {seed}",
            number(hosts),
            number(targets),
        )
    }

    fn tables(&self) -> [(&'static str, Table); 2] {
        let times = Table {
            header: vec!["seconds until", "hosts", "first", "median", "p99", "last"],
            rows: self.scenes.iter().map(SceneReport::times).collect(),
        };
        let header = vec!["connections", "all", "in 1 s", "of one", "refused", "CPU s", "MiB"];
        let rows = self.scenes.iter().map(SceneReport::costs).collect();
        [
            ("virtual time until hosts do I/O with all their disks again", times),
            (
                "connections: all, most in 1 s, most in 1 s at one target; cost of the simulation",
                Table { header, rows },
            ),
        ]
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for scene in &self.scenes {
            let reasons = scene.connections.refused.iter();
            let reasons: Vec<String> = reasons
                .map(|(why, count)| format!("{} {why}", group(&count.to_string())))
                .collect();
            if !reasons.is_empty() {
                remarks.push(format!("refused when {}: {}", scene.name, reasons.join(", ")));
            }
            if scene.never > 0 {
                let never = group(&scene.never.to_string());
                remarks.push(format!("when {}: {never} hosts never resumed I/O", scene.name));
            }
            if scene.failed_operations > 0 {
                let failed = group(&scene.failed_operations.to_string());
                remarks.push(format!("when {}: {failed} operations failed", scene.name));
            }
        }
        remarks
    }
}

impl SceneReport {
    fn times(&self) -> Vec<String> {
        let Times { first, median, p99, last } = self.seconds;
        let seconds = [first, median, p99, last].map(|time| format!("{time:.2}"));
        let mut row = vec![self.name.clone(), group(&self.hosts.to_string())];
        row.extend(seconds);
        row
    }

    fn costs(&self) -> Vec<String> {
        let Connections { accepted, busiest_second, busiest_second_of_a_target, ref refused } =
            self.connections;
        let numbers =
            [accepted, busiest_second, busiest_second_of_a_target, refused.values().sum()];
        let mut row = vec![self.name.clone()];
        row.extend(numbers.map(|number| group(&number.to_string())));
        row.push(tenths(self.cpu_seconds));
        let mib = self.memory_bytes.map(|bytes| group(&(bytes >> 20).to_string()));
        row.push(mib.unwrap_or_else(|| "–".to_owned()));
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_computed_over_hosts() {
        let all = (1..=200).rev().map(Duration::from_secs).collect();
        let times = Times { first: 1.0, median: 100.0, p99: 198.0, last: 200.0 };
        assert_eq!(Times::new(all), times);
        assert_eq!(Times::new(Vec::new()), Times::default());
        let one = Times { first: 3.0, median: 3.0, p99: 3.0, last: 3.0 };
        assert_eq!(Times::new(vec![Duration::from_secs(3)]), one);
    }
}
