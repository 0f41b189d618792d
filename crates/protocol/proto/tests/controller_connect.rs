//! Tests of Connect: accepted commands, and each refusal with its invalid parameter.

mod controller_fixture;

use controller_fixture::*;
use core::mem::offset_of;
use farblock_proto::controller::{QueueKind, Registry, SubsystemConfig, limits};
use farblock_proto::ids::{ControllerId, NamespaceId, QueueId};
use farblock_wire::fabrics::{
    CATTR_DISABLE_SQ_FLOW, CNTLID_STATIC_ANY, ConnectCommand, ConnectData,
};
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::property::Cc;
use farblock_wire::status::Status;

/// Returns the status of a refused Connect, whether the invalid parameter is in the data, and the
/// parameter's offset.
fn blame(connect: &Connect, registry: &mut Registry) -> (Status, bool, u16) {
    let refusal = connect.send(registry, at(0)).expect_err("a valid Connect");
    assert_eq!(refusal.result >> 17, 0);
    (refusal.status, (refusal.result >> 16) & 1 != 0, refusal.result as u16)
}

const INVALID: Status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();

fn in_data(offset: usize) -> (Status, bool, u16) {
    (INVALID, true, offset as u16)
}

fn in_command(offset: usize) -> (Status, bool, u16) {
    (INVALID, false, offset as u16)
}

#[test]
fn connecting_an_admin_queue_creates_a_controller() {
    let (mut registry, subsystem) = registry();
    let connected = Connect::admin(SUBSYSTEM_NQN).send(&mut registry, at(0)).unwrap();
    assert_eq!(connected.controller, ControllerId(1));
    assert_eq!(connected.queue, QueueId(0));
    assert_eq!(connected.kind, QueueKind::Admin);
    assert_eq!(connected.depth, 32);
    assert_eq!(connected.subsystem, Some(subsystem));
    assert_eq!(connected.result, 1);
    assert!(connected.flow_control);
    assert!(!connected.is_discovery());
    assert!(connected.namespaces.find(NamespaceId(7)).is_some());

    let again = Connect::admin(SUBSYSTEM_NQN).send(&mut registry, at(0)).unwrap();
    assert_eq!(again.controller, ControllerId(2));

    let summaries: Vec<_> = registry.controllers().collect();
    assert_eq!(summaries.len(), 2);
    assert_eq!(summaries[0].host_nqn, HOST_NQN);
    assert_eq!(summaries[0].host_id, HOST_ID);
    assert_eq!(summaries[0].local_address, LOCAL_ADDRESS);
    assert_eq!(summaries[0].keep_alive_ms, 5000);
    assert_eq!(summaries[0].io_queues, 0);
}

#[test]
fn the_discovery_service_accepts_any_host_and_has_no_io_queues() {
    let (mut registry, _) = registry();
    let mut connect = Connect::admin(DISCOVERY_NQN);
    connect.data = ConnectData::new([9; 16], 0xffff, DISCOVERY_NQN, OTHER_HOST_NQN);
    let connected = connect.send(&mut registry, at(0)).unwrap();
    assert!(connected.is_discovery());
    assert_eq!(connected.namespaces.iter().count(), 0);

    let host = Host::of(&connected);
    host.write_cc(&mut registry, enabling(), at(0));
    connect.command.qid = 1.into();
    connect.data.cntlid = host.id.0.into();
    let wrong = in_command(offset_of!(ConnectCommand, qid));
    assert_eq!(blame(&connect, &mut registry), wrong);
}

#[test]
fn io_queues_join_their_controller() {
    let (mut registry, subsystem) = registry();
    let host = Host::ready(&mut registry);
    let mut connect = Connect::io(host.id, 1);
    connect.command.cattr = CATTR_DISABLE_SQ_FLOW;
    let connected = connect.send(&mut registry, at(0)).unwrap();
    assert_eq!(connected.controller, host.id);
    assert_eq!(connected.queue, QueueId(1));
    assert_eq!(connected.kind, QueueKind::Io);
    assert_eq!(connected.depth, 128);
    assert_eq!(connected.subsystem, Some(subsystem));
    assert_eq!(connected.result, u64::from(host.id.0));
    assert!(!connected.flow_control);
    for qid in 2..=4 {
        host.io_queue(&mut registry, qid).unwrap();
    }
    assert_eq!(registry.controllers().next().unwrap().io_queues, 4);
}

#[test]
fn an_unknown_record_format_is_refused() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    for mut connect in [Connect::admin(SUBSYSTEM_NQN), Connect::io(host.id, 1)] {
        connect.command.recfmt = 1.into();
        let wrong = (Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr(), false, 40);
        assert_eq!(blame(&connect, &mut registry), wrong);
    }
}

