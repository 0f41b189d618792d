//! The command lines of `attach`, `list` and `detach`.

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use farblock_host::disk::Policy;
use farblock_host::url::Url;
use farblock_program::args::{ConnectionArgs, Timeout};
use farblock_program::values::{self, DiscoveryAddress, Listen};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use uuid::Uuid;

/// Path selection policies, with the names of the Linux kernel.
const POLICIES: &[&str] = &["numa", "round-robin", "queue-depth"];

/// How farblock offers a disk to this machine.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum As {
    /// The best available: ublk, nbd, fuse; on Windows winspd, iscsi
    #[default]
    Auto,
    /// The kernel's own NVMe host connects; farblock is not in the data path
    Nvme,
    /// A block device of the kernel's ublk driver (Linux 6.5)
    Ublk,
    /// A block device of the kernel's NBD client, or an NBD server for programs
    Nbd,
    /// A file in a FUSE mount and, for root, a loop device on it
    Fuse,
    /// A socket for a virtual machine's disk
    VhostUser,
    /// An iSCSI target on this machine, for its initiators
    Iscsi,
    /// A disk of Windows through WinSpd's driver
    Winspd,
}

#[cfg(any(target_os = "linux", windows))]
impl As {
    /// The name of this variant on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no way is hidden");
        value.get_name().to_owned()
    }
}

/// Attach a remote disk to this machine
///
/// Returns as soon as the disk can be used, and prints its path. A daemon then serves the disk,
/// reconnects after network failures, and is restarted if it dies. On SIGTERM it stops after the
/// last user has closed the disk. `farblock detach` stops it at once, or lists the users of the
/// disk.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  farblock attach 'nvme+tcp://192.0.2.7/NQN?ns=1'
  farblock attach 'nvme+tcp://192.0.2.7/NQN?ns=1' --as vhost-user --socket /run/vm1.sock
  farblock attach 'nvme+tcp://10.0.0.1/NQN?ns=1' 'nvme+tcp://10.0.1.1/NQN?ns=1' --name data
  farblock attach --all 192.0.2.7                     all namespaces of that service
  farblock attach --restore data --foreground         as in farblock-attach@data.service
The keys of a configuration file are the names of the options:
  urls = [\"nvme+tcp://10.0.0.1/NQN?ns=1\"]
  as = \"auto\"
  ctrl-loss-timeout = \"never\"")]
pub struct AttachArgs {
    /// The namespace to attach; several URLs are paths to the same namespace. If the disk is
    /// already attached, further addresses of it become additional paths
    #[arg(value_name = "URL", required_unless_present_any = ["all", "config", "restore"])]
    pub urls: Vec<Url>,

    /// Way to attach: auto, nvme, ublk, nbd, fuse, vhost-user or iscsi; on Windows auto, winspd,
    /// iscsi or nbd [default: auto]
    #[arg(id = "as", long = "as", value_name = "WAY", hide_possible_values = true)]
    pub way: Option<As>,

    /// The attachment's name [default: fb0, fb1, …]
    #[arg(long)]
    pub name: Option<String>,

    /// Read URLs and options from a TOML file; options on the command line override it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "urls")]
    pub config: Option<PathBuf>,

    /// Read /etc/farblock/attach.d/NAME.toml instead, and name the attachment NAME (on Windows
    /// %ProgramData%\farblock\attach.d\NAME.toml)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["urls", "config", "name"])]
    pub restore: Option<String>,

    /// Attach every namespace of every subsystem that this discovery service lists, over all
    /// addresses of each subsystem
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = values::discovery_address)]
    #[arg(conflicts_with_all = ["urls", "config", "restore", "name", "foreground", "socket"])]
    #[arg(conflicts_with_all = ["listen", "mountpoint", "serial", "uuid"])]
    pub all: Option<DiscoveryAddress>,

    /// Stay in the foreground, for a service manager (notifies systemd when the disk is ready)
    #[arg(long)]
    pub foreground: bool,

    /// Print JSON instead of a sentence
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub(crate) disk: DiskArgs,

    #[command(flatten)]
    pub(crate) offer: OfferArgs,

    #[command(flatten)]
    pub(crate) digests: ConnectionArgs,

    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

/// Options of the host's connections, with the names of nvme-cli.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Connection")]
pub(crate) struct DiskArgs {
    /// Refuse a namespace with another UUID than this one (`farblock id` shows it)
    #[arg(long, value_name = "UUID", value_parser = values::uuid)]
    pub(crate) uuid: Option<Uuid>,

    /// How to choose a path: numa, round-robin or queue-depth [default: numa]
    #[arg(long, alias = "io-policy", value_name = "POLICY", hide_possible_values = true)]
    #[arg(value_parser = values::one_of(POLICIES, Policy::from_str))]
    pub(crate) iopolicy: Option<Policy>,

    /// The longest pause between reconnect attempts [default: 10s]
    #[arg(long, short = 'c', alias = "reconnect_delay", value_name = "TIME")]
    #[arg(value_parser = values::seconds)]
    pub(crate) reconnect_delay: Option<Duration>,

    /// Give up a lost path after this time, or never (-1) [default: 10m]
    #[arg(long, short = 'l', aliases = ["ctrl-loss-tmo", "ctrl_loss_tmo"], value_name = "TIME")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) ctrl_loss_timeout: Option<Timeout>,

    /// Fail I/O after this time without a usable path; otherwise I/O waits [default: never]
    #[arg(long, aliases = ["fast-io-fail-tmo", "fast_io_fail_tmo"], value_name = "TIME")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) fast_io_fail_timeout: Option<Timeout>,

