//! The store of the group: the part of etcd's interface that the state machines need.
//!
//! **Contract.** The store has one sequence of *revisions*. Each transaction that writes gets the
//! next revision. A transaction is atomic and linearizable, reads included: it takes effect at one
//! instant between its submission and its reply. A key keeps the revision of its last change, and
//! [`Compare`] uses it. A watch delivers all changes after a revision in order, perhaps late.
//!
//! A key with a lease disappears some time after the lease was renewed last. The group relies on
//! this only to notice a dead member, never for safety. In etcd a stale leader may revoke a renewed
//! lease too early, or renew a lease that another leader has revoked (etcd issue 15247).
//!
//! A request that fails may have been executed, or may be executed later.

use farblock_proto::time::Instant;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// A revision of the store. 0 is the revision of a key that does not exist.
pub type Revision = u64;

/// The number of a request, which its reply repeats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// The store's ID of a lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub i64);

/// The condition that a key was last changed at a revision; 0: the key does not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// The key.
    pub key: String,
    /// The revision of its last change.
    pub revision: Revision,
}

/// A change of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// Sets the value of a key, and the lease with which the key disappears.
    Put {
        /// The key.
        key: String,
        /// The new value.
        value: Vec<u8>,
        /// The lease; `None`: the key stays.
        lease: Option<LeaseId>,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: String,
    },
}

/// The keys that a transaction reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Read {
    /// One key.
    Key(String),
    /// All keys that begin with this text.
    Prefix(String),
}

impl Read {
    /// Whether this includes a key.
    #[must_use]
    pub fn includes(&self, key: &str) -> bool {
        match self {
            Self::Key(only) => only == key,
            Self::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }
}

/// A transaction: if all conditions are true, it writes. In any case it reads afterwards.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Txn {
    /// The conditions.
    pub compares: Vec<Compare>,
    /// The changes if all conditions are true.
    pub writes: Vec<Write>,
    /// The keys to read after the changes.
    pub reads: Vec<Read>,
}

/// A request to the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreRequest {
    /// Creates a lease. Reply: [`StoreReply::Granted`].
    Grant {
        /// The time for which each renewal keeps the lease.
        ttl: Duration,
    },
    /// Renews a lease. Reply: [`StoreReply::Renewed`].
    Renew(LeaseId),
    /// Ends a lease and deletes its keys. Reply: [`StoreReply::Revoked`].
    Revoke(LeaseId),
    /// Reads the remaining time of a lease. Reply: [`StoreReply::TimeLeft`].
    TimeLeft(LeaseId),
    /// Executes a transaction. Reply: [`StoreReply::Done`].
    Txn(Txn),
    /// Watches all keys that begin with `prefix`, from this revision on. A new watch replaces the
    /// previous one. The store answers with [`WatchEvent`]s.
    Watch {
        /// The prefix of the keys to watch.
        prefix: String,
        /// The first revision to report.
        from: Revision,
    },
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Arc<[u8]>,
    /// The revision of the last change.
    pub revision: Revision,
}

/// The reason for which a request failed. The store may have executed the request nevertheless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreTrouble {
    /// No member of the store answered in time.
    Silent,
    /// A member of the store answered that the store has no quorum.
    NoQuorum,
}

/// The reply to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreReply {
    /// The new lease.
    Granted(LeaseId),
    /// Whether the lease exists, and so was renewed.
    Renewed(bool),
    /// The lease does not exist any more.
    Revoked,
    /// The remaining time of a lease, in whole seconds; zero: the lease does not exist any more.
    TimeLeft {
        /// The time for which each renewal keeps the lease.
        granted: Duration,
        /// The remaining time.
        left: Duration,
    },
    /// The transaction was executed.
    Done(TxnReply),
    /// The request failed.
    Failed(StoreTrouble),
}

/// The result of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxnReply {
    /// Whether all conditions were true.
    pub succeeded: bool,
    /// The revision of the store after the transaction.
    pub revision: Revision,
    /// The keys that the transaction read.
    pub entries: Vec<Entry>,
}

/// A change that a watch reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The new value; `None`: the key was deleted.
    pub value: Option<Arc<[u8]>>,
    /// The revision of the change.
    pub revision: Revision,
}

/// A report of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchEvent {
    /// Changes, in the order of their revisions.
    Changed(Vec<Change>),
    /// The store does not have the changes since the watch's revision any more. The watch has
    /// ended.
    Compacted,
    /// The connection is lost, and the watch has ended.
    Lost,
}

/// An answer of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreEvent {
    /// The reply to a request.
    Reply(Ticket, StoreReply),
    /// A report of the watch.
    Watch(WatchEvent),
}

/// A client of the store. No function blocks. Each request gets exactly one reply, in any order; a
/// client that receives no answer in time replies with [`StoreReply::Failed`]. This time must be
/// shorter than a quarter of [`limits::HOLD`](crate::limits::HOLD).
pub trait Store {
    /// Sends a request.
    fn submit(&mut self, now: Instant, ticket: Ticket, request: StoreRequest);

    /// Returns the next answer that has arrived.
    fn poll(&mut self, now: Instant) -> Option<StoreEvent>;
}