#[test]
fn only_the_dynamic_controller_model_is_supported() {
    let (mut registry, _) = registry();
    for cntlid in [0, 1, CNTLID_STATIC_ANY] {
        let mut connect = Connect::admin(SUBSYSTEM_NQN);
        connect.data.cntlid = cntlid.into();
        assert_eq!(blame(&connect, &mut registry), in_data(16));
    }
}

#[test]
fn unknown_and_malformed_names_are_refused() {
    let (mut registry, _) = registry();
    let unknown = Connect::admin("nqn.2026-01.test.farblock:unknown");
    assert_eq!(blame(&unknown, &mut registry), in_data(256));

    for field in [[0; 256], [b'x'; 256], [0xff; 256]] {
        let mut connect = Connect::admin(SUBSYSTEM_NQN);
        connect.data.subnqn = field;
        assert_eq!(blame(&connect, &mut registry), in_data(256));
        let mut connect = Connect::admin(SUBSYSTEM_NQN);
        connect.data.hostnqn = field;
        assert_eq!(blame(&connect, &mut registry), in_data(512));
    }
    let mut connect = Connect::admin(SUBSYSTEM_NQN);
    connect.data.hostnqn[3] = 0x1b;
    assert_eq!(blame(&connect, &mut registry), in_data(512));
}

#[test]
fn a_host_that_is_not_allowed_is_refused() {
    let (mut registry, subsystem) = registry();
    let mut connect = Connect::admin(SUBSYSTEM_NQN);
    connect.data = ConnectData::new(HOST_ID, 0xffff, SUBSYSTEM_NQN, OTHER_HOST_NQN);
    let wrong = (Status::CONNECT_INVALID_HOST.with_dnr(), true, 512);
    assert_eq!(blame(&connect, &mut registry), wrong);

    registry.allow_host(subsystem, OTHER_HOST_NQN).unwrap();
    assert!(connect.send(&mut registry, at(0)).is_ok());
    assert_eq!(registry.disallow_host(subsystem, OTHER_HOST_NQN).unwrap().len(), 1);
    assert_eq!(blame(&connect, &mut registry), wrong);
    assert!(registry.set_allow_any_host(subsystem, true).unwrap().is_empty());
    assert!(connect.send(&mut registry, at(0)).is_ok());
}

#[test]
fn queue_sizes_out_of_range_are_refused() {
    let (mut registry, _) = registry();
    let wrong = in_command(offset_of!(ConnectCommand, sqsize_z));
    for sqsize_z in [0, limits::ADMIN_QUEUE_ENTRIES, u16::MAX] {
        let mut connect = Connect::admin(SUBSYSTEM_NQN);
        connect.command.sqsize_z = sqsize_z.into();
        assert_eq!(blame(&connect, &mut registry), wrong);
    }
    let mut connect = Connect::admin(SUBSYSTEM_NQN);
    connect.command.sqsize_z = (limits::ADMIN_QUEUE_ENTRIES - 1).into();
    assert_eq!(connect.send(&mut registry, at(0)).unwrap().depth, limits::ADMIN_QUEUE_ENTRIES);

    let host = Host::ready(&mut registry);
    for sqsize_z in [0, 128, u16::MAX] {
        let mut connect = Connect::io(host.id, 1);
        connect.command.sqsize_z = sqsize_z.into();
        assert_eq!(blame(&connect, &mut registry), wrong);
    }
    let mut connect = Connect::io(host.id, 1);
    connect.command.sqsize_z = 1.into();
    assert_eq!(connect.send(&mut registry, at(0)).unwrap().depth, 2);
}

#[test]
fn io_queues_need_a_controller_of_that_subsystem_and_host() {
    let (mut registry, _) = registry();
    let mut other = config();
    other.nqn = "nqn.2026-01.test.farblock:more".into();
    registry.add_subsystem(other.clone()).unwrap();
    let host = Host::ready(&mut registry);

    let unknown = Connect::io(ControllerId(99), 1);
    assert_eq!(blame(&unknown, &mut registry), in_data(16));

    let mut elsewhere = Connect::io(host.id, 1);
    elsewhere.data = ConnectData::new(HOST_ID, host.id.0, &other.nqn, HOST_NQN);
    assert_eq!(blame(&elsewhere, &mut registry), in_data(16));
    elsewhere.data = ConnectData::new(HOST_ID, host.id.0, DISCOVERY_NQN, HOST_NQN);
    assert_eq!(blame(&elsewhere, &mut registry), in_data(16));

    let subsystem = registry.find_subsystem(SUBSYSTEM_NQN).unwrap();
    registry.allow_host(subsystem, OTHER_HOST_NQN).unwrap();
    let mut stranger = Connect::io(host.id, 1);
    stranger.data = ConnectData::new(HOST_ID, host.id.0, SUBSYSTEM_NQN, OTHER_HOST_NQN);
    assert_eq!(blame(&stranger, &mut registry), in_data(512));
    stranger.data = ConnectData::new([8; 16], host.id.0, SUBSYSTEM_NQN, HOST_NQN);
    assert_eq!(blame(&stranger, &mut registry), in_data(0));
}

