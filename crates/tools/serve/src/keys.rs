//! The hosts of a subsystem, with their keys and limits.

use super::located::Source;
use crate::args::ServeArgs;
use crate::error::{Failure, Result};
use crate::values;
use farblock_admin_api::{Aside, OpenTimeouts};
use farblock_host::{key_file, tls_keys};
use farblock_secure::{Group, Hash, Secret, TlsKey};
use farblock_state::{Demand, Host, Limits};
use farblock_target::{HostKeys, Subsystem, TLS_KEYS_PER_HOST, TargetConfig};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::Spanned;
use uuid::Uuid;

/// A host with keys or limits: `[[subsystems.hosts]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostConfig {
    nqn: Spanned<String>,
    #[serde(alias = "dhchap-key")]
    dhchap_key: Option<Spanned<String>>,
    #[serde(alias = "dhchap-ctrl-key")]
    dhchap_ctrl_key: Option<Spanned<String>>,
    #[serde(alias = "host-id")]
    host_id: Option<Spanned<Uuid>>,
    #[serde(default, alias = "dhchap-hashes")]
    dhchap_hashes: Vec<Spanned<String>>,
    #[serde(default, alias = "dhchap-dhgroups")]
    dhchap_dhgroups: Vec<Spanned<String>>,
    #[serde(alias = "tls-key")]
    tls_key: Option<Spanned<String>>,
    demand: Option<Spanned<Demand>>,
    limits: Option<Spanned<Limits>>,
}

/// Hosts with keys or limits, as entries of a document.
pub(super) type Hosts = BTreeMap<String, Host>;

/// Reads a key file on a helper thread with a timeout, because a network share may hang.
fn read<T: Send + 'static>(path: &Path, by: fn(&Path) -> Result<T, String>) -> Result<T, String> {
    let (what, path) = (format!("the key file {}", path.display()), path.to_owned());
    OpenTimeouts::default().with(Aside::Key, &what, move || by(&path))
}

/// Reads a host's TLS keys for a subsystem, from a file or the kernel's keyrings.
fn read_tls(path: &Path, host: &str, subsystem: &str) -> Result<Vec<TlsKey>, String> {
    let what = format!("the key {}", path.display());
    let (path, host, subsystem) = (path.to_owned(), host.to_owned(), subsystem.to_owned());
    let read = move || tls_keys::read(&path, &host, &subsystem);
    OpenTimeouts::default().with(Aside::Key, &what, read)
}

/// Reads the keys of a host entry. Returns `None` if the entry names no key.
pub(super) fn of(subsystem: &str, name: &str, host: &Host) -> Result<Option<HostKeys>, String> {
    if !host.has_key() {
        return Ok(None);
    }
    let read_secret = |reference: &String| read(Path::new(reference), key_file::read);
    let read_tls = |reference: &String| read_tls(Path::new(reference), name, subsystem);
    let hashes = host.dhchap_hashes.iter().map(|name| name.parse());
    let groups = host.dhchap_dhgroups.iter().map(|name| name.parse());
    Ok(Some(HostKeys {
        host: host.dhchap_key.as_ref().map(read_secret).transpose()?.unwrap_or_default(),
        tls: host.tls_key.as_ref().map(read_tls).transpose()?.unwrap_or_default(),
        controller: host.dhchap_ctrl_key.as_ref().map(read_secret).transpose()?.map(first),
        hashes: or_all(hashes.collect::<Result<_, _>>()?, &Hash::ALL),
        groups: or_all(groups.collect::<Result<_, _>>()?, &Group::ALL),
        id: host.host_id.map(Uuid::into_bytes),
        demand: demanded(host.demand),
    }))
}

/// Converts a host's `demand` from the configuration to the target's type.
fn demanded(demand: Option<Demand>) -> farblock_target::Demand {
    match demand {
        None | Some(Demand::Auth) => farblock_target::Demand::Authentication,
        Some(Demand::Mutual) => farblock_target::Demand::Mutual,
        Some(Demand::Concat) => farblock_target::Demand::SecureChannel,
    }
}

/// Returns the listed values, or `all` if the list is empty.
fn or_all<T: Clone>(listed: Vec<T>, all: &[T]) -> Vec<T> {
    if listed.is_empty() { all.to_vec() } else { listed }
}

