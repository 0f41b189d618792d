//! The steps from one document to another.
//!
//! Additions are in this order: subsystems, their namespaces, their hosts, and listeners last. So a
//! host that connects finds the whole subsystem. Removals are in the reverse order, and come before
//! additions: an old object may hold a number, a file lock or an address that a new object needs.
//! One exception: the very first steps open subsystems to any host. So listed hosts that the same
//! change removes from the list stay connected.

use crate::document::{Demand, Document, Host, Limits, Listener, Namespace, Subsystem, Tls};
use farblock_proto::controller::Entrance;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

/// A change of a running target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Opens a listener.
    AddListener(Entrance, Listener),
    /// Closes a listener, and the connections that it has accepted.
    RemoveListener(Entrance, Listener),
    /// Changes the settings of a listener.
    ChangeListener {
        /// The listener.
        address: Entrance,
        /// The old settings.
        from: Listener,
        /// The new settings.
        to: Listener,
    },
    /// Refers hosts to another discovery service.
    AddReferral(SocketAddr),
    /// Stops referring hosts to another discovery service.
    RemoveReferral(SocketAddr),
    /// Adds a subsystem without namespaces and without allowed hosts.
    AddSubsystem {
        /// The name of the subsystem.
        nqn: String,
        /// The settings of the subsystem, with its serial and model number.
        subsystem: Subsystem,
    },
    /// Removes a subsystem without namespaces, and its controllers.
    RemoveSubsystem {
        /// The name of the subsystem.
        nqn: String,
        /// The settings of the subsystem, with its serial and model number.
        subsystem: Subsystem,
    },
    /// Starts to share a namespace.
    AddNamespace {
        /// The name of the subsystem.
        nqn: String,
        /// The identifier of the namespace.
        nsid: u32,
        /// The settings of the namespace.
        namespace: Namespace,
    },
    /// Stops sharing a namespace.
    RemoveNamespace {
        /// The name of the subsystem.
        nqn: String,
        /// The identifier of the namespace.
        nsid: u32,
        /// The settings of the namespace.
        namespace: Namespace,
    },
    /// Changes the settings of a namespace that stays the same disk, such as its size.
    ChangeNamespace {
        /// The name of the subsystem.
        nqn: String,
        /// The identifier of the namespace.
        nsid: u32,
        /// The old settings.
        from: Namespace,
        /// The new settings.
        to: Namespace,
    },
    /// Allows a host to connect.
    AllowHost {
        /// The name of the subsystem.
        nqn: String,
        /// The name of the host.
        host: String,
        /// The settings of the host.
        entry: Host,
    },
    /// Disallows a host, and closes its controllers.
    DisallowHost {
        /// The name of the subsystem.
        nqn: String,
        /// The name of the host.
        host: String,
    },
    /// Changes the settings of a host. The settings are equal if only the contents of a key file
    /// have changed.
    ChangeHost {
        /// The name of the subsystem.
        nqn: String,
        /// The name of the host.
        host: String,
        /// The old settings.
        from: Host,
        /// The new settings.
        to: Host,
    },
    /// Allows hosts that are not listed, or disallows them and closes their controllers.
    AllowAnyHost {
        /// The name of the subsystem.
        nqn: String,
        /// Whether to allow these hosts.
        allow: bool,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddListener(address, listener) => {
                write!(f, "listens on {address}")?;
                write_access(f, &Listener::default(), listener)
            }
            Self::ChangeListener { address, from, to } => {
                write!(f, "{address}")?;
                write_access(f, from, to)
            }
            Self::RemoveListener(address, _) => write!(f, "no longer listens on {address}"),
            Self::AddReferral(address) => write!(f, "refers hosts to {address}"),
            Self::RemoveReferral(address) => write!(f, "no longer refers hosts to {address}"),
            Self::AddSubsystem { nqn, .. } => write!(f, "{nqn}: added"),
            Self::RemoveSubsystem { nqn, .. } => write!(f, "{nqn}: removed"),
            Self::AddNamespace { nqn, nsid, namespace } => {
                write!(f, "{nqn}: namespace {nsid} added, stored in {}", namespace.path)
            }
            Self::RemoveNamespace { nqn, nsid, .. } => write!(f, "{nqn}: namespace {nsid} removed"),
            Self::ChangeNamespace { nqn, nsid, from, to } => {
                write!(f, "{nqn}: namespace {nsid}")?;
                if from.read_only != to.read_only {
                    f.write_str(if to.read_only { " read only" } else { " writable" })?;
                }
                match to.size {
                    _ if from.size == to.size => Ok(()),
                    Some(size) => write!(f, " of {}", with_unit(size)),
                    None => f.write_str(" with the size of its storage"),
                }?;
                match to.ana_group {
                    group if group == from.ana_group => Ok(()),
                    group => write!(f, " in ANA group {group}"),
                }?;
                match &to.visible_to {
                    hosts if *hosts == from.visible_to => Ok(()),
                    Some(hosts) => write_hosts(f, hosts),
                    None => f.write_str(" visible to all hosts"),
                }?;
                match to.copy_bytes_per_second {
                    speed if speed == from.copy_bytes_per_second => Ok(()),
                    Some(speed) => write!(f, " copying at most {}/s", with_unit(speed)),
                    None => f.write_str(" copying without a speed limit"),
                }?;
                write_limits(f, &from.limits, &to.limits)
            }
            Self::AllowHost { nqn, host, entry } => {
                let how = if entry.has_key() { " with its key" } else { "" };
                write!(f, "{nqn}: host {host} may connect{how}")?;
                write_limits(f, &Limits::default(), &entry.limits)
            }
            Self::DisallowHost { nqn, host } => write!(f, "{nqn}: host {host} may not connect"),
            Self::ChangeHost { nqn, host, from, to } => {
                write!(f, "{nqn}: host {host} ")?;
                let is_limited = Host { limits: to.limits, ..from.clone() } == *to && from != to;
                if is_limited { f.write_str("is") } else { write_keys(f, from, to) }?;
                write_limits(f, &from.limits, &to.limits)
            }
            Self::AllowAnyHost { nqn, allow: true } => write!(f, "{nqn}: any host may connect"),
            Self::AllowAnyHost { nqn, allow: false } => {
                write!(f, "{nqn}: only listed hosts may connect")
            }
        }
    }
}

