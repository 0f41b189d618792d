//! A model of etcd: revisions, transactions, leases, watches, compaction, and lost quorums.
//!
//! The model has etcd's known weaknesses: a stale leader revokes a lease too early, or confirms the
//! renewal of a lease that does not exist any more.

use crate::store::{
    Change, Entry, LeaseId, StoreReply, StoreRequest, StoreTrouble, Txn, TxnReply, WatchEvent,
    Write,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

struct Item {
    value: Arc<[u8]>,
    revision: u64,
    lease: Option<LeaseId>,
}

struct Lease {
    ttl_ns: u64,
    ends_at: u64,
}

/// The store. All times are times of the simulated world.
#[derive(Default)]
pub(super) struct Etcd {
    items: BTreeMap<String, Item>,
    leases: BTreeMap<i64, Lease>,
    history: Vec<Change>,
    pub(super) revision: u64,
    compacted: u64,
    last_lease: i64,
    /// The rate of the clock, in millionths above 1.
    pub(super) ppm: i64,
    pub(super) has_no_quorum: bool,
}

impl Etcd {
    pub(super) fn put(&mut self, key: &str, value: Vec<u8>) {
        let writes = vec![Write::Put { key: key.to_owned(), value, lease: None }];
        self.commit(&Txn { writes, ..Txn::default() });
    }

    pub(super) fn delete(&mut self, key: &str) {
        let writes = vec![Write::Delete { key: key.to_owned() }];
        self.commit(&Txn { writes, ..Txn::default() });
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.items.contains_key(key)
    }

    pub(super) fn execute(&mut self, now: u64, request: &StoreRequest) -> StoreReply {
        if self.has_no_quorum {
            return StoreReply::Failed(StoreTrouble::NoQuorum);
        }
        match request {
            StoreRequest::Grant { ttl } => {
                self.last_lease += 1;
                let ttl_ns = self.scaled(ttl.as_nanos() as u64);
                self.leases.insert(self.last_lease, Lease { ttl_ns, ends_at: now + ttl_ns });
                StoreReply::Granted(LeaseId(self.last_lease))
            }
            StoreRequest::Renew(lease) => match self.leases.get_mut(&lease.0) {
                Some(found) => {
                    found.ends_at = now + found.ttl_ns;
                    StoreReply::Renewed(true)
                }
                None => StoreReply::Renewed(false),
            },
            StoreRequest::TimeLeft(lease) => {
                let found = self.leases.get(&lease.0);
                let left = found.map_or(0, |lease| lease.ends_at.saturating_sub(now));
                let granted = Duration::from_nanos(found.map_or(0, |lease| lease.ttl_ns));
                let whole = |time: Duration| Duration::from_secs(time.as_secs());
                let granted = whole(granted + Duration::from_millis(500));
                StoreReply::TimeLeft { granted, left: whole(Duration::from_nanos(left)) }
            }
            StoreRequest::Revoke(lease) => {
                self.revoke(lease.0);
                StoreReply::Revoked
            }
            StoreRequest::Txn(txn) => StoreReply::Done(self.commit(txn)),
            StoreRequest::Watch { .. } => unreachable!("the simulated client handles watches"),
        }
    }

    fn scaled(&self, time: u64) -> u64 {
        (time as i64 + time as i64 / 1_000_000 * self.ppm) as u64
    }

    fn commit(&mut self, txn: &Txn) -> TxnReply {
        let revision = |key: &str| self.items.get(key).map_or(0, |item| item.revision);
        let mut succeeded =
            txn.compares.iter().all(|compare| revision(&compare.key) == compare.revision);
        if succeeded && !txn.writes.is_empty() {
            succeeded = self.write(&txn.writes);
        }
        let is_read = |key: &str| txn.reads.iter().any(|read| read.includes(key));
        let entries = self.items.iter().filter(|(key, _)| is_read(key)).map(|(key, item)| Entry {
            key: key.clone(),
            value: Arc::clone(&item.value),
            revision: item.revision,
        });
        TxnReply { succeeded, revision: self.revision, entries: entries.collect() }
    }

    /// Returns whether all leases exist.
    fn write(&mut self, writes: &[Write]) -> bool {
        let revision = self.revision + 1;
        let mut changes = Vec::new();
        for write in writes {
            match write {
                Write::Put { key, value, lease } => {
                    let value: Arc<[u8]> = value.clone().into();
                    // etcd refuses a put with a lease that does not exist.
                    if lease.is_some_and(|lease| !self.leases.contains_key(&lease.0)) {
                        return false;
                    }
                    changes.push((key.clone(), Some((value, *lease))));
                }
                Write::Delete { key } if self.items.contains_key(key) => {
                    changes.push((key.clone(), None));
                }
                Write::Delete { .. } => {}
            }
        }
        if changes.is_empty() {
            return true;
        }
        self.revision = revision;
        for (key, value) in changes {
            let change = Change {
                key: key.clone(),
                value: value.as_ref().map(|(value, _)| Arc::clone(value)),
                revision,
            };
            self.history.push(change);
            match value {
                Some((value, lease)) => self.items.insert(key, Item { value, revision, lease }),
                None => self.items.remove(&key),
            };
        }
        true
    }

    fn revoke(&mut self, lease: i64) {
        if self.leases.remove(&lease).is_some() {
            let its = self.items.iter().filter(|(_, item)| item.lease == Some(LeaseId(lease)));
            let writes: Vec<_> = its.map(|(key, _)| Write::Delete { key: key.clone() }).collect();
            self.write(&writes);
        }
    }

    /// Revokes the leases whose time is over.
    pub(super) fn expire(&mut self, now: u64) {
        if self.has_no_quorum {
            return;
        }
        let over = self.leases.iter().filter(|(_, lease)| lease.ends_at <= now);
        let over: Vec<_> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|lease| self.revoke(lease));
    }

    /// A stale leader revokes the lease of a key.
    pub(super) fn revoke_early(&mut self, key: &str) {
        if let Some(lease) = self.items.get(key).and_then(|item| item.lease) {
            self.revoke(lease.0);
        }
    }

    /// Ends the outage. A new leader renews all leases, or finds that they are over.
    pub(super) fn return_quorum(&mut self, now: u64, renews: bool) {
        self.has_no_quorum = false;
        for lease in self.leases.values_mut().filter(|_| renews) {
            lease.ends_at = now + lease.ttl_ns;
        }
    }

    pub(super) fn compact(&mut self, keep: u64) {
        self.compacted = self.compacted.max(self.revision.saturating_sub(keep));
        let compacted = self.compacted;
        self.history.retain(|change| change.revision > compacted);
    }

    /// The changes from `from` on.
    pub(super) fn watch(&self, from: u64) -> WatchEvent {
        if from <= self.compacted {
            return WatchEvent::Compacted;
        }
        let first = self.history.partition_point(|change| change.revision < from);
        WatchEvent::Changed(self.history[first..].to_vec())
    }
}
