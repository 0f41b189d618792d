//! The controller of a fleet: runs a plan, and reports the results.

use crate::error::FleetError;
use crate::fleet::{Fleet, Setting, TargetPeer};
use crate::message::Shared;
use crate::peer::Peer;
use crate::plan::{Plan, Wanted};
use crate::report::{
    ActionReport, FaultReport, NodeReport, Report, SCHEMA, SetReport, SetsReport, Verified,
};
use crate::sum::Sum;
use crate::{faults, guests, iscsi};
use std::time::SystemTime;

/// Runs a plan.
///
/// # Errors
/// The first failure, with the name of the agent.
pub fn run<'a>(plan: &'a Plan, setting: Setting<'a>) -> Result<Report, FleetError> {
    let board = setting.board.clone();
    board.begin(&plan.name);
    let carried_out = carry_out(plan, setting);
    board.end(carried_out.as_ref().map(drop).map_err(ToString::to_string));
    carried_out
}

fn carry_out<'a>(plan: &'a Plan, setting: Setting<'a>) -> Result<Report, FleetError> {
    plan.check()?;
    guests::check(plan, setting.guests.as_ref())?;
    let date = farblock_bench::utc(SystemTime::now());
    let mut fleet = Fleet::start(plan, setting)?;
    let mut actions = Vec::new();
    let all = plan.loads()?;
    for (number, wanted) in (1..).zip(&all) {
        fleet.doing = format!("{} ({number} of {})", wanted.pattern.name, all.len());
        actions.push(action(&mut fleet, wanted)?);
    }
    let (by_guests, guests) = guests::run(&mut fleet)?;
    actions.extend(by_guests);
    let (verified, faults) = verify(&mut fleet)?;
    Ok(Report {
        fleet_schema: SCHEMA,
        tool: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
        date,
        command_line: farblock_bench::command_line(),
        plan: plan.clone(),
        network: fleet.network_words().to_owned(),
        nodes: fleet.peers().map(node_report).collect(),
        sets: fleet.targets.iter().filter_map(sets_report).collect(),
        actions,
        guests,
        verified,
        faults,
    })
}

fn action(fleet: &mut Fleet<'_>, wanted: &Wanted) -> Result<ActionReport, FleetError> {
    let pattern = &wanted.pattern;
    let alone_iops = fleet.alone(pattern)?;
    let (mut sum, mut others) = (Sum::default(), Vec::new());
    for run in 0..fleet.plan.runs {
        let in_turns = !fleet.plan.iscsi.is_empty();
        if run == 0 || in_turns {
            fleet.connect(pattern, wanted.vm)?;
        }
        fleet.one_run(pattern, run, (None, ""), &mut sum)?;
        if in_turns {
            iscsi::turn(fleet, pattern, run, &mut others)?;
        }
    }
    let clients = fleet.plan.clients_per_node * fleet.hosts.len() as u32;
    let report = sum.report(pattern, clients, alone_iops);
    iscsi::finish(&mut others, report.total.iops);
    let documents = wanted.documents.clone();
    Ok(ActionReport { iscsi: others, vm: wanted.vm, documents, ..report })
}

fn verify(fleet: &mut Fleet<'_>) -> Result<(Option<Verified>, Vec<FaultReport>), FleetError> {
    if fleet.plan.verify_seconds == 0.0 && fleet.plan.faults.is_empty() {
        return Ok((None, Vec::new()));
    }
    let (verified, faults) = faults::run(fleet)?;
    Ok((Some(verified), faults))
}

fn node_report(peer: &Peer) -> NodeReport {
    let clock_error_us = peer.offset.round_trip.as_secs_f64() * 5e5;
    NodeReport { name: peer.name.clone(), machine: peer.machine.clone(), clock_error_us }
}

/// The report on the stripe sets of a target, if it has any.
fn sets_report(target: &TargetPeer) -> Option<SetsReport> {
    let TargetPeer { peer, share, shared, not_by_node, .. } = target;
    let set = |shared: &Shared| SetReport {
        drives: shared.drives.iter().filter_map(|&at| share.drives.get(at).cloned()).collect(),
        node: shared.node,
        processors: shared.processors.clone(),
    };
    (share.sets > 0).then(|| SetsReport {
        target: peer.name.clone(),
        sets: shared.iter().map(set).collect(),
        not_by_node: not_by_node.clone(),
    })
}
