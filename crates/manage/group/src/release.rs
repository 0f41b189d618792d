//! The release of the leaderships of a process that has ended, by the watchdog on its machine.
//!
//! The watchdog outlives the process. Once no operation of the process is in flight at the disks of
//! an ANA group, the watchdog makes the leadership vacant, as the process does when it hands over.
//! So the next leader needs no fence and does not wait. If operations may be in flight, the record
//! keeps its holder, and the watchdog only confirms that the process has ended.
//!
//! The transaction compares the member's own record and its `alive` record. A process that starts
//! with the same name changes both before it can lead, so a late release never affects it.

use crate::keys::{Key, KeySpace};
use crate::records::{AliveRecord, LeaderRecord, MemberRecord, Phase, Reason, Record};
use crate::store::{Compare, Entry, Read, Txn, Write};

/// The records that [`release`] needs.
#[must_use]
pub fn release_reads(keys: &KeySpace, member: &str) -> Txn {
    let own = [Key::Alive(member.to_owned()), Key::Member(member.to_owned())];
    let mut reads = own.map(|key| Read::Key(keys.name(&key))).to_vec();
    reads.push(Read::Prefix(keys.leaders()));
    Txn { reads, ..Txn::default() }
}

/// The transaction that releases the leaderships of a process of `member`.
///
/// `process`: the random number of the process, which has certainly ended. `is_quiet`: whether none
/// of its operations is in flight at any disk of the ANA group. `entries`: the reply to
/// [`release_reads`]. Returns `None` if another process has the name, or if the records need no
/// change.
#[must_use]
pub fn release(
    keys: &KeySpace,
    (member, process): (&str, u64),
    entries: &[Entry],
    is_quiet: impl Fn(u32) -> bool,
) -> Option<Txn> {
    let (own, alive) = (Key::Member(member.to_owned()), Key::Alive(member.to_owned()));
    let found = |key: &Key| entries.iter().find(|entry| entry.key == keys.name(key));
    let entry = found(&own)?;
    let record = MemberRecord::from_value(&entry.value)?;
    if record.process != process {
        return None;
    }
    let incarnation = record.incarnation;
    let mut txn = Txn::default();
    let mut change = |key: String, revision, write: Option<Write>| {
        txn.compares.push(Compare { key, revision });
        txn.writes.extend(write);
    };
    let is_known = record.ended == incarnation;
    let value = record.confirmed().to_value();
    let write = Write::Put { key: entry.key.clone(), value, lease: None };
    change(entry.key.clone(), entry.revision, (!is_known).then_some(write));
    let sign = found(&alive);
    let its = sign.and_then(|sign| AliveRecord::from_value(&sign.value));
    let key = keys.name(&alive);
    let is_own = its.is_some_and(|its| its.incarnation == incarnation);
    let delete = Write::Delete { key: key.clone() };
    change(key, sign.map_or(0, |sign| sign.revision), is_own.then_some(delete));
    for entry in entries {
        let Some(Key::Leader(group)) = keys.parse(&entry.key) else { continue };
        let Some(leader) = LeaderRecord::from_value(&entry.value) else { continue };
        let holder = leader.holder.as_ref();
        let is_held = holder.is_some_and(|it| it.member == member && it.incarnation == incarnation);
        // A holder that still fences has done no I/O.
        if is_held && (leader.phase != Phase::Serving || is_quiet(group)) {
            let value = vacated(leader, member).to_value();
            let write = Write::Put { key: entry.key.clone(), value, lease: None };
            change(entry.key.clone(), entry.revision, Some(write));
        }
    }
    if crate::has_mistake("a late release compares nothing") {
        txn.compares.clear();
    }
    (!txn.writes.is_empty()).then_some(txn)
}

/// The vacant leadership. `to` and the reason tell other members to leave the group to the next
/// process of the member for a while.
fn vacated(leader: LeaderRecord, member: &str) -> LeaderRecord {
    LeaderRecord {
        phase: Phase::Vacant,
        holder: None,
        to: Some(member.to_owned()),
        reason: Reason::Lost,
        ..leader
    }
}

#[cfg(test)]
#[path = "tests/release.rs"]
mod tests;
