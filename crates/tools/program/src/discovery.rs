//! Queries the discovery service of a machine.

use crate::error::{Failure, Result};
use crate::remote;
use crate::values::DiscoveryAddress;
use farblock_host::url::Url;
use farblock_host::{Error, Options, entry_url};
use farblock_proto::host::{ConnectError, DiscoveryEntry};
use farblock_proto::tcp::TcpRefusal;

/// Queries the ports one after the other. Returns the first answer, or the last error.
pub fn ask(wanted: &DiscoveryAddress, options: &Options) -> Result<(String, Vec<DiscoveryEntry>)> {
    ask_by(wanted, options, farblock_host::discover)
}

/// Like [`ask`], and also queries the discovery services to which the answer refers.
pub fn ask_all(
    wanted: &DiscoveryAddress,
    options: &Options,
) -> Result<(String, Vec<DiscoveryEntry>)> {
    ask_by(wanted, options, farblock_host::discover_all)
}

fn ask_by(
    wanted: &DiscoveryAddress,
    options: &Options,
    discover: fn(&str, &Options) -> std::result::Result<Vec<DiscoveryEntry>, Error>,
) -> Result<(String, Vec<DiscoveryEntry>)> {
    remote::one_host(&wanted.url, options).map_err(Failure::Usage)?;
    let options = &options.with_url(&wanted.url);
    let mut failures = Vec::new();
    for &port in &wanted.ports {
        let url = Url { port: Some(port), subsystem: None, namespace: None, ..wanted.url.clone() };
        let address = url.service();
        match discover(&address, options) {
            Ok(entries) => return Ok((address, entries)),
            Err(error) => {
                let elsewhere = matches!(
                    &error,
                    Error::Connect {
                        reason: ConnectError::Refused
                            | ConnectError::TimedOut { .. }
                            | ConnectError::Tcp(TcpRefusal::NotNvmeTcp { .. }),
                        ..
                    }
                );
                failures.push((port, remote::explain(&error, &url, options)));
                if !elsewhere {
                    break;
                }
            }
        }
    }
    let tried: Vec<String> = failures.iter().map(|(port, _)| port.to_string()).collect();
    match failures.pop() {
        Some((_, Failure::Run(reason))) if tried.len() > 1 => {
            Err(Failure::Run(format!("{reason} (ports {} were tried)", tried.join(" and "))))
        }
        Some((_, failure)) => Err(failure),
        None => Err(Failure::usage("there is no port to query")),
    }
}

/// Returns the URLs of all subsystems that this host can connect to, with the query parameters of
/// `asked`.
pub fn urls(entries: &[DiscoveryEntry], asked: &Url) -> Vec<Url> {
    entries.iter().filter_map(|entry| url(entry, asked)).collect()
}

/// Returns the URL of one entry: its address, with the query parameters of `asked`. Returns `None`
/// for an entry of another transport, since its paths may need devices that this machine lacks.
pub fn url(entry: &DiscoveryEntry, asked: &Url) -> Option<Url> {
    let Url { carriage, host, port, subsystem, .. } = entry_url(entry)?;
    (carriage == asked.carriage).then(|| Url {
        host,
        port,
        subsystem,
        namespace: None,
        ..asked.clone()
    })
}
