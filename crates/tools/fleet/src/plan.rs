//! The description of a fleet and of its work.
//!
//! A plan is a TOML file. A report contains its plan, and can be used instead.
//!
//! ```toml
//! name = "two-by-two"
//! storage_nodes = 2              # nodes with targets
//! host_nodes = 2                 # nodes with clients
//! drives_per_target = 2
//! drive = "mem:64MiB"            # a spec as for `farblock serve`; or "temporary:64MiB", a file
//! clients_per_node = 4
//! runtime_seconds = 5.0
//! runs = 3
//! depths = [1, 8]                # a sweep: every action with every depth
//!
//! [[actions]]
//! load = "randread,bs=4k,iodepth=8,numjobs=1"
//! ```

use crate::documents::Documents;
use crate::error::FleetError;
use crate::limits::{AGENTS, CLIENTS, DRIVES, GUESTS, NODES, PATHS, VM_RINGS};
use farblock_bench::{Pattern, jobs_and_depth};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The block size of tgt, and so of all targets in a comparison over iSCSI.
const ISCSI_BLOCK_BYTES: u32 = 512;

/// A plan: the fleet and its work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plan {
    /// The name of the plan for people.
    pub name: String,
    /// The purpose of the plan.
    pub about: String,
    /// The number of nodes with targets.
    pub storage_nodes: u32,
    /// The number of nodes with clients.
    pub host_nodes: u32,
    /// Whether each node has both targets and clients. The plan then has `storage_nodes` nodes.
    pub together: bool,
    /// The number of targets of each storage node.
    pub targets_per_node: u32,
    /// The number of drives of each target.
    pub drives_per_target: u32,
    /// The number of paths from a client to its disk. This many consecutive storage nodes share the
    /// same drives, which are on another node. If it is 1, each storage node has its own drives.
    pub paths: u32,
    /// The number of stripe sets of a target. If it is 0, each drive is a namespace.
    pub sets_per_target: u32,
    /// Whether the drives of each NUMA node form one set instead, which the processors of that node
    /// serve.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sets_by_node: bool,
    /// The spec of a drive, as for `farblock serve`.
    pub drive: String,
    /// The specs of the drives of a target, instead of `drives_per_target` times `drive`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<String>,
    /// The block size in bytes.
    pub block_size: u32,
    /// The number of clients of each host node. Each client is a separate host.
    pub clients_per_node: u32,
    /// The measured time of each run.
    pub runtime_seconds: f64,
    /// The time of load before the measured time.
    pub ramp_seconds: f64,
    /// The additional time of load before the first run of an action.
    pub warm_up_seconds: f64,
    /// The number of runs of each action.
    pub runs: u32,
    /// The time for which each drive is measured alone, before each action. 0 means that drives are
    /// not measured alone.
    pub alone_seconds: f64,
    /// The actions, which run one after the other.
    pub actions: Vec<Action>,
    /// Repeats every action with each of these depths, instead of its own depth.
    pub depths: Vec<u32>,
    /// Repeats every action with each of these numbers of jobs.
    pub jobs: Vec<u32>,
    /// Repeats every mixed action with each of these percentages of reads.
    pub mixes: Vec<u8>,
    /// The duration of the verification after the actions, in which the hosts write, read and
    /// compare blocks.
    pub verify_seconds: f64,
    /// The number of QEMU guests, which also run the actions for virtual machines.
    #[serde(skip_serializing_if = "is_zero")]
    pub guests: u32,
    /// The number of threads of each client that write, read and compare.
    pub writers: u32,
    /// The faults at each target in turn, during the verification.
    pub faults: Vec<Fault>,
    /// The time for which a network stays cut or slow.
    pub fault_seconds: f64,
    /// Agents on other machines, instead of nodes on this machine.
    pub agents: Vec<Place>,
    /// The targets that share the same file over iSCSI, alternating with NVMe.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub iscsi: Vec<IscsiTarget>,
    /// The URLs of existing targets, instead of targets that agents start.
    pub targets: Vec<String>,
    /// Sentences that describe how the plan was scaled down for the machine.
    pub scaled: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// An action of a plan: one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// The load of each client, in fio's syntax. `name=` names it.
    pub load: String,
    /// Whether the disks of the clients are vhost-user disks, which the agents drive like a virtual
    /// machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vm: bool,
    /// The published results for this load, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<Documents>,
}

