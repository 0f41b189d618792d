//! The command line of the demonstration.

use crate::values;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// Demonstrate failover: use a mirrored disk while paths and targets fail in turn
///
/// Two targets share one disk each. A third target shares a mirror of the two disks at two
/// addresses. A host writes to the mirror over two paths, and verifies its data. All processes run
/// on this machine, without root. Every few seconds the command cuts a path or kills a target, and
/// prints how long I/O paused. Ctrl-C stops the command. It leaves no files or processes behind.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock demo
  farblock demo --open                          also open the dashboard in the browser
  farblock demo --group                         show a group of three targets (needs etcd)
  farblock demo --for 60 --every 2")]
pub struct DemoArgs {
    /// Stop after this many seconds [default: run until Ctrl-C, or
    /// with --group show each event once]
    #[arg(long = "for", value_name = "SECONDS", value_parser = values::seconds)]
    pub(crate) duration: Option<Duration>,

    /// Seconds between two faults
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = values::seconds)]
    pub(crate) every: Duration,

    /// Show a group instead: three targets on one file and etcd, a planned move, and the death of
    /// the leader. Takes about 20 seconds
    #[cfg(target_os = "linux")]
    #[arg(long, conflicts_with = "open")]
    pub(crate) group: bool,

    /// Open the dashboard in the browser
    #[arg(long)]
    pub(crate) open: bool,

    /// Remove this folder of a demonstration as soon as the standard input ends
    #[arg(long, hide = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) sweep: Option<PathBuf>,
}
