//! Suspicions: other members count a silent leader's hold (the time for which it may still do I/O)
//! before its lease has ended.
//!
//! Nothing in the store shows when a leader proved its leadership last, since proofs only read. A
//! lease ends seconds after the leader has fallen silent, and the hold would only begin then. So
//! the best candidate asks the store at each beat for how long the leader's lease has not been
//! renewed. After more than a second it writes a *suspicion* of the leader's process.
//!
//! A suspicion does not stop a healthy leader's I/O. Each proof reads it. While it exists, proofs
//! permit no I/O; the leader *refutes* it, that is, deletes it, and proves again. Earlier permits
//! last much longer than this takes.
//!
//! A takeover that compares the revision of a suspicion shows: from the suspicion to the takeover
//! the leader had no proof. So its last proof was sent before the suspicion was committed. Each
//! member may count the hold from the time at which it received the suspicion, on its own clock.
//! Two rules complete this:
//!
//! - The suspicion is younger than the leadership record: the reply to the leader's last change of
//!   the record permits I/O, too.
//! - A transaction that refutes also reads the leadership records. So a member that knows of a
//!   refutation knows of all takeovers before it, and accepts no older proof.

use crate::keys::{Key, KeySpace};
use crate::outbox::{Outbox, Purpose};
use crate::records::{Holder, Record, SuspectRecord, VERSION};
use crate::store::{Compare, Read, Revision, StoreRequest, Txn, Write};
use crate::view::View;
use farblock_proto::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time without a renewal, in the store's whole seconds, after which a member is suspect.
const SILENCE: Duration = Duration::from_secs(2);

/// The suspicions that this member has seen.
#[derive(Default, Debug)]
pub(crate) struct Suspicions {
    /// The last suspicion of each member, and the time at which this member knew of it.
    seen: BTreeMap<String, (Revision, Instant)>,
}

impl Suspicions {
    /// Records the time at which this member learned of each new suspicion.
    pub(crate) fn observe(&mut self, now: Instant, view: &View) {
        for (name, suspect) in &view.suspects {
            let known = self.seen.entry(name.clone()).or_insert((suspect.revision, now));
            if known.0 != suspect.revision {
                *known = (suspect.revision, now);
            }
        }
    }

    /// The time before which the victim sent its last proof; `None`: this member has not seen the
    /// suspicion that the takeover compared.
    pub(crate) fn since(&self, victim: &Holder) -> Option<Instant> {
        let (revision, at) = self.seen.get(&victim.member)?;
        (victim.suspected == Some(*revision)).then_some(*at)
    }
}

/// The revision of a suspicion that is not refuted, and on which a takeover from `holder` may rely.
pub(crate) fn standing(view: &View, holder: &Holder, leadership: Revision) -> Option<Revision> {
    let suspect = view.suspects.get(&holder.member)?;
    let is_its = suspect.record.incarnation == holder.incarnation && holder.heeds_suspicions;
    let is_younger = suspect.revision > leadership || crate::has_mistake("an old suspicion counts");
    (is_its && is_younger).then_some(suspect.revision)
}

/// Asks the store about the leases of all leaders that this member would replace.
pub(crate) fn ask(now: Instant, name: &str, view: &View, out: &mut Outbox) {
    let mut asked = BTreeSet::new();
    for (group, seen) in &view.leaders {
        let Some(holder) = &seen.record.holder else { continue };
        let (member, incarnation) = (&holder.member, holder.incarnation);
        let Some(alive) = view.alive.get(member) else { continue };
        let mut others = view.candidates(*group).iter();
        let is_next = others.find(|other| *other != member).is_some_and(|it| it == name);
        let lease = alive.record.lease.filter(|_| alive.record.incarnation == incarnation);
        let is_suspect = view.is_suspect(member, incarnation);
        if let Some(lease) = lease.filter(|_| is_next && !is_suspect && *member != name)
            && asked.insert(member)
        {
            let purpose = Purpose::TimeLeft { member: member.clone(), incarnation };
            out.send(now, purpose, StoreRequest::TimeLeft(lease));
        }
    }
}

/// Writes a suspicion, if a lease was not renewed for a while.
pub(crate) fn suspect(
    now: Instant,
    (member, incarnation): (&str, u64),
    (granted, left): (Duration, Duration),
    (name, keys, view): (&str, &KeySpace, &View),
    out: &mut Outbox,
) {
    let is_late = granted.saturating_sub(left) >= SILENCE;
    if !is_late || !view.is_alive(member, incarnation) || view.is_suspect(member, incarnation) {
        return;
    }
    let (alive, suspect) = (Key::Alive(member.to_owned()), Key::Suspect(member.to_owned()));
    let compare = |key: &Key| Compare { key: keys.name(key), revision: view.revision(key) };
    let record = SuspectRecord { version: VERSION, incarnation, by: name.to_owned() };
    let key = keys.name(&suspect);
    let txn = Txn {
        compares: [&alive, &suspect].map(compare).to_vec(),
        writes: vec![Write::Put { key, value: record.to_value(), lease: None }],
        reads: [&alive, &suspect].map(|key| Read::Key(keys.name(key))).to_vec(),
    };
    out.txn(now, Purpose::Nothing, txn);
}

/// The transaction that refutes the suspicion of a member.
pub(crate) fn refutation(name: &str, keys: &KeySpace, view: &View) -> Txn {
    let suspect = Key::Suspect(name.to_owned());
    let key = keys.name(&suspect);
    Txn {
        compares: vec![Compare { key: key.clone(), revision: view.revision(&suspect) }],
        writes: vec![Write::Delete { key: key.clone() }],
        reads: vec![Read::Key(key), Read::Prefix(keys.leaders())],
    }
}

#[cfg(test)]
#[path = "tests/suspicion.rs"]
mod tests;
