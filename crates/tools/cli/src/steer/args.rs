//! The command lines of what asks a running target for something.

use crate::values;
use clap::{Args, Subcommand, ValueHint};
use farblock_state::{Ana, MAX_BURST_MS, MAX_WEIGHT, Tls};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Diffie-Hellman groups, as [`farblock_secure::Group`] names them, and all of them.
const DH_GROUPS: [&str; 7] =
    ["null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192", "all"];

/// Which target.
#[derive(Args, Debug)]
pub(crate) struct ControlArgs {
    /// Its control socket [default: that of the only target of this user]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) control: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
}

/// A target that is not steered by its socket.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct RemoteArgs {
    /// The target's interface on TCP (serve --api), such as http://127.0.0.1:8420 or
    /// https://HOST:8420
    #[arg(long, global = true, value_name = "URL", conflicts_with = "control")]
    pub(crate) api: Option<String>,

    /// File with the token for it, for its owner alone (mode 600)
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,

    /// File with the certificate of the authority that signed its own (PEM), or with its own, for
    /// https://
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires = "api")]
    pub(crate) api_ca: Option<PathBuf>,
}

/// What a running target shares, and who uses it
///
/// Without --control and --api it also names what is attached to this machine, of which `farblock
/// list` has more. With --json it says what the target says.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock status
  farblock status --watch                       every second, with rates
  farblock status --json | jq '.controllers[].host_nqn'")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) which: ControlArgs,

    /// Again every second, with what was read and written in it
    #[arg(long, short)]
    pub(crate) watch: bool,

    /// Print JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a running target does, live: by namespace, host and core
///
/// n, h and c choose what is shown, the arrows what it is sorted by, and q ends it. Latencies are
/// averages at the target, without the network. With --fleet, and where no target runs, it is the
/// fleet that runs here: what each of its agents does.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) which: ControlArgs,

    /// Print the tables of one second and end, without a terminal too
    #[arg(long, conflicts_with = "fleet")]
    pub(crate) once: bool,

    /// Show the fleet that runs here (farblock fleet run) instead of a target
    #[arg(long, conflicts_with_all = ["control", "api"])]
    pub(crate) fleet: bool,
}

/// Have a running target read its configuration file again
///
/// What changed in the file is changed, hosts stay connected, and what was changed by other means
/// stays. All of it is done, or nothing. SIGHUP does the same.
#[derive(Args, Debug)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) which: ControlArgs,
}

/// What a running target is to share
#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) what: ConfigCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// Print it, as JSON
    Show(ControlArgs),
    /// Say what reading the configuration file again would change
    Diff(ControlArgs),
    /// Print what another target saves as a configuration file of this one
    ///
    /// FILE is what nvmetcli saves, or SPDK's save_config. What cannot be taken over is said, and
    /// is a comment in what is printed.
    Import {
        /// The other target's configuration, JSON
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// Change what a running target shares
///
/// Hosts stay connected and are told. Without serve --persist a restart forgets it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock ctl add-namespace NQN disk.img
  farblock ctl resize NQN 1 20GiB
  farblock ctl read-only NQN 1 on
  farblock ctl replace-namespace NQN 1 other.img
  farblock ctl allow-host NQN nqn.2014-08.org.nvmexpress:uuid:... --key host.key")]
pub(crate) struct CtlArgs {
    #[command(subcommand)]
    pub(crate) change: Change,

    /// The target's control socket [default: that of the only target of this user]
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

/// Who may connect, and with which key.
#[derive(Args, Debug)]
pub(crate) struct AllowHostArgs {
    #[arg(value_parser = values::subsystem)]
    pub(crate) nqn: String,
    #[arg(value_parser = values::nqn)]
    pub(crate) host: String,
    /// Have it authenticate with the secret in FILE (`farblock keys new` makes one); the
    /// same again reads the file again
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key: Option<PathBuf>,
    /// Prove to it that this is the target that it means, with the secret in FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "key")]
    pub(crate) controller_key: Option<PathBuf>,
    /// Have it give this identifier (HOSTID), and nobody else: reservations know hosts by it
    #[arg(long, value_name = "UUID", value_parser = values::host_id)]
    pub(crate) host_id: Option<uuid::Uuid>,
    /// Have it use TLS 1.3 with the key in FILE (`farblock keys new --tls` makes one); the same
    /// again reads the file again
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Demand of it to authenticate (auth: its key cannot be taken away before the demand), to ask
    /// this target for proof as well (mutual), to have TLS come of its authentication (concat), or
    /// nothing more than its keys do (none)
    #[arg(long, value_name = "WHAT", value_parser = ["auth", "mutual", "concat", "none"])]
    pub(crate) demand: Option<String>,
    /// Let it authenticate with these hash functions only, the best first; all: with any
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "no_key")]
    #[arg(value_parser = ["sha256", "sha384", "sha512", "all"], hide_possible_values = true)]
    pub(crate) hashes: Vec<String>,
    /// Let it authenticate with these Diffie-Hellman groups only, the best first (null,
    /// ffdhe2048…ffdhe8192); all: with any
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "no_key")]
    #[arg(value_parser = DH_GROUPS, hide_possible_values = true)]
    pub(crate) dhgroups: Vec<String>,
    /// Do not have it authenticate any more, though it has a key: unless it has one for TLS, its
    /// name alone lets it in
    #[arg(long, conflicts_with = "key")]
    pub(crate) no_key: bool,
    /// Do not have it use TLS any more, though it has a key for that
    #[arg(long, conflicts_with = "tls_key")]
    pub(crate) no_tls_key: bool,
}

