//! The controller: starts or meets the agents, has them do what the plan says, and adds up.

use crate::clock::Clock;
use crate::error::FleetError;
use crate::iscsi::{self, Programs};
use crate::limits::{LOAD_GRACE, OPEN_TIME, START_IN};
use crate::message::{Ask, Client, Load, Measured, Say, Share};
use crate::network::Network;
use crate::node::{Launcher, Node};
use crate::peer::{Peer, Secret};
use crate::plan::Plan;
use crate::report::{ActionReport, NodeReport, Report, SCHEMA, Total, Verified};
use farblock_bench::{Cancel, Latencies, Pattern, RecordedLatencies};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// Names of the subsystems, each with the number of its target.
const NQN: &str = "nqn.2026-11.org.farblock:fleet";
/// Between two looks at who has said something.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes in a MiB.
pub(crate) const MIB: f64 = (1 << 20) as f64;
/// Where random addresses begin.
const SEED: u64 = 0x666c_6565_7421;

/// What a plan is carried out with.
pub struct Setting<'a> {
    /// How agents are started.
    pub launcher: Launcher,
    /// Whether this process may make network namespaces, one for each node.
    pub has_network: bool,
    /// An empty folder for drives that are files.
    pub folder: PathBuf,
    /// The tokens of agents that listen, by the names of their files.
    pub secrets: BTreeMap<String, Secret>,
    /// Calls it off.
    pub cancel: Cancel,
    /// Told now and then what is done, and how fast: I/Os per second, 0 when none are counted.
    pub progress: &'a mut dyn FnMut(&str, f64),
}

/// Carries a plan out.
///
/// # Errors
/// What went wrong first, and with whom.
pub fn run<'a>(plan: &'a Plan, setting: Setting<'a>) -> Result<Report, FleetError> {
    plan.check()?;
    let date = farblock_bench::utc(SystemTime::now());
    let mut fleet = Fleet::start(plan, setting)?;
    let mut actions = Vec::new();
    for (pattern, documents) in plan.loads()? {
        let action = fleet.action(&pattern)?;
        actions.push(ActionReport { documents, ..action });
    }
    let (verified, faults) = fleet.verify()?;
    Ok(Report {
        fleet_schema: SCHEMA,
        tool: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
        date,
        command_line: farblock_bench::command_line(),
        plan: plan.clone(),
        network: fleet.network_words().to_owned(),
        nodes: fleet.peers().map(node_report).collect(),
        actions,
        verified,
        faults,
    })
}

fn node_report(peer: &Peer) -> NodeReport {
    let clock_error_us = peer.offset.round_trip.as_secs_f64() * 5e5;
    NodeReport { name: peer.name.clone(), machine: peer.machine.clone(), clock_error_us }
}

/// A target, and what starts it again.
pub(crate) struct TargetPeer {
    pub(crate) peer: Peer,
    pub(crate) node: Option<usize>,
    pub(crate) share: Share,
}

/// Everything that runs. Agents go before the nodes that they run in.
pub(crate) struct Fleet<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) setting: Setting<'a>,
    pub(crate) hosts: Vec<Peer>,
    pub(crate) targets: Vec<TargetPeer>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) programs: Programs,
    clock: Clock,
}

