//! The results of a fleet, as types and as JSON. Adding a field keeps [`SCHEMA`]; renaming or
//! redefining a field increases it.

use crate::documents::Documents;
use crate::plan::{Fault, IscsiTarget, Plan};
use farblock_bench::verdict::{Load, Metric, Series, Subject};
use farblock_bench::{LatencySummary, Machine, Pattern, RecordedLatencies, jobs_and_depth};
use serde::{Deserialize, Serialize};

/// The version of the JSON.
pub const SCHEMA: u32 = 1;

/// All results of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The [`SCHEMA`] of the program that wrote the report. The name of this field distinguishes
    /// the report from a report of the bench.
    pub fleet_schema: u32,
    /// The name and version of the program that wrote the report.
    pub tool: String,
    /// The start of the run, in UTC.
    pub date: String,
    /// The command line of the run.
    pub command_line: String,
    /// The plan that the fleet executed.
    pub plan: Plan,
    /// The network between the agents: network namespaces, loopback, or other machines.
    pub network: String,
    /// The agents.
    pub nodes: Vec<NodeReport>,
    /// The stripe sets of each target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetsReport>,
    /// The results of each action.
    pub actions: Vec<ActionReport>,
    /// The QEMU guests of the run, and how many blocks they verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guests: Option<GuestsReport>,
    /// The blocks that the hosts wrote, read back and compared. `None`: the plan has no such test.
    pub verified: Option<Verified>,
    /// The effect of each fault of the plan on the hosts.
    pub faults: Vec<FaultReport>,
}

/// An agent, its machine and its clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The name of the agent.
    pub name: String,
    /// The machine of the agent.
    pub machine: Machine,
    /// The maximum error of the measured clock offset between agent and controller, in
    /// microseconds: half of the shortest round trip.
    pub clock_error_us: f64,
}

/// The stripe sets of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetsReport {
    /// The name of the target.
    pub target: String,
    /// The sets of the target.
    pub sets: Vec<SetReport>,
    /// Why the drives could not form one set per NUMA node; `None` if they did, or the plan did not
    /// request it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_by_node: Option<String>,
}

/// The drives and processors of a stripe set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetReport {
    /// The drives of the set, as `farblock serve` names disks.
    pub drives: Vec<String>,
    /// The NUMA node of all these drives. `None`: several nodes, or an unknown one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// The processors of this node, which serve the set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<usize>,
}

/// The results of one action: a load of the plan, which all clients run at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionReport {
    /// The load of each client.
    pub pattern: Pattern,
    /// The number of clients.
    pub clients: u32,
    /// Whether each client had a vhost-user disk, which the agent used like a virtual machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vm: bool,
    /// Whether each client was a QEMU guest with a vhost-user disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guests: bool,
    /// The sum of the I/Os per second of all drives, each measured alone and without a network.
    pub alone_iops: Option<f64>,
    /// The mean of all runs. The percentiles cover all I/Os.
    pub total: Total,
    /// The results of each run.
    pub runs: Vec<Total>,
    /// The I/Os per second of the fleet, as a percentage of `alone_iops`.
    pub percent_of_theoretical: Option<f64>,
    /// The results of a published test with this load, for comparison.
    pub documents: Option<Documents>,
    /// The processor use of the process of each agent, in percent of one core, over all runs.
    pub cpu: Vec<(String, f64)>,
    /// The latencies of all I/Os in all runs.
    pub latencies: RecordedLatencies,
    /// The results of the same load on the same file over iSCSI, alternating with NVMe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iscsi: Vec<IscsiReport>,
}

/// The results of QEMU guests with Linux.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestsReport {
    /// The number of guests.
    pub count: u32,
    /// The execution mode of the guests: "emulated", or "run by the processor (KVM)".
    pub run_as: String,
    /// The release of the guests' kernel.
    pub kernel: String,
    /// The memory of each guest, in MiB.
    pub memory_mib: u64,
    /// The number of blocks that the guests wrote for the comparison.
    pub written: u64,
    /// The number of blocks that the guests read back and found correct.
    pub compared: u64,
}

/// The results of an action over iSCSI.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IscsiReport {
    /// The target that shared the file.
    pub target: IscsiTarget,
    /// The mean of all runs.
    pub total: IscsiTotal,
    /// The results of each run.
    pub runs: Vec<IscsiTotal>,
    /// The I/Os per second of NVMe, divided by the I/Os per second of this target.
    pub nvme_ratio: f64,
}

/// The results of all iSCSI initiators together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IscsiTotal {
    /// I/Os per second.
    pub iops: f64,
    /// Throughput in MiB per second.
    pub mib_per_second: f64,
    /// The mean latency in microseconds.
    pub mean_latency_us: f64,
    /// The 99th percentile of the latency, in microseconds. In the total of several runs, this is
    /// the mean of the percentiles of the runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_latency_us: Option<f64>,
    /// The processor time of target and initiators per I/O, in microseconds.
    pub cpu_us_per_io: f64,
}

/// The results of all clients together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// I/Os per second.
    pub iops: f64,
    /// Throughput in MiB per second.
    pub mib_per_second: f64,
    /// The latencies of all I/Os.
    pub latency: LatencySummary,
    /// The processor time of all agents per I/O, in microseconds.
    pub cpu_us_per_io: f64,
    /// The number of reads.
    pub reads: u64,
    /// The number of writes.
    pub writes: u64,
}

/// The blocks that all hosts wrote, read back and compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// The number of acknowledged writes.
    pub writes: u64,
    /// The number of compared blocks.
    pub reads: u64,
    /// The number of operations that failed.
    pub failed: u64,
    /// The number of blocks whose content differed from the acknowledged content.
    pub lost: u64,
    /// The first failure, and where it occurred.
    pub wrong: Option<String>,
}

/// The effect of one fault on the hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// The name of the target that had the fault.
    pub target: String,
    /// The kind of fault.
    pub fault: Fault,
    /// The duration of the longest operation during the fault, over all hosts, in seconds.
    pub pause_seconds: f64,
    /// The time from the fault until every path was connected again, in seconds.
    pub whole_again_seconds: f64,
    /// The number of operations that failed.
    pub failed: u64,
    /// The number of blocks whose content differed from the acknowledged content.
    pub lost: u64,
}

impl Report {
    /// The report as indented JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every report can be written as JSON")
    }

    /// Parses the output of [`to_json`](Report::to_json).
    ///
    /// # Errors
    /// The text is not a report, or has a newer schema.
    pub fn from_json(text: &str) -> Result<Report, serde_json::Error> {
        use serde::de::Error;
        let report: Report = serde_json::from_str(text)?;
        if report.fleet_schema > SCHEMA {
            let schema = report.fleet_schema;
            return Err(Error::custom(format_args!("schema {schema} is newer than {SCHEMA}")));
        }
        Ok(report)
    }

    /// Whether an operation failed or a block was lost.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.verified.as_ref().is_some_and(|it| it.failed > 0 || it.lost > 0 || it.wrong.is_some())
    }

    /// The title, conditions and loads of this report, for a comparison with another report.
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
    /// The name of the action: its load, and in a sweep also its jobs and queue depth.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.pattern.name
    }

    /// Returns this action's load, and the same load over each iSCSI target.
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
