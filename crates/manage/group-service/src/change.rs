//! Changes by an operator, as transactions.

use farblock_group::store::{Compare, Read, Txn, Write};
use farblock_group::{
    AnaGroupRecord, Duty, FenceKind, Key, KeySpace, MemberRecord, OrderRecord, PinRecord, Record,
    Seen, UpgradeMember, UpgradeRecord, VERSION, View,
};
use std::collections::BTreeMap;

/// The number of attempts at a change. An attempt fails if another change of the group comes first.
pub(crate) const ATTEMPTS: u32 = 5;

/// A change of the group's records that an operator requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Declare { ana_group: u32, fences: Vec<FenceKind>, namespaces: Vec<String>, member: String },
    Pin { ana_group: u32, member: String },
    Unpin { ana_group: u32 },
    Order { member: String, duty: Duty },
    BeginUpgrade,
    EndUpgrade,
    Restart { member: String },
    Forget { member: String },
}

/// A record and its new value; `None`: the record is deleted.
type NewRecord = (Key, Option<Vec<u8>>);

impl Change {
    /// The transaction; `Ok(None)`: the group already has the state that the change requests.
    pub(crate) fn txn(&self, view: &View, keys: &KeySpace) -> Result<Option<Txn>, String> {
        let records = self.records(view)?;
        if records.is_empty() {
            return Ok(None);
        }
        let mut txn = Txn::default();
        for (key, value) in records {
            let (name, revision) = (keys.name(&key), view.revision(&key));
            txn.compares.push(Compare { key: name.clone(), revision });
            txn.reads.push(Read::Key(name.clone()));
            match value {
                Some(value) => txn.writes.push(Write::Put { key: name, value, lease: None }),
                None if revision != 0 => txn.writes.push(Write::Delete { key: name }),
                // The record does not exist. The transaction compares this, so the record cannot
                // appear meanwhile.
                None => {}
            }
        }
        if matches!(self, Self::Forget { .. }) {
            // The member must not have become a leader meanwhile.
            let leaders = view.leaders.iter();
            let compare = |(number, seen): (&u32, &Seen<_>)| Compare {
                key: keys.name(&Key::Leader(*number)),
                revision: seen.revision,
            };
            txn.compares.extend(leaders.map(compare));
        }
        Ok(Some(txn))
    }

    /// The records to change, with their new values.
    fn records(&self, view: &View) -> Result<Vec<NewRecord>, String> {
        match self {
            Self::Declare { ana_group, fences, namespaces, member } => {
                let is_shared = view.alive.keys().any(|name| name != member);
                declared(view, *ana_group, (fences, namespaces), is_shared)
            }
            Self::Pin { ana_group, member } => {
                has_group(view, *ana_group)?;
                has_member(view, member)?;
                let value = PinRecord { version: VERSION, member: member.clone() }.to_value();
                Ok(vec![(Key::Pin(*ana_group), Some(value))])
            }
            Self::Unpin { ana_group } => {
                let is_pinned = view.pins.contains_key(ana_group);
                Ok(is_pinned.then_some((Key::Pin(*ana_group), None)).into_iter().collect())
            }
            Self::Order { member, duty } => {
                has_member(view, member)?;
                Ok(vec![ordered(view, member, *duty, None)])
            }
            Self::BeginUpgrade => upgrade(view),
            Self::EndUpgrade => {
                let exists = view.upkeep.upgrade.contains_key(&());
                Ok(exists.then_some((Key::Upgrade, None)).into_iter().collect())
            }
            Self::Restart { member } => {
                has_member(view, member)?;
                let incarnation = view.members[member].record.incarnation;
                Ok(vec![ordered(view, member, Duty::Drain, Some(incarnation))])
            }
            Self::Forget { member } => forgotten(view, member),
        }
    }
}

