//! The command line, in clap's derive form.

use crate::attach::args::{
    AttachArgs, AuthenticateArgs, DetachArgs, ListArgs, PartArgs, ServiceArgs,
};
use crate::values::{self, DiscoveryAddress};
use clap::{Args, Parser, Subcommand, ValueHint};
use farblock_doctor::args::DoctorArgs;
use farblock_host::url::Url;
pub(crate) use farblock_program::args::{ConnectionArgs, Global, HostArgs};
use farblock_serve::args::ServeArgs;
use farblock_transfer::args::{CopyArgs, ReadArgs, WriteArgs};
use std::path::PathBuf;

/// Share disks over NVMe/TCP and use them from anywhere, entirely in user space.
///
/// No kernel module, no hugepages, no root.
#[derive(Parser, Debug)]
#[command(name = "farblock", version, propagate_version = true, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  farblock serve disk.img                       share a file on this machine
  farblock serve mem:1GiB --listen 0.0.0.0      share a RAM disk with the network
  farblock discover 192.0.2.7                   list the disks that it shares
  farblock copy backup.img 'nvme+tcp://192.0.2.7:4420/NQN?ns=1'
  farblock attach 'nvme+tcp://192.0.2.7:4420/NQN?ns=1'      use it as a local disk
  farblock bench                                compare a remote disk with a local one
  farblock demo                                 watch a mirrored disk survive faults

The URL of a remote disk is nvme+tcp://HOST[:PORT]/NQN[?ns=ID], or nvme+rdma:// for RDMA; quote it
in a shell.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 stopped by a signal.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,

    /// Print JSON instead of a table
    #[arg(id = "json_before", long = "json", hide = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Serve(Box<ServeArgs>),
    #[cfg(unix)]
    Status(farblock_steer::args::StatusArgs),
    #[cfg(unix)]
    Top(farblock_steer::args::TopArgs),
    #[cfg(unix)]
    Reload(farblock_steer::args::ReloadArgs),
    #[cfg(unix)]
    Config(farblock_steer::args::ConfigArgs),
    #[cfg(unix)]
    Ctl(farblock_steer::args::CtlArgs),
    #[cfg(unix)]
    Demo(farblock_demo::args::DemoArgs),
    #[cfg(unix)]
    Ui(farblock_ui::args::ClusterArgs),
    #[cfg(unix)]
    Fleet(farblock_fleet_command::args::FleetArgs),
    Discover(DiscoverArgs),
    Doctor(Box<DoctorArgs>),
    Id(IdArgs),
    Read(ReadArgs),
    Write(WriteArgs),
    Copy(CopyArgs),
    Attach(Box<AttachArgs>),
    List(ListArgs),
    Authenticate(AuthenticateArgs),
    Detach(DetachArgs),
    #[command(hide = true)]
    Attachment(PartArgs),
    /// Kill the parent process if it still runs when it may no longer lead its group
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Watchdog,
    #[cfg_attr(not(windows), command(hide = true))]
    Service(ServiceArgs),
    Bench(Box<crate::bench::BenchArgs>),
    Completions(CompletionsArgs),
    Whoami(WhoamiArgs),
    Keys(KeysArgs),
}

/// List the subsystems that a machine shares
///
/// Without a port, the command tries the discovery port 8009, and then port 4420, on which
/// `farblock serve` listens.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock discover 192.0.2.7
  farblock discover localhost:4420 --json")]
pub(crate) struct DiscoverArgs {
    /// Address of the machine
    #[arg(value_name = "ADDR[:PORT]", value_parser = values::discovery_address)]
    pub(crate) address: DiscoveryAddress,

    /// File with this host's key for TLS 1.3, if the target requires TLS; or keyring:, as for
    /// `farblock id`
    #[arg(long, alias = "tls_key", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) host: HostArgs,

    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Describe a controller and its namespaces
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  farblock id 'nvme+tcp://192.0.2.7:4420/nqn.2026-11.org.example:disks'")]
pub(crate) struct IdArgs {
    /// URL of the subsystem, or of one namespace (with ?ns=ID)
    #[arg(value_name = "URL")]
    pub(crate) url: Url,

