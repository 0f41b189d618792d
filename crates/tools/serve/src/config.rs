//! `farblock.toml`: subsystems, namespaces, listeners, allowed hosts, cores and the group.
//!
//! `examples/farblock.toml` shows every key. A key may have hyphens or underscores. An unknown key
//! is an error. Every error names the file, the line and the key. Relative paths start at the
//! file's folder.

use super::document::{self, Led, Opening, Shares};
use super::group_config::GroupConfig;
use super::keys;
use super::located::Source;
use super::{disks, group, identity, names, twice};
use crate::configuration;
use crate::error::{Failure, Result};
use crate::values;
use farblock_admin::Opened;
use farblock_backends::Spec;
use farblock_proto::controller::{AddressFamily, Referral, USUAL_ANA_GROUP, limits};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::{Congestion, Polling};
use farblock_state::{Ana, Document, Entrance, Eui64, Limits, Listener, Namespace};
use farblock_target::{Subsystem, TargetConfig};
use farblock_wire::fabrics::CNTLID_MAX;
use farblock_wire::tcp::{PORT_DISCOVERY, PORT_IO};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use toml::Spanned;
use uuid::Uuid;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileConfig {
    engine: Option<Spanned<String>>,
    spin: Option<Spanned<String>>,
    congestion: Option<Spanned<String>>,
    #[serde(default)]
    poll: bool,
    cores: Option<Spanned<String>>,
    memory: Option<Spanned<String>>,
    listeners: Option<Spanned<Vec<Spanned<ListenerConfig>>>>,
    ana: Option<Spanned<String>>,
    #[serde(default, alias = "ana-groups")]
    ana_groups: BTreeMap<Spanned<String>, Spanned<String>>,
    tls: Option<Spanned<String>>,
    cntlids: Option<Spanned<String>>,
    #[serde(default)]
    referrals: Vec<Spanned<String>>,
    group: Option<Spanned<GroupConfig>>,
    #[serde(default)]
    subsystems: Vec<Spanned<SubsystemConfig>>,
}

/// A listener: an address, or a table with an address and settings.
struct ListenerConfig {
    address: String,
    tls: Option<String>,
}

