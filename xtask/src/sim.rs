//! Runs the simulation for hours, through an example of `farblock-sim`. Only that package enables
//! the simulation features of all crates on which it depends.

use clap::Args;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Options of `cargo xtask sim`.
#[derive(Args)]
pub(crate) struct Options {
    /// Duration in hours, for example 0.1
    #[arg(long, default_value_t = 1.0)]
    hours: f64,
    /// The first seed, instead of a new one for each run
    #[arg(long)]
    from: Option<u64>,
    /// Simulate mirrors, instead of the whole product and of nodes that fence each other
    #[arg(long)]
    mirrors: bool,
}

/// The interval between progress reports.
const EVERY: Duration = Duration::from_secs(60);
/// The number of simulated mirrors per process.
const LIVES: u64 = 200;

/// Runs the seeds. Returns an error if one of them fails.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if !(0.0..=10_000.0).contains(&options.hours) {
        return Err(format!("{} is not a valid number of hours: use 0 to 10000", options.hours));
    }
    if options.mirrors {
        return run_mirrors(options);
    }
    let mut command = cargo();
    command.args(["run", "--quiet", "--profile", "checked"]);
    command.args(["--package", "farblock-sim", "--example", "hours", "--"]);
    command.args(["--hours", &options.hours.to_string()]);
    if let Some(from) = options.from {
        command.args(["--from", &from.to_string()]);
    }
    let status = command.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("a seed failed: the output above shows how to repeat it".to_owned())
    }
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Like [`run`], but for mirrors: repeats the test of mirrors, each time with other seeds. At its
/// first failure, the test stops and prints how to repeat it.
fn run_mirrors(options: &Options) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let from = options.from.unwrap_or(now.as_secs() << 20);
    let test = || {
        let mut command = cargo();
        command.args(["test", "--quiet", "--profile", "checked", "--package", "farblock-volumes"]);
        command.args(["--test", "lives"]);
        command
    };
    let succeeds = |mut command: Command| match command.status() {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    };
    // Build first, so that a build error does not count as a failed seed.
    let mut build = test();
    build.arg("--no-run");
    if !succeeds(build)? {
        return Err("the test of mirrors does not compile: fix the errors above".to_owned());
    }
    let until = Instant::now() + Duration::from_secs_f64(options.hours * 3600.0);
    let (mut seed, mut failures) = (from, 0);
    let mut said = Instant::now();
    while Instant::now() < until {
        if said.elapsed() >= EVERY {
            said = Instant::now();
            let left = until.saturating_duration_since(said).as_secs() / 60;
            let lives = seed.wrapping_sub(from);
            eprintln!("{lives} simulated mirrors, {failures} failures; {left} min left");
        }
        let mut command = test();
        command.arg("nothing_acknowledged_is_lost");
        command.env("MIRROR_SEED", seed.to_string()).env("MIRROR_SEEDS", LIVES.to_string());
        failures += u64::from(!succeeds(command)?);
        seed = seed.wrapping_add(LIVES);
    }
    println!("{} simulated mirrors from {from}: {failures} failures", seed.wrapping_sub(from));
    if failures == 0 {
        Ok(())
    } else {
        Err("a seed failed: the output above shows how to repeat it".to_owned())
    }
}
