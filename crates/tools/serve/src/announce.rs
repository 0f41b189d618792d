//! The announcement that `serve` prints when it starts to listen: the shared disks, and commands to
//! connect to them.

use crate::error::{Failure, Result};
use crate::output;
use crate::table::{Align, Table};
use farblock_block::size::Size;
use farblock_host::url::Carriage;
use farblock_program::reachable::reachable;
use farblock_program::shell::quoted;
use farblock_reactor::Polling;
use farblock_state::{Entrance, Transport};
use farblock_target::{Subsystem, Target, TargetConfig, TlsPolicy};
use serde::Serialize;
use std::fmt::Write as _;
use std::net::SocketAddr;

const MIB: u64 = 1 << 20;

#[derive(Serialize)]
struct Listening<'a> {
    listening: &'a [SocketAddr],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rdma: Vec<SocketAddr>,
    engine: String,
    pid: u32,
    subsystems: Vec<SharedSubsystem<'a>>,
    connect: Connect,
    #[serde(skip_serializing_if = "Option::is_none")]
    dashboard: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<String>,
}

#[derive(Serialize)]
struct SharedSubsystem<'a> {
    nqn: &'a str,
    serial: &'a str,
    model: &'a str,
    allow_any_host: bool,
    allowed_hosts: &'a [String],
    namespaces: Vec<SharedNamespace>,
}

#[derive(Serialize)]
struct SharedNamespace {
    nsid: u32,
    bytes: u64,
    block_size: u32,
    read_only: bool,
    description: String,
    url: String,
}

/// Command lines with which the user can connect.
#[derive(Serialize)]
struct Connect {
    farblock: Vec<String>,
    nvme_cli: Vec<String>,
}

/// The TCP addresses of the dashboard, the management API and the metrics.
#[derive(Default)]
pub(super) struct OnTcp<'a> {
    pub(super) dashboard: Option<&'a str>,
    pub(super) interface: Option<SocketAddr>,
    pub(super) counters: Option<SocketAddr>,
    pub(super) is_secure: bool,
}

/// Prints the announcement, with the `listening on` lines last, and flushes the output. Ignores a
/// closed standard output.
pub(super) fn announce(
    target: &Target,
    config: &TargetConfig,
    on_tcp: OnTcp<'_>,
    json: bool,
    quiet: bool,
) -> Result<()> {
    let dashboard = on_tcp.dashboard;
    let scheme = if on_tcp.is_secure { "https" } else { "http" };
    let interface = on_tcp.interface.map(|address| format!("{scheme}://{address}"));
    let metrics = on_tcp.counters.map(|address| format!("{scheme}://{address}/metrics"));
    let addresses = target.entrances();
    let reachable = near(addresses[0]);
    let printed = if json {
        output::print_json_line(&Listening {
            listening: target.addresses(),
            rdma: target.rdma_addresses(),
            engine: target.engine().to_string(),
            pid: std::process::id(),
            subsystems: config.subsystems.iter().map(|one| shared(one, reachable)).collect(),
            connect: connect(config, reachable),
            dashboard,
            interface,
            metrics,
        })
    } else {
        let mut text = String::new();
        if !quiet {
            describe(&mut text, target, config, reachable);
        }
        if let Some(url) = dashboard {
            let _ = writeln!(text, "dashboard at {url}");
        }
        if let Some(url) = interface {
            let _ = writeln!(text, "interface at {url}");
        }
        if let Some(url) = metrics {
            let _ = writeln!(text, "counters at {url}");
        }
        for address in addresses {
            let _ = writeln!(text, "listening on {address}");
        }
        output::print(&text)
    };
    match printed {
        Err(Failure::OutputClosed) => Ok(()),
        other => other,
    }
}

fn describe(text: &mut String, target: &Target, config: &TargetConfig, first: Entrance) {
    let version = env!("CARGO_PKG_VERSION");
    let spin = match config.polling {
        Polling::Adaptive { .. } => String::new(),
        polling => format!(", spin {polling}"),
    };
    let _ = writeln!(text, "farblock {version}, {} engine{spin}\n", target.engine());
    for subsystem in &config.subsystems {
        let _ = writeln!(text, "Subsystem {}", subsystem.config.nqn);
        let _ = writeln!(text, "{}", hosts(subsystem));
        text.push_str(&namespaces(subsystem).render(2));
        text.push('\n');
    }
    let connect = connect(config, first);
    text.push_str("Use it with farblock:\n");
    connect.farblock.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    let kind = first.transport;
    let _ = writeln!(text, "Use it with the Linux kernel (as root, after modprobe nvme-{kind}):");
    connect.nvme_cli.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    if kind == Transport::Tcp
        && let Some(&address) = target.rdma_addresses().first()
    {
        text.push_str(
            "Use it with the Linux kernel over RDMA (as root, after modprobe nvme-rdma):\n",
        );
        let address = reachable(address);
        for subsystem in &config.subsystems {
            let (host, port) = (host(address), address.port());
            let nqn = quoted(&subsystem.config.nqn);
            let (_, secrets) = secrets(subsystem, false);
            let _ = writeln!(
                text,
                "  nvme connect --transport=rdma --traddr={host} --trsvcid={port} --nqn={nqn}\
                 {secrets}"
            );
        }
    }
    text.push('\n');
}