/// An action with one depth, number of jobs and mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The pattern of each client.
    pub pattern: Pattern,
    /// See [`Action::vm`].
    pub vm: bool,
    /// See [`Action::documents`].
    pub documents: Option<Documents>,
}

/// A fault at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// The controller kills the process of the target, and starts it again.
    Kill,
    /// The controller cuts the network cable of the target's node for a while.
    Cut,
    /// The controller limits the network of the target's node to a megabyte per second for a while.
    Slow,
}

impl Fault {
    /// The name in a plan: `kill`, `cut`, `slow`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Cut => "cut",
            Fault::Slow => "slow",
        }
    }
}

/// A program that shares a file over iSCSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IscsiTarget {
    /// The target of this project.
    Farblock,
    /// tgt, as Linux distributions package it.
    Tgt,
}

impl IscsiTarget {
    /// The name of the program in a plan: `farblock`, `tgt`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IscsiTarget::Farblock => "farblock",
            IscsiTarget::Tgt => "tgt",
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            IscsiTarget::Farblock => "farblock's target",
            IscsiTarget::Tgt => "tgt",
        }
    }
}

/// An agent that listens on another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The name of the agent for people.
    pub name: String,
    /// The address of the agent: `HOST:PORT`.
    pub address: String,
    /// The path of the file with the agent's token.
    pub token_file: String,
    /// The address at which clients reach the drives of this agent. `None` if the agent runs hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves_at: Option<std::net::SocketAddr>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            name: String::new(),
            about: String::new(),
            storage_nodes: 1,
            host_nodes: 1,
            together: false,
            targets_per_node: 1,
            drives_per_target: 1,
            paths: 1,
            sets_per_target: 0,
            sets_by_node: false,
            drive: "mem:64MiB".to_owned(),
            drives: Vec::new(),
            block_size: 512,
            clients_per_node: 1,
            runtime_seconds: 5.0,
            ramp_seconds: 1.0,
            warm_up_seconds: 0.0,
            runs: 1,
            alone_seconds: 0.0,
            actions: Vec::new(),
            depths: Vec::new(),
            jobs: Vec::new(),
            mixes: Vec::new(),
            verify_seconds: 0.0,
            guests: 0,
            writers: 1,
            faults: Vec::new(),
            fault_seconds: 3.0,
            agents: Vec::new(),
            iscsi: Vec::new(),
            targets: Vec::new(),
            scaled: Vec::new(),
        }
    }
}

impl Plan {
    /// The actions with all depths, numbers of jobs and mixes of the sweep.
    ///
    /// # Errors
    /// An action is not a valid load.
    pub fn loads(&self) -> Result<Vec<Wanted>, FleetError> {
        let mut loads = Vec::new();
        for action in &self.actions {
            let mut pattern: Pattern =
                action.load.parse().map_err(|error: farblock_bench::BenchError| {
                    FleetError::plan(&self.name, error.to_string())
                })?;
            if action.vm && !pattern.name.starts_with("VM ") {
                pattern.name.insert_str(0, "VM ");
            }
            let is_mixed = pattern.rw.reads() && pattern.rw.writes();
            let depths = or_own(&self.depths, pattern.iodepth);
            let mixes = if is_mixed {
                or_own(&self.mixes, pattern.rwmixread)
            } else {
                vec![pattern.rwmixread]
            };
            for &numjobs in &or_own(&self.jobs, pattern.numjobs) {
                for &iodepth in &depths {
                    for &rwmixread in &mixes {
                        let mut one = Pattern { numjobs, iodepth, rwmixread, ..pattern.clone() };
                        if is_mixed && !self.mixes.is_empty() {
                            one.name = with_mix(&one.name, rwmixread);
                        }
                        let why = |error: farblock_bench::BenchError| {
                            FleetError::plan(&self.name, error.to_string())
                        };
                        one.validate().map_err(why)?;
                        let (vm, documents) = (action.vm, action.documents.clone());
                        loads.push(Wanted { pattern: one, vm, documents });
                    }
                }
            }
        }
        Ok(loads)
    }

