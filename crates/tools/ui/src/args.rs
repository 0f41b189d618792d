//! The command line of the dashboard for several targets.

use crate::values;
use clap::{Args, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Show several targets on one page
///
/// The page queries each target every second: over the target's control socket, at the address of
/// its dashboard (farblock serve --ui), or over HTTPS (serve --https-cert). Without --steer the
/// page is read-only. The command runs until it receives SIGINT (Ctrl-C) or SIGTERM.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farblock ui                                   all targets of this user, on this machine
  farblock ui --node a=/run/a.sock --node b=/run/b.sock
  farblock ui --node-token token --node left=192.0.2.1:8080 --node right=192.0.2.2:8080
  farblock ui --node-token token --node-ca ca.pem --node https://left.example:8420
  farblock ui --attached                        also the disks attached to this machine
  farblock ui --steer                           all targets of this user, and allow changes
  farblock ui --listen 0.0.0.0:8443 --token token --https-cert cert.pem --https-key key.pem")]
pub struct ClusterArgs {
    /// Control socket, dashboard address or URL of a target (repeatable) [default: all targets of
    /// this user on this machine]
    #[arg(long, value_name = "[NAME=]PATH|ADDR:PORT|URL", value_parser = super::node)]
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) node: Vec<super::Named>,

    /// File with the token (mode 600) for targets that --node names by address or URL
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) node_token: Option<PathBuf>,

    /// File with the CA certificate, or with the certificates of the targets (PEM), for targets
    /// that --node names by an https:// URL
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) node_ca: Option<PathBuf>,

    /// Also show the disks that are attached to this machine (farblock attach), and the state of
    /// each path
    #[arg(long)]
    pub(crate) attached: bool,

    /// Runtime directory of the attachments [default: as for farblock attach]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "attached")]
    pub(crate) runtime_dir: Option<PathBuf>,

    /// Allow changes on the page. The target checks the user, token and role for each change
    #[arg(long)]
    pub steer: bool,

    /// Address of the page; the command prints the URL. Without --https-cert the address must be on
    /// the loopback [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    #[arg(hide_default_value = true, value_parser = values::listen_address)]
    pub(crate) listen: SocketAddr,

    /// File with the page's token, mode 600 [default: make a new token]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token: Option<PathBuf>,

    /// Serve the page over HTTPS, with the certificate in this file (PEM: the certificate first,
    /// then its intermediates). The command reloads the file when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "https_key")]
    pub(crate) https_cert: Option<PathBuf>,

    /// File with the certificate's private key (mode 600), or credential:NAME
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "https_cert")]
    pub(crate) https_key: Option<PathBuf>,

    /// Print one line of JSON when the page is ready
    #[arg(long)]
    pub(crate) json: bool,
}
