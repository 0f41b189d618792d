//! The results of a fleet, as types and as JSON. Fields may be added. Renaming one or changing its
//! meaning raises [`SCHEMA`].

use crate::documents::Documents;
use crate::plan::{Fault, IscsiTarget, Plan};
use farblock_bench::verdict::{Load, Metric, Series, Subject};
use farblock_bench::{LatencySummary, Machine, Pattern, RecordedLatencies, jobs_and_depth};
use serde::{Deserialize, Serialize};

/// Version of the JSON.
pub const SCHEMA: u32 = 1;

/// All results of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The writer's [`SCHEMA`]. The field's name distinguishes this report from one of the bench.
    pub fleet_schema: u32,
    /// Name and version of the writer.
    pub tool: String,
    /// The start of the run, in UTC.
    pub date: String,
    /// The command line of the run.
    pub command_line: String,
    /// The plan as it ran.
    pub plan: Plan,
    /// The network between the agents: network namespaces, the loopback, or other machines.
    pub network: String,
    /// The agents.
    pub nodes: Vec<NodeReport>,
    /// How each target's stripe sets were formed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetsReport>,
    /// The results of each action.
    pub actions: Vec<ActionReport>,
    /// The real guests, and the data that they compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guests: Option<GuestsReport>,
    /// The results of writing, reading and comparing.
    pub verified: Option<Verified>,
    /// The effect of each fault.
    pub faults: Vec<FaultReport>,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The agent's name.
    pub name: String,
    /// The agent's machine.
    pub machine: Machine,
    /// The error of the agent's clock: at most half of the shortest round trip.
    pub clock_error_us: f64,
}

/// The stripe sets of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetsReport {
    /// The target's name.
    pub target: String,
    /// The results of each set.
    pub sets: Vec<SetReport>,
    /// Why the sets are not divided by NUMA node, if that was requested and not possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_by_node: Option<String>,
}

/// A stripe set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetReport {
    /// The descriptions of the set's drives.
    pub drives: Vec<String>,
    /// The NUMA node of all these drives; `None`: several, or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// The node's processors, which serve the set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<usize>,
}

/// One action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionReport {
    /// The pattern of each client.
    pub pattern: Pattern,
    /// The number of clients.
    pub clients: u32,
    /// Whether each client had a vhost-user disk, driven as a virtual machine does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vm: bool,
    /// Whether each client was a QEMU guest with a vhost-user disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guests: bool,
    /// I/Os per second of all drives: the sum over drives, each measured alone.
    pub alone_iops: Option<f64>,
    /// The mean of the runs; percentiles are of all I/Os.
    pub total: Total,
    /// Each run.
    pub runs: Vec<Total>,
    /// The fleet's percentage of `alone_iops`.
    pub percent_of_theoretical: Option<f64>,
    /// The documents' results.
    pub documents: Option<Documents>,
    /// Processor use of each agent's process, in per cent of one core, over the runs.
    pub cpu: Vec<(String, f64)>,
    /// All latencies of all runs.
    pub latencies: RecordedLatencies,
    /// The results of the same load on the same file over iSCSI, alternating with NVMe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iscsi: Vec<IscsiReport>,
}

/// QEMU guests, each with Linux.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestsReport {
    /// The number of guests.
    pub count: u32,
    /// How the guests' instructions ran: "emulated", or "run by the processor (KVM)".
    pub run_as: String,
    /// The release of the guests' kernel.
    pub kernel: String,
    /// Memory of each guest.
    pub memory_mib: u64,
    /// Blocks that the guests wrote for the comparison.
    pub written: u64,
    /// Blocks that the guests read back, each with the written content.
    pub compared: u64,
}

/// An action over iSCSI.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IscsiReport {
    /// The target that shared the file.
    pub target: IscsiTarget,
    /// The mean of the runs.
    pub total: IscsiTotal,
    /// Each run.
    pub runs: Vec<IscsiTotal>,
    /// NVMe's I/Os per second, divided by those of this target.
    pub nvme_ratio: f64,
}

/// The results of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IscsiTotal {
    /// I/Os per second.
    pub iops: f64,
    /// Throughput.
    pub mib_per_second: f64,
    /// Mean latency.
    pub mean_latency_us: f64,
    /// The 99th percentile of latency. In the total of several runs, the mean of the runs'
    /// percentiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_latency_us: Option<f64>,
    /// Processor time of target and initiators per I/O.
    pub cpu_us_per_io: f64,
}