/// The steps from one document to another, in order. The list is empty if the documents are equal.
pub fn steps(from: &Document, to: &Document) -> Vec<Step> {
    let mut steps = Vec::new();
    let kept = kept_subsystems(from, to);
    for (nqn, (old, new)) in &kept {
        if new.allow_any_host && !old.allow_any_host {
            steps.push(Step::AllowAnyHost { nqn: (*nqn).clone(), allow: true });
        }
    }
    remove(&mut steps, from, to, &kept);
    // Make a path available before the step that makes another path unavailable.
    let mut changed = changed_listeners(from, to);
    changed.sort_by_key(|(_, _, new)| new.ana);
    steps.extend(changed.into_iter().map(|(address, old, new)| Step::ChangeListener {
        address: *address,
        from: old.clone(),
        to: new.clone(),
    }));
    add(&mut steps, from, to, &kept);
    steps
}

/// The listeners in both documents whose settings differ.
fn changed_listeners<'a>(
    from: &'a Document,
    to: &'a Document,
) -> Vec<(&'a Entrance, &'a Listener, &'a Listener)> {
    let both = from.listeners.iter().filter_map(|(address, old)| {
        let new = to.listeners.get(address)?;
        (old != new).then_some((address, old, new))
    });
    both.collect()
}

/// Writes the list of hosts that see a namespace.
fn write_hosts(f: &mut fmt::Formatter<'_>, hosts: &BTreeSet<String>) -> fmt::Result {
    f.write_str(if hosts.is_empty() { " visible to no host" } else { " visible only to" })?;
    hosts.iter().try_for_each(|host| write!(f, " {host}"))
}

/// A number of bytes with the largest binary unit that divides it.
fn with_unit(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut rest, mut unit) = (bytes, 0);
    while rest > 0 && rest.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        (rest, unit) = (rest / 1024, unit + 1);
    }
    format!("{rest} {}", UNITS[unit])
}

