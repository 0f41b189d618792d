//! Tests the reservation rules of the specification.

use super::access::{AccessKind, Rights};
use super::command::KeyedCommand;
use super::state::{Effects, HostId, Reservations};
use crate::controller::identifiers::HostMark;
use crate::controller::limits;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use farblock_wire::Status;
use farblock_wire::reservation::{
    AcquireAction, NotificationType, RegisterAction, ReleaseAction, ReservationType,
};

const A: HostId = [0xa; 16];
const B: HostId = [0xb; 16];
const C: HostId = [0xc; 16];
const CONFLICT: Result<Effects, Status> = Err(Status::RESERVATION_CONFLICT.with_dnr());
const INVALID: Result<Effects, Status> = Err(Status::INVALID_FIELD.with_dnr());
const TYPES: [ReservationType; 6] = [
    ReservationType::WRITE_EXCLUSIVE,
    ReservationType::EXCLUSIVE_ACCESS,
    ReservationType::WRITE_EXCLUSIVE_REGISTRANTS,
    ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS,
    ReservationType::WRITE_EXCLUSIVE_ALL,
    ReservationType::EXCLUSIVE_ACCESS_ALL,
];

/// In these tests, the key of a host is the first byte of its identifier.
fn key(host: HostId) -> u64 {
    host[0].into()
}

type Outcome = Result<Effects, Status>;

fn register_as(
    state: &mut Reservations,
    host: HostId,
    action: RegisterAction,
    current: Option<u64>,
    new: u64,
) -> Outcome {
    state.change(host, &KeyedCommand::Register { action, current, new, persist: None }, true)
}

fn register(state: &mut Reservations, host: HostId) -> Outcome {
    register_as(state, host, RegisterAction::REGISTER, Some(0), key(host))
}

fn unregister(state: &mut Reservations, host: HostId) -> Outcome {
    register_as(state, host, RegisterAction::UNREGISTER, Some(key(host)), 0)
}

fn take(
    state: &mut Reservations,
    host: HostId,
    action: AcquireAction,
    rtype: ReservationType,
    preempted: u64,
) -> Outcome {
    state.change(
        host,
        &KeyedCommand::Acquire { action, rtype, current: key(host), preempted },
        true,
    )
}

fn acquire(state: &mut Reservations, host: HostId, rtype: ReservationType) -> Outcome {
    take(state, host, AcquireAction::ACQUIRE, rtype, 0)
}

fn preempt(state: &mut Reservations, host: HostId, rtype: ReservationType, out: u64) -> Outcome {
    take(state, host, AcquireAction::PREEMPT, rtype, out)
}

fn release(state: &mut Reservations, host: HostId, rtype: ReservationType) -> Outcome {
    let action = ReleaseAction::RELEASE;
    state.change(host, &KeyedCommand::Release { action, rtype, current: key(host) }, true)
}

fn clear(state: &mut Reservations, host: HostId) -> Outcome {
    let (action, rtype) = (ReleaseAction::CLEAR, ReservationType::NONE);
    state.change(host, &KeyedCommand::Release { action, rtype, current: key(host) }, true)
}

fn registered(hosts: &[HostId]) -> Reservations {
    let mut state = Reservations::default();
    hosts.iter().for_each(|host| assert_eq!(register(&mut state, *host), Ok(Effects::default())));
    state
}

fn reserved(hosts: &[HostId], rtype: ReservationType) -> Reservations {
    let mut state = registered(hosts);
    assert_eq!(acquire(&mut state, hosts[0], rtype), Ok(Effects::default()));
    state
}

fn hosts(state: &Reservations) -> Vec<HostId> {
    state.registrants.iter().map(|registrant| registrant.host).collect()
}

fn notices(outcome: Outcome) -> Vec<(HostId, NotificationType)> {
    outcome.expect("an executed command").notices
}

/// The table "Command Behavior in the Presence of a Reservation": the rights of the holder, of
/// another registrant and of an unregistered host.
#[test]
fn rights_match_the_table_of_reservation_types() {
    use Rights::{All, None, Read};
    let expected = [
        [All, Read, Read],
        [All, None, None],
        [All, All, Read],
        [All, All, None],
        [All, All, Read],
        [All, All, None],
    ];
    for (rtype, expected) in TYPES.into_iter().zip(expected) {
        let state = reserved(&[A, B], rtype);
        let access = state.access().expect("a reservation");
        assert_eq!([A, B, C].map(|host| access.rights(&host)), expected, "{rtype}");
    }
    assert_eq!(registered(&[A]).access(), Option::None, "registering restricts no access");
    let allows = |rights: Rights| [AccessKind::Read, AccessKind::Write].map(|of| rights.allow(of));
    assert_eq!([All, Read, None].map(allows), [[true, true], [true, false], [false, false]]);
}

