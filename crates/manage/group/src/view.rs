//! A member's copy of the group's records.
//!
//! The copy may be old, because watches are late. Therefore every change in the store compares
//! revisions, and permits come only from the replies of transactions.

use crate::keys::{Key, KeySpace};
use crate::place;
use crate::records::{
    AckRecord, AliveRecord, AnaGroupRecord, Duty, HostsRecord, LeaderRecord, MemberRecord,
    OrderRecord, PinRecord, RangeRecord, Record, ReservationRecord, SuspectRecord, UpgradeRecord,
};
use crate::store::{Change, Entry, Read, Revision};
use std::collections::{BTreeMap, BTreeSet};

/// A record and the revision of its last change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen<T> {
    /// The record.
    pub record: T,
    /// The revision of its last change.
    pub revision: Revision,
}

type Table<K, T> = BTreeMap<K, Seen<T>>;

/// The records with which an operator manages members.
#[derive(Default, Debug)]
pub struct Upkeep {
    /// The operator's orders by member.
    pub orders: Table<String, OrderRecord>,
    /// The hosts of the members that are ready.
    pub hosts: Table<String, HostsRecord>,
    /// The rolling upgrade that has not ended.
    pub upgrade: Table<(), UpgradeRecord>,
}

#[derive(Default, Debug)]
struct Known {
    /// The revision of the last known change of each key. A deletion is a change, too.
    revisions: BTreeMap<Key, Revision>,
    /// The number of changes so far.
    changes: u64,
    /// The members that may lead each ANA group; `None`: not computed since the last change.
    ranks: Option<BTreeMap<u32, Vec<String>>>,
}

/// The records of the group, as far as a member has seen them.
#[derive(Default, Debug)]
pub struct View {
    /// The members.
    pub members: Table<String, MemberRecord>,
    /// The members with a lease.
    pub alive: Table<String, AliveRecord>,
    /// The suspicions by member.
    pub suspects: Table<String, SuspectRecord>,
    /// The ranges of controller identifiers.
    pub ranges: Table<u16, RangeRecord>,
    /// The ANA groups.
    pub groups: Table<u32, AnaGroupRecord>,
    /// The operator's choices of leaders.
    pub pins: Table<u32, PinRecord>,
    /// The leadership of the ANA groups.
    pub leaders: Table<u32, LeaderRecord>,
    /// The reservations by namespace.
    pub reservations: Table<String, ReservationRecord>,
    /// The applied reservation changes by namespace.
    pub acks: Table<String, AckRecord>,
    /// The records with which an operator manages members.
    pub upkeep: Upkeep,
    /// The keys whose values this version cannot read. The member does not change these objects.
    pub unreadable: BTreeSet<Key>,
    known: Known,
}

fn put<K: Ord, T: Record>(
    table: &mut Table<K, T>,
    key: K,
    value: Option<&[u8]>,
    revision: Revision,
) -> bool {
    match value.map(T::from_value) {
        Some(Some(record)) => {
            table.insert(key, Seen { record, revision });
            true
        }
        Some(None) => {
            table.remove(&key);
            false
        }
        None => {
            table.remove(&key);
            true
        }
    }
}

impl View {
    /// The revision of the last change of a key; 0 if it does not exist.
    #[must_use]
    pub fn revision(&self, key: &Key) -> Revision {
        fn of<K: Ord, T>(table: &Table<K, T>, key: &K) -> Revision {
            table.get(key).map_or(0, |seen| seen.revision)
        }
        match key {
            Key::Member(name) => of(&self.members, name),
            Key::Alive(name) => of(&self.alive, name),
            Key::Suspect(name) => of(&self.suspects, name),
            Key::Range(number) => of(&self.ranges, number),
            Key::Order(name) => of(&self.upkeep.orders, name),
            Key::Ana(number) => of(&self.groups, number),
            Key::Pin(number) => of(&self.pins, number),
            Key::Leader(number) => of(&self.leaders, number),
            Key::Reservation(name) => of(&self.reservations, name),
            Key::Ack(name) => of(&self.acks, name),
            Key::Hosts(name) => of(&self.upkeep.hosts, name),
            Key::Upgrade => of(&self.upkeep.upgrade, &()),
        }
    }

