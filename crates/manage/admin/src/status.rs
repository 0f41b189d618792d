//! Converts the target's report to the status in the interface.

use crate::legs::AllLegs;
use farblock_admin_api::{
    AnaStatus, BudgetStatus, ControllerStatus, LegStatus, MirrorStatus, NamespaceStatus, Status,
    SubsystemStatus,
};
use farblock_block::Availability;
use farblock_state::{Document, Entrance, Host, Limits, Listener, Namespace, Subsystem, Tls};
use farblock_target::{
    Budget, ControllerReport, NamespaceReport, Report, SubsystemReport, TlsPolicy,
};
use std::time::Duration;
use uuid::Uuid;

/// The time after a failure for which the storage of a namespace counts as failing.
const FAILING: Duration = Duration::from_secs(60);

/// The URL parameters of a remote disk that name key files.
const KEYS: [&str; 3] = ["tls-key=", "dhchap-secret=", "dhchap-ctrl-secret="];

pub(crate) fn of(report: &Report, legs: &AllLegs, document: &Document) -> Status {
    Status {
        listening: report.addresses.iter().map(ToString::to_string).collect(),
        tls: report.tls.iter().map(|(at, tls)| (at.to_string(), said(*tls))).collect(),
        ana: document
            .listeners
            .iter()
            .map(|(at, listener)| (at.to_string(), ana(listener)))
            .collect(),
        pid: std::process::id(),
        uptime_seconds: report.uptime.as_secs(),
        connections: report.connections,
        warnings: warnings(report),
        confinement: None,
        spin: report.polling.to_string(),
        budget: Some(budget_of(&report.budget)),
        subsystems: report
            .subsystems
            .iter()
            .map(|one| subsystem(one, legs, document.subsystems.get(&one.nqn)))
            .collect(),
        controllers: report.controllers.iter().map(controller).collect(),
    }
}

fn budget_of(budget: &Budget) -> BudgetStatus {
    let (allowed_bytes, limited_by) = budget.allowed.clone().unzip();
    BudgetStatus {
        buffer_bytes: budget.buffer_bytes,
        is_set: budget.is_set,
        cores: budget.cores,
        connections: budget.connections,
        allowed_bytes,
        limited_by,
    }
}

fn ana(listener: &Listener) -> AnaStatus {
    let groups = listener.ana_groups.iter();
    AnaStatus {
        state: listener.ana.name().to_owned(),
        groups: groups.map(|(group, it)| (group.to_string(), it.name().to_owned())).collect(),
    }
}

/// The name of a TLS policy in a document.
fn said(tls: TlsPolicy) -> String {
    let tls = match tls {
        TlsPolicy::Plain => Tls::Plain,
        TlsPolicy::Allowed => Tls::Allowed,
        TlsPolicy::Required => Tls::Required,
    };
    tls.name().to_owned()
}

/// Warnings for the administrator of a target, one sentence each.
pub fn warnings(report: &Report) -> Vec<String> {
    report.lost.iter().map(lost).chain(openness(report)).collect()
}

/// A warning if hosts may connect without authentication.
fn openness(report: &Report) -> Option<String> {
    let has_key = |one: &SubsystemReport, host: &String| {
        one.keys.contains_key(host) || one.tls_hosts.contains(host)
    };
    let is_open = |one: &&SubsystemReport| {
        one.allow_any_host || one.hosts.iter().any(|host| !has_key(one, host))
    };
    let mut open = report.subsystems.iter().filter(is_open).map(|one| one.nqn.as_str());
    let is_reached = |address: &&Entrance| {
        let is_closed = report.tls.get(*address) == Some(&TlsPolicy::Required);
        !address.ip().to_canonical().is_loopback() && !is_closed
    };
    let reached = report.addresses.iter().filter(is_reached).map(ToString::to_string);
    let reached: Vec<_> = reached.collect();
    let is_public = !reached.is_empty();
    let first = open.next().filter(|_| is_public)?;
    let others = match open.count() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    Some(format!(
        "any peer that can reach {} can use {first}{others}, because the target trusts a host's \
         name without a key, and nothing is encrypted: give each host a key (farblock ctl \
         allow-host … --tls-key FILE)",
        reached.join(", ")
    ))
}

fn lost(entrance: &Entrance) -> String {
    format!(
        "{entrance} accepts no connections, because its device was removed or its address moved: \
         the target tries to listen there again"
    )
}

fn subsystem(
    report: &SubsystemReport,
    legs: &AllLegs,
    described: Option<&Subsystem>,
) -> SubsystemStatus {
    let count = |counter: u128| u64::try_from(counter).unwrap_or(u64::MAX);
    let counters = &report.counters;
    let namespace = |one: &NamespaceReport| {
        let described = described.and_then(|it| it.namespaces.get(&one.nsid));
        namespace(one, legs.of(&report.nqn, one.nsid), described)
    };
    let hosts = || described.iter().flat_map(|it| &it.hosts);
    let demand = |(name, host): (&String, &Host)| Some((name.clone(), host.demand?.name().into()));
    let limited = hosts().filter(|(_, host)| !host.limits.is_empty());
    SubsystemStatus {
        nqn: report.nqn.clone(),
        allow_any_host: report.allow_any_host,
        hosts: report.hosts.clone(),
        keys: report.keys.clone(),
        tls_hosts: report.tls_hosts.clone(),
        demands: hosts().filter_map(demand).collect(),
        host_limits: limited.map(|(name, host)| (name.clone(), host.limits)).collect(),
        reads: count(counters.read_commands),
        writes: count(counters.write_commands),
        read_bytes: count(counters.read_bytes),
        written_bytes: count(counters.written_bytes),
        media_errors: count(counters.media_errors),
        namespaces: report.namespaces.iter().map(namespace).collect(),
    }
}

