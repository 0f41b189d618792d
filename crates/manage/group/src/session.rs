//! The session of a member with the store: its lease, its name and its proofs.
//!
//! ```text
//!            granted            read                registered
//!   Apart ------------> Reading -----> Registering ------------> Joined
//!     ^  <--- failed ------+   <- failed --+                        |
//!     +------------------ alive key gone ---------------------------+
//!
//!   every state -- a later process has the name --> Superseded (final)
//! ```
//!
//! A *proof* is a transaction that reads the leadership records. Every [`Timing::beat`] the member
//! sends one and renews the lease. Proofs continue while the member is Apart: they, and not the
//! lease, permit I/O.

use crate::action::Report;
use crate::keys::{Key, KeySpace};
use crate::limits::{CONTROLLER_RANGES, MAX_PROOFS, RETRY};
use crate::outbox::{Outbox, Purpose};
use crate::records::{AliveRecord, MemberRecord, RangeRecord, Record, VERSION};
use crate::store::{Compare, LeaseId, Read, Revision, StoreRequest, Txn, Write};
use crate::suspicion::{self, Suspicions};
use crate::timing::Timing;
use crate::view::View;
use farblock_proto::time::Instant;

/// The settings of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberConfig {
    /// The name of the group.
    pub group: String,
    /// The name of the member: the same after each restart.
    pub name: String,
    /// A random number of this process.
    pub process: u64,
    /// The addresses at which hosts and other members reach this member.
    pub addresses: Vec<String>,
    /// The weight: a member with twice the weight leads twice as many ANA groups.
    pub weight: u32,
    /// The version of the program.
    pub program: String,
    /// The random numbers of earlier processes that have certainly ended: they held the lock of a
    /// state folder on this machine, and this process holds it now.
    pub predecessors: Vec<u64>,
    /// The time limits and intervals.
    pub timing: Timing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionState {
    Apart { retry_at: Instant },
    Granting,
    Reading,
    Registering,
    Joined { lease: LeaseId },
    Superseded,
    Left,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) state: SessionState,
    /// The number of this process, which grows with each start; `None` before the first join.
    pub(crate) incarnation: Option<u64>,
    next_beat: Instant,
    /// The time of the first proof in the current series. Each proof of a series succeeded at most
    /// half a hold after the one before.
    steady_since: Option<Instant>,
    last_proof: Option<Instant>,
    /// The time of the last registration or successful proof.
    answered: Instant,
    /// The time at which to read all records again, after the etcd watch has ended.
    pub(crate) resync_at: Option<Instant>,
    /// The time before the last request to which the store answered that it has no quorum.
    pub(crate) no_quorum: Option<Instant>,
    pub(crate) suspicions: Suspicions,
    /// The time at which to refute a suspicion again.
    refute_at: Option<Instant>,
    /// The store's revision when the member read all records. A member without a record numbers its
    /// incarnations from this revision, so that they differ from those before an operator removed
    /// it.
    pub(crate) read_at: Revision,
}

