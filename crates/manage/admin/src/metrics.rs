//! The counters of a target for Prometheus. The scraper gets the OpenMetrics format if it requests
//! that, and otherwise the older text format. Names and labels follow ceph-nvmeof, with another
//! prefix.
//!
//! The number of series is limited by the number of shared namespaces, and by the number of hosts
//! with an entry in [`Stats`]. All other hosts share the label [`OTHERS`].

use farblock_admin_api::Status;
use farblock_admin_api::part_name;
use farblock_admin_api::{IoStats, Latency, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, NoLabelSet};
use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const OTHERS: &str = "others";

/// The label of a host with its own series. A host whose name is [`OTHERS`] gets quotes, so that
/// its series differs from the shared one.
fn host_label(nqn: &str) -> String {
    match nqn.trim_matches('"') == OTHERS {
        true => format!("\"{nqn}\""),
        false => nqn.to_owned(),
    }
}

/// The range of latency bounds, in microseconds. The first bucket has all lower latencies, the last
/// one all higher latencies.
const BOUNDS_US: std::ops::RangeInclusive<u64> = 8..=1 << 20;

/// The maximum number of histograms per metric: 257, one for each host with its own counters and
/// one for all others. Each histogram has 21 series. Namespaces and subsystems beyond this number,
/// in the order of their names, have only counters.
const MAX_HISTOGRAMS: usize = 257;

const LEG_STATES: [&str; 3] = ["in_sync", "catching_up", "out"];
const HEALTH_STATES: [&str; 4] = ["ok", "failing", "away", "degraded"];
/// The states of a remote part of a disk that is not a mirror.
const PART_STATES: [&str; 2] = ["ready", "away"];

type Labels = Vec<(&'static str, String)>;

/// Labels with escaped values. Hosts choose their names, and the crate for metrics does not escape
/// them, so one quotation mark would make the scrape invalid.
#[derive(Debug)]
struct Escaped<'a>(&'a [(&'static str, String)]);

impl EncodeLabelSet for Escaped<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| {
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            (*name, value).encode(encoder.encode_label())
        })
    }
}

/// Selects one of the I/O counters.
type Count = fn(&IoStats) -> u64;

/// The data of one scrape.
#[derive(Debug)]
struct Scrape {
    status: Status,
    stats: Stats,
}

/// The status and counters in the OpenMetrics format.
pub fn render(status: Status, stats: Stats) -> String {
    let mut registry = Registry::with_prefix("farblock");
    registry.register_collector(Box::new(Scrape { status, stats }));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string cannot fail");
    text
}

/// Converts to the older text format, in which a counter has the same name as its samples.
pub fn as_plain_text(open_metrics: &str) -> String {
    let counters: BTreeSet<_> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let plain = |line: &str| {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what), Some(name), Some(rest)) => {
                let suffix = if counters.contains(name) { "_total" } else { "" };
                format!("# {what} {name}{suffix} {rest}\n")
            }
            (Some("#"), ..) => String::new(),
            _ => format!("{line}\n"),
        }
    };
    open_metrics.lines().map(plain).collect()
}

