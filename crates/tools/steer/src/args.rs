//! Command-line arguments of requests to a running target.

use crate::values;
use clap::{Args, Subcommand, ValueHint};
use farblock_state::{Ana, Entrance, MAX_BURST_MS, MAX_WEIGHT, Tls};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The Diffie-Hellman groups by the names of [`farblock_secure::Group`], and `all` for any group.
const DH_GROUPS: [&str; 7] =
    ["null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192", "all"];

/// Selects the running target by its control socket or URL.
#[derive(Args, Debug)]
pub(crate) struct ControlArgs {
    /// The target's control socket [default: the only target of this user]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) control: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
}

/// Selects a target by the URL of its management API.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct RemoteArgs {
    /// URL of the target's management API (serve --api), such as http://127.0.0.1:8420 or
    /// https://HOST:8420
    #[arg(long, global = true, value_name = "URL", conflicts_with = "control")]
    pub(crate) api: Option<String>,

    /// File with the token for --api (mode 600)
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,

    /// File with the CA certificate for https://, or with the target's own certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires = "api")]
    pub(crate) api_ca: Option<PathBuf>,
}

/// Show the disks that a running target shares, and its hosts
///
/// Without --control and --api this also names the disks that are attached to this machine;
/// `farblock list` shows them in detail. With --json the command prints the target's answer.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock status
  farblock status --watch                       every second, with rates
  farblock status --json | jq '.controllers[].host_nqn'")]
pub struct StatusArgs {
    #[command(flatten)]
    pub(crate) which: ControlArgs,

    /// Repeat every second, with rates
    #[arg(long, short)]
    pub(crate) watch: bool,

    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Show the activity of a running target, live: by namespace, host and core
///
/// Press n, h or c to choose the view, the arrows to choose the column to sort by, and q to quit.
/// Latencies are averages at the target, without the network. With --fleet, or if no target runs on
/// this machine, the command shows the agents of the fleet that runs on it.
#[derive(Args, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    pub(crate) which: ControlArgs,

    /// Print the tables of one second and exit; needs no terminal
    #[arg(long, conflicts_with = "fleet")]
    pub(crate) once: bool,

    /// Show the fleet that runs on this machine (farblock fleet run) instead of a target
    #[arg(long, conflicts_with_all = ["control", "api"])]
    pub(crate) fleet: bool,
}

/// Make a running target read its configuration file again
///
/// The target applies the changes in the file, all of them or none. Hosts stay connected, and
/// changes by farblock ctl stay. SIGHUP does the same.
#[derive(Args, Debug)]
pub struct ReloadArgs {
    #[command(flatten)]
    pub(crate) which: ControlArgs,
}