    /// Checks everything that can be checked before the start.
    ///
    /// # Errors
    /// The reason why the plan is invalid.
    pub fn check(&self) -> Result<(), FleetError> {
        let wrong = |why: &str| Err(FleetError::plan(&self.name, why));
        let nodes = self.nodes();
        if self.agents.is_empty() && (self.storage_nodes == 0 || nodes > NODES) {
            return wrong(&format!("needs 1 to {NODES} nodes, at least one of them with storage"));
        }
        if !self.together && self.host_nodes == 0 && self.agents.is_empty() {
            return wrong("needs a node with clients: host_nodes, or together = true");
        }
        let targets = self.storage_nodes.saturating_mul(self.targets_per_node);
        if targets.saturating_add(nodes) > AGENTS || self.targets_per_node == 0 {
            return wrong(&format!("must start 1 to {AGENTS} processes"));
        }
        if !(1..=CLIENTS as u32).contains(&self.clients_per_node) {
            return wrong(&format!("clients_per_node must be between 1 and {CLIENTS}"));
        }
        if self.runs == 0 || self.runs > farblock_bench::limits::MAX_RUNS {
            return wrong("the number of runs must be between 1 and 1000");
        }
        if self.mixes.iter().any(|mix| *mix > 100) {
            return wrong("mixes must be percentages of reads, from 0 to 100");
        }
        self.check_times()?;
        self.check_drives()?;
        self.check_paths()?;
        let has_rings = |load: &Wanted| !load.vm || (1..=VM_RINGS).contains(&load.pattern.numjobs);
        if !self.loads()?.iter().all(has_rings) {
            return wrong(&format!(
                "the disk of a VM has one ring per job, and at most {VM_RINGS} rings"
            ));
        }
        if self.actions.is_empty() && self.verify_seconds == 0.0 && self.faults.is_empty() {
            return wrong("does nothing: it has no actions, no verify_seconds and no faults");
        }
        let is_away = !self.agents.is_empty() || !self.targets.is_empty();
        if is_away && !self.faults.is_empty() {
            return wrong("can inject faults only into agents that it started: omit the faults");
        }
        let mut names = (0..self.drives_of_target()).map(|drive| self.drive_named(drive));
        if !self.agents.is_empty() && names.any(|name| name.contains("temporary:")) {
            return wrong(
                "creates temporary: drives only on this machine: name drives of the agents' \
                 machines",
            );
        }
        self.check_guests()?;
        self.check_iscsi()
    }

    fn check_drives(&self) -> Result<(), FleetError> {
        let wrong = |why: &str| Err(FleetError::plan(&self.name, why));
        let (count, sets) = (self.drives_of_target(), self.sets_per_target);
        if !(1..=DRIVES as u32).contains(&count) {
            return wrong(&format!("a target must have 1 to {DRIVES} drives"));
        }
        if self.sets_by_node && sets == 0 {
            return wrong("has sets_by_node, but no sets_per_target");
        }
        // With sets by node, each set has all drives of its node.
        if sets > 0 && !self.sets_by_node && !count.is_multiple_of(sets) {
            return wrong(&format!(
                "has {count} drives per target, which is not a multiple of {sets} sets"
            ));
        }
        if self.drives.is_empty() {
            return Ok(());
        }
        let is_twice = |(at, drive): (usize, &String)| self.drives[..at].contains(drive);
        let is_own = |drive: &String| !made(drive);
        let mut all = self.drives.iter().enumerate().filter(|(_, drive)| is_own(drive));
        if let Some((_, twice)) = all.find(|one| is_twice(*one)) {
            return wrong(&format!("names {twice} twice"));
        }
        if !self.targets.is_empty() {
            return wrong(
                "names drives and existing targets, but existing targets have their own drives",
            );
        }
        let here = self.storage_nodes.saturating_mul(self.targets_per_node);
        if self.agents.is_empty() && here > 1 {
            return wrong(&format!("names the drives of one target, but has {here} targets"));
        }
        Ok(())
    }

    pub(crate) fn drives_of_target(&self) -> u32 {
        match self.drives.len() {
            0 => self.drives_per_target,
            named => u32::try_from(named).unwrap_or(u32::MAX),
        }
    }

    /// The spec of a drive.
    pub(crate) fn drive_named(&self, drive: u32) -> &str {
        self.drives.get(drive as usize).unwrap_or(&self.drive)
    }

