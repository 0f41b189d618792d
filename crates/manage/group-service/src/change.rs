//! Changes by an operator, as transactions.

use farblock_group::store::{Compare, Read, Txn, Write};
use farblock_group::{
    AnaGroupRecord, Duty, FenceKind, Key, KeySpace, OrderRecord, PinRecord, Record, VERSION, View,
};

/// A change of the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Declare { ana_group: u32, fences: Vec<FenceKind> },
    Pin { ana_group: u32, member: String },
    Unpin { ana_group: u32 },
    Order { member: String, duty: Duty },
}

impl Change {
    /// The transaction; `Ok(None)`: the group is so already.
    pub(crate) fn txn(&self, view: &View, keys: &KeySpace) -> Result<Option<Txn>, String> {
        let (key, value) = self.value(view)?;
        let revision = view.revision(&key);
        let name = keys.name(&key);
        let write = match value {
            Some(None) if revision == 0 => return Ok(None),
            None => return Ok(None),
            Some(None) => Write::Delete { key: name.clone() },
            Some(Some(value)) => Write::Put { key: name.clone(), value, lease: None },
        };
        Ok(Some(Txn {
            compares: vec![Compare { key: name.clone(), revision }],
            writes: vec![write],
            reads: vec![Read::Key(name)],
        }))
    }

    /// The key and its new value: `None`: no change, `Some(None)`: none any more.
    #[allow(clippy::type_complexity)]
    fn value(&self, view: &View) -> Result<(Key, Option<Option<Vec<u8>>>), String> {
        match self {
            Self::Declare { ana_group, fences } => {
                let key = Key::Ana(*ana_group);
                let old = view.groups.get(ana_group).map(|seen| &seen.record.fences);
                let mut all = old.cloned().unwrap_or_default();
                all.extend(fences.iter().filter(|kind| !old.is_some_and(|old| old.contains(kind))));
                if old == Some(&all) {
                    return Ok((key, None));
                }
                let value = AnaGroupRecord { version: VERSION, fences: all }.to_value();
                Ok((key, Some(Some(value))))
            }
            Self::Pin { ana_group, member } => {
                has_group(view, *ana_group)?;
                has_member(view, member)?;
                let value = PinRecord { version: VERSION, member: member.clone() }.to_value();
                Ok((Key::Pin(*ana_group), Some(Some(value))))
            }
            Self::Unpin { ana_group } => Ok((Key::Pin(*ana_group), Some(None))),
            Self::Order { member, duty } => {
                has_member(view, member)?;
                let weight = view.orders.get(member).and_then(|seen| seen.record.weight);
                let value = OrderRecord { version: VERSION, duty: *duty, weight }.to_value();
                Ok((Key::Order(member.clone()), Some(Some(value))))
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
