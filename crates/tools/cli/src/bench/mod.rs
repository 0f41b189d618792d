//! `farblock bench`: compares a remote disk with a local one, or one report with another.

mod compare;

use crate::args::Global;
use crate::error::Result;
use crate::{elsewhere, values};
use clap::{Args, Subcommand, ValueHint};
use farblock_measure::BenchArgs as MeasureArgs;
use std::path::PathBuf;

/// Compare the performance of a remote disk with a local one
///
/// Without arguments it makes a disk file on this machine and measures it. Then a target in this
/// process shares the file over loopback TCP, and the command measures the shared disk, and bare
/// sockets for comparison. It needs no root and no configuration, leaves nothing behind, and takes
/// less than two minutes.
///
/// With LOCAL, a REMOTE-URL or both, it measures those disks. Options have fio's names.
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
What the network allows, both ends here or with `farblock bench --floor-serve 0.0.0.0:4421` there:
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

/// Check whether one report's disks are slower than another's
///
/// Both A and B are files written by --json of `farblock bench` or `farblock fleet run`. With
/// repeats (--runs, --full) the command shows medians, the change, and the 95 % confidence interval
/// of the change.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock bench --runs 5 --json before.json
  farblock bench --runs 5 --json after.json
  farblock bench compare before.json after.json --fail-if-slower 5%

Exit codes: 0 nothing is slower than the limit, 1 something is or is missing, 2 no comparison.")]
pub(crate) struct CompareArgs {
    /// The report to compare with
    #[arg(value_name = "A.json", value_hint = ValueHint::FilePath)]
    pub(crate) a: PathBuf,

    /// The report to judge
    #[arg(value_name = "B.json", value_hint = ValueHint::FilePath)]
    pub(crate) b: PathBuf,

    /// Fail if throughput fell or mean latency rose by more than this, beyond chance
    #[arg(long, value_name = "PERCENT", value_parser = values::percent)]
    pub(crate) fail_if_slower: Option<f64>,

    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the command.
pub(crate) fn run(args: BenchArgs, json: bool, global: &Global) -> Result<()> {
    match args.command {
        Some(BenchCommand::Compare(compare)) => compare::run(&compare, json, global),
        None => farblock_measure::run(args.measure, json, global, elsewhere::open_to_measure),
    }
}