    fn check_guests(&self) -> Result<(), FleetError> {
        let wrong = |why: &str| Err(FleetError::plan(&self.name, why));
        if self.guests > GUESTS {
            return wrong(&format!("can have at most {GUESTS} guests"));
        }
        if self.guests > 0 && !self.agents.is_empty() {
            return wrong("can start guests only with agents that it started: omit the guests");
        }
        if self.guests > 0 && !self.actions.iter().any(|action| action.vm) {
            return wrong("has guests, but no actions with vm = true, and only these use guests");
        }
        Ok(())
    }

    fn check_paths(&self) -> Result<(), FleetError> {
        let is_away = !self.agents.is_empty() || !self.targets.is_empty();
        let is_fit = (1..=PATHS).contains(&self.paths)
            && self.storage_nodes.is_multiple_of(self.paths)
            && !is_away
            && self.sets_per_target == 0
            && self.actions.is_empty();
        if self.paths == 1 || is_fit {
            return Ok(());
        }
        Err(FleetError::plan(
            &self.name,
            format!(
                "has clients with {} paths: then storage_nodes must be a multiple of the paths, \
                 with at most {PATHS} paths, and without actions, sets, agents or targets",
                self.paths
            ),
        ))
    }

    fn check_iscsi(&self) -> Result<(), FleetError> {
        let loads = self.loads()?;
        if self.iscsi.is_empty() {
            return Ok(());
        }
        let is_away = !self.agents.is_empty() || !self.targets.is_empty();
        let one_each = [
            self.storage_nodes,
            self.host_nodes,
            self.targets_per_node,
            self.drives_per_target,
            self.clients_per_node,
            u32::from(self.drives.is_empty()),
        ];
        let is_simple = one_each.iter().all(|&count| count == 1) && self.sets_per_target == 0;
        let is_file = self.drive.starts_with("temporary:") && self.block_size == ISCSI_BLOCK_BYTES;
        if is_away || self.together || !is_simple || !is_file {
            return Err(FleetError::plan(
                &self.name,
                "compares with iSCSI on one file: this needs one storage node, one host node, one \
                 client, one temporary: drive and blocks of 512 bytes, without agents and targets",
            ));
        }
        loads.iter().try_for_each(|load| self.check_iscsi_load(load))
    }

    /// Checks that a load is possible over iSCSI.
    fn check_iscsi_load(&self, wanted: &Wanted) -> Result<(), FleetError> {
        let pattern = &wanted.pattern;
        let is_fit = !wanted.vm && pattern.block_size_bytes.is_multiple_of(ISCSI_BLOCK_BYTES);
        let why = format!(
            "compares with iSCSI in blocks of {ISCSI_BLOCK_BYTES} bytes, without virtual machines: \
             {} ({}) does not match",
            pattern.name,
            jobs_and_depth(pattern)
        );
        if is_fit { Ok(()) } else { Err(FleetError::plan(&self.name, why)) }
    }

    /// An existing disk that this plan would overwrite; `None` if there is no such disk.
    ///
    /// # Errors
    /// An action is not a valid load.
    pub fn writes_to(&self) -> Result<Option<String>, FleetError> {
        let loads = self.loads()?;
        let verifies = self.verify_seconds > 0.0 || !self.faults.is_empty() || self.guests > 0;
        if !verifies && !loads.iter().any(|load| load.pattern.rw.writes()) {
            return Ok(None);
        }
        if let Some(url) = self.targets.first() {
            return Ok(Some(url.clone()));
        }
        let names = (0..self.drives_of_target()).map(|drive| self.drive_named(drive));
        Ok(names.filter(|name| !made(name)).map(str::to_owned).next())
    }

    fn check_times(&self) -> Result<(), FleetError> {
        let times = [
            ("runtime_seconds", self.runtime_seconds, 0.01),
            ("ramp_seconds", self.ramp_seconds, 0.0),
            ("warm_up_seconds", self.warm_up_seconds, 0.0),
            ("alone_seconds", self.alone_seconds, 0.0),
            ("verify_seconds", self.verify_seconds, 0.0),
            ("fault_seconds", self.fault_seconds, 0.0),
        ];
        let wrong =
            times.iter().find(|(_, seconds, least)| !(*least..=604_800.0).contains(seconds));
        match wrong {
            None => Ok(()),
            Some((name, ..)) => {
                Err(FleetError::plan(&self.name, format!("{name} is not a valid time")))
            }
        }
    }

