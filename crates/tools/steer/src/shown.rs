//! Formats a target's status as text.

use super::rates::{COLUMNS, View, errors, mean_us, rows};
use super::terms;
use crate::table::{Align, Table, printable};
use farblock_admin_api::{
    IoStats, Latency, MirrorStatus, NamespaceStatus, Stats, Status, SubsystemStatus,
};
use farblock_block::size::Size;
use std::fmt::Write as _;

const MIB: u64 = 1 << 20;

/// Returns the status as tables. They include rates if `before` is an earlier sample.
pub(super) fn status(
    status: &Status,
    stats: &Stats,
    before: Option<&Stats>,
    is_verbose: bool,
) -> String {
    let mut text = format!(
        "farblock, process {}, up {}, listening on {}\n",
        status.pid,
        duration(status.uptime_seconds),
        status.listening.join(", ")
    );
    if !status.spin.is_empty() {
        let _ = writeln!(text, "spin: {}", printable(&status.spin));
    }
    text.push_str(&terms::listeners(status));
    text.push_str(&budget(status));
    for warning in &status.warnings {
        let _ = writeln!(text, "warning: {}", printable(warning));
    }
    if let Some(confinement) = &status.confinement {
        let said = if is_verbose { confinement.to_string() } else { confinement.brief() };
        let _ = writeln!(text, "sandbox: {}", printable(&said));
    }
    for subsystem in &status.subsystems {
        let _ = writeln!(text, "\nSubsystem {}", printable(&subsystem.nqn));
        text.push_str(&traffic(subsystem, stats, before));
        text.push_str(&terms::hosts(subsystem));
        text.push_str(&namespaces(subsystem));
    }
    text.push_str(&statuses(stats));
    text.push('\n');
    text.push_str(&hosts(status));
    if let Some(before) = before {
        text.push('\n');
        for view in [View::Namespaces, View::Hosts, View::Cores] {
            text.push_str(&rates(view, stats, before));
        }
    }
    text
}

/// The line about the target's memory budget.
fn budget(status: &Status) -> String {
    let Some(budget) = &status.budget else { return String::new() };
    let why = match (budget.is_set, budget.allowed_bytes, &budget.limited_by) {
        (true, ..) => " (set by the user)".to_owned(),
        (false, Some(bytes), Some(by)) => {
            format!(" ({} allows {})", printable(by), Size(bytes))
        }
        _ => String::new(),
    };
    format!(
        "budget: {} for hosts' buffers{why}, {} cores, {} connections\n",
        Size(budget.buffer_bytes),
        budget.cores,
        budget.connections
    )
}

/// The line with the counts of failed commands since the target started, by status.
fn statuses(stats: &Stats) -> String {
    if stats.errors_by_status.is_empty() {
        return String::new();
    }
    let named = stats.errors_by_status.iter().map(|(name, count)| format!("{count} {name}"));
    format!("\nErrors by status: {}\n", printable(&named.collect::<Vec<_>>().join(", ")))
}

fn duration(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, _, _) => format!("{days} d {hours} h"),
    }
}

fn traffic(status: &SubsystemStatus, stats: &Stats, before: Option<&Stats>) -> String {
    let of = |stats: &Stats| {
        let found = stats.subsystems.iter().find(|it| it.nqn == status.nqn);
        found.map(|found| found.io.clone()).unwrap_or_default()
    };
    let now = of(stats);
    let mut text = match before {
        None => format!(
            "{} reads ({}), {} writes ({})",
            now.reads,
            Size(now.read_bytes),
            now.writes,
            Size(now.written_bytes)
        ),
        Some(before) => rate(&now, &of(before), stats.uptime_ms.saturating_sub(before.uptime_ms)),
    };
    let _ = writeln!(text, "; {}", failures(&now));
    text
}

fn rate(now: &IoStats, before: &IoStats, ms: u64) -> String {
    let rate = |count: fn(&IoStats) -> u64| {
        count(now).saturating_sub(count(before)) as f64 * 1e3 / ms.max(1) as f64
    };
    let mib = |count| rate(count) / MIB as f64;
    let took = |of: fn(&IoStats) -> &Latency| {
        mean_us(of(now), of(before)).map_or_else(String::new, |us| format!(", {us:.1} µs"))
    };
    format!(
        "{:.0} reads/s ({:.1} MiB/s{}), {:.0} writes/s ({:.1} MiB/s{})",
        rate(|io| io.reads),
        mib(|io| io.read_bytes),
        took(|io| &io.read_latency),
        rate(|io| io.writes),
        mib(|io| io.written_bytes),
        took(|io| &io.write_latency)
    )
}

/// Describes the failed commands since the target started, by status type.
fn failures(io: &IoStats) -> String {
    if errors(io) == 0 {
        return "no errors".to_owned();
    }
    let types = [
        (io.errors.generic, "generic"),
        (io.errors.command_specific, "command-specific"),
        (io.errors.media, "media"),
        (io.errors.path, "path"),
        (io.errors.vendor, "vendor-specific"),
    ];
    let named = types.iter().filter(|(count, _)| *count > 0);
    let named: Vec<_> = named.map(|(count, name)| format!("{count} {name}")).collect();
    format!("errors: {}; {} in the storage", named.join(", "), io.storage_errors)
}

pub(super) fn rates(view: View, now: &Stats, before: &Stats) -> String {
    let name = match view {
        View::Cores => "CORE",
        View::Namespaces => "NAMESPACE",
        View::Hosts => "HOST",
    };
    let columns = COLUMNS.map(|column| (column, Align::Right));
    let mut table = Table::new(&[&[(name, Align::Left)], &columns[..]].concat());
    for row in rows(view, now, before) {
        let cells = (0..COLUMNS.len()).map(|column| row.cell(column));
        table.row([row.name.clone()].into_iter().chain(cells).collect());
    }
    table.render(0)
}

