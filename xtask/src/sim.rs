//! The simulation for hours, in a build of its own: it turns a feature of the event loops on that
//! nothing else is to have.

use clap::Args;
use std::process::Command;

/// How long, and where to begin.
#[derive(Args)]
pub(crate) struct Options {
    /// How long; a part of an hour is 0.1, for example
    #[arg(long, default_value_t = 1.0)]
    hours: f64,
    /// The first seed, instead of a new one each time
    #[arg(long)]
    from: Option<u64>,
}

/// Runs the seeds, and fails if one of them did.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "farblock-sim", "--example", "hours", "--"]);
    command.args(["--hours", &options.hours.to_string()]);
    if let Some(from) = options.from {
        command.args(["--from", &from.to_string()]);
    }
    let status = command.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("a seed failed: repeat it as it says".to_owned()) }
}