    /// The number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        let hosts = if self.together { 0 } else { self.host_nodes };
        let drives = u32::from(self.paths > 1);
        self.storage_nodes.saturating_add(hosts).saturating_add(drives)
    }

    /// The index of a target's subsystem, and the index of the target among the paths to it.
    pub(crate) fn set_and_way(&self, target: usize) -> (usize, usize) {
        let (each, paths) = (self.targets_per_node.max(1) as usize, self.paths.max(1) as usize);
        let (node, place) = (target / each, target % each);
        (node / paths * each + place, node % paths)
    }

    /// The approximate duration of a run.
    ///
    /// # Errors
    /// An action is not a valid load.
    pub fn duration(&self) -> Result<Duration, FleetError> {
        let loads = self.loads()?.len() as f64;
        let drives = self.storage_nodes * self.targets_per_node * self.drives_of_target();
        let run = self.runtime_seconds + self.ramp_seconds + 2.0;
        let alone = f64::from(drives) * self.alone_seconds;
        // A killed process starts again within seconds. A cut or slow network recovers soon after
        // its time.
        let fault = |fault: &Fault| match fault {
            Fault::Kill => 4.0,
            Fault::Cut | Fault::Slow => self.fault_seconds + 1.0,
        };
        let faults: f64 = self.faults.iter().map(fault).sum();
        let targets = f64::from(self.storage_nodes * self.targets_per_node);
        let run = run * (1 + self.iscsi.len()) as f64;
        let actions = loads * (run * f64::from(self.runs) + self.warm_up_seconds + alone);
        let is_vm = |action: &&Action| action.vm;
        let vms = self.actions.iter().filter(is_vm).count() as f64 * f64::from(self.runs);
        let guests = match self.guests {
            0 => 0.0,
            count => 30.0 + 10.0 * f64::from(count) + vms * (run + 2.0),
        };
        let all = actions + guests + self.verify_seconds + faults * targets;
        Ok(Duration::try_from_secs_f64(all).unwrap_or(Duration::MAX))
    }
}

/// Whether the run itself creates the drive.
fn made(drive: &str) -> bool {
    // Decorators precede the drive that they decorate. A stripe set may contain drives of any kind.
    let made = ["mem:", "null:", "temporary:", "delay:", "limit:", "fault:"];
    drive.split(',').all(|part| made.iter().any(|kind| part.starts_with(kind)))
}

/// Adds the mix to a name, as in `4k random 70/30`. Jobs and depth have their own columns, but the
/// mix does not.
fn with_mix(name: &str, reads: u8) -> String {
    let mix = format!("{reads}/{}", 100 - reads.min(100));
    if name.ends_with(" mixed") {
        return name.replace(" mixed", &format!(" {mix}"));
    }
    format!("{name} {mix}")
}

