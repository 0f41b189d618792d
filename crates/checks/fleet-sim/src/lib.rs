//! Simulates a fleet of any size: the control plane of all its hosts and targets, in virtual time
//! and one thread.
//!
//! The simulation runs the code of farblock. Each target is a
//! [`Target`](farblock_target::Target). Each host has its own control loop and
//! [`Disk`](farblock_host::Disk)s: it connects, sends keep-alives, backs off and reconnects.
//! Targets admit or refuse it. One seed determines the simulated network and clocks
//! (`farblock_reactor::sim`), so a run can be repeated.
//!
//! # Scaled down
//!
//! Namespaces store no data. Hosts have one I/O queue of eight commands for each disk, and targets
//! have one core. All other settings are the defaults.
//!
//! # Assumptions
//!
//! Code takes no virtual time, with one exception: a target takes the time given in the
//! [`Settings`] for each connection and for each piece of data that a connection delivers. A target
//! never handles two of these at the same time. The defaults of these times are assumptions, not
//! measurements. The network delays data by up to 100 µs, loses no data, and has no bandwidth
//! limit.

#![forbid(unsafe_code)]

mod error;
mod limits;
mod picture;
mod report;
mod scene;
mod settings;
mod stage;

pub use error::SimulationError;
pub use report::{
    Connections, FleetReport, SIMULATION_SCHEMA, SceneReport, SimulationReport, Times,
};
pub use settings::Settings;

use farblock_bench::Cancel;
use scene::Scene;
use stage::Stage;

/// Simulates one fleet after the other. At intervals, calls `show` with the name of the current
/// scene (the start of all hosts, or a fault and the recovery) and its progress.
///
/// # Errors
/// Fails if the caller has cancelled the simulation, or if a step fails that must always succeed.
pub fn simulate(
    fleets: &[Settings],
    cancel: &Cancel,
    show: &mut dyn FnMut(&str, &str),
) -> Result<SimulationReport, SimulationError> {
    let fleets = fleets.iter().map(|settings| simulate_one(*settings, cancel, show));
    Ok(SimulationReport {
        schema: SIMULATION_SCHEMA.to_owned(),
        tool: concat!("farblock ", env!("CARGO_PKG_VERSION")).to_owned(),
        fleets: fleets.collect::<Result<_, _>>()?,
    })
}

fn simulate_one(
    settings: Settings,
    cancel: &Cancel,
    show: &mut dyn FnMut(&str, &str),
) -> Result<FleetReport, SimulationError> {
    let mut stage = Stage::new(settings)?;
    let mut scenes = Vec::new();
    for scene in Scene::all(&settings) {
        match scene::play(&mut stage, settings, scene, cancel, show) {
            Ok(report) => scenes.push(report),
            Err(error) => {
                stage.abandon();
                return Err(error);
            }
        }
        let until = stage.now() + limits::REST;
        while stage.now() < until {
            stage.turn(until)?;
        }
    }
    let trace = format!("{:016x}", stage.trace());
    stage.finish()?;
    Ok(FleetReport { settings, scenes, trace })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> FleetReport {
        let fleets = [text.parse().expect("valid settings")];
        let report =
            simulate(&fleets, &Cancel::new(), &mut |_, _| {}).expect("the simulation runs");
        assert!(!report.has_errors(), "{report:?}");
        report.fleets.into_iter().next().expect("one fleet")
    }

    /// Clears the values of a report that depend on this machine, not on the seed.
    fn virtually(mut report: FleetReport) -> FleetReport {
        for scene in &mut report.scenes {
            (scene.cpu_seconds, scene.real_seconds, scene.memory_bytes) = Default::default();
        }
        report
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let (first, again) = (run("hosts=6,targets=3,seed=7"), run("hosts=6,targets=3,seed=7"));
        assert_eq!(virtually(first.clone()), virtually(again));
        assert_ne!(first.trace, run("hosts=6,targets=3,seed=8").trace);
    }

    #[test]
    fn hosts_lose_a_dead_target_until_it_returns() {
        let report = run("hosts=20,targets=4,disks=2,away=12");
        let names: Vec<&str> = report.scenes.iter().map(|scene| scene.name.as_str()).collect();
        assert_eq!(
            names,
            ["all hosts start", "1 target dies", "a switch is away", "all targets die"]
        );
        let hosts: Vec<u64> = report.scenes.iter().map(|scene| scene.hosts).collect();
        assert_eq!(hosts, [20, 10, 2, 20], "10 hosts use the dead target; 2 are behind the switch");
        for scene in &report.scenes[1..] {
            let times = &scene.seconds;
            assert!(times.first >= 12.0 && times.last >= times.first, "{scene:?}");
        }
        // For each lost disk, the host reconnects an admin queue and an I/O queue, and no other
        // queues.
        assert_eq!(report.scenes[1].connections.accepted, 20);
        assert_eq!(report.scenes[3].connections.accepted, 80);
        // Only the hosts behind the switch reconnect. Other hosts that use the same targets keep
        // their connections.
        assert_eq!(report.scenes[2].connections.accepted, 8);
        assert_eq!(report.scenes[3].connections.refused.values().sum::<u64>(), 0);
    }

    /// With the longest outage of the targets and the longest reconnect pause of the hosts, no host
    /// gives up a path, and no host reconnects too early.
    #[test]
    fn hosts_wait_for_targets_that_are_unreachable_for_long() {
        let away = limits::AWAY_SECONDS_MAX;
        let report = run(&format!("hosts=6,targets=2,away={away},reconnect=60"));
        assert_eq!(report.scenes.len(), 4);
        for scene in &report.scenes[1..] {
            let times = &scene.seconds;
            assert!(times.first >= f64::from(away) && times.last >= times.first, "{scene:?}");
            assert_eq!((scene.never, scene.failed_operations), (0, 0), "{scene:?}");
        }
    }

    #[test]
    fn a_simulation_can_be_cancelled() {
        let cancel = Cancel::new();
        let mut show = |what: &str, _: &str| {
            if what.contains("target dies") {
                cancel.cancel();
            }
        };
        let fleets = ["hosts=4,targets=2".parse().expect("valid settings")];
        let result = simulate(&fleets, &cancel, &mut show);
        assert!(matches!(result, Err(SimulationError::Cancelled)), "{result:?}");
    }
}
