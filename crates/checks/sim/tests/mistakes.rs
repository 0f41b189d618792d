//! Mistakes that somebody made by hand: each is found within some seeds, so that the simulation is
//! known to look. `SIM_MISTAKE="host: …"` tries one, and says what it looked like.

use farblock_sim::product::{self, Variant};
use std::panic::catch_unwind;

/// What the product asks `os::has_mistake` for.
const MISTAKES: [&str; 11] = [
    "file: a flush does nothing",
    "file: what fails counts as done",
    "file: zeroes are not written",
    "target: FUA is forgotten",
    "target: a controller is gone before its operations",
    "target: a connection is never forgotten",
    "host: a flush does not tell of a lost cache",
    "host: a lost controller counts as finished",
    "host: an operation is forgotten with its path",
    "host: lost writes are sent again at once",
    "host: what a lost path had counts as done",
];

/// Seeds in which a mistake has to show.
const SEEDS: u64 = 400;

#[test]
fn each_is_found() {
    let only = std::env::var("SIM_MISTAKE").ok();
    if only.is_none() {
        // What goes wrong here is what is wanted.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let wanted = |mistake: &&&str| only.as_ref().is_none_or(|only| only == **mistake);
    let mut missed = Vec::new();
    for mistake in MISTAKES.iter().filter(wanted) {
        let variant = Variant { mistake: Some(mistake), ..Variant::default() };
        let finds = |seed: &u64| catch_unwind(|| product::run_as(*seed, &variant)).is_err();
        match (0..SEEDS).find(finds) {
            Some(seed) => println!("{mistake}: found with seed {seed}"),
            None => missed.push(mistake),
        }
    }
    if !missed.is_empty() {
        let _ = std::panic::take_hook();
        panic!("not found in {SEEDS} seeds: {missed:?}");
    }
}
