//! Command-line options that several commands share, in clap's derive form.

use crate::values;
use clap::{ArgAction, Args, ValueHint};
use farblock_host::HostId;
use farblock_reactor::{Config, Congestion, EngineKind, Polling};
use farblock_secure::{Group, Hash};
use serde::Serialize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Options of every command.
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
    /// The mode decides what an event loop does before it sleeps. efficient: sleep at once.
    /// balanced: first poll for work for up to 200 µs, if polling speeds up the load, and for at
    /// most six times the time spent on work. latency: poll during I/O and for one millisecond
    /// after it; each loop uses up to a whole processor under load, and none when idle. always:
    /// never sleep, even when idle. Copies, and the hosts and targets of a fleet, always use
    /// balanced.
    #[arg(
        long,
        global = true,
        value_name = "MODE",
        hide_possible_values = true,
        value_parser = values::one_of(Polling::NAMES, Polling::from_str)
    )]
    #[arg(help_heading = "Global options")]
    pub spin: Option<Polling>,

    /// Same as --spin always: never sleep
    #[arg(long, global = true, conflicts_with = "spin")]
    #[arg(help_heading = "Global options")]
    pub poll: bool,

    /// TCP congestion control of all connections, for example cubic (Linux)
    ///
    /// Without this option, connections use the system's algorithm. cubic replaces bbr for round
    /// trips shorter than a millisecond, where bbr's pacing only adds delay.
    #[arg(long, global = true, value_name = "NAME")]
    #[arg(help_heading = "Global options")]
    pub congestion: Option<Congestion>,

    /// Print more log messages on the standard error; twice for even more
    ///
    /// Without -v and -q the environment variable RUST_LOG sets the log level: one level, or levels
    /// by crate, such as farblock_target=debug,warn.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    #[arg(help_heading = "Global options")]
    pub verbose: u8,

    /// Print only results and errors: no progress, no notes
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    #[arg(help_heading = "Global options")]
    pub quiet: bool,

    /// Format of the log: auto, text, json (one object per line) or journald (with priorities)
    #[arg(long, global = true, value_name = "FORMAT")]
    #[arg(default_value = "auto", hide_default_value = true, hide_possible_values = true)]
    #[arg(help_heading = "Global options")]
    pub log_format: LogFormat,
}

impl Global {
    /// Returns the polling mode from the command line, or `None` without an option.
    pub fn spin(&self) -> Option<Polling> {
        if self.poll { Some(Polling::Always) } else { self.spin }
    }

    /// Returns the polling mode of event loops.
    pub fn polling(&self) -> Polling {
        self.spin().unwrap_or_default()
    }

    /// Returns the configuration of event loops.
    pub fn reactor(&self) -> Config {
        Config::new(self.engine, self.polling())
    }
}

/// Digests, secrets and the host's identity for connections.
#[derive(Args, Debug, Clone, Default)]
pub struct ConnectionArgs {
    /// Protect headers with a CRC (or ?header-digest=1 in the URL)
    #[arg(long, aliases = ["hdr-digest", "hdr_digest"])]
    pub header_digest: bool,

    /// Protect data with a CRC (or ?data-digest=1 in the URL)
    #[arg(long, alias = "data_digest")]
    pub data_digest: bool,

    /// File with this host's secret, for targets that require it (or ?dhchap-secret= in the URL)
    #[arg(long, alias = "dhchap_secret", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dhchap_secret: Option<PathBuf>,

    /// File with the target's secret: the target must authenticate as well
    #[arg(long, alias = "dhchap_ctrl_secret", value_name = "FILE")]
    #[arg(value_hint = ValueHint::FilePath, requires = "dhchap_secret")]
    pub dhchap_ctrl_secret: Option<PathBuf>,

    /// Hash functions for the authentication: sha256, sha384, sha512 [default: all]
    #[arg(long, alias = "dhchap_hashes", value_name = "HASH,...", value_delimiter = ',')]
    pub dhchap_hashes: Vec<Hash>,

    /// DH groups for the authentication: null, ffdhe2048, 3072, 4096, 6144, 8192 [default: all]
    #[arg(long, alias = "dhchap_dhgroups", value_name = "GROUP,...", value_delimiter = ',')]
    pub dhchap_dhgroups: Vec<Group>,

    /// File with this host's key for TLS 1.3, which is then required (or ?tls-key= in the URL).
    /// keyring: uses the key that nvme-cli put into the kernel's keyring; keyring:IDENTITY or
    /// keyring:NUMBER selects another key there
    #[arg(long, alias = "tls_key", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_key: Option<PathBuf>,
    /// Use TLS 1.3 with a key derived from the authentication (secure channel concatenation; or
    /// ?concat=1 in the URL)
    #[arg(long, requires = "dhchap_secret", conflicts_with = "tls_key")]
    pub concat: bool,

    /// The host's identity.
    #[command(flatten)]
    pub host: HostArgs,
}

/// The identity that this host presents to targets.
#[derive(Args, Debug, Clone, Default)]
pub struct HostArgs {
    /// This host's NQN [default: the NQN that `farblock whoami` shows] (or ?hostnqn= in the URL)
    #[arg(long, aliases = ["host-nqn", "host_nqn"], value_name = "NQN", value_parser = values::nqn)]
    pub hostnqn: Option<String>,

    /// This host's identifier [default: the identifier that `farblock whoami` shows] (or ?hostid=
    /// in the URL)
    #[arg(long, aliases = ["host-id", "host_id"], value_name = "UUID")]
    #[arg(value_parser = values::own_host_id)]
    pub hostid: Option<HostId>,
}

/// A timeout, or no timeout: `10m`, `never`, or nvme-cli's `-1`.
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

/// Formats a duration in milliseconds, as the command line accepts it.
pub fn in_words(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

/// The format of log lines.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// Journald if systemd's journal reads the standard error, otherwise text
    #[default]
    Auto,
    /// Text for people
    Text,
    /// One JSON object per line
    Json,
    /// For systemd's journal, with priorities
    Journald,
}

impl LogFormat {
    /// Returns the name of this format on the command line.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Auto => "auto",
            LogFormat::Text => "text",
            LogFormat::Json => "json",
            LogFormat::Journald => "journald",
        }
    }
}
