//! The command lines of what asks a running target for something.

use crate::values;
use clap::{Args, Subcommand, ValueHint};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Which target.
#[derive(Args, Debug)]
pub(crate) struct ControlArgs {
    /// Its control socket [default: that of the only target of this user]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) control: Option<PathBuf>,
}

/// What a running target shares, and who uses it
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
  farblock ctl allow-host NQN nqn.2014-08.org.nvmexpress:uuid:...")]
pub(crate) struct CtlArgs {
    #[command(subcommand)]
    pub(crate) change: Change,

    /// The target's control socket [default: that of the only target of this user]
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) control: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Change {
    /// Share one more disk, and say which number it has
    AddNamespace {
        #[arg(value_parser = values::nqn)]
        nqn: String,
        /// What stores it, as in farblock serve
        #[arg(value_hint = ValueHint::AnyPath)]
        path: OsString,
        /// Its number [default: the first that is free]
        #[arg(long)]
        nsid: Option<u32>,
        /// Bytes in a block: 512 or 4096
        #[arg(long, value_name = "BYTES", default_value = "512", hide_possible_values = true)]
        #[arg(value_parser = values::one_of(values::BLOCK_SIZES, values::block_size))]
        block_size: u32,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
    },
    /// Share a disk no more
    RemoveNamespace {
        #[arg(value_parser = values::nqn)]
        nqn: String,
        nsid: u32,
    },
    /// Give a namespace another size: a file is made longer if need be, and never shorter
    Resize {
        #[arg(value_parser = values::nqn)]
        nqn: String,
        nsid: u32,
        /// Such as 20GiB
        #[arg(value_parser = values::bytes)]
        size: u64,
    },
    /// Refuse writes to a namespace, or accept them
    ReadOnly {
        #[arg(value_parser = values::nqn)]
        nqn: String,
        nsid: u32,
        switch: Switch,
    },
    /// Let a host connect
    AllowHost {
        #[arg(value_parser = values::nqn)]
        nqn: String,
        #[arg(value_parser = values::nqn)]
        host: String,
    },
    /// Let a host connect no more; its connections end
    DisallowHost {
        #[arg(value_parser = values::nqn)]
        nqn: String,
        #[arg(value_parser = values::nqn)]
        host: String,
    },
    /// Let every host connect, or only those that are listed
    AllowAnyHost {
        #[arg(value_parser = values::nqn)]
        nqn: String,
        switch: Switch,
    },
    /// Offer one more subsystem, for now without namespaces
    AddSubsystem {
        #[arg(value_parser = values::nqn)]
        nqn: String,
        /// Let every host connect
        #[arg(long)]
        allow_any_host: bool,
    },
    /// Take a subsystem away, with its namespaces
    RemoveSubsystem {
        #[arg(value_parser = values::nqn)]
        nqn: String,
    },
    /// Listen on one more address
    AddListener {
        #[arg(value_parser = values::listen_address)]
        address: SocketAddr,
    },
    /// Listen on an address no more; the connections that came in there end
    RemoveListener {
        #[arg(value_parser = values::listen_address)]
        address: SocketAddr,
    },
}
