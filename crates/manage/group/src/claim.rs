//! The decisions of a member about an ANA group: when to take it, and when to hand it over.

use crate::keys::Key;
use crate::limits::MAX_VICTIMS;
use crate::records::{Duty, FenceKind, Holder, LeaderRecord, Phase, Reason, Unknown, VERSION};
use crate::seat::{Exit, Me};
use crate::settle::Settling;
use crate::store::Compare;
use crate::suspicion::standing;
use crate::view::View;
use farblock_proto::time::Instant;
use std::collections::BTreeMap;
use std::time::Duration;

/// A takeover that this member may attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    /// The state of the store that makes the claim possible. If it changes, the wait starts again.
    pub(crate) basis: (u64, u64),
    /// The time to wait after the basis appeared.
    pub(crate) wait: Duration,
    /// The record to write.
    pub(crate) record: LeaderRecord,
    /// The conditions of the transaction.
    pub(crate) compares: Vec<Compare>,
    /// The better-ranked member that did not take the ANA group in time.
    pub(crate) missed: Option<String>,
}

/// Whether this member may take an ANA group now, or after a wait. `is_steady`: see
/// [`Session::is_steady`](crate::session::Session::is_steady).
pub(crate) fn claim(group: u32, view: &View, me: Me<'_>, is_steady: bool) -> Option<Claim> {
    let key = Key::Leader(group);
    let fences = &view.groups.get(&group)?.record.fences;
    if view.unreadable.contains(&key) || view.duty(me.name) != Duty::Serve {
        return None;
    }
    let old = view.leaders.get(&group).and_then(|seen| seen.record.holder.as_ref());
    if old.is_some_and(|holder| view.is_alive(&holder.member, holder.incarnation)) {
        return None;
    }
    let ranks = view.candidates(group);
    let rank = ranks.iter().position(|name| name == me.name)?;
    let by_rank = me.timing.rank_step * rank as u32;
    let Some(seen) = view.leaders.get(&group) else {
        let record = new_record(0, Vec::new(), Reason::New, fences, me);
        return Some(offer(group, view, me, (by_rank, record, None), None));
    };
    let old = &seen.record;
    let Some(holder) = &old.holder else {
        let other =
            old.to.as_deref().filter(|to| *to != me.name && ranks.iter().any(|name| name == to));
        // The watchdog of an ended process released the ANA group to the member's next process.
        let is_released = old.reason == Reason::Lost && old.to.is_some();
        let restart = if is_released { me.timing.restart } else { Duration::ZERO };
        let wait = match (&old.to, other) {
            (Some(to), _) if to == me.name => Duration::ZERO,
            (_, Some(_)) => by_rank + me.timing.rank_step * 2 + restart,
            _ => by_rank + restart,
        };
        let record = new_record(old.epoch, old.victims.clone(), old.reason, fences, me);
        return Some(offer(group, view, me, (wait, record, other), None));
    };
    let alive = view.alive.get(&holder.member).map(|seen| seen.record.incarnation);
    let (wait, reason) = match alive {
        Some(_) if holder.member == me.name => (Duration::ZERO, Reason::Restart),
        Some(_) => (me.timing.resume + by_rank, Reason::Lost),
        // After an outage of the store, all leases may have ended. Leave the leaders time to join
        // again.
        None if !is_steady => return None,
        None => (by_rank, Reason::Lost),
    };
    let mut victims = old.victims.clone();
    // A holder that was still fencing has done no I/O, so it is no victim.
    if old.phase == Phase::Serving {
        let suspected = standing(view, holder, seen.revision);
        victims.push(Holder { suspected, ..holder.clone() });
    }
    if victims.len() > MAX_VICTIMS {
        return None;
    }
    let record = new_record(old.epoch, victims, reason, fences, me);
    Some(offer(group, view, me, (wait, record, None), Some(holder)))
}

fn new_record(
    epoch: u64,
    victims: Vec<Holder>,
    reason: Reason,
    fences: &[FenceKind],
    me: Me<'_>,
) -> LeaderRecord {
    let epoch = epoch + 1;
    let mut victims = victims;
    if crate::has_mistake("a second takeover forgets the victims of the first") {
        // Only the last holder has the epoch before this one.
        victims.retain(|victim| victim.epoch + 1 == epoch);
    }
    let holder = Holder {
        member: me.name.to_owned(),
        incarnation: me.incarnation,
        epoch,
        identity: String::new(),
        hold_ms: u64::try_from(me.timing.hold.as_millis()).unwrap_or(u64::MAX),
        fences: fences.to_vec(),
        heeds_suspicions: true,
        suspected: None,
    };
    LeaderRecord {
        version: VERSION,
        epoch,
        phase: Phase::Fencing,
        holder: Some(holder),
        victims,
        to: None,
        reason,
        at_unix_ms: me.wall_ms,
        fenced: None,
        failed: BTreeMap::new(),
        unknown: Unknown::new(),
    }
}