impl Session {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            state: SessionState::Apart { retry_at: now },
            incarnation: None,
            next_beat: now,
            steady_since: None,
            last_proof: None,
            answered: now,
            resync_at: None,
            no_quorum: None,
            suspicions: Suspicions::default(),
            refute_at: None,
            read_at: 0,
        }
    }

    pub(crate) fn is_joined(&self) -> bool {
        matches!(self.state, SessionState::Joined { .. })
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, SessionState::Superseded | SessionState::Left)
    }

    /// Whether the member has been in contact with the store for a whole hold. A member that just
    /// started, or whose store was just unavailable, leaves the other members time to join again.
    pub(crate) fn is_steady(&self, now: Instant, timing: &Timing) -> bool {
        let since = self.steady_since.filter(|_| self.is_joined());
        since.is_some_and(|since| now.saturating_duration_since(since) >= timing.hold)
    }

    /// Whether the store answered lately, so that a change in it will probably succeed.
    pub(crate) fn is_in_contact(&self, now: Instant, timing: &Timing) -> bool {
        let is_close = |last| now.saturating_duration_since(last) <= timing.hold / 2;
        self.is_joined() && self.last_proof.is_some_and(is_close)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let beat = self.incarnation.map(|_| self.next_beat);
        let beat = [beat, self.resync_at, self.refute_at].into_iter().flatten().min();
        match self.state {
            SessionState::Superseded | SessionState::Left => None,
            SessionState::Apart { retry_at } => Some(beat.map_or(retry_at, |at| at.min(retry_at))),
            _ => beat,
        }
    }

    pub(crate) fn tick(
        &mut self,
        now: Instant,
        config: &MemberConfig,
        (keys, view): (&KeySpace, &View),
        out: &mut Outbox,
    ) {
        self.suspicions.observe(now, view);
        if self.is_over() {
            return;
        }
        if let SessionState::Apart { retry_at } = self.state
            && now >= retry_at
        {
            self.state = SessionState::Granting;
            out.send(now, Purpose::Grant, StoreRequest::Grant { ttl: config.timing.lease });
        }
        if self.resync_at.is_some_and(|at| now >= at) {
            self.resync_at = None;
            snapshot(now, None, keys, out);
        }
        self.refute(now, config, (keys, view), out);
        if self.incarnation.is_some() && now >= self.next_beat {
            self.next_beat = now.saturating_add(config.timing.beat());
            self.prove(now, config, keys, out);
            // Stop renewing the lease if no answers arrive: this member cannot lead its groups, and
            // other members must take them.
            let hears = now.saturating_duration_since(self.answered) <= config.timing.hold
                || crate::has_mistake("a renewed lease permits I/O");
            if let SessionState::Joined { lease } = self.state
                && hears
            {
                out.forget_oldest(&Purpose::Renew);
                out.send(now, Purpose::Renew, StoreRequest::Renew(lease));
                suspicion::ask(now, &config.name, view, out);
            }
        }
    }

    fn prove(&self, now: Instant, config: &MemberConfig, keys: &KeySpace, out: &mut Outbox) {
        if out.count(&Purpose::Proof) >= MAX_PROOFS {
            out.forget_oldest(&Purpose::Proof);
        }
        let name = || config.name.clone();
        let own = [Key::Alive(name()), Key::Member(name()), Key::Suspect(name())];
        let mut reads = own.map(|key| Read::Key(keys.name(&key))).to_vec();
        reads.push(Read::Prefix(keys.leaders()));
        out.txn(now, Purpose::Proof, Txn { reads, ..Txn::default() });
    }

    /// Refutes the suspicion that this member is dead.
    fn refute(
        &mut self,
        now: Instant,
        config: &MemberConfig,
        (keys, view): (&KeySpace, &View),
        out: &mut Outbox,
    ) {
        let is_suspect = view.suspects.contains_key(&config.name);
        let is_due = self.refute_at.is_none_or(|at| now >= at);
        if !is_suspect || is_due {
            self.refute_at = None;
        }
        let is_member = self.incarnation.is_some();
        if is_suspect && is_due && is_member && out.count(&Purpose::Refute) == 0 {
            let txn = suspicion::refutation(&config.name, keys, view);
            out.txn(now, Purpose::Refute, txn);
        }
    }

    /// Handles the reply to a refutation.
    pub(crate) fn refuted(&mut self, now: Instant, is_failure: bool) {
        if is_failure {
            self.refute_at = Some(now.saturating_add(RETRY));
        } else {
            // Send the next proof at once: only it permits I/O again.
            self.next_beat = now;
        }
    }

    pub(crate) fn failed(&mut self, now: Instant) {
        if !self.is_over() {
            self.state = SessionState::Apart { retry_at: now.saturating_add(RETRY) };
        }
    }

    pub(crate) fn granted(
        &mut self,
        now: Instant,
        lease: LeaseId,
        keys: &KeySpace,
        out: &mut Outbox,
    ) {
        if self.state == SessionState::Granting {
            self.state = SessionState::Reading;
            snapshot(now, Some(lease), keys, out);
        }
    }

    /// Handles the reply with all records: writes the member's records, if no other process has the
    /// name.
    pub(crate) fn read(
        &mut self,
        now: Instant,
        lease: LeaseId,
        (config, keys, view): (&MemberConfig, &KeySpace, &View),
        out: &mut Outbox,
    ) {
        if self.state != SessionState::Reading {
            return;
        }
        let own = view.members.get(&config.name).map(|seen| &seen.record);
        let is_own = own.is_some_and(|own| own.process == config.process);
        if self.incarnation.is_some() && !is_own {
            self.supersede(out);
            return;
        }
        // Another process with this name may be alive. Wait for the end of its lease.
        let is_taken = view.alive.contains_key(&config.name) && !is_own;
        let number = free_range(view, &config.name);
        let has_ended = own.is_some_and(|own| config.predecessors.contains(&own.process));
        if is_taken && !has_ended || number.is_none() {
            if number.is_none() {
                out.report(Report::NoRange);
            }
            out.send(now, Purpose::Nothing, StoreRequest::Revoke(lease));
            self.state = SessionState::Apart { retry_at: now.saturating_add(config.timing.beat()) };
            return;
        }
        let range = number.unwrap_or_default();
        let owns = (own.filter(|_| is_own), own, self.read_at);
        let record = own_record(config, owns, range);
        self.state = SessionState::Registering;
        out.txn(now, Purpose::Register { lease }, registration(lease, &record, config, keys, view));
    }

    /// Handles the reply to a registration. `view` contains what the transaction read.
    pub(crate) fn registered(
        &mut self,
        now: Instant,
        lease: LeaseId,
        succeeded: bool,
        (config, view): (&MemberConfig, &View),
        out: &mut Outbox,
    ) {
        if self.state != SessionState::Registering {
            return;
        }
        let own = view.members.get(&config.name).map(|seen| &seen.record);
        match own.filter(|own| succeeded && own.process == config.process) {
            Some(own) => {
                self.state = SessionState::Joined { lease };
                self.incarnation = Some(own.incarnation);
                self.next_beat = now;
                self.answered = now;
                out.report(Report::Joined { incarnation: own.incarnation });
            }
            None => self.failed(now),
        }
    }

    /// Handles a successful proof. `view` contains what it read.
    pub(crate) fn proved(
        &mut self,
        now: Instant,
        (config, view): (&MemberConfig, &View),
        out: &mut Outbox,
    ) {
        let is_close = |last| now.saturating_duration_since(last) <= config.timing.hold / 2;
        if !self.last_proof.is_some_and(is_close) {
            self.steady_since = Some(now);
        }
        self.last_proof = Some(now);
        self.answered = now;
        let own = view.members.get(&config.name);
        if own.is_none_or(|seen| seen.record.process != config.process) {
            self.supersede(out);
        } else if self.is_joined() && !view.alive.contains_key(&config.name) {
            out.report(Report::LeaseLost);
            self.steady_since = None;
            self.last_proof = None;
            self.state = SessionState::Apart { retry_at: now };
        }
    }

    fn supersede(&mut self, out: &mut Outbox) {
        if self.state != SessionState::Superseded {
            self.state = SessionState::Superseded;
            out.report(Report::Superseded);
        }
    }
}

