//! Formats the states of attachments in Prometheus' text format, for node_exporter's textfile
//! collector. Most hosts already run node_exporter, so farblock opens no listening socket.
//!
//! The number of different label values is limited. The values are attachment names, paths, and
//! reasons from a short list.

use super::status::{AttachmentState, Counts, Latency, Status};
use farblock_block::latency_bound_us;
use farblock_wire::text::Plain;
use std::fmt::Write as _;

const STATES: [AttachmentState; 7] = [
    AttachmentState::Live,
    AttachmentState::Degraded,
    AttachmentState::Reconnecting,
    AttachmentState::Failed,
    AttachmentState::Restarting,
    AttachmentState::Unusable,
    AttachmentState::Stale,
];
const PATH_STATES: [&str; 4] = ["connecting", "live", "reconnecting", "failed"];

/// Prefix of all metric names.
const PREFIX: &str = "farblock_host";

/// The bounds of latency buckets, in microseconds. The highest bound exceeds the highest bound of a
/// target's metrics, because I/O that waits for a path takes seconds.
const BOUNDS_US: std::ops::RangeInclusive<u64> = 8..=1 << 26;

type Labels<'a> = Vec<(&'static str, &'a str)>;
type Row<'a> = (Labels<'a>, u64);
/// Selects the counts of one kind of operation.
type Operations = fn(&Latency) -> &Counts;

pub(super) fn render(all: &[Status]) -> String {
    let mut text = String::new();
    disks(&mut text, all);
    latencies(&mut text, all);
    paths(&mut text, all);
    text
}

fn disks(text: &mut String, all: &[Status]) {
    let per_disk = |value: fn(&Status) -> u64| -> Vec<Row<'_>> {
        all.iter().map(|disk| (disk_labels(disk), value(disk))).collect()
    };
    let states = all.iter().flat_map(|disk| {
        STATES.map(|state| {
            let mut labels = disk_labels(disk);
            labels.push(("state", state.name()));
            (labels, u64::from(disk.state == state))
        })
    });
    let help = "1 for the present state of an attached disk";
    family(text, "disk_state", "gauge", help, &states.collect::<Vec<_>>());
    let help = "Size of an attached disk";
    family(text, "disk_capacity_bytes", "gauge", help, &per_disk(|disk| disk.offer.size_bytes));
    let help = "1 if a supervisor restarts the disk's server when the server ends";
    let is_supervised = per_disk(|disk| u64::from(disk.pid.is_some()));
    family(text, "disk_supervised", "gauge", help, &is_supervised);
    let used = all.iter().filter_map(|disk| Some((disk_labels(disk), disk.cpu_ms?)));
    let help = "Processor time of the disk's server";
    seconds(text, "disk_cpu_seconds_total", help, used);
    let help = "Users of an attached disk that farblock can see";
    family(text, "disk_users", "gauge", help, &per_disk(|disk| disk.users.len() as u64));
}

fn paths(text: &mut String, all: &[Status]) {
    let pairs = || all.iter().flat_map(|disk| disk.paths.iter().map(move |path| (disk, path)));
    let per_path = |value: fn(&super::status::Path) -> u64| -> Vec<Row<'_>> {
        pairs().map(|(disk, path)| (path_labels(disk, path), value(path))).collect()
    };
    let states = pairs().flat_map(|(disk, path)| {
        PATH_STATES.map(|state| {
            let mut labels = path_labels(disk, path);
            labels.push(("state", state));
            (labels, u64::from(path.state == state))
        })
    });
    let help = "1 for the present state of a path";
    family(text, "path_state", "gauge", help, &states.collect::<Vec<_>>());
    let help = "Seconds since a path changed its state";
    family(text, "path_state_seconds", "gauge", help, &per_path(|path| path.since_seconds));
    let help = "Reconnects of a path";
    family(text, "path_reconnects_total", "counter", help, &per_path(|path| path.reconnects));
    let access = pairs().filter_map(|(disk, path)| {
        let mut labels = path_labels(disk, path);
        labels.push(("access", path.access.as_deref()?));
        Some((labels, 1))
    });
    let help = "1 for the ANA state of a path";
    family(text, "path_access", "gauge", help, &access.collect::<Vec<_>>());
    let help = "Changes of a path's ANA state";
    let changes = per_path(|path| path.access_changes);
    family(text, "path_access_changes_total", "counter", help, &changes);
    let failures = pairs().flat_map(|(disk, path)| {
        path.failures.iter().map(move |(reason, count)| {
            let mut labels = path_labels(disk, path);
            labels.push(("reason", reason.as_str()));
            (labels, *count)
        })
    });
    let help = "Lost connections and failed connects of a path, by reason";
    family(text, "path_failures_total", "counter", help, &failures.collect::<Vec<_>>());
}

