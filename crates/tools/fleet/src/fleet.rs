//! A running fleet: its agents, nodes and targets, and the requests to them.

use crate::clock::Clock;
use crate::error::FleetError;
use crate::guest_files::GuestFiles;
use crate::limits::{FleetTimeouts, START_IN, START_IN_FOR_CLIENT, VM_REQUEST_BYTES, VM_RING};
use crate::live::{Board, LiveHost};
use crate::message::{Ask, Client, Load, Measured, Say, Share, Shared, Vm};
use crate::network::Network;
use crate::node::{Launcher, Node};
use crate::peer::{Peer, Secret, Terms};
use crate::plan::Plan;
use crate::step::Step;
use crate::sum::Sum;
use crate::temporary;
use crate::tgt::Programs;
use crate::waited::Waited;
use farblock_bench::{Cancel, Pattern};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The prefix of the names of subsystems. The number of the target or of the drives follows.
pub(crate) const NQN: &str = "nqn.2026-11.org.farblock:fleet";
/// The number of controller identifiers of each target, if several targets have the same subsystem.
const CONTROLLERS_OF_ONE: u16 = 4096;
/// The interval of checks for messages of agents.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The seed of random addresses.
const SEED: u64 = 0x666c_6565_7421;

/// The environment in which a plan runs.
pub struct Setting<'a> {
    /// The program to start as an agent.
    pub launcher: Launcher,
    /// Whether this process may create network namespaces, one for each node.
    pub has_network: bool,
    /// An empty folder for drives that are files.
    pub folder: PathBuf,
    /// The files to boot guests from, for a plan with guests.
    pub guests: Option<GuestFiles>,
    /// The tokens of listening agents, by the name of the token file.
    pub secrets: BTreeMap<String, Secret>,
    /// The time limits of the controller for its agents.
    pub patience: FleetTimeouts,
    /// Cancels the run from another thread.
    pub cancel: Cancel,
    /// The state of the run, for observers.
    pub board: Board,
    /// The controller calls this at intervals with the current step and speed.
    pub progress: &'a mut dyn FnMut(&Step<'_>),
}

/// A target, with the parameters to start it again.
pub(crate) struct TargetPeer {
    pub(crate) peer: Peer,
    pub(crate) node: Option<usize>,
    pub(crate) share: Share,
    /// The namespaces that the target shares.
    pub(crate) shared: Vec<Shared>,
    pub(crate) not_by_node: Option<String>,
}

impl TargetPeer {
    fn new(peer: Peer, node: Option<usize>, share: Share) -> TargetPeer {
        TargetPeer { peer, node, share, shared: Vec::new(), not_by_node: None }
    }

    /// Makes the target share its drives, at its previous port if it had one.
    fn share(&mut self) -> Result<(), FleetError> {
        match self.peer.ask(&Ask::Share(self.share.clone()))? {
            Say::Sharing { addresses, namespaces, not_by_node }
                if !addresses.is_empty() && !namespaces.is_empty() =>
            {
                (self.share.address, self.share.more) = (addresses[0], addresses[1..].to_vec());
                (self.shared, self.not_by_node) = (namespaces, not_by_node);
                Ok(())
            }
            other => Err(self.peer.surprise(&other)),
        }
    }

    fn started(mut self) -> Result<TargetPeer, FleetError> {
        self.share()?;
        Ok(self)
    }
}

/// All running agents and their nodes. The agents are dropped before their nodes.
pub(crate) struct Fleet<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) setting: Setting<'a>,
    pub(crate) hosts: Vec<Peer>,
    pub(crate) targets: Vec<TargetPeer>,
    /// The agent with the drives that several targets share.
    pub(crate) drives: Option<TargetPeer>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) programs: Programs,
    /// The name of the current step.
    pub(crate) doing: String,
    terms: Terms,
}

