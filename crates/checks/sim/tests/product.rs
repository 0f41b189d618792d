//! Runs the whole product over many seeds. A failure prints its seed.
//! `SIM_SEED=… cargo test -p farblock-sim --test product` repeats the run. `SIM_SEEDS=1000` runs
//! more seeds.

use farblock_sim::product;
use farblock_sim::product::fenced;
use farblock_sim::product::mirrored::{self, Fault};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn disks_survive_random_faults() {
    if let Some(seed) = number("SIM_SEED") {
        let operations = number("SIM_OPERATIONS").unwrap_or(product::OPERATIONS);
        let variant = product::Variant { operations, ..Default::default() };
        println!("{:?}", product::run_as(seed, &variant));
        return;
    }
    let mut faults = 0;
    for seed in 0..number("SIM_SEEDS").unwrap_or(100) {
        faults += product::run(seed).faults;
    }
    assert!(faults > 0, "no fault occurred");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..16 {
        assert_eq!(product::run(seed), product::run(seed), "two runs of seed {seed} differ");
    }
}

#[test]
fn fenced_nodes_survive_random_faults() {
    if let Some(seed) = number("SIM_SEED") {
        let operations = number("SIM_OPERATIONS").unwrap_or(fenced::OPERATIONS);
        println!("{:?}", fenced::run_as(seed, operations, None));
        return;
    }
    let (mut faults, mut nodes) = (0, 0);
    for seed in 0..number("SIM_SEEDS").unwrap_or(40) {
        let outcome = fenced::run(seed);
        faults += outcome.faults;
        nodes += outcome.fenced;
    }
    println!("{nodes} nodes were fenced, {faults} faults");
    assert!(faults > 0 && nodes > 0, "no fault occurred");
}

#[test]
fn the_same_seed_gives_the_same_cluster_run() {
    for seed in 0..4 {
        assert_eq!(fenced::run(seed), fenced::run(seed), "two runs of seed {seed} differ");
    }
}

/// The basic faults of a leg: its file grows, its target or the target's machine restarts, or
/// another file takes its place for a while. Also, the leg returns as an older copy after the
/// mirror has put it out.
#[test]
fn a_mirror_handles_the_basic_faults_of_a_leg() {
    for fault in [Fault::Grown, Fault::Restarted, Fault::Swapped, Fault::Rebooted] {
        let _ = mirrored::run_as(0, Some(fault));
    }
    let noticed = mirrored::run_as(0, Some(Fault::AwayOlder)).noticed;
    assert!(noticed > 0, "no leg was ever out");
}

#[test]
fn the_same_seed_gives_the_same_mirror_run() {
    for seed in 0..2 {
        let run = || mirrored::run_as(seed, Some(Fault::Restarted));
        assert_eq!(run(), run(), "two runs of seed {seed} differ");
    }
}

#[test]
fn a_truncated_leg_does_not_return_zeroes() {
    let _ = mirrored::run_as(0, Some(Fault::Cut));
}

#[test]
fn a_leg_rolled_back_during_a_restart_is_not_read() {
    let _ = mirrored::run_as(0, Some(Fault::RestartedOlder));
}

#[test]
fn mirrors_survive_random_faults() {
    let (seeds, one) = (number("SIM_SEEDS").unwrap_or(8), number("SIM_SEED"));
    let (mut faults, mut noticed) = (0, 0);
    for seed in one.map_or(0..seeds, |seed| seed..seed + 1) {
        let outcome = mirrored::run(seed);
        faults += outcome.faults;
        noticed += outcome.noticed;
    }
    println!("{faults} faults, {noticed} noticed");
    assert!(faults > 0 && (one.is_some() || noticed > 0), "no fault occurred");
}

#[test]
fn mirrors_without_legs_fail_in_time_and_stop() {
    let (seeds, one) = (number("SIM_SEEDS").unwrap_or(8), number("SIM_SEED"));
    for seed in one.map_or(0..seeds, |seed| seed..seed + 1) {
        let _ = mirrored::stop::run(seed);
    }
}

#[test]
fn plain_disks_survive_changes_of_their_file() {
    let (seeds, one) = (number("SIM_SEEDS").unwrap_or(8), number("SIM_SEED"));
    for seed in one.map_or(0..seeds, |seed| seed..seed + 1) {
        let _ = mirrored::plain::run(seed);
    }
}