#[test]
fn keys_are_registered_replaced_and_unregistered() {
    use RegisterAction as Do;
    let mut state = Reservations::default();
    let mut step = |action, current, new| register_as(&mut state, A, action, current, new);
    let done = Ok(Effects::default());
    assert_eq!(step(Do::REGISTER, Some(0), 0), INVALID, "key 0 is invalid");
    assert_eq!(step(Do::REPLACE, Some(0), 5), CONFLICT, "an unregistered host is refused");
    assert_eq!(step(Do::UNREGISTER, None, 0), CONFLICT, "an unregistered host is refused");
    assert_eq!(step(Do::REGISTER, Some(0), 5), done);
    assert_eq!(step(Do::REGISTER, Some(0), 5), done, "a host may register the same key again");
    assert_eq!(
        step(Do::REGISTER, Some(0), 6),
        CONFLICT,
        "a registered host may not register another key"
    );
    assert_eq!(step(Do::REPLACE, Some(4), 6), CONFLICT, "a wrong old key is refused");
    assert_eq!(step(Do::REPLACE, Some(5), 0), INVALID);
    assert_eq!(step(Do::REPLACE, Some(5), 6), done);
    assert_eq!(step(Do::REPLACE, None, 7), done, "any old key is accepted");
    assert_eq!(step(Do::UNREGISTER, Some(6), 0), CONFLICT);
    assert_eq!(step(Do::UNREGISTER, Some(7), 0), done);
    assert_eq!(step(Do::REPLACE, None, 8), done, "the key is ignored");
    assert_eq!(step(Do::UNREGISTER, None, 0), done);
    assert!(state.registrants.is_empty());
    assert_eq!(state.generation, 7, "a Register that succeeded is not counted");
}

#[test]
fn only_a_registrant_with_its_key_acquires_or_releases() {
    let rtype = ReservationType::WRITE_EXCLUSIVE;
    let mut state = registered(&[A]);
    assert_eq!(acquire(&mut state, B, rtype), CONFLICT);
    let wrong = KeyedCommand::Acquire {
        action: AcquireAction::ACQUIRE,
        rtype,
        current: key(A) + 1,
        preempted: 0,
    };
    assert_eq!(state.change(A, &wrong, true), CONFLICT);
    assert_eq!(release(&mut state, B, rtype), CONFLICT);
    assert_eq!(clear(&mut state, B), CONFLICT);
    assert_eq!(release(&mut state, A, rtype), Ok(Effects::default()), "no reservation exists");
}

#[test]
fn the_type_decides_whether_one_host_or_all_registrants_hold() {
    for rtype in TYPES {
        let all = rtype.0 >= ReservationType::WRITE_EXCLUSIVE_ALL.0;
        let mut state = reserved(&[A, B], rtype);
        let done = Ok(Effects::default());
        assert_eq!(
            acquire(&mut state, A, rtype),
            done,
            "{rtype}: the holder may acquire the reservation again"
        );
        assert_eq!(acquire(&mut state, B, rtype), if all { done } else { CONFLICT }, "{rtype}");
        let other = ReservationType(rtype.0 % 6 + 1);
        assert_eq!(
            acquire(&mut state, A, other),
            CONFLICT,
            "{rtype}: the holder may not acquire another type"
        );
        assert!(
            release(&mut state, A, other).is_err(),
            "{rtype}: the holder may not release another type"
        );
        let before = state.clone();
        let by_other = release(&mut state, B, rtype).expect("no reservation is no error");
        assert_eq!(state.held.is_none(), all, "{rtype}");
        assert_eq!(by_other.notices.is_empty(), !all, "{rtype}");
        let mut state = before;
        let told = notices(release(&mut state, A, rtype));
        assert!(state.held.is_none() && hosts(&state) == [A, B]);
        let silent = rtype.0 <= ReservationType::EXCLUSIVE_ACCESS.0;
        let expected = [(B, NotificationType::RESERVATION_RELEASED)];
        assert_eq!(told, if silent { vec![] } else { expected.to_vec() }, "{rtype}");
    }
}