/// Reads all records of the group.
pub(crate) fn snapshot(now: Instant, lease: Option<LeaseId>, keys: &KeySpace, out: &mut Outbox) {
    let reads = vec![Read::Prefix(keys.prefix().to_owned())];
    out.txn(now, Purpose::Snapshot { lease }, Txn { reads, ..Txn::default() });
}

fn free_range(view: &View, name: &str) -> Option<u16> {
    let its = view.ranges.iter().find(|(_, seen)| seen.record.member == name);
    let is_free = |number: &u16| {
        !view.ranges.contains_key(number) && !view.unreadable.contains(&Key::Range(*number))
    };
    its.map(|(number, _)| *number).or_else(|| (0..CONTROLLER_RANGES).find(is_free))
}

fn own_record(
    config: &MemberConfig,
    (own, before, read_at): (Option<&MemberRecord>, Option<&MemberRecord>, Revision),
    range: u16,
) -> MemberRecord {
    let last = before.map_or(read_at, |before| before.incarnation);
    let has_ended = before.is_some_and(|before| config.predecessors.contains(&before.process));
    let confirms = has_ended && own.is_none();
    let confirmed = before.filter(|_| confirms).map(MemberRecord::confirmed);
    let known = confirmed.as_ref().or(before);
    MemberRecord {
        version: VERSION,
        incarnation: own.map_or(last + 1, |own| own.incarnation),
        process: config.process,
        ended: known.map_or(0, |known| known.ended),
        ended_from: known.map_or(0, |known| known.ended_from),
        addresses: config.addresses.clone(),
        weight: config.weight,
        program: config.program.clone(),
        range,
        unknown: before.map(|before| before.unknown.clone()).unwrap_or_default(),
    }
}

fn registration(
    lease: LeaseId,
    record: &MemberRecord,
    config: &MemberConfig,
    keys: &KeySpace,
    view: &View,
) -> Txn {
    let (member, alive) = (Key::Member(config.name.clone()), Key::Alive(config.name.clone()));
    let range = Key::Range(record.range);
    let compare = |key: &Key| Compare { key: keys.name(key), revision: view.revision(key) };
    let put = |key: &Key, value, lease| Write::Put { key: keys.name(key), value, lease };
    let incarnation = record.incarnation;
    let sign = AliveRecord { version: VERSION, incarnation, lease: Some(lease) };
    let owner = RangeRecord { version: VERSION, member: config.name.clone() };
    Txn {
        compares: [&member, &alive, &range].map(compare).to_vec(),
        writes: vec![
            put(&member, record.to_value(), None),
            put(&alive, sign.to_value(), Some(lease)),
            put(&range, owner.to_value(), None),
        ],
        reads: [&member, &alive].map(|key| Read::Key(keys.name(key))).to_vec(),
    }
}

#[cfg(test)]
#[path = "tests/restarts.rs"]
mod tests;
