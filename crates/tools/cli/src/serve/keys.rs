//! Hosts that have to authenticate, and with which secrets.

use super::located::Source;
use crate::args::ServeArgs;
use crate::error::{Failure, Result};
use crate::values;
use farblock_host::key_file;
use farblock_secure::{Group, Hash, Secret};
use farblock_target::{HostKeys, Subsystem};
use serde::Deserialize;
use std::path::Path;
use toml::Spanned;

/// A host with a key: `[[subsystems.hosts]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostConfig {
    nqn: Spanned<String>,
    #[serde(alias = "dhchap-key")]
    dhchap_key: Spanned<String>,
    #[serde(alias = "dhchap-ctrl-key")]
    dhchap_ctrl_key: Option<Spanned<String>>,
    #[serde(default, alias = "dhchap-hashes")]
    dhchap_hashes: Vec<Spanned<String>>,
    #[serde(default, alias = "dhchap-dhgroups")]
    dhchap_dhgroups: Vec<Spanned<String>>,
}

/// Adds the hosts of a subsystem in a file; paths are seen from `directory`.
pub(super) fn add(
    source: &Source<'_>,
    directory: &Path,
    key: &str,
    hosts: &[Spanned<HostConfig>],
    subsystem: &mut Subsystem,
) -> Result<(), String> {
    for (index, host) in hosts.iter().enumerate() {
        let (key, host) = (format!("{key}.hosts[{index}]"), host.as_ref());
        let nqn = values::nqn(host.nqn.as_ref());
        let nqn = nqn.map_err(|e| source.error(host.nqn.span(), &format!("{key}.nqn"), e))?;
        let keys = keys(source, directory, &key, host)?;
        if subsystem.keys.contains_key(&nqn) {
            let what = "this host has a key already";
            return Err(source.error(host.nqn.span(), &format!("{key}.nqn"), what));
        }
        require(subsystem, nqn, keys);
    }
    Ok(())
}

fn keys(
    source: &Source<'_>,
    directory: &Path,
    key: &str,
    host: &HostConfig,
) -> Result<HostKeys, String> {
    let read = |file: &Spanned<String>, name: &str| {
        let read = key_file::read(&directory.join(file.as_ref()));
        read.map_err(|error| source.error(file.span(), &format!("{key}.{name}"), error))
    };
    let hashes = named(source, &format!("{key}.dhchap_hashes"), &host.dhchap_hashes, |name| {
        Hash::from_name(name).ok_or("use sha256, sha384 or sha512")
    })?;
    let groups = named(source, &format!("{key}.dhchap_dhgroups"), &host.dhchap_dhgroups, |name| {
        Group::from_name(name).ok_or("use null, ffdhe2048, 3072, 4096, 6144 or 8192")
    })?;
    let own = host.dhchap_ctrl_key.as_ref();
    Ok(HostKeys {
        host: read(&host.dhchap_key, "dhchap_key")?,
        controller: own.map(|file| read(file, "dhchap_ctrl_key")).transpose()?.map(first),
        hashes: if hashes.is_empty() { Hash::ALL.to_vec() } else { hashes },
        groups: if groups.is_empty() { Group::ALL.to_vec() } else { groups },
    })
}

fn named<T>(
    source: &Source<'_>,
    key: &str,
    names: &[Spanned<String>],
    parse: impl Fn(&str) -> Result<T, &'static str>,
) -> Result<Vec<T>, String> {
    let parse = |(index, name): (usize, &Spanned<String>)| {
        let place = |what| source.error(name.span(), &format!("{key}[{index}]"), what);
        parse(name.as_ref()).map_err(place)
    };
    names.iter().enumerate().map(parse).collect()
}

/// Adds the hosts of the command line.
pub(super) fn add_given(args: &ServeArgs, subsystem: &mut Subsystem) -> Result<()> {
    let read = |path| key_file::read(path).map_err(Failure::Run);
    for (nqn, path) in &args.host_key {
        let own = args.controller_key.as_deref().map(read).transpose()?;
        let keys = HostKeys {
            host: read(path)?,
            controller: own.map(first),
            hashes: Hash::ALL.to_vec(),
            groups: Group::ALL.to_vec(),
        };
        require(subsystem, nqn.clone(), keys);
    }
    Ok(())
}

/// The target itself has one secret: the newest.
fn first(mut secrets: Vec<Secret>) -> Secret {
    secrets.swap_remove(0)
}

fn require(subsystem: &mut Subsystem, nqn: String, keys: HostKeys) {
    if !subsystem.config.allowed_hosts.contains(&nqn) {
        subsystem.config.allowed_hosts.push(nqn.clone());
    }
    subsystem.keys.insert(nqn, keys);
}