    #[command(flatten)]
    pub(crate) digests: ConnectionArgs,

    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make and inspect secrets for authentication (DH-HMAC-CHAP, KX-HMAC-CHAP) and keys for TLS
///
/// The formats are nvme-cli's: DHHC-1:hh:…: and NVMeTLSkey-1:hh:…:
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock keys new --output host.key
  farblock serve disk.img --host-key nqn.2014-08.org.nvmexpress:uuid:...=host.key
  farblock id 'nvme+tcp://192.0.2.7/NQN' --dhchap-secret host.key
  nvme connect --transport=tcp ... --dhchap-secret=\"$(farblock keys show --secret host.key)\"
  farblock keys new --tls --output tls.key
  nvme gen-tls-key ... > tls.key && chmod 600 tls.key && farblock keys check tls.key
  farblock keys pair HOSTNQN SUBNQN tls.key --tls
  farblock keys derive tls.key --host nqn.2014-08.org.nvmexpress:uuid:... --subsystem NQN")]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum KeysCommand {
    /// Make a secret, or a key for TLS
    New(NewKeyArgs),
    /// Describe the contents of a key file
    Show {
        /// The key file
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,

        /// Print the secret itself, the newest one if the file has two
        #[arg(long)]
        secret: bool,
    },
    /// Check a key file: exit with 0 if the file is valid, or print the reason if it is not
    Check {
        /// The key file
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// List the TLS identities of a key, to compare them with the identities at the other end
    Derive(DeriveArgs),
    /// Print the commands that install a key for a host and a subsystem: for farblock, nvme-cli,
    /// the kernel's target and SPDK
    Pair(PairArgs),
}

/// Options of `farblock keys pair`.
#[derive(Args, Debug)]
pub(crate) struct PairArgs {
    /// The host's name, as `farblock whoami` prints it on the host
    #[arg(value_name = "HOSTNQN", value_parser = values::nqn)]
    pub(crate) host: String,

    /// The subsystem's name
    #[arg(value_name = "SUBNQN", value_parser = values::nqn)]
    pub(crate) subsystem: String,

    /// The key file, which the command creates if it does not exist [default: host.key or tls.key
    /// in the current folder]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,

    /// Make a key for TLS, not a secret for authentication
    #[arg(long)]
    pub(crate) tls: bool,

    /// Hash function of a new key, as in `farblock keys new`
    #[arg(long, visible_alias = "hmac", value_name = "HASH", value_parser = values::hash)]
    pub(crate) hash: Option<farblock_secure::Hash>,
}

/// Options of `farblock keys derive`: the host and subsystem that share a TLS key.
#[derive(Args, Debug)]
pub(crate) struct DeriveArgs {
    /// The key file
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// The host
    #[arg(long, visible_alias = "hostnqn", value_name = "NQN", value_parser = values::nqn)]
    pub(crate) host: String,

    /// The subsystem
    #[arg(long, visible_alias = "subsysnqn", value_name = "NQN", value_parser = values::nqn)]
    pub(crate) subsystem: String,
}

/// Options of `farblock keys new`.
#[derive(Args, Debug)]
pub(crate) struct NewKeyArgs {
    /// Make a key for TLS: for AES-128-GCM (--hash sha256, the default) or AES-256-GCM (sha384)
    #[arg(long, conflicts_with = "length")]
    pub(crate) tls: bool,

    /// The secret's length in bytes: 32, 48 or 64 [default: the output length of --hash, or 32]
    #[arg(long, visible_alias = "key-length", value_name = "BYTES")]
    #[arg(value_parser = values::key_length)]
    pub(crate) length: Option<usize>,

    /// Hash function that transforms the secret with its owner's NQN before use: sha256, sha384 or
    /// sha512 [default: no transformation]
    #[arg(long, visible_alias = "hmac", value_name = "HASH", value_parser = values::hash)]
    pub(crate) hash: Option<farblock_secure::Hash>,

    /// Write to this new file, which only you can read [default: the standard output]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

/// Show the NQN and the host identifier that this host sends to targets, and their source
///
/// A target admits hosts by their NQN (serve --allow-host); reservations use the host identifier.
/// Two machines must not have the same NQN or the same identifier.
#[derive(Args, Debug)]
#[command(after_help = "\
To set them:
  nvme gen-hostnqn > /etc/nvme/hostnqn          for this machine, as for nvme-cli (also hostid)
  farblock id URL --hostnqn NQN --hostid UUID   for one command (any command that connects)
  nvme+tcp://HOST/NQN?hostnqn=NQN&hostid=UUID   for one connection")]
pub(crate) struct WhoamiArgs {
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  farblock completions bash > ~/.local/share/bash-completion/completions/farblock")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", required_unless_present_any = ["known", "manuals"])]
    pub(crate) shell: Option<clap_complete::Shell>,

    /// Print attachments or a target's objects that complete the last word: for completion scripts
    #[arg(long, hide = true, value_name = "WORD", num_args = 0.., allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["shell", "manuals"])]
    pub(crate) known: Option<Vec<String>>,

    /// Write the manual pages into this folder: for packages
    #[arg(long, hide = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    #[arg(conflicts_with = "shell")]
    pub(crate) manuals: Option<PathBuf>,
}
