//! Checks that docs/metrics.md lists the metrics that a target reports.
#![cfg(unix)]

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

const INTRODUCTION: &str = "\
# Metrics of a target

A test writes this page from the program. [Steering](steering.md#prometheus) describes how to read
`/metrics`, and [the guide](guides/watch.md) how to collect them.

All names start with `farblock_`. Names of counters end in `_total`. Histograms are in seconds and
have `_bucket`, `_sum` and `_count`.
";

const IO: &str = "
## I/O

SCOPE is one of the following, with its labels in parentheses:

- `namespace` (`nqn`, `nsid`)
- `subsystem` (`nqn`)
- `host` (`host_nqn`)
- `reactor`, a core (`name`)

";

const SCOPES: [(&str, &[&str]); 4] = [
    ("namespace_", &["nqn", "nsid"]),
    ("subsystem_", &["nqn"]),
    ("host_", &["host_nqn"]),
    ("reactor_", &["name"]),
];
const HEADER: &str = "| name | type | labels | value |\n| --- | --- | --- | --- |\n";
/// The suffixes of the samples of histograms.
const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

/// The kind, the help text and the labels of a metric.
#[derive(Clone, PartialEq, Default, Debug)]
struct Metric {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

#[test]
fn the_metrics_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/metrics.md");
    let made = page(&metrics(&scrape()));
    if std::env::var_os("FARBLOCK_WRITE_METRICS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let there = std::fs::read_to_string(&path).expect("a file of the repository");
    assert!(
        there == made,
        "out of date: FARBLOCK_WRITE_METRICS=1 cargo test -p farblock-admin --test metrics"
    );
    for row in ["| `SCOPE_errors_total` | counter | `type` |", "| `connections` | gauge | – |"] {
        assert!(made.contains(row), "{row} is missing in {made}");
    }
}

fn page(all: &BTreeMap<String, Metric>) -> String {
    let (first, _) = SCOPES[0];
    let common: BTreeMap<&str, Metric> = all
        .iter()
        .filter_map(|(name, metric)| {
            let name = name.strip_prefix(first)?;
            let mut metric = metric.clone();
            metric.labels.retain(|label| !SCOPES[0].1.contains(&label.as_str()));
            is_in_all_scopes(all, name, &metric).then_some((name, metric))
        })
        .collect();
    let mut text = format!("{INTRODUCTION}{IO}{HEADER}");
    for (name, metric) in &common {
        text += &row(&format!("SCOPE_{name}"), metric);
    }
    text += "\n## Others\n\n";
    text += HEADER;
    for (name, metric) in all {
        let scope = SCOPES.iter().find_map(|(scope, _)| name.strip_prefix(scope));
        if scope.is_none_or(|rest| !common.contains_key(rest)) {
            text += &row(name, metric);
        }
    }
    text
}

/// Whether each scope has this metric. A metric of a scope has the labels of the scope in addition.
fn is_in_all_scopes(all: &BTreeMap<String, Metric>, name: &str, metric: &Metric) -> bool {
    SCOPES.iter().all(|(scope, labels)| {
        let mut expected = metric.clone();
        expected.labels.extend(labels.iter().map(|&label| label.to_owned()));
        all.get(&format!("{scope}{name}")) == Some(&expected)
    })
}

fn row(name: &str, Metric { kind, help, labels }: &Metric) -> String {
    let suffix = if kind == "counter" { "_total" } else { "" };
    let mut shown = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
    if shown.is_empty() {
        shown.push('–');
    }
    let mut row = String::new();
    let _ =
        writeln!(row, "| `{name}{suffix}` | {kind} | {shown} | {} |", help.trim_end_matches('.'));
    row
}

/// The metrics of a scrape in the OpenMetrics format.
fn metrics(scrape: &str) -> BTreeMap<String, Metric> {
    let mut all: BTreeMap<String, Metric> = BTreeMap::new();
    for line in scrape.lines().filter(|line| *line != "# EOF") {
        let line = line.replace("farblock_", "");
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => all.entry(name.to_owned()).or_default().help = help.into(),
            ["#", "TYPE", name, kind] => all.entry(name.to_owned()).or_default().kind = kind.into(),
            _ => sample(&line, &mut all),
        }
    }
    all
}

fn sample(line: &str, all: &mut BTreeMap<String, Metric>) {
    let end = line.find(['{', ' ']).expect("a value");
    let name = &line[..end];
    let family = PARTS.iter().find_map(|part| name.strip_suffix(part));
    let family = family.or(name.strip_suffix("_total")).unwrap_or(name);
    let metric = all.get_mut(family).unwrap_or_else(|| panic!("no type for {line}"));
    let labels = line[end..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
    for label in labels.map_or("", |(labels, _)| labels).split(',').filter(|it| !it.is_empty()) {
        let (name, _) = label.split_once('=').expect("a value after the label");
        if name != "le" {
            metric.labels.insert(name.to_owned());
        }
    }
}

/// A scrape of a target that has one object of each kind.
fn scrape() -> String {
    let io = json!({
        "reads": 1, "writes": 1, "others": 1, "read_bytes": 1, "written_bytes": 1,
        "errors": { "generic": 1, "command_specific": 1, "media": 1, "path": 1, "vendor": 1 },
        "storage_errors": 1,
        "waited": { "namespace_limit_ns": 1, "host_limit_ns": 1, "turn_ns": 1 },
        "read_latency": { "sum_ns": 1, "counts": [1] },
        "write_latency": { "sum_ns": 1, "counts": [1] },
    });
    let namespace = json!({ "nsid": 1, "io": io, "cores": [0] });
    let stats = json!({
        "uptime_ms": 1, "time_ms": 1, "latency_bounds_us": [8],
        "connections": {
            "open": 1, "accepted": 1, "refused": { "full": 1 }, "faults": { "digest": 1 },
            "authenticated": 1, "not_authenticated": { "failed": 1 },
        },
        "ana_changes": 1, "errors_by_status": { "invalid_field": 1 }, "total": io,
        "cores": [{ "core": 0, "connections": 1, "busy_ns": 1, "io": io }],
        "subsystems": [{ "nqn": "nqn.test", "io": io, "namespaces": [namespace] }],
        "hosts": [{ "nqn": "nqn.host", "controllers": 1, "io_queues": 1, "io": io }],
        "other_hosts": io,
    });
    let stats = serde_json::from_value(stats).expect("counters");
    farblock_admin::render_metrics(serde_json::from_value(status()).expect("a status"), stats)
}

fn status() -> Value {
    let mirror = json!({
        "dirty_bytes": 1, "copied_bytes": 1, "copy_bytes_per_second": 1, "verifying": false,
        "verified_bytes": 1, "differing_bytes": 0, "differences": [], "verifies": 1,
    });
    let namespace = json!({
        "nsid": 1, "bytes": 1, "block_size": 512, "read_only": false, "uuid": "u", "health": "ok",
        "legs": [{ "name": "leg", "state": "in_sync" }], "mirror": mirror,
    });
    let subsystem = json!({
        "nqn": "nqn.test", "allow_any_host": true, "hosts": [], "reads": 1, "writes": 1,
        "read_bytes": 1, "written_bytes": 1, "media_errors": 1, "namespaces": [namespace],
    });
    let controller = json!({
        "id": 1, "subsystem": "nqn.test", "host_nqn": "nqn.host", "host_id": "h",
        "address": "192.0.2.1", "local_address": "192.0.2.2", "ready": true, "io_queues": 1,
        "errors": 1,
    });
    json!({
        "listening": [], "pid": 1, "uptime_seconds": 1, "connections": 1,
        "subsystems": [subsystem], "controllers": [controller],
    })
}
