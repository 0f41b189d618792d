//! One member of a group: it connects the session with the store, the leaderships (one seat for
//! each ANA group) and the reservations.

use crate::action::{Action, MemberEvent, Permit, Report};
use crate::claim::{claim, hand_over, is_ordered};
use crate::keys::{Key, KeySpace};
use crate::limits::RETRY;
use crate::outbox::{Outbox, Pending, Purpose};
use crate::records::{Holder, Reason};
use crate::reservations::{Book, Tenure};
use crate::seat::{Exit, Me, Seat, Stage};
use crate::session::{MemberConfig, Session, SessionState};
use crate::settle::Settling;
use crate::store::{
    LeaseId, Read, StoreEvent, StoreReply, StoreRequest, StoreTrouble, TxnReply, WatchEvent,
};
use crate::suspicion;
use crate::timing::Timing;
use crate::view::View;
use farblock_proto::time::Instant;
use std::collections::BTreeMap;

/// The state of the store that makes a takeover possible, and the time since which it exists.
type Wait = ((u64, u64), Instant);

/// One member of a group.
///
/// The driver passes each input to [`Self::handle`], calls [`Self::tick`] at [`Self::deadline`],
/// and carries out every [`Action`] in order. `now` is a monotonic clock that also counts the time
/// while the machine is suspended (`CLOCK_BOOTTIME`).
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    keys: KeySpace,
    view: View,
    session: Session,
    seats: BTreeMap<u32, Seat>,
    waits: BTreeMap<u32, Wait>,
    book: Book,
    settling: Settling,
    out: Outbox,
    wall_ms: u64,
    is_leaving: bool,
    /// The time at which to decide again about a takeover or a hand-over.
    next: Option<Instant>,
}

impl Member {
    /// Creates a member that will join the group.
    ///
    /// # Panics
    /// If the name of the group or of the member is invalid; see [`is_name`](crate::is_name).
    #[must_use]
    pub fn new(config: MemberConfig, now: Instant) -> Self {
        assert!(crate::is_name(&config.name), "{} is not a name", config.name);
        Self {
            keys: KeySpace::new(&config.group),
            view: View::default(),
            session: Session::new(now),
            seats: BTreeMap::new(),
            waits: BTreeMap::new(),
            book: Book::default(),
            settling: Settling::default(),
            out: Outbox::default(),
            wall_ms: 0,
            is_leaving: false,
            next: Some(now),
            config,
        }
    }

    /// Sets the wall-clock time in milliseconds since 1970. Records carry it for people. No
    /// decision depends on it.
    pub fn set_wall_ms(&mut self, wall_ms: u64) {
        self.wall_ms = wall_ms;
    }

    /// Returns the settings of the member.
    #[must_use]
    pub fn config(&self) -> &MemberConfig {
        &self.config
    }

    /// The group's records, as far as this member has seen them.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The number of this process; `None` before it has joined for the first time.
    #[must_use]
    pub fn incarnation(&self) -> Option<u64> {
        self.session.incarnation
    }

