//! `farblock discover`: what a machine shares.

use crate::args::{DigestArgs, DiscoverArgs, Global};
use crate::error::{Failure, Result};
use crate::output;
use crate::remote;
use crate::table::{Align, Table};
use farblock_host::url::Url;
use farblock_host::{Error, Options};
use farblock_proto::host::{ConnectError, DiscoveryEntry};
use farblock_wire::log::{SubsystemType, TransportType};
use serde::Serialize;

#[derive(Serialize)]
struct Discovered<'a> {
    address: String,
    entries: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    kind: String,
    transport: &'static str,
    address: &'a str,
    service: &'a str,
    port_id: u16,
    nqn: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &DiscoverArgs, global: &Global) -> Result<()> {
    let options = remote::options(global, DigestArgs::default());
    let (address, entries) = ask(args, &options)?;
    if args.json {
        return output::print_json(&Discovered {
            address,
            entries: entries.iter().map(described).collect(),
        });
    }
    output::print(&listing(&address, &entries))
}

/// Asks at each port in turn; what the last one says counts.
fn ask(args: &DiscoverArgs, options: &Options) -> Result<(String, Vec<DiscoveryEntry>)> {
    let wanted = &args.address;
    let mut failures = Vec::new();
    for &port in &wanted.ports {
        let url = Url { host: wanted.host.clone(), port: Some(port), ..Url::default() };
        let address = url.address();
        match farblock_host::discover(&address, options) {
            Ok(entries) => return Ok((address, entries)),
            Err(error) => {
                let elsewhere = matches!(
                    &error,
                    Error::Connect {
                        reason: ConnectError::Refused
                            | ConnectError::TimedOut { .. }
                            | ConnectError::NotNvmeTcp { .. },
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
        None => Err(Failure::usage("there is no port to ask at")),
    }
}

fn listing(address: &str, entries: &[DiscoveryEntry]) -> String {
    let mut table = Table::new(&[
        ("KIND", Align::Left),
        ("TRANSPORT", Align::Left),
        ("ADDRESS", Align::Left),
        ("NQN", Align::Left),
    ]);
    for entry in entries {
        let described = described(entry);
        table.row(vec![
            described.kind,
            described.transport.to_owned(),
            farblock_host::entry_address(entry),
            entry.subnqn.clone(),
        ]);
    }
    let urls: Vec<String> = entries.iter().filter_map(|entry| described(entry).url).collect();
    let mut text = format!("{address} knows of {} entries\n\n", entries.len());
    if !entries.is_empty() {
        text.push_str(&table.render(2));
    }
    if !urls.is_empty() {
        text.push_str("\nLook closer with:\n");
        urls.iter().for_each(|url| text.push_str(&format!("  farblock id '{url}'\n")));
    }
    text
}

fn described(entry: &DiscoveryEntry) -> Entry<'_> {
    let kind = match entry.kind {
        SubsystemType::NVM => "subsystem".to_owned(),
        SubsystemType::REFERRAL => "referral".to_owned(),
        SubsystemType::CURRENT_DISCOVERY => "this discovery service".to_owned(),
        SubsystemType(number) => format!("kind {number}"),
    };
    let transport = match entry.transport {
        TransportType::TCP => "tcp",
        TransportType::RDMA => "rdma",
        TransportType::FIBRE_CHANNEL => "fc",
        TransportType::LOOP => "loop",
        _ => "unknown",
    };
    let connectable = entry.is_tcp() && entry.is_subsystem();
    Entry {
        kind,
        transport,
        address: &entry.address,
        service: &entry.service,
        port_id: entry.port_id,
        nqn: &entry.subnqn,
        url: connectable.then(|| url(entry)),
    }
}

fn url(entry: &DiscoveryEntry) -> String {
    let url = Url {
        host: entry.address.clone(),
        port: entry.service.parse().ok(),
        subsystem: Some(entry.subnqn.clone()),
        ..Url::default()
    };
    url.to_string()
}