/// The results of all clients together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// I/Os per second.
    pub iops: f64,
    /// Throughput.
    pub mib_per_second: f64,
    /// Latencies.
    pub latency: LatencySummary,
    /// Processor time of all agents per I/O.
    pub cpu_us_per_io: f64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// The results of verifying, over all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Writes acknowledged.
    pub writes: u64,
    /// Blocks compared.
    pub reads: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Blocks whose content differed from the acknowledged one.
    pub lost: u64,
    /// The first failure, and its place.
    pub wrong: Option<String>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// The name of the target.
    pub target: String,
    /// The kind of fault.
    pub fault: Fault,
    /// The longest operation during the fault, over all hosts.
    pub pause_seconds: f64,
    /// Time from the fault until every path was connected again.
    pub whole_again_seconds: f64,
    /// Operations that failed.
    pub failed: u64,
    /// Blocks whose content was not the acknowledged one.
    pub lost: u64,
}

impl Report {
    /// The report as indented JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has only keys and numbers of JSON's")
    }

    /// Reads the output of [`to_json`](Report::to_json).
    ///
    /// # Errors
    /// If the text is not a report, or has a newer schema.
    pub fn from_json(text: &str) -> Result<Report, serde_json::Error> {
        use serde::de::Error;
        let report: Report = serde_json::from_str(text)?;
        if report.fleet_schema > SCHEMA {
            let schema = report.fleet_schema;
            return Err(Error::custom(format_args!("schema {schema} is newer than {SCHEMA}")));
        }
        Ok(report)
    }

    /// True if an operation failed or a block was lost.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.verified.as_ref().is_some_and(|it| it.failed > 0 || it.lost > 0 || it.wrong.is_some())
    }

    /// The part of this report that can be compared with another one.
    #[must_use]
    pub fn subject(&self) -> Subject {
        let machine = self.nodes.first().map(|node| &node.machine);
        let machine = machine.map_or_else(String::new, |machine| {
            format!("{} with {} processors", machine.cpu_model, machine.cores)
        });
        let (agents, network, plan) = (self.nodes.len(), &self.network, &self.plan.name);
        Subject {
            title: format!("{}, plan {plan}, {}", self.tool, self.date),
            conditions: vec![machine, format!("{agents} agents over {network}")],
            loads: self.actions.iter().flat_map(ActionReport::loads).collect(),
        }
    }
}

impl ActionReport {
    /// The action's name: its load, with jobs and depth in a sweep.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.pattern.name
    }

    /// This load, and the same load over iSCSI.
    fn loads(&self) -> Vec<Load> {
        let iscsi = self.iscsi.iter().map(|iscsi| self.by_iscsi(iscsi));
        std::iter::once(self.load()).chain(iscsi).collect()
    }

    fn by_iscsi(&self, iscsi: &IscsiReport) -> Load {
        let of = |metric, value: fn(&IscsiTotal) -> Option<f64>| {
            let runs: Option<Vec<f64>> = iscsi.runs.iter().map(value).collect();
            runs.map(|runs| Series { metric, runs })
        };
        let Load { name, setup, .. } = self.load();
        let series = [
            of(Metric::Iops, |run| Some(run.iops)),
            of(Metric::MeanLatencyUs, |run| Some(run.mean_latency_us)),
            of(Metric::P99LatencyUs, |run| run.p99_latency_us),
            of(Metric::CpuUsPerIo, |run| Some(run.cpu_us_per_io)),
        ];
        Load {
            name: format!("{name}, iSCSI, {}", iscsi.target.words()),
            setup,
            series: series.into_iter().flatten().collect(),
            failure: None,
        }
    }

    fn load(&self) -> Load {
        let pattern = &self.pattern;
        let of = |metric, value: fn(&Total) -> f64| Series {
            metric,
            runs: self.runs.iter().map(value).collect(),
        };
        let (bytes, load) = (pattern.block_size_bytes, jobs_and_depth(pattern));
        let mix = if pattern.rw.reads() && pattern.rw.writes() {
            format!(", {} % reads", pattern.rwmixread)
        } else {
            String::new()
        };
        let client = match (self.guests, self.vm) {
            (true, _) => "guest",
            (false, true) => "virtual machine",
            (false, false) => "client",
        };
        let s = if self.clients == 1 { "" } else { "s" };
        Load {
            name: format!("{}, {load}{mix}", pattern.name),
            setup: format!("{} of {bytes} bytes, {} {client}{s}", pattern.rw, self.clients),
            series: vec![
                of(Metric::Iops, |run| run.iops),
                of(Metric::MeanLatencyUs, |run| run.latency.mean_ns / 1000.0),
                of(Metric::P99LatencyUs, |run| run.latency.p99_ns as f64 / 1000.0),
                of(Metric::CpuUsPerIo, |run| run.cpu_us_per_io),
            ],
            failure: None,
        }
    }
}
