//! Runs seeds for a given time: `cargo xtask sim --hours 8`. Prints each failing seed, and the
//! smallest number of operations with which the seed still fails.

use farblock_sim::product::{self, fenced};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const USAGE: &str = "usage: cargo xtask sim [--hours N] [--from SEED]
  --hours N    the duration in hours, 1 by default; 0.1 is six minutes
  --from SEED  the first seed; by default, the time determines it";

/// The interval of progress reports.
const EVERY: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let (hours, from) = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let until = Instant::now() + Duration::from_secs_f64(hours * 3600.0);
    let (mut seed, mut failures, mut faults) = (from, 0, 0);
    let mut said = Instant::now();
    while Instant::now() < until {
        if said.elapsed() >= EVERY {
            said = Instant::now();
            let left = until.saturating_duration_since(said).as_secs() / 60;
            let seeds = seed.wrapping_sub(from);
            eprintln!("{seeds} seeds, {failures} failed, {faults} faults; {left} min to go");
        }
        match std::panic::catch_unwind(|| product::run(seed)) {
            Ok(outcome) => faults += outcome.faults,
            Err(_) => {
                failures += 1;
                let operations = quietly(|| product::shrink(seed));
                println!("FAILED: SIM_SEED={seed} SIM_OPERATIONS={operations}");
            }
        }
        match std::panic::catch_unwind(|| fenced::run(seed)) {
            Ok(outcome) => faults += outcome.faults,
            Err(_) => {
                failures += 1;
                let operations = quietly(|| fenced::shrink(seed));
                println!(
                    "FAILED: SIM_SEED={seed} SIM_OPERATIONS={operations} in the test \
                     fenced_nodes_survive_random_faults"
                );
            }
        }
        seed = seed.wrapping_add(1);
    }
    println!("{} seeds from {from}: {failures} failed, {faults} faults", seed.wrapping_sub(from));
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs code that may panic, without printing the panic.
fn quietly<T>(act: impl FnOnce() -> T) -> T {
    std::panic::set_hook(Box::new(|_| {}));
    let result = act();
    let _ = std::panic::take_hook();
    result
}

fn arguments(mut given: impl Iterator<Item = String>) -> Result<(f64, u64), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (mut hours, mut from) = (1.0, now.as_secs() << 20);
    while let Some(name) = given.next() {
        let value = given.next().ok_or(format!("{name} needs a value"))?;
        let wrong = |_| format!("{value:?} is not a number for {name}");
        match name.as_str() {
            "--hours" => hours = value.parse().map_err(|_| wrong(()))?,
            "--from" => from = value.parse().map_err(|_| wrong(()))?,
            _ => return Err(format!("there is no option {name}")),
        }
    }
    if !(0.0..=10_000.0).contains(&hours) {
        return Err(format!("{hours} hours are not possible"));
    }
    Ok((hours, from))
}
