//! Tests of reservations from the view of hosts and targets: features, Identify, and the order of
//! steps.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::controller::{
    Action, AdminOutcome, KeyedCommand, Registry, ReservationRequest, Reservations, Rights,
    SubsystemId, Ticket,
};
use farblock_proto::ids::{NamespaceId, QueueId};
use farblock_wire::Status;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::reservation::{AcquireAction, RegisterAction, ReservationType};

const NSID: NamespaceId = NamespaceId(1);

fn ready() -> (Registry, SubsystemId, Host) {
    let (mut registry, id) = registry();
    let host = Host::ready(&mut registry);
    drain(&mut registry);
    (registry, id, host)
}

fn ask(registry: &mut Registry, host: &Host, ticket: u64, request: KeyedCommand) -> Vec<Action> {
    let (ticket, controller) = (Ticket(ticket), host.id);
    let request =
        ReservationRequest { ticket, controller, queue: QueueId(1), namespace: NSID, request };
    registry.reserve(&request).expect("a valid command");
    drain(registry)
}

fn register(persist: bool) -> KeyedCommand {
    let (action, persist) = (RegisterAction::REGISTER, Some(persist));
    KeyedCommand::Register { action, current: None, new: 5, persist }
}

const ACQUIRE: KeyedCommand = KeyedCommand::Acquire {
    action: AcquireAction::ACQUIRE,
    rtype: ReservationType::EXCLUSIVE_ACCESS,
    current: 5,
    preempted: 0,
};

fn done(ticket: u64, status: Status) -> Action {
    Action::Reserved { ticket: Ticket(ticket), status, report: None }
}

#[test]
fn requests_execute_one_at_a_time_and_complete_when_all_cores_apply_them() {
    let (mut registry, id, host) = ready();
    assert_eq!(ask(&mut registry, &host, 1, register(false)), [done(1, Status::SUCCESS)]);
    let spread = ask(&mut registry, &host, 2, ACQUIRE);
    let [Action::Access(change)] = &spread[..] else { panic!("{spread:?}") };
    assert_eq!(change.rights(&HOST_ID), Rights::All);
    assert_eq!(change.rights(&[1; 16]), Rights::None);
    assert_eq!(ask(&mut registry, &host, 3, KeyedCommand::Report { bytes: 4096 }), []);
    registry.access_spread(id, NSID, change.serial + 1);
    assert_eq!(drain(&mut registry), [], "a confirmation with another serial number is ignored");
    registry.access_spread(id, NSID, change.serial);
    let actions = drain(&mut registry);
    assert_eq!(actions[0], done(2, Status::SUCCESS));
    let Action::Reserved { report: Some(page), .. } = &actions[1] else { panic!("{actions:?}") };
    assert_eq!((page.len(), page[4], page[5]), (128, 2, 1));
}

#[test]
fn a_persistent_registration_is_saved_before_it_applies() {
    let (mut registry, id, host) = ready();
    registry.keep_reservations(id, NSID, Reservations::default()).expect("the namespace exists");
    for (ticket, saved) in [(1, false), (2, true)] {
        let asked = ask(&mut registry, &host, ticket, register(true));
        let [Action::SaveReservations { serial, text, .. }] = &asked[..] else {
            panic!("{asked:?}")
        };
        assert!(Reservations::from_text(text).is_some_and(|state| state.persists()));
        registry.reservations_saved(id, NSID, *serial, saved);
        let status = if saved { Status::SUCCESS } else { Status::INTERNAL_ERROR };
        assert_eq!(drain(&mut registry), [done(ticket, status)]);
    }
}

#[test]
fn removing_a_namespace_ends_its_reservation_requests() {
    let (mut registry, id, host) = ready();
    ask(&mut registry, &host, 1, register(false));
    ask(&mut registry, &host, 2, ACQUIRE);
    assert_eq!(ask(&mut registry, &host, 3, ACQUIRE), []);
    let info = registry.remove_namespace(id, NSID).expect("the namespace exists");
    let actions = drain(&mut registry);
    let gone = Status::INVALID_NAMESPACE.with_dnr();
    assert_eq!(actions[..2], [done(2, gone), done(3, gone)]);
    assert!(matches!(&actions[2], Action::Access(change) if change.access.is_none()));
    registry.add_namespace(id, NSID, info).expect("the identifier is free");
    drain(&mut registry);
    let answer = ask(&mut registry, &host, 4, register(false));
    assert_eq!(answer, [done(4, Status::SUCCESS)], "the new namespace has no registrants");
}