impl<'a> Fleet<'a> {
    fn start(plan: &'a Plan, setting: Setting<'a>) -> Result<Fleet<'a>, FleetError> {
        let (clock, programs) = (Clock::new(), Programs::of(plan)?);
        let (hosts, targets, nodes) = (Vec::new(), Vec::new(), Vec::new());
        let mut fleet = Fleet { plan, setting, hosts, targets, nodes, programs, clock };
        if plan.agents.is_empty() {
            fleet.start_here()?
        } else {
            fleet.meet()?
        }
        for index in 0..fleet.targets.len() {
            fleet.share(index)?;
        }
        Ok(fleet)
    }

    fn start_here(&mut self) -> Result<(), FleetError> {
        let plan = self.plan;
        let network = self.setting.has_network.then(Network::new).transpose()?;
        for number in 1..=plan.nodes() {
            self.note(&format!("starting node {number} of {}", plan.nodes()))?;
            let node = Node::new(number, network.as_ref())?;
            let index = self.nodes.len();
            self.nodes.push(node);
            let is_storage = number <= plan.storage_nodes && plan.targets.is_empty();
            for target in 0..if is_storage { plan.targets_per_node } else { 0 } {
                let place = SocketAddr::new(self.nodes[index].address(), 0);
                let name = match plan.targets_per_node {
                    1 => format!("target on node {number}"),
                    _ => format!("target {} on node {number}", target + 1),
                };
                let peer = self.agent(index, &name)?;
                let share = self.wanted(self.targets.len(), place)?;
                self.targets.push(TargetPeer { peer, node: Some(index), share });
            }
            if plan.together || number > plan.storage_nodes {
                let peer = self.agent(index, &format!("hosts on node {number}"))?;
                self.hosts.push(peer);
            }
        }
        Ok(())
    }

    /// Starts an agent in a node.
    pub(crate) fn agent(&self, node: usize, name: &str) -> Result<Peer, FleetError> {
        self.nodes[node].agent(name, &self.setting.launcher, self.clock)
    }

    fn meet(&mut self) -> Result<(), FleetError> {
        for place in &self.plan.agents {
            let secret = self.setting.secrets.get(&place.token_file).ok_or_else(|| {
                FleetError::agent(&place.name, format!("no token in {}", place.token_file))
            })?;
            let peer = Peer::meet(&place.name, &place.address, secret, self.clock)?;
            match place.serves_at {
                None => self.hosts.push(peer),
                Some(address) => {
                    let share = self.wanted(self.targets.len(), address)?;
                    self.targets.push(TargetPeer { peer, node: None, share });
                }
            }
        }
        let is_whole =
            !self.hosts.is_empty() && (!self.targets.is_empty() || !self.plan.targets.is_empty());
        let why = "needs an agent that is a host, and a target or an agent with serves_at";
        if is_whole { Ok(()) } else { Err(FleetError::plan(&self.plan.name, why)) }
    }

    /// What the target with this index is to share.
    fn wanted(&self, index: usize, address: SocketAddr) -> Result<Share, FleetError> {
        let plan = self.plan;
        let drives = (0..plan.drives_per_target).map(|drive| self.drive(index, drive));
        Ok(Share {
            nqn: format!("{NQN}-{}", index + 1),
            address,
            drives: drives.collect::<Result<_, _>>()?,
            sets: plan.sets_per_target as usize,
            block_size: plan.block_size,
            iscsi: false,
        })
    }

    /// A drive's name; a temporary one becomes a file.
    fn drive(&self, target: usize, drive: u32) -> Result<String, FleetError> {
        let Some((before, size)) = self.plan.drive.split_once("temporary:") else {
            return Ok(self.plan.drive.clone());
        };
        let wrong = |why: String| FleetError::plan(&self.plan.name, why);
        let bytes = farblock_block::size::parse(size).map_err(|error| wrong(error.to_string()))?;
        let path = self.setting.folder.join(format!("drive-{target}-{drive}.img"));
        File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .and_then(|()| if self.plan.iscsi.is_empty() { Ok(()) } else { iscsi::fill(&path) })
            .map_err(|error| wrong(format!("{} cannot be made: {error}", path.display())))?;
        Ok(format!("{before}file:{}", path.display()))
    }

    /// Has a target share its drives, at the same port as before if it had one.
    pub(crate) fn share(&mut self, index: usize) -> Result<(), FleetError> {
        let target = &mut self.targets[index];
        match target.peer.ask(&Ask::Share(target.share.clone()))? {
            Say::Sharing { address } => target.share.address = address,
            other => return Err(target.peer.surprise(&other)),
        }
        Ok(())
    }

    /// Every namespace's URL: the first of each target, then the second of each, so that few
    /// clients still use many targets.
    fn namespaces(&self) -> Vec<String> {
        if !self.plan.targets.is_empty() {
            return self.plan.targets.clone();
        }
        let of_one = match self.plan.sets_per_target {
            0 => self.plan.drives_per_target,
            sets => sets,
        };
        let url = |target: &TargetPeer, ns: u32| {
            let Share { address, nqn, .. } = &target.share;
            format!("nvme+tcp://{address}/{nqn}?ns={ns}")
        };
        (1..=of_one).flat_map(|ns| self.targets.iter().map(move |it| url(it, ns))).collect()
    }

    /// The clients of a host, dealt over the namespaces.
    pub(crate) fn clients(&self, host: usize, jobs: u32, depth: u32) -> Vec<Client> {
        let namespaces = self.namespaces();
        let narrow = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        let each = self.plan.clients_per_node as usize;
        let parts = (each * self.hosts.len()).div_ceil(namespaces.len());
        (host * each..(host + 1) * each)
            .map(|client| Client {
                hostnqn: format!("{NQN}-host-{}-{}", host + 1, client % each + 1),
                url: namespaces[client % namespaces.len()].clone(),
                queues: narrow(jobs),
                depth: narrow(depth.max(2)),
                part: [(client / namespaces.len()) as u32, parts as u32],
            })
            .collect()
    }

    fn action(&mut self, pattern: &Pattern) -> Result<ActionReport, FleetError> {
        let alone_iops = self.alone(pattern)?;
        let (mut sum, mut others) = (Sum::default(), Vec::new());
        for run in 0..self.plan.runs {
            let in_turns = !self.plan.iscsi.is_empty();
            if run == 0 || in_turns {
                self.connect(pattern)?;
            }
            self.one_run(pattern, run, &mut sum)?;
            if in_turns {
                iscsi::turn(self, pattern, run, &mut others)?;
            }
        }
        let clients = self.plan.clients_per_node * self.hosts.len() as u32;
        let report = sum.report(pattern, clients, alone_iops);
        iscsi::finish(&mut others, report.total.iops);
        Ok(ActionReport { iscsi: others, ..report })
    }

    fn connect(&mut self, pattern: &Pattern) -> Result<(), FleetError> {
        self.note(&format!("{}: connecting", pattern.name))?;
        for host in 0..self.hosts.len() {
            let clients = self.clients(host, pattern.numjobs, pattern.iodepth);
            self.hosts[host].tell(&Ask::Connect { clients })?;
        }
        for host in 0..self.hosts.len() {
            match self.hosts[host].answer(OPEN_TIME).map_err(|error| self.cause(error))? {
                Say::Done => {}
                other => return Err(self.hosts[host].surprise(&other)),
            }
        }
        Ok(())
    }

    /// Each drive by itself, where it is.
    fn alone(&mut self, pattern: &Pattern) -> Result<Option<f64>, FleetError> {
        if self.plan.alone_seconds == 0.0 || self.targets.is_empty() {
            return Ok(None);
        }
        let runtime_ms = (self.plan.alone_seconds * 1000.0) as u64;
        let load =
            Load { pattern: pattern.clone(), start_ns: None, ramp_ms: 200, runtime_ms, seed: SEED };
        let mut sum = 0.0;
        for target in 0..self.targets.len() {
            for drive in 0..self.plan.drives_per_target as usize {
                let name = &self.targets[target].peer.name;
                self.note(&format!("{}: {name}, drive {} alone", pattern.name, drive + 1))?;
                let peer = &mut self.targets[target].peer;
                peer.tell(&Ask::Alone { drive, load: load.clone() })?;
                match peer.answer(Duration::from_millis(runtime_ms) + LOAD_GRACE)? {
                    Say::Measured(measured) => sum += measured.iops,
                    other => return Err(peer.surprise(&other)),
                }
            }
        }
        Ok(Some(sum))
    }

    fn one_run(&mut self, pattern: &Pattern, run: u32, sum: &mut Sum) -> Result<(), FleetError> {
        let plan = self.plan;
        let warm_up = if run == 0 { plan.warm_up_seconds } else { 0.0 };
        let ms = |seconds: f64| (seconds * 1000.0) as u64;
        let (ramp_ms, runtime_ms) = (ms(plan.ramp_seconds + warm_up), ms(plan.runtime_seconds));
        let start = self.clock.now_ns() + START_IN.as_nanos() as u64;
        let measured = start + ramp_ms * 1_000_000;
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let seed = SEED ^ ((u64::from(run) << 32) + ((index as u64) << 16));
            let start_ns = Some(host.theirs(start));
            let pattern = pattern.clone();
            host.tell(&Ask::Load(Load { pattern, start_ns, ramp_ms, runtime_ms, seed }))?;
        }
        for target in &mut self.targets {
            let start_ns = target.peer.theirs(measured);
            let end_ns = target.peer.theirs(measured + runtime_ms * 1_000_000);
            target.peer.tell(&Ask::Meter { start_ns, end_ns })?;
        }
        let patience = START_IN + Duration::from_millis(ramp_ms + runtime_ms) + LOAD_GRACE;
        let what = match plan.runs {
            1 => pattern.name.clone(),
            runs => format!("{}, run {} of {runs}", pattern.name, run + 1),
        };
        let (results, used) = self.collect(&what, patience)?;
        let targets = self.targets.iter().map(|target| target.peer.name.clone());
        let mut cpu: Vec<(String, u64)> = targets.zip(used).collect();
        let names = self.hosts.iter().map(|host| host.name.clone());
        cpu.extend(names.zip(results.iter().map(|result| result.cpu_ns)));
        sum.add(pattern, &results, &cpu).map_err(|why| self.hosts[0].error(why))
    }

    /// Waits for what all hosts have measured, and for the processor time that targets used. The
    /// first failure is everybody's end.
    fn collect(
        &mut self,
        what: &str,
        patience: Duration,
    ) -> Result<(Vec<Measured>, Vec<u64>), FleetError> {
        let until = Instant::now() + patience;
        let mut measured: Vec<Option<Measured>> = vec![None; self.hosts.len()];
        let mut used: Vec<Option<u64>> = vec![None; self.targets.len()];
        let mut iops = vec![0.0; self.hosts.len()];
        while measured.iter().any(Option::is_none) || used.iter().any(Option::is_none) {
            self.check()?;
            for (target, used) in self.targets.iter_mut().zip(&mut used) {
                match target.peer.heard(Duration::ZERO)? {
                    Some(Say::Used { ns }) => *used = Some(ns),
                    Some(other) => return Err(target.peer.surprise(&other)),
                    None if Instant::now() < until => {}
                    None => return Err(target.peer.error("it does not say what it used")),
                }
            }
            for host in 0..self.hosts.len() {
                let heard = self.hosts[host].heard(LOOK_EVERY);
                match heard.map_err(|error| self.cause(error))? {
                    Some(Say::Progress { iops: now }) => iops[host] = now,
                    Some(Say::Measured(result)) => measured[host] = Some(result),
                    Some(other) => return Err(self.hosts[host].surprise(&other)),
                    None if Instant::now() < until => {}
                    None => return Err(self.hosts[host].error("its load does not end")),
                }
            }
            (self.setting.progress)(what, iops.iter().sum());
        }
        let measured = measured.into_iter().flatten().collect();
        Ok((measured, used.into_iter().flatten().collect()))
    }

    /// A host's failure may be that of a target that is gone, or stands still. Nothing is measured
    /// any more after this.
    pub(crate) fn cause(&mut self, error: FleetError) -> FleetError {
        let silent = self.targets.iter_mut().find_map(|target| target.peer.is_there().err());
        match silent {
            Some(FleetError::Agent { agent, why }) => {
                FleetError::agent(&agent, format!("{why} (so, at {error})"))
            }
            _ => error,
        }
    }

    /// Says what is done, unless it was called off.
    pub(crate) fn note(&mut self, what: &str) -> Result<(), FleetError> {
        (self.setting.progress)(what, 0.0);
        self.check()
    }

    pub(crate) fn check(&self) -> Result<(), FleetError> {
        if self.setting.cancel.is_cancelled() { Err(FleetError::Cancelled) } else { Ok(()) }
    }

    fn verify(
        &mut self,
    ) -> Result<(Option<Verified>, Vec<crate::report::FaultReport>), FleetError> {
        if self.plan.verify_seconds == 0.0 && self.plan.faults.is_empty() {
            return Ok((None, Vec::new()));
        }
        let (verified, faults) = crate::faults::run(self)?;
        Ok((Some(verified), faults))
    }

    fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.targets.iter().map(|target| &target.peer).chain(&self.hosts)
    }

    fn network_words(&self) -> &'static str {
        match (self.plan.agents.is_empty(), self.setting.has_network) {
            (false, _) => "their own network",
            (true, true) => "network namespaces of one machine",
            (true, false) => "the loopback of one machine",
        }
    }
}