fn or_own<T: Copy>(sweep: &[T], own: T) -> Vec<T> {
    if sweep.is_empty() { vec![own] } else { sweep.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_plans_are_valid_on_every_machine() {
        for plan in Plan::built_in() {
            plan.check().unwrap();
            for cores in [1, 2, 16, 1024] {
                let scaled = Plan::named(&plan.name, cores).unwrap();
                scaled.check().unwrap();
                let smaller = scaled.nodes() < plan.nodes()
                    || scaled.clients_per_node < plan.clients_per_node;
                assert!(
                    !smaller || !scaled.scaled.is_empty(),
                    "{}: no remark on the scaling",
                    plan.name
                );
            }
        }
        assert!(Plan::named("nothing", 2).is_none());
    }

    #[test]
    fn a_sweep_runs_every_combination() {
        let text = "depths = [1, 8]\njobs = [1, 2]\nmixes = [70, 90]\n[[actions]]\nload = \
                    \"randrw,bs=4k\"\n[[actions]]\nload = \"read,bs=1M\"";
        let plan = Plan::parse("sweep", text).unwrap();
        let loads = plan.loads().unwrap();
        assert_eq!(loads.len(), 8 + 4);
        let first = &loads[0].pattern;
        assert_eq!((first.numjobs, first.iodepth, first.rwmixread), (1, 1, 70));
        assert_eq!((first.name.as_str(), loads[1].pattern.rwmixread), ("4k random 70/30", 90));
        assert_eq!(loads[1].pattern.name, "4k random 90/10");
        assert_eq!(with_mix("mine", 50), "mine 50/50");
        assert_eq!(loads[8].pattern.name, "1M sequential read", "the name of a load without a mix");
        assert_eq!(plan.name, "sweep");
    }

    #[test]
    fn a_plan_may_write_only_to_its_own_disks() {
        let of = |drive: &str, load: &str| {
            let drive = drive.to_owned();
            let actions = vec![Action { load: load.to_owned(), vm: false, documents: None }];
            Plan { drive, actions, ..Plan::default() }.writes_to().unwrap()
        };
        assert_eq!(of("limit:10/s,mem:8MiB", "write"), None);
        assert_eq!(of("temporary:8MiB", "randrw"), None);
        assert_eq!(of("/dev/sdb", "read"), None);
        assert_eq!(of("/dev/sdb", "write").as_deref(), Some("/dev/sdb"));
        assert!(of("stripe:64KiB,/dev/sdb,mem:8MiB", "write").is_some());
        assert!(of("limit:10/s,/dev/sdb", "write").is_some());
        let named = ["mem:8MiB", "/dev/sdb"].map(str::to_owned).to_vec();
        let named = Plan { drives: named, verify_seconds: 1.0, ..Plan::default() };
        named.check().unwrap();
        assert_eq!(named.writes_to().unwrap().as_deref(), Some("/dev/sdb"));
        let there = Plan { targets: vec!["nvme+tcp://x/y".to_owned()], ..Plan::default() };
        let verified = Plan { verify_seconds: 1.0, ..there.clone() };
        assert_eq!(there.writes_to().unwrap(), None);
        assert!(verified.writes_to().unwrap().is_some());
    }

    #[test]
    fn invalid_plans_are_refused() {
        let why = |text: &str| {
            let plan = Plan::parse("bad.toml", text);
            plan.and_then(|plan| plan.check()).unwrap_err().to_string()
        };
        let read = "[[actions]]\nload = \"read\"\n";
        assert!(why("nodes = 3").contains("unknown field"), "{}", why("nodes = 3"));
        assert!(why("").contains("does nothing"));
        assert!(why(&format!("storage_nodes = 0\n{read}")).contains("nodes"));
        assert!(why(&format!("storage_nodes = 4294967295\n{read}")).contains("nodes"));
        assert!(why(&format!("runs = 0\n{read}")).contains("runs"));
        assert!(why(&format!("runtime_seconds = nan\n{read}")).contains("runtime_seconds"));
        assert!(why(&format!("sets_per_target = 2\n{read}")).contains("multiple"));
        assert!(why("[[actions]]\nload = \"burn\"").contains("randread"));
        let rings = "[[actions]]\nload = \"read,numjobs=65\"\nvm = true";
        assert!(why(rings).contains("at most 64 rings"), "{}", why(rings));
        let two = "drives = [\"/dev/a\", \"/dev/b\"]";
        assert!(why(&format!("{two}\nsets_per_target = 3\n{read}")).contains("multiple"));
        assert!(why(&format!("{two}\nsets_by_node = true\n{read}")).contains("sets_per_target"));
        assert!(
            why(&format!("{two}\nstorage_nodes = 2\n{read}")).contains("one target, but has 2")
        );
        assert!(
            why(&format!("{two}\ntargets = [\"nvme+tcp://x/y\"]\n{read}")).contains("their own")
        );
        let twice = why(&format!("drives = [\"/dev/a\", \"mem:1MiB\", \"/dev/a\"]\n{read}"));
        assert!(twice.contains("/dev/a twice"), "{twice}");
        for bad in ["storage_nodes = 3", "storage_nodes = 2\n[[actions]]\nload = \"read\""] {
            let text = format!("paths = 2\nverify_seconds = 1\n{bad}");
            assert!(why(&text).contains("2 paths"), "{}", why(&text));
        }
        assert!(why("paths = 0\nverify_seconds = 1").contains("0 paths"));
        assert!(why("{").contains("not a valid report"));
        let away = "[[agents]]\nname = \"a\"\naddress = \"a:1\"\ntoken_file = \"t\"";
        assert!(why(&format!("drive = \"temporary:8MiB\"\n{away}\n{read}")).contains("temporary"));
    }
}
