//! What a fleet measured, as types and as JSON. Fields are added, never renamed or given another
//! meaning, without [`SCHEMA`] going up.

use crate::documents::Documents;
use crate::plan::{Fault, IscsiTarget, Plan};
use farblock_bench::verdict::{Load, Metric, Series, Subject};
use farblock_bench::{LatencySummary, Machine, Pattern, RecordedLatencies, jobs_and_depth};
use serde::{Deserialize, Serialize};

/// Version of the JSON.
pub const SCHEMA: u32 = 1;

/// Everything that a plan came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`] of what wrote it. Its name tells it from a report of the bench.
    pub fleet_schema: u32,
    /// Name and version of what wrote it.
    pub tool: String,
    /// When it began, in UTC.
    pub date: String,
    /// The command that ran it.
    pub command_line: String,
    /// The plan, as it was run.
    pub plan: Plan,
    /// Between the agents: network namespaces, the loopback, or other machines.
    pub network: String,
    /// The agents.
    pub nodes: Vec<NodeReport>,
    /// How each target's stripe sets were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetsReport>,
    /// What each action came to.
    pub actions: Vec<ActionReport>,
    /// What real guests were, and what they compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guests: Option<GuestsReport>,
    /// What writing, reading and comparing found.
    pub verified: Option<Verified>,
    /// What each fault did.
    pub faults: Vec<FaultReport>,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// What it runs on.
    pub machine: Machine,
    /// By how much its clock may be off: half of the shortest round trip.
    pub clock_error_us: f64,
}

/// The stripe sets of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetsReport {
    /// Its name.
    pub target: String,
    /// Each set.
    pub sets: Vec<SetReport>,
    /// Why no node has a set of its own, if each was to have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_by_node: Option<String>,
}

/// A stripe set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetReport {
    /// What it is made of.
    pub drives: Vec<String>,
    /// The node where all of that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// The node's processors, which serve it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<usize>,
}

/// One action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionReport {
    /// What each client did.
    pub pattern: Pattern,
    /// How many did it at once.
    pub clients: u32,
    /// Each had a vhost-user disk, driven as a virtual machine does it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vm: bool,
    /// Each client was a guest of QEMU's, whose disk was a vhost-user disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guests: bool,
    /// I/Os per second of all drives, each measured alone, added up.
    pub alone_iops: Option<f64>,
    /// The mean of the runs; percentiles are of all I/Os.
    pub total: Total,
    /// Each run.
    pub runs: Vec<Total>,
    /// The fleet's part of `alone_iops`.
    pub percent_of_theoretical: Option<f64>,
    /// What the documents measured.
    pub documents: Option<Documents>,
    /// Processor use of each agent's process, in per cent of one core, over the runs.
    pub cpu: Vec<(String, f64)>,
    /// All latencies of all runs.
    pub latencies: RecordedLatencies,
    /// What the same file gave by iSCSI, in turns with this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iscsi: Vec<IscsiReport>,
}

/// Virtual machines of QEMU's, each with a Linux in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestsReport {
    /// How many.
    pub count: u32,
    /// What carried out their instructions: "emulated", or "run by the processor (KVM)".
    pub run_as: String,
    /// Their kernel's release.
    pub kernel: String,
    /// Memory of each.
    pub memory_mib: u64,
    /// Blocks that they wrote to be compared.
    pub written: u64,
    /// Blocks that they read back, each found as it was written.
    pub compared: u64,
}

/// An action by iSCSI.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IscsiReport {
    /// Who shared the file.
    pub target: IscsiTarget,
    /// The mean of the runs.
    pub total: IscsiTotal,
    /// Each run.
    pub runs: Vec<IscsiTotal>,
    /// NVMe's I/Os per second by these.
    pub nvme_ratio: f64,
}

/// What an initiator measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IscsiTotal {
    /// I/Os per second.
    pub iops: f64,
    /// Throughput.
    pub mib_per_second: f64,
    /// Mean latency.
    pub mean_latency_us: f64,
    /// The 99th percentile; the mean of that of the runs, in the sum of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_latency_us: Option<f64>,
    /// Processor time of target and initiators per I/O.
    pub cpu_us_per_io: f64,
}

/// All clients together.
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

/// What verifying found, over all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Writes acknowledged.
    pub writes: u64,
    /// Blocks compared.
    pub reads: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Blocks that held something else than what was acknowledged.
    pub lost: u64,
    /// The first thing that was wrong, and where.
    pub wrong: Option<String>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// Whom it hit.
    pub target: String,
    /// What it was.
    pub fault: Fault,
    /// The longest that an operation took meanwhile, over all hosts.
    pub pause_seconds: f64,
    /// From the fault until every path was connected again.
    pub whole_again_seconds: f64,
    /// Operations that failed.
    pub failed: u64,
    /// Blocks that were not as acknowledged.
    pub lost: u64,
}

impl Report {
    /// The report as indented JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has only keys and numbers of JSON's")
    }

    /// Reads what [`to_json`](Report::to_json) wrote.
    ///
    /// # Errors
    /// If it is no report, or one of a newer schema.
    pub fn from_json(text: &str) -> Result<Report, serde_json::Error> {
        use serde::de::Error;
        let report: Report = serde_json::from_str(text)?;
        if report.fleet_schema > SCHEMA {
            let schema = report.fleet_schema;
            return Err(Error::custom(format_args!("schema {schema} is newer than {SCHEMA}")));
        }
        Ok(report)
    }

    /// Something failed or was lost.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.verified.as_ref().is_some_and(|it| it.failed > 0 || it.lost > 0 || it.wrong.is_some())
    }

    /// This report as far as another one can be compared with it.
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
    /// What the action is called: its load, and jobs and depth if there is a sweep.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.pattern.name
    }

    /// Itself, and the same by iSCSI.
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
