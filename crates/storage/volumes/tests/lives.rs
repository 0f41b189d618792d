//! Random simulated lifetimes of mirrors, with load, faults and power cuts. `MIRROR_SEED=17`
//! repeats a run. `MIRROR_SEEDS=10000 cargo test --release -p farblock-volumes --test lives` sets
//! the number of runs. With both variables, `MIRROR_SEED` is the first seed.
//! `cargo xtask sim --mirrors` runs for hours.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use support::life::Run;

/// Deliberate mistakes in the code. The runs must find each of them.
const MISTAKES: [&str; 12] = [
    "a bitmap that is not durable",
    "a clean region without a flush",
    "a copy beside writes",
    "a degraded mirror that forgets",
    "a flush of one leg",
    "a leg that failed stays",
    "a promotion without a flush",
    "a write before its region is dirty",
    "an acknowledgement before the record",
    "late parts that nobody waits for",
    "legs trusted after a power cut",
    "reads from a leg that catches up",
];
/// The number of seeds within which the runs must find each mistake.
const SEEDS_FOR_A_MISTAKE: u64 = 1500;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("the text is a number"))
}

fn finds(seed: u64, mistake: &'static str) -> bool {
    let run = || Run::new(seed, Some(mistake)).run();
    !matches!(catch_unwind(AssertUnwindSafe(run)), Ok(Ok(())))
}

#[test]
fn no_acknowledged_write_is_lost_and_all_legs_become_equal() {
    let seed = number("MIRROR_SEED");
    let usual = if seed.is_some() { 1 } else { 40 };
    let (first, count) = (seed.unwrap_or(0), number("MIRROR_SEEDS").unwrap_or(usual));
    let (mut acknowledged, mut degraded, mut cuts, mut out) = (0, 0, 0, 0);
    for seed in first..first + count {
        let mut run = Run::new(seed, None);
        let outcome = catch_unwind(AssertUnwindSafe(|| run.run()));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => panic!("MIRROR_SEED={seed}: {error}"),
            Err(panic) => {
                eprintln!("MIRROR_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
        acknowledged += run.events.acknowledged;
        degraded += run.events.degraded_starts;
        cuts += run.events.power_cuts;
        out += run.events.went_out;
    }
    println!(
        "{acknowledged} acknowledged, {cuts} power cuts, {degraded} degraded starts, {out} out"
    );
    if count > 20 {
        assert!(acknowledged > 0 && cuts > 0 && degraded > 0 && out > 0, "some event never occurs");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut run = Run::new(seed, None);
        run.run().expect("a seed without a mistake");
        run.trace()
    };
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

/// The runs must find common mistakes with few seeds.
#[test]
fn the_simulation_finds_common_mistakes_quickly() {
    let common = [
        "a flush of one leg",
        "a leg that failed stays",
        "a write before its region is dirty",
        "legs trusted after a power cut",
        "reads from a leg that catches up",
    ];
    for mistake in common {
        assert!(MISTAKES.contains(&mistake));
        assert!((0..60).any(|seed| finds(seed, mistake)), "no seed finds {mistake:?}");
    }
}

#[test]
#[ignore = "takes minutes: cargo test --release -p farblock-volumes --test lives -- --ignored"]
fn the_simulation_finds_each_mistake() {
    let only = std::env::var("MIRROR_MISTAKE").unwrap_or_default();
    for mistake in MISTAKES.into_iter().filter(|mistake| mistake.contains(&only)) {
        let found = (0..SEEDS_FOR_A_MISTAKE).find(|&seed| finds(seed, mistake));
        println!("{mistake}: seed {found:?}");
        assert!(found.is_some(), "no seed finds {mistake:?}");
    }
}
