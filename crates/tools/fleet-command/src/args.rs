//! The command line of the fleet.

use crate::values;
use clap::{Args, Subcommand, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Measure and verify many hosts against many targets at once
///
/// The command is the controller of agents. There is one agent for each target and for each group
/// of hosts. The agents run in network namespaces of this machine, or on other machines. This needs
/// no root if the system lets users create network namespaces.
#[derive(Args, Debug)]
pub struct FleetArgs {
    #[command(subcommand)]
    pub(crate) command: FleetCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum FleetCommand {
    Run(Box<RunArgs>),
    Agent(AgentArgs),
    /// List the built-in plans
    Plans,
}

/// Run a plan
///
/// PLAN is the name of a built-in plan (`farblock fleet plans`), a TOML file, or a report. A report
/// contains its plan, which the command repeats.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock fleet run six-patterns --html report.html
  farblock fleet run six-patterns --drive /dev/nvme1n1 --drive /dev/nvme2n1 --allow-writes
  farblock fleet run nvme-vs-iscsi --without tgt
  farblock fleet run failover                   kill, cut off and slow targets while hosts verify
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

    /// Number of runs of each action
    #[arg(long, value_name = "N", value_parser = values::within::<u32>(1..=1000))]
    #[arg(help_heading = "Plan")]
    pub(crate) runs: Option<u32>,

    /// Number of clients of each node
    #[arg(long, value_name = "N", value_parser = values::within::<u32>(1..=4096))]
    #[arg(help_heading = "Plan")]
    pub(crate) clients: Option<u32>,

    /// After the actions, let hosts write blocks and verify them for this many seconds
    #[arg(long, value_name = "TIME", value_parser = values::seconds, help_heading = "Plan")]
    pub(crate) verify: Option<Duration>,

    /// A disk or file for the target, instead of the plan's drives (repeatable)
    ///
    /// The name has the same form as for `farblock serve`. If the plan has sets by node, as
    /// six-patterns does, and the machine has several NUMA nodes, the disks of each node form a
    /// set.
    #[arg(long = "drive", value_name = "DISK", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = "Plan")]
    pub(crate) drives: Vec<String>,

    /// Number of QEMU virtual machines, which also run the plan's VM actions
    #[arg(long, value_name = "N", value_parser = values::within::<u32>(0..=64))]
    #[arg(help_heading = "Plan")]
    pub(crate) guests: Option<u32>,

    /// Kernel of the guests [default: the kernel from interop/linux/setup.sh]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Plan")]
    pub(crate) guest_kernel: Option<PathBuf>,

    /// Initial file system of the guests, with fio [default: from interop/linux/setup.sh]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Plan")]
    pub(crate) guest_image: Option<PathBuf>,

    /// Leave this iSCSI target out of the comparison: farblock or tgt
    #[arg(long, value_name = "TARGET", value_parser = ["farblock", "tgt"])]
    #[arg(help_heading = "Plan")]
    pub(crate) without: Vec<String>,

    /// Do not scale a built-in plan to this machine
    #[arg(long, help_heading = "Plan")]
    pub(crate) unscaled: bool,

    /// Run all nodes on the loopback, without network namespaces
    #[arg(long, help_heading = "Plan")]
    pub(crate) loopback: bool,

    /// Allow overwriting disks that the fleet did not make
    #[arg(long)]
    pub(crate) allow_writes: bool,

    /// Write all measurements as JSON (with -, to the standard output instead of the table)
    #[arg(id = "json_file", long = "json", value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = "Reports")]
    pub(crate) json: Option<PathBuf>,

    /// Write a self-contained HTML page with charts
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Reports")]
    pub(crate) html: Option<PathBuf>,

    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Reports")]
    pub(crate) md: Option<PathBuf>,

    /// Do not split wide tables [default: fit the terminal, or 80 columns]
    #[arg(long, help_heading = "Reports")]
    pub(crate) wide: bool,
}

/// Run an agent, which shares drives or generates load for a controller
///
/// A controller needs the token of --token-file. It can make the agent share memory and the drives
/// of --drive, connect to any address that this machine reaches, and read and write all these
/// disks. The connection to the controller is not encrypted. Therefore the agent must listen on the
/// loopback, behind a tunnel. --unencrypted also allows other addresses, for private networks. The
/// agent runs until it receives SIGINT (Ctrl-C) or SIGTERM.
#[derive(Args, Debug)]
pub(crate) struct AgentArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "stdio")]
    #[arg(requires = "token_file", value_parser = values::service_address)]
    pub(crate) listen: Option<SocketAddr>,

    /// File with the token (mode 600): a line of 16 characters or more
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,

    /// File or disk that controllers may share and overwrite (repeatable); plans use the same name
    #[arg(long = "drive", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) drives: Vec<PathBuf>,

    /// Memory limit for all controllers together: RAM disks, buffers and rings [default: half of
    /// the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub(crate) memory: Option<u64>,

    /// Allow an address that other machines can reach, although the connection is not encrypted
    #[arg(long)]
    pub(crate) unencrypted: bool,

    /// Communicate with the controller over the standard input and output
    #[arg(long, hide = true, conflicts_with_all = ["listen", "token_file", "drives", "memory"])]
    pub(crate) stdio: bool,
}