/// Writes metric families.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        rows.into_iter().try_for_each(|(labels, value)| {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            match labels.is_empty() {
                true => family.encode_gauge(&value),
                false => family.encode_family(&Escaped(&labels))?.encode_gauge(&value),
            }
        })
    }

    fn counters<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        rows.into_iter().try_for_each(|(labels, value)| match labels.is_empty() {
            true => family.encode_counter::<NoLabelSet, V, u64>(&value, None),
            false => family
                .encode_family(&Escaped(&labels))?
                .encode_counter::<NoLabelSet, V, u64>(&value, None),
        })
    }

    fn by_reason(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        counts: &BTreeMap<String, u64>,
    ) -> fmt::Result {
        let rows = counts.iter().map(|(reason, count)| (vec![(label, reason.clone())], *count));
        self.counters(name, help, rows)
    }

    /// Writes the I/O counters with these labels.
    fn io(&mut self, whose: &str, rows: &[(Labels, &IoStats)]) -> fmt::Result {
        let counts: [(&str, &str, Count); 6] = [
            ("reads_completed", "Read commands that succeeded", |io| io.reads),
            ("writes_completed", "Write commands that succeeded", |io| io.writes),
            (
                "others_completed",
                "I/O commands that succeeded, other than reads and writes",
                |io| io.others,
            ),
            ("read_bytes", "Bytes read", |io| io.read_bytes),
            ("written_bytes", "Bytes written", |io| io.written_bytes),
            ("storage_errors", "Operations that the storage could not execute", |io| {
                io.storage_errors
            }),
        ];
        for (name, help, count) in counts {
            let rows = rows.iter().map(|(labels, io)| (labels.clone(), count(io)));
            self.counters(&format!("{whose}_{name}"), help, rows)?;
        }
        let errors = rows.iter().flat_map(|(labels, io)| {
            let errors = &io.errors;
            let types = [
                ("generic", errors.generic),
                ("command_specific", errors.command_specific),
                ("media", errors.media),
                ("path", errors.path),
                ("vendor", errors.vendor),
            ];
            types.map(|(name, count)| {
                let mut labels = labels.clone();
                labels.push(("type", name.to_owned()));
                (labels, count)
            })
        });
        let help = "I/O commands that failed, by status code type";
        self.counters(&format!("{whose}_errors"), help, errors)
    }

    /// Writes the latencies with these labels.
    fn io_latencies(
        &mut self,
        whose: &str,
        bounds_us: &[u64],
        rows: &[(Labels, &IoStats)],
    ) -> fmt::Result {
        let latencies = |of: fn(&IoStats) -> &Latency| -> Vec<(Labels, &Latency)> {
            let rows = rows.iter().take(MAX_HISTOGRAMS);
            rows.map(|(labels, io)| (labels.clone(), of(io))).collect()
        };
        let (reads, writes) = (latencies(|io| &io.read_latency), latencies(|io| &io.write_latency));
        let help = "Time that reads took at the target";
        self.latencies(&format!("{whose}_read_seconds"), help, bounds_us, &reads)?;
        let help = "Time that writes took at the target";
        self.latencies(&format!("{whose}_write_seconds"), help, bounds_us, &writes)
    }

    fn latencies(
        &mut self,
        name: &str,
        help: &str,
        bounds_us: &[u64],
        rows: &[(Labels, &Latency)],
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, latency) in rows {
            let sum = latency.sum_ns as f64 / 1e9;
            let buckets = buckets(bounds_us, &latency.counts);
            let count = latency.counts.iter().sum();
            family
                .encode_family(&Escaped(labels))?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// The buckets with their bounds in seconds, restricted to `BOUNDS_US`.
fn buckets(bounds_us: &[u64], counts: &[u64]) -> Vec<(f64, u64)> {
    let mut buckets = Vec::new();
    let mut kept = 0;
    for (index, bound_us) in bounds_us.iter().enumerate() {
        kept += counts.get(index).copied().unwrap_or_default();
        if BOUNDS_US.contains(bound_us) {
            buckets.push((*bound_us as f64 / 1e6, std::mem::take(&mut kept)));
        }
    }
    kept += counts.iter().skip(bounds_us.len()).sum::<u64>();
    buckets.push((f64::MAX, kept));
    buckets
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(encoder);
        self.whole(&mut writer)?;
        self.cores(&mut writer)?;
        self.subsystems(&mut writer)?;
        self.namespaces(&mut writer)?;
        self.parts(&mut writer)?;
        self.hosts(&mut writer)
    }
}

impl Scrape {
    fn whole(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let Self { status, stats } = self;
        let one = |value| [(Labels::new(), value)];
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        writer.gauges(
            "target_info",
            "1, with the version of the target program",
            [(version, 1)],
        )?;
        writer.gauges(
            "uptime_seconds",
            "Seconds since the target started",
            one(status.uptime_seconds),
        )?;
        let connections = &stats.connections;
        writer.gauges("connections", "Open connections of hosts", one(connections.open))?;
        let help = "Connections that the target accepted";
        writer.counters("connections_accepted", help, one(connections.accepted))?;
        let help = "Connections and queues that the target refused";
        writer.by_reason("connections_refused", help, "reason", &connections.refused)?;
        let help = "Digests that did not match, and other protocol errors";
        writer.by_reason("connection_faults", help, "kind", &connections.faults)?;
        let help = "Queues on which the host authenticated";
        writer.counters("authentications", help, one(connections.authenticated))?;
        let help = "Queues on which the host failed to authenticate";
        let failures = &connections.not_authenticated;
        writer.by_reason("authentication_failures", help, "reason", failures)?;
        let help = "Changes of listeners' ANA states and of namespaces' ANA groups";
        writer.counters("ana_changes", help, one(stats.ana_changes))?;
        let help = "I/O commands that failed, by their status";
        writer.by_reason("errors_by_status", help, "status", &stats.errors_by_status)
    }

