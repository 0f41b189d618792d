//! Developer commands besides the tests: `cargo run --release -p xtask -- COMMAND`, or
//! `cargo xtask COMMAND` for commands that do not measure.
//!
//! `bench-peers` compares farblock with other products, and `sim` runs the simulation. The other
//! `bench-` commands are further comparisons. `bench-peers` starts `floor-serve`, `floor-drive` and
//! `hold` as processes. All commands run on Linux only.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod bench_peers;
#[cfg(target_os = "linux")]
mod charts;
#[cfg(target_os = "linux")]
mod data;
#[cfg(target_os = "linux")]
mod faults;
#[cfg(target_os = "linux")]
mod floor;
mod grid;
#[cfg(target_os = "linux")]
mod guests;
#[cfg(target_os = "linux")]
mod hold;
#[cfg(target_os = "linux")]
mod performance;
#[cfg(target_os = "linux")]
mod picture;
#[cfg(target_os = "linux")]
mod scaling;
#[cfg(target_os = "linux")]
mod sim;
#[cfg(target_os = "linux")]
mod six_patterns;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use clap::Parser;

    #[derive(Parser)]
    #[command(name = "xtask", about = "Developer tools of farblock, besides its tests")]
    enum Command {
        BenchPeers(bench_peers::Options),
        /// Measure the six patterns through fio: farblock's engine and SPDK's
        ///
        /// `FARBLOCK_SPDK` names a build of SPDK with its fio plugin. --quick shortens the
        /// measurement.
        BenchFio(bench_peers::Options),
        /// Compare the ways to attach a disk
        ///
        /// 4k random reads of memory, one and 32 in flight. --quick shortens the measurement.
        BenchAttach(bench_peers::Options),
        /// Measure a disk file locally, over loopback, and over a veth pair with added latency
        ///
        /// The six patterns, and 4k random reads at four depths. Needs root. --only selects rows.
        BenchNetwork(bench_peers::Options),
        /// Measure the cost of counters and histograms, with and without clients that read them
        ///
        /// 4k random reads, one and 32 in flight, of targets and attached disks (FUSE, fio).
        BenchCounters(bench_peers::Options),
        /// Measure the cost of features, used and unused
        ///
        /// Limits, ANA, reservations, sets of disks, a thousand namespaces: 4k I/Os of targets.
        BenchCost(bench_peers::Options),
        /// Repeat the faults of guests and of a Ceph cluster
        Faults(faults::Options),
        /// Run the tests in Linux guests that take too long for `make test`
        Guests(guests::Options),
        FloorServe(floor::ServeOptions),
        FloorDrive(floor::DriveOptions),
        Hold(hold::HoldOptions),
        Performance(performance::Options),
        Scaling(scaling::Options),
        SixPatterns(six_patterns::Options),
        /// Run the simulation of the whole product with new seeds
        Sim(sim::Options),
    }

    let result = match Command::parse() {
        Command::BenchPeers(options) => bench_peers::run(&options),
        Command::BenchFio(options) => bench_peers::through_fio::run(&options),
        Command::BenchAttach(options) => bench_peers::attach::run(&options),
        Command::BenchNetwork(options) => bench_peers::across::compare(&options),
        Command::BenchCounters(options) => bench_peers::counters::run(&options),
        Command::BenchCost(options) => bench_peers::cost::run(&options),
        Command::Faults(options) => faults::run(&options),
        Command::Guests(options) => guests::run(&options),
        Command::FloorServe(options) => floor::serve(&options),
        Command::FloorDrive(options) => floor::drive(&options),
        Command::Hold(options) => hold::hold(&options),
        Command::Performance(options) => performance::run(&options),
        Command::Scaling(options) => scaling::run(&options),
        Command::SixPatterns(options) => six_patterns::run(&options),
        Command::Sim(options) => sim::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: the measuring stand needs Linux");
    ExitCode::FAILURE
}