/// The path of a namespace without the key files in its URLs. Readers of the status need not know
/// where the key files are.
fn without_keys(path: &str) -> String {
    let mut path = path.to_owned();
    let schemes = ["nvme+tcp://", "nvme+rdma://"];
    let first = schemes.iter().filter_map(|scheme| path.find(scheme)).min();
    let Some(mut from) = first else { return path };
    while let Some(at) = path[from..].find(['?', '&']).map(|at| from + at) {
        let parameter = &path[at + 1..];
        if !KEYS.iter().any(|key| parameter.starts_with(key)) {
            from = at + 1;
            continue;
        }
        let end = parameter.find(['&', ',']).map_or(path.len(), |end| at + 1 + end);
        if path[at..].starts_with('?') && path[end..].starts_with('&') {
            path.replace_range(at + 1..=end, "");
        } else {
            path.replace_range(at..end, "");
        }
        from = at;
    }
    path
}

fn namespace(
    report: &NamespaceReport,
    parts: Option<(Vec<LegStatus>, Option<MirrorStatus>)>,
    described: Option<&Namespace>,
) -> NamespaceStatus {
    let (legs, mirror) = parts.unwrap_or_default();
    NamespaceStatus {
        nsid: report.nsid,
        bytes: report.blocks * u64::from(report.block_size),
        block_size: report.block_size,
        read_only: report.read_only,
        uuid: Uuid::from_bytes(report.uuid).to_string(),
        ana_group: described.map_or(0, |it| it.ana_group),
        visible_to: described.and_then(|it| it.visible_to.clone()),
        limits: described.map_or_else(Limits::default, |it| it.limits),
        path: described.map(|it| without_keys(&it.path)),
        health: health(report, &legs).to_owned(),
        last_failure: report.last_failure.as_ref().map(|(_, sentence)| sentence.clone()),
        trouble: report.trouble.clone(),
        legs,
        mirror,
    }
}

/// The health of the storage of a namespace, in one word.
fn health(report: &NamespaceReport, legs: &[LegStatus]) -> &'static str {
    let has_failed = report.last_failure.as_ref().is_some_and(|(ago, _)| *ago < FAILING);
    let is_there = report.availability == Availability::Ready;
    let is_some = |states: &[&str]| legs.iter().any(|leg| states.contains(&leg.state.as_str()));
    match () {
        () if has_failed || (is_there && report.trouble.is_some()) => "failing",
        () if !is_there || is_some(&["away"]) => "away",
        () if is_some(&["out", "catching_up"]) => "degraded",
        () => "ok",
    }
}

fn controller(report: &ControllerReport) -> ControllerStatus {
    ControllerStatus {
        id: report.id,
        subsystem: report.subsystem.clone(),
        host_nqn: report.host_nqn.clone(),
        host_id: Uuid::from_bytes(report.host_id).to_string(),
        address: report.peer.map(|peer| peer.to_canonical().to_string()),
        local_address: report.local.clone(),
        transport: report.transport.to_string(),
        ready: report.is_ready,
        io_queues: report.io_queues,
        errors: report.errors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_reports_the_current_state_of_the_storage() {
        let well = NamespaceReport {
            nsid: 1,
            block_size: 512,
            blocks: 8,
            read_only: false,
            uuid: [0; 16],
            nguid: [0; 16],
            last_failure: None,
            trouble: None,
            availability: Availability::Ready,
        };
        let cut = NamespaceReport { trouble: Some("it was cut".to_owned()), ..well.clone() };
        let away = NamespaceReport { availability: Availability::Waiting, ..cut.clone() };
        let before = Some((FAILING, "a read failed".to_owned()));
        let mended = NamespaceReport { last_failure: before, ..well.clone() };
        for (report, expected) in
            [(&well, "ok"), (&cut, "failing"), (&away, "away"), (&mended, "ok")]
        {
            assert_eq!(health(report, &[]), expected);
        }
        assert_eq!(namespace(&cut, None, None).trouble.as_deref(), Some("it was cut"));
    }

    #[test]
    fn shown_paths_omit_key_files() {
        let same =
            ["disk?tls-key=a.img", "mem:1MiB", "nvme+tcp://a/n?ns=1", "mirror:a,b&tls-key=c"];
        same.iter().for_each(|path| assert_eq!(without_keys(path), *path));
        let cases = [
            ("nvme+tcp://a/n?tls-key=/k", "nvme+tcp://a/n"),
            ("nvme+rdma://a/n?dhchap-secret=/k", "nvme+rdma://a/n"),
            ("nvme+tcp://a/n?tls-key=/k&dhchap-secret=/s&ns=2", "nvme+tcp://a/n?ns=2"),
            (
                "stripe:nvme+tcp://a/n?ns=1&hostnqn=h&dhchap-ctrl-secret=/c&tls-key=/k,d.img",
                "stripe:nvme+tcp://a/n?ns=1&hostnqn=h,d.img",
            ),
            (
                "mirror:d.img,nvme+tcp://a/n?tls-key=/k,nvme+tcp://b/n?ns=1&tls-key=/l&concat=on",
                "mirror:d.img,nvme+tcp://a/n,nvme+tcp://b/n?ns=1&concat=on",
            ),
        ];
        for (path, shown) in cases {
            assert_eq!(without_keys(path), shown);
        }
    }
}
