//! The command lines of `attach`, `list` and `detach`.

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use farblock_command::args::ConnectionArgs;
use farblock_command::values::{self, DiscoveryAddress, Listen};
use farblock_host::disk::Policy;
use farblock_host::url::Url;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use uuid::Uuid;

/// The ways to choose among paths, as the kernel calls them.
const POLICIES: &[&str] = &["numa", "round-robin", "queue-depth"];

/// How a disk is offered to this machine.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum As {
    /// The best that is there: ublk, nbd, fuse; on Windows winspd, iscsi
    #[default]
    Auto,
    /// The kernel's own host connects, and nothing of farblock's is in the way
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
    /// As the command line has it.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no way is hidden");
        value.get_name().to_owned()
    }
}

/// A time after which to give up, or none: `10m`, `never`, and `-1` as nvme-cli has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(into = "String")]
pub struct Timeout(pub Option<Duration>);

impl FromStr for Timeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Timeout, String> {
        match text {
            "never" | "off" | "-1" => Ok(Timeout(None)),
            text => values::seconds(text)
                .map(|time| Timeout(Some(time)))
                .map_err(|error| format!("{error}, or never")),
        }
    }
}

impl From<Timeout> for String {
    fn from(timeout: Timeout) -> String {
        timeout.0.map_or("never".to_owned(), in_words)
    }
}

/// A time as the command line takes it.
pub fn in_words(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

/// Attach a remote disk to this machine
///
/// Returns when the disk can be used, and says how. A daemon serves it from then on, reconnects
/// when the network comes and goes, and is started again if it dies. SIGTERM asks it to end when
/// nobody uses the disk any more; `farblock detach` ends it at once, or says who uses it.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  farblock attach 'nvme+tcp://192.0.2.7/NQN?ns=1'
  farblock attach 'nvme+tcp://192.0.2.7/NQN?ns=1' --as vhost-user --socket /run/vm1.sock
  farblock attach 'nvme+tcp://10.0.0.1/NQN?ns=1' 'nvme+tcp://10.0.1.1/NQN?ns=1' --name data
  farblock attach --all 192.0.2.7                     all that is there
  farblock attach --restore data --foreground         what farblock-attach@data.service does
A file has the options' names as keys:
  urls = [\"nvme+tcp://10.0.0.1/NQN?ns=1\"]
  as = \"auto\"
  ctrl-loss-timeout = \"never\"")]
pub struct AttachArgs {
    /// The namespace; several are paths to the same one. Another address of a disk that is attached
    /// adds a path to it
    #[arg(value_name = "URL", required_unless_present_any = ["all", "config", "restore"])]
    pub urls: Vec<Url>,

    /// How: auto, nvme, ublk, nbd, fuse, vhost-user or iscsi; on Windows auto, winspd, iscsi or nbd
    /// [default: auto]
    #[arg(id = "as", long = "as", value_name = "WAY", hide_possible_values = true)]
    pub way: Option<As>,

    /// What to call it [default: fb0, fb1, …]
    #[arg(long)]
    pub name: Option<String>,

    /// URLs and options from a TOML file; options here come before those there
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "urls")]
    pub config: Option<PathBuf>,

    /// The same from /etc/farblock/attach.d/NAME.toml, and call it so (on Windows
    /// %ProgramData%\farblock\attach.d\NAME.toml)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["urls", "config", "name"])]
    pub restore: Option<String>,

    /// Every namespace of every subsystem that this machine knows of; those with several addresses
    /// over all of them
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = values::discovery_address)]
    #[arg(conflicts_with_all = ["urls", "config", "restore", "name", "foreground", "socket"])]
    #[arg(conflicts_with_all = ["listen", "mountpoint", "serial", "uuid"])]
    pub all: Option<DiscoveryAddress>,

    /// Stay in the foreground, for a service manager (tells systemd when it is ready)
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

/// How the disk is kept; named as nvme-cli names it.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Connection")]
pub(crate) struct DiskArgs {
    /// The namespace's UUID, as `farblock id` shows it: another one is refused
    #[arg(long, value_name = "UUID", value_parser = values::uuid)]
    pub(crate) uuid: Option<Uuid>,

    /// Which path an operation takes: numa, round-robin or queue-depth [default: numa]
    #[arg(long, alias = "io-policy", value_name = "POLICY", hide_possible_values = true)]
    #[arg(value_parser = values::one_of(POLICIES, Policy::from_str))]
    pub(crate) iopolicy: Option<Policy>,

    /// The longest pause between attempts to reconnect [default: 10s]
    #[arg(long, short = 'c', alias = "reconnect_delay", value_name = "TIME")]
    #[arg(value_parser = values::seconds)]
    pub(crate) reconnect_delay: Option<Duration>,

    /// Give a lost path up after this time, or never (-1) [default: 10m]
    #[arg(long, short = 'l', aliases = ["ctrl-loss-tmo", "ctrl_loss_tmo"], value_name = "TIME")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) ctrl_loss_timeout: Option<Timeout>,

    /// Fail I/O when no path was there for this time; it waits otherwise [default: never]
    #[arg(long, aliases = ["fast-io-fail-tmo", "fast_io_fail_tmo"], value_name = "TIME")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) fast_io_fail_timeout: Option<Timeout>,

