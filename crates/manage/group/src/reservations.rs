//! The reservations of the group: one record for each namespace, changed in one order.
//!
//! ```text
//!             committed              in force here, or acknowledged
//!   Sending ------------> Committed -------------------------------> answered
//!      |  ^
//!      |  +-- outcome unknown: sent again
//!      +----- another change was first: answered with a conflict
//! ```
//!
//! Any member may propose a change. The change is one transaction that compares the record's
//! revision, so all changes of a namespace have one order. The record lists its last changes with
//! their authors, so a member whose request had no reply finds out whether it was executed.
//!
//! **Answer.** The member answers the host only when no member can execute a command that the
//! change forbids. This is the case when a leader has the change *in force*: all its cores enforce
//! it, and all forbidden commands have ended. Then
//!
//! - all earlier leaders are fenced, because that leader's record was in phase Serving;
//! - all later leaders read the record when they become leaders, and so begin with the change.
//!
//! The leader itself answers when the change is in force on its cores, if the transaction of the
//! change also compared its leadership. For other members the leader stores an acknowledgement, in
//! a transaction that compares its leadership.

use crate::action::{Action, Outcome, Proposed};
use crate::keys::Key;
use crate::limits::{MAX_LOG, RETRY};
use crate::outbox::{Outbox, Purpose};
use crate::records::{AckRecord, Record, ReservationChange, ReservationRecord, Unknown, VERSION};
use crate::seat::Me;
use crate::store::{Compare, Read, Revision, Txn, Write};
use crate::view::View;
use farblock_proto::time::Instant;
use std::collections::BTreeMap;

/// The leadership of a namespace's ANA group: its revision and epoch, if this member leads.
pub(crate) type Tenure = Option<(Revision, u64)>;

#[derive(Clone, PartialEq, Eq, Debug)]
enum ProposalState {
    Sending { retry_at: Option<Instant> },
    Committed { index: u64 },
}

#[derive(Debug)]
struct Proposal {
    proposed: Proposed,
    /// The revision of the record on which the change builds.
    base: Revision,
    /// Whether every attempt compared this member's leadership.
    is_leaders: bool,
    state: ProposalState,
}

/// The proposals of a member, and the changes in force on its cores.
#[derive(Default, Debug)]
pub(crate) struct Book {
    proposals: BTreeMap<u64, Proposal>,
    applied: BTreeMap<String, u64>,
    /// The namespaces with an acknowledgement in flight, and the time to repeat it.
    acks: BTreeMap<String, Option<Instant>>,
}

