//! Rates from two samples of a target's counters: by core, namespace and host.

use crate::table::printable;
use farblock_admin_api::{IoStats, Latency, Stats};

const MIB: f64 = (1 << 20) as f64;

/// The kind of object that each row of the table describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum View {
    Cores,
    Namespaces,
    Hosts,
}

/// The titles of the columns of figures, from left to right.
pub(super) const COLUMNS: [&str; 8] =
    ["READ/s", "WRITE/s", "READ MiB/s", "WRITE MiB/s", "READ µs", "WRITE µs", "ERR/s", "BUSY %"];

/// The rates of one core, namespace or host.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    /// The rates, in the order of [`COLUMNS`]; `None` if a rate is unknown.
    pub(super) figures: [Option<f64>; COLUMNS.len()],
}

impl Row {
    fn new(name: &str, now: &IoStats, before: Option<&IoStats>, between: &Between<'_>) -> Self {
        let nothing = IoStats::default();
        let before = before.unwrap_or(&nothing);
        let rate = |count: fn(&IoStats) -> u64| {
            Some(count(now).saturating_sub(count(before)) as f64 / between.seconds)
        };
        let mean = |of: fn(&IoStats) -> &Latency| mean_us(of(now), of(before));
        let figures = [
            rate(|io| io.reads),
            rate(|io| io.writes),
            rate(|io| io.read_bytes).map(|bytes| bytes / MIB),
            rate(|io| io.written_bytes).map(|bytes| bytes / MIB),
            mean(|io| &io.read_latency),
            mean(|io| &io.write_latency),
            rate(errors),
            None,
        ];
        Self { name: printable(name), figures }
    }

    pub(super) fn cell(&self, column: usize) -> String {
        match self.figures[column] {
            None => "-".to_owned(),
            Some(figure) if column < 2 || column == 6 => format!("{figure:.0}"),
            Some(figure) => format!("{figure:.1}"),
        }
    }
}

/// Returns the number of failed commands, of all status types.
pub(super) fn errors(io: &IoStats) -> u64 {
    let it = &io.errors;
    it.generic + it.command_specific + it.media + it.path + it.vendor
}

/// Returns the mean latency in microseconds, or `None` if no command was measured.
pub(super) fn mean_us(now: &Latency, before: &Latency) -> Option<f64> {
    let count = |latency: &Latency| latency.counts.iter().sum::<u64>();
    let commands = count(now).checked_sub(count(before)).filter(|count| *count > 0)?;
    let sum_ns = now.sum_ns.saturating_sub(before.sum_ns);
    Some(sum_ns as f64 / commands as f64 / 1e3)
}

/// Two samples of the counters, and the time between them.
struct Between<'a> {
    now: &'a Stats,
    before: &'a Stats,
    seconds: f64,
}

/// Returns the rates between two samples.
pub(super) fn rows(view: View, now: &Stats, before: &Stats) -> Vec<Row> {
    let ms = now.uptime_ms.saturating_sub(before.uptime_ms).max(1);
    let between = Between { now, before, seconds: ms as f64 / 1e3 };
    match view {
        View::Cores => between.cores(),
        View::Namespaces => between.namespaces(),
        View::Hosts => between.hosts(),
    }
}