fn namespaces(subsystem: &SubsystemStatus) -> String {
    let mut table = Table::new(&[
        ("NS", Align::Right),
        ("SIZE", Align::Right),
        ("BLOCK", Align::Right),
        ("ACCESS", Align::Left),
        ("HEALTH", Align::Left),
        ("UUID", Align::Left),
        ("STORED IN", Align::Left),
    ]);
    for namespace in &subsystem.namespaces {
        table.row(vec![
            namespace.nsid.to_string(),
            Size(namespace.bytes).to_string(),
            namespace.block_size.to_string(),
            if namespace.read_only { "read only" } else { "read, write" }.to_owned(),
            printable(&namespace.health),
            namespace.uuid.clone(),
            namespace.path.as_deref().map(printable).unwrap_or_default(),
        ]);
    }
    table.render(2) + &terms::namespaces(subsystem) + &troubles(subsystem) + &legs(subsystem)
}

/// Lists the current trouble and the last storage failure of each namespace, one line each.
fn troubles(subsystem: &SubsystemStatus) -> String {
    let mut text = String::new();
    for NamespaceStatus { nsid, trouble, last_failure, legs, .. } in &subsystem.namespaces {
        // Omit the trouble of a remote leg, which has its own line.
        let is_of_a_part = legs.iter().any(|leg| leg.reason == *trouble);
        if let Some(sentence) = trouble.as_ref().filter(|_| !is_of_a_part) {
            let _ = writeln!(text, "  trouble of namespace {nsid}: {}", printable(sentence));
        }
        if let Some(sentence) = last_failure {
            let _ = writeln!(text, "  last failure of namespace {nsid}: {}", printable(sentence));
        }
    }
    text
}

/// Lists the legs of mirrors, one line each.
fn legs(subsystem: &SubsystemStatus) -> String {
    let mut text = String::new();
    for namespace in &subsystem.namespaces {
        for leg in &namespace.legs {
            let state = leg.state.replace('_', " ");
            let reason = leg.reason.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
            let line =
                format!("  leg of namespace {}: {}, {state}{reason}", namespace.nsid, leg.name);
            let _ = writeln!(text, "{}", printable(&line));
        }
        text.extend(namespace.mirror.as_ref().and_then(|mirror| doing(namespace, mirror)));
    }
    text
}

/// Describes the resync or comparison that a mirror does, or the result of the last one.
fn doing(namespace: &NamespaceStatus, mirror: &MirrorStatus) -> Option<String> {
    let verified = Size(mirror.verified_bytes);
    let mut faults = match mirror.differing_bytes {
        0 => String::new(),
        bytes => format!(", legs differ within {}", Size(bytes)),
    };
    if mirror.uncompared_bytes > 0 {
        let _ = write!(faults, ", {} could not be compared", Size(mirror.uncompared_bytes));
    }
    if !mirror.unread_legs.is_empty() {
        let _ = write!(faults, " (reads failed on {})", mirror.unread_legs.join(" and "));
    }
    let text = match (mirror.verifying, mirror.verifies) {
        (true, _) => format!("{verified} of {} compared{faults}", Size(namespace.bytes)),
        (false, 1..) if !faults.is_empty() => format!("{verified} compared{faults}"),
        _ if mirror.dirty_bytes == 0 => return None,
        _ if namespace.legs.iter().all(|leg| leg.state == "in_sync") => {
            let dirty = Size(mirror.dirty_bytes);
            format!("legs are identical; after a crash the mirror would copy {dirty} again")
        }
        _ => format!("{} still differ or are missing on a leg", Size(mirror.dirty_bytes)),
    };
    Some(format!("{}\n", printable(&format!("  mirror {}: {text}", namespace.nsid))))
}

fn hosts(status: &Status) -> String {
    if status.controllers.is_empty() {
        return "no host is connected\n".to_owned();
    }
    let mut table = Table::new(&[
        ("HOST", Align::Left),
        ("ADDRESS", Align::Left),
        ("TRANSPORT", Align::Left),
        ("SUBSYSTEM", Align::Left),
        ("CONTROLLER", Align::Right),
        ("QUEUES", Align::Right),
        ("REFUSED", Align::Right),
    ]);
    for one in &status.controllers {
        table.row(vec![
            one.host_nqn.clone(),
            one.address.clone().unwrap_or_default(),
            one.transport.clone(),
            one.subsystem.clone().unwrap_or_else(|| "(discovery)".to_owned()),
            one.id.to_string(),
            one.io_queues.to_string(),
            one.errors.to_string(),
        ]);
    }
    table.render(0)
}

/// Returns a table of the disks attached to this machine, or an empty text if there are none.
#[cfg(target_os = "linux")]
pub(super) fn attached(all: &[farblock_daemon::Brief]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let columns = ["NAME", "USE", "STATE"].map(|name| (name, Align::Left));
    let mut table = Table::new(&columns);
    for one in all {
        let used = one.used.clone().unwrap_or_else(|| "-".to_owned());
        table.row(vec![one.name.clone(), used, one.state.to_owned()]);
    }
    let mut text = format!("\nAttached to this machine (more: farblock list)\n{}", table.render(2));
    for (name, trouble) in all.iter().filter_map(|one| Some((&one.name, one.trouble.as_ref()?))) {
        let _ = writeln!(text, "  {name}: {}", printable(trouble));
    }
    text
}
