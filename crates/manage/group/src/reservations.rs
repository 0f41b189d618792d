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
//! A member first *consults* the store before it executes a host's command: it reads the record,
//! and waits until the last change is in force. So the changes of a namespace come into force one
//! after the other, and a report never shows a change that some member does not enforce.
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
//! change also compared its leadership. The leader also stores an acknowledgement for the other
//! members, in a transaction that compares its leadership.

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
    /// Whether the transaction of each attempt compared this member's leadership.
    is_leaders: bool,
    state: ProposalState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum QuestionState {
    Sending { retry_at: Option<Instant> },
    Read { index: u64 },
}

/// A question to the store: the last reservation change of a namespace.
#[derive(Debug)]
struct Question {
    namespace: String,
    group: u32,
    /// Whether the request compares, and the reply confirms, this member's leadership.
    is_leaders: bool,
    state: QuestionState,
}

/// The proposals of a member, and the changes in force on its cores.
#[derive(Default, Debug)]
pub(crate) struct Book {
    proposals: BTreeMap<u64, Proposal>,
    questions: BTreeMap<u64, Question>,
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
        let questions = self.questions.values().filter_map(|question| match question.state {
            QuestionState::Sending { retry_at } => retry_at,
            QuestionState::Read { .. } => None,
        });
        retries.chain(questions).chain(self.acks.values().filter_map(|at| *at))
    }

    /// Queues a question. [`Self::tick`] sends it.
    pub(crate) fn consult(&mut self, now: Instant, number: u64, namespace: String, group: u32) {
        let state = QuestionState::Sending { retry_at: Some(now) };
        let question = Question { namespace, group, is_leaders: false, state };
        self.questions.insert(number, question);
    }

    /// Handles the reply to a question. `view` contains what the transaction read.
    pub(crate) fn consulted(
        &mut self,
        number: u64,
        succeeded: bool,
        view: &View,
        out: &mut Outbox,
    ) {
        let Some(question) = self.questions.get_mut(&number) else { return };
        if view.unreadable.contains(&Key::Reservation(question.namespace.clone())) {
            out.push(Action::Answer { proposal: number, outcome: Outcome::Unreadable });
            self.questions.remove(&number);
            return;
        }
        let index = view.reservations.get(&question.namespace).map_or(0, |seen| seen.record.index);
        question.is_leaders &= succeeded;
        question.state = QuestionState::Read { index };
    }

    /// Repeats a question after a failure.
    pub(crate) fn consult_failed(&mut self, now: Instant, number: u64) {
        if let Some(question) = self.questions.get_mut(&number) {
            let retry_at = Some(now.saturating_add(RETRY));
            question.state = QuestionState::Sending { retry_at };
        }
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
            out.push(Action::Answer { proposal: proposed.proposal, outcome: Outcome::Conflict });
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

    /// Handles the reply to a change. `view` contains what the transaction read.
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
            // The reservations have not changed, only the leadership: send the change again.
            proposal.state = ProposalState::Sending { retry_at: Some(now) };
        } else {
            out.push(Action::Answer { proposal: number, outcome: Outcome::Conflict });
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
        for (number, question) in &mut self.questions {
            if let QuestionState::Sending { retry_at: Some(at) } = question.state
                && now >= at
            {
                question.send(now, *number, me, tenure(question.group), out);
                if crate::has_mistake("a report reads the member's own copy") {
                    let seen = view.reservations.get(&question.namespace);
                    let index = seen.map_or(0, |seen| seen.record.index);
                    question.state = QuestionState::Read { index };
                }
            }
        }
        self.questions.retain(|number, question| match question.in_force(view, applied) {
            Some(index) => {
                let outcome = Outcome::Current { index };
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
        if self.acks.contains_key(namespace) || index <= last {
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

impl Question {
    /// The index of the last change, if it was read and is in force.
    fn in_force(&self, view: &View, applied: &BTreeMap<String, u64>) -> Option<u64> {
        let QuestionState::Read { index } = self.state else { return None };
        let here = applied.get(&self.namespace).is_some_and(|applied| *applied >= index);
        let there = view.acks.get(&self.namespace).is_some_and(|seen| seen.record.index >= index);
        let hasty = crate::has_mistake("a report shows a change that is not in force");
        (index == 0 || self.is_leaders && here || there || hasty).then_some(index)
    }

    fn send(&mut self, now: Instant, number: u64, me: Me<'_>, tenure: Tenure, out: &mut Outbox) {
        self.state = QuestionState::Sending { retry_at: None };
        self.is_leaders = tenure.is_some();
        let leader = me.keys.name(&Key::Leader(self.group));
        let compare = tenure.map(|(revision, _)| Compare { key: leader, revision });
        let keys = [Key::Reservation(self.namespace.clone()), Key::Ack(self.namespace.clone())];
        let txn = Txn {
            compares: compare.into_iter().collect(),
            writes: Vec::new(),
            reads: keys.map(|key| Read::Key(me.keys.name(&key))).to_vec(),
        };
        out.txn(now, Purpose::Consult { proposal: number }, txn);
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
            aborted: proposed.aborted.clone(),
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
