//! `farblock bench`: compares a remote disk with a local one, or two reports with each other.

mod compare;

use crate::error::Result;
use crate::{elsewhere, values};
use clap::{Args, Subcommand, ValueHint};
use farblock_measure::BenchArgs as MeasureArgs;
use farblock_program::args::Global;
use std::path::PathBuf;

/// Compare the performance of a remote disk with a local one
///
/// Without arguments the command makes a disk file on this machine, and measures the file. Then a
/// target in this process shares the file over loopback TCP, and the command measures the shared
/// disk. For comparison it also measures bare sockets. The command needs no root and no
/// configuration, takes less than two minutes, and leaves no files behind.
///
/// With LOCAL, a REMOTE-URL or both, the command measures those disks. The options have the same
/// names as in fio.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  farblock bench
  farblock bench --full --html report.html
  farblock bench /dev/nvme0n1 'nvme+tcp://192.0.2.7/NQN?ns=1' --patterns 4k-random-read
  farblock bench 'nvme+tcp://192.0.2.7/NQN?ns=1' --rw randrw --rwmixread 70 --bs 4k --iodepth 32
  farblock bench mem:1GiB --rw read --bs 1M --json -
  farblock bench compare before.json after.json --fail-if-slower 5%
To measure bare sockets (for a remote end, run `farblock bench --floor-serve 0.0.0.0:4421` there):
  farblock bench --floor
  farblock bench 'nvme+tcp://192.0.2.7/NQN?ns=1' --patterns read --floor 192.0.2.7:4421"
)]
// The flattened options already form a group of this name.
#[group(skip)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,

    #[command(flatten)]
    measure: MeasureArgs,
}

/// Commands for existing reports.
#[derive(Subcommand, Debug)]
enum BenchCommand {
    Compare(CompareArgs),
}

/// Check whether the disks in one report are slower than in another
///
/// A and B are JSON reports of `farblock bench --json` or `farblock fleet run --json`. If the
/// reports contain several runs (--runs, --full), the command shows medians, the change, and its 95
/// % confidence interval.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock bench --runs 5 --json before.json
  farblock bench --runs 5 --json after.json
  farblock bench compare before.json after.json --fail-if-slower 5%

Exit codes: 0 no result is slower than the limit, 1 a result is slower or missing, 2 wrong usage.")]
pub(crate) struct CompareArgs {
    /// The baseline report
    #[arg(value_name = "A.json", value_hint = ValueHint::FilePath)]
    pub(crate) a: PathBuf,

    /// The report to compare with the baseline
    #[arg(value_name = "B.json", value_hint = ValueHint::FilePath)]
    pub(crate) b: PathBuf,

    /// Fail if throughput is lower, or mean latency is higher, by more than this. With several
    /// runs, the confidence interval of the change must not include zero
    #[arg(long, value_name = "PERCENT", value_parser = values::percent)]
    pub(crate) fail_if_slower: Option<f64>,

    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: BenchArgs, json: bool, global: &Global) -> Result<()> {
    match args.command {
        Some(BenchCommand::Compare(compare)) => compare::run(&compare, json, global),
        None => farblock_measure::run(args.measure, json, global, elsewhere::open_to_measure),
    }
}
