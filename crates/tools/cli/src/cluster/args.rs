//! The command line of the dashboard of several targets.

use crate::values;
use clap::{Args, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Show several targets on one page
///
/// Each is asked every second over its control socket, or over the address of its own dashboard
/// (farblock serve --ui), or by HTTPS (serve --https-cert). Without --steer nothing can be changed
/// there. It runs until it gets SIGINT (Ctrl-C) or SIGTERM.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock ui                                   all targets of this user, on this machine
  farblock ui --node a=/run/a.sock --node b=/run/b.sock
  farblock ui --node-token token --node left=192.0.2.1:8080 --node right=192.0.2.2:8080
  farblock ui --node-token token --node-ca ca.pem --node https://left.example:8420
  farblock ui --attached                        and the paths of the disks attached here
  farblock ui --steer                           the same as the first, and changes are allowed
  farblock ui --listen 0.0.0.0:8443 --token token --https-cert cert.pem --https-key key.pem")]
pub(crate) struct ClusterArgs {
    /// A target: its control socket, or the address of its dashboard (repeatable) [default: all
    /// targets of this user that run here]
    #[arg(long, value_name = "[NAME=]PATH|ADDR:PORT|URL", value_parser = super::node)]
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) node: Vec<super::Named>,

    /// File with the token of the targets that are given by their addresses, for its owner alone
    /// (mode 600)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) node_token: Option<PathBuf>,

    /// File with the certificate of the authority that signed those of the targets with https://
    /// (PEM), or with theirs
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) node_ca: Option<PathBuf>,

    /// Show the disks that are attached to this machine as well (farblock attach): the state of
    /// each path, as their daemons say it
    #[arg(long)]
    pub(crate) attached: bool,

    /// Where these are kept [default: as for farblock attach]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "attached")]
    pub(crate) runtime_dir: Option<PathBuf>,

    /// Allow changes on the page: each goes to its target, as far as the target's user, token and
    /// role let it
    #[arg(long)]
    pub(crate) steer: bool,

    /// Where the page is (without --https-cert on loopback only); the URL that opens it is printed
    /// [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    #[arg(hide_default_value = true, value_parser = values::listen_address)]
    pub(crate) listen: SocketAddr,

    /// File with the page's token, for its owner alone (mode 600) [default: made anew]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token: Option<PathBuf>,

    /// Have the page be HTTPS with the certificate in this file (PEM, those that lead to a known
    /// one behind it); it is read again when it is renewed
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "https_key")]
    pub(crate) https_cert: Option<PathBuf>,

    /// File with its private key, for its owner alone (mode 600), or credential:NAME
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "https_cert")]
    pub(crate) https_key: Option<PathBuf>,

    /// Print one line of JSON when it is there
    #[arg(long)]
    pub(crate) json: bool,
}
