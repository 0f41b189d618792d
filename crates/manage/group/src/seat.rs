//! The leadership of one ANA group, as one member sees it (the member's *seat*).
//!
//! ```text
//!                committed               effective                 committed
//!   Idle -> Taking ------> Fencing ---------------> Confirming ---------------> Leading
//!    ^        |              | |                        |                        |   |
//!    +--lost--+-----lost-----+-|----------lost----------+        hand over, lost |   |
//!    |                         | fence failed                       open failed  v   |
//!    |                         +----------------> Releasing <--- stopped --- Stopping
//!    |                                                |   (lost: to Idle)        |
//!    +------------------------------------------------+--------------------------+
//! ```
//!
//! A member submits I/O only in state Leading, and only while its permit (the permission to do I/O)
//! lasts. A permit counts from the time *before* the request whose reply showed the member's own
//! record in phase Serving.

use crate::action::{Action, Permit, Report};
use crate::fence::{FenceState, Fencing};
use crate::keys::{Key, KeySpace};
use crate::limits::{AVOID, MAX_PROBLEM, RETRY};
use crate::outbox::{Outbox, Purpose};
use crate::records::{
    FailedRecord, FenceKind, FencedRecord, Holder, LeaderRecord, Phase, Reason, Record,
};
use crate::store::{Compare, Read, Revision, Txn, Write};
use crate::timing::Timing;
use crate::view::Seen;
use crate::words::CANNOT_OPEN;
use farblock_proto::time::Instant;

/// The way in which a leadership ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// The member hands over, to `to` if possible.
    HandOver { to: Option<String>, reason: Reason },
    /// Another member has taken the group.
    Lost,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Idle,
    Taking,
    Fencing(Fencing),
    Confirming { identity: String },
    Leading,
    Stopping(Exit),
    Releasing { to: Option<String>, reason: Reason },
}

/// The properties of this member on which its leaderships depend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Me<'a> {
    pub(crate) name: &'a str,
    pub(crate) incarnation: u64,
    pub(crate) keys: &'a KeySpace,
    pub(crate) timing: &'a Timing,
    pub(crate) wall_ms: u64,
}

impl Me<'_> {
    pub(crate) fn is(&self, holder: &Holder) -> bool {
        holder.member == self.name && holder.incarnation == self.incarnation
    }
}

#[derive(Debug)]
pub(crate) struct Seat {
    group: u32,
    pub(crate) stage: Stage,
    /// The epoch of the leadership.
    pub(crate) epoch: u64,
    /// The revision of the leadership record that this member wrote.
    pub(crate) revision: Revision,
    fences: Vec<FenceKind>,
    /// The time just before the last request that proved the leadership was sent.
    proved: Option<Instant>,
    /// The time until which the member does not take the ANA group again, after it could not fence
    /// the earlier leaders or open the disks.
    avoid_until: Option<Instant>,
    /// The failure behind [`Reason::FenceFailed`].
    problem: Option<String>,
    /// The time at which to repeat a failed request.
    retry_at: Option<Instant>,
}

impl Seat {
    pub(crate) fn new(group: u32) -> Self {
        Self {
            group,
            stage: Stage::Idle,
            epoch: 0,
            revision: 0,
            fences: Vec::new(),
            proved: None,
            avoid_until: None,
            problem: None,
            retry_at: None,
        }
    }

    fn key(&self, me: Me<'_>) -> String {
        me.keys.name(&Key::Leader(self.group))
    }

    /// Whether the member may try to take the ANA group now. `is_ordered`: an operator has chosen
    /// this member after its failure.
    pub(crate) fn may_take(&self, now: Instant, is_ordered: bool) -> bool {
        let is_past = |at: Option<Instant>| at.is_none_or(|at| now >= at);
        let avoids = !is_ordered && !is_past(self.avoid_until);
        self.stage == Stage::Idle && !avoids && is_past(self.retry_at)
    }