/// The record of an ANA group, with these kinds of fences added. `is_shared`: another member is
/// alive, so the namespaces must not change.
fn declared(
    view: &View,
    ana_group: u32,
    (fences, namespaces): (&[FenceKind], &[String]),
    is_shared: bool,
) -> Result<Vec<NewRecord>, String> {
    let old = view.groups.get(&ana_group).map(|seen| &seen.record);
    let before = old.map(|old| old.fences.clone()).unwrap_or_default();
    let new = fences.iter().filter(|kind| !before.contains(kind));
    let all: Vec<_> = before.iter().chain(new).copied().collect();
    let shared = old.map(|old| old.namespaces.clone()).unwrap_or_default();
    if !shared.is_empty() && shared != namespaces && is_shared {
        return Err(format!("other members share different namespaces as ANA group {ana_group}"));
    }
    if old.is_some() && all == before && shared == namespaces {
        return Ok(Vec::new());
    }
    let unknown = old.map(|old| old.unknown.clone()).unwrap_or_default();
    let namespaces = namespaces.to_vec();
    let record = AnaGroupRecord { version: VERSION, fences: all, namespaces, unknown };
    Ok(vec![(Key::Ana(ana_group), Some(record.to_value()))])
}

fn ordered(view: &View, member: &str, duty: Duty, restart: Option<u64>) -> NewRecord {
    let old = view.upkeep.orders.get(member).map(|seen| &seen.record);
    let weight = old.and_then(|old| old.weight);
    let unknown = old.map(|old| old.unknown.clone()).unwrap_or_default();
    let record = OrderRecord { version: VERSION, duty, weight, restart, unknown };
    (Key::Order(member.to_owned()), Some(record.to_value()))
}

/// The record of a rolling upgrade of all members. Empty if an upgrade is in progress.
fn upgrade(view: &View) -> Result<Vec<NewRecord>, String> {
    if view.upkeep.upgrade.contains_key(&()) {
        return Ok(Vec::new());
    }
    let is_lost = |(name, seen): &(&String, &Seen<MemberRecord>)| {
        !view.is_alive(name, seen.record.incarnation)
    };
    if let Some((name, _)) = view.members.iter().find(is_lost) {
        return Err(format!(
            "member {name} is lost: start it, or remove it with farblock ctl group forget {name}"
        ));
    }
    if view.members.len() < 2 {
        return Err("the group has one member, so its hosts have no other path".to_owned());
    }
    let members = view.members.iter().map(|(name, seen)| {
        let incarnation = seen.record.incarnation;
        (name.clone(), UpgradeMember { incarnation, duty: view.duty(name) })
    });
    let members = members.collect();
    let record = UpgradeRecord { version: VERSION, members, unknown: BTreeMap::new() };
    Ok(vec![(Key::Upgrade, Some(record.to_value()))])
}

/// Deletes all records of a dead member.
fn forgotten(view: &View, member: &str) -> Result<Vec<NewRecord>, String> {
    has_member(view, member)?;
    if view.alive.contains_key(member) {
        return Err(format!("member {member} is alive: stop it first"));
    }
    for (number, seen) in &view.leaders {
        let leader = &seen.record;
        if leader.holder.iter().chain(&leader.victims).any(|holder| holder.member == member) {
            return Err(format!(
                "no other member leads ANA group {number} after {member} yet, and {member} may \
                 still write: wait for a new leader"
            ));
        }
    }
    let name = || member.to_owned();
    let mut keys = vec![Key::Alive(name()), Key::Member(name()), Key::Order(name())];
    keys.push(Key::Hosts(name()));
    let ranges = view.ranges.iter().filter(|(_, seen)| seen.record.member == member);
    keys.extend(ranges.map(|(number, _)| Key::Range(*number)));
    let pins = view.pins.iter().filter(|(_, seen)| seen.record.member == member);
    keys.extend(pins.map(|(number, _)| Key::Pin(*number)));
    Ok(keys.into_iter().map(|key| (key, None)).collect())
}

fn has_group(view: &View, number: u32) -> Result<(), String> {
    match view.groups.contains_key(&number) {
        true => Ok(()),
        false => Err(format!("the group has no ANA group {number}")),
    }
}

fn has_member(view: &View, name: &str) -> Result<(), String> {
    if view.members.contains_key(name) {
        return Ok(());
    }
    let all: Vec<&str> = view.members.keys().map(String::as_str).collect();
    Err(format!("the group has no member {name}; its members are {}", all.join(", ")))
}
