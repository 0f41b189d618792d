//! A target's status for people.

use crate::table::{Align, Table, printable};
use farblock_admin::{Status, SubsystemStatus};
use farblock_block::size::Size;
use std::fmt::Write as _;

const MIB: u64 = 1 << 20;

/// The tables; with rates, if `before` is what they were a second ago.
pub(super) fn status(status: &Status, before: Option<&Status>) -> String {
    let mut text = format!(
        "farblock, process {}, up {}, listening on {}\n",
        status.pid,
        duration(status.uptime_seconds),
        status.listening.join(", ")
    );
    for subsystem in &status.subsystems {
        let _ = writeln!(text, "\nSubsystem {}", printable(&subsystem.nqn));
        let _ = writeln!(text, "{}", traffic(subsystem, before));
        text.push_str(&namespaces(subsystem));
    }
    text.push('\n');
    text.push_str(&hosts(status));
    text
}

fn duration(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, _, _) => format!("{days} d {hours} h"),
    }
}

fn traffic(now: &SubsystemStatus, before: Option<&Status>) -> String {
    let before = before.and_then(|all| all.subsystems.iter().find(|it| it.nqn == now.nqn));
    let Some(before) = before else {
        return format!(
            "{} reads ({}), {} writes ({}), {} failed in what stores them",
            now.reads,
            Size(now.read_bytes),
            now.writes,
            Size(now.written_bytes),
            now.media_errors
        );
    };
    let mib = |now: u64, before: u64| now.saturating_sub(before) as f64 / MIB as f64;
    format!(
        "{} reads/s ({:.1} MiB/s), {} writes/s ({:.1} MiB/s), {} failed in all",
        now.reads.saturating_sub(before.reads),
        mib(now.read_bytes, before.read_bytes),
        now.writes.saturating_sub(before.writes),
        mib(now.written_bytes, before.written_bytes),
        now.media_errors
    )
}

fn namespaces(subsystem: &SubsystemStatus) -> String {
    let mut table = Table::new(&[
        ("NS", Align::Right),
        ("SIZE", Align::Right),
        ("BLOCK", Align::Right),
        ("ACCESS", Align::Left),
        ("UUID", Align::Left),
    ]);
    for namespace in &subsystem.namespaces {
        table.row(vec![
            namespace.nsid.to_string(),
            Size(namespace.bytes).to_string(),
            namespace.block_size.to_string(),
            if namespace.read_only { "read only" } else { "read, write" }.to_owned(),
            namespace.uuid.clone(),
        ]);
    }
    table.render(2)
}

fn hosts(status: &Status) -> String {
    if status.controllers.is_empty() {
        return "no host is connected\n".to_owned();
    }
    let mut table = Table::new(&[
        ("HOST", Align::Left),
        ("ADDRESS", Align::Left),
        ("SUBSYSTEM", Align::Left),
        ("CONTROLLER", Align::Right),
        ("QUEUES", Align::Right),
        ("REFUSED", Align::Right),
    ]);
    for one in &status.controllers {
        table.row(vec![
            one.host_nqn.clone(),
            one.address.clone().unwrap_or_default(),
            one.subsystem.clone().unwrap_or_else(|| "(discovery)".to_owned()),
            one.id.to_string(),
            one.io_queues.to_string(),
            one.errors.to_string(),
        ]);
    }
    table.render(0)
}