/// Writes the changed limits of hosts.
fn write_limits(f: &mut fmt::Formatter<'_>, from: &Limits, to: &Limits) -> fmt::Result {
    if from == to {
        return Ok(());
    }
    if to.is_empty() {
        return f.write_str(" without limits");
    }
    f.write_str(" limited to")?;
    for (name, rate) in to.rates() {
        if let Some(rate) = rate {
            match name.ends_with("bytes") {
                true => write!(f, " {name} {}/s", with_unit(rate)),
                false => write!(f, " {name} {rate}"),
            }?;
        }
    }
    let others = [("burst_ms", to.burst_ms), ("weight", to.weight)];
    for (name, value) in others.into_iter().filter_map(|(name, it)| Some((name, it?))) {
        write!(f, " {name} {value}")?;
    }
    Ok(())
}

/// Writes the changed authentication of a host.
fn write_keys(f: &mut fmt::Formatter<'_>, from: &Host, to: &Host) -> fmt::Result {
    let has = |host: &Host| (host.dhchap_key.is_some(), host.tls_key.is_some());
    let ((had_secret, had_tls), (has_secret, has_tls)) = (has(from), has(to));
    let secret = match (had_secret, has_secret) {
        (false, true) => Some("must authenticate with its key"),
        (true, false) => Some("no longer needs to authenticate"),
        _ => None,
    };
    let tls = match (had_tls, has_tls) {
        (false, true) => Some("must use TLS with its key"),
        (true, false) => Some("no longer needs to use TLS"),
        _ => None,
    };
    let demand = match (from.demand, to.demand) {
        (before, after) if before == after => None,
        (_, Some(Demand::Auth)) => Some("must keep its key"),
        (_, Some(Demand::Mutual)) => Some("must request mutual authentication"),
        (_, Some(Demand::Concat)) => Some("must use TLS concatenation"),
        (_, None) => Some("has no demand any more"),
    };
    let what: Vec<_> = secret.into_iter().chain(tls).chain(demand).collect();
    f.write_str(match what.is_empty() {
        true if from == to => match (has_secret, has_tls) {
            (_, false) => "has a new secret in its key file",
            (false, true) => "has a new TLS key in its key file",
            (true, true) => "has a new secret or TLS key in its key files",
        },
        true => "has a new key, or new key settings",
        false => return f.write_str(&what.join(", and ")),
    })
}

/// Writes the changed access to namespaces.
fn write_access(f: &mut fmt::Formatter<'_>, from: &Listener, to: &Listener) -> fmt::Result {
    if from.ana != to.ana {
        write!(f, ": namespaces are {}", to.ana.name())?;
    }
    match to.tls {
        _ if from.tls == to.tls => {}
        Tls::Plain => f.write_str(": no TLS")?,
        Tls::Allowed => f.write_str(": hosts with a TLS key must use TLS")?,
        Tls::Required => f.write_str(": all hosts must use TLS")?,
    }
    for (group, state) in &to.ana_groups {
        if from.ana_groups.get(group) != Some(state) {
            write!(f, ": namespaces of ANA group {group} are {}", state.name())?;
        }
    }
    for group in from.ana_groups.keys().filter(|group| !to.ana_groups.contains_key(group)) {
        write!(f, ": namespaces of ANA group {group} have the listener's state")?;
    }
    Ok(())
}

type KeptSubsystems<'a> = BTreeMap<&'a String, (&'a Subsystem, &'a Subsystem)>;

/// The subsystems in both documents that need not be recreated.
fn kept_subsystems<'a>(from: &'a Document, to: &'a Document) -> KeptSubsystems<'a> {
    let both = from.subsystems.iter().filter_map(|(nqn, old)| {
        let new = to.subsystems.get(nqn)?;
        (bare(old) == bare(new)).then_some((nqn, (old, new)))
    });
    both.collect()
}

/// A copy of a subsystem without namespaces and without allowed hosts.
fn bare(subsystem: &Subsystem) -> Subsystem {
    Subsystem {
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
        min_cntlid: subsystem.min_cntlid,
        max_cntlid: subsystem.max_cntlid,
        ..Subsystem::default()
    }
}