/// Show or convert the configuration of a target
#[derive(Args, Debug)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) what: ConfigCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// Print a running target's state, as JSON
    Show(ControlArgs),
    /// Show what a reload of the configuration file would change
    Diff(ControlArgs),
    /// Convert another target's configuration to farblock's, and print it
    ///
    /// FILE comes from nvmetcli, or from SPDK's save_config. A comment in the output names each
    /// setting that could not be converted.
    Import {
        /// The other target's configuration, JSON
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// Change what a running target shares
///
/// Hosts stay connected and are notified. Without serve --persist, a restart undoes the change.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock ctl add-namespace NQN disk.img
  farblock ctl resize NQN 1 20GiB
  farblock ctl read-only NQN 1 on
  farblock ctl replace-namespace NQN 1 other.img
  farblock ctl allow-host NQN nqn.2014-08.org.nvmexpress:uuid:... --key host.key")]
pub struct CtlArgs {
    #[command(subcommand)]
    pub(crate) change: Change,

    /// The target's control socket [default: the only target of this user]
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) control: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Allows a host to connect, and sets its keys.
#[derive(Args, Debug)]
pub(crate) struct AllowHostArgs {
    #[arg(value_parser = values::subsystem)]
    pub(crate) nqn: String,
    #[arg(value_parser = values::nqn)]
    pub(crate) host: String,
    /// Require authentication with the secret in FILE (`farblock keys new` makes one); run the same
    /// command again to load a changed file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key: Option<PathBuf>,
    /// Authenticate the target to this host, with the secret in FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "key")]
    pub(crate) controller_key: Option<PathBuf>,
    /// Require this host identifier (HOSTID), and reserve it for this host: reservations use it
    #[arg(long, value_name = "UUID", value_parser = values::host_id)]
    pub(crate) host_id: Option<uuid::Uuid>,
    /// Require TLS 1.3 with the key in FILE (`farblock keys new --tls` makes one); run the same
    /// command again to load a changed file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Require authentication of the host (auth: its key then cannot be removed), of host and
    /// target (mutual), TLS with a key from authentication (concat), or only what the host's keys
    /// imply (none)
    #[arg(long, value_name = "WHAT", value_parser = ["auth", "mutual", "concat", "none"])]
    pub(crate) demand: Option<String>,
    /// Hash functions for the host's authentication, preferred first; all: any
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "no_key")]
    #[arg(value_parser = ["sha256", "sha384", "sha512", "all"], hide_possible_values = true)]
    pub(crate) hashes: Vec<String>,
    /// Diffie-Hellman groups for the host's authentication, preferred first (null,
    /// ffdhe2048…ffdhe8192); all: any
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "no_key")]
    #[arg(value_parser = DH_GROUPS, hide_possible_values = true)]
    pub(crate) dhgroups: Vec<String>,
    /// Remove the host's authentication key: a host without a TLS key then needs only its name to
    /// connect
    #[arg(long, conflicts_with = "key")]
    pub(crate) no_key: bool,
    /// Remove the host's TLS key: the host may then connect without TLS
    #[arg(long, conflicts_with = "tls_key")]
    pub(crate) no_tls_key: bool,
}

/// The disk of a namespace, and the disk's identifiers.
#[derive(Args, Debug)]
pub(crate) struct DiskArgs {
    /// The disk, in the form that farblock serve takes
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: OsString,
    /// Block size in bytes: 512 or 4096 [default: 512, or the replaced disk's]
    #[arg(long, value_name = "BYTES", hide_possible_values = true)]
    #[arg(value_parser = values::one_of(values::BLOCK_SIZES, values::block_size))]
    pub(crate) block_size: Option<u32>,
    /// Share only this many bytes of the disk; a shorter file is extended [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub(crate) size: Option<u64>,
    /// UUID by which hosts already know the disk [default: stored with the disk, or derived from
    /// its name]
    #[arg(long, value_name = "UUID", value_parser = values::uuid)]
    pub(crate) uuid: Option<uuid::Uuid>,
    /// NGUID by which hosts already know the disk: 32 hexadecimal digits [default: the UUID]
    #[arg(long, value_name = "NGUID", value_parser = values::uuid)]
    pub(crate) nguid: Option<uuid::Uuid>,
}

/// Arguments that describe a new namespace.
#[derive(Args, Debug)]
pub(crate) struct AddNamespaceArgs {
    #[arg(value_parser = values::subsystem)]
    pub(crate) nqn: String,
    #[command(flatten)]
    pub(crate) disk: DiskArgs,
    /// The namespace ID [default: the first free one]
    #[arg(long, value_parser = values::nsid)]
    pub(crate) nsid: Option<u32>,
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// The namespace's ANA group [default: 1]
    #[arg(long, value_name = "N", value_parser = values::ana_group)]
    pub(crate) ana_group: Option<u32>,
    /// Show the namespace only to this host, by NQN; can be given several times [default: all
    /// allowed hosts]
    #[arg(long, value_name = "HOST", value_parser = values::nqn)]
    pub(crate) visible_to: Option<Vec<String>>,
}

