//! `farblock discover`: lists the subsystems that a machine shares.

use crate::args::{ConnectionArgs, DiscoverArgs, Global};
use crate::error::Result;
use crate::output;
use crate::remote;
use crate::table::{Align, Table, printable};
use farblock_host::entry_url;
use farblock_host::url::Url;
use farblock_program::discovery;
use farblock_proto::host::DiscoveryEntry;
use farblock_wire::log::{SubsystemType, TransportType};
use serde::Serialize;
use std::path::Path;

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
    /// Whether the subsystem requires TLS; `None` if the target does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_required: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

pub(crate) fn run(args: &DiscoverArgs, global: &Global) -> Result<()> {
    let connection = ConnectionArgs {
        tls_key: args.tls_key.clone(),
        host: args.host.clone(),
        ..ConnectionArgs::default()
    };
    let options = remote::options(global, &connection);
    let (address, entries) = discovery::ask(&args.address, &options)?;
    if args.json {
        return output::print_json(&Discovered {
            address,
            entries: entries.iter().map(described).collect(),
        });
    }
    output::print(&listing(&address, &entries, &args.address.url, args.tls_key.as_deref()))
}

fn listing(
    address: &str,
    entries: &[DiscoveryEntry],
    asked: &Url,
    tls_key: Option<&Path>,
) -> String {
    let mut columns = vec![
        ("KIND", Align::Left),
        ("TRANSPORT", Align::Left),
        ("ADDRESS", Align::Left),
        ("NQN", Align::Left),
    ];
    let requires_tls = |entry: &DiscoveryEntry| tls_required(entry) == Some(true);
    let shows_tls = entries.iter().any(requires_tls);
    if shows_tls {
        columns.push(("TLS", Align::Left));
    }
    let mut table = Table::new(&columns);
    for entry in entries {
        let described = described(entry);
        let mut row = vec![
            described.kind,
            described.transport.to_owned(),
            farblock_host::entry_address(entry),
            entry.subnqn.clone(),
        ];
        if shows_tls {
            row.push(if requires_tls(entry) { "required" } else { "" }.to_owned());
        }
        table.row(row);
    }
    let key = tls_key.unwrap_or(Path::new("tls.key"));
    let key = format!(" --tls-key {}", quoted(&key.display().to_string()));
    let look = |entry: &DiscoveryEntry| {
        let url = discovery::url(entry, asked)?;
        let option = if requires_tls(entry) && url.tcp.tls_key.is_none() { &key } else { "" };
        Some(format!("{}{option}", quoted(&url.to_string())))
    };
    let urls: Vec<String> = entries.iter().filter_map(look).collect();
    let mut text = format!("{address} {}\n", known(entries));
    if !entries.is_empty() {
        text.push_str(&format!("\n{}", table.render(2)));
    }
    let referrals: Vec<String> = entries
        .iter()
        .filter(|entry| entry.is_referral())
        .map(|entry| quoted(&printable(&farblock_host::entry_address(entry))))
        .collect();
    if !referrals.is_empty() {
        text.push_str("\nIt refers to other discovery services. Query them with:\n");
        referrals.iter().for_each(|at| text.push_str(&format!("  farblock discover {at}\n")));
    }
    if !urls.is_empty() {
        text.push_str("\nFor details, run:\n");
        urls.iter().for_each(|url| text.push_str(&format!("  farblock id {url}\n")));
    }
    text
}

