//! Deliberate mistakes (mutations) in the product. The simulation must find each mistake within
//! some seeds: this shows that it finds bugs. `SIM_MISTAKE="host: …"` tries one, and prints the
//! failure.

use farblock_sim::product::fenced;
use farblock_sim::product::{self, Variant};
use std::panic::{RefUnwindSafe, catch_unwind};

/// The mistakes that the product makes if `os::has_mistake` returns true for them.
const MISTAKES: [&str; 21] = [
    "file: a flush does nothing",
    "file: a failed operation counts as done",
    "file: zeroes are not written",
    "target: FUA is forgotten",
    "target: a wrong proof is accepted",
    "target: a removed secret stays valid",
    "target: a removed TLS key stays valid",
    "target: a buffer is never freed",
    "target: memory has no limit",
    "target: a controller ends before its operations",
    "target: a connection is never forgotten",
    "host: a flush does not report a lost cache",
    "host: the controller need not authenticate",
    "host: a lost controller counts as finished",
    "host: a lost controller is not closed",
    "host: a successor does not end its predecessor",
    "host: no command times out",
    "host: nothing fails fast",
    "host: an operation is forgotten with its path",
    "host: lost writes are sent again at once",
    "host: a lost path's operations succeed",
];

/// The mistakes that show only if hosts fence each other.
const FENCING: [&str; 5] = [
    "target: a fence does not wait for operations in flight",
    "target: a fence forgets closed queues",
    "target: a new queue is not fenced",
    "target: reservations are not stored",
    "target: a command that waited for data is not fenced",
];

/// The number of seeds within which a mistake must show.
const SEEDS: u64 = 400;

/// The seeds for a mistake: all seeds, or the seeds in which the host has a TLS key. One mistake
/// shows only after a rare clock jump, so the search skips seeds that are known not to show it.
fn seeds(mistake: &str) -> impl Iterator<Item = u64> {
    let (first, step) = match mistake {
        "host: a lost controller is not closed" => (140, 1),
        tls if tls.contains("TLS") => (5, 16),
        _ => (0, 1),
    };
    (first..SEEDS).step_by(step)
}

#[test]
fn the_simulation_finds_each_mistake() {
    find(&MISTAKES, |seed, mistake| {
        let variant = Variant { mistake: Some(mistake), ..Variant::default() };
        let _ = product::run_as(seed, &variant);
    });
}

#[test]
fn the_simulation_finds_each_fencing_mistake() {
    find(&FENCING, |seed, mistake| {
        let _ = fenced::run_as(seed, fenced::OPERATIONS, Some(mistake));
    });
}

fn find(mistakes: &[&'static str], run: impl Fn(u64, &'static str) + RefUnwindSafe) {
    let only = std::env::var("SIM_MISTAKE").ok();
    if only.is_none() {
        // Do not print panics, which are expected here.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let wanted = |mistake: &&&str| only.as_ref().is_none_or(|only| only == **mistake);
    let mut missed = Vec::new();
    for mistake in mistakes.iter().filter(wanted) {
        let finds = |seed: &u64| catch_unwind(|| run(*seed, mistake)).is_err();
        match seeds(mistake).find(finds) {
            Some(seed) => println!("{mistake}: found with seed {seed}"),
            None => missed.push(mistake),
        }
    }
    if !missed.is_empty() {
        let _ = std::panic::take_hook();
        panic!("not found in {SEEDS} seeds: {missed:?}");
    }
}