    /// Whether the member has a lease.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.session.is_joined()
    }

    /// The lease of this member; `None`: it has not joined, or has lost its lease.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        match self.session.state {
            SessionState::Joined { lease } => Some(lease),
            _ => None,
        }
    }

    /// The current permit for an ANA group.
    #[must_use]
    pub fn permit(&self, group: u32) -> Option<Permit> {
        self.seats.get(&group)?.permit(self.session.no_quorum, &self.config.timing)
    }

    /// Returns the next order to the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.pop()
    }

    /// The time at which to call [`Self::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let seats = self.seats.values().flat_map(Seat::deadlines);
        let own = [self.session.deadline(), self.next].into_iter().flatten();
        own.chain(seats).chain(self.book.deadlines()).min()
    }

    /// Handles an input.
    pub fn handle(&mut self, now: Instant, event: MemberEvent) {
        match event {
            MemberEvent::Store(StoreEvent::Reply(ticket, reply)) => {
                if let Some(pending) = self.out.take(ticket) {
                    self.reply(now, &pending, reply);
                }
            }
            MemberEvent::Store(StoreEvent::Watch(event)) => self.watched(now, event),
            MemberEvent::FencePlaced { group, epoch, barrier } => {
                if let Some(seat) = self.seats.get_mut(&group) {
                    seat.placed(epoch, barrier, &mut self.out);
                }
            }
            MemberEvent::Entered { group, epoch, identity } => {
                if let Some(seat) = self.seats.get_mut(&group) {
                    seat.entered(epoch, identity);
                }
            }
            MemberEvent::FenceFailed { group, epoch } => {
                if let Some(seat) = self.seats.get_mut(&group) {
                    seat.fence_failed(now, epoch);
                }
            }
            MemberEvent::OpenFailed { group, epoch, problem } => {
                if let Some(seat) = self.seats.get_mut(&group) {
                    seat.open_failed(now, epoch, &problem, &mut self.out);
                }
            }
            MemberEvent::Stopped { group, epoch } => {
                if let Some(seat) = self.seats.get_mut(&group) {
                    seat.stopped(now, epoch);
                }
            }
            MemberEvent::Applied { namespace, index } => self.book.applied(namespace, index),
            MemberEvent::Propose(proposed) => {
                let tenure = self.tenure(proposed.group);
                let Some(me) = me(&self.config, &self.keys, &self.session, self.wall_ms) else {
                    let outcome = crate::Outcome::Conflict;
                    self.out.push(Action::Answer { proposal: proposed.proposal, outcome });
                    return;
                };
                self.book.propose(now, proposed, (&self.view, me, tenure), &mut self.out);
            }
            MemberEvent::Consult { proposal, namespace, group } => {
                self.book.consult(now, proposal, namespace, group);
            }
            MemberEvent::Leave => self.is_leaving = true,
        }
        self.tick(now);
    }

    /// Does the work that is due: requests, takeovers and hand-overs.
    pub fn tick(&mut self, now: Instant) {
        self.next = None;
        let all = (&self.keys, &self.view);
        self.session.tick(now, &self.config, all, &mut self.out);
        if self.session.state == SessionState::Superseded {
            self.stop_all(now, true);
        }
        let Some(incarnation) = self.session.incarnation else { return };
        self.view.rank();
        self.settling.observe(now, &self.view, self.config.timing.settle);
        let groups: Vec<u32> =
            self.view.groups.keys().chain(self.view.leaders.keys()).copied().collect();
        for group in groups {
            self.seats.entry(group).or_insert_with(|| Seat::new(group));
            if !self.is_leaving && !self.session.is_over() {
                self.observe(now, group);
                self.consider(now, group, incarnation);
            }
        }
        if self.is_leaving {
            self.stop_all(now, false);
            self.leave(now);
        }
        let Some(me) = me(&self.config, &self.keys, &self.session, self.wall_ms) else { return };
        for (group, seat) in &mut self.seats {
            seat.tick(now, self.view.leaders.get(group), me, &mut self.out);
        }
        let seats = &self.seats;
        let tenure = |group| tenure_of(seats, group);
        self.book.tick(now, (&self.view, me), tenure, &mut self.out);
    }

    fn tenure(&self, group: u32) -> Tenure {
        tenure_of(&self.seats, group)
    }

    fn wake_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Takes an ANA group or hands it over, if it is time.
    fn consider(&mut self, now: Instant, group: u32, incarnation: u64) {
        let (config, keys) = (&self.config, &self.keys);
        let (name, timing) = (config.name.as_str(), &config.timing);
        let me = Me { name, incarnation, keys, timing, wall_ms: self.wall_ms };
        let is_steady = self.session.is_steady(now, timing);
        let moving = self.seats.values().any(|seat| matches!(seat.stage, Stage::Stopping(_)));
        let seat = self.seats.get_mut(&group).expect("every group has a seat");
        if seat.stage == Stage::Leading {
            // During an outage of the store a hand-over would stop the I/O until the store returns.
            if !self.session.is_in_contact(now, timing) || !self.view.is_alive(name, incarnation) {
                return;
            }
            let mut at = None;
            let exit = hand_over(now, group, (&self.view, &self.settling), me, &mut at);
            // Urgent moves happen at once, all other moves one after the other.
            let waits =
                matches!(exit, Some(Exit::HandOver { reason: Reason::Balance, .. })) && moving;
            if let Some(exit) = exit.filter(|_| !waits) {
                seat.stop(exit, &mut self.out);
                if crate::has_mistake("a hand-over does not wait for the operations in flight") {
                    seat.stopped(now, seat.epoch);
                }
            } else if let Some(at) = at {
                self.wake_at(at);
            }
            return;
        }
        let is_ordered = is_ordered(group, &self.view, name);
        if !seat.may_take(now, is_ordered) || !self.session.is_joined() {
            self.waits.remove(&group);
            return;
        }
        let Some(claim) = claim(group, &self.view, me, is_steady) else {
            self.waits.remove(&group);
            return;
        };
        let fresh = (claim.basis, now);
        let wait = self.waits.entry(group).or_insert(fresh);
        if wait.0 != claim.basis {
            *wait = fresh;
        }
        let at = wait.1.saturating_add(claim.wait);
        if now < at {
            self.wake_at(at);
            return;
        }
        self.waits.remove(&group);
        if let Some(missed) = &claim.missed {
            self.settling.failed(now, missed);
        }
        seat.take(now, claim.record, claim.compares, me, &mut self.out);
    }

    /// Stops all I/O. `is_lost`: without handing over.
    fn stop_all(&mut self, now: Instant, is_lost: bool) {
        for seat in self.seats.values_mut().filter(|seat| seat.stage == Stage::Leading) {
            let hand_over = Exit::HandOver { to: None, reason: Reason::Leave };
            seat.stop(if is_lost { Exit::Lost } else { hand_over }, &mut self.out);
        }
        let _ = now;
    }

    /// Ends the lease when the member leads no ANA group any more.
    fn leave(&mut self, now: Instant) {
        let is_idle = |seat: &Seat| matches!(seat.stage, Stage::Idle | Stage::Fencing(_));
        if let SessionState::Joined { lease } = self.session.state
            && self.seats.values().all(is_idle)
        {
            self.out.send(now, Purpose::Nothing, StoreRequest::Revoke(lease));
            self.session.state = SessionState::Left;
        }
    }

    /// Passes the leadership record of an ANA group to its seat.
    fn observe(&mut self, now: Instant, group: u32) {
        let Some(me) = me(&self.config, &self.keys, &self.session, self.wall_ms) else { return };
        let view = &self.view;
        let seat = self.seats.entry(group).or_insert_with(|| Seat::new(group));
        let suspicions = &self.session.suspicions;
        let stopped_at = |victim: &Holder| {
            let is_ended = view.has_ended(&victim.member, victim.incarnation);
            Timing::stopped_at(now, victim, is_ended, suspicions.since(victim))
        };
        seat.observe(now, view.leaders.get(&group), stopped_at, me, &mut self.out);
    }

    /// Reacts to changed records. The reservations come first, because a leader must know all
    /// reservations that changed before it took over.
    fn news(&mut self, now: Instant, news: Vec<Key>) {
        let is_reservation = |key: &Key| matches!(key, Key::Reservation(_));
        let (reservations, others): (Vec<_>, Vec<_>) = news.into_iter().partition(is_reservation);
        for key in reservations.into_iter().chain(others) {
            if self.view.unreadable.contains(&key) {
                self.out.report(Report::Unreadable(key.clone()));
            }
            match key {
                Key::Reservation(namespace) => {
                    if let Some(seen) = self.view.reservations.get(&namespace) {
                        let record = Box::new(seen.record.clone());
                        self.out.push(Action::Apply { namespace, record });
                    }
                }
                Key::Leader(group) => self.observe(now, group),
                _ => {}
            }
        }
    }

    fn watched(&mut self, now: Instant, event: WatchEvent) {
        match event {
            WatchEvent::Changed(changes) => {
                let changes = changes.iter();
                let news = changes.filter_map(|change| self.view.change(&self.keys, change));
                let news = news.collect();
                self.news(now, news);
            }
            WatchEvent::Compacted => self.session.resync_at = Some(now),
            WatchEvent::Lost => self.session.resync_at = Some(now.saturating_add(RETRY)),
        }
    }

    fn absorb(&mut self, now: Instant, reads: &[Read], reply: &TxnReply) {
        let news = self.view.absorb(&self.keys, reads, &reply.entries, reply.revision);
        self.news(now, news);
    }

    fn reply(&mut self, now: Instant, pending: &Pending, reply: StoreReply) {
        if let StoreReply::Done(done) = &reply {
            self.absorb(now, &pending.reads, done);
        }
        let is_failure = matches!(reply, StoreReply::Failed(_));
        match (&pending.purpose, reply) {
            (Purpose::Grant, StoreReply::Granted(lease)) => {
                self.session.granted(now, lease, &self.keys, &mut self.out);
            }
            (Purpose::Grant, _) => self.session.failed(now),
            (Purpose::Snapshot { lease }, StoreReply::Done(done)) => {
                let (prefix, from) = (self.keys.prefix().to_owned(), done.revision + 1);
                self.out.send(now, Purpose::Nothing, StoreRequest::Watch { prefix, from });
                if let Some(lease) = *lease {
                    self.session.read_at = done.revision;
                    let all = (&self.config, &self.keys, &self.view);
                    self.session.read(now, lease, all, &mut self.out);
                }
            }
            (Purpose::Snapshot { lease: Some(_) }, _) => self.session.failed(now),
            (Purpose::Snapshot { lease: None }, _) => {
                self.session.resync_at = Some(now.saturating_add(RETRY));
            }
            (Purpose::Register { lease }, StoreReply::Done(done)) => {
                let all = (&self.config, &self.view);
                self.session.registered(now, *lease, done.succeeded, all, &mut self.out);
            }
            (Purpose::Register { .. }, _) => self.session.failed(now),
            (Purpose::Proof, StoreReply::Done(_)) => self.proved(now, pending.sent),
            (Purpose::Proof, StoreReply::Failed(StoreTrouble::NoQuorum)) => {
                self.no_quorum(pending.sent);
            }
            (Purpose::Renew, StoreReply::Renewed(true)) => {
                if crate::has_mistake("a renewed lease permits I/O") {
                    self.publish(Some(pending.sent), |_| true);
                }
            }
            (Purpose::Take { group } | Purpose::Release { group }, _) => {
                self.seat_replied(now, *group, None, is_failure);
            }
            (Purpose::Confirm { group }, _) => {
                let sent = (!is_failure).then_some(pending.sent);
                self.seat_replied(now, *group, sent, is_failure);
            }
            (Purpose::Propose { proposal }, _) => {
                if let Some(me) = me(&self.config, &self.keys, &self.session, self.wall_ms) {
                    let all = (&self.view, me);
                    self.book.replied(now, *proposal, is_failure, all, &mut self.out);
                }
            }
            (Purpose::Consult { proposal }, StoreReply::Done(done)) => {
                let succeeded = done.succeeded;
                self.book.consulted(*proposal, succeeded, &self.view, &mut self.out);
            }
            (Purpose::Consult { proposal }, _) => self.book.consult_failed(now, *proposal),
            (Purpose::Ack { namespace }, _) => self.book.acknowledged(now, namespace, is_failure),
            (Purpose::Refute, _) => self.session.refuted(now, is_failure),
            (Purpose::TimeLeft { member, incarnation }, StoreReply::TimeLeft { granted, left }) => {
                let (its, time) = ((member.as_str(), *incarnation), (granted, left));
                let all = (self.config.name.as_str(), &self.keys, &self.view);
                suspicion::suspect(now, its, time, all, &mut self.out);
            }
            (Purpose::Proof | Purpose::Renew | Purpose::TimeLeft { .. } | Purpose::Nothing, _) => {}
        }
    }

    fn seat_replied(&mut self, now: Instant, group: u32, sent: Option<Instant>, is_failure: bool) {
        if !is_failure {
            self.observe(now, group);
        }
        if let Some(seat) = self.seats.get_mut(&group) {
            seat.replied(now, is_failure);
        }
        if let Some(sent) = sent {
            self.publish(Some(sent), |other| other == group);
        }
    }

    fn proved(&mut self, now: Instant, sent: Instant) {
        let key = Key::Suspect(self.config.name.clone());
        let is_suspect = self.view.revision(&key) != 0 || self.view.unreadable.contains(&key);
        if !is_suspect || crate::has_mistake("the proof of a suspect permits I/O") {
            self.publish(Some(sent), |_| true);
        }
        self.session.proved(now, (&self.config, &self.view), &mut self.out);
    }

    /// Extends the permits for disks with complete hard fences.
    fn no_quorum(&mut self, sent: Instant) {
        if self.session.no_quorum.is_none_or(|last| last < sent) {
            self.session.no_quorum = Some(sent);
            self.publish(None, |_| true);
            let leading =
                self.seats.keys().filter_map(|group| Some((*group, self.permit(*group)?)));
            let reports: Vec<_> = leading
                .map(|(group, permit)| Report::HoldsOver { group, until: permit.until })
                .collect();
            reports.into_iter().for_each(|report| self.out.report(report));
        }
    }

    /// Publishes the permits of some groups. `sent`: the time of the request that proves the
    /// leadership; `None`: the store reports that it has no quorum.
    fn publish(&mut self, sent: Option<Instant>, includes: impl Fn(u32) -> bool) {
        let (no_quorum, timing) = (self.session.no_quorum, &self.config.timing);
        for (group, seat) in &mut self.seats {
            if !includes(*group) {
                continue;
            }
            let seen = self.view.leaders.get(group);
            let is_news = sent.is_some_and(|sent| seat.prove(sent, seen));
            if (is_news || sent.is_none())
                && let Some(permit) = seat.permit(no_quorum, timing)
            {
                self.out.push(Action::Publish { group: *group, permit: Some(permit) });
            }
        }
    }
}

fn me<'a>(
    config: &'a MemberConfig,
    keys: &'a KeySpace,
    session: &Session,
    wall_ms: u64,
) -> Option<Me<'a>> {
    let incarnation = session.incarnation?;
    Some(Me { name: &config.name, incarnation, keys, timing: &config.timing, wall_ms })
}

fn tenure_of(seats: &BTreeMap<u32, Seat>, group: u32) -> Tenure {
    let seat = seats.get(&group).filter(|seat| seat.stage == Stage::Leading)?;
    Some((seat.revision, seat.epoch))
}