    fn cores(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let cores = &self.stats.cores;
        let name = |core: u32| ("name", format!("target-{core}"));
        let busy = cores.iter().filter_map(|core| {
            let labels = vec![name(core.core), ("mode", "busy".to_owned())];
            Some((labels, core.busy_ns? as f64 / 1e9))
        });
        writer.counters("reactor_seconds", "Processor time of a core's thread", busy)?;
        let rows = cores.iter().map(|core| (vec![name(core.core)], core.connections));
        writer.gauges("reactor_connections", "Connections that a core serves", rows)?;
        let rows = cores.iter().map(|core| {
            let io = &core.io;
            (vec![name(core.core)], io.reads + io.writes + io.others)
        });
        writer.counters("reactor_commands_completed", "I/O commands that succeeded", rows)?;
        let rows: Vec<_> = cores.iter().map(|core| (vec![name(core.core)], &core.io)).collect();
        writer.io("reactor", &rows)?;
        writer.io_latencies("reactor", &self.stats.latency_bounds_us, &rows)
    }

    fn subsystems(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let all = &self.stats.subsystems;
        let rows: Vec<_> =
            all.iter().map(|one| (vec![("nqn", one.nqn.clone())], &one.io)).collect();
        writer.io("subsystem", &rows)?;
        writer.io_latencies("subsystem", &self.stats.latency_bounds_us, &rows)?;
        let counts = self.status.subsystems.iter();
        let counts =
            counts.map(|one| (vec![("nqn", one.nqn.clone())], one.namespaces.len() as u64));
        writer.gauges("subsystem_namespaces", "Namespaces of a subsystem", counts)
    }

    fn namespaces(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let labels =
            |nqn: &String, nsid: u32| vec![("nqn", nqn.clone()), ("nsid", nsid.to_string())];
        let all = self.stats.subsystems.iter();
        let all = all.flat_map(|one| one.namespaces.iter().map(move |it| (&one.nqn, it)));
        let rows: Vec<_> = all.map(|(nqn, it)| (labels(nqn, it.nsid), &it.io)).collect();
        writer.io("namespace", &rows)?;
        writer.io_latencies("namespace", &self.stats.latency_bounds_us, &rows)?;
        let all = self.status.subsystems.iter();
        let all: Vec<_> =
            all.flat_map(|one| one.namespaces.iter().map(move |it| (&one.nqn, it))).collect();
        let sizes = all.iter().map(|(nqn, it)| (labels(nqn, it.nsid), it.bytes));
        writer.gauges("namespace_capacity_bytes", "Size of a namespace", sizes)?;
        let read_only = all.iter().map(|(nqn, it)| (labels(nqn, it.nsid), it.read_only.into()));
        writer.gauges(
            "namespace_read_only",
            "1 if the target refuses writes to a namespace",
            read_only,
        )?;
        let health = all.iter().flat_map(|(nqn, it)| {
            HEALTH_STATES.iter().map(|state| {
                let mut labels = labels(nqn, it.nsid);
                labels.push(("state", (*state).to_owned()));
                (labels, u64::from(it.health == *state))
            })
        });
        writer.gauges(
            "namespace_health",
            "1 for the present health state of a namespace's storage",
            health,
        )
    }