/// What stores a namespace, and what hosts know it by.
#[derive(Args, Debug)]
pub(crate) struct DiskArgs {
    /// What stores it, as in farblock serve
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: OsString,
    /// Bytes in a block: 512 or 4096 [default: 512, and those of the disk that is replaced]
    #[arg(long, value_name = "BYTES", hide_possible_values = true)]
    #[arg(value_parser = values::one_of(values::BLOCK_SIZES, values::block_size))]
    pub(crate) block_size: Option<u32>,
    /// Share only this much of it; a file that is shorter is made longer [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub(crate) size: Option<u64>,
    /// The UUID that hosts know it by from elsewhere [default: kept with the disk, or made of its
    /// name]
    #[arg(long, value_name = "UUID", value_parser = values::uuid)]
    pub(crate) uuid: Option<uuid::Uuid>,
    /// The NGUID that hosts know it by from elsewhere: 32 hexadecimal digits [default: the UUID]
    #[arg(long, value_name = "NGUID", value_parser = values::uuid)]
    pub(crate) nguid: Option<uuid::Uuid>,
}

/// One more namespace.
#[derive(Args, Debug)]
pub(crate) struct AddNamespaceArgs {
    #[arg(value_parser = values::subsystem)]
    pub(crate) nqn: String,
    #[command(flatten)]
    pub(crate) disk: DiskArgs,
    /// Its number [default: the first that is free]
    #[arg(long, value_parser = values::nsid)]
    pub(crate) nsid: Option<u32>,
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Its ANA group [default: 1]
    #[arg(long, value_name = "N", value_parser = values::ana_group)]
    pub(crate) ana_group: Option<u32>,
    /// Let only this host see it, by its NQN; can be given several times [default: all that may
    /// connect]
    #[arg(long, value_name = "HOST", value_parser = values::nqn)]
    pub(crate) visible_to: Option<Vec<String>>,
}

