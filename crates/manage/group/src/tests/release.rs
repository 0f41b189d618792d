//! The releases that a watchdog writes, and those that it must not write.

use super::*;
use crate::records::{Holder, Unknown, VERSION};
use crate::store::LeaseId;
use std::collections::BTreeMap;

fn keys() -> KeySpace {
    KeySpace::new("gold")
}

fn entry(key: &Key, value: Vec<u8>, revision: u64) -> Entry {
    Entry { key: keys().name(key), value: value.into(), revision }
}

fn own(process: u64, incarnation: u64) -> Entry {
    let record = MemberRecord {
        version: VERSION,
        incarnation,
        process,
        ended: 0,
        ended_from: 0,
        addresses: Vec::new(),
        weight: 100,
        program: String::new(),
        range: 0,
        unknown: Unknown::new(),
    };
    entry(&Key::Member("a".to_owned()), record.to_value(), 10)
}

fn alive(incarnation: u64) -> Entry {
    let record = AliveRecord { version: VERSION, incarnation, lease: Some(LeaseId(7)) };
    entry(&Key::Alive("a".to_owned()), record.to_value(), 11)
}

fn led(group: u32, phase: Phase, incarnation: u64) -> Entry {
    let holder = Holder {
        member: "a".to_owned(),
        incarnation,
        epoch: 4,
        identity: String::new(),
        hold_ms: 1,
        fences: Vec::new(),
        heeds_suspicions: true,
        suspected: None,
    };
    let record = LeaderRecord {
        version: VERSION,
        epoch: 4,
        phase,
        victims: vec![Holder { member: "b".to_owned(), ..holder.clone() }],
        holder: Some(holder),
        to: None,
        fenced: None,
        failed: BTreeMap::new(),
        reason: Reason::New,
        at_unix_ms: 0,
        unknown: Unknown::new(),
    };
    entry(&Key::Leader(group), record.to_value(), 20 + u64::from(group))
}

fn put(txn: &Txn, key: &Key) -> Option<Vec<u8>> {
    let name = keys().name(key);
    txn.writes.iter().find_map(|write| match write {
        Write::Put { key, value, .. } if *key == name => Some(value.clone()),
        _ => None,
    })
}

#[test]
fn only_groups_without_operations_in_flight_become_vacant() {
    let entries = [
        own(9, 3),
        alive(3),
        led(1, Phase::Serving, 3),
        led(2, Phase::Serving, 3),
        led(3, Phase::Fencing, 3),
    ];
    let txn =
        release(&keys(), ("a", 9), &entries, |group| group == 1).expect("a release is necessary");
    for group in [1, 3] {
        let value = put(&txn, &Key::Leader(group)).expect("the release writes the leadership");
        let record = LeaderRecord::from_value(&value).expect("a record");
        assert_eq!((record.phase, record.holder, record.epoch), (Phase::Vacant, None, 4));
        assert_eq!(
            (record.to.as_deref(), record.victims.len()),
            (Some("a"), 1),
            "the vacant leadership keeps its victims"
        );
    }
    assert_eq!(
        put(&txn, &Key::Leader(2)),
        None,
        "a group with an operation in flight is not released"
    );
    let value = put(&txn, &Key::Member("a".to_owned()))
        .expect("the release confirms the end of the process");
    let record = MemberRecord::from_value(&value).expect("a record");
    assert_eq!((record.ended_from, record.ended), (2, 3), "earlier processes may still run");
    let compared: Vec<_> = txn.compares.iter().map(|compare| compare.revision).collect();
    assert_eq!(compared, [10, 11, 21, 23]);
    let delete = Write::Delete { key: keys().name(&Key::Alive("a".to_owned())) };
    assert!(txn.writes.contains(&delete), "the release deletes the `alive` record");
}

#[test]
fn a_release_changes_nothing_if_a_later_process_has_the_name() {
    let entries = [own(10, 4), alive(4), led(1, Phase::Serving, 3)];
    assert_eq!(release(&keys(), ("a", 9), &entries, |_| true), None);
    assert_eq!(
        release(&keys(), ("a", 9), &[], |_| true),
        None,
        "no release without the member's record"
    );
}
