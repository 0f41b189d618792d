//! The command line of the benchmark.

use clap::{Args, ValueHint};
use farblock_bench::Rw;
use farblock_program::args::ConnectionArgs;
use farblock_program::values::{self, FloorPlace};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// fio's names of directions and orders.
const RW: &[&str] = &["read", "write", "randread", "randwrite", "rw", "randrw"];

/// The patterns and disks to measure, the method, and the files for the report.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// A local disk (a path as in `farblock serve`), then a remote one (a URL); either or both
    #[arg(value_name = "LOCAL|REMOTE-URL", num_args = 0..=2, value_hint = ValueHint::AnyPath)]
    pub(crate) disks: Vec<OsString>,

    /// Measure one pattern: read, write, randread, randwrite, rw or randrw
    #[arg(long, value_name = "RW", help_heading = "Load", hide_possible_values = true)]
    #[arg(value_parser = values::one_of(RW, Rw::from_str))]
    pub(crate) rw: Option<Rw>,

    /// Bytes of one I/O (with --rw) [default: 4k]
    #[arg(long, value_name = "SIZE", value_parser = values::fio_block_size, requires = "rw")]
    #[arg(help_heading = "Load")]
    pub(crate) bs: Option<u32>,

    /// I/Os that each job keeps in flight (with --rw) [default: 1]
    #[arg(long, value_name = "N", requires = "rw", help_heading = "Load")]
    #[arg(value_parser = values::within::<u32>(1..=65_535))]
    pub(crate) iodepth: Option<u32>,

    /// Jobs, each with its own queues (with --rw) [default: 1]
    #[arg(long, value_name = "N", requires = "rw", help_heading = "Load")]
    #[arg(value_parser = values::within::<u32>(1..=1024))]
    pub(crate) numjobs: Option<u32>,

    /// Connections that each job divides its I/Os among
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    #[arg(value_parser = values::within::<u32>(1..=65_535))]
    pub(crate) connections: u32,

    /// Maximum number of I/Os that each job starts per second (with --rw) [default: no limit]
    #[arg(long, alias = "rate_iops", value_name = "N", requires = "rw", help_heading = "Load")]
    #[arg(value_parser = values::within::<u32>(1..=u32::MAX))]
    pub(crate) rate_iops: Option<u32>,

    /// Percentage of reads for rw and randrw [default: 50]
    #[arg(long, value_name = "PERCENT", requires = "rw", help_heading = "Load")]
    #[arg(value_parser = values::within::<u8>(0..=100))]
    pub(crate) rwmixread: Option<u8>,

    /// Measure only the standard patterns whose names contain one of these words (4k, random-read,
    /// …)
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "rw")]
    #[arg(help_heading = "Load")]
    pub(crate) patterns: Vec<String>,

    /// Measured time of each run, in seconds [default: 5]
    #[arg(long, value_name = "TIME", value_parser = values::seconds, help_heading = "Load")]
    pub(crate) runtime: Option<Duration>,

    /// Unmeasured time at the start of each run, in seconds [default: 1]
    #[arg(long, value_name = "TIME", value_parser = values::seconds, help_heading = "Load")]
    pub(crate) ramp_time: Option<Duration>,

    /// Runs of each pattern and disk, averaged; `farblock bench compare` needs several to tell a
    /// change from chance [default: 1]
    #[arg(long, value_name = "N", value_parser = values::within::<u32>(1..=1000))]
    #[arg(help_heading = "Load")]
    pub(crate) runs: Option<u32>,

    /// Repeat the runs, up to 10 of each, until the ratio of the disks is known to within 5 % (95 %
    /// confidence)
    #[arg(long, conflicts_with = "runs", help_heading = "Load")]
    pub(crate) until_known: bool,

    /// Size of the disk file, or the part to use of each disk [default: 1g if there is room]
    #[arg(long, value_name = "SIZE", value_parser = values::fio_size, help_heading = "Load")]
    pub(crate) size: Option<u64>,

    /// Use the full method: a warm-up, and three longer runs that are averaged (about half an hour)
    #[arg(long, help_heading = "Load")]
    pub(crate) full: bool,

    /// Also run the same load on bare sockets: the limit of the network
    ///
    /// The floor has no protocol and no disk, and writes nothing. Without an address, both ends are
    /// in this process, over loopback; with an address, the other end is a `farblock bench
    /// --floor-serve` there. Without disks and --rw the floor is measured anyway, a second for each
    /// pattern; none disables it.
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::floor_driven)]
    #[arg(num_args = 0..=1, default_missing_value = values::FLOOR_HERE)]
    #[arg(conflicts_with = "rate_iops", help_heading = "Floor")]
    pub(crate) floor: Option<FloorPlace>,

    /// Serve the other end of --floor for another machine, until SIGINT or SIGTERM
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::floor_served)]
    #[arg(conflicts_with_all = ["disks", "floor", "rw", "patterns", "runtime", "ramp_time"])]
    #[arg(conflicts_with_all = ["size", "full", "allow_writes", "directory", "json_file", "html"])]
    #[arg(help_heading = "Floor")]
    pub(crate) floor_serve: Option<SocketAddr>,

    /// Allow writes that destroy the data on LOCAL and REMOTE-URL
    #[arg(long)]
    pub(crate) allow_writes: bool,

    /// Directory for the disk file [default: the first with a real disk]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "disks")]
    pub(crate) directory: Option<PathBuf>,

    /// Bytes in a block of a LOCAL file: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value = "512", hide_possible_values = true)]
    #[arg(value_parser = values::one_of(values::BLOCK_SIZES, values::block_size))]
    pub(crate) block_size: u32,

    /// ID of the target's process, whose processor time counts, if it runs on this machine
    #[arg(long, value_name = "PID", requires = "disks")]
    #[arg(value_parser = values::within::<u32>(1..=u32::MAX))]
    pub(crate) target_pid: Option<u32>,

    #[command(flatten)]
    pub(crate) digests: ConnectionArgs,

    /// Write all results as JSON (- is the standard output, instead of the table)
    #[arg(id = "json_file", long = "json", value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = "Reports")]
    pub(crate) json: Option<PathBuf>,

    /// Write one self-contained page with charts
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Reports")]
    pub(crate) html: Option<PathBuf>,

    /// Do not split wide tables [default: fit the terminal, or 80 columns]
    #[arg(long, help_heading = "Reports")]
    pub(crate) wide: bool,
}