impl<'a> Fleet<'a> {
    pub(crate) fn start(plan: &'a Plan, setting: Setting<'a>) -> Result<Fleet<'a>, FleetError> {
        let Setting { patience, ref cancel, .. } = setting;
        let terms = Terms { clock: Clock::new(), patience, cancel: cancel.clone() };
        let programs = Programs::of(plan)?;
        let (hosts, targets, nodes) = (Vec::new(), Vec::new(), Vec::new());
        let (drives, doing) = (None, format!("starting {} nodes", plan.nodes()));
        let mut fleet =
            Fleet { plan, setting, hosts, targets, drives, nodes, programs, doing, terms };
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
        let network = self.setting.has_network.then(|| Network::new(plan.paths > 1)).transpose()?;
        if plan.paths > 1 {
            self.start_drives(network.as_ref())?;
        }
        for number in 1..=plan.nodes() - u32::from(plan.paths > 1) {
            self.note(&format!("node {number}"))?;
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
                self.targets.push(TargetPeer::new(peer, Some(index), share));
            }
            if plan.together || number > plan.storage_nodes {
                let peer = self.agent(index, &format!("hosts on node {number}"))?;
                self.hosts.push(peer);
            }
        }
        Ok(())
    }

    /// Starts the node with the drives that several targets share.
    fn start_drives(&mut self, network: Option<&Network>) -> Result<(), FleetError> {
        let plan = self.plan;
        let node = Node::new(plan.nodes(), network)?;
        let address = SocketAddr::new(node.storage_address(), 0);
        self.nodes.push(node);
        let peer = self.agent(self.nodes.len() - 1, &format!("drives on node {}", plan.nodes()))?;
        let each = 0..plan.drives_of_target();
        let of = |set: u32| each.clone().map(move |drive| (set as usize, drive));
        let sets = plan.storage_nodes / plan.paths * plan.targets_per_node;
        let drives = (0..sets).flat_map(of).map(|(set, drive)| self.drive(set, drive));
        let share = Share {
            nqn: format!("{NQN}-drives"),
            address,
            more: Vec::new(),
            drives: drives.collect::<Result<_, _>>()?,
            sets: 0,
            by_node: false,
            block_size: plan.block_size,
            controller_ids: None,
            iscsi: false,
        };
        let node = Some(self.nodes.len() - 1);
        self.drives = Some(TargetPeer::new(peer, node, share).started()?);
        Ok(())
    }

    pub(crate) fn agent(&self, node: usize, name: &str) -> Result<Peer, FleetError> {
        let Setting { launcher, folder, .. } = &self.setting;
        self.nodes[node].agent(name, launcher, folder, &self.terms)
    }

    fn meet(&mut self) -> Result<(), FleetError> {
        for place in &self.plan.agents {
            let secret = self.setting.secrets.get(&place.token_file).ok_or_else(|| {
                FleetError::agent(&place.name, format!("no token in {}", place.token_file))
            })?;
            let peer = Peer::meet(&place.name, &place.address, secret, &self.terms)?;
            match place.serves_at {
                None => self.hosts.push(peer),
                Some(address) => {
                    let share = self.wanted(self.targets.len(), address)?;
                    self.targets.push(TargetPeer::new(peer, None, share));
                }
            }
        }
        let is_whole =
            !self.hosts.is_empty() && (!self.targets.is_empty() || !self.plan.targets.is_empty());
        let why =
            "needs an agent without serves_at as a host, and a target or an agent with serves_at";
        if is_whole { Ok(()) } else { Err(FleetError::plan(&self.plan.name, why)) }
    }

    fn wanted(&self, index: usize, address: SocketAddr) -> Result<Share, FleetError> {
        let plan = self.plan;
        let (set, way) = plan.set_and_way(index);
        let drive = |drive: u32| match &self.drives {
            None => self.drive(index, drive),
            Some(drives) => {
                let Share { address, nqn, .. } = &drives.share;
                let ns = set * plan.drives_of_target() as usize + drive as usize + 1;
                Ok(format!("nvme+tcp://{address}/{nqn}?ns={ns}"))
            }
        };
        // Targets with the same subsystem need separate ranges of controller identifiers.
        let first = way as u16 * CONTROLLERS_OF_ONE + 1;
        Ok(Share {
            nqn: format!("{NQN}-{}", set + 1),
            address,
            more: Vec::new(),
            drives: (0..plan.drives_of_target()).map(drive).collect::<Result<_, _>>()?,
            sets: plan.sets_per_target as usize,
            by_node: plan.sets_by_node,
            block_size: plan.block_size,
            controller_ids: (plan.paths > 1).then_some([first, first + CONTROLLERS_OF_ONE - 1]),
            iscsi: false,
        })
    }

    /// The spec of a drive. For a temporary drive, creates a file.
    fn drive(&self, target: usize, drive: u32) -> Result<String, FleetError> {
        let name = self.plan.drive_named(drive);
        let Some((before, size)) = name.split_once("temporary:") else {
            return Ok(name.to_owned());
        };
        let wrong = |why: String| FleetError::plan(&self.plan.name, why);
        let bytes = farblock_block::size::parse(size).map_err(|error| wrong(error.to_string()))?;
        if bytes == 0 || i64::try_from(bytes).is_err() {
            return Err(wrong(format!("temporary:{size} is not a valid size of a drive")));
        }
        let path = self.setting.folder.join(format!("drive-{target}-{drive}.img"));
        temporary::create(&path, bytes, !self.plan.iscsi.is_empty())
            .map_err(|error| wrong(format!("cannot create {}: {error}", path.display())))?;
        Ok(format!("{before}file:{}", path.display()))
    }

    /// Makes a target share its drives, at its previous port if it had one.
    pub(crate) fn share(&mut self, index: usize) -> Result<(), FleetError> {
        self.targets[index].share()
    }

    /// The URLs of every namespace, one for each path. The first namespaces of all targets come
    /// first, then the second ones, so that even a few clients use many targets.
    fn namespaces(&self) -> Vec<Vec<String>> {
        if !self.plan.targets.is_empty() {
            return self.plan.targets.iter().map(|url| vec![url.clone()]).collect();
        }
        let mut same: Vec<Vec<&TargetPeer>> = Vec::new();
        for (index, target) in self.targets.iter().enumerate() {
            let (set, _) = self.plan.set_and_way(index);
            same.resize_with(same.len().max(set + 1), Vec::new);
            same[set].push(target);
        }
        let most = self.targets.iter().map(|target| target.shared.len()).max().unwrap_or(0);
        let ways = |at: usize| {
            let way = |it: &&TargetPeer| it.shared.get(at).map(|shared| shared.url.clone());
            let ways = same.iter().map(move |same| same.iter().filter_map(way).collect());
            ways.collect::<Vec<Vec<String>>>()
        };
        let all = (0..most).flat_map(ways);
        all.filter(|ways| !ways.is_empty()).collect()
    }

    /// The clients of a host, distributed over the namespaces.
    pub(crate) fn clients(&self, host: usize, jobs: u32, depth: u32) -> Vec<Client> {
        let namespaces = self.namespaces();
        let narrow = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        let each = self.plan.clients_per_node as usize;
        let parts = (each * self.hosts.len()).div_ceil(namespaces.len());
        let client = |client: usize| {
            let mut ways = namespaces[client % namespaces.len()].clone();
            // The host uses the first path while it is available.
            let first = client % each % ways.len();
            ways.rotate_left(first);
            Client {
                hostnqn: format!("{NQN}-host-{}-{}", host + 1, client % each + 1),
                url: ways.remove(0),
                queues: narrow(jobs),
                depth: narrow(depth.max(2)),
                part: [(client / namespaces.len()) as u32, parts as u32],
                vm: None,
                others: ways,
            }
        };
        (host * each..(host + 1) * each).map(client).collect()
    }

    /// The client that connects the disk of a guest. Like other clients, guests are distributed
    /// over the namespaces.
    pub(crate) fn guest(&self, guest: usize) -> Client {
        let namespaces = self.namespaces();
        let parts = (self.plan.guests as usize).div_ceil(namespaces.len());
        Client {
            hostnqn: format!("{NQN}-guest-{}", guest + 1),
            url: namespaces[guest % namespaces.len()][0].clone(),
            queues: 1,
            depth: VM_RING,
            part: [(guest / namespaces.len()) as u32, parts as u32],
            vm: None,
            others: Vec::new(),
        }
    }

    pub(crate) fn connect(&mut self, pattern: &Pattern, is_vm: bool) -> Result<(), FleetError> {
        let vm = is_vm.then(|| vm(pattern));
        self.connect_as(pattern, |client| client.vm = vm)
    }

    pub(crate) fn connect_to(&mut self, pattern: &Pattern, url: &str) -> Result<(), FleetError> {
        self.connect_as(pattern, |client| url.clone_into(&mut client.url))
    }

    fn connect_as(
        &mut self,
        pattern: &Pattern,
        change: impl Fn(&mut Client),
    ) -> Result<(), FleetError> {
        self.note("connecting")?;
        for host in 0..self.hosts.len() {
            let mut clients = self.clients(host, pattern.numjobs, pattern.iodepth);
            clients.iter_mut().for_each(&change);
            self.hosts[host].tell(&Ask::Connect { clients })?;
        }
        for host in 0..self.hosts.len() {
            match self.hosts[host]
                .answer(self.setting.patience.open)
                .map_err(|error| self.cause(error))?
            {
                Say::Done => {}
                other => return Err(self.hosts[host].surprise(&other)),
            }
        }
        Ok(())
    }

    /// Measures each drive alone, on its own node. Returns the sum of their IOPS.
    pub(crate) fn alone(&mut self, pattern: &Pattern) -> Result<Option<f64>, FleetError> {
        if self.plan.alone_seconds == 0.0 || self.targets.is_empty() {
            return Ok(None);
        }
        let runtime_ms = (self.plan.alone_seconds * 1000.0) as u64;
        let load =
            Load { pattern: pattern.clone(), start_ns: None, ramp_ms: 200, runtime_ms, seed: SEED };
        let mut sum = 0.0;
        for target in 0..self.targets.len() {
            for drive in 0..self.plan.drives_of_target() as usize {
                let name = &self.targets[target].peer.name;
                self.note(&format!("drive {} of {name} alone", drive + 1))?;
                let patience = Duration::from_millis(runtime_ms) + self.setting.patience.grace;
                let peer = &mut self.targets[target].peer;
                peer.tell(&Ask::Alone { drive, load: load.clone() })?;
                match peer.answer(patience)? {
                    Say::Measured(measured) => sum += measured.iops,
                    other => return Err(peer.surprise(&other)),
                }
            }
        }
        Ok(Some(sum))
    }

    /// Runs the load once on all hosts. `process` is the process whose processor time the target's
    /// agent measures; `None`: the agent's own process. `whose` follows the run's number in
    /// messages, and is empty for NVMe.
    pub(crate) fn one_run(
        &mut self,
        pattern: &Pattern,
        run: u32,
        (process, whose): (Option<u32>, &str),
        sum: &mut Sum,
    ) -> Result<(), FleetError> {
        let plan = self.plan;
        let warm_up = if run == 0 { plan.warm_up_seconds } else { 0.0 };
        let ms = |seconds: f64| (seconds * 1000.0) as u64;
        let (ramp_ms, runtime_ms) = (ms(plan.ramp_seconds + warm_up), ms(plan.runtime_seconds));
        self.agree_on_time()?;
        let start_in = start_in(plan.clients_per_node, self.hosts.iter().map(Peer::address));
        let start = self.terms.clock.now_ns() + start_in.as_nanos() as u64;
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
            target.peer.tell(&Ask::Meter { start_ns, end_ns, process })?;
        }
        let patience =
            start_in + Duration::from_millis(ramp_ms + runtime_ms) + self.setting.patience.grace;
        let part = format!("run {} of {}{whose}", run + 1, plan.runs);
        // A load with a fixed rate has an unknown, smaller number of I/Os in flight.
        let in_flight = (pattern.rate_iops.is_none())
            .then(|| plan.clients_per_node * pattern.numjobs * pattern.iodepth);
        let (results, used) = self.collect(&part, in_flight.map(f64::from), patience)?;
        let targets = self.targets.iter().map(|target| target.peer.name.clone());
        let mut cpu: Vec<(String, u64)> = targets.zip(used).collect();
        let names = self.hosts.iter().map(|host| host.name.clone());
        cpu.extend(names.zip(results.iter().map(|result| result.cpu_ns)));
        sum.add(pattern, &results, &cpu).map_err(|why| self.hosts[0].error(why))
    }

    /// Waits for the results of all hosts, and for the processor time of the targets. The first
    /// failure ends the run on all hosts.
    fn collect(
        &mut self,
        part: &str,
        in_flight: Option<f64>,
        patience: Duration,
    ) -> Result<(Vec<Measured>, Vec<u64>), FleetError> {
        let mut waited = Waited::new();
        let mut measured: Vec<Option<Measured>> = vec![None; self.hosts.len()];
        let mut used: Vec<Option<u64>> = vec![None; self.targets.len()];
        let mut iops = vec![0.0; self.hosts.len()];
        while measured.iter().any(Option::is_none) || used.iter().any(Option::is_none) {
            self.check()?;
            let is_late = waited.so_far() > patience;
            for (target, used) in self.targets.iter_mut().zip(&mut used) {
                match target.peer.heard(Duration::ZERO)? {
                    Some(Say::Used { ns }) => *used = Some(ns),
                    Some(Say::Progress { .. }) => {}
                    Some(other) => return Err(target.peer.surprise(&other)),
                    None if used.is_some() => {}
                    None if !is_late => target.peer.check_silence()?,
                    None => {
                        return Err(target
                            .peer
                            .error("the target does not report its processor time"));
                    }
                }
            }
            for host in 0..self.hosts.len() {
                let heard = self.hosts[host].heard(LOOK_EVERY);
                match heard.map_err(|error| self.cause(error))? {
                    Some(Say::Progress { iops: now }) => iops[host] = now,
                    Some(Say::Measured(result)) => measured[host] = Some(result),
                    Some(other) => return Err(self.hosts[host].surprise(&other)),
                    None if measured[host].is_some() => {}
                    None if !is_late => self.check_silence(host)?,
                    None => return Err(self.hosts[host].error("the load does not end")),
                }
            }
            let host = |(host, measured): (usize, &Option<Measured>)| LiveHost {
                name: self.hosts[host].name.clone(),
                iops: if measured.is_some() { 0.0 } else { iops[host] },
                latency_us: in_flight.filter(|_| iops[host] > 0.0).map(|it| it / iops[host] * 1e6),
                is_done: measured.is_some(),
                ..LiveHost::default()
            };
            let hosts = measured.iter().enumerate().map(host).collect();
            self.show(part, hosts);
        }
        let measured = measured.into_iter().flatten().collect();
        Ok((measured, used.into_iter().flatten().collect()))
    }

    /// Finds out why a host sends no messages: the host may hang, or wait for a target that hangs.
    fn check_silence(&mut self, host: usize) -> Result<(), FleetError> {
        self.hosts[host].check_silence().map_err(|error| self.cause(error))
    }

    /// Measures all clocks again, because clocks drift, and a machine may have slept.
    fn agree_on_time(&mut self) -> Result<(), FleetError> {
        let targets = self.targets.iter_mut().map(|target| &mut target.peer);
        for peer in targets.chain(&mut self.hosts) {
            peer.agree_on_time()?;
        }
        Ok(())
    }

    /// Finds the cause of a host's failure: a target may be dead, or may hang. The run cannot
    /// continue after this.
    pub(crate) fn cause(&mut self, error: FleetError) -> FleetError {
        let targets = self.drives.iter_mut().chain(&mut self.targets);
        let silent = { targets }.find_map(|target| target.peer.is_there().err());
        match silent {
            Some(FleetError::Agent { agent, why }) => {
                FleetError::agent(&agent, format!("{why} (this caused: {error})"))
            }
            _ => error,
        }
    }

    /// Reports the start of a step. Returns an error if the run was cancelled.
    pub(crate) fn begin(&mut self, what: &str) -> Result<(), FleetError> {
        what.clone_into(&mut self.doing);
        self.note("")
    }

    /// Reports the progress of the step. Returns an error if the run was cancelled.
    pub(crate) fn note(&mut self, part: &str) -> Result<(), FleetError> {
        let step = Step { what: &self.doing, part, iops: 0.0 };
        (self.setting.progress)(&step);
        self.setting.board.step(&step);
        self.check()
    }

    /// The name of the current step.
    pub(crate) fn doing(&self) -> &str {
        &self.doing
    }

    /// Reports the state of the hosts in this step.
    pub(crate) fn show(&mut self, part: &str, hosts: Vec<LiveHost>) {
        let iops = hosts.iter().map(|host| host.iops).sum();
        let step = Step { what: &self.doing, part, iops };
        (self.setting.progress)(&step);
        self.setting.board.hosts(&step, hosts);
    }

    pub(crate) fn check(&self) -> Result<(), FleetError> {
        if self.setting.cancel.is_cancelled() { Err(FleetError::Cancelled) } else { Ok(()) }
    }

    /// Checks that all targets are alive, and have sent no message.
    pub(crate) fn check_targets(&mut self) -> Result<(), FleetError> {
        for target in self.drives.iter_mut().chain(&mut self.targets) {
            if let Some(say) = target.peer.heard(Duration::ZERO)? {
                return Err(target.peer.surprise(&say));
            }
        }
        Ok(())
    }

    /// Like [`Fleet::check_targets`], but checks the hosts, too.
    pub(crate) fn check_all(&mut self) -> Result<(), FleetError> {
        self.check_targets()?;
        for host in 0..self.hosts.len() {
            let heard = self.hosts[host].heard(Duration::ZERO);
            if let Some(say) = heard.map_err(|error| self.cause(error))? {
                return Err(self.hosts[host].surprise(&say));
            }
        }
        Ok(())
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> {
        let targets = self.drives.iter().chain(&self.targets);
        targets.map(|target| &target.peer).chain(&self.hosts)
    }

    pub(crate) fn network_words(&self) -> &'static str {
        match (self.plan.agents.is_empty(), self.setting.has_network) {
            (false, _) => "their own network",
            (true, true) => "network namespaces of one machine",
            (true, false) => "the loopback of one machine",
        }
    }
}