impl Book {
    pub(crate) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        let retries = self.proposals.values().filter_map(|proposal| match proposal.state {
            ProposalState::Sending { retry_at } => retry_at,
            ProposalState::Committed { .. } => None,
        });
        retries.chain(self.acks.values().filter_map(|at| *at))
    }

    pub(crate) fn propose(
        &mut self,
        now: Instant,
        proposed: Proposed,
        (view, me, tenure): (&View, Me<'_>, Tenure),
        out: &mut Outbox,
    ) {
        let seen = view.reservations.get(&proposed.namespace);
        if seen.map_or(0, |seen| seen.record.index) != proposed.base {
            let outcome = Outcome::Conflict(seen.map(|seen| Box::new(seen.record.clone())));
            out.push(Action::Answer { proposal: proposed.proposal, outcome });
            return;
        }
        let number = proposed.proposal;
        let mut proposal = Proposal {
            proposed,
            base: seen.map_or(0, |seen| seen.revision),
            is_leaders: true,
            state: ProposalState::Sending { retry_at: None },
        };
        proposal.send(now, view, me, tenure, out);
        self.proposals.insert(number, proposal);
    }

    /// Takes the reply to a change. `view` contains what the transaction read.
    pub(crate) fn replied(
        &mut self,
        now: Instant,
        number: u64,
        is_failure: bool,
        (view, me): (&View, Me<'_>),
        out: &mut Outbox,
    ) {
        let Some(proposal) = self.proposals.get_mut(&number) else { return };
        if is_failure {
            proposal.state = ProposalState::Sending { retry_at: Some(now.saturating_add(RETRY)) };
            return;
        }
        let seen = view.reservations.get(&proposal.proposed.namespace);
        let is_own = |change: &&ReservationChange| {
            change.member == me.name
                && change.incarnation == me.incarnation
                && change.proposal == number
        };
        let own = seen.and_then(|seen| seen.record.log.iter().find(is_own));
        if let Some(own) = own {
            proposal.state = ProposalState::Committed { index: own.index };
        } else if seen.map_or(0, |seen| seen.revision) == proposal.base {
            // Only the leadership has changed.
            proposal.state = ProposalState::Sending { retry_at: Some(now) };
        } else {
            let outcome = Outcome::Conflict(seen.map(|seen| Box::new(seen.record.clone())));
            out.push(Action::Answer { proposal: number, outcome });
            self.proposals.remove(&number);
        }
    }

    /// Notes that the cores enforce a change.
    pub(crate) fn applied(&mut self, namespace: String, index: u64) {
        let known = self.applied.entry(namespace).or_default();
        *known = index.max(*known);
    }

    /// Notes the reply to an acknowledgement.
    pub(crate) fn acknowledged(&mut self, now: Instant, namespace: &str, is_failure: bool) {
        self.acks.remove(namespace);
        if is_failure {
            self.acks.insert(namespace.to_owned(), Some(now.saturating_add(RETRY)));
        }
    }

    /// Answers proposals, repeats requests, and acknowledges changes as the leader. `tenure`: see
    /// [`Tenure`], by ANA group.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        (view, me): (&View, Me<'_>),
        tenure: impl Fn(u32) -> Tenure,
        out: &mut Outbox,
    ) {
        for proposal in self.proposals.values_mut() {
            if let ProposalState::Sending { retry_at: Some(at) } = proposal.state
                && now >= at
            {
                proposal.send(now, view, me, tenure(proposal.proposed.group), out);
            }
        }
        let applied = &self.applied;
        self.proposals.retain(|number, proposal| match proposal.in_force(view, applied) {
            Some(index) => {
                let outcome = Outcome::InForce { index };
                out.push(Action::Answer { proposal: *number, outcome });
                false
            }
            None => true,
        });
        self.acks.retain(|_, at| at.is_none_or(|at| now < at));
        for (namespace, seen) in &view.reservations {
            if let Some(tenure) = tenure(seen.record.group) {
                self.acknowledge(now, (namespace, &seen.record), tenure, (view, me), out);
            }
        }
    }

    fn acknowledge(
        &mut self,
        now: Instant,
        (namespace, record): (&str, &ReservationRecord),
        (revision, epoch): (Revision, u64),
        (view, me): (&View, Me<'_>),
        out: &mut Outbox,
    ) {
        let index = self.applied.get(namespace).copied().unwrap_or(0);
        let last = view.acks.get(namespace).map_or(0, |seen| seen.record.index);
        let is_others = |change: &ReservationChange| {
            let is_own = change.member == me.name && change.incarnation == me.incarnation;
            change.index > last && change.index <= index && !is_own
        };
        if self.acks.contains_key(namespace) || !record.log.iter().any(is_others) {
            return;
        }
        let key = me.keys.name(&Key::Ack(namespace.to_owned()));
        let value = AckRecord { version: VERSION, epoch, index }.to_value();
        let leader = me.keys.name(&Key::Leader(record.group));
        let txn = Txn {
            compares: vec![Compare { key: leader, revision }],
            writes: vec![Write::Put { key: key.clone(), value, lease: None }],
            reads: vec![Read::Key(key)],
        };
        out.txn(now, Purpose::Ack { namespace: namespace.to_owned() }, txn);
        self.acks.insert(namespace.to_owned(), None);
    }
}

impl Proposal {
    /// The index of the change, if no member can execute a command that it forbids.
    fn in_force(&self, view: &View, applied: &BTreeMap<String, u64>) -> Option<u64> {
        let ProposalState::Committed { index } = self.state else { return None };
        let namespace = &self.proposed.namespace;
        let here = applied.get(namespace).is_some_and(|applied| *applied >= index);
        let there = view.acks.get(namespace).is_some_and(|seen| seen.record.index >= index);
        let hasty = crate::has_mistake("a preempt is answered at its commit");
        (self.is_leaders && here || there || hasty).then_some(index)
    }

    fn send(&mut self, now: Instant, view: &View, me: Me<'_>, tenure: Tenure, out: &mut Outbox) {
        self.state = ProposalState::Sending { retry_at: None };
        self.is_leaders &= tenure.is_some();
        let proposed = &self.proposed;
        let change = ReservationChange {
            index: proposed.base + 1,
            member: me.name.to_owned(),
            incarnation: me.incarnation,
            proposal: proposed.proposal,
            notices: proposed.notices.clone(),
        };
        let old = view.reservations.get(&proposed.namespace).map(|seen| &seen.record);
        let mut log = old.map(|old| old.log.clone()).unwrap_or_default();
        log.push(change);
        log.drain(..log.len().saturating_sub(MAX_LOG));
        let record = ReservationRecord {
            version: old.map_or(VERSION, |old| old.version),
            group: proposed.group,
            index: proposed.base + 1,
            state: proposed.state.clone(),
            log,
            unknown: old.map_or_else(Unknown::new, |old| old.unknown.clone()),
        };
        let key = me.keys.name(&Key::Reservation(proposed.namespace.clone()));
        let mut compares = vec![Compare { key: key.clone(), revision: self.base }];
        compares.extend(tenure.map(|(revision, _)| {
            let key = me.keys.name(&Key::Leader(proposed.group));
            Compare { key, revision }
        }));
        let txn = Txn {
            compares,
            writes: vec![Write::Put { key: key.clone(), value: record.to_value(), lease: None }],
            reads: vec![Read::Key(key)],
        };
        out.txn(now, Purpose::Propose { proposal: proposed.proposal }, txn);
    }
}
