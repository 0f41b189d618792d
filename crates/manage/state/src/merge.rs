//! Merges a changed configuration file into the document of a running target. Changes in the file
//! take effect. All other changes made at run time stay.

use crate::document::{Document, Host, Listener, Subsystem};
use std::collections::BTreeMap;

/// Returns `current` with the changes from `old` to `new`.
#[must_use]
pub fn merge(old: &Document, new: &Document, current: &Document) -> Document {
    Document {
        version: new.version,
        listeners: merge_with(&old.listeners, &new.listeners, &current.listeners, merge_listener),
        referrals: merge_map(&old.referrals, &new.referrals, &current.referrals),
        subsystems: merge_with(
            &old.subsystems,
            &new.subsystems,
            &current.subsystems,
            merge_subsystem,
        ),
    }
}

/// Keeps the current TLS setting of a listener if the file changes only other settings.
fn merge_listener(old: Option<&Listener>, new: &Listener, current: &Listener) -> Listener {
    let usual = Listener::default();
    let tls = pick(&old.unwrap_or(&usual).tls, &new.tls, &current.tls);
    Listener { tls, ..new.clone() }
}

/// Merges a subsystem. If it was added at run time and is now in the file, it keeps the settings
/// that the file leaves out.
fn merge_subsystem(old: Option<&Subsystem>, new: &Subsystem, current: &Subsystem) -> Subsystem {
    let nothing = Subsystem::default();
    let old = old.unwrap_or(&nothing);
    let allow_any_host = pick(&old.allow_any_host, &new.allow_any_host, &current.allow_any_host);
    let mut hosts = merge_hosts(&old.hosts, &new.hosts, &current.hosts);
    if allow_any_host {
        keep_locked(&old.hosts, &current.hosts, &mut hosts);
    }
    Subsystem {
        serial: pick(&old.serial, &new.serial, &current.serial),
        model: pick(&old.model, &new.model, &current.model),
        min_cntlid: pick(&old.min_cntlid, &new.min_cntlid, &current.min_cntlid),
        max_cntlid: pick(&old.max_cntlid, &new.max_cntlid, &current.max_cntlid),
        allow_any_host,
        hosts,
        namespaces: merge_map(&old.namespaces, &new.namespaces, &current.namespaces),
    }
}

/// Keeps the hosts on the list that got a key at run time, even if the file opens the subsystem to
/// any host. Otherwise any host could connect with the name of a listed host, and without its key.
/// The file never contained that key, so it must not make the key optional.
fn keep_locked(
    old: &BTreeMap<String, Host>,
    current: &BTreeMap<String, Host>,
    hosts: &mut BTreeMap<String, Host>,
) {
    for (name, host) in current.iter().filter(|(_, host)| host.has_key()) {
        if !old.get(name).is_some_and(Host::has_key) {
            hosts.entry(name.clone()).or_insert_with(|| host.clone());
        }
    }
}

/// Merges the hosts. A host that got its key at run time keeps the key when the file lists the host
/// without a key. The file never contained that key, so it must not remove the key.
fn merge_hosts(
    old: &BTreeMap<String, Host>,
    new: &BTreeMap<String, Host>,
    current: &BTreeMap<String, Host>,
) -> BTreeMap<String, Host> {
    let mut merged = merge_map(old, new, current);
    for (name, host) in &mut merged {
        if let Some(current) = current.get(name) {
            keep_keys(old.get(name), current, host);
        }
    }
    merged
}

/// Keeps the keys of `current` that neither file contains.
fn keep_keys(old: Option<&Host>, current: &Host, merged: &mut Host) {
    let stays = |key: fn(&Host) -> &Option<String>, merged: &Host| {
        let is_said = key(merged).is_some() || old.is_some_and(|old| key(old).is_some());
        !is_said && key(current).is_some()
    };
    if stays(|host| &host.dhchap_key, merged) {
        let tls_key = merged.tls_key.take();
        merged.clone_from(&Host { tls_key, ..current.clone() });
    }
    // A file that never contained a demand does not remove the demand.
    if merged.demand.is_none() && old.is_none_or(|old| old.demand.is_none()) {
        merged.demand = current.demand;
    }
    if stays(|host| &host.tls_key, merged) {
        merged.tls_key.clone_from(&current.tls_key);
        merged.host_id = merged.host_id.or(current.host_id);
    }
}

fn pick<T: PartialEq + Clone>(old: &T, new: &T, current: &T) -> T {
    if old == new { current.clone() } else { new.clone() }
}

fn merge_map<K: Ord + Clone, V: PartialEq + Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    current: &BTreeMap<K, V>,
) -> BTreeMap<K, V> {
    merge_with(old, new, current, |_, new, _| new.clone())
}

/// Merges maps. `both` merges an entry that exists and that the file has changed.
fn merge_with<K: Ord + Clone, V: PartialEq + Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    current: &BTreeMap<K, V>,
    both: impl Fn(Option<&V>, &V, &V) -> V,
) -> BTreeMap<K, V> {
    let mut merged = current.clone();
    for key in old.keys().chain(new.keys()) {
        match (old.get(key), new.get(key), current.get(key)) {
            (old, new, _) if old == new => {}
            (_, None, _) => {
                merged.remove(key);
            }
            (old, Some(new), Some(current)) => {
                merged.insert(key.clone(), both(old, new, current));
            }
            (_, Some(new), None) => {
                merged.insert(key.clone(), new.clone());
            }
        }
    }
    merged
}