#[test]
fn unregistering_the_holder_releases_the_reservation() {
    for rtype in TYPES {
        let mut state = reserved(&[A, B, C], rtype);
        let told = notices(unregister(&mut state, A));
        let all = rtype.0 >= ReservationType::WRITE_EXCLUSIVE_ALL.0;
        assert_eq!(
            state.held.is_some(),
            all,
            "{rtype}: only a reservation of all registrants stays"
        );
        let registrants_only = (3..=4).contains(&rtype.0);
        let released = NotificationType::RESERVATION_RELEASED;
        let expected = [(B, released), (C, released)];
        assert_eq!(told, if registrants_only { expected.to_vec() } else { vec![] }, "{rtype}");
        unregister(&mut state, B).expect("a registered host");
        unregister(&mut state, C).expect("a registered host");
        assert_eq!(
            (state.held, hosts(&state)),
            (None, vec![]),
            "{rtype}: no registrant and no reservation remain"
        );
    }
}

#[test]
fn preempting_the_holder_takes_over_the_reservation() {
    let out = NotificationType::REGISTRATION_PREEMPTED;
    for rtype in &TYPES[..4] {
        for new in TYPES {
            let mut state = reserved(&[A, B, C], *rtype);
            let generation = state.generation;
            let told = notices(preempt(&mut state, B, new, key(A)));
            assert_eq!(hosts(&state), [B, C], "{rtype} to {new}");
            assert_eq!(state.generation, generation + 1);
            assert_eq!(state.held.map(|held| (held.rtype, held.holder)), Some((new, B)));
            let released = (C, NotificationType::RESERVATION_RELEASED);
            let mut expected = vec![(A, out)];
            expected.extend((new != *rtype).then_some(released));
            assert_eq!(told, expected, "{rtype} to {new}");
        }
    }
}

#[test]
fn a_reservation_of_all_registrants_is_preempted_with_key_zero_only() {
    let rtype = ReservationType::EXCLUSIVE_ACCESS_ALL;
    let mut state = reserved(&[A, B, C], rtype);
    assert_eq!(preempt(&mut state, B, rtype, 0x77), CONFLICT, "no host has this key");
    let told = notices(preempt(&mut state, B, rtype, key(A)));
    assert_eq!(told, [(A, NotificationType::REGISTRATION_PREEMPTED)]);
    assert_eq!((hosts(&state), state.held.is_some()), (vec![B, C], true));
    let new = ReservationType::WRITE_EXCLUSIVE;
    notices(preempt(&mut state, C, new, 0));
    assert_eq!(hosts(&state), [C], "a Preempt with key 0 removes the other hosts");
    assert_eq!(state.held.map(|held| (held.rtype, held.holder)), Some((new, C)));
}

#[test]
fn preempting_another_registrant_keeps_the_reservation() {
    let rtype = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;
    let mut state = reserved(&[A, B, C], rtype);
    assert_eq!(preempt(&mut state, A, rtype, 0), INVALID);
    assert_eq!(preempt(&mut state, A, rtype, 0x77), CONFLICT);
    let told = notices(preempt(&mut state, A, rtype, key(B)));
    assert_eq!(told, [(B, NotificationType::REGISTRATION_PREEMPTED)]);
    assert_eq!(state.held.map(|held| held.holder), Some(A), "the holder stays the same");
    let other = ReservationType::EXCLUSIVE_ACCESS;
    let told = notices(preempt(&mut state, A, other, key(A)));
    assert_eq!(told, [(C, NotificationType::RESERVATION_RELEASED)]);
    assert_eq!(hosts(&state), [A, C], "a registrant was preempted by the holder");
    // Without a reservation, a Preempt only removes registrations.
    let mut state = registered(&[A, B]);
    preempt(&mut state, A, rtype, key(B)).expect("a registered key");
    assert_eq!((hosts(&state), state.held), (vec![A], None));
}