    /// Give a silent connection up after this time; 0 for never [default: 5s]
    #[arg(long, short = 'k', aliases = ["keep-alive-tmo", "keep_alive_tmo"], value_name = "TIME")]
    #[arg(value_parser = values::seconds)]
    pub(crate) keep_alive: Option<Duration>,

    /// Go on trying for this time if the target is not there yet; 0: once [default: 0]
    #[arg(long, value_name = "TIME", value_parser = values::seconds)]
    pub(crate) connect_wait: Option<Duration>,

    /// Send lost writes again after this time if the target cannot end lost controllers; less than
    /// the default may undo later writes [default: 2 or 3 times --keep-alive]
    #[arg(long, value_name = "TIME", value_parser = values::seconds)]
    pub(crate) quiesce: Option<Duration>,
}

/// How the disk is offered.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Offer")]
pub(crate) struct OfferArgs {
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Attach what is attached to this machine already, and write to both: only for what is made
    /// for several users at once
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) shared: bool,

    /// Make no block device: only the file (fuse) or the server (nbd)
    #[arg(long)]
    pub(crate) no_device: bool,

    /// Where to listen (nbd, vhost-user) [default: in the runtime directory]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,

    /// Where to listen on TCP (nbd, iscsi), an address of this machine only [default port: 10809
    /// for nbd, 3260 for iscsi]
    #[arg(long, value_name = "ADDR[:PORT]", conflicts_with = "socket")]
    pub(crate) listen: Option<Listen>,

    /// An empty directory to mount at (fuse) [default: in the runtime directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) mountpoint: Option<PathBuf>,

    /// Let other users in (fuse)
    #[arg(long)]
    pub(crate) allow_other: bool,

    /// The disk's serial number in the virtual machine (vhost-user) [default: its name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) serial: Option<String>,

    /// Threads, each with connections of its own; queues of a virtual machine's disk
    #[arg(long, alias = "queues", value_name = "N")]
    #[arg(value_parser = values::within::<u16>(1..=64))]
    pub(crate) threads: Option<u16>,

    /// Give up no rights in the process that serves the disk, for debugging
    #[cfg(target_os = "linux")]
    #[arg(long)]
    pub(crate) no_sandbox: bool,
}

/// Where attachments are kept.
#[derive(Args, Debug, Clone)]
pub struct RuntimeArgs {
    /// Where attachments are kept [default: $FARBLOCK_RUNTIME_DIR, or /run/farblock for root and
    /// $XDG_RUNTIME_DIR/farblock for others; on Windows %ProgramData%\farblock\run for an
    /// administrator and %LOCALAPPDATA%\farblock\run for others]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub runtime_dir: Option<PathBuf>,
}

/// List what is attached to this machine
///
/// What a daemon that is gone has left is shown as stale, and cleaned up if nobody uses it.
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
    /// How long operations take is measured as of the first time.
    #[arg(long, conflicts_with = "json")]
    pub metrics: bool,

    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

/// Detach disks
///
/// Refuses while somebody uses a disk, and says who; others that are named are detached all the
/// same. What was written is flushed before it ends.
#[derive(Args, Debug)]
pub struct DetachArgs {
    /// Its name, as `farblock list` shows it, or its path
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    pub names: Vec<String>,

    /// Everything that is attached
    #[arg(long)]
    pub all: bool,

    /// Detach it even if somebody uses it: programs that use it get errors, and lose what was not
    /// written
    #[arg(long)]
    pub force: bool,

    /// First unmount what is mounted from it, and end swap, LVM, RAID, crypt and loop devices on it
    #[cfg(target_os = "linux")]
    #[arg(long)]
    pub unmount: bool,

    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

/// Have disks prove anew who this host is
///
/// Each path that is connected authenticates with the secret that its file has now, while the disk
/// is used: after a new secret was written there, it is known at once whether it is good. A path
/// that is not connected uses it when it is. Only the admin queues do so; the others stay as they
/// are. A target that does not believe a secret ends the connection, as when it is given for the
/// first time: have it take both secrets before.
#[derive(Args, Debug)]
pub struct AuthenticateArgs {
    /// Its name, as `farblock list` shows it, or its path
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

/// Attach disks when Windows starts
///
/// The service attaches what the files in %ProgramData%\farblock\attach.d describe (see
/// `farblock attach --restore`), tries again until that works, and detaches it when it is stopped.
/// It takes an administrator.
#[derive(Args, Debug)]
pub struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) command: ServiceCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ServiceCommand {
    /// Register the service with Windows, for this program at this place
    Install,
    /// Stop the service, and forget it; disks that are in use stay attached
    Remove,
    /// What Windows runs
    #[command(hide = true)]
    Run,
}

/// The processes of an attachment.
#[derive(Args, Debug)]
pub struct PartArgs {
    #[command(subcommand)]
    pub(crate) part: ProcessPart,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ProcessPart {
    /// Has a server run, and runs the next one if it dies
    Supervise { folder: PathBuf },
    /// Serves the disk
    Serve { folder: PathBuf },
    /// Makes, changes or ends a loop device
    Loop { task: String },
    /// Mounts, unmounts and the like for a process that gave that up
    Device { folder: PathBuf },
    /// Unmounts, in the mount namespace of a process if one is named
    Unmount { path: PathBuf, of: Option<u32> },
    /// Reads keys of the kernel's keyring for a process that gave that up
    Keys { subsystems: Vec<String> },
}