    pub(crate) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        let fence = match &self.stage {
            Stage::Fencing(fencing) => fencing.deadline(),
            _ => None,
        };
        let avoid = self.avoid_until.filter(|_| self.stage == Stage::Idle);
        [fence, avoid, self.retry_at].into_iter().flatten()
    }

    /// Sends the transaction that takes the ANA group.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        record: LeaderRecord,
        mut compares: Vec<Compare>,
        me: Me<'_>,
        out: &mut Outbox,
    ) {
        let key = self.key(me);
        if crate::has_mistake("a takeover does not compare") {
            compares.clear();
        }
        self.stage = Stage::Taking;
        self.retry_at = None;
        let group = self.group;
        out.report(Report::Takes { group, epoch: record.epoch, reason: record.reason });
        let writes = vec![Write::Put { key: key.clone(), value: record.to_value(), lease: None }];
        let reads = vec![Read::Key(key)];
        out.txn(now, Purpose::Take { group }, Txn { compares, writes, reads });
    }

    /// Handles the leadership record from a watch or a reply. `stopped_at`: the time at which a
    /// victim has certainly stopped.
    pub(crate) fn observe(
        &mut self,
        now: Instant,
        seen: Option<&Seen<LeaderRecord>>,
        stopped_at: impl Fn(&Holder) -> Instant,
        me: Me<'_>,
        out: &mut Outbox,
    ) {
        let holder = seen.and_then(|seen| seen.record.holder.as_ref().filter(|it| me.is(it)));
        let own = holder.map(|_| seen.expect("a holder comes from a seen record"));
        match (&self.stage, own) {
            (Stage::Idle | Stage::Taking, Some(own)) if own.record.phase == Phase::Fencing => {
                self.taken(now, own, stopped_at, out);
            }
            // The member does no I/O for this ANA group any more, so it must not keep the
            // leadership.
            (Stage::Idle, Some(own)) if own.record.phase == Phase::Serving => {
                self.revision = own.revision;
                self.epoch = own.record.epoch;
                self.release(now, None, Reason::Leave);
            }
            (Stage::Idle | Stage::Taking, _) => {}
            (_, Some(own)) if own.record.epoch == self.epoch => {
                let is_confirmed = own.record.phase == Phase::Serving;
                if matches!(self.stage, Stage::Confirming { .. }) && is_confirmed {
                    self.lead(own.revision, out);
                }
            }
            // Another member has changed or deleted the record.
            (_, _) if seen.map_or(u64::MAX, |seen| seen.revision) > self.revision => {
                self.lose(out);
            }
            (_, _) => {}
        }
    }

    fn taken(
        &mut self,
        now: Instant,
        own: &Seen<LeaderRecord>,
        stopped_at: impl Fn(&Holder) -> Instant,
        out: &mut Outbox,
    ) {
        let record = &own.record;
        let holder = record.holder.as_ref().expect("the member holds the leadership");
        let fencing = Fencing::new(now, &record.victims, &stopped_at);
        (self.epoch, self.revision) = (record.epoch, own.revision);
        (self.fences, self.proved, self.retry_at) = (holder.fences.clone(), None, None);
        self.problem = None;
        let (group, epoch) = (self.group, self.epoch);
        let times = record.victims.iter().map(stopped_at);
        if let Some(until) = times.max().filter(|until| *until > now) {
            out.report(Report::WaitsOut { group, until });
        }
        let victims = record.victims.clone();
        self.stage = Stage::Fencing(fencing);
        if crate::has_mistake("a leader does not fence") {
            self.placed(epoch, None, out);
            return;
        }
        out.push(Action::Fence { group, epoch, victims });
    }

    /// Notes that the fence is placed at the disks.
    pub(crate) fn placed(&mut self, epoch: u64, barrier: Option<u64>, out: &mut Outbox) {
        if let Stage::Fencing(fencing) = &mut self.stage
            && epoch == self.epoch
            && fencing.placed()
        {
            let forgets = crate::has_mistake("a leader does not wait for the barrier");
            let barrier = barrier.filter(|_| !forgets);
            out.push(Action::Enter { group: self.group, epoch, barrier });
        }
    }

    /// Notes that the disks refuse the victims before they execute the driver's operations.
    pub(crate) fn entered(&mut self, epoch: u64, identity: String) {
        if let Stage::Fencing(fencing) = &mut self.stage
            && epoch == self.epoch
        {
            fencing.entered(identity);
        }
    }

    /// Gives up the ANA group after a failed fence.
    pub(crate) fn fence_failed(&mut self, now: Instant, epoch: u64) -> bool {
        let is_it = matches!(self.stage, Stage::Fencing(_)) && epoch == self.epoch;
        if is_it {
            self.avoid(now, "cannot fence the earlier leaders".to_owned());
            // The release keeps the victims that the record lists.
            self.stage = Stage::Releasing { to: None, reason: Reason::FenceFailed };
            self.retry_at = Some(now);
        }
        is_it
    }

    fn avoid(&mut self, now: Instant, problem: String) {
        self.avoid_until = Some(now.saturating_add(AVOID));
        self.problem = Some(problem);
    }

    /// Hands the ANA group over, because the driver cannot open its disks.
    pub(crate) fn open_failed(
        &mut self,
        now: Instant,
        epoch: u64,
        problem: &str,
        out: &mut Outbox,
    ) {
        let keeps = crate::has_mistake("a leader keeps a disk that it cannot open");
        if self.stage != Stage::Leading || epoch != self.epoch || keeps {
            return;
        }
        let problem: String = problem.chars().take(MAX_PROBLEM).collect();
        self.avoid(now, format!("{CANNOT_OPEN}: {problem}"));
        out.report(Report::CannotOpen { group: self.group, problem });
        self.stop(Exit::HandOver { to: None, reason: Reason::FenceFailed }, out);
    }

    /// Sends due requests.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        seen: Option<&Seen<LeaderRecord>>,
        me: Me<'_>,
        out: &mut Outbox,
    ) {
        if let Stage::Fencing(fencing) = &mut self.stage {
            fencing.tick(now);
            if fencing.state() == FenceState::Effective {
                let identity = fencing.identity().to_owned();
                self.stage = Stage::Confirming { identity };
                self.retry_at = Some(now);
            }
        }
        self.avoid_until = self.avoid_until.filter(|at| now < *at);
        if self.retry_at.is_none_or(|at| now < at) {
            return;
        }
        self.retry_at = None;
        match &self.stage {
            Stage::Confirming { identity } => {
                let identity = identity.clone();
                self.confirm(now, seen, identity, me, out);
            }
            Stage::Releasing { to, reason } => {
                let (to, reason) = (to.clone(), *reason);
                self.send_release(now, seen, (to, reason), me, out);
            }
            _ => {}
        }
    }

    fn own_record<'a>(&self, seen: Option<&'a Seen<LeaderRecord>>) -> Option<&'a LeaderRecord> {
        seen.filter(|seen| seen.revision == self.revision).map(|seen| &seen.record)
    }

    fn confirm(
        &mut self,
        now: Instant,
        seen: Option<&Seen<LeaderRecord>>,
        identity: String,
        me: Me<'_>,
        out: &mut Outbox,
    ) {
        let Some(mut record) = self.own_record(seen).cloned() else { return };
        let Some(holder) = record.holder.as_mut() else { return };
        holder.identity = identity;
        record.phase = Phase::Serving;
        if !record.victims.is_empty() {
            let members = record.victims.iter().map(|victim| victim.member.clone()).collect();
            let (by, at_unix_ms) = (me.name.to_owned(), me.wall_ms);
            record.fenced = Some(FencedRecord { members, by, at_unix_ms });
        }
        record.victims.clear();
        record.at_unix_ms = me.wall_ms;
        let mut txn = self.change(&record, me);
        // Read the reservations, because the new leader begins with all changes before this
        // instant.
        txn.reads.push(Read::Prefix(me.keys.reservations()));
        out.txn(now, Purpose::Confirm { group: self.group }, txn);
    }

    fn change(&self, record: &LeaderRecord, me: Me<'_>) -> Txn {
        let key = self.key(me);
        Txn {
            compares: vec![Compare { key: key.clone(), revision: self.revision }],
            writes: vec![Write::Put { key: key.clone(), value: record.to_value(), lease: None }],
            reads: vec![Read::Key(key)],
        }
    }

    fn lead(&mut self, revision: Revision, out: &mut Outbox) {
        self.revision = revision;
        self.stage = Stage::Leading;
        self.retry_at = None;
        let (group, epoch) = (self.group, self.epoch);
        out.push(Action::Begin { group, epoch });
        out.report(Report::Leads { group, epoch });
    }

    fn lose(&mut self, out: &mut Outbox) {
        self.proved = None;
        self.retry_at = None;
        match self.stage {
            Stage::Leading => self.stop(Exit::Lost, out),
            Stage::Stopping(_) => self.stage = Stage::Stopping(Exit::Lost),
            _ => self.stage = Stage::Idle,
        }
    }

    /// Withdraws the permit and stops the I/O.
    pub(crate) fn stop(&mut self, exit: Exit, out: &mut Outbox) {
        let (group, epoch) = (self.group, self.epoch);
        let reason = match &exit {
            Exit::HandOver { reason, .. } => *reason,
            Exit::Lost => Reason::Lost,
        };
        self.proved = None;
        self.stage = Stage::Stopping(exit);
        out.push(Action::Publish { group, permit: None });
        out.push(Action::Stop { group, epoch });
        out.report(Report::Left { group, reason });
    }

    /// Notes that all I/O of an epoch has ended.
    pub(crate) fn stopped(&mut self, now: Instant, epoch: u64) {
        let Stage::Stopping(exit) = &self.stage else { return };
        if epoch != self.epoch {
            return;
        }
        match exit.clone() {
            Exit::HandOver { to, reason } => self.release(now, to, reason),
            Exit::Lost => self.stage = Stage::Idle,
        }
    }

    /// Makes the leadership vacant. The member's I/O has stopped.
    fn release(&mut self, now: Instant, to: Option<String>, reason: Reason) {
        self.stage = Stage::Releasing { to, reason };
        self.retry_at = Some(now);
    }

    fn send_release(
        &mut self,
        now: Instant,
        seen: Option<&Seen<LeaderRecord>>,
        (to, reason): (Option<String>, Reason),
        me: Me<'_>,
        out: &mut Outbox,
    ) {
        let Some(record) = self.own_record(seen) else {
            self.stage = Stage::Idle;
            return;
        };
        let mut failed = record.failed.clone();
        match self.problem.clone().filter(|_| reason == Reason::FenceFailed) {
            Some(problem) => {
                let failure = FailedRecord { epoch: self.epoch, revision: self.revision, problem };
                failed.insert(me.name.to_owned(), failure);
            }
            None => {
                failed.remove(me.name);
            }
        }
        let record = LeaderRecord {
            failed,
            phase: Phase::Vacant,
            holder: None,
            to,
            reason,
            at_unix_ms: me.wall_ms,
            ..record.clone()
        };
        out.txn(now, Purpose::Release { group: self.group }, self.change(&record, me));
    }

    /// Handles the reply to a request about this ANA group, after [`Self::observe`] with the record
    /// in the reply.
    pub(crate) fn replied(&mut self, now: Instant, is_failure: bool) {
        let again = Some(now.saturating_add(RETRY));
        match self.stage {
            Stage::Taking => {
                self.stage = Stage::Idle;
                self.retry_at = again;
            }
            Stage::Confirming { .. } if is_failure => self.retry_at = again,
            Stage::Releasing { .. } if is_failure => self.retry_at = again,
            Stage::Releasing { .. } => self.stage = Stage::Idle,
            _ => {}
        }
    }

    /// Notes that the store had this record after `sent`, which proves the leadership. Returns
    /// whether this prolongs the permit.
    pub(crate) fn prove(&mut self, sent: Instant, seen: Option<&Seen<LeaderRecord>>) -> bool {
        let is_own = seen.is_some_and(|seen| seen.revision == self.revision);
        let is_news = self.stage == Stage::Leading && is_own && self.proved < Some(sent);
        if is_news {
            self.proved = Some(sent);
        }
        is_news
    }

    /// Whether this member leads, and the disks would refuse all its I/O after a takeover.
    pub(crate) fn may_hold_over(&self) -> bool {
        let any = crate::has_mistake("every leader holds over");
        self.stage == Stage::Leading && (any || self.fences.iter().all(|it| it.is_complete()))
    }

    /// The current permit. `no_quorum`: the time just before the last request to which the store
    /// answered that it has no quorum.
    pub(crate) fn permit(&self, no_quorum: Option<Instant>, timing: &Timing) -> Option<Permit> {
        let proved = self.proved.filter(|_| self.stage == Stage::Leading)?;
        let over = no_quorum.filter(|_| self.may_hold_over());
        let until = timing.permitted_until(over.map_or(proved, |over| over.max(proved)));
        Some(Permit { epoch: self.epoch, until })
    }
}
