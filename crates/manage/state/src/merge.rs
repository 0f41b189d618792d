//! What a changed configuration asks for of a target that was changed while it ran: what the file
//! changed is changed, and everything else stays.

use crate::document::{Document, Subsystem};
use std::collections::BTreeMap;

/// `current` with what changed from `old` to `new`.
#[must_use]
pub fn merge(old: &Document, new: &Document, current: &Document) -> Document {
    Document {
        version: new.version,
        listeners: merge_map(&old.listeners, &new.listeners, &current.listeners),
        referrals: merge_map(&old.referrals, &new.referrals, &current.referrals),
        subsystems: merge_with(
            &old.subsystems,
            &new.subsystems,
            &current.subsystems,
            merge_subsystem,
        ),
    }
}

fn merge_subsystem(old: &Subsystem, new: &Subsystem, current: &Subsystem) -> Subsystem {
    Subsystem {
        serial: pick(&old.serial, &new.serial, &current.serial),
        model: pick(&old.model, &new.model, &current.model),
        allow_any_host: pick(&old.allow_any_host, &new.allow_any_host, &current.allow_any_host),
        hosts: merge_map(&old.hosts, &new.hosts, &current.hosts),
        namespaces: merge_map(&old.namespaces, &new.namespaces, &current.namespaces),
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

/// `both` says what becomes of what all three have and the file changed.
fn merge_with<K: Ord + Clone, V: PartialEq + Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    current: &BTreeMap<K, V>,
    both: impl Fn(&V, &V, &V) -> V,
) -> BTreeMap<K, V> {
    let mut merged = current.clone();
    for key in old.keys().chain(new.keys()) {
        match (old.get(key), new.get(key), current.get(key)) {
            (old, new, _) if old == new => {}
            (_, None, _) => {
                merged.remove(key);
            }
            (Some(old), Some(new), Some(current)) => {
                merged.insert(key.clone(), both(old, new, current));
            }
            (_, Some(new), _) => {
                merged.insert(key.clone(), new.clone());
            }
        }
    }
    merged
}
