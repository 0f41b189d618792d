//! Hosts that write, read and compare, while faults hit the targets.

use crate::error::FleetError;
use crate::fleet::Fleet;
use crate::limits::RECOVERY_TIME;
use crate::live::LiveHost;
use crate::message::{Ask, Looked, Say};
use crate::plan::Fault;
use crate::report::{FaultReport, Verified};
use crate::waited::Waited;
use std::time::{Duration, Instant};

/// The interval between two checks of the hosts.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The rate of a slow network.
const SLOW: &str = "8mbit";

/// Makes all hosts verify their data, injects the faults at every target in turn, and then reads
/// all data once more.
pub(crate) fn run(fleet: &mut Fleet<'_>) -> Result<(Verified, Vec<FaultReport>), FleetError> {
    fleet.begin("verifying")?;
    fleet.note("connecting")?;
    let writers = fleet.plan.writers as usize;
    for host in 0..fleet.hosts.len() {
        // Each writer needs one queue, with one request at a time.
        let clients = fleet.clients(host, fleet.plan.writers, 16);
        fleet.hosts[host].tell(&Ask::Verify { clients, writers })?;
    }
    for host in 0..fleet.hosts.len() {
        let patience = fleet.setting.patience.open;
        let said = fleet.hosts[host].answer(patience).map_err(|error| fleet.cause(error))?;
        if said != Say::Done {
            return Err(fleet.hosts[host].surprise(&said));
        }
    }
    let mut watch = Watch::default();
    watch.pass(fleet, Duration::from_secs_f64(fleet.plan.verify_seconds))?;
    let mut faults = Vec::new();
    for target in 0..fleet.targets.len() {
        for fault in fleet.plan.faults.clone() {
            let has_network = fleet.targets[target]
                .node
                .is_some_and(|node| fleet.nodes[node].namespace().is_some());
            if fault == Fault::Kill || has_network {
                faults.push(harm(fleet, target, fault)?);
            }
        }
    }
    fleet.begin("reading all data again")?;
    let mut verified = Verified::default();
    for host in &mut fleet.hosts {
        host.tell(&Ask::EndVerify)?;
    }
    for host in 0..fleet.hosts.len() {
        let said = fleet.hosts[host].answer(RECOVERY_TIME).map_err(|error| fleet.cause(error))?;
        let host = &fleet.hosts[host];
        let looked = match said {
            Say::Looked(looked) => looked,
            other => return Err(host.surprise(&other)),
        };
        verified.writes += looked.writes;
        verified.reads += looked.reads;
        verified.failed += looked.failed;
        verified.lost += looked.lost;
        let wrong = looked.wrong.map(|wrong| format!("{}: {wrong}", host.name));
        verified.wrong = verified.wrong.or(wrong);
    }
    Ok((verified, faults))
}

fn harm(fleet: &mut Fleet<'_>, target: usize, fault: Fault) -> Result<FaultReport, FleetError> {
    let name = fleet.targets[target].peer.name.clone();
    fleet.begin(&format!("{} {name}", fault.name()))?;
    let mut watch = Watch::default();
    // Start while all paths are connected. Earlier pauses must not count for this fault.
    watch.until_whole(fleet)?;
    let before = watch.sum();
    let mut watch = Watch::default();
    let began = Instant::now();
    let time = Duration::from_secs_f64(fleet.plan.fault_seconds);
    match fault {
        Fault::Kill => {
            watch.look(fleet)?;
            fleet.targets[target].peer.kill();
            restart(fleet, target, &name)?;
        }
        Fault::Cut => {
            cut(fleet, target, true)?;
            watch.pass(fleet, time)?;
            cut(fleet, target, false)?;
        }
        Fault::Slow => {
            slow(fleet, target, Some(SLOW))?;
            watch.pass(fleet, time)?;
            slow(fleet, target, None)?;
        }
    }
    watch.until_whole(fleet)?;
    let after = watch.sum();
    Ok(FaultReport {
        target: name,
        fault,
        pause_seconds: watch.longest.as_secs_f64(),
        whole_again_seconds: began.elapsed().as_secs_f64(),
        failed: after.failed - before.failed,
        lost: after.lost - before.lost,
    })
}

