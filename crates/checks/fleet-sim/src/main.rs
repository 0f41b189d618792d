//! `farblock-fleet-sim`: simulates fleets, and prints a table, JSON or a picture.

#![forbid(unsafe_code)]

use clap::{Parser, ValueHint};
use farblock_bench::Cancel;
use farblock_fleet_sim::{Settings, SimulationError, simulate};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Simulate fleets: how long until all I/O flows again after targets or a switch fail
///
/// Simulates each FLEET in this process and in virtual time, one after the other.
///
/// hosts=N and targets=N are required. disks=N: disks of each host, each on a different target
/// [default: 4]. away=SECONDS: how long targets or the switch are down [default: 15].
/// reconnect=SECONDS: the longest pause of a host between two connection attempts [default: 10].
/// seed=N: the source of all random choices; the same seed gives the same figures. accept-us=N and
/// message-us=N: a target's processor time, in microseconds, for a connection and for a message
/// [default: 100 and 10, which are assumptions and not measurements].
#[derive(Parser)]
#[command(
    name = "farblock-fleet-sim",
    version,
    after_help = "\
Examples:
  cargo run --release -p farblock-fleet-sim -- hosts=100,targets=10
  cargo run --release -p farblock-fleet-sim -- hosts=100,targets=10,seed=2 --json > after.json"
)]
struct Options {
    /// The fleets to simulate
    #[arg(required = true, value_name = "hosts=N,targets=N[,NAME=N]...", value_parser = settings)]
    #[arg(value_hint = ValueHint::Other)]
    fleets: Vec<Settings>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Draw the recovery times into this SVG file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
}

fn settings(text: &str) -> Result<Settings, String> {
    text.parse().map_err(|error| match error {
        SimulationError::Settings { why, .. } => why,
        other => other.to_string(),
    })
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode, String> {
    let mut progress = Progress::default();
    let report = simulate(&options.fleets, &Cancel::new(), &mut |what, part| {
        progress.show(what, part);
    });
    let report = report.map_err(|error| error.to_string())?;
    if let Some(path) = &options.svg {
        let cannot = |error| format!("cannot write {}: {error}", path.display());
        std::fs::write(path, report.to_svg()).map_err(cannot)?;
    }
    let text = match options.json {
        true => report.to_json() + "\n",
        false => report.render_within(columns()),
    };
    let written = io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| format!("cannot write the report: {error}"))?;
    Ok(if report.has_errors() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn columns() -> usize {
    let size = terminal_size::terminal_size_of(io::stdout());
    size.map_or(80, |(terminal_size::Width(columns), _)| usize::from(columns))
}

/// Prints one line on standard error for each scene.
#[derive(Default)]
struct Progress {
    scene: String,
}

impl Progress {
    fn show(&mut self, what: &str, part: &str) {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K{what} {part}");
        } else if self.scene != what {
            eprintln!("{what}");
        }
        what.clone_into(&mut self.scene);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}
