//! The command line of the fleet.

use crate::values;
use clap::{Args, Subcommand, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Drive many hosts against many targets at once
///
/// One controller and an agent for each group of hosts and each target: in network namespaces of
/// this machine, without root where it lets users have them, or on other machines.
#[derive(Args, Debug)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    pub(crate) command: FleetCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum FleetCommand {
    Run(Box<RunArgs>),
    Agent(AgentArgs),
    /// List the plans that farblock brings along
    Plans,
}

/// Carry out a plan
///
/// PLAN is one that farblock brings along (`farblock fleet plans`), a file of TOML, or a report of
/// this command, which is repeated.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock fleet run six-patterns --html report.html
  farblock fleet run six-patterns --drive /dev/nvme1n1 --drive /dev/nvme2n1 --allow-writes
  farblock fleet run nvme-vs-iscsi --without tgt
  farblock fleet run failover                   kill, cut and slow targets under hosts that verify
  farblock fleet run hci-12 --runtime 2 --json before.json
  farblock fleet run hci-12 --guests 4          with four real virtual machines
  farblock fleet run before.json --json after.json
  farblock bench compare before.json after.json --fail-if-slower 5%")]
pub(crate) struct RunArgs {
    /// The plan
    #[arg(value_name = "PLAN", value_hint = ValueHint::FilePath)]
    pub(crate) plan: String,

    /// Measured time of each run, in seconds
    #[arg(long, value_name = "TIME", value_parser = values::seconds, help_heading = "Plan")]
    pub(crate) runtime: Option<Duration>,

    /// Runs of each action
    #[arg(long, value_name = "N", value_parser = values::within::<u32>(1..=1000))]
    #[arg(help_heading = "Plan")]
    pub(crate) runs: Option<u32>,

    /// Clients of each node
    #[arg(long, value_name = "N", value_parser = values::within::<u32>(1..=4096))]
    #[arg(help_heading = "Plan")]
    pub(crate) clients: Option<u32>,

    /// Let hosts write, read and compare for so many seconds after the actions
    #[arg(long, value_name = "TIME", value_parser = values::seconds, help_heading = "Plan")]
    pub(crate) verify: Option<Duration>,

    /// A disk or file that the target has, in place of the plan's drives; once for each
    ///
    /// As `farblock serve` names it. Where the plan has sets by node, as six-patterns does, and the
    /// machine has several nodes (NUMA), the disks of each node form a set.
    #[arg(long = "drive", value_name = "DISK", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = "Plan")]
    pub(crate) drives: Vec<String>,

    /// Real virtual machines of QEMU's, which carry out the plan's VM actions as well
    #[arg(long, value_name = "N", value_parser = values::within::<u32>(0..=64))]
    #[arg(help_heading = "Plan")]
    pub(crate) guests: Option<u32>,

    /// Kernel of the guests [default: that of interop/linux/setup.sh]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Plan")]
    pub(crate) guest_kernel: Option<PathBuf>,

    /// Initial file system of the guests, with fio [default: that of interop/linux/setup.sh]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Plan")]
    pub(crate) guest_image: Option<PathBuf>,

    /// Leave this iSCSI target out of the comparison: farblock or tgt
    #[arg(long, value_name = "TARGET", value_parser = ["farblock", "tgt"])]
    #[arg(help_heading = "Plan")]
    pub(crate) without: Vec<String>,

    /// Do not scale a plan of farblock's to this machine
    #[arg(long, help_heading = "Plan")]
    pub(crate) unscaled: bool,

    /// All nodes on the loopback, without network namespaces
    #[arg(long, help_heading = "Plan")]
    pub(crate) loopback: bool,

    /// Let it overwrite disks that it did not make
    #[arg(long)]
    pub(crate) allow_writes: bool,

    /// Write everything measured as JSON (- is the standard output, instead of the table)
    #[arg(id = "json_file", long = "json", value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = "Reports")]
    pub(crate) json: Option<PathBuf>,

    /// Write one self-contained page with charts
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Reports")]
    pub(crate) html: Option<PathBuf>,

    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Reports")]
    pub(crate) md: Option<PathBuf>,

    /// Print tables that are not divided, however wide [default: as the terminal, or 80 columns]
    #[arg(long, help_heading = "Reports")]
    pub(crate) wide: bool,
}

/// Be an agent: share drives and drive load, as a controller with the token says
///
/// Whoever has the token may have it share memory and what --drive names, connect wherever this
/// machine can, and read and write all of that. Nothing is encrypted, so it listens on the
/// loopback, at the end of a tunnel, unless --unencrypted says that the network is private. It runs
/// until it gets SIGINT (Ctrl-C) or SIGTERM.
#[derive(Args, Debug)]
pub(crate) struct AgentArgs {
    /// Where it listens
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "stdio")]
    #[arg(requires = "token_file", value_parser = values::service_address)]
    pub(crate) listen: Option<SocketAddr>,

    /// File with the token, for its owner alone (mode 600): a line of 16 characters or more
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,

    /// A file or disk that it may share, and so overwrite, by the name that plans have for it
    #[arg(long = "drive", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) drives: Vec<PathBuf>,

    /// Memory that controllers may have it hold, all of them together: disks of memory, buffers and
    /// rings; half of the machine's without
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub(crate) memory: Option<u64>,

    /// Listen where other machines reach it, though the token and all orders are sent in the clear
    #[arg(long)]
    pub(crate) unencrypted: bool,

    /// Speak with the controller over the standard streams
    #[arg(long, hide = true, conflicts_with_all = ["listen", "token_file", "drives", "memory"])]
    pub(crate) stdio: bool,
}