#[test]
fn io_queues_need_an_enabled_controller() {
    let sequence = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
    let (mut registry, _) = registry();
    let host = Host::connect(&mut registry, SUBSYSTEM_NQN);
    assert_eq!(host.io_queue(&mut registry, 1).unwrap_err().status, sequence);
    host.write_cc(&mut registry, enabling(), at(0));
    host.io_queue(&mut registry, 1).unwrap();
    host.write_cc(&mut registry, enabling().with_shn(Cc::SHN_NORMAL), at(0));
    assert_eq!(host.io_queue(&mut registry, 2).unwrap_err().status, sequence);
    host.write_cc(&mut registry, Cc::default(), at(0));
    assert_eq!(host.io_queue(&mut registry, 2).unwrap_err().status, sequence);
}

#[test]
fn a_connected_queue_is_refused_until_it_is_closed() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    host.io_queue(&mut registry, 3).unwrap();
    let refusal = host.io_queue(&mut registry, 3).unwrap_err();
    assert_eq!(refusal.status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    assert_eq!(registry.queue_closed(host.id, QueueId(3)), None);
    host.io_queue(&mut registry, 3).unwrap();
}

#[test]
fn queue_identifiers_above_the_granted_number_are_refused() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    let wrong = in_command(offset_of!(ConnectCommand, qid));
    assert_eq!(blame(&Connect::io(host.id, 5), &mut registry), wrong);
    assert_eq!(blame(&Connect::io(host.id, u16::MAX), &mut registry), wrong);
    assert_eq!(host.set_feature(&mut registry, 0x07, 1 | 1 << 16), Ok(1 | 1 << 16));
    assert_eq!(blame(&Connect::io(host.id, 3), &mut registry), wrong);
    host.io_queue(&mut registry, 2).unwrap();
}

#[test]
fn the_number_of_controllers_is_limited() {
    let (mut registry, _) = registry();
    for _ in 0..limits::MAX_CONTROLLERS {
        Connect::admin(SUBSYSTEM_NQN).send(&mut registry, at(0)).unwrap();
    }
    let refusal = Connect::admin(SUBSYSTEM_NQN).send(&mut registry, at(0)).unwrap_err();
    assert_eq!((refusal.status, refusal.result), (Status::CONNECT_CONTROLLER_BUSY, 0));
    assert!(registry.queue_closed(ControllerId(17), QueueId(0)).is_some());
    assert!(Connect::admin(DISCOVERY_NQN).send(&mut registry, at(0)).is_ok());
}

#[test]
fn a_subsystem_can_have_a_range_of_controller_identifiers() {
    let (mut registry, _) = registry();
    registry.set_controller_ids(1..=100).unwrap();
    let name = "nqn.2026-11.org.farblock:ranged";
    let ranged = |ids| SubsystemConfig {
        allow_any_host: true,
        controller_ids: Some(ids),
        ..SubsystemConfig::new(name, "1")
    };
    registry.add_subsystem(ranged(7..=8)).unwrap();
    assert_eq!(Host::connect(&mut registry, name).id.0, 7);
    assert_eq!(Host::connect(&mut registry, SUBSYSTEM_NQN).id.0, 1);
    assert_eq!(Host::connect(&mut registry, name).id.0, 8);
    let refusal = Connect::admin(name).send(&mut registry, at(0)).unwrap_err();
    assert_eq!(refusal.status, Status::CONNECT_CONTROLLER_BUSY);
    registry.queue_closed(ControllerId(7), QueueId(0)).unwrap();
    assert_eq!(Host::connect(&mut registry, name).id.0, 7);
    for ids in [0..=5, core::ops::RangeInclusive::new(9, 8)] {
        assert!(registry.add_subsystem(ranged(ids)).is_err());
    }
}

#[test]
fn controller_identifiers_are_reused_in_turn() {
    let (mut registry, _) = registry();
    registry.set_controller_ids(10..=12).unwrap();
    let mut next = || {
        let id = Host::connect(&mut registry, SUBSYSTEM_NQN).id;
        registry.queue_closed(id, QueueId(0)).unwrap();
        id.0
    };
    assert_eq!([next(), next(), next(), next()], [10, 11, 12, 10]);

    for _ in 0..3 {
        Host::connect(&mut registry, SUBSYSTEM_NQN);
    }
    let refusal = Connect::admin(SUBSYSTEM_NQN).send(&mut registry, at(0)).unwrap_err();
    assert_eq!(refusal.status, Status::CONNECT_CONTROLLER_BUSY);
    for ids in [0..=5, 1..=0xfff0, core::ops::RangeInclusive::new(9, 8)] {
        assert!(registry.set_controller_ids(ids).is_err());
    }
}
