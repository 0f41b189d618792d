//! Tests of the ownership of host identifiers.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::controller::{
    Action, HostMark, Identified, KeyedCommand, NotIts, Registry, ReservationRequest, Reservations,
    SubsystemId, TeardownReason, Ticket, limits,
};
use farblock_proto::ids::{NamespaceId, QueueId};
use farblock_wire::Status;
use farblock_wire::nqn::nqn_field;
use farblock_wire::reservation::RegisterAction;

const NSID: NamespaceId = NamespaceId(1);
const MARK: HostMark = HostMark(1);
const OTHER_MARK: HostMark = HostMark(2);

fn registry_for_both() -> (Registry, SubsystemId) {
    let (mut registry, id) = registry();
    registry.allow_host(id, OTHER_HOST_NQN).unwrap();
    drain(&mut registry);
    (registry, id)
}

/// Connects a controller of a host with this name and this identifier.
fn comes(registry: &mut Registry, nqn: &str, id: [u8; 16]) -> Host {
    let mut connect = Connect::admin(SUBSYSTEM_NQN);
    connect.data.hostnqn = nqn_field(nqn);
    connect.data.hostid = id;
    let host = Host::of(&connect.send(registry, at(0)).expect("an allowed host"));
    host.write_cc(registry, enabling(), at(0));
    host
}

fn check(registry: &Registry, id: SubsystemId, nqn: &str, host: [u8; 16]) -> Result<(), NotIts> {
    let mark = if nqn == HOST_NQN { MARK } else { OTHER_MARK };
    registry.check_identifier(id, &Identified { nqn, mark, id: host })
}

/// Registers or unregisters a host for reservations, and confirms to the registry that the state is
/// stored. Returns the text to store.
fn asks(registry: &mut Registry, id: SubsystemId, host: &Host, action: RegisterAction) -> String {
    let (ticket, controller) = (Ticket(1), host.id);
    let persist = (action == RegisterAction::REGISTER).then_some(true);
    let request = KeyedCommand::Register { action, current: None, new: 5, persist };
    let request =
        ReservationRequest { ticket, controller, queue: QueueId(1), namespace: NSID, request };
    registry.reserve(&request).expect("a valid command");
    let asked = drain(registry);
    let [Action::SaveReservations { serial, text, .. }] = &asked[..] else { panic!("{asked:?}") };
    registry.reservations_saved(id, NSID, *serial, true);
    let done = Action::Reserved { ticket, status: Status::SUCCESS, report: None };
    assert_eq!(drain(registry), [done]);
    text.clone()
}

#[test]
fn a_proved_identifier_belongs_to_its_host_while_connected() {
    let (mut registry, id) = registry_for_both();
    let host = comes(&mut registry, HOST_NQN, HOST_ID);
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, HOST_ID), Ok(()), "the owner is unproved");
    assert_eq!(registry.host_proved(host.id, MARK), []);
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, HOST_ID), Err(NotIts::Anothers));
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, [8; 16]), Ok(()));
    assert_eq!(
        check(&registry, id, HOST_NQN, HOST_ID),
        Ok(()),
        "the owner connects on another path"
    );
    registry.queue_closed(host.id, QueueId(0));
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, HOST_ID), Ok(()), "the identifier is free");
}

#[test]
fn a_host_with_an_unproved_identifier_is_disconnected_when_its_owner_authenticates() {
    let (mut registry, id) = registry_for_both();
    let liar = comes(&mut registry, OTHER_HOST_NQN, HOST_ID);
    let bystander = comes(&mut registry, OTHER_HOST_NQN, [8; 16]);
    let own = comes(&mut registry, HOST_NQN, HOST_ID);
    let host = comes(&mut registry, HOST_NQN, HOST_ID);
    let ended = registry.host_proved(host.id, MARK);
    let ended: Vec<_> = ended.iter().map(|it| (it.controller, it.reason)).collect();
    assert_eq!(ended, [(liar.id, TeardownReason::IdentifierProved)]);
    for stays in [bystander, own, host] {
        assert!(registry.controller(stays.id).is_some());
    }
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, HOST_ID), Err(NotIts::Anothers));
}

#[test]
fn a_registered_identifier_belongs_to_its_host_across_a_restart() {
    let (mut registry, id) = registry_for_both();
    registry.keep_reservations(id, NSID, Reservations::default()).expect("the namespace exists");
    let host = comes(&mut registry, HOST_NQN, HOST_ID);
    registry.host_proved(host.id, MARK);
    let kept = asks(&mut registry, id, &host, RegisterAction::REGISTER);
    registry.queue_closed(host.id, QueueId(0));
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, HOST_ID), Err(NotIts::Anothers));
    assert_eq!(check(&registry, id, HOST_NQN, HOST_ID), Ok(()));

    let (mut registry, id) = registry_for_both();
    let state = Reservations::from_text(&kept).expect("a stored reservation");
    registry.keep_reservations(id, NSID, state).expect("the namespace exists");
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, HOST_ID), Err(NotIts::Anothers));
    let host = comes(&mut registry, HOST_NQN, HOST_ID);
    registry.host_proved(host.id, MARK);
    asks(&mut registry, id, &host, RegisterAction::UNREGISTER);
    registry.queue_closed(host.id, QueueId(0));
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, HOST_ID), Ok(()), "the identifier is free");
}

#[test]
fn an_unproved_registration_belongs_to_its_host_after_authentication() {
    let (mut registry, id) = registry_for_both();
    registry.keep_reservations(id, NSID, Reservations::default()).expect("the namespace exists");
    let host = comes(&mut registry, HOST_NQN, HOST_ID);
    asks(&mut registry, id, &host, RegisterAction::REGISTER);
    registry.queue_closed(host.id, QueueId(0));
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, HOST_ID), Ok(()), "the owner is unproved");
    let host = comes(&mut registry, HOST_NQN, HOST_ID);
    registry.host_proved(host.id, MARK);
    registry.queue_closed(host.id, QueueId(0));
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, HOST_ID), Err(NotIts::Anothers));
}

#[test]
fn the_number_of_identifiers_of_a_host_is_limited() {
    let (mut registry, id) = registry_for_both();
    let number = |number: usize| [number as u8 + 1; 16];
    let mut hosts = Vec::new();
    for at in 0..limits::MAX_IDENTIFIERS {
        assert_eq!(check(&registry, id, HOST_NQN, number(at)), Ok(()));
        let host = comes(&mut registry, HOST_NQN, number(at));
        registry.host_proved(host.id, MARK);
        hosts.push(host);
    }
    let more = number(limits::MAX_IDENTIFIERS);
    assert_eq!(check(&registry, id, HOST_NQN, more), Err(NotIts::OneTooMany));
    assert_eq!(
        check(&registry, id, HOST_NQN, number(0)),
        Ok(()),
        "the host may use an identifier that it owns"
    );
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, more), Ok(()));
    registry.queue_closed(hosts[0].id, QueueId(0));
    assert_eq!(
        check(&registry, id, HOST_NQN, more),
        Ok(()),
        "a closed controller frees a place for another identifier"
    );
}

#[test]
fn a_zero_identifier_has_no_owner() {
    let (mut registry, id) = registry_for_both();
    let host = comes(&mut registry, HOST_NQN, [0; 16]);
    let other = comes(&mut registry, OTHER_HOST_NQN, [0; 16]);
    assert_eq!(registry.host_proved(host.id, MARK), []);
    assert_eq!(check(&registry, id, OTHER_HOST_NQN, [0; 16]), Ok(()));
    assert!(registry.controller(other.id).is_some());
}