#[test]
fn only_preempt_and_abort_aborts_commands() {
    let rtype = ReservationType::WRITE_EXCLUSIVE;
    for (action, expected) in
        [(AcquireAction::PREEMPT, vec![]), (AcquireAction::PREEMPT_ABORT, vec![B])]
    {
        let mut state = reserved(&[B, A, C], rtype);
        let effects = take(&mut state, A, action, rtype, key(B)).expect("the holder's key");
        assert_eq!(effects.aborted, expected);
    }
}

#[test]
fn clear_removes_the_reservation_and_all_registrations() {
    for rtype in TYPES {
        let mut state = reserved(&[A, B, C], rtype);
        let told = notices(clear(&mut state, B));
        let preempted = NotificationType::RESERVATION_PREEMPTED;
        assert_eq!(told, [(A, preempted), (C, preempted)]);
        assert_eq!((hosts(&state), state.held), (vec![], None));
    }
}

#[test]
fn the_number_of_registrants_is_limited() {
    let mut state = Reservations::default();
    let host = |number: usize| (number as u128 + 1).to_be_bytes();
    let add = |state: &mut Reservations, number| {
        register_as(state, host(number), RegisterAction::REGISTER, None, 1)
    };
    for number in 0..limits::MAX_REGISTRANTS {
        add(&mut state, number).expect("room for another registrant");
    }
    let full = state.clone();
    assert_eq!(add(&mut state, limits::MAX_REGISTRANTS), Err(Status::INTERNAL_ERROR));
    assert_eq!(state, full);
    register_as(&mut state, host(3), RegisterAction::UNREGISTER, None, 0)
        .expect("a registered host");
    add(&mut state, limits::MAX_REGISTRANTS).expect("room for another registrant");
    assert_eq!(state.report().len(), 64 + 64 * limits::MAX_REGISTRANTS);
}

#[test]
fn persisted_reservations_are_read_back_unchanged() {
    let host = |number: u128| (u128::MAX - number).to_be_bytes();
    let cases = TYPES.into_iter().flat_map(|rtype| [false, true].map(|marked| (rtype, marked)));
    for (rtype, marked) in cases {
        let mut state = Reservations::default();
        for number in 1..=limits::MAX_REGISTRANTS as u128 {
            let (action, new) = (RegisterAction::REGISTER, u64::MAX - number as u64);
            let persist = Some(true);
            let request = KeyedCommand::Register { action, current: None, new, persist };
            state.change(host(number), &request, true).expect("room for another registrant");
            if marked && number != 7 {
                state.mark(&host(number), HostMark(u64::MAX - number as u64));
            }
        }
        let current = u64::MAX - 5;
        let request =
            KeyedCommand::Acquire { action: AcquireAction::ACQUIRE, rtype, current, preempted: 0 };
        state.change(host(5), &request, true).expect("a registered host");
        let text = state.to_text();
        assert!(
            text.len() < 3700,
            "a text of {} bytes leaves no room for the disk's identity",
            text.len()
        );
        assert_eq!(Reservations::from_text(&text), Some(state.clone()));
        // The reader refuses a text that is cut off anywhere but at the end of a line.
        for end in (1..text.len()).filter(|end| !text[..*end].ends_with('\n')) {
            assert_eq!(Reservations::from_text(&text[..end]), None, "{:?}", &text[..end]);
        }
        let request = KeyedCommand::Persist { persist: false };
        state.change(host(5), &request, true).expect("persistence can be disabled");
        assert_eq!(state.to_text(), "");
    }
    assert_eq!(Reservations::from_text(""), Some(Reservations::default()));
    let lacking = "farblock reservations 1\ngeneration 3\n\
                   reservation 1 0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a\n";
    assert_eq!(
        Reservations::from_text(lacking),
        None,
        "a holder without a registration is refused"
    );
    let others = ["farblock reservations 3\n", "farblock reservations 2\nhost 1 2\n", "h 1 2\n"];
    for text in others {
        assert_eq!(Reservations::from_text(&format!("{text}generation 3\n")), None, "{text}");
    }
}

#[test]
fn persistence_is_refused_without_a_store() {
    let mut state = Reservations::default();
    let (action, persist) = (RegisterAction::REGISTER, Some(true));
    let request = KeyedCommand::Register { action, current: None, new: 1, persist };
    assert_eq!(state.change(A, &request, false), INVALID);
    assert_eq!(state.change(A, &KeyedCommand::Persist { persist: true }, false), INVALID);
    assert_eq!(state, Reservations::default());
}
