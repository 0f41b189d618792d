//! A target's counters in Prometheus' text format. The cores count anyway, for the SMART log page;
//! a scrape reads what they have counted.

use crate::status::Status;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfSubsystem {
    nqn: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfNamespace {
    nqn: String,
    nsid: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfHost {
    nqn: String,
    host_nqn: String,
    host_addr: String,
}

type Count = Counter<u64, AtomicU64>;

/// What `status` says, as Prometheus takes it.
pub fn render(status: &Status) -> String {
    let mut registry = Registry::with_prefix("farblock");
    whole(&mut registry, status);
    subsystems(&mut registry, status);
    namespaces(&mut registry, status);
    hosts(&mut registry, status);
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes everything");
    text
}

fn gauge(value: u64) -> Gauge {
    let gauge = Gauge::<i64>::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    gauge
}

fn whole(registry: &mut Registry, status: &Status) {
    registry.register("uptime_seconds", "How long it has run", gauge(status.uptime_seconds));
    let connections = gauge(status.connections as u64);
    registry.register("connections", "Connections of hosts", connections);
}

fn subsystems(registry: &mut Registry, status: &Status) {
    let families: [Family<OfSubsystem, Count>; 5] = Default::default();
    for one in &status.subsystems {
        let values = [one.reads, one.writes, one.read_bytes, one.written_bytes, one.media_errors];
        for (family, value) in families.iter().zip(values) {
            family.get_or_create(&OfSubsystem { nqn: one.nqn.clone() }).inc_by(value);
        }
    }
    let names = [
        ("subsystem_reads", "Read commands that succeeded"),
        ("subsystem_writes", "Write commands that succeeded"),
        ("subsystem_read_bytes", "Bytes read"),
        ("subsystem_written_bytes", "Bytes written"),
        ("subsystem_media_errors", "Reads and writes that failed in what stores them"),
    ];
    for ((name, help), family) in names.into_iter().zip(families) {
        registry.register(name, help, family);
    }
}

fn namespaces(registry: &mut Registry, status: &Status) {
    let sizes = Family::<OfNamespace, Gauge>::default();
    let read_only = Family::<OfNamespace, Gauge>::default();
    for subsystem in &status.subsystems {
        for namespace in &subsystem.namespaces {
            let labels = OfNamespace { nqn: subsystem.nqn.clone(), nsid: namespace.nsid };
            let bytes = i64::try_from(namespace.bytes).unwrap_or(i64::MAX);
            sizes.get_or_create(&labels).set(bytes);
            read_only.get_or_create(&labels).set(i64::from(namespace.read_only));
        }
    }
    registry.register("namespace_size_bytes", "Size of a namespace", sizes);
    registry.register("namespace_read_only", "1 if writes are refused", read_only);
}

fn hosts(registry: &mut Registry, status: &Status) {
    let controllers = Family::<OfHost, Gauge>::default();
    let queues = Family::<OfHost, Gauge>::default();
    let errors = Family::<OfHost, Count>::default();
    for one in &status.controllers {
        let Some(nqn) = one.subsystem.clone() else { continue };
        let host_addr = one.address.clone().unwrap_or_default();
        let labels = OfHost { nqn, host_nqn: one.host_nqn.clone(), host_addr };
        controllers.get_or_create(&labels).inc();
        queues.get_or_create(&labels).inc_by(i64::try_from(one.io_queues).unwrap_or(i64::MAX));
        errors.get_or_create(&labels).inc_by(one.errors);
    }
    registry.register("host_controllers", "Controllers of a host", controllers);
    registry.register("host_io_queues", "Connected I/O queues of a host", queues);
    registry.register("host_refused_commands", "Refused commands of its controllers", errors);
}
