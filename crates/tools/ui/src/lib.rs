//! `farblock ui`: serves a dashboard for several targets.

#![cfg(unix)]
#![forbid(unsafe_code)]

pub mod args;

use args::ClusterArgs;
use farblock_admin::{Beside, MAX_NODES, Node, NodePlace, Token, serve_cluster};
use farblock_admin_api::places;
use farblock_admin_client::Trust;
use farblock_program::error::{Failure, Result, listening};
use farblock_program::signals::Stop;
use farblock_program::{output, values};
use farblock_serve::dashboard::{self, Wanted};
use farblock_serve::tokens;
use serde_json::json;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A target on the command line: its display name and its address.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    name: String,
    place: Where,
}

#[derive(Clone, Debug)]
enum Where {
    Socket(PathBuf),
    Address(String),
    Https(String),
}

/// Parses `[NAME=]PLACE`. A place with a slash is a path.
pub(crate) fn node(text: &str) -> Result<Named, String> {
    let named = text.split_once('=').filter(|(name, _)| !name.contains('/'));
    let (name, place) = named.unwrap_or((text, text));
    if name.is_empty() || place.is_empty() {
        let forms =
            "write NAME=PATH, NAME=ADDR:PORT or NAME=https://HOST:PORT, with or without NAME=";
        return Err(forms.to_owned());
    }
    let name = name.to_owned();
    if let Some(address) = place.strip_prefix("https://") {
        let address = address.trim_end_matches('/');
        return match values::host_and_port(address)? {
            (_, Some(_)) => Ok(Named { name, place: Where::Https(address.to_owned()) }),
            (_, None) => Err(format!("{place} has no port: write https://{address}:PORT")),
        };
    }
    if place.starts_with("http://") {
        return Err(format!(
            "{place} is a URL: write only ADDR:PORT, and put the token into a file for --node-token"
        ));
    }
    if place.contains('/') {
        return Ok(Named { name, place: Where::Socket(place.into()) });
    }
    match values::host_and_port(place)? {
        (_, Some(_)) => Ok(Named { name, place: Where::Address(place.to_owned()) }),
        (_, None) => Err(format!(
            "{place} has no port: write {place}:PORT, or ./{place} if it is a control socket"
        )),
    }
}

/// Serves the dashboard until a signal arrives.
///
/// # Errors
/// The options contradict each other, or the dashboard cannot listen.
pub fn run(args: &ClusterArgs, json: bool) -> Result<()> {
    let stop = Stop::install()?;
    if args.steer {
        args.node.iter().try_for_each(is_steered_in_secret)?;
    }
    let nodes = nodes(args)?;
    let certificate = tokens::certified(args.https_cert.as_deref(), args.https_key.as_deref())?;
    let is_secure = certificate.is_some();
    let place =
        dashboard::Place { options: ["--listen", "--token"], address: args.listen, is_secure };
    let wanted = dashboard::offered(&place, args.token.as_deref(), args.steer)?;
    let (ui, fragment) = Wanted::split(wanted);
    let names: Vec<_> = nodes.iter().map(|node| node.name.clone()).collect();
    let watch = || farblock_daemon::watch(args.runtime_dir.as_deref());
    let attached = args.attached.then(watch).transpose()?;
    let beside = Beside { fleets: places::fleet_sockets(), attached };
    let server = serve_cluster(ui, nodes, beside, certificate)
        .map_err(|(what, error)| listening(what, &error, "--listen"))?;
    let url = Wanted::url(&fragment, server.ui().unwrap_or(args.listen), is_secure);
    match args.json || json {
        true => output::print_json_line(&json!({ "dashboard": url, "nodes": names }))?,
        false if names.is_empty() => {
            let shown = if args.attached { "attached disks and fleets" } else { "fleets" };
            output::print(&format!("dashboard of {shown} at {url}\n"))?;
        }
        false => output::print(&format!("dashboard of {} at {url}\n", names.join(", ")))?,
    }
    stop.wait();
    drop(server);
    Ok(())
}

fn nodes(args: &ClusterArgs) -> Result<Vec<Node>> {
    let token = args.node_token.as_deref().map(dashboard::from_file).transpose()?;
    let trust = args.node_ca.as_deref().map(tokens::trust).transpose()?;
    let nodes = match args.node.is_empty() {
        true => here(args.attached)?,
        false => args
            .node
            .iter()
            .map(|named| meant(named, token.as_ref(), trust.as_ref()))
            .collect::<Result<Vec<_>>>()?,
    };
    if nodes.len() > MAX_NODES {
        return Err(Failure::usage(format_args!(
            "a page shows at most {MAX_NODES} targets, not {}: omit some",
            nodes.len()
        )));
    }
    let twice = |(at, node): (usize, &Node)| nodes[..at].iter().any(|it| it.name == node.name);
    match nodes.iter().enumerate().find(|it| twice(*it)) {
        Some((_, node)) => Err(Failure::usage(format_args!(
            "two targets have the name {}: give them different names, as in --node left=…",
            node.name
        ))),
        None => Ok(nodes),
    }
}