fn missing<'a, K: Ord, V>(
    from: &'a BTreeMap<K, V>,
    to: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    from.iter().filter(|(key, _)| !to.contains_key(key))
}

fn remove(steps: &mut Vec<Step>, from: &Document, to: &Document, kept: &KeptSubsystems<'_>) {
    let empty = Subsystem::default();
    let listeners = missing(&from.listeners, &to.listeners);
    steps.extend(
        listeners.map(|(address, listener)| Step::RemoveListener(*address, listener.clone())),
    );
    let referrals = missing(&from.referrals, &to.referrals);
    steps.extend(referrals.map(|(address, _)| Step::RemoveReferral(*address)));
    let mut namespaces = Vec::new();
    let mut subsystems = Vec::new();
    for (nqn, old) in from.subsystems.iter().rev() {
        let new = kept.get(nqn).map_or(&empty, |(_, new)| new);
        for (host, _) in missing(&old.hosts, &new.hosts) {
            steps.push(Step::DisallowHost { nqn: nqn.clone(), host: host.clone() });
        }
        for (&nsid, namespace) in old.namespaces.iter().rev() {
            let stays = new.namespaces.get(&nsid).is_some_and(|new| new.is_same_disk(namespace));
            if !stays {
                let (nqn, namespace) = (nqn.clone(), namespace.clone());
                namespaces.push(Step::RemoveNamespace { nqn, nsid, namespace });
            }
        }
        if !kept.contains_key(nqn) {
            if old.allow_any_host {
                steps.push(Step::AllowAnyHost { nqn: nqn.clone(), allow: false });
            }
            let (nqn, subsystem) = (nqn.clone(), bare(old));
            subsystems.push(Step::RemoveSubsystem { nqn, subsystem });
        }
    }
    steps.append(&mut namespaces);
    steps.append(&mut subsystems);
}

fn add(steps: &mut Vec<Step>, from: &Document, to: &Document, kept: &KeptSubsystems<'_>) {
    let empty = Subsystem::default();
    let mut namespaces = Vec::new();
    let mut hosts = Vec::new();
    for (nqn, new) in &to.subsystems {
        let old = kept.get(nqn).map_or(&empty, |(old, _)| old);
        if !kept.contains_key(nqn) {
            let (nqn, subsystem) = (nqn.clone(), bare(new));
            steps.push(Step::AddSubsystem { nqn, subsystem });
        }
        for (&nsid, to) in &new.namespaces {
            let nqn = nqn.clone();
            match old.namespaces.get(&nsid).filter(|old| old.is_same_disk(to)) {
                Some(from) if from == to => {}
                Some(from) => {
                    let (from, to) = (from.clone(), to.clone());
                    namespaces.push(Step::ChangeNamespace { nqn, nsid, from, to });
                }
                None => {
                    namespaces.push(Step::AddNamespace { nqn, nsid, namespace: to.clone() });
                }
            }
        }
        for (host, to) in &new.hosts {
            let (nqn, host) = (nqn.clone(), host.clone());
            match old.hosts.get(&host) {
                Some(from) if from == to => {}
                Some(from) => {
                    let (from, to) = (from.clone(), to.clone());
                    hosts.push(Step::ChangeHost { nqn, host, from, to });
                }
                None => hosts.push(Step::AllowHost { nqn, host, entry: to.clone() }),
            }
        }
        let widened = kept.contains_key(nqn) && new.allow_any_host;
        if new.allow_any_host != old.allow_any_host && !widened {
            let allow = new.allow_any_host;
            hosts.push(Step::AllowAnyHost { nqn: nqn.clone(), allow });
        }
    }
    steps.append(&mut namespaces);
    steps.append(&mut hosts);
    let listeners = missing(&to.listeners, &from.listeners);
    steps
        .extend(listeners.map(|(address, listener)| Step::AddListener(*address, listener.clone())));
    let referrals = missing(&to.referrals, &from.referrals);
    steps.extend(referrals.map(|(address, _)| Step::AddReferral(*address)));
}