/// Makes the path of a key file absolute. Returns other references, such as `keyring:`, unchanged.
pub fn reference(path: &Path) -> String {
    let text = path.to_string_lossy().into_owned();
    if !key_file::is_file(path) {
        return text;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.to_string_lossy().into_owned()
}

/// Adds the hosts that a configuration lists for a subsystem. Paths are relative to `directory`.
pub(super) fn add(
    source: &Source<'_>,
    directory: &Path,
    key: &str,
    hosts: &[Spanned<HostConfig>],
    subsystem: &mut Subsystem,
) -> Result<Hosts, String> {
    let mut entries = Hosts::new();
    for (index, host) in hosts.iter().enumerate() {
        let (key, host) = (format!("{key}.hosts[{index}]"), host.as_ref());
        let nqn = values::nqn(host.nqn.as_ref());
        let nqn = nqn.map_err(|e| source.error(host.nqn.span(), &format!("{key}.nqn"), e))?;
        let has_key = host.dhchap_key.is_some() || host.tls_key.is_some();
        if !has_key && host.limits.is_none() {
            let what = "a host without a dhchap_key, tls_key or limits belongs in allowed_hosts";
            return Err(source.error(host.nqn.span(), &format!("{key}.nqn"), what));
        }
        let names = (subsystem.config.nqn.as_str(), nqn.as_str());
        let keys = keys(source, directory, &key, names, host)?;
        let limits = limits(source, &key, host)?;
        if entries.contains_key(&nqn) {
            let what = "this host is listed already";
            return Err(source.error(host.nqn.span(), &format!("{key}.nqn"), what));
        }
        entries.insert(nqn.clone(), Host { limits, ..entry(directory, host) });
        match has_key {
            true => require(subsystem, nqn, keys),
            false if subsystem.config.allowed_hosts.contains(&nqn) => {}
            false => subsystem.config.allowed_hosts.push(nqn),
        }
    }
    Ok(entries)
}

fn limits(source: &Source<'_>, key: &str, host: &HostConfig) -> Result<Limits, String> {
    let Some(limits) = &host.limits else { return Ok(Limits::default()) };
    limits.as_ref().check().map_err(|problem| {
        source.error(limits.span(), &format!("{key}.limits.{}", problem.field), problem.sentence)
    })?;
    Ok(*limits.as_ref())
}

/// Converts a host of a configuration file to a document entry.
fn entry(directory: &Path, host: &HostConfig) -> Host {
    let file = |name: &Spanned<String>| reference(&seen_from(directory, name.as_ref()));
    let names = |list: &[Spanned<String>]| list.iter().map(|one| one.as_ref().clone()).collect();
    Host {
        dhchap_key: host.dhchap_key.as_ref().map(file),
        tls_key: host.tls_key.as_ref().map(file),
        dhchap_ctrl_key: host.dhchap_ctrl_key.as_ref().map(file),
        host_id: host.host_id.as_ref().map(|id| *id.as_ref()),
        dhchap_hashes: names(&host.dhchap_hashes),
        dhchap_dhgroups: names(&host.dhchap_dhgroups),
        demand: host.demand.as_ref().map(|demand| *demand.as_ref()),
        ..Host::default()
    }
}

fn seen_from(directory: &Path, name: &str) -> PathBuf {
    match key_file::is_file(Path::new(name)) {
        true => directory.join(name),
        false => name.into(),
    }
}

fn keys(
    source: &Source<'_>,
    directory: &Path,
    key: &str,
    (subsystem, nqn): (&str, &str),
    host: &HostConfig,
) -> Result<HostKeys, String> {
    let read_secrets = |file: &Spanned<String>, name: &str| {
        let read = read(&seen_from(directory, file.as_ref()), key_file::read);
        read.map_err(|error| source.error(file.span(), &format!("{key}.{name}"), error))
    };
    let hashes = named(source, &format!("{key}.dhchap_hashes"), &host.dhchap_hashes)?;
    let groups = named(source, &format!("{key}.dhchap_dhgroups"), &host.dhchap_dhgroups)?;
    let read_tls = |file: &Spanned<String>| {
        let read = read_tls(&seen_from(directory, file.as_ref()), nqn, subsystem);
        read.map_err(|error| source.error(file.span(), &format!("{key}.tls_key"), error))
    };
    let own = host.dhchap_ctrl_key.as_ref();
    let secrets =
        host.dhchap_key.as_ref().map(|file| read_secrets(file, "dhchap_key")).transpose()?;
    Ok(HostKeys {
        host: secrets.unwrap_or_default(),
        tls: host.tls_key.as_ref().map(read_tls).transpose()?.unwrap_or_default(),
        controller: own.map(|file| read_secrets(file, "dhchap_ctrl_key")).transpose()?.map(first),
        hashes: or_all(hashes, &Hash::ALL),
        groups: or_all(groups, &Group::ALL),
        id: host.host_id.as_ref().map(|id| id.as_ref().into_bytes()),
        demand: demanded(host.demand.as_ref().map(|demand| *demand.as_ref())),
    })
}

fn named<T: FromStr<Err = &'static str>>(
    source: &Source<'_>,
    key: &str,
    names: &[Spanned<String>],
) -> Result<Vec<T>, String> {
    let parse = |(index, name): (usize, &Spanned<String>)| {
        let place = |what| source.error(name.span(), &format!("{key}[{index}]"), what);
        name.as_ref().parse().map_err(place)
    };
    names.iter().enumerate().map(parse).collect()
}

