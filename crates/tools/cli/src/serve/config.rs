//! `farblock.toml`: subsystems, namespaces, listeners, allowed hosts and cores.
//!
//! `examples/farblock.toml` shows every key; a hyphen in one is as good as an underscore. Keys that
//! are not known are errors, and every error names file, line and key. Relative paths are seen from
//! the directory of the file.

use super::disks;
use super::document::{self, Shares};
use super::keys;
use super::located::Source;
use crate::configuration;
use crate::error::{Failure, Result};
use crate::values;
use farblock_admin::Opened;
use farblock_backends::Spec;
use farblock_proto::controller::{AddressFamily, Referral, limits};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::Polling;
use farblock_state::Document;
use farblock_target::{Subsystem, TargetConfig};
use farblock_wire::tcp::{PORT_DISCOVERY, PORT_IO};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileConfig {
    engine: Option<Spanned<String>>,
    #[serde(default)]
    poll: bool,
    cores: Option<Spanned<String>>,
    listeners: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    referrals: Vec<Spanned<String>>,
    #[serde(default)]
    subsystems: Vec<Spanned<SubsystemConfig>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubsystemConfig {
    nqn: Spanned<String>,
    serial: Option<Spanned<String>>,
    model: Option<Spanned<String>>,
    #[serde(alias = "allow-any-host")]
    allow_any_host: Option<Spanned<bool>>,
    #[serde(default, alias = "allowed-hosts")]
    allowed_hosts: Vec<Spanned<String>>,
    #[serde(default)]
    hosts: Vec<Spanned<keys::HostConfig>>,
    #[serde(default)]
    namespaces: Vec<Spanned<NamespaceConfig>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceConfig {
    path: Spanned<String>,
    nsid: Option<Spanned<u32>>,
    #[serde(alias = "block-size")]
    block_size: Option<Spanned<u32>>,
    #[serde(default, alias = "read-only")]
    read_only: bool,
}

/// A namespace that is about to be opened.
struct Disk {
    spec: Spec,
    block_size: u32,
    read_only: bool,
    span: Range<usize>,
    key: String,
}

/// Reads a configuration and opens what it names.
pub(super) fn load(path: &Path, note: &mut dyn FnMut(String)) -> Result<Shares> {
    let text = configuration::read(path)?;
    let source = Source { path, text: &text };
    let parsed = parse(&source).map_err(Failure::Usage)?;
    let (config, disks) = checked(&source, path, &parsed).map_err(Failure::Usage)?;
    let specs: Vec<&Spec> = disks.iter().flat_map(|all| all.values()).map(|it| &it.spec).collect();
    disks::memory_doubt(&specs).map(&mut *note);
    let mut shares = Shares { document: described(&config, &disks), config, ..Shares::default() };
    for (index, disks) in disks.into_iter().enumerate() {
        for (nsid, disk) in disks {
            let opened = disks::open(&disk.spec, disk.block_size, disk.read_only);
            let (namespace, file) = opened.map_err(|error| {
                let what = disks::refused(&error, "read_only = true");
                Failure::Run(source.error(disk.span.clone(), &disk.key, what))
            })?;
            let identity = disks::identity(&disk.spec, note);
            shares.add(index, nsid, Opened { namespace, file, identity });
            shares.keep_reservations(index, nsid, &disk.spec);
        }
    }
    Ok(shares)
}

/// What a configuration says is to be shared; nothing is opened.
pub(super) fn document(path: &Path) -> Result<Document> {
    let text = configuration::read(path)?;
    let source = Source { path, text: &text };
    let parsed = parse(&source).map_err(Failure::Usage)?;
    let (config, disks) = checked(&source, path, &parsed).map_err(Failure::Usage)?;
    Ok(described(&config, &disks))
}

/// The same for a target that runs. A document knows of a host with a key only that it may connect.
#[cfg(unix)]
pub(super) fn keyless_document(path: &Path) -> Result<Document> {
    let text = configuration::read(path)?;
    let source = Source { path, text: &text };
    let parsed = parse(&source).map_err(Failure::Usage)?;
    let (config, disks) = checked(&source, path, &parsed).map_err(Failure::Usage)?;
    if super::steered::has_keys(&config) {
        let path = path.display();
        return Err(Failure::usage(format_args!(
            "a host in {path} has a key, and a running target is given none yet: restart it"
        )));
    }
    Ok(described(&config, &disks))
}

/// Checks everything without opening a disk, and reads the hosts' keys.
fn checked(
    source: &Source<'_>,
    path: &Path,
    parsed: &FileConfig,
) -> Result<(TargetConfig, Vec<Disks>), String> {
    let directory = directory(path);
    let (mut config, disks) = check(source, directory, parsed)?;
    for (index, entry) in parsed.subsystems.iter().enumerate() {
        let (key, hosts) = (format!("subsystems[{index}]"), &entry.as_ref().hosts);
        keys::add(source, directory, &key, hosts, &mut config.subsystems[index])?;
    }
    Ok((config, disks))
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn described(config: &TargetConfig, disks: &[Disks]) -> Document {
    let mut document = document::of(config);
    for (subsystem, disks) in config.subsystems.iter().zip(disks) {
        let place = document.subsystems.get_mut(&subsystem.config.nqn).expect("it is from there");
        for (nsid, disk) in disks {
            let namespace = document::namespace(&disk.spec, disk.block_size, disk.read_only);
            place.namespaces.insert(nsid.0, namespace);
        }
    }
    document
}

fn parse(source: &Source<'_>) -> Result<FileConfig, String> {
    let deserializer =
        toml::de::Deserializer::parse(source.text).map_err(|error| source.syntax_error(&error))?;
    serde_path_to_error::deserialize(deserializer).map_err(|error| source.schema_error(&error))
}

type Disks = BTreeMap<NamespaceId, Disk>;

/// Checks everything that can be checked without opening anything.
fn check(
    source: &Source<'_>,
    directory: &Path,
    file: &FileConfig,
) -> Result<(TargetConfig, Vec<Disks>), String> {
    let value = |text: &Spanned<String>, key: &str, problem: String| {
        source.error_with_example(text.span(), key, problem)
    };
    let mut config = TargetConfig::default();
    if let Some(engine) = &file.engine {
        let parsed = engine.as_ref().parse();
        config.engine = parsed.map_err(|error| source.error(engine.span(), "engine", error))?;
    }
    if file.poll {
        config.polling = Polling::Always;
    }
    if let Some(cores) = &file.cores {
        let parsed = values::cores(cores.as_ref());
        config.cores = parsed.map_err(|problem| value(cores, "cores", problem))?;
    }
    config.listeners = listeners(source, file)?;
    for (index, text) in file.referrals.iter().enumerate() {
        let key = format!("referrals[{index}]");
        let parsed = referral(text.as_ref()).map_err(|problem| value(text, &key, problem))?;
        config.referrals.push(parsed);
    }
    if file.subsystems.is_empty() {
        return Err(source.error_with_example(0..0, "subsystems", "nothing is shared"));
    }
    let mut names = BTreeSet::new();
    let mut disks = Vec::new();
    for (index, entry) in file.subsystems.iter().enumerate() {
        let key = format!("subsystems[{index}]");
        let nqn = &entry.as_ref().nqn;
        if !names.insert(nqn.as_ref()) {
            let what = "another subsystem has this name already";
            return Err(source.error(nqn.span(), &format!("{key}.nqn"), what));
        }
        config.subsystems.push(subsystem(source, &key, entry)?);
        disks.push(namespaces(source, directory, &key, entry)?);
    }
    Ok((config, disks))
}

fn listeners(source: &Source<'_>, file: &FileConfig) -> Result<Vec<SocketAddr>, String> {
    let Some(listeners) = &file.listeners else {
        return Ok(vec![(Ipv4Addr::LOCALHOST, PORT_IO).into()]);
    };
    if listeners.as_ref().is_empty() {
        let what = "the list is empty, so nobody could connect";
        return Err(source.error_with_example(listeners.span(), "listeners", what));
    }
    let parse = |(index, text): (usize, &Spanned<String>)| {
        values::listen_address(text.as_ref()).map_err(|problem| {
            source.error_with_example(text.span(), &format!("listeners[{index}]"), problem)
        })
    };
    listeners.as_ref().iter().enumerate().map(parse).collect()
}

fn referral(text: &str) -> Result<Referral, String> {
    let (host, port) = values::host_and_port(text)?;
    let address: IpAddr = host
        .parse()
        .map_err(|_| format!("{host:?} is no IP address, and a referral cannot hold a name"))?;
    let family = if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 };
    let service = port.unwrap_or(PORT_DISCOVERY).to_string();
    Ok(Referral { family, address: address.to_string(), service })
}

fn subsystem(
    source: &Source<'_>,
    key: &str,
    entry: &Spanned<SubsystemConfig>,
) -> Result<Subsystem, String> {
    let config = entry.as_ref();
    let of = |name: &str| format!("{key}.{name}");
    values::nqn(config.nqn.as_ref())
        .map_err(|problem| source.error(config.nqn.span(), &of("nqn"), problem))?;
    let mut subsystem = Subsystem::new(config.nqn.as_ref());
    subsystem
        .config
        .check()
        .map_err(|error| source.error_with_example(config.nqn.span(), &of("nqn"), error))?;
    let offered = &mut subsystem.config;
    for (name, field, value) in [
        ("serial", &mut offered.serial, &config.serial),
        ("model", &mut offered.model, &config.model),
    ] {
        let Some(value) = value else { continue };
        let most = if name == "serial" { 20 } else { 40 };
        let printable = value.as_ref().bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if value.as_ref().is_empty() || value.as_ref().len() > most || !printable {
            let what = format!("use 1 to {most} letters, digits and signs of ASCII");
            return Err(source.error_with_example(value.span(), &of(name), what));
        }
        field.clone_from(value.as_ref());
    }
    offered.allow_any_host = config.allow_any_host.as_ref().is_some_and(|any| *any.as_ref());
    for (index, host) in config.allowed_hosts.iter().enumerate() {
        let key = of(&format!("allowed_hosts[{index}]"));
        let checked = values::nqn(host.as_ref());
        offered.allowed_hosts.push(checked.map_err(|what| source.error(host.span(), &key, what))?);
    }
    let nobody = offered.allowed_hosts.is_empty() && config.hosts.is_empty();
    match (&config.allow_any_host, offered.allow_any_host, nobody) {
        (Some(any), true, false) => Err(source.error(
            any.span(),
            &of("allow_any_host"),
            "allowed_hosts and hosts would mean nothing then: remove one of the two",
        )),
        (_, false, true) => Err(source.error(
            entry.span(),
            &of("allowed_hosts"),
            "nobody could connect: list the hosts that may, or set allow_any_host = true",
        )),
        _ => offered
            .check()
            .map(|()| subsystem)
            .map_err(|error| source.error(entry.span(), key, error)),
    }
}

fn namespaces(
    source: &Source<'_>,
    directory: &Path,
    key: &str,
    entry: &Spanned<SubsystemConfig>,
) -> Result<Disks, String> {
    let listed = &entry.as_ref().namespaces;
    if listed.is_empty() {
        let key = format!("{key}.namespaces");
        return Err(source.error_with_example(entry.span(), &key, "the subsystem has none"));
    }
    let fixed: BTreeSet<u32> =
        listed.iter().filter_map(|one| one.as_ref().nsid.as_ref().map(|id| *id.as_ref())).collect();
    let mut free = (1..).filter(|id| !fixed.contains(id));
    let mut disks = Disks::new();
    for (index, one) in listed.iter().enumerate() {
        let config = one.as_ref();
        let key = format!("{key}.namespaces[{index}]");
        let (nsid, span) = match &config.nsid {
            Some(id) => (*id.as_ref(), id.span()),
            None => (free.next().unwrap_or(u32::MAX), one.span()),
        };
        let nsid_key = format!("{key}.nsid");
        if !(1..=limits::MAX_NAMESPACE_ID).contains(&nsid) {
            let what = format!("use 1 to {}", limits::MAX_NAMESPACE_ID);
            return Err(source.error(span, &nsid_key, what));
        }
        let disk = disk(source, directory, &key, config)?;
        if disks.insert(NamespaceId(nsid), disk).is_some() {
            let what = format!("the subsystem has a namespace {nsid} already");
            return Err(source.error(span, &nsid_key, what));
        }
    }
    Ok(disks)
}

fn disk(
    source: &Source<'_>,
    directory: &Path,
    key: &str,
    config: &NamespaceConfig,
) -> Result<Disk, String> {
    let (span, path_key) = (config.path.span(), format!("{key}.path"));
    let spec = disks::parse(config.path.as_ref())
        .map_err(|problem| source.error_with_example(span.clone(), &path_key, problem))?;
    let block_size = match &config.block_size {
        None => 512,
        Some(size) if matches!(*size.as_ref(), 512 | 4096) => *size.as_ref(),
        Some(size) => {
            let key = format!("{key}.block_size");
            let what = format!("{} is no size for a block: use 512 or 4096", size.as_ref());
            return Err(source.error(size.span(), &key, what));
        }
    };
    let spec = disks::seen_from(&spec, directory);
    Ok(Disk { spec, block_size, read_only: config.read_only, span, key: path_key })
}