    /// Close a connection after this time without an answer; 0 for never [default: 5s]
    #[arg(long, short = 'k', aliases = ["keep-alive-tmo", "keep_alive_tmo"], value_name = "TIME")]
    #[arg(value_parser = values::seconds)]
    pub(crate) keep_alive: Option<Duration>,

    /// Retry for this time if the target is not reachable at first; 0 for one attempt [default: 0]
    #[arg(long, value_name = "TIME", value_parser = values::seconds)]
    pub(crate) connect_wait: Option<Duration>,

    /// Resend lost writes after this time if the target cannot reset lost controllers; a shorter
    /// time than the default risks undoing later writes [default: 2 or 3 times --keep-alive]
    #[arg(long, value_name = "TIME", value_parser = values::seconds)]
    pub(crate) quiesce: Option<Duration>,
}

/// Options of the way in which farblock offers the disk.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Offer")]
pub(crate) struct OfferArgs {
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Allow a second writable attachment of a namespace on this machine; safe only for software
    /// that shares disks, such as cluster file systems
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) shared: bool,

    /// Create no block device: only the file (fuse) or the server (nbd)
    #[arg(long)]
    pub(crate) no_device: bool,

    /// Unix socket to listen on (nbd, vhost-user) [default: in the runtime directory]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,

    /// TCP address to listen on (nbd, iscsi); it must be one of this machine [default port: 10809
    /// for nbd, 3260 for iscsi]
    #[arg(long, value_name = "ADDR[:PORT]", conflicts_with = "socket")]
    pub(crate) listen: Option<Listen>,

    /// An empty directory to mount on (fuse) [default: in the runtime directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) mountpoint: Option<PathBuf>,

    /// Let other users access the file (fuse)
    #[arg(long)]
    pub(crate) allow_other: bool,

    /// The disk's serial number in the virtual machine (vhost-user) [default: the attachment's
    /// name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) serial: Option<String>,

    /// Number of threads, each with its own connections; for vhost-user, queues of the disk
    #[arg(long, alias = "queues", value_name = "N")]
    #[arg(value_parser = values::within::<u16>(1..=64))]
    pub(crate) threads: Option<u16>,

    /// Keep all rights of the process that serves the disk, for debugging
    #[cfg(target_os = "linux")]
    #[arg(long)]
    pub(crate) no_sandbox: bool,
}

/// The option for the directory of the attachments.
#[derive(Args, Debug, Clone)]
pub struct RuntimeArgs {
    /// Directory of the attachments [default: $FARBLOCK_RUNTIME_DIR, or /run/farblock for root and
    /// $XDG_RUNTIME_DIR/farblock for others; on Windows %ProgramData%\farblock\run for an
    /// administrator and %LOCALAPPDATA%\farblock\run for others]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub runtime_dir: Option<PathBuf>,
}

/// List the attached disks
///
/// Lists an attachment whose daemon is dead as stale, and removes its remains if no process uses
/// the disk.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock list
  farblock list --metrics > farblock.prom.new && mv farblock.prom.new \\
    /var/lib/prometheus/node-exporter/farblock.prom")]
pub struct ListArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,

    /// Print states and counters in Prometheus' text format, for node_exporter's textfile collector
    ///
    /// Attachments measure latencies only after the first call with this option.
    #[arg(long, conflicts_with = "json")]
    pub metrics: bool,

    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

/// Detach disks
///
/// Does not detach a disk that is in use, and lists its users. Detaches the other disks in any
/// case. Flushes all writes first.
#[derive(Args, Debug)]
pub struct DetachArgs {
    /// Names or paths of attachments, as `farblock list` shows them
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    pub names: Vec<String>,

    /// Detach all disks
    #[arg(long)]
    pub all: bool,

    /// Detach even while in use: programs that use the disk get errors, and lose unwritten data
    #[arg(long)]
    pub force: bool,

    /// First unmount its file systems, and stop swap, LVM, RAID, crypt and loop devices on it
    #[cfg(target_os = "linux")]
    #[arg(long)]
    pub unmount: bool,

    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

/// Authenticate this host again on attached disks
///
/// Each connected path reads its secret file and authenticates again while the disk stays in use.
/// Run this after you changed a secret, to find out whether the target accepts the new one. Paths
/// that are not connected use the new secret when they reconnect. Only admin queues authenticate
/// again; I/O queues are not affected. A target that rejects the secret closes the connection, so
/// configure the target to accept both secrets first.
#[derive(Args, Debug)]
pub struct AuthenticateArgs {
    /// Names or paths of attachments, as `farblock list` shows them
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

/// Attach disks when Windows starts
///
/// The service attaches the disks that the files in %ProgramData%\farblock\attach.d describe (see
/// `farblock attach --restore`), retries until each is attached, and detaches them when it stops.
/// Requires administrator rights.
#[derive(Args, Debug)]
pub struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) command: ServiceCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ServiceCommand {
    /// Register this program, at its current path, as a Windows service
    Install,
    /// Stop and unregister the service; disks in use stay attached
    Remove,
    /// The service's entry point, for Windows
    #[command(hide = true)]
    Run,
}

/// The arguments of an attachment's processes.
#[derive(Args, Debug)]
pub struct PartArgs {
    #[command(subcommand)]
    pub(crate) part: ProcessPart,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ProcessPart {
    /// Runs the server, and restarts it if it dies
    Supervise { folder: PathBuf },
    /// Serves the disk
    Serve { folder: PathBuf },
    /// Creates, changes or removes a loop device
    Loop { task: String },
    /// Performs mounts and other privileged operations for a server that has dropped its rights
    Device { folder: PathBuf },
    /// Unmounts a path, in the mount namespace of process `of` if given
    Unmount { path: PathBuf, of: Option<u32> },
    /// Reads keys from the kernel's keyring for a server that has dropped its rights
    Keys { subsystems: Vec<String> },
}