/// Formats the number of subsystems that a discovery service lists for this host, without the
/// service itself.
fn known(entries: &[DiscoveryEntry]) -> String {
    let count = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let mut names: Vec<&str> =
        entries.iter().filter(|it| it.is_subsystem()).map(|it| it.subnqn.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let referrals = entries.iter().filter(|entry| entry.is_referral()).count();
    let referred = match referrals {
        0 => String::new(),
        _ => format!(", and refers to {}", count(referrals, "other discovery service")),
    };
    match names.len() {
        0 => format!("lists no subsystem for this host{referred}"),
        subsystems => format!("lists {}{referred}", count(subsystems, "subsystem")),
    }
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
    Entry {
        kind,
        transport,
        address: &entry.address,
        service: &entry.service,
        port_id: entry.port_id,
        nqn: &entry.subnqn,
        tls_required: tls_required(entry),
        url: entry_url(entry).map(|url| url.to_string()),
    }
}

/// Whether the entry requires a secure channel (TREQ, bits 1:0); `None` if the entry does not
/// specify this.
fn tls_required(entry: &DiscoveryEntry) -> Option<bool> {
    match entry.requirements & 0b11 {
        0b01 => Some(true),
        0b10 => Some(false),
        _ => None,
    }
}

/// Quotes any text as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_wire::log::AddressFamily;

    fn entry(address: &str, service: &str, nqn: &str) -> DiscoveryEntry {
        DiscoveryEntry {
            transport: TransportType::TCP,
            address_family: AddressFamily::IPV4,
            kind: SubsystemType::NVM,
            requirements: 0,
            port_id: 1,
            cntlid: 0xffff,
            admin_entries: 32,
            address: address.to_owned(),
            service: service.to_owned(),
            subnqn: nqn.to_owned(),
        }
    }

    #[test]
    fn a_hostile_discovery_entry_gets_no_url_and_no_command() {
        let nqn = "nqn.2026-11.org.example:a";
        let good = entry_url(&entry("192.0.2.7", "4420", nqn)).unwrap().to_string();
        assert_eq!(good, "nvme+tcp://192.0.2.7:4420/nqn.2026-11.org.example:a");
        for (address, service) in [
            ("192.0.2.7'; touch pwned #", "4420"),
            ("192.0.2.7", "4420'; touch pwned #"),
            ("192.0.2.7", "nvme"),
            ("192.0.2.7", "0"),
            ("192.0.2.7\x1b[2J", "4420"),
            ("192.0.2.7\u{202e}", "4420"),
        ] {
            let entry = entry(address, service, nqn);
            assert_eq!(entry_url(&entry), None, "{address} {service}");
            let listing = listing("192.0.2.7:8009", &[entry], &Url::default(), None);
            assert!(!listing.contains("farblock id"), "{listing}");
            assert!(!listing.contains('\x1b') && !listing.contains('\u{202e}'), "{listing}");
            // The listing shows the address, so that the user can see the problem.
            assert!(listing.contains(service), "{listing}");
        }
        let sly = entry("192.0.2.7", "4420", "nqn.2026-11.org.example:'$(x)'");
        let sly = listing("a", &[sly], &Url::default(), None);
        let command = sly.lines().last().unwrap().trim().strip_prefix("farblock id ").unwrap();
        let inner = command.strip_prefix('\'').unwrap().strip_suffix('\'').unwrap();
        assert!(!inner.replace(r"'\''", "").contains('\''), "{command}");
    }

    #[test]
    fn the_listing_omits_the_discovery_service_itself() {
        let nqn = "nqn.2026-11.org.example:a";
        let of_kind = |kind, address| DiscoveryEntry { kind, ..entry(address, "4420", nqn) };
        let itself = of_kind(SubsystemType::CURRENT_DISCOVERY, "192.0.2.7");
        let referral = of_kind(SubsystemType::REFERRAL, "192.0.2.9");
        let first = |entries: &[DiscoveryEntry]| {
            let text = listing("a", entries, &Url::default(), None);
            text.lines().next().unwrap_or_default().to_owned()
        };
        let nothing = "a lists no subsystem for this host";
        assert_eq!(first(&[]), nothing);
        assert_eq!(first(std::slice::from_ref(&itself)), nothing);
        let paths = [itself, entry("192.0.2.7", "4420", nqn), entry("192.0.2.8", "4420", nqn)];
        assert_eq!(first(&paths), "a lists 1 subsystem");
        let refers = format!("{nothing}, and refers to 1 other discovery service");
        assert_eq!(first(std::slice::from_ref(&referral)), refers);
        let text = listing("a", &[referral], &Url::default(), None);
        assert!(text.contains("  farblock discover '192.0.2.9:4420'\n"), "{text}");
    }

    #[test]
    fn commands_for_entries_that_require_tls_include_the_key() {
        let nqn = "nqn.2026-11.org.example:a";
        let required = DiscoveryEntry { requirements: 0b01, ..entry("192.0.2.7", "4420", nqn) };
        let open = DiscoveryEntry { requirements: 0b10, ..entry("192.0.2.7", "4421", nqn) };
        let asked = Url::default();
        let key = Path::new("/etc/host key");
        let both = listing("a", &[required.clone(), open.clone()], &asked, Some(key));
        assert!(both.contains("required"), "{both}");
        let with_key: Vec<&str> =
            both.lines().filter(|line| line.ends_with(" --tls-key '/etc/host key'")).collect();
        assert!(with_key.len() == 1 && with_key[0].contains(":4420/"), "{both}");
        assert!(!listing("a", &[open], &asked, None).contains("TLS"));
        let asked = "nvme+tcp://192.0.2.1?hostnqn=nqn.2026-11.h:one&tls-key=/k".parse().unwrap();
        let own = listing("a", &[required], &asked, None);
        let command = format!("'nvme+tcp://192.0.2.7:4420/{nqn}?hostnqn=nqn.2026-11.h:one");
        assert!(own.contains(&command) && own.ends_with("tls-key=/k'\n"), "{own}");
    }
}