/// Rate limits of a namespace or of a host.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct LimitArgs {
    /// Reads and writes per second
    #[arg(long, value_name = "N", value_parser = values::rate)]
    pub(crate) iops: Option<u64>,
    /// Reads per second
    #[arg(long, value_name = "N", value_parser = values::rate)]
    pub(crate) read_iops: Option<u64>,
    /// Writes per second
    #[arg(long, value_name = "N", value_parser = values::rate)]
    pub(crate) write_iops: Option<u64>,
    /// MiB read and written per second
    #[arg(long, value_name = "N", value_parser = values::mib)]
    pub(crate) mib: Option<u64>,
    /// MiB read per second
    #[arg(long, value_name = "N", value_parser = values::mib)]
    pub(crate) read_mib: Option<u64>,
    /// MiB written per second
    #[arg(long, value_name = "N", value_parser = values::mib)]
    pub(crate) write_mib: Option<u64>,
    /// Burst after a pause: as much as the limits allow in this many milliseconds [default: 20]
    #[arg(long, value_name = "MS", value_parser = values::within::<u32>(1..=MAX_BURST_MS))]
    pub(crate) burst_ms: Option<u32>,
    /// Weight of a host relative to other hosts on a fully loaded core [default: 100]
    #[arg(long, value_name = "N", value_parser = values::within::<u32>(1..=MAX_WEIGHT))]
    pub(crate) weight: Option<u32>,
    /// Remove all limits
    #[arg(long, conflicts_with_all = ["iops", "read_iops", "write_iops"])]
    #[arg(conflicts_with_all = ["mib", "read_mib", "write_mib", "burst_ms", "weight"])]
    pub(crate) none: bool,
}

/// Shows the group of a target (`serve --group`), or passes an order to it.
#[derive(Args, Debug)]
pub(crate) struct GroupArgs {
    #[command(subcommand)]
    pub(crate) order: Option<GroupCommand>,

    /// Print JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// An order for a group. Every member accepts it.
#[derive(Subcommand, Debug)]
pub(crate) enum GroupCommand {
    /// Let a member lead an ANA group whenever it is alive
    Move {
        #[arg(value_parser = values::ana_group)]
        ana_group: u32,
        member: String,
    },
    /// Let the group choose the leader of an ANA group again
    Unpin {
        #[arg(value_parser = values::ana_group)]
        ana_group: u32,
    },
    /// Hand a member's ANA groups over as soon as other members can lead them
    Drain { member: String },
    /// Stop a member from leading, even if no other member can lead
    Pause { member: String },
    /// Let a drained or paused member lead again
    Resume { member: String },
    /// Restart one member after the other with its new program, without an error at hosts
    ///
    /// Install the new program on all machines first. For each member, the command drains it, waits
    /// until its hosts have other paths, and orders its process to end with exit code 75. systemd,
    /// or another supervisor, must start it again. When the hosts have returned, the member leads
    /// again. The command stops at the first failure; run it again to continue.
    Upgrade(UpgradeArgs),
    /// Remove a dead member and its controller identifiers from the group
    Forget { member: String },
}

/// The command line of `ctl group upgrade`.
#[derive(Args, Debug)]
pub(crate) struct UpgradeArgs {
    /// Time limit of each step, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds, default_value = "120")]
    pub(crate) wait: Duration,

    /// Restart members even if a host has no other path, and do not wait for hosts to return
    #[arg(long)]
    pub(crate) force: bool,

