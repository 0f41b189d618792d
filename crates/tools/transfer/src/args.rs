//! The command lines of `read`, `write` and `copy`.

use clap::{Args, ValueHint};
use farblock_host::url::Url;
pub(crate) use farblock_program::args::Global;
use farblock_program::args::{ConnectionArgs, Timeout};
use farblock_program::values;
use std::ffi::OsString;
use std::path::PathBuf;

/// Options that all transfers share.
#[derive(Args, Debug, Clone)]
pub(crate) struct TransferArgs {
    #[command(flatten)]
    pub(crate) digests: ConnectionArgs,

    /// Record progress, so that the same command continues after an interruption
    #[arg(long)]
    pub(crate) resume: bool,

    /// After the transfer, read both ends again and compare them
    #[arg(long)]
    pub(crate) verify: bool,

    /// Time after which the command gives up a lost connection, or a target that denies access; -1
    /// means never [default: 10m for a lost connection, 1m for a target that denies access]
    #[arg(long, aliases = ["ctrl-loss-tmo", "ctrl_loss_tmo"], value_name = "TIME")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) ctrl_loss_timeout: Option<Timeout>,
}

/// Read a range of bytes from a remote namespace into a file or pipe
///
/// The new output file replaces the old one only when it is complete and durable. Blocks of zeroes
/// become holes in the file. On a terminal the command shows a progress bar.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock read 'nvme+tcp://192.0.2.7/NQN?ns=1' --output backup.img
  farblock read 'nvme+tcp://192.0.2.7/NQN?ns=1' --length 512 | xxd | head")]
pub struct ReadArgs {
    /// The namespace
    #[arg(value_name = "URL")]
    pub(crate) url: Url,

    /// Offset of the first byte, in bytes or with a unit (4096, 4KiB, 1G)
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::bytes)]
    pub(crate) offset: u64,

    /// Number of bytes [default: up to the namespace's end]
    #[arg(long, value_name = "N", value_parser = values::bytes)]
    pub(crate) length: Option<u64>,

    /// Output file; - is the standard output
    #[arg(long, short, value_name = "FILE", default_value = "-", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,

    #[command(flatten)]
    pub(crate) transfer: TransferArgs,

    /// Print a summary as JSON on the standard output (needs --output FILE)
    #[arg(long)]
    pub json: bool,
}

/// Write a file or pipe to a range of bytes of a remote namespace
///
/// After success the data is durable, because the target has completed a flush. The range may start
/// or end inside a block. Then the command reads that block, and writes it back with the new bytes;
/// no other host should write to the block meanwhile.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock write 'nvme+tcp://192.0.2.7/NQN?ns=1' --input disk.img
  zcat backup.gz | farblock write 'nvme+tcp://192.0.2.7/NQN?ns=1'
  echo hello | farblock write 'nvme+tcp://192.0.2.7/NQN?ns=1' --offset 1MiB")]
pub struct WriteArgs {
    /// The namespace
    #[arg(value_name = "URL")]
    pub(crate) url: Url,

    /// Offset of the first byte, in bytes or with a unit (4096, 4KiB, 1G)
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::bytes)]
    pub(crate) offset: u64,

    /// Number of bytes; shorter input is an error [default: all of the input]
    #[arg(long, value_name = "N", value_parser = values::bytes)]
    pub(crate) length: Option<u64>,

    /// Input file; - is the standard input
    #[arg(long, short, value_name = "FILE", default_value = "-", value_hint = ValueHint::FilePath)]
    pub(crate) input: PathBuf,

    #[command(flatten)]
    pub(crate) transfer: TransferArgs,

    /// Print a summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// Copy a remote namespace or a file to another one
///
/// A new destination file replaces the old one only when it is complete and durable. Blocks of
/// zeroes become holes. If the destination is a namespace or a block device, the command overwrites
/// it in place. Such a destination must be large enough, and keeps its bytes after the copied
/// range. mem:, null: and stripe: work as in `farblock serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock copy disk.img 'nvme+tcp://192.0.2.7/NQN?ns=1'
  farblock copy 'nvme+tcp://192.0.2.7/NQN?ns=1' 'nvme+tcp://192.0.2.8/NQN?ns=1'
  farblock copy 'nvme+tcp://192.0.2.7/NQN?ns=1' null:1TiB        measure the read speed")]
pub struct CopyArgs {
    /// Source: a URL or a file
    #[arg(value_name = "SRC", value_hint = ValueHint::FilePath)]
    pub(crate) source: OsString,

    /// Destination: a URL or a file
    #[arg(value_name = "DST", value_hint = ValueHint::FilePath)]
    pub(crate) destination: OsString,

    /// Number of bytes from the start [default: all of SRC]
    #[arg(long, value_name = "N", value_parser = values::bytes)]
    pub(crate) length: Option<u64>,

    #[command(flatten)]
    pub(crate) transfer: TransferArgs,

    /// Print a summary as JSON
    #[arg(long)]
    pub json: bool,
}