/// Refuses `--steer` for a target if requests and tokens would cross a network unencrypted.
fn is_steered_in_secret(named: &Named) -> Result<()> {
    let Where::Address(address) = &named.place else { return Ok(()) };
    let (host, _) = values::host_and_port(address).map_err(Failure::Usage)?;
    let is_here = host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    match is_here || host.eq_ignore_ascii_case("localhost") {
        true => Ok(()),
        false => Err(Failure::usage(format_args!(
            "--steer would send the token to {address} unencrypted: use https:// (serve \
             --https-cert), or make a tunnel (ssh -L), and name its local end with --node"
        ))),
    }
}

/// Returns all targets of this user on this machine. The list may be empty only if a fleet runs, or
/// if `besides` says that the page also shows something else.
fn here(besides: bool) -> Result<Vec<Node>> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let sockets = places::living().unwrap_or_default();
    let nodes =
        sockets.into_iter().map(|path| Node { name: name(&path), place: NodePlace::Socket(path) });
    let nodes: Vec<_> = nodes.collect();
    match nodes.is_empty() && !besides && places::fleets().is_empty() {
        true => Err(Failure::run(
            "no target or fleet of this user runs here: start one with farblock serve or \
             farblock fleet run, name targets with --node, or show attached disks with --attached",
        )),
        false => Ok(nodes),
    }
}

fn meant(named: &Named, token: Option<&Token>, trust: Option<&Trust>) -> Result<Node> {
    let place = match (&named.place, token) {
        (Where::Socket(path), _) => NodePlace::Socket(path.clone()),
        (Where::Address(address), Some(token)) => {
            NodePlace::Address(address.clone(), token.clone())
        }
        (Where::Https(address), Some(token)) => match trust {
            Some(trust) => NodePlace::Https(address.clone(), token.clone(), trust.clone()),
            None => {
                return Err(Failure::usage(format_args!(
                    "https://{address} needs a trusted certificate: use --node-ca with the file of \
                     the CA certificate, or of a copy of the target's certificate"
                )));
            }
        },
        (Where::Address(address) | Where::Https(address), None) => {
            return Err(Failure::usage(format_args!(
                "{address} requires a token: start the target with --ui {address} --ui-token FILE, \
                 and use --node-token with a copy of FILE"
            )));
        }
    };
    Ok(Node { name: named.name.clone(), place })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_node_with_an_admin_token_requires_https() {
        let secret = |text: &str| is_steered_in_secret(&node(text).unwrap()).is_ok();
        for here in ["127.0.0.1:80", "localhost:80", "[::1]:80", "a=./b", "https://b.example:1"] {
            assert!(secret(here), "{here}");
        }
        for there in ["192.0.2.1:80", "a=storage.example:80", "localhost.example:80"] {
            assert!(!secret(there), "{there}");
        }
    }

    #[test]
    fn a_node_is_a_socket_path_or_an_address_with_an_optional_name() {
        let read = |text: &str| node(text).map(|it| (it.name, format!("{:?}", it.place)));
        let socket = |name: &str, path: &str| Ok((name.to_owned(), format!("Socket({path:?})")));
        let address = |name: &str, at: &str| Ok((name.to_owned(), format!("Address({at:?})")));
        assert_eq!(read("/run/a.sock"), socket("/run/a.sock", "/run/a.sock"));
        assert_eq!(read("a=./b"), socket("a", "./b"));
        assert_eq!(read("/run/a=b"), socket("/run/a=b", "/run/a=b"));
        assert_eq!(read("left=192.0.2.1:80"), address("left", "192.0.2.1:80"));
        assert_eq!(read("[::1]:80"), address("[::1]:80", "[::1]:80"));
        let https = read("a=https://b.example:1/").unwrap();
        assert_eq!(https, ("a".to_owned(), "Https(\"b.example:1\")".to_owned()));
        for (bad, words) in [
            ("=x", "NAME="),
            ("a=", "NAME="),
            ("a=b", "no port"),
            ("a=http://b:1/", "is a URL"),
            ("a=https://b", "no port"),
        ] {
            assert!(read(bad).is_err_and(|error| error.contains(words)), "{bad}");
        }
    }
}