impl Between<'_> {
    fn cores(&self) -> Vec<Row> {
        let row = |core: &farblock_admin_api::CoreStats| {
            let before = self.before.cores.iter().find(|it| it.core == core.core);
            let name = format!("core {}", core.core);
            let mut row = Row::new(&name, &core.io, before.map(|it| &it.io), self);
            let busy_ns = core.busy_ns.zip(before.and_then(|it| it.busy_ns));
            let share = busy_ns.map(|(now, then)| now.saturating_sub(then) as f64 / 1e7);
            row.figures[7] = share.map(|share| share / self.seconds);
            row
        };
        self.now.cores.iter().map(row).collect()
    }

    fn namespaces(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for subsystem in &self.now.subsystems {
            let before = self.before.subsystems.iter().find(|it| it.nqn == subsystem.nqn);
            let before = before.map_or(&[][..], |it| &it.namespaces);
            for namespace in &subsystem.namespaces {
                // Put the namespace ID first, because a narrow column cuts off the end of a name.
                let name = format!("{} {}", namespace.nsid, subsystem.nqn);
                let before = before.iter().find(|it| it.nsid == namespace.nsid);
                rows.push(Row::new(&name, &namespace.io, before.map(|it| &it.io), self));
            }
        }
        rows
    }

    fn hosts(&self) -> Vec<Row> {
        let row = |host: &farblock_admin_api::HostStats| {
            let before = self.before.hosts.iter().find(|it| it.nqn == host.nqn);
            Row::new(&host.nqn, &host.io, before.map(|it| &it.io), self)
        };
        let here = self.now.hosts.iter().filter(|host| host.controllers > 0);
        here.map(row).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    fn io(reads: u64, errors: u64) -> serde_json::Value {
        let latency = json!({ "sum_ns": reads * 5000, "counts": [0, 0, 0, reads] });
        json!({
            "reads": reads, "writes": 0, "others": 0, "read_bytes": reads * 4096,
            "written_bytes": 0, "storage_errors": 0, "write_latency": { "sum_ns": 0, "counts": [] },
            "read_latency": latency, "errors": { "generic": errors, "command_specific": 0,
            "media": 0, "path": 0, "vendor": 0 }
        })
    }

    /// Makes counters after `uptime_ms` milliseconds. The second namespace has twice the reads of
    /// the first.
    pub(crate) fn stats(uptime_ms: u64, reads: u64) -> Stats {
        let names = ["nqn.2014-08.org.example:busy", "nqn.2014-08.org.example:gone"];
        let host = |host: usize| {
            let (nqn, io) = (names[host], io(reads, 0));
            json!({ "nqn": nqn, "controllers": 1 - host, "io_queues": 2, "io": io })
        };
        let space = |nsid: u64| json!({ "nsid": nsid, "io": io(reads * nsid, reads) });
        let made = json!({
            "uptime_ms": uptime_ms, "time_ms": 0, "latency_bounds_us": [1, 2, 4, 8],
            "connections": { "open": 3, "accepted": 3, "refused": {}, "faults": {},
                "authenticated": 0, "not_authenticated": {} },
            "total": io(reads * 3, reads), "other_hosts": io(0, 0),
            "cores": [{ "core": 0, "connections": 3, "busy_ns": uptime_ms * 500_000,
                "io": io(reads * 3, 0) }],
            "subsystems": [{ "nqn": "nqn.2026-11.org.farblock:disks", "io": io(reads * 3, 0),
                "namespaces": [space(1), space(2)] }],
            "hosts": [host(0), host(1)]
        });
        serde_json::from_value(made).expect("the counters are valid")
    }

    #[test]
    fn rates_are_count_differences_divided_by_the_elapsed_time() {
        let (before, now) = (stats(1000, 100), stats(3000, 300));
        let spaces = rows(View::Namespaces, &now, &before);
        assert_eq!(spaces[1].name, "2 nqn.2026-11.org.farblock:disks");
        assert_eq!(spaces[1].figures[0], Some(200.0));
        assert_eq!(spaces[1].figures[4], Some(5.0));
        assert_eq!((spaces[1].figures[5], spaces[1].figures[6]), (None, Some(100.0)));
        assert_eq!(spaces[1].cell(2), "0.8");
        assert_eq!(rows(View::Cores, &now, &before)[0].figures[7], Some(50.0));
        let hosts = rows(View::Hosts, &now, &before);
        assert_eq!(hosts.len(), 1, "a disconnected host has no row");
        // A restarted target counts from 0.
        let anew = rows(View::Hosts, &before, &now);
        assert_eq!(anew[0].figures[0], Some(0.0));
    }
}