fn restart(fleet: &mut Fleet<'_>, target: usize, name: &str) -> Result<(), FleetError> {
    let node = fleet.targets[target].node;
    let node =
        node.ok_or_else(|| FleetError::agent(name, "this process did not start the agent"))?;
    fleet.targets[target].peer = fleet.agent(node, name)?;
    fleet.share(target)
}

fn cut(fleet: &Fleet<'_>, target: usize, is_cut: bool) -> Result<(), FleetError> {
    let node = fleet.targets[target].node.map(|node| &fleet.nodes[node]);
    node.and_then(|node| node.namespace()).map_or(Ok(()), |network| network.cut(is_cut))
}

fn slow(fleet: &Fleet<'_>, target: usize, rate: Option<&str>) -> Result<(), FleetError> {
    let node = fleet.targets[target].node.map(|node| &fleet.nodes[node]);
    node.and_then(|node| node.namespace()).map_or(Ok(()), |network| network.slow(rate))
}

/// The results of the checks of all hosts so far.
#[derive(Default)]
struct Watch {
    last: Vec<Looked>,
    at: Option<Instant>,
    longest: Duration,
}

impl Watch {
    fn look(&mut self, fleet: &mut Fleet<'_>) -> Result<Vec<Looked>, FleetError> {
        fleet.check()?;
        fleet.check_targets()?;
        let mut looks = Vec::new();
        for host in 0..fleet.hosts.len() {
            match fleet.hosts[host].ask(&Ask::Look).map_err(|error| fleet.cause(error))? {
                Say::Looked(looked) => looks.push(looked),
                other => return Err(fleet.hosts[host].surprise(&other)),
            }
        }
        let longest = looks.iter().map(|looked| looked.longest_us).max().unwrap_or(0);
        // Ignore the longest operation of the first check: it may have started before this watch.
        if !self.last.is_empty() {
            self.longest = self.longest.max(Duration::from_micros(longest));
        }
        // Read the clock here, because checking many hosts takes time.
        let now = Instant::now();
        let seconds = self.at.replace(now).map(|at| (now - at).as_secs_f64());
        let host = |(index, now): (usize, &Looked)| LiveHost {
            name: fleet.hosts[index].name.clone(),
            iops: self.last.get(index).zip(seconds).map_or(0.0, |(before, seconds)| {
                let done = (now.reads + now.writes).saturating_sub(before.reads + before.writes);
                done as f64 / seconds.max(LOOK_EVERY.as_secs_f64())
            }),
            latency_us: Some(now.longest_us as f64),
            is_done: false,
            failed: now.failed,
            lost: now.lost,
            paths: Some([now.live, now.paths]),
        };
        let hosts = looks.iter().enumerate().map(host).collect();
        fleet.show("", hosts);
        Ok(std::mem::replace(&mut self.last, looks))
    }

    /// Checks the hosts repeatedly until this time has passed.
    fn pass(&mut self, fleet: &mut Fleet<'_>, time: Duration) -> Result<(), FleetError> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.look(fleet)?;
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits until all paths are connected, no writer waits, and every host writes.
    fn until_whole(&mut self, fleet: &mut Fleet<'_>) -> Result<(), FleetError> {
        let is_whole = |(before, now): (&Looked, &Looked)| {
            now.waiting == 0 && now.writes > before.writes && now.live == now.paths
        };
        let mut waited = Waited::new();
        loop {
            let before = self.look(fleet)?;
            if before.len() == self.last.len() && before.iter().zip(&self.last).all(is_whole) {
                return Ok(());
            }
            if waited.so_far() > RECOVERY_TIME {
                let seconds = RECOVERY_TIME.as_secs();
                let why = format!("I/O does not resume within {seconds} s");
                return Err(FleetError::agent(fleet.doing(), why));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn sum(&self) -> Looked {
        self.last.iter().fold(Looked::default(), |sum, looked| Looked {
            failed: sum.failed + looked.failed,
            lost: sum.lost + looked.lost,
            ..sum
        })
    }
}
