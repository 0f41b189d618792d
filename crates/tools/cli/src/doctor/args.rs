//! The command line of `doctor`.

use crate::args::ConnectionArgs;
use crate::attach::args::RuntimeArgs;
use crate::values;
use clap::Args;
use std::time::Duration;

/// Find out what is wrong, and what to do about it
///
/// Without an argument it checks whether this machine can share and attach disks, and how well.
/// With a URL it checks each step of the way to a target. With the name of an attachment it checks
/// the attachment and each of its paths. With a file or a block device (on Linux) it checks whether
/// a target can share it, and names its users. About a URL or an attachment it also repeats what
/// the targets and attachments of this machine report. It changes nothing, and reads one block.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock doctor
  farblock doctor 'nvme+tcp://192.0.2.7/NQN?ns=1'
  farblock doctor data --json
  farblock doctor /dev/sdb

Exit codes: 0 without a problem (hints are possible), 1 with a problem or if doctor fails, 2 for a
command line that makes no sense, 130 after a signal.")]
pub(crate) struct DoctorArgs {
    /// A target, a subsystem or a namespace by its URL, an attachment by its name, or a file or
    /// block device [default: this machine]
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
        time if time.is_zero() => Err("0 is over at once: use 100ms or more".to_owned()),
        time => Ok(time),
    }
}
