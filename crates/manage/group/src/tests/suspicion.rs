//! The suspicions on which a takeover relies.

use super::standing;
use crate::claim::{Claim, claim};
use crate::keys::{Key, KeySpace};
use crate::records::{
    AliveRecord, AnaGroupRecord, FenceKind, Holder, LeaderRecord, MemberRecord, Phase, Reason,
    Record, SuspectRecord, Unknown, VERSION,
};
use crate::seat::Me;
use crate::store::{Change, Compare};
use crate::timing::Timing;
use crate::view::View;

const FENCE: FenceKind = FenceKind::None { flight_ms: 500 };

/// The leader `a` is dead, and `b` may take its ANA group.
fn view(suspicion: u64) -> View {
    let keys = KeySpace::new("gold");
    let mut view = View::default();
    let holder = Holder {
        member: "a".to_owned(),
        incarnation: 3,
        epoch: 4,
        identity: String::new(),
        hold_ms: 2_000,
        fences: vec![FENCE],
        heeds_suspicions: true,
        suspected: None,
    };
    let leader = LeaderRecord {
        version: VERSION,
        epoch: 4,
        phase: Phase::Serving,
        holder: Some(holder),
        victims: Vec::new(),
        to: None,
        fenced: None,
        failed: std::collections::BTreeMap::new(),
        reason: Reason::New,
        at_unix_ms: 0,
        unknown: Unknown::new(),
    };
    let alive = AliveRecord { version: VERSION, incarnation: 1, lease: None };
    let member = MemberRecord {
        version: VERSION,
        incarnation: 1,
        process: 7,
        ended: 0,
        ended_from: 0,
        addresses: Vec::new(),
        weight: 100,
        program: String::new(),
        range: 0,
        unknown: Unknown::new(),
    };
    let suspect = SuspectRecord { version: VERSION, incarnation: 3, by: "c".to_owned() };
    let group = AnaGroupRecord {
        version: VERSION,
        fences: vec![FENCE],
        namespaces: Vec::new(),
        unknown: Unknown::new(),
    };
    for (key, value, revision) in [
        (Key::Ana(1), group.to_value(), 1),
        (Key::Alive("b".to_owned()), alive.to_value(), 2),
        (Key::Member("b".to_owned()), member.to_value(), 3),
        (Key::Leader(1), leader.to_value(), 10),
        (Key::Suspect("a".to_owned()), suspect.to_value(), suspicion),
    ] {
        view.change(&keys, &Change { key: keys.name(&key), value: Some(value.into()), revision });
    }
    view.rank();
    view
}

fn takeover(view: &View) -> Claim {
    let (keys, timing) = (KeySpace::new("gold"), Timing::default());
    let me = Me { name: "b", incarnation: 1, keys: &keys, timing: &timing, wall_ms: 0 };
    claim(1, view, me, true).expect("b may take the group")
}

#[test]
fn a_takeover_compares_the_suspicion_on_which_it_relies() {
    let taken = takeover(&view(11));
    assert_eq!(taken.record.victims[0].suspected, Some(11));
    let compare = Compare { key: "farblock/gold/suspect/a".to_owned(), revision: 11 };
    assert!(taken.compares.contains(&compare), "{:?}", taken.compares);
}

#[test]
fn a_suspicion_before_the_leaders_last_confirmation_is_ignored() {
    let taken = takeover(&view(9));
    assert_eq!(taken.record.victims[0].suspected, None);
    let view = view(11);
    let holder = view.leaders[&1].record.holder.clone().expect("a holder");
    assert_eq!(standing(&view, &holder, 10), Some(11));
    let other = Holder { incarnation: 2, ..holder.clone() };
    assert_eq!(standing(&view, &other, 10), None, "the suspicion is of another process");
    let older = Holder { heeds_suspicions: false, ..holder };
    assert_eq!(standing(&view, &older, 10), None, "the holder's program does not read suspicions");
}