fn offer(
    group: u32,
    view: &View,
    me: Me<'_>,
    (wait, mut record, missed): (Duration, LeaderRecord, Option<&str>),
    holder: Option<&Holder>,
) -> Claim {
    let leader = Key::Leader(group);
    let its = holder.map(|holder| Key::Alive(holder.member.clone()));
    let own = Key::Alive(me.name.to_owned());
    let suspect = record.victims.last().filter(|victim| victim.suspected.is_some());
    let suspect = suspect.filter(|victim| holder.is_some_and(|it| it.epoch == victim.epoch));
    let suspect = suspect.map(|victim| Key::Suspect(victim.member.clone()));
    let basis = (view.revision(&leader), its.as_ref().map_or(0, |key| view.revision(key)));
    let compared = [Some(leader), its.filter(|key| *key != own), Some(own), suspect];
    let compare = |key: Key| Compare { key: me.keys.name(&key), revision: view.revision(&key) };
    if let Some(old) = view.leaders.get(&group) {
        record.fenced.clone_from(&old.record.fenced);
        record.failed.clone_from(&old.record.failed);
        if let Some(holder) = holder.filter(|_| old.record.phase == Phase::Serving) {
            record.failed.remove(&holder.member);
        }
        record.unknown.clone_from(&old.record.unknown);
    }
    let compares = compared.into_iter().flatten().map(compare).collect();
    Claim { basis, wait, record, compares, missed: missed.map(str::to_owned) }
}

/// Whether the ANA group is vacant, and its last leader handed it to this member for an operator's
/// pin.
pub(crate) fn is_ordered(group: u32, view: &View, name: &str) -> bool {
    let is_pinned = view.pins.get(&group).is_some_and(|pin| pin.record.member == name);
    let record = view.leaders.get(&group).map(|seen| &seen.record);
    is_pinned && record.is_some_and(|it| it.to.as_deref() == Some(name))
}

/// The reason for which the leader of an ANA group should hand it over, and to which member;
/// `None`: the leader should keep it. `at`: a later time at which to ask again.
pub(crate) fn hand_over(
    now: Instant,
    group: u32,
    (view, settling): (&View, &Settling),
    me: Me<'_>,
    at: &mut Option<Instant>,
) -> Option<Exit> {
    let duty = view.duty(me.name);
    let exit = |to: Option<&str>, reason| Exit::HandOver { to: to.map(str::to_owned), reason };
    if duty != Duty::Serve {
        let to = view.candidates(group).first().map(String::as_str);
        return (to.is_some() || duty == Duty::Pause).then(|| exit(to, Reason::Order));
    }
    let settle = me.timing.settle;
    let mut is_settled = |name: &str| {
        let since = settling.settled_at(name, settle);
        let is = name == me.name || since.is_some_and(|since| now >= since);
        if let Some(since) = since.filter(|_| !is) {
            *at = Some(at.map_or(since, |at| at.min(since)));
        }
        is
    };
    // A pin that is newer than the member's start and its last failure applies at once.
    let failed = view.leaders.get(&group).map(|seen| &seen.record.failed);
    let pin = view.pins.get(&group).filter(|pin| {
        let alive = view.alive.get(&pin.record.member);
        let failed = failed.and_then(|failed| failed.get(&pin.record.member));
        alive.is_some_and(|alive| alive.revision < pin.revision)
            && failed.is_none_or(|failed| failed.revision < pin.revision)
    });
    let all = view.candidates(group);
    let best = all.first()?;
    if *best == me.name {
        return None;
    }
    if pin.is_some_and(|pin| pin.record.member == *best) {
        return Some(exit(Some(best), Reason::Order));
    }
    let settled: Vec<&String> = all.iter().filter(|name| is_settled(name)).collect();
    let best = *settled.first()?;
    (*best != me.name).then(|| exit(Some(best), Reason::Balance))
}
