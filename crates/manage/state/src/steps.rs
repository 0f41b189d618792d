//! What leads from one document to another.
//!
//! What nobody can be without comes first: subsystems before their namespaces, those before their
//! hosts, and listeners last, so that whoever connects finds everything. What goes, goes the other
//! way round, before what comes, since it may stand in its way (a number, a file's lock, an
//! address). Only that any host may connect comes before everything: listed hosts that are taken
//! away at the same time are not disconnected for it.

use crate::document::{Document, Namespace, Subsystem};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

/// One change of a running target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A listener is opened.
    AddListener(SocketAddr),
    /// A listener is closed, and with it the connections that came in there.
    RemoveListener(SocketAddr),
    /// Hosts are pointed to another discovery service.
    AddReferral(SocketAddr),
    /// They are no more.
    RemoveReferral(SocketAddr),
    /// A subsystem without namespaces that no host may use.
    AddSubsystem {
        /// Its name.
        nqn: String,
        /// Its serial and model number.
        subsystem: Subsystem,
    },
    /// A subsystem without namespaces goes, and its controllers with it.
    RemoveSubsystem {
        /// Its name.
        nqn: String,
        /// Its serial and model number.
        subsystem: Subsystem,
    },
    /// A namespace is shared.
    AddNamespace {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        nsid: u32,
        /// What it is.
        namespace: Namespace,
    },
    /// A namespace is not shared any more.
    RemoveNamespace {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        nsid: u32,
        /// What it was.
        namespace: Namespace,
    },
    /// A namespace stays the same disk, and gets another size, or accepts writes or does not.
    ChangeNamespace {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        nsid: u32,
        /// As it was.
        from: Namespace,
        /// As it is to be.
        to: Namespace,
    },
    /// A host may connect.
    AllowHost {
        /// The subsystem.
        nqn: String,
        /// The host's name.
        host: String,
    },
    /// A host may not any more; its controllers end.
    DisallowHost {
        /// The subsystem.
        nqn: String,
        /// The host's name.
        host: String,
    },
    /// Whether hosts may connect that are not listed; otherwise their controllers end.
    AllowAnyHost {
        /// The subsystem.
        nqn: String,
        /// Whether they may.
        allow: bool,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddListener(address) => write!(f, "listens on {address}"),
            Self::RemoveListener(address) => write!(f, "listens on {address} no more"),
            Self::AddReferral(address) => write!(f, "refers hosts to {address}"),
            Self::RemoveReferral(address) => write!(f, "refers hosts to {address} no more"),
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
                    Some(size) => write!(f, " of {size} bytes"),
                    None => f.write_str(" as large as what stores it"),
                }
            }
            Self::AllowHost { nqn, host } => write!(f, "{nqn}: host {host} may connect"),
            Self::DisallowHost { nqn, host } => write!(f, "{nqn}: host {host} may not connect"),
            Self::AllowAnyHost { nqn, allow: true } => write!(f, "{nqn}: any host may connect"),
            Self::AllowAnyHost { nqn, allow: false } => {
                write!(f, "{nqn}: only listed hosts may connect")
            }
        }
    }
}

/// The steps from one document to another, in order; none if they are the same.
pub fn steps(from: &Document, to: &Document) -> Vec<Step> {
    let mut steps = Vec::new();
    let kept = kept_subsystems(from, to);
    for (nqn, (old, new)) in &kept {
        if new.allow_any_host && !old.allow_any_host {
            steps.push(Step::AllowAnyHost { nqn: (*nqn).clone(), allow: true });
        }
    }
    remove(&mut steps, from, to, &kept);
    add(&mut steps, from, to, &kept);
    steps
}

type KeptSubsystems<'a> = BTreeMap<&'a String, (&'a Subsystem, &'a Subsystem)>;

/// Those in both that need not be made anew.
fn kept_subsystems<'a>(from: &'a Document, to: &'a Document) -> KeptSubsystems<'a> {
    let both = from.subsystems.iter().filter_map(|(nqn, old)| {
        let new = to.subsystems.get(nqn)?;
        (old.serial == new.serial && old.model == new.model).then_some((nqn, (old, new)))
    });
    both.collect()
}

/// A subsystem without namespaces that no host may use.
fn bare(subsystem: &Subsystem) -> Subsystem {
    Subsystem {
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
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
    steps.extend(listeners.map(|(address, _)| Step::RemoveListener(*address)));
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
        for (host, _) in missing(&new.hosts, &old.hosts) {
            hosts.push(Step::AllowHost { nqn: nqn.clone(), host: host.clone() });
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
    steps.extend(listeners.map(|(address, _)| Step::AddListener(*address)));
    let referrals = missing(&to.referrals, &from.referrals);
    steps.extend(referrals.map(|(address, _)| Step::AddReferral(*address)));
}