    /// The number of changes of records so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.known.changes
    }

    fn set(&mut self, key: &Key, value: Option<&[u8]>, revision: Revision) {
        let before = self.revision(key);
        self.known.revisions.insert(key.clone(), revision);
        let ranks_stay = matches!(key, Key::Leader(_) | Key::Reservation(_) | Key::Ack(_));
        if !ranks_stay && !matches!(key, Key::Hosts(_) | Key::Upgrade | Key::Suspect(_)) {
            self.known.ranks = None;
        }
        let is_read = match key.clone() {
            Key::Member(name) => put(&mut self.members, name, value, revision),
            Key::Alive(name) => put(&mut self.alive, name, value, revision),
            Key::Suspect(name) => put(&mut self.suspects, name, value, revision),
            Key::Range(number) => put(&mut self.ranges, number, value, revision),
            Key::Order(name) => put(&mut self.upkeep.orders, name, value, revision),
            Key::Ana(number) => put(&mut self.groups, number, value, revision),
            Key::Pin(number) => put(&mut self.pins, number, value, revision),
            Key::Leader(number) => put(&mut self.leaders, number, value, revision),
            Key::Reservation(name) => put(&mut self.reservations, name, value, revision),
            Key::Ack(name) => put(&mut self.acks, name, value, revision),
            Key::Hosts(name) => put(&mut self.upkeep.hosts, name, value, revision),
            Key::Upgrade => put(&mut self.upkeep.upgrade, (), value, revision),
        };
        match is_read {
            true => self.unreadable.remove(key),
            false => self.unreadable.insert(key.clone()),
        };
        self.known.changes += u64::from(before != self.revision(key) || !is_read);
    }

    /// Applies a change from the watch. Returns its key if the change was not known yet.
    pub(crate) fn change(&mut self, keys: &KeySpace, change: &Change) -> Option<Key> {
        let key = keys.parse(&change.key)?;
        let known = self.known.revisions.get(&key).copied().unwrap_or(0);
        if change.revision <= known {
            return None;
        }
        self.set(&key, change.value.as_deref(), change.revision);
        Some(key)
    }

    /// Applies the keys that a transaction read at `revision`. Returns the keys that have changed.
    pub(crate) fn absorb(
        &mut self,
        keys: &KeySpace,
        reads: &[Read],
        entries: &[Entry],
        revision: Revision,
    ) -> Vec<Key> {
        let mut news = Vec::new();
        let mut found = BTreeSet::new();
        for entry in entries {
            let Some(key) = keys.parse(&entry.key) else { continue };
            if entry.revision > self.known.revisions.get(&key).copied().unwrap_or(0) {
                self.set(&key, Some(&entry.value), entry.revision);
                news.push(key.clone());
            }
            found.insert(key);
        }
        let is_gone = |(key, known): (&Key, &Revision)| {
            let name = keys.name(key);
            let is_read = || reads.iter().any(|read| read.includes(&name));
            *known < revision && !found.contains(key) && is_read()
        };
        let all = self.known.revisions.iter();
        let gone: Vec<_> =
            all.filter(|(k, v)| is_gone((k, v))).map(|(key, _)| key.clone()).collect();
        for key in gone {
            if self.revision(&key) != 0 || self.unreadable.contains(&key) {
                news.push(key.clone());
            }
            self.set(&key, None, revision);
        }
        news
    }

    /// Whether a process of a member is alive, as far as this copy shows.
    #[must_use]
    pub fn is_alive(&self, member: &str, incarnation: u64) -> bool {
        self.alive.get(member).is_some_and(|seen| seen.record.incarnation == incarnation)
    }

    /// Whether another member suspects that a process of a member is dead.
    #[must_use]
    pub fn is_suspect(&self, member: &str, incarnation: u64) -> bool {
        let suspect = self.suspects.get(member);
        suspect.is_some_and(|seen| seen.record.incarnation == incarnation)
    }

    /// Whether a process of a member has certainly ended.
    #[must_use]
    pub fn has_ended(&self, member: &str, incarnation: u64) -> bool {
        self.members.get(member).is_some_and(|Seen { record, .. }| {
            record.ended_from < incarnation && incarnation <= record.ended
        })
    }

    /// The tasks of a member.
    #[must_use]
    pub fn duty(&self, member: &str) -> Duty {
        self.upkeep.orders.get(member).map(|seen| seen.record.duty).unwrap_or_default()
    }

    /// The weight of a member for placement.
    #[must_use]
    pub fn weight(&self, member: &str) -> u32 {
        let ordered = self.upkeep.orders.get(member).and_then(|seen| seen.record.weight);
        let own = || self.members.get(member).map_or(0, |seen| seen.record.weight);
        ordered.unwrap_or_else(own)
    }

    /// Computes [`Self::candidates`] after changes.
    pub(crate) fn rank(&mut self) {
        if self.known.ranks.is_none() {
            let groups = self.groups.keys();
            self.known.ranks = Some(groups.map(|group| (*group, self.ranking(*group))).collect());
        }
    }

    fn ranking(&self, group: u32) -> Vec<String> {
        let alive = self.alive.keys().map(String::as_str);
        let eligible = alive.filter(|name| self.duty(name) == Duty::Serve);
        let mut ranks = place::ranking(group, eligible.map(|name| (name, self.weight(name))));
        if let Some(pin) = self.pins.get(&group) {
            ranks.sort_by_key(|name| *name != pin.record.member);
        }
        ranks.into_iter().map(str::to_owned).collect()
    }

    /// The members that may lead an ANA group, the best first: those that are alive and have no
    /// order to stop. The operator's choice comes first. Call [`Self::rank`] before.
    pub(crate) fn candidates(&self, group: u32) -> &[String] {
        let ranks = self.known.ranks.as_ref().and_then(|ranks| ranks.get(&group));
        ranks.map_or(&[], Vec::as_slice)
    }
}