    /// Writes the states of the legs of mirrors and of remote parts.
    fn parts(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let all = self.status.subsystems.iter();
        let all = all.flat_map(|one| one.namespaces.iter().map(move |it| (&one.nqn, it)));
        let all: Vec<_> = all.collect();
        let labels =
            |nqn: &String, nsid: u32| vec![("nqn", nqn.clone()), ("nsid", nsid.to_string())];
        let mut states = Vec::new();
        for (nqn, namespace) in &all {
            let is_mirror = namespace.mirror.is_some();
            let known = if is_mirror { &LEG_STATES[..] } else { &PART_STATES[..] };
            for (number, leg) in namespace.legs.iter().enumerate() {
                let name = part_name(&leg.name);
                for state in known {
                    let mut labels = labels(nqn, namespace.nsid);
                    labels.push(("part", number.to_string()));
                    labels.push(("name", name.clone()));
                    labels.push(("state", (*state).to_owned()));
                    states.push((labels, u64::from(leg.state == *state)));
                }
            }
        }
        let help = "1 for the present state of a mirror leg or a remote part";
        writer.gauges("namespace_part_state", help, states)?;
        let dirty = all.iter().filter_map(|(nqn, namespace)| {
            let mirror = namespace.mirror.as_ref()?;
            Some((labels(nqn, namespace.nsid), mirror.dirty_bytes))
        });
        let help = "Bytes that legs of a mirror lack, or in which they may differ";
        writer.gauges("namespace_mirror_dirty_bytes", help, dirty)
    }