/// The parameters of a virtual machine's disk that the requests of the load need.
fn vm(pattern: &Pattern) -> Vm {
    let bytes = pattern.block_size_bytes;
    let requests = pattern.iodepth.saturating_mul(bytes.div_ceil(VM_REQUEST_BYTES));
    let depth = u16::try_from(requests).unwrap_or(u16::MAX).min(VM_RING);
    Vm { depth, request_bytes: bytes.min(VM_REQUEST_BYTES) }
}

/// The time between the controller's order to start and the start. Each client on the machine with
/// the most hosts adds to it: that machine probably opens its queues last. `hosts` are the
/// addresses of the hosts; `None` means this machine.
fn start_in(clients_per_node: u32, hosts: impl Iterator<Item = Option<IpAddr>>) -> Duration {
    let mut on_each = BTreeMap::<Option<IpAddr>, u32>::new();
    for at in hosts {
        *on_each.entry(at.filter(|ip| !ip.to_canonical().is_loopback())).or_default() += 1;
    }
    let hosts = on_each.into_values().max().unwrap_or(0);
    START_IN + START_IN_FOR_CLIENT.saturating_mul(clients_per_node.saturating_mul(hosts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    #[test]
    fn many_clients_get_more_time_to_start() {
        let here = |hosts| iter::repeat_n(None, hosts);
        assert_eq!(start_in(1, here(1)), START_IN + START_IN_FOR_CLIENT);
        // The cluster of the plan `hci-12` on two processors, which started 346 ms late.
        let many = start_in(48, here(12));
        assert!(many >= START_IN + Duration::from_secs(2), "{many:?}");
        let at = |last| Some(IpAddr::from([192, 0, 2, last]));
        let elsewhere = start_in(48, (0..12).map(at));
        assert_eq!(elsewhere, start_in(48, here(1)), "the delay with each host on its own machine");
        let loopback = Some(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(start_in(1, [None, loopback, at(1)].into_iter()), start_in(1, here(2)));
    }
}
