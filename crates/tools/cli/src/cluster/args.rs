//! The command line of the dashboard of several targets.

use crate::values;
use clap::{Args, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Show several targets on one page
///
/// Each is asked every second over its control socket, or over the address of its own dashboard
/// (farblock serve --ui), or by HTTPS (serve --https-cert). Nothing can be changed there. It runs
/// until it gets SIGINT (Ctrl-C) or SIGTERM.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock ui                                   all targets of this user, on this machine
  farblock ui --node a=/run/a.sock --node b=/run/b.sock
  farblock ui --node-token token --node left=192.0.2.1:8080 --node right=192.0.2.2:8080
  farblock ui --node-token token --node-ca ca.pem --node https://left.example:8420")]
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

    /// Where the page is; the URL that opens it is printed [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    #[arg(hide_default_value = true, value_parser = values::listen_address)]
    pub(crate) listen: SocketAddr,

    /// File with the page's token, for its owner alone (mode 600) [default: made anew]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token: Option<PathBuf>,

    /// Print one line of JSON when it is there
    #[arg(long)]
    pub(crate) json: bool,
}