fn latencies(text: &mut String, all: &[Status]) {
    let families: [(&str, &str, Operations); 4] = [
        ("disk_read_seconds", "reads", |it| &it.reads),
        ("disk_write_seconds", "writes", |it| &it.writes),
        ("disk_flush_seconds", "flushes", |it| &it.flushes),
        ("disk_other_seconds", "zeroing and deallocation", |it| &it.others),
    ];
    for (name, what, of) in families {
        let help = format!("Time that successful {what} took, including repeated attempts");
        let rows = all.iter().filter_map(|disk| Some((disk, of(disk.latency.as_ref()?))));
        histograms(text, name, &help, rows);
    }
}

/// Writes the samples of histograms.
fn histograms<'a>(
    text: &mut String,
    name: &str,
    help: &str,
    rows: impl Iterator<Item = (&'a Status, &'a Counts)>,
) {
    for (index, (disk, latency)) in rows.enumerate() {
        if index == 0 {
            let _ = writeln!(text, "# HELP {PREFIX}_{name} {help}");
            let _ = writeln!(text, "# TYPE {PREFIX}_{name} histogram");
        }
        let mut sample = |suffix: &str, le: Option<&str>, value: &str| {
            let mut labels = disk_labels(disk);
            labels.extend(le.map(|le| ("le", le)));
            line(text, &format!("{name}{suffix}"), &labels, value);
        };
        let mut count = 0;
        for (step, more) in latency.counts.iter().enumerate() {
            count += more;
            if let Some(us) = latency_bound_us(step).filter(|us| BOUNDS_US.contains(us)) {
                let le = (us as f64 / 1e6).to_string();
                sample("_bucket", Some(&le), &count.to_string());
            }
        }
        sample("_bucket", Some("+Inf"), &count.to_string());
        sample("_sum", None, &(latency.sum_ns as f64 / 1e9).to_string());
        sample("_count", None, &count.to_string());
    }
}

fn disk_labels(disk: &Status) -> Labels<'_> {
    vec![("name", &disk.offer.name), ("way", &disk.offer.way)]
}

fn path_labels<'a>(disk: &'a Status, path: &'a super::status::Path) -> Labels<'a> {
    vec![("name", &disk.offer.name), ("path", &path.url)]
}