/// Adds the hosts with keys from the command line.
pub(super) fn add_given(args: &ServeArgs, subsystem: &mut Subsystem) -> Result<Hosts> {
    let mut entries = Hosts::new();
    for (nqn, path) in &args.host_key {
        let entry: &mut Host = entries.entry(nqn.clone()).or_default();
        entry.dhchap_key = Some(reference(path));
        entry.dhchap_ctrl_key = args.controller_key.as_deref().map(reference);
    }
    let listed = args.tls_key.iter().filter(|_| !subsystem.config.allow_any_host);
    for (nqn, path) in listed {
        let entry = entries.entry(nqn.clone()).or_default();
        if entry.tls_key.replace(reference(path)).is_some() {
            return Err(twice(nqn));
        }
    }
    for (nqn, entry) in &entries {
        let keys = of(&subsystem.config.nqn, nqn, entry).map_err(Failure::Run)?;
        let keys = keys.expect("the host has a key");
        require(subsystem, nqn.clone(), keys);
    }
    Ok(entries)
}

fn twice(nqn: &str) -> Failure {
    Failure::usage(format_args!(
        "--tls-key is given twice for {nqn}: write both keys into one file"
    ))
}

/// Adds the keys of `--tls-key` that belong to no subsystem's host. With a configuration file these
/// are all keys of `--tls-key`.
pub(super) fn add_tls(args: &ServeArgs, config: &mut TargetConfig) -> Result<()> {
    let is_listed = |nqn: &String| {
        args.config.is_none() && config.subsystems.iter().any(|one| one.keys.contains_key(nqn))
    };
    let unlisted: Vec<_> = args.tls_key.iter().filter(|(nqn, _)| !is_listed(nqn)).collect();
    for (nqn, path) in unlisted {
        let of_host = match key_file::is_keyring(path) {
            true => for_all(path, nqn, &config.subsystems),
            false => read(path, key_file::read_tls),
        };
        let of_host = of_host.map_err(Failure::Run)?;
        if config.tls_keys.insert(nqn.clone(), of_host).is_some() {
            return Err(twice(nqn));
        }
    }
    Ok(())
}

/// Reads the host's keys for these subsystems from the kernel's keyrings. Fails if there is no key.
fn for_all(path: &Path, host: &str, subsystems: &[Subsystem]) -> Result<Vec<TlsKey>, String> {
    let (mut found, mut problem) = (Vec::new(), None);
    for subsystem in subsystems {
        match read_tls(path, host, &subsystem.config.nqn) {
            Ok(keys) => found.extend(keys),
            Err(reason) => problem = Some(reason),
        }
    }
    // Remove duplicates: the keyring returns a key for the discovery subsystem for each
    // `subsystem`.
    let mut keys: Vec<TlsKey> = Vec::new();
    found.into_iter().for_each(|key| {
        if !keys.contains(&key) {
            keys.push(key)
        }
    });
    match (keys.len(), problem) {
        (0, Some(problem)) => Err(problem),
        (count, _) if count > TLS_KEYS_PER_HOST => Err(format!(
            "the keyring has {count} keys of {host} for these subsystems, more than --tls-key \
             accepts ({TLS_KEYS_PER_HOST}): set tls_key = \"keyring:\" in the host's entry of a \
             configuration"
        )),
        _ => Ok(keys),
    }
}

/// Returns the newest secret, which is the first in the file. The target authenticates itself only
/// with that one.
fn first(mut secrets: Vec<Secret>) -> Secret {
    secrets.swap_remove(0)
}

fn require(subsystem: &mut Subsystem, nqn: String, keys: HostKeys) {
    if !subsystem.config.allowed_hosts.contains(&nqn) {
        subsystem.config.allowed_hosts.push(nqn.clone());
    }
    subsystem.keys.insert(nqn, keys);
}
