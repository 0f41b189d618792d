//! Requests in flight, and orders to the driver.

use crate::action::{Action, Report};
use crate::store::{LeaseId, Read, StoreRequest, Ticket, Txn};
use farblock_proto::time::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::mem;

/// The purpose of a request to the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Create the lease.
    Grant,
    /// Renew the lease.
    Renew,
    /// Find out for how long a member has not renewed its lease.
    TimeLeft { member: String, incarnation: u64 },
    /// Refute a suspicion.
    Refute,
    /// Read all records.
    Snapshot { lease: Option<LeaseId> },
    /// Write the member's records.
    Register { lease: LeaseId },
    /// Prove the leadership of all ANA groups that the member leads.
    Proof,
    /// Take an ANA group.
    Take { group: u32 },
    /// Become the leader after the fence.
    Confirm { group: u32 },
    /// Hand an ANA group over.
    Release { group: u32 },
    /// Change reservations.
    Propose { proposal: u64 },
    /// Find out the last reservation change.
    Consult { proposal: u64 },
    /// Report applied reservation changes.
    Ack { namespace: String },
    /// A request whose reply the member ignores.
    Nothing,
}

/// A request in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    pub(crate) purpose: Purpose,
    /// The time just before the request was sent.
    pub(crate) sent: Instant,
    /// The keys that the request reads.
    pub(crate) reads: Vec<Read>,
}

#[derive(Default, Debug)]
pub(crate) struct Outbox {
    last: u64,
    pending: BTreeMap<Ticket, Pending>,
    actions: VecDeque<Action>,
}

impl Outbox {
    pub(crate) fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn report(&mut self, report: Report) {
        self.push(Action::Report(report));
    }

    pub(crate) fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn send(&mut self, now: Instant, purpose: Purpose, request: StoreRequest) {
        self.last += 1;
        let ticket = Ticket(self.last);
        let reads = match &request {
            StoreRequest::Txn(txn) => txn.reads.clone(),
            _ => Vec::new(),
        };
        // Only a watch has no reply.
        if !matches!(request, StoreRequest::Watch { .. }) {
            self.pending.insert(ticket, Pending { purpose, sent: now, reads });
        }
        self.push(Action::Store(ticket, request));
    }

    pub(crate) fn txn(&mut self, now: Instant, purpose: Purpose, txn: Txn) {
        self.send(now, purpose, StoreRequest::Txn(txn));
    }

    /// The request to which a reply belongs; `None` if the member has given it up.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Pending> {
        self.pending.remove(&ticket)
    }

    /// The number of requests with this purpose.
    pub(crate) fn count(&self, purpose: &Purpose) -> usize {
        self.pending.values().filter(|pending| pending.purpose == *purpose).count()
    }

    /// Gives up the oldest request with this purpose.
    pub(crate) fn forget_oldest(&mut self, purpose: &Purpose) {
        let is_it =
            |pending: &Pending| mem::discriminant(&pending.purpose) == mem::discriminant(purpose);
        let oldest = self.pending.iter().find(|(_, pending)| is_it(pending));
        if let Some(ticket) = oldest.map(|(ticket, _)| *ticket) {
            self.pending.remove(&ticket);
        }
    }
}
