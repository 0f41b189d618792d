//! The command line of `doctor`.

use crate::attach::args::RuntimeArgs;
use crate::values;
use clap::Args;
use farblock_program::args::ConnectionArgs;
use std::time::Duration;

/// Examine this machine, a target, an attachment or a disk, and give advice
///
/// Without an argument the command checks how well this machine can share and attach disks. With a
/// URL it checks each step of a connection to a target, up to the read of a block. With the name of
/// an attachment it checks the attachment and each of its paths. With a file or a block device (on
/// Linux) it checks whether a target can share the disk, and names the disk's users. For a URL or
/// an attachment it also repeats what the targets and attachments of this machine report about the
/// disk. The command changes nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock doctor
  farblock doctor 'nvme+tcp://192.0.2.7/NQN?ns=1'
  farblock doctor data --json
  farblock doctor /dev/sdb

Exit codes: 0 no problem (hints are possible), 1 a problem, or doctor failed, 2 wrong usage, 130
stopped by a signal.")]
pub struct DoctorArgs {
    /// The URL of a target, a subsystem or a namespace; the name of an attachment; or the path of a
    /// file or block device [default: this machine]
    #[arg(value_name = "URL|NAME|PATH")]
    pub(crate) patient: Option<String>,

    /// Time limit of each step
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = patience)]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,

    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

fn patience(text: &str) -> Result<Duration, String> {
    match values::seconds(text)? {
        time if time.is_zero() => Err("0 would time out at once: use 100ms or more".to_owned()),
        time => Ok(time),
    }
}