/// Writes all samples of one metric. Writes nothing if there are none.
fn family(text: &mut String, name: &str, kind: &str, help: &str, rows: &[Row<'_>]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(text, "# HELP {PREFIX}_{name} {help}");
    let _ = writeln!(text, "# TYPE {PREFIX}_{name} {kind}");
    for (labels, value) in rows {
        line(text, name, labels, &value.to_string());
    }
}

/// Like [`family`], but converts a counter from milliseconds to seconds.
fn seconds<'a>(
    text: &mut String,
    name: &str,
    help: &str,
    rows: impl Iterator<Item = (Labels<'a>, u64)>,
) {
    for (index, (labels, ms)) in rows.enumerate() {
        if index == 0 {
            let _ = writeln!(text, "# HELP {PREFIX}_{name} {help}");
            let _ = writeln!(text, "# TYPE {PREFIX}_{name} counter");
        }
        line(text, name, &labels, &(ms as f64 / 1e3).to_string());
    }
}

/// Writes one sample.
fn line(text: &mut String, name: &str, labels: &Labels<'_>, value: &str) {
    let labels: Vec<_> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    let _ = writeln!(text, "{PREFIX}_{name}{{{}}} {value}", labels.join(","));
}

/// Escapes a label value, which may contain any character.
fn escaped(value: &str) -> String {
    Plain(value).to_string().replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::super::status::{Offer, Path, Use, UseKind};
    use super::*;

    fn disk() -> Status {
        let used = Use { kind: UseKind::Device, path: "/dev/x".to_owned(), behind: None };
        let path = Path {
            url: "nvme+tcp://192.0.2.7/nqn.a\"b?ns=1".to_owned(),
            state: "reconnecting".to_owned(),
            since_seconds: 7,
            access: None,
            address: None,
            controller: None,
            reconnects: 3,
            access_changes: 2,
            failures: [("tls".to_owned(), 5)].into(),
            error: None,
            breaches: 0,
            breach: None,
        };
        Status {
            offer: Offer {
                name: "data".to_owned(),
                way: "ublk".to_owned(),
                used,
                size_bytes: 4096,
                block_size: 512,
                read_only: false,
            },
            state: AttachmentState::Reconnecting,
            since_seconds: 7,
            trouble: None,
            refusal: None,
            paths: vec![path],
            pid: None,
            server_pid: None,
            cpu_ms: Some(1250),
            users: Vec::new(),
            confinement: None,
            spin: None,
            latency: None,
        }
    }

    #[test]
    fn every_sample_has_its_labels() {
        let text = render(&[disk()]);
        for line in [
            r#"farblock_host_disk_state{name="data",way="ublk",state="reconnecting"} 1"#,
            r#"farblock_host_disk_state{name="data",way="ublk",state="live"} 0"#,
            r#"farblock_host_disk_capacity_bytes{name="data",way="ublk"} 4096"#,
            r#"farblock_host_disk_supervised{name="data",way="ublk"} 0"#,
            r#"farblock_host_disk_cpu_seconds_total{name="data",way="ublk"} 1.25"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is missing in {text}");
        }
        let path = r#"name="data",path="nvme+tcp://192.0.2.7/nqn.a\"b?ns=1""#;
        for line in [
            format!("farblock_host_path_reconnects_total{{{path}}} 3"),
            format!("farblock_host_path_access_changes_total{{{path}}} 2"),
            format!("farblock_host_path_failures_total{{{path},reason=\"tls\"}} 5"),
        ] {
            assert!(text.contains(&line), "{line} is missing in {text}");
        }
        assert_eq!(render(&[]), "");
        assert!(!text.contains("_seconds_bucket"), "an unmeasured latency is reported: {text}");
    }

    /// Formats the name, type, labels and help of each metric as a page.
    fn page(scrape: &str) -> String {
        let mut page = INTRODUCTION.to_owned();
        let lines: Vec<&str> = scrape.lines().collect();
        for [help, kind, sample] in lines.array_windows() {
            let Some(help) = help.strip_prefix("# HELP ") else { continue };
            let (name, help) = help.split_once(' ').expect("a name");
            let (_, kind) = kind.rsplit_once(' ').expect("a type after the help");
            let labels = sample.split(['{', '}']).nth(1).expect("a sample after the type");
            let labels = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0));
            let labels = labels.filter(|label| *label != "le").map(|label| format!("`{label}`"));
            let labels = labels.collect::<Vec<_>>().join(", ");
            let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {help} |");
        }
        page
    }

    const INTRODUCTION: &str = "\
# Metrics of attached disks

A test writes this page from the program. [The guide](guides/watch.md#attached-disks) describes how
to collect the output of `farblock list --metrics`. The first run starts to measure the histograms.

| name | type | labels | value |
| --- | --- | --- | --- |
";

    #[test]
    fn the_metrics_page_is_up_to_date() {
        let mut disk = Status { latency: Some(Latency::default()), ..disk() };
        disk.paths[0].access = Some("optimized".to_owned());
        let made = page(&render(&[disk]));
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
        let path = folder.join("attached-metrics.md");
        if std::env::var_os("FARBLOCK_WRITE_METRICS").is_some() {
            std::fs::write(&path, &made).expect("the file is written");
        }
        let there = std::fs::read_to_string(&path).expect("a file of the repository");
        let command = "FARBLOCK_WRITE_METRICS=1 cargo test -p farblock-daemon metrics";
        assert!(there == made, "out of date: {command}");
    }

    #[test]
    fn the_last_histogram_bucket_counts_all_operations() {
        let mut counts = vec![0; farblock_block::LATENCY_STEPS];
        (counts[0], counts[4], counts[26], counts[27]) = (1, 2, 4, 8);
        let reads = Counts { sum_ns: 1_500_000_000, counts };
        let latency = Some(Latency { reads, ..Latency::default() });
        let text = render(&[Status { latency, ..disk() }, disk()]);
        let labels = r#"name="data",way="ublk""#;
        let buckets: Vec<_> =
            text.lines().filter(|line| line.contains("disk_read_seconds_bucket")).collect();
        let bucket = |le: &str, count: u64| {
            format!("farblock_host_disk_read_seconds_bucket{{{labels},le=\"{le}\"}} {count}")
        };
        assert_eq!(buckets[0], bucket("0.000008", 1));
        assert_eq!(buckets[1], bucket("0.000016", 3));
        assert_eq!(buckets[buckets.len() - 2..], [bucket("67.108864", 7), bucket("+Inf", 15)]);
        for line in [
            format!("farblock_host_disk_read_seconds_sum{{{labels}}} 1.5\n"),
            format!("farblock_host_disk_read_seconds_count{{{labels}}} 15\n"),
            format!("farblock_host_disk_flush_seconds_count{{{labels}}} 0\n"),
        ] {
            assert!(text.contains(&line), "{line} is missing in {text}");
        }
    }
}
