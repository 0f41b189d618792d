//! The names of hosts and subsystems that an operator chooses.

use crate::document::Document;
use farblock_wire::nqn;
use std::collections::{BTreeMap, BTreeSet};

/// Checks the name of a host or subsystem. A name that fails is a mistake, because no peer has such
/// a name.
///
/// # Errors
/// One sentence that describes the mistake and suggests the likely name.
pub fn check_name(name: &str) -> Result<(), String> {
    check_bounds(name)?;
    if name.contains(char::is_whitespace) {
        return Err(format!(
            "{name:?} contains a space, and no name does; a valid name is for example \
             nqn.2026-11.org.example:disks"
        ));
    }
    match meant(name) {
        Some(meant) => Err(format!("{name} is misspelt: did you mean {meant}?")),
        None => Ok(()),
    }
}

/// Checks only that a peer can send the name at all.
fn check_bounds(name: &str) -> Result<(), String> {
    nqn::validate_name(name).map_err(|error| {
        format!("{error}; a valid name is for example nqn.2026-11.org.example:disks")
    })
}

/// The names that a target already uses. An earlier version accepted some names that [`check_name`]
/// refuses now. Such names must not stop a target that uses them.
pub(crate) struct KnownNames<'a>(BTreeSet<&'a str>);

impl<'a> KnownNames<'a> {
    pub(crate) fn of(document: &'a Document) -> Self {
        let subsystems = document.subsystems.iter();
        let names = subsystems.flat_map(|(name, subsystem)| {
            let visible =
                subsystem.namespaces.values().flat_map(|it| it.visible_to.iter().flatten());
            std::iter::once(name).chain(subsystem.hosts.keys()).chain(visible)
        });
        KnownNames(names.map(String::as_str).collect())
    }

    /// Checks a new name strictly. Checks a name in use only for the limits of the protocol.
    pub(crate) fn check(&self, name: &str) -> Result<(), String> {
        if self.0.contains(name) { check_bounds(name) } else { check_name(name) }
    }
}

impl Document {
    /// One sentence for each name in use that [`check_name`] refuses: the reason, and what to do.
    pub fn doubtful_names(&self) -> Vec<String> {
        let mut advice = BTreeMap::new();
        for (nqn, subsystem) in &self.subsystems {
            let anew = "and share its disks under the right name";
            let remove = format!("run farblock ctl remove-subsystem '{nqn}', {anew}");
            advice.entry(nqn).or_insert(("subsystem", remove));
            for host in subsystem.hosts.keys() {
                let anew = "and allow the right name (allow-host)";
                let remove = format!("run farblock ctl disallow-host '{nqn}' '{host}', {anew}");
                advice.entry(host).or_insert(("host", remove));
            }
            for (nsid, namespace) in &subsystem.namespaces {
                for host in namespace.visible_to.iter().flatten() {
                    let list =
                        format!("run farblock ctl visible-to '{nqn}' {nsid} with the right names");
                    advice.entry(host).or_insert(("host", list));
                }
            }
        }
        let doubtful = advice.into_iter().filter_map(|(name, (kind, advice))| {
            let reason = check_name(name).err()?;
            Some(format!(
                "an earlier version accepted the name of this {kind}, but no {kind} can have this \
                 name ({reason}): {advice}"
            ))
        });
        doubtful.collect()
    }
}

/// The NQN that the operator probably meant, if the prefix `nqn.` is misspelt.
fn meant(name: &str) -> Option<String> {
    /// The maximum length of a misspelt `nqn`.
    const LONGEST: usize = 4;
    let (word, rest) = name.split_once(['.', ':', ',', '-'])?;
    let is_near =
        (2..=LONGEST).contains(&word.len()) && word.bytes().all(|c| c.is_ascii_alphabetic());
    let meant = format!("nqn.{rest}");
    // Suggest the NQN only if it is valid.
    (is_near && meant != name && nqn::validate(&meant).is_ok()).then_some(meant)
}