fn hosts(subsystem: &Subsystem) -> String {
    if subsystem.config.allow_any_host {
        return "any host may connect".to_owned();
    }
    let host = |nqn: &String| match subsystem.keys.contains_key(nqn) {
        true => format!("{nqn} (with its key)"),
        false => nqn.clone(),
    };
    let hosts: Vec<String> = subsystem.config.allowed_hosts.iter().map(host).collect();
    format!("hosts that may connect: {}", hosts.join(", "))
}

fn namespaces(subsystem: &Subsystem) -> Table {
    let mut table = Table::new(&[
        ("NS", Align::Right),
        ("SIZE", Align::Right),
        ("BLOCK", Align::Right),
        ("ACCESS", Align::Left),
        ("STORED IN", Align::Left),
    ]);
    for (nsid, export) in &subsystem.exports {
        let geometry = export.namespace.geometry();
        table.row(vec![
            nsid.0.to_string(),
            Size(geometry.capacity_bytes()).to_string(),
            geometry.block_size.to_string(),
            access(geometry.read_only).to_owned(),
            export.namespace.describe(),
        ]);
    }
    table
}

fn access(read_only: bool) -> &'static str {
    if read_only { "read only" } else { "read, write" }
}

fn shared(subsystem: &Subsystem, reachable: Entrance) -> SharedSubsystem<'_> {
    let config = &subsystem.config;
    let namespaces = subsystem.exports.iter().map(|(nsid, export)| {
        let geometry = export.namespace.geometry();
        SharedNamespace {
            nsid: nsid.0,
            bytes: geometry.capacity_bytes(),
            block_size: geometry.block_size,
            read_only: geometry.read_only,
            description: export.namespace.describe(),
            url: url(reachable, &config.nqn, Some(nsid.0)),
        }
    });
    SharedSubsystem {
        nqn: &config.nqn,
        serial: &config.serial,
        model: &config.model,
        allow_any_host: config.allow_any_host,
        allowed_hosts: &config.allowed_hosts,
        namespaces: namespaces.collect(),
    }
}

/// Formats an address without its port, but with its IPv6 zone.
fn host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(six) if six.scope_id() != 0 => format!("{}%{}", six.ip(), six.scope_id()),
        _ => address.ip().to_string(),
    }
}

fn url(Entrance { transport, address }: Entrance, nqn: &str, namespace: Option<u32>) -> String {
    let url = farblock_host::url::Url {
        carriage: match transport {
            Transport::Tcp => Carriage::Tcp,
            Transport::Rdma => Carriage::Rdma,
        },
        host: host(address),
        port: Some(address.port()),
        subsystem: Some(nqn.to_owned()),
        namespace,
        ..Default::default()
    };
    url.to_string()
}

/// Replaces a wildcard address by an address to which hosts can connect.
fn near(entrance: Entrance) -> Entrance {
    Entrance { address: reachable(entrance.address), ..entrance }
}

fn connect(config: &TargetConfig, address: Entrance) -> Connect {
    let (host, port, kind) = (host(address.address), address.port(), address.transport);
    // Use the TLS policy of the first listener, because the commands contain its address.
    let policy = config.tls_listeners.get(&0).copied().or(config.tls);
    let (key, tls) = match policy {
        Some(TlsPolicy::Required) => (" --tls-key tls.key", " --tls"),
        None if !config.tls_keys.is_empty() => (" --tls-key tls.key", " --tls"),
        _ => ("", ""),
    };
    let mut farblock = vec![format!("farblock discover {address}{key}")];
    let mut nvme_cli =
        vec![format!("nvme discover --transport={kind} --traddr={host} --trsvcid={port}{tls}")];
    for subsystem in &config.subsystems {
        let nqn = &subsystem.config.nqn;
        let has_tls = subsystem.keys.values().any(|keys| !keys.tls.is_empty());
        let (ours, nvme_clis) = secrets(subsystem, has_tls || !config.tls_keys.is_empty());
        farblock.push(format!("farblock id {}{ours}", quoted(&url(address, nqn, None))));
        if let Some((first, export)) = subsystem.exports.iter().next() {
            let url = quoted(&url(address, nqn, Some(first.0)));
            // Read the whole disk if it has less than 1 MiB.
            farblock.push(match export.namespace.geometry().capacity_bytes() {
                MIB.. => format!("farblock read {url} --length 1MiB --output first-mib.img{ours}"),
                _ => format!("farblock read {url} --output whole.img{ours}"),
            });
        }
        nvme_cli.push(format!(
            "nvme connect --transport={kind} --traddr={host} --trsvcid={port} --nqn={}{nvme_clis}",
            quoted(nqn)
        ));
    }
    Connect { farblock, nvme_cli }
}

/// Returns the additional arguments of the farblock and nvme-cli commands for hosts with keys. Each
/// host has its own key file, so the commands contain placeholder names. nvme-cli takes TLS keys
/// from the kernel's keyring.
fn secrets(subsystem: &Subsystem, tls: bool) -> (String, String) {
    let (mut farblock, mut nvme_cli) = (String::new(), String::new());
    if subsystem.keys.values().any(|keys| !keys.host.is_empty()) {
        farblock.push_str(" --dhchap-secret host.key");
        nvme_cli.push_str(" --dhchap-secret \"$(farblock keys show --secret host.key)\"");
    }
    if tls {
        farblock.push_str(" --tls-key tls.key");
        nvme_cli.push_str(" --tls");
    }
    (farblock, nvme_cli)
}