/// The runs of an action.
#[derive(Default)]
struct Sum {
    runs: Vec<Total>,
    latencies: Latencies,
    /// By agent: the sum of the runs' per cents.
    cpu: BTreeMap<String, f64>,
}

impl Sum {
    fn add(
        &mut self,
        pattern: &Pattern,
        results: &[Measured],
        cpu: &[(String, u64)],
    ) -> Result<(), String> {
        let mut latencies = Latencies::new();
        for result in results {
            latencies.merge(&result.latencies.latencies()?);
        }
        let iops: f64 = results.iter().map(|result| result.iops).sum();
        let seconds = results.iter().map(|result| result.seconds).fold(0.0, f64::max);
        let used: u64 = cpu.iter().map(|(_, ns)| ns).sum();
        for (name, ns) in cpu {
            let percent = *ns as f64 / 1e7 / seconds.max(f64::MIN_POSITIVE);
            *self.cpu.entry(name.clone()).or_default() += percent;
        }
        self.runs.push(Total {
            iops,
            mib_per_second: iops * f64::from(pattern.block_size_bytes) / MIB,
            latency: latencies.summary(),
            cpu_us_per_io: used as f64 / 1e3 / (iops * seconds).max(f64::MIN_POSITIVE),
            reads: results.iter().map(|result| result.reads).sum(),
            writes: results.iter().map(|result| result.writes).sum(),
        });
        self.latencies.merge(&latencies);
        Ok(())
    }

    fn report(self, pattern: &Pattern, clients: u32, alone_iops: Option<f64>) -> ActionReport {
        let count = self.runs.len().max(1) as f64;
        let mean = |of: fn(&Total) -> f64| self.runs.iter().map(of).sum::<f64>() / count;
        let total = Total {
            iops: mean(|run| run.iops),
            mib_per_second: mean(|run| run.mib_per_second),
            latency: self.latencies.summary(),
            cpu_us_per_io: mean(|run| run.cpu_us_per_io),
            reads: self.runs.iter().map(|run| run.reads).sum(),
            writes: self.runs.iter().map(|run| run.writes).sum(),
        };
        let of_alone = alone_iops.filter(|alone| *alone > 0.0);
        ActionReport {
            pattern: pattern.clone(),
            clients,
            alone_iops,
            percent_of_theoretical: of_alone.map(|alone| total.iops / alone * 100.0),
            total,
            runs: self.runs,
            documents: None,
            iscsi: Vec::new(),
            cpu: self.cpu.into_iter().map(|(name, percent)| (name, percent / count)).collect(),
            latencies: RecordedLatencies::of(&self.latencies),
        }
    }
}
