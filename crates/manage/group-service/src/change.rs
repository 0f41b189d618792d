//! Changes by an operator, as transactions.

use farblock_group::store::{Compare, Read, Txn, Write};
use farblock_group::{
    AnaGroupRecord, Duty, FenceKind, Key, KeySpace, OrderRecord, PinRecord, Record, VERSION, View,
};

/// The number of attempts at a change that meets other changes.
pub(crate) const ATTEMPTS: u32 = 5;

/// A change of the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Declare { ana_group: u32, fences: Vec<FenceKind> },
    Pin { ana_group: u32, member: String },
    Unpin { ana_group: u32 },
    Order { member: String, duty: Duty },
}

/// A record and its new value; `None`: the record is deleted.
type NewRecord = (Key, Option<Vec<u8>>);

impl Change {
    /// The transaction; `Ok(None)`: the group is so already.
    pub(crate) fn txn(&self, view: &View, keys: &KeySpace) -> Result<Option<Txn>, String> {
        let Some((key, value)) = self.record(view)? else { return Ok(None) };
        let revision = view.revision(&key);
        let name = keys.name(&key);
        let write = match value {
            Some(value) => Write::Put { key: name.clone(), value, lease: None },
            None => Write::Delete { key: name.clone() },
        };
        Ok(Some(Txn {
            compares: vec![Compare { key: name.clone(), revision }],
            writes: vec![write],
            reads: vec![Read::Key(name)],
        }))
    }

    /// The record to change, and its new value, or `None` to delete it. `Ok(None)`: no record
    /// changes.
    fn record(&self, view: &View) -> Result<Option<NewRecord>, String> {
        match self {
            Self::Declare { ana_group, fences } => {
                let old = view.groups.get(ana_group).map(|seen| &seen.record.fences);
                let mut all = old.cloned().unwrap_or_default();
                all.extend(fences.iter().filter(|kind| !old.is_some_and(|old| old.contains(kind))));
                let is_new = old != Some(&all);
                let value = AnaGroupRecord { version: VERSION, fences: all }.to_value();
                Ok(is_new.then_some((Key::Ana(*ana_group), Some(value))))
            }
            Self::Pin { ana_group, member } => {
                has_group(view, *ana_group)?;
                has_member(view, member)?;
                let value = PinRecord { version: VERSION, member: member.clone() }.to_value();
                Ok(Some((Key::Pin(*ana_group), Some(value))))
            }
            Self::Unpin { ana_group } => {
                let is_pinned = view.pins.contains_key(ana_group);
                Ok(is_pinned.then_some((Key::Pin(*ana_group), None)))
            }
            Self::Order { member, duty } => {
                has_member(view, member)?;
                let weight = view.orders.get(member).and_then(|seen| seen.record.weight);
                let value = OrderRecord { version: VERSION, duty: *duty, weight }.to_value();
                Ok(Some((Key::Order(member.clone()), Some(value))))
            }
        }
    }
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