#[test]
fn closing_a_queue_drops_its_waiting_reservation_requests() {
    let (mut registry, id, host) = ready();
    host.io_queue(&mut registry, 1).expect("a granted queue");
    ask(&mut registry, &host, 1, register(false));
    let spread = ask(&mut registry, &host, 2, ACQUIRE);
    let [Action::Access(change)] = &spread[..] else { panic!("{spread:?}") };
    ask(&mut registry, &host, 3, KeyedCommand::Report { bytes: 4096 });
    registry.queue_closed(host.id, QueueId(1));
    registry.access_spread(id, NSID, change.serial);
    assert_eq!(drain(&mut registry), [done(2, Status::SUCCESS)]);
}

#[test]
fn identify_advertises_the_supported_reservations() {
    let (mut registry, id, host) = ready();
    let rescap = |registry: &mut Registry| {
        let mut sqe = command(AdminOpcode::IDENTIFY, 1);
        let old = host.fetch(registry, sqe, 4096).expect("a readable page")[31];
        sqe.cdw10 = 8.into();
        let new = host.fetch(registry, sqe, 4096).expect("a readable page")[2];
        assert_eq!(old, new);
        old
    };
    assert_eq!(rescap(&mut registry), 0b1111_1110, "all capabilities except persistence");
    registry.keep_reservations(id, NSID, Reservations::default()).expect("the namespace exists");
    assert_eq!(rescap(&mut registry), 0xff);
}

#[test]
fn reservation_features_belong_to_a_namespace() {
    let (mut registry, id, host) = ready();
    let feature = |fid: u8, nsid: u32, select: u32| {
        let mut sqe = get_features(fid, select, 0);
        sqe.nsid = nsid.into();
        sqe
    };
    let set = |fid: u8, nsid: u32, value: u32| {
        let mut sqe = command(AdminOpcode::SET_FEATURES, nsid);
        sqe.cdw10 = u32::from(fid).into();
        sqe.cdw11 = value.into();
        sqe
    };
    for fid in [0x82, 0x83] {
        assert_eq!(host.result(&mut registry, &feature(fid, 1, 3)), Ok(0b110));
        assert_eq!(host.result(&mut registry, &feature(fid, 1, 0)), Ok(0));
        let all = host.result(&mut registry, &feature(fid, u32::MAX, 0));
        assert_eq!(all, refused(Status::INVALID_FIELD));
        let none = host.result(&mut registry, &feature(fid, 5, 0));
        assert_eq!(none, refused(Status::INVALID_NAMESPACE));
    }
    assert_eq!(host.result(&mut registry, &set(0x82, 1, 1)), refused(Status::INVALID_FIELD));
    let none = host.result(&mut registry, &set(0x82, 5, 2));
    assert_eq!(none, refused(Status::INVALID_NAMESPACE));
    assert_eq!(host.result(&mut registry, &set(0x82, u32::MAX, 0b1010)), Ok(0));
    assert_eq!(host.result(&mut registry, &feature(0x82, 7, 0)), Ok(0b1010));
    assert_eq!(host.result(&mut registry, &set(0x83, 1, 2)), refused(Status::INVALID_FIELD));
    let all = host.result(&mut registry, &set(0x83, u32::MAX, 1));
    assert_eq!(all, refused(Status::INVALID_FIELD));
    let request = KeyedCommand::Persist { persist: true };
    let asked = host.admin(&mut registry, &set(0x83, 1, 1), at(0));
    assert_eq!(asked, AdminOutcome::Reserve { namespace: NSID, request });
    let refused = ask(&mut registry, &host, 1, request);
    assert_eq!(refused, [done(1, Status::INVALID_FIELD.with_dnr())], "persistence needs storage");
    registry.keep_reservations(id, NSID, Reservations::default()).expect("the namespace exists");
    let asked = ask(&mut registry, &host, 2, request);
    let [Action::SaveReservations { serial, .. }] = &asked[..] else { panic!("{asked:?}") };
    registry.reservations_saved(id, NSID, *serial, true);
    assert_eq!(drain(&mut registry), [done(2, Status::SUCCESS)]);
    assert_eq!(host.result(&mut registry, &feature(0x83, 1, 0)), Ok(1));
}