impl<'de> Deserialize<'de> for ListenerConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            address: String,
            tls: Option<String>,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = ListenerConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or a table with address and tls")
            }

            fn visit_str<E>(self, address: &str) -> Result<Self::Value, E> {
                Ok(ListenerConfig { address: address.to_owned(), tls: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let Table { address, tls } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ListenerConfig { address, tls })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubsystemConfig {
    nqn: Spanned<String>,
    serial: Option<Spanned<String>>,
    model: Option<Spanned<String>>,
    #[serde(alias = "min-cntlid")]
    min_cntlid: Option<Spanned<u16>>,
    #[serde(alias = "max-cntlid")]
    max_cntlid: Option<Spanned<u16>>,
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
    #[serde(alias = "ana-group")]
    ana_group: Option<Spanned<u32>>,
    #[serde(alias = "visible-to")]
    visible_to: Option<Spanned<Vec<Spanned<String>>>>,
    limits: Option<Spanned<Limits>>,
    #[serde(alias = "copy-bytes-per-second")]
    copy_bytes_per_second: Option<u64>,
    uuid: Option<Spanned<Uuid>>,
    nguid: Option<Spanned<Uuid>>,
    eui64: Option<Spanned<Eui64>>,
}

/// The disk of a namespace in the file, not yet open.
struct Disk {
    spec: Spec,
    block_size: u32,
    read_only: bool,
    /// The settings of the namespace that do not concern its disk.
    terms: Namespace,
    span: Range<usize>,
    key: String,
}

/// Parses a configuration file. Returns the planned state, and the function that opens its disks.
pub(super) fn load<'a>(
    path: &'a Path,
    text: &'a str,
    note: &mut dyn FnMut(String),
) -> Result<(Shares, Opening<'a>)> {
    let source = Source { path, text };
    let parsed = parse(&source).map_err(Failure::Usage)?;
    let (config, disks, hosts) = checked(&source, path, &parsed).map_err(Failure::Usage)?;
    let specs: Vec<&Spec> = disks.iter().flat_map(|all| all.values()).map(|it| &it.spec).collect();
    farblock_disks::memory_doubt(&specs).map(&mut *note);
    let named = parsed.group.as_ref().map(|group| group.as_ref().name.as_ref().clone());
    let mut document = described(&config, &disks, hosts, named.as_deref());
    let listeners = listeners(&source, &parsed).map_err(Failure::Usage)?;
    document.listeners = listeners.into_iter().collect();
    check_whole(path, &document).map_err(Failure::Usage)?;
    let shares = Shares { document, config, ..Shares::default() };
    let opening = move |shares, note: &mut dyn FnMut(String)| match named {
        Some(_) => absent(&source, shares, disks),
        None => open(&source, shares, disks, note),
    };
    Ok((shares, Box::new(opening)))
}

/// Returns the section `[group]` of a configuration file, as options of the command line.
#[cfg(target_os = "linux")]
pub(super) fn group_of(path: &Path, text: &str) -> Result<Option<crate::args::GroupArgs>> {
    let source = Source { path, text };
    let parsed = parse(&source).map_err(Failure::Usage)?;
    let group =
        parsed.group.as_ref().map(|group| group.as_ref().settings(&source, directory(path)));
    group.transpose().map_err(Failure::Usage)
}

/// Shares a placeholder for each disk, for a member of a group: only the group's leader opens the
/// disk itself.
fn absent(source: &Source<'_>, mut shares: Shares, disks: Vec<Disks>) -> Result<Shares> {
    for (index, disks) in disks.into_iter().enumerate() {
        for (nsid, disk) in disks {
            let led =
                Led { spec: disk.spec, block_size: disk.block_size, read_only: disk.read_only };
            group::absent(&mut shares, (index, nsid), led).map_err(|what| {
                Failure::Run(source.error(disk.span, &disk.key, what.sentence()))
            })?;
        }
    }
    Ok(shares)
}

fn open(
    source: &Source<'_>,
    mut shares: Shares,
    disks: Vec<Disks>,
    note: &mut dyn FnMut(String),
) -> Result<Shares> {
    let gathering = identity::Gathering::begin();
    for (index, disks) in disks.into_iter().enumerate() {
        for (nsid, disk) in disks {
            let (uuid, read_only) = (disk.terms.uuid, disk.read_only);
            let opened = disks::open(&disk.spec, uuid, disk.block_size, read_only, note);
            let opened = opened.map_err(|error| {
                let what = disks::refused(&error, "read_only = true");
                Failure::Run(source.error(disk.span.clone(), &disk.key, what))
            })?;
            let identity = match uuid {
                Some(uuid) => uuid.to_string(),
                None => disks::identity(&disk.spec, note),
            };
            shares.add(index, nsid, Opened { identity, ..opened });
        }
    }
    gathering.check().map_err(Failure::Run)?;
    Ok(shares)
}

/// Checks that the entries of the document do not contradict each other.
fn check_whole(path: &Path, document: &Document) -> Result<(), String> {
    let mut whole = document.clone();
    // `Document::check` refuses port 0, which is valid here and selects a free port. So replace it
    // by port 1.
    let any = |(address, listener): (&Entrance, &Listener)| {
        (address.with_port(address.port().max(1)), listener.clone())
    };
    whole.listeners = document.listeners.iter().map(any).collect();
    whole.check().map_err(|problem| format!("{}: {problem}", path.display()))
}

/// Returns the state that a configuration file describes, without opening its disks.
pub(super) fn document(path: &Path) -> Result<Document> {
    let text = configuration::read(path)?;
    let source = Source { path, text: &text };
    let parsed = parse(&source).map_err(Failure::Usage)?;
    let (config, disks, hosts) = checked(&source, path, &parsed).map_err(Failure::Usage)?;
    let named = parsed.group.as_ref().map(|group| group.as_ref().name.as_ref().as_str());
    let mut document = described(&config, &disks, hosts, named);
    let listeners = listeners(&source, &parsed).map_err(Failure::Usage)?;
    document.listeners = listeners.into_iter().collect();
    check_whole(path, &document).map_err(Failure::Usage)?;
    Ok(document)
}

/// A checked configuration, with the disks and hosts of each subsystem.
type Checked = (TargetConfig, Vec<Disks>, Vec<keys::Hosts>);

/// Checks the whole file without opening a disk, and reads the hosts' keys.
fn checked(source: &Source<'_>, path: &Path, parsed: &FileConfig) -> Result<Checked, String> {
    let directory = directory(path);
    let (mut config, disks) = check(source, directory, parsed)?;
    let all = disks.iter().flat_map(|disks| disks.values());
    let found = twice::find(all.map(|disk| (disk, &disk.spec, disk.read_only)));
    if let Some((disk, file, other)) = found {
        let full = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let twice = match full(file) == full(other) {
            true => "named twice".to_owned(),
            false => format!("the same file as {}", other.display()),
        };
        let what = format!(
            "{} is {twice}, and two writers would destroy it: leave one out, or share parts of \
             it (range:0+1GiB,{0})",
            file.display()
        );
        return Err(source.error(disk.span.clone(), &disk.key, what));
    }
    let mut locked = Vec::new();
    for (index, entry) in parsed.subsystems.iter().enumerate() {
        let (key, hosts) = (format!("subsystems[{index}]"), &entry.as_ref().hosts);
        locked.push(keys::add(source, directory, &key, hosts, &mut config.subsystems[index])?);
    }
    Ok((config, disks, locked))
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn described(
    config: &TargetConfig,
    disks: &[Disks],
    hosts: Vec<keys::Hosts>,
    group: Option<&str>,
) -> Document {
    let mut document = document::of(config);
    for ((subsystem, disks), hosts) in config.subsystems.iter().zip(disks).zip(hosts) {
        let place = document
            .subsystems
            .get_mut(&subsystem.config.nqn)
            .expect("the document has the subsystem");
        place.hosts.extend(hosts);
        for (nsid, disk) in disks {
            let namespace = document::namespace(&disk.spec, disk.block_size, disk.read_only);
            let Namespace { path, block_size, read_only, .. } = namespace;
            let mut namespace = Namespace { path, block_size, read_only, ..disk.terms.clone() };
            if let Some(group) = group.filter(|_| namespace.uuid.is_none()) {
                let nqn = &subsystem.config.nqn;
                namespace.uuid = Some(group::uuid(group, &format!("{nqn}\n{nsid}")));
            }
            place.namespaces.insert(nsid.0, namespace);
        }
    }
    document
}

/// Returns the default ANA states and TLS policy of listeners.
fn usual(source: &Source<'_>, file: &FileConfig) -> Result<Listener, String> {
    let state = |text: &Spanned<String>, key: &str| {
        values::ana(text.as_ref())
            .map_err(|problem| source.error_with_example(text.span(), key, problem))
    };
    let ana = file.ana.as_ref().map_or(Ok(Ana::default()), |text| state(text, "ana"))?;
    let mut ana_groups = BTreeMap::new();
    for (name, text) in &file.ana_groups {
        let key = format!("ana_groups.{}", name.as_ref());
        let group = name.as_ref().parse().ok();
        let group = group.filter(|group| (1..=limits::MAX_ANA_GROUPS).contains(group));
        let group = group.ok_or_else(|| {
            let what = format!("this is not an ANA group: use 1 to {}", limits::MAX_ANA_GROUPS);
            source.error(name.span(), &key, what)
        })?;
        ana_groups.insert(group, state(text, &key)?);
    }
    let tls = file.tls.as_ref().map(|tls| {
        values::tls_policy(tls.as_ref())
            .map_err(|problem| source.error_with_example(tls.span(), "tls", problem))
    });
    Ok(Listener { ana, ana_groups, tls: tls.transpose()?.unwrap_or_default() })
}

fn parse(source: &Source<'_>) -> Result<FileConfig, String> {
    let deserializer =
        toml::de::Deserializer::parse(source.text).map_err(|error| source.syntax_error(&error))?;
    serde_path_to_error::deserialize(deserializer).map_err(|error| source.schema_error(&error))
}

type Disks = BTreeMap<NamespaceId, Disk>;

/// Checks the settings, as far as this is possible without opening a disk.
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
    if let Some(spin) = &file.spin {
        if file.poll {
            let both = "poll = true means spin = \"always\": leave one of the two out";
            return Err(value(spin, "spin", both.to_owned()));
        }
        let parsed = spin.as_ref().parse();
        config.polling = parsed.map_err(|error| source.error(spin.span(), "spin", error))?;
    } else if file.poll {
        config.polling = Polling::Always;
    }
    if let Some(congestion) = &file.congestion {
        let refused = |problem| source.error(congestion.span(), "congestion", problem);
        let parsed: Congestion = congestion.as_ref().parse().map_err(refused)?;
        // Do not override a congestion control algorithm that the command line, or the first read
        // of this file, has chosen.
        if !Congestion::is_chosen() {
            parsed.choose().map_err(refused)?;
        }
    }
    if let Some(cores) = &file.cores {
        let parsed = values::cores(cores.as_ref());
        config.cores = parsed.map_err(|problem| value(cores, "cores", problem))?;
    }
    if let Some(memory) = &file.memory {
        let parsed = values::memory(memory.as_ref());
        let bytes = parsed.map_err(|problem| value(memory, "memory", problem))?;
        config.buffer_bytes = Some(bytes);
    }
    config.listeners = tcp(listeners(source, file)?);
    if let Some(ids) = &file.cntlids {
        let parsed = values::controller_ids(ids.as_ref());
        config.controller_ids = parsed.map_err(|problem| value(ids, "cntlids", problem))?;
    }
    for (index, text) in file.referrals.iter().enumerate() {
        let key = format!("referrals[{index}]");
        let parsed = referral(text.as_ref()).map_err(|problem| value(text, &key, problem))?;
        config.referrals.push(parsed);
    }
    check_group(source, file)?;
    if file.subsystems.is_empty() {
        return Err(source.error_with_example(0..0, "subsystems", "the file shares no disk"));
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
        disks.push(namespaces(source, directory, &key, entry, file.group.is_some())?);
    }
    Ok((config, disks))
}

/// Checks the section `[group]`, and refuses settings that a member gets from its group.
fn check_group(source: &Source<'_>, file: &FileConfig) -> Result<(), String> {
    if let Some(group) = &file.group {
        group.as_ref().check(source)?;
        let set = [("ana", file.ana.as_ref().map(Spanned::span))];
        let groups = file.ana_groups.keys().next().map(Spanned::span);
        let ids = file.cntlids.as_ref().map(Spanned::span);
        for (key, span) in set.into_iter().chain([("ana_groups", groups), ("cntlids", ids)]) {
            if let Some(span) = span {
                return Err(source.error(span, key, "the group sets it: remove this setting"));
            }
        }
    }
    Ok(())
}

fn tcp(listeners: Vec<(Entrance, Listener)>) -> Vec<SocketAddr> {
    listeners.into_iter().filter_map(|(at, _)| at.tcp_address()).collect()
}

fn listeners(source: &Source<'_>, file: &FileConfig) -> Result<Vec<(Entrance, Listener)>, String> {
    let usual = usual(source, file)?;
    let Some(listeners) = &file.listeners else {
        return Ok(vec![((Ipv4Addr::LOCALHOST, PORT_IO).into(), usual)]);
    };
    if listeners.as_ref().is_empty() {
        let what = "the list is empty, so no host could connect";
        return Err(source.error_with_example(listeners.span(), "listeners", what));
    }
    let mut all: Vec<(Entrance, Listener)> = Vec::new();
    for (index, one) in listeners.as_ref().iter().enumerate() {
        let key = format!("listeners[{index}]");
        let wrong = |problem: String| source.error_with_example(one.span(), &key, problem);
        let ListenerConfig { address, tls } = one.as_ref();
        let address = values::entrance(address).map_err(wrong)?;
        let tls = tls.as_deref().map(values::tls_policy).transpose().map_err(wrong)?;
        if all.iter().any(|(other, _)| *other == address) {
            return Err(source.error(one.span(), &key, "it is listed twice: leave one out"));
        }
        let listener = Listener { tls: tls.unwrap_or(usual.tls), ..usual.clone() };
        all.push((address, listener));
    }
    Ok(all)
}

fn referral(text: &str) -> Result<Referral, String> {
    let (host, port) = values::host_and_port(text)?;
    let address: IpAddr = host
        .parse()
        .map_err(|_| format!("{host:?} is not an IP address, and a referral cannot hold a name"))?;
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
            let what = format!("use 1 to {most} printable ASCII characters");
            return Err(source.error_with_example(value.span(), &of(name), what));
        }
        field.clone_from(value.as_ref());
    }
    offered.controller_ids = controller_ids(source, key, config)?;
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
            "allowed_hosts and hosts would have no effect: remove them, or this setting",
        )),
        (_, false, true) => Err(source.error(
            entry.span(),
            &of("allowed_hosts"),
            "no host could connect: list the allowed hosts, or set allow_any_host = true",
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
    in_group: bool,
) -> Result<Disks, String> {
    let listed = &entry.as_ref().namespaces;
    if listed.is_empty() {
        let key = format!("{key}.namespaces");
        return Err(source.error_with_example(
            entry.span(),
            &key,
            "the subsystem has no namespaces",
        ));
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
        let usual = if in_group { nsid } else { USUAL_ANA_GROUP };
        let disk = disk(source, directory, &key, (config, usual))?;
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
    (config, usual_ana_group): (&NamespaceConfig, u32),
) -> Result<Disk, String> {
    let (span, path_key) = (config.path.span(), format!("{key}.path"));
    let spec = disks::parse(config.path.as_ref())
        .map_err(|problem| source.error_with_example(span.clone(), &path_key, problem))?;
    let block_size = match &config.block_size {
        None => 512,
        Some(size) if matches!(*size.as_ref(), 512 | 4096) => *size.as_ref(),
        Some(size) => {
            let key = format!("{key}.block_size");
            let what = format!("{} is not a block size: use 512 or 4096", size.as_ref());
            return Err(source.error(size.span(), &key, what));
        }
    };
    let spec = names::seen_from(&spec, directory);
    let terms = terms(source, key, (config, usual_ana_group))?;
    Ok(Disk { spec, block_size, read_only: config.read_only, terms, span, key: path_key })
}

/// Returns the controller identifiers of a subsystem, or `None` if the file does not restrict them.
fn controller_ids(
    source: &Source<'_>,
    key: &str,
    config: &SubsystemConfig,
) -> Result<Option<RangeInclusive<u16>>, String> {
    let said = |id: &Option<Spanned<u16>>| id.as_ref().map(|id| *id.as_ref());
    let described = farblock_state::Subsystem {
        min_cntlid: said(&config.min_cntlid),
        max_cntlid: said(&config.max_cntlid),
        ..farblock_state::Subsystem::default()
    };
    let ids = described.controller_ids();
    let fits =
        |ids: &RangeInclusive<u16>| !ids.is_empty() && *ids.start() > 0 && *ids.end() <= CNTLID_MAX;
    match (&config.max_cntlid, &config.min_cntlid) {
        (Some(id), _) | (None, Some(id)) if !ids.as_ref().is_none_or(fits) => {
            let what = format!("use 1 to {CNTLID_MAX}, the smaller number for min_cntlid");
            Err(source.error(id.span(), &format!("{key}.max_cntlid"), what))
        }
        _ => Ok(ids),
    }
}

fn terms(
    source: &Source<'_>,
    key: &str,
    (config, usual): (&NamespaceConfig, u32),
) -> Result<Namespace, String> {
    let ana_group = match &config.ana_group {
        None => usual.min(limits::MAX_ANA_GROUPS),
        Some(group) if (1..=limits::MAX_ANA_GROUPS).contains(group.as_ref()) => *group.as_ref(),
        Some(group) => {
            let what = format!("use 1 to {}", limits::MAX_ANA_GROUPS);
            return Err(source.error(group.span(), &format!("{key}.ana_group"), &what));
        }
    };
    let names = |listed: &Spanned<Vec<Spanned<String>>>| {
        let check = |(index, host): (usize, &Spanned<String>)| {
            let key = format!("{key}.visible_to[{index}]");
            values::nqn(host.as_ref()).map_err(|what| source.error(host.span(), &key, what))
        };
        listed.as_ref().iter().enumerate().map(check).collect::<Result<BTreeSet<_>, _>>()
    };
    let visible_to = config.visible_to.as_ref().map(names).transpose()?;
    let identifier = |id: &Option<Spanned<Uuid>>, name: &str| match id {
        Some(id) if id.as_ref().is_nil() => {
            let what =
                format!("zeroes are not a valid {name}: leave it out, and farblock makes one");
            Err(source.error(id.span(), &format!("{key}.{}", name.to_lowercase()), what))
        }
        id => Ok(id.as_ref().map(|id| *id.as_ref())),
    };
    let uuid = identifier(&config.uuid, "UUID")?;
    let nguid = identifier(&config.nguid, "NGUID")?;
    if let Some(id) = config.eui64.as_ref().filter(|id| id.as_ref().is_nil()) {
        let what = "zeroes are not a valid EUI-64: leave it out, and farblock makes one";
        return Err(source.error(id.span(), &format!("{key}.eui64"), what));
    }
    let eui64 = config.eui64.as_ref().map(|id| *id.as_ref());
    let mut terms = Namespace { ana_group, visible_to, uuid, nguid, eui64, ..Namespace::new("") };
    terms.copy_bytes_per_second = config.copy_bytes_per_second;
    if let Some(limits) = &config.limits {
        terms.limits = *limits.as_ref();
        terms.limits.check_of_namespace().map_err(|problem| {
            let key = format!("{key}.limits.{}", problem.field);
            source.error(limits.span(), &key, problem.sentence)
        })?;
    }
    Ok(terms)
}