    /// End an upgrade that has not ended: give the members their tasks back, and restart none
    #[arg(long)]
    pub(crate) cancel: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Change {
    /// Share a new disk, and print its namespace ID
    AddNamespace(AddNamespaceArgs),
    /// Replace the disk of a namespace: to hosts it is another disk with the same namespace ID
    ///
    /// The namespace keeps its visibility, limits, ANA group, block size (unless --block-size
    /// changes it) and write protection. Size and identifiers are the new disk's. Use the UUID of
    /// the old disk only if both disks have the same data. If the path is unchanged, the target
    /// reopens it: this replaces a file that was moved or deleted.
    ReplaceNamespace {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        #[command(flatten)]
        disk: DiskArgs,
    },
    /// Set which hosts see a namespace; to other hosts it does not exist
    VisibleTo {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        /// The hosts that see the namespace, by their NQNs
        #[arg(value_parser = values::nqn)]
        hosts: Vec<String>,
        /// All allowed hosts
        #[arg(long, conflicts_with = "hosts")]
        all: bool,
        /// No host
        #[arg(long, conflicts_with_all = ["hosts", "all"])]
        none: bool,
    },
    /// Stop sharing a disk
    RemoveNamespace {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
    },
    /// Change the size of a namespace; a file is extended if necessary, but never shortened
    Resize {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        /// The new size, such as 20GiB
        #[arg(value_parser = values::bytes)]
        size: u64,
    },
    /// Refuse writes to a namespace, or accept them
    ReadOnly {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        switch: Switch,
    },
    /// Let a host connect
    AllowHost(AllowHostArgs),
    /// Stop a host from connecting, and close its connections
    DisallowHost {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::known_nqn)]
        host: String,
    },
    /// Let every host connect, or only the listed hosts
    AllowAnyHost {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        switch: Switch,
    },
    /// Add a subsystem without namespaces
    AddSubsystem {
        #[arg(value_parser = values::new_subsystem)]
        nqn: String,
        /// Let every host connect
        #[arg(long)]
        allow_any_host: bool,
        /// The subsystem's serial number, up to 20 characters [default: derived from its name]
        #[arg(long, value_name = "TEXT")]
        serial: Option<String>,
        /// The subsystem's model number, up to 40 characters [default: farblock]
        #[arg(long, value_name = "TEXT")]
        model: Option<String>,
    },
    /// Remove a subsystem and its namespaces
    RemoveSubsystem {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
    },
    /// Add a listener
    AddListener {
        #[arg(value_parser = values::entrance)]
        address: Entrance,
        /// TLS policy of the listener: required for every host (required), required for hosts with
        /// a TLS key (allowed), or off (plain) [default: the strictest policy of the other
        /// listeners]
        #[arg(long, value_name = "WHO", hide_possible_values = true)]
        #[arg(value_parser = values::one_of(values::TLS_POLICIES, values::tls_policy))]
        tls: Option<Tls>,
    },
    /// Set the TLS policy of a listener; disconnects hosts without TLS that the new policy forbids
    SetTls {
        #[arg(value_parser = values::entrance)]
        address: Entrance,
        /// required (every host), allowed (hosts with a key), or plain (TLS is off)
        #[arg(hide_possible_values = true)]
        #[arg(value_parser = values::one_of(values::TLS_POLICIES, values::tls_policy))]
        tls: Tls,
    },
    /// Set the ANA state that hosts see at a listener
    SetAna {
        #[arg(value_parser = values::entrance)]
        address: Entrance,
        /// optimized, non-optimized, inaccessible, persistent-loss or change
        #[arg(hide_possible_values = true)]
        #[arg(value_parser = values::one_of(values::ANA_STATES, values::ana))]
        state: Ana,
        /// Only namespaces of this ANA group [default: all groups without their own state]
        #[arg(long, value_name = "N", value_parser = values::ana_group)]
        group: Option<u32>,
    },
    /// Limit the rate of a namespace, for all hosts together
    ///
    /// A limit that the command does not name is removed.
    Limit {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Limit the rate of a listed host, for all namespaces of a subsystem together
    ///
    /// A limit that the command does not name is removed. The namespaces' own limits apply as well.
    LimitHost {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::known_nqn)]
        host: String,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Move a namespace to another ANA group
    AnaGroup {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        #[arg(value_parser = values::ana_group)]
        group: u32,
    },
    /// Compare all legs of a mirror while it is in use, and report mismatches
    Verify {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        /// Return at once: `farblock status` shows the progress
        #[arg(long)]
        no_wait: bool,
    },
    /// Limit the speed at which a mirror's legs are resynced and compared
    CopySpeed {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        /// MiB per second, all legs together; 0 for no limit
        #[arg(value_parser = values::within::<u32>(0..=u32::MAX))]
        mib: u32,
    },
    /// Add a referral to another discovery service
    AddReferral {
        #[arg(value_name = "ADDR[:PORT]", value_parser = values::referral)]
        address: SocketAddr,
    },
    /// Remove a referral to another discovery service
    RemoveReferral {
        #[arg(value_name = "ADDR[:PORT]", value_parser = values::referral)]
        address: SocketAddr,
    },
    /// Show the target's group, or change who leads its ANA groups
    Group(GroupArgs),
    /// Remove a listener, and close its connections
    RemoveListener {
        #[arg(value_parser = values::entrance)]
        address: Entrance,
    },
}
