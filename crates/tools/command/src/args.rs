//! What several commands have on their command line, as clap reads it.

use crate::values;
use clap::{ArgAction, Args, ValueHint};
use farblock_host::HostId;
use farblock_reactor::{Config, Congestion, EngineKind, Polling};
use farblock_secure::{Group, Hash};
use std::path::PathBuf;
use std::str::FromStr;

/// Options that every command has.
#[derive(Args, Debug, Clone)]
pub struct Global {
    /// Event loop: auto, uring (Linux io_uring) or portable
    #[arg(
        long,
        global = true,
        value_name = "ENGINE",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true,
        value_parser = values::one_of(&["auto", "uring", "portable"], EngineKind::from_str)
    )]
    #[arg(help_heading = "Global options")]
    pub engine: EngineKind,

    /// Processor time to spend on latency: efficient, balanced, latency or always
    ///
    /// What an event loop does before it sleeps. efficient: nothing. balanced: it looks for work
    /// for up to 200 µs where that makes the load faster, for at most six times the time of the
    /// work. latency: it looks for as long as there is I/O, and a millisecond after that: up to a
    /// whole processor for each loop under load, none when idle. always: it never sleeps, idle or
    /// not. Copies, and the hosts and targets of a fleet, are balanced whatever is said here.
    #[arg(
        long,
        global = true,
        value_name = "MODE",
        hide_possible_values = true,
        value_parser = values::one_of(Polling::NAMES, Polling::from_str)
    )]
    #[arg(help_heading = "Global options")]
    pub spin: Option<Polling>,

    /// As --spin always: never sleep
    #[arg(long, global = true, conflicts_with = "spin")]
    #[arg(help_heading = "Global options")]
    pub poll: bool,

    /// TCP congestion control of all connections, for example cubic (Linux)
    ///
    /// Without it a connection has the system's, but bbr gives way to cubic where the round trip is
    /// shorter than a millisecond: within a site its pacing only costs.
    #[arg(long, global = true, value_name = "NAME")]
    #[arg(help_heading = "Global options")]
    pub congestion: Option<Congestion>,

    /// Say more on the standard error; twice for still more
    ///
    /// Without -v and -q the environment's RUST_LOG says what is logged: a level, or levels by
    /// crate, such as farblock_target=debug,warn.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    #[arg(help_heading = "Global options")]
    pub verbose: u8,

    /// Say nothing but results and errors: no progress, no notes
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    #[arg(help_heading = "Global options")]
    pub quiet: bool,

    /// How the log is written: auto, text, json (an object a line) or journald (with priorities)
    #[arg(long, global = true, value_name = "FORMAT")]
    #[arg(default_value = "auto", hide_default_value = true, hide_possible_values = true)]
    #[arg(help_heading = "Global options")]
    pub log_format: LogFormat,
}

impl Global {
    /// What was said of what an event loop does before it sleeps.
    pub fn spin(&self) -> Option<Polling> {
        if self.poll { Some(Polling::Always) } else { self.spin }
    }

    /// What an event loop does before it sleeps.
    pub fn polling(&self) -> Polling {
        self.spin().unwrap_or_default()
    }

    /// How event loops are made.
    pub fn reactor(&self) -> Config {
        Config::new(self.engine, self.polling())
    }
}

/// Checksums and secrets of connections, and who the host is.
#[derive(Args, Debug, Clone, Default)]
pub struct ConnectionArgs {
    /// Protect headers with a CRC (as ?header-digest=1 in the URL)
    #[arg(long, aliases = ["hdr-digest", "hdr_digest"])]
    pub header_digest: bool,

    /// Protect data with a CRC (as ?data-digest=1 in the URL)
    #[arg(long, alias = "data_digest")]
    pub data_digest: bool,

    /// File with this host's secret, for targets that ask for it (as ?dhchap-secret= in the URL)
    #[arg(long, alias = "dhchap_secret", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dhchap_secret: Option<PathBuf>,

    /// File with the target's secret: it has to prove who it is as well
    #[arg(long, alias = "dhchap_ctrl_secret", value_name = "FILE")]
    #[arg(value_hint = ValueHint::FilePath, requires = "dhchap_secret")]
    pub dhchap_ctrl_secret: Option<PathBuf>,

    /// Hash functions that the authentication may use: sha256, sha384, sha512 [default: all]
    #[arg(long, alias = "dhchap_hashes", value_name = "HASH,...", value_delimiter = ',')]
    pub dhchap_hashes: Vec<Hash>,

    /// Groups that it may use: null, ffdhe2048, 3072, 4096, 6144, 8192 [default: all]
    #[arg(long, alias = "dhchap_dhgroups", value_name = "GROUP,...", value_delimiter = ',')]
    pub dhchap_dhgroups: Vec<Group>,

    /// File with this host's key for TLS 1.3: nothing is said without TLS (as ?tls-key= in the
    /// URL); keyring: takes the one that nvme-cli has put into the kernel's keyring
    /// (keyring:IDENTITY or keyring:NUMBER another one)
    #[arg(long, alias = "tls_key", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_key: Option<PathBuf>,
    /// TLS 1.3 with a key that comes of the authentication, instead of one of its own (secure
    /// channel concatenation; as ?concat=1 in the URL)
    #[arg(long, requires = "dhchap_secret", conflicts_with = "tls_key")]
    pub concat: bool,

    /// Who the host is.
    #[command(flatten)]
    pub host: HostArgs,
}

/// Who this host says it is.
#[derive(Args, Debug, Clone, Default)]
pub struct HostArgs {
    /// This host's NQN, instead of the one that `farblock whoami` shows (as ?hostnqn= in the URL)
    #[arg(long, aliases = ["host-nqn", "host_nqn"], value_name = "NQN", value_parser = values::nqn)]
    pub hostnqn: Option<String>,

    /// This host's identifier, instead of the one that `farblock whoami` shows (as ?hostid= in the
    /// URL)
    #[arg(long, aliases = ["host-id", "host_id"], value_name = "UUID")]
    #[arg(value_parser = values::own_host_id)]
    pub hostid: Option<HostId>,
}

/// How lines are written.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// Text or, where the standard error is systemd's journal, lines for that
    #[default]
    Auto,
    /// For people
    Text,
    /// An object a line
    Json,
    /// For systemd's journal, with priorities
    Journald,
}

impl LogFormat {
    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Auto => "auto",
            LogFormat::Text => "text",
            LogFormat::Json => "json",
            LogFormat::Journald => "journald",
        }
    }
}
