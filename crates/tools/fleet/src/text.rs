//! A report as text for a terminal, and as Markdown.

use crate::documents::Documents;
use crate::report::{ActionReport, GuestsReport, Report, SetReport, SetsReport};
use farblock_bench::table::wrap;
use farblock_bench::{iops, jobs_and_depth, tenths, us};
use std::fmt::Write;

/// The space between two columns.
const GAP: &str = "  ";
const NOTHING: &str = "–";

/// A table whose first column has text, and whose other columns have numbers.
pub struct Table {
    /// The title of each column.
    pub header: Vec<&'static str>,
    /// The rows, with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// Renders the report as text, this many columns wide.
#[must_use]
pub fn render_within(report: &Report, columns: usize) -> String {
    let mut text = String::new();
    let mut line = |words: &str| {
        let _ = writeln!(text, "{}", words.trim_end());
    };
    for (name, words) in head(report) {
        line(&wrap(&format!("{name:<9}{words}"), 9, columns));
    }
    for (title, table) in tables(report, columns) {
        line("");
        line(&wrap(title, 0, columns));
        line("");
        table.lines().iter().for_each(|row| line(row));
    }
    for (at, sentence) in remarks(report).iter().enumerate() {
        if at == 0 {
            line("");
        }
        line(&wrap(sentence, 2, columns));
    }
    text
}

/// Renders the report as Markdown.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n\n", escaped(&report.plan.name));
    for (name, words) in head(report) {
        let _ = writeln!(text, "- {name}: {}", escaped(&words));
    }
    for (title, table) in tables(report, usize::MAX) {
        let _ = writeln!(text, "\n{title}\n");
        let _ = writeln!(text, "| {} |", table.header.join(" | "));
        let marks =
            table.header.iter().enumerate().map(|(at, _)| if at == 0 { "---" } else { "---:" });
        let _ = writeln!(text, "| {} |", marks.collect::<Vec<_>>().join(" | "));
        for row in &table.rows {
            let cells: Vec<String> = row.iter().map(|cell| escaped(cell)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    for (at, sentence) in remarks(report).iter().enumerate() {
        let _ = writeln!(text, "{}- {}", if at == 0 { "\n" } else { "" }, escaped(sentence));
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

pub(crate) fn head(report: &Report) -> Vec<(&'static str, String)> {
    let plan = &report.plan;
    let named = format!("{}: {}", plan.name, plan.about);
    let mut head = vec![
        ("plan", if plan.about.is_empty() { plan.name.clone() } else { named }),
        ("date", format!("{}, {}", report.date, report.tool)),
    ];
    if let Some(node) = report.nodes.first() {
        let machine = &node.machine;
        let (cpu, cores) = (&machine.cpu_model, machine.cores);
        head.push(("machine", format!("{cpu}, {cores} processors, {}", machine.kernel)));
    }
    let (nodes, clients) = (plan.nodes(), plan.clients_per_node);
    let together = if plan.together { ", each with targets and clients" } else { "" };
    let agents = match plan.agents.is_empty() {
        true => format!(
            "{}{together}, {} of {} each ({}), {} on a node",
            counted(nodes, "node"),
            counted(plan.storage_nodes * plan.targets_per_node, "target"),
            counted(plan.drives_of_target(), "drive"),
            if plan.drives.is_empty() { plan.drive.clone() } else { plan.drives.join(", ") },
            counted(clients, "client"),
        ),
        false => {
            let agents = u32::try_from(plan.agents.len()).unwrap_or(u32::MAX);
            let hosts = plan.agents.iter().filter(|place| place.serves_at.is_none()).count();
            let hosts = u32::try_from(hosts).unwrap_or(u32::MAX);
            let clients = counted(clients, "client");
            format!("{}, {} of them with {clients} each", counted(agents, "agent"), hosts)
        }
    };
    let paths = if plan.paths > 1 {
        format!(", {} paths to each drive", plan.paths)
    } else {
        String::new()
    };
    head.push(("fleet", format!("{agents}{paths}, over {}", report.network)));
    let error = report.nodes.iter().map(|node| node.clock_error_us).fold(0.0, f64::max);
    head.push(("clocks", format!("agree within {} µs", tenths(error))));
    if !report.actions.is_empty() {
        let (runs, seconds) = (plan.runs, plan.runtime_seconds);
        let warm_up = match plan.warm_up_seconds {
            0.0 => String::new(),
            seconds => format!(", and another {seconds} s before the first run of each action"),
        };
        let ramp = plan.ramp_seconds;
        head.push(("method", format!("{runs} × {seconds} s, after {ramp} s{warm_up}")));
    }
    head
}

fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn tables(report: &Report, columns: usize) -> Vec<(&'static str, Table)> {
    let mut tables = Vec::new();
    if !report.actions.is_empty() {
        let wide = actions(report, true, MICRO);
        if wide.width() <= columns {
            tables.push(("all clients together, latency in µs", wide));
        } else {
            let both = [actions(report, false, MICRO), latencies(report, MICRO)];
            let unit = match both.iter().all(|table| table.width() <= columns) {
                true => MICRO,
                false => MILLI,
            };
            tables.push(("all clients together", actions(report, false, unit)));
            tables.push((unit.title, latencies(report, unit)));
        }
        if report.actions.iter().any(|action| !action.iscsi.is_empty()) {
            tables.push(("NVMe/TCP and iSCSI on the same file", against_iscsi(report)));
        }
        let is_beside =
            |action: &ActionReport| action.documents.as_ref().is_some_and(Documents::has_figure);
        if report.actions.iter().any(is_beside) {
            let title =
                "I/Os per second (or GB/s), and the documents' figures from much larger machines";
            tables.push((title, beside(report)));
        }
        if columns > 120 {
            tables.push(("processor use in percent of one core", cpu(report)));
        }
    }
    if !report.faults.is_empty() {
        tables.push(("the effect of each fault", faults(report)));
    }
    tables
}

#[derive(Clone, Copy)]
struct Unit {
    ns: f64,
    mean: &'static str,
    title: &'static str,
}

const MICRO: Unit =
    Unit { ns: 1.0, mean: "mean µs", title: "latency in µs, and processor time of all agents" };
/// Milliseconds, for a fleet that overloads its machine and has latencies of seconds.
const MILLI: Unit =
    Unit { ns: 1e3, mean: "mean ms", title: "latency in ms, and processor time of all agents" };

impl Unit {
    fn of(self, ns: f64) -> String {
        us(ns / self.ns)
    }
}

fn actions(report: &Report, wide: bool, unit: Unit) -> Table {
    let mut header = vec!["action", "clients", "load", "IOPS", "MiB/s", unit.mean];
    if wide {
        header.extend(["p50", "p99", "p99.9", "max", "CPU µs/IO"]);
    }
    header.push("% of alone");
    let row = |action: &ActionReport| {
        let total = &action.total;
        let mut row = vec![
            action.name().to_owned(),
            action.clients.to_string(),
            jobs_and_depth(&action.pattern).replace(' ', ""),
            iops(total.iops),
            tenths(total.mib_per_second),
            unit.of(total.latency.mean_ns),
        ];
        if wide {
            row.extend(percentiles(action, unit));
        }
        row.push(percent(action.percent_of_theoretical));
        row
    };
    Table { header, rows: report.actions.iter().map(row).collect() }
}

fn percentiles(action: &ActionReport, unit: Unit) -> [String; 5] {
    let latency = &action.total.latency;
    [
        unit.of(latency.p50_ns as f64),
        unit.of(latency.p99_ns as f64),
        unit.of(latency.p99_9_ns as f64),
        unit.of(latency.max_ns as f64),
        tenths(action.total.cpu_us_per_io),
    ]
}

fn latencies(report: &Report, unit: Unit) -> Table {
    let row = |action: &ActionReport| {
        let mut row = vec![action.name().to_owned()];
        row.extend(percentiles(action, unit));
        row
    };
    let header = vec!["action", "p50", "p99", "p99.9", "max", "CPU µs/IO"];
    Table { header, rows: report.actions.iter().map(row).collect() }
}

/// A table that compares NVMe/TCP, in the first rows, with the iSCSI targets.
fn against_iscsi(report: &Report) -> Table {
    let header = vec!["action", "IOPS", "mean µs", "CPU µs/IO", "NVMe ÷ it", "documents"];
    let mut rows = Vec::new();
    for action in report.actions.iter().filter(|action| !action.iscsi.is_empty()) {
        let total = &action.total;
        rows.push(vec![
            format!("{}, NVMe/TCP", action.name()),
            iops(total.iops),
            us(total.latency.mean_ns),
            tenths(total.cpu_us_per_io),
            String::new(),
            String::new(),
        ]);
        let documents = action.documents.as_ref().and_then(|it| it.percent_over_iscsi);
        rows.extend(action.iscsi.iter().map(|iscsi| {
            vec![
                format!("  iSCSI, {}", iscsi.target.words()),
                iops(iscsi.total.iops),
                us(iscsi.total.mean_latency_us * 1e3),
                tenths(iscsi.total.cpu_us_per_io),
                format!("{:.2}", iscsi.nvme_ratio),
                documents.map_or_else(|| NOTHING.to_owned(), |it| format!("+{it:.0} %")),
            ]
        }));
    }
    Table { header, rows }
}

fn beside(report: &Report) -> Table {
    let header = vec!["action", "here", "% of alone", "documents", "% of alone"];
    let row = |action: &ActionReport| {
        let documents = action.documents.as_ref().filter(|it| it.has_figure())?;
        let (here, there) = match (documents.gb_per_second, documents.iops) {
            (Some(gb), _) => {
                let here = action.total.mib_per_second * 1.048_576e-3;
                (format!("{here:.2} GB/s"), format!("{gb:.2} GB/s"))
            }
            (None, Some(there)) => (iops(action.total.iops), iops(there)),
            (None, None) => (iops(action.total.iops), NOTHING.to_owned()),
        };
        Some(vec![
            action.name().to_owned(),
            here,
            percent(action.percent_of_theoretical),
            there,
            percent(documents.percent_of_theoretical),
        ])
    };
    Table { header, rows: report.actions.iter().filter_map(row).collect() }
}

pub(crate) fn cpu(report: &Report) -> Table {
    let header = vec!["agent", "mean", "most", "in"];
    let rows = report.nodes.iter().map(|node| {
        let of = |action: &ActionReport| {
            let (_, percent) = action.cpu.iter().find(|(name, _)| *name == node.name)?;
            Some((*percent, action.name().to_owned()))
        };
        let all: Vec<(f64, String)> = report.actions.iter().filter_map(of).collect();
        let mean = all.iter().map(|(percent, _)| percent).sum::<f64>() / all.len().max(1) as f64;
        let most = all.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
        vec![node.name.clone(), tenths(mean), tenths(most.0), most.1]
    });
    Table { header, rows: rows.collect() }
}

fn faults(report: &Report) -> Table {
    let header = vec!["fault", "longest pause, s", "whole again, s", "errors", "lost"];
    let rows = report.faults.iter().map(|fault| {
        vec![
            format!("{} {}", fault.fault.name(), fault.target),
            format!("{:.2}", fault.pause_seconds),
            format!("{:.2}", fault.whole_again_seconds),
            fault.failed.to_string(),
            fault.lost.to_string(),
        ]
    });
    Table { header, rows: rows.collect() }
}

/// A warning if the plan limits the speed of the drives: the fleet then easily reaches 100 % of it.
fn drive_limit(drive: &str) -> Option<String> {
    let limits: Vec<_> = drive.split(',').filter_map(|part| part.strip_prefix("limit:")).collect();
    (!limits.is_empty()).then(|| {
        format!(
            "each drive is deliberately limited to {}: 100 % means that the targets and the \
             network are as fast as these slow drives, and does not show the limit of this machine",
            limits.join(" and ")
        )
    })
}

pub(crate) fn remarks(report: &Report) -> Vec<String> {
    let mut remarks = report.plan.scaled.clone();
    remarks.extend(drive_limit(&report.plan.drive));
    remarks.extend(report.sets.iter().map(sets));
    remarks.extend(crate::iscsi::remarks(&report.plan));
    if report.actions.iter().any(|action| action.alone_iops.is_some()) {
        remarks.push(
            "% of alone: percentage of the sum of all drives, each measured alone before, without \
             a network"
                .to_owned(),
        );
    }
    if report.actions.iter().any(|action| action.vm) {
        let guests = if report.guests.is_none() { "; no guest runs" } else { "" };
        remarks.push(format!(
            "VM: each client's disk is a vhost-user disk, and the load uses its virtio rings like \
             a guest's driver{guests}"
        ));
    }
    remarks.extend(report.guests.as_ref().map(guests));
    if let Some(verified) = &report.verified {
        let group = |count: u64| farblock_bench::group(&count.to_string());
        remarks.push(format!(
            "verified: {} writes acknowledged, {} blocks compared, {} operations failed, {} blocks \
             lost",
            group(verified.writes),
            group(verified.reads),
            group(verified.failed),
            group(verified.lost)
        ));
        remarks.extend(verified.wrong.clone());
    }
    if report.plan.paths > 1 {
        remarks.push(format!(
            "{} targets share each drive; the drive is on another node, whose network has no \
             faults; the host resends a lost write over another path after two to three times {} \
             s, when the lost target can no longer execute it, or when that target has returned",
            report.plan.paths,
            crate::limits::KEEP_ALIVE.as_secs()
        ));
    }
    let left_out = !report.plan.faults.is_empty() && report.network.contains("loopback");
    if left_out && report.plan.faults.iter().any(|fault| fault.name() != "kill") {
        remarks.push(
            "a node without its own network is only killed: its network is not cut or slowed"
                .to_owned(),
        );
    }
    remarks
}

/// The drives of each set, and the processors that serve them.
fn sets(made: &SetsReport) -> String {
    let SetsReport { target, sets, not_by_node } = made;
    let by = |set: &SetReport| match (&set.node, set.processors.as_slice()) {
        (None, _) => String::new(),
        (Some(node), []) => format!(" (NUMA node {node})"),
        (Some(node), all) => {
            format!(" (NUMA node {node}, served by its processors {})", list(all))
        }
    };
    let set = |set: &SetReport| format!("{}{}", times(&set.drives), by(set));
    let sets: Vec<String> = sets.iter().map(set).collect();
    let why = not_by_node.as_ref().map(|why| format!("; no set per NUMA node, because {why}"));
    format!("sets of {target}: {}{}", sets.join("; "), why.unwrap_or_default())
}

/// Formats different names as `a, b`, and four equal names as `4 × a`.
fn times(names: &[String]) -> String {
    match names {
        [first, _, ..] if names.iter().all(|name| name == first) => {
            format!("{} × {first}", names.len())
        }
        names => names.join(", "),
    }
}

/// Formats numbers as in `0-3, 8`.
fn list(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

fn guests(guests: &GuestsReport) -> String {
    let GuestsReport { count, run_as, kernel, memory_mib, written, compared } = guests;
    let group = |count: &u64| farblock_bench::group(&count.to_string());
    format!(
        "guest: {} in QEMU with Linux {kernel}, one processor, {run_as}, and {memory_mib} MiB, \
         which run fio on a vhost-user disk; of {2} written blocks, they read back and compared \
         {1}",
        counted(*count, "virtual machine"),
        group(compared),
        group(written)
    )
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), tenths)
}

impl Table {
    fn widths(&self) -> Vec<usize> {
        let count = |text: &str| text.chars().count();
        let of = |column: usize| {
            let cells = self.rows.iter().map(|row| count(&row[column]));
            cells.chain([count(self.header[column])]).max().unwrap_or(0)
        };
        (0..self.header.len()).map(of).collect()
    }

    fn width(&self) -> usize {
        let widths = self.widths();
        widths.iter().sum::<usize>() + widths.len().saturating_sub(1) * GAP.len()
    }

    /// The lines of the table: the header, a rule, and the rows.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let widths = self.widths();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let aligned = cells.zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            aligned.collect::<Vec<_>>().join(GAP)
        };
        let mut lines = vec![line(&mut self.header.iter().copied()), "─".repeat(self.width())];
        lines.extend(self.rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
        lines
    }
}