/// Limits of a namespace, or of a host.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct LimitArgs {
    /// Reads and writes in a second
    #[arg(long, value_name = "N", value_parser = values::rate)]
    pub(crate) iops: Option<u64>,
    /// Reads in a second
    #[arg(long, value_name = "N", value_parser = values::rate)]
    pub(crate) read_iops: Option<u64>,
    /// Writes in a second
    #[arg(long, value_name = "N", value_parser = values::rate)]
    pub(crate) write_iops: Option<u64>,
    /// MiB read and written in a second
    #[arg(long, value_name = "N", value_parser = values::mib)]
    pub(crate) mib: Option<u64>,
    /// MiB read in a second
    #[arg(long, value_name = "N", value_parser = values::mib)]
    pub(crate) read_mib: Option<u64>,
    /// MiB written in a second
    #[arg(long, value_name = "N", value_parser = values::mib)]
    pub(crate) write_mib: Option<u64>,
    /// After a pause, as much at once as the limits allow in so many milliseconds [default: 20]
    #[arg(long, value_name = "MS", value_parser = values::within::<u32>(1..=MAX_BURST_MS))]
    pub(crate) burst_ms: Option<u32>,
    /// Of a host: how much it gets of a core that is full, beside others [default: 100]
    #[arg(long, value_name = "N", value_parser = values::within::<u32>(1..=MAX_WEIGHT))]
    pub(crate) weight: Option<u32>,
    /// No limit any more
    #[arg(long, conflicts_with_all = ["iops", "read_iops", "write_iops"])]
    #[arg(conflicts_with_all = ["mib", "read_mib", "write_mib", "burst_ms", "weight"])]
    pub(crate) none: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Change {
    /// Share one more disk, and print its namespace's number
    AddNamespace(AddNamespaceArgs),
    /// Have a namespace stored elsewhere: to hosts it is another disk under the same number
    ///
    /// Who sees it, its limits, its ANA group, its block size (unless --block-size says another)
    /// and whether it refuses writes stay; its size and identifiers are the new disk's. Give it
    /// the UUID of the old one only if the data are the same. With the path that it has, the file
    /// that is there now takes the place of one that was moved away or deleted.
    ReplaceNamespace {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        #[command(flatten)]
        disk: DiskArgs,
    },
    /// Say which hosts see a namespace; to the others it is not there
    VisibleTo {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        /// Only these, by their NQNs
        #[arg(value_parser = values::nqn)]
        hosts: Vec<String>,
        /// All that may connect
        #[arg(long, conflicts_with = "hosts")]
        all: bool,
        /// No host at all
        #[arg(long, conflicts_with_all = ["hosts", "all"])]
        none: bool,
    },
    /// Share a disk no more
    RemoveNamespace {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
    },
    /// Give a namespace another size: a file is made longer if need be, and never shorter
    Resize {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        /// Such as 20GiB
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
    /// Let a host connect no more; its connections end
    DisallowHost {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nqn)]
        host: String,
    },
    /// Let every host connect, or only those that are listed
    AllowAnyHost {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        switch: Switch,
    },
    /// Offer one more subsystem, for now without namespaces
    AddSubsystem {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        /// Let every host connect
        #[arg(long)]
        allow_any_host: bool,
        /// Its serial number, up to 20 characters [default: made of its name]
        #[arg(long, value_name = "TEXT")]
        serial: Option<String>,
        /// Its model number, up to 40 characters [default: farblock]
        #[arg(long, value_name = "TEXT")]
        model: Option<String>,
    },
    /// Take a subsystem away, with its namespaces
    RemoveSubsystem {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
    },
    /// Listen on one more address
    AddListener {
        #[arg(value_parser = values::listen_address)]
        address: SocketAddr,
        /// Who has to use TLS there: everybody (required), hosts that have a key for it (allowed),
        /// or nobody can (plain) [default: as the strictest of the others]
        #[arg(long, value_name = "WHO", hide_possible_values = true)]
        #[arg(value_parser = values::one_of(values::TLS_POLICIES, values::tls_policy))]
        tls: Option<Tls>,
    },
    /// Say who has to use TLS at a listener; whoever came in there without, and now has to, is
    /// disconnected
    SetTls {
        #[arg(value_parser = values::listen_address)]
        address: SocketAddr,
        /// required (everybody), allowed (hosts that have a key for it), or plain (nobody can)
        #[arg(hide_possible_values = true)]
        #[arg(value_parser = values::one_of(values::TLS_POLICIES, values::tls_policy))]
        tls: Tls,
    },
    /// Tell hosts how to reach namespaces by a listener (ANA)
    SetAna {
        #[arg(value_parser = values::listen_address)]
        address: SocketAddr,
        /// optimized, non-optimized, inaccessible, persistent-loss or change
        #[arg(hide_possible_values = true)]
        #[arg(value_parser = values::one_of(values::ANA_STATES, values::ana))]
        state: Ana,
        /// Only namespaces of this ANA group [default: all without a state of their own]
        #[arg(long, value_name = "N", value_parser = values::ana_group)]
        group: Option<u32>,
    },
    /// Limit what hosts may do with a namespace in a second, all of them together
    ///
    /// Limits that are not named go.
    Limit {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Limit what a listed host may do in a second, with all namespaces of a subsystem together
    ///
    /// Limits that are not named go. Those of the namespaces hold, too.
    LimitHost {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nqn)]
        host: String,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Make a namespace a member of another ANA group
    AnaGroup {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        #[arg(value_parser = values::ana_group)]
        group: u32,
    },
    /// Compare all legs of a mirror while it is used, and say where they differ
    Verify {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        /// Return at once: `farblock status` says how far it is
        #[arg(long)]
        no_wait: bool,
    },
    /// Limit the speed at which a mirror's legs are filled and compared
    CopySpeed {
        #[arg(value_parser = values::subsystem)]
        nqn: String,
        #[arg(value_parser = values::nsid)]
        nsid: u32,
        /// MiB a second, all legs together; 0 for any
        #[arg(value_parser = values::within::<u32>(0..=u32::MAX))]
        mib: u32,
    },
    /// Refer hosts that discover to another discovery service, too
    AddReferral {
        #[arg(value_name = "ADDR[:PORT]", value_parser = values::referral)]
        address: SocketAddr,
    },
    /// Point hosts to another discovery service no more
    RemoveReferral {
        #[arg(value_name = "ADDR[:PORT]", value_parser = values::referral)]
        address: SocketAddr,
    },
    /// Listen on an address no more; the connections that came in there end
    RemoveListener {
        #[arg(value_parser = values::listen_address)]
        address: SocketAddr,
    },
}