    fn hosts(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let known: BTreeSet<_> = self.stats.hosts.iter().map(|host| host.nqn.as_str()).collect();
        let hosts = self.stats.hosts.iter().map(|host| (host_label(&host.nqn), &host.io));
        let hosts = hosts.chain([(OTHERS.to_owned(), &self.stats.other_hosts)]);
        let rows: Vec<_> = hosts.map(|(nqn, io)| (vec![("host_nqn", nqn)], io)).collect();
        writer.io("host", &rows)?;
        writer.io_latencies("host", &self.stats.latency_bounds_us, &rows)?;
        let mut connected: BTreeMap<_, (u64, u64, u64)> = BTreeMap::new();
        for one in &self.status.controllers {
            let Some(nqn) = &one.subsystem else { continue };
            let is_known = known.contains(one.host_nqn.as_str());
            let label = host_label(&one.host_nqn);
            let host = if is_known { label } else { OTHERS.to_owned() };
            let address = one.address.as_deref().filter(|_| is_known).unwrap_or_default();
            let (controllers, queues, errors) =
                connected.entry((nqn.as_str(), host, address, one.transport.as_str())).or_default();
            *controllers += 1;
            *queues += one.io_queues as u64;
            *errors += one.errors;
        }
        let rows: Vec<_> = connected
            .into_iter()
            .map(|((nqn, host, address, transport), counts)| {
                let labels = [
                    ("nqn", nqn),
                    ("host_nqn", &host),
                    ("host_addr", address),
                    ("transport", transport),
                ];
                (labels.map(|(name, value)| (name, value.to_owned())).to_vec(), counts)
            })
            .collect();
        let pick = |of: fn(&(u64, u64, u64)) -> u64| {
            rows.iter().map(move |(labels, counts)| (labels.clone(), of(counts)))
        };
        writer.gauges("host_controllers", "Controllers of a host", pick(|it| it.0))?;
        writer.gauges("host_io_queues", "I/O queues of a host", pick(|it| it.1))?;
        let help = "Refused commands of a host's controllers";
        writer.gauges("host_refused_commands", help, pick(|it| it.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_admin_api::{ConnectionStats, SubsystemStats};

    #[test]
    fn a_host_named_others_has_its_own_series() {
        let names = ["others", "\"others\"", "\"others", "nqn.2026-11.org.example:a"];
        let labels: BTreeSet<_> = names.map(host_label).into();
        assert_eq!(labels.len(), names.len());
        assert!(!labels.contains(OTHERS) && labels.contains(names[3]), "{labels:?}");
    }

    #[test]
    fn counts_outside_the_bounds_fall_in_the_first_or_last_bucket() {
        let bounds_us: Vec<u64> = (0..27).map(|step| 1 << step).collect();
        let mut counts = vec![0; 28];
        (counts[0], counts[3], counts[4], counts[20], counts[21], counts[27]) =
            (1, 2, 4, 8, 16, 32);
        let made = buckets(&bounds_us, &counts);
        assert_eq!(made[0], (8e-6, 3));
        assert_eq!(made[1], (16e-6, 4));
        assert_eq!(made[17], (1.048_576, 8));
        assert_eq!(made[18], (f64::MAX, 48));
        assert_eq!(made.len(), 19);
        assert_eq!(buckets(&bounds_us, &[]).iter().map(|(_, count)| count).sum::<u64>(), 0);
    }

    fn scraped(subsystems: usize, namespace: &serde_json::Value) -> String {
        let named = |number: usize| format!("nqn.2026-11.h:{number:04}");
        let seen = serde_json::json!({
            "nqn": named(0), "allow_any_host": true, "hosts": [], "reads": 0, "writes": 0,
            "read_bytes": 0, "written_bytes": 0, "media_errors": 0, "namespaces": [namespace],
        });
        let status = serde_json::json!({
            "listening": [], "pid": 1, "uptime_seconds": 1, "connections": 0,
            "subsystems": [seen], "controllers": [],
        });
        let (io, namespaces) = (IoStats::default(), Vec::new());
        let counted = |number| SubsystemStats {
            nqn: named(number),
            io: io.clone(),
            namespaces: namespaces.clone(),
        };
        let none = BTreeMap::new;
        let stats = Stats {
            uptime_ms: 1,
            time_ms: 1,
            latency_bounds_us: vec![8, 16],
            connections: ConnectionStats {
                open: 0,
                accepted: 0,
                refused: none(),
                faults: none(),
                authenticated: 0,
                not_authenticated: none(),
            },
            ana_changes: 3,
            errors_by_status: BTreeMap::from([("Invalid Field in Command".to_owned(), 2)]),
            total: IoStats::default(),
            cores: Vec::new(),
            subsystems: (0..subsystems).map(counted).collect(),
            hosts: Vec::new(),
            other_hosts: IoStats::default(),
        };
        render(serde_json::from_value(status).unwrap(), stats)
    }

    #[test]
    fn the_number_of_histograms_is_bounded_and_legs_have_states() {
        let url = "nvme+tcp://192.0.2.7/nqn.2026-11.h:there";
        let text = scraped(
            300,
            &serde_json::json!({
                "nsid": 1, "bytes": 512, "block_size": 512, "read_only": false, "uuid": "",
                "legs": [{ "name": format!("{url}?tls-key=/a.key&ns=1"), "state": "away" }],
                "health": "away",
            }),
        );
        let lines = |part: &str| text.lines().filter(|line| line.starts_with(part)).count();
        assert_eq!(lines("farblock_subsystem_read_seconds_count{"), MAX_HISTOGRAMS);
        assert_eq!(lines("farblock_subsystem_reads_completed_total{"), 300);
        for (state, value) in [("ready", 0), ("away", 1)] {
            let labels = format!("part=\"0\",name=\"{url}?ns=1\",state=\"{state}\"");
            let sample = format!("{labels}}} {value}\n");
            assert!(text.contains(&sample), "{sample}: {text}");
        }
        for (state, value) in [("ok", 0), ("failing", 0), ("away", 1)] {
            let sample = format!("nsid=\"1\",state=\"{state}\"}} {value}\n");
            assert!(text.contains(&format!("_health{{nqn=\"nqn.2026-11.h:0000\",{sample}")));
        }
        assert!(!text.contains("a.key"), "{text}");
        assert!(text.contains("farblock_ana_changes_total 3\n"), "{text}");
        let failed = "farblock_errors_by_status_total{status=\"Invalid Field in Command\"} 2\n";
        assert!(text.contains(failed), "{text}");
    }

    #[test]
    fn plain_text_names_counters_like_their_samples() {
        let open = "# HELP a_b Some help here.\n# TYPE a_b counter\na_b_total{x=\"# y\"} 1\n\
                    # HELP c It is.\n# TYPE c gauge\nc 2\n# EOF\n";
        let plain = "# HELP a_b_total Some help here.\n# TYPE a_b_total counter\n\
                     a_b_total{x=\"# y\"} 1\n# HELP c It is.\n# TYPE c gauge\nc 2\n";
        assert_eq!(as_plain_text(open), plain);
    }
}
