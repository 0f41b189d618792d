//! Tests of the admin commands that fetch no pages: properties and lifecycle, keep-alive, events,
//! abort, and the states in which each command is allowed.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::controller::{
    Action, AdminOutcome, Lifecycle, NamespaceInfo, Registry, Teardown, TeardownReason, limits,
};
use farblock_proto::ids::{CommandId, ControllerId, NamespaceId, QueueId};
use farblock_proto::time::Instant;
use farblock_wire::fabrics::{
    ConnectCommand, DisconnectCommand, PropertyGetCommand, PropertySetCommand, PropertySize,
};
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::property::{Cap, Cc, Csts, offset};
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

const OK: AdminOutcome = AdminOutcome::Respond { status: Status::SUCCESS, result: 0 };

fn failed(status: Status) -> AdminOutcome {
    AdminOutcome::Respond { status: status.with_dnr(), result: 0 }
}

fn event_request(cid: u16) -> Sqe {
    Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, cid, 0)
}

fn event(controller: ControllerId, cid: u16, result: u64) -> Action {
    let (command, status) = (CommandId(cid), Status::SUCCESS);
    Action::Complete { controller, command, status, result }
}

const NAMESPACE_CHANGED: u64 = 0x0004_0002;
const DISCOVERY_CHANGED: u64 = 0x0070_f002;

#[test]
fn a_property_cannot_be_read_with_another_size() {
    use PropertySize::{Eight, Four};
    let (mut registry, _) = registry();
    let host = Host::connect(&mut registry, SUBSYSTEM_NQN);
    let cap = Cap(host.property(&mut registry, offset::CAP, Eight).unwrap());
    assert_eq!((cap.mqes_z(), cap.cqr(), cap.to(), cap.css()), (127, true, 15, 1));
    assert_eq!((cap.mpsmin(), cap.mpsmax(), cap.dstrd(), cap.crms()), (0, 0, 0, 1));
    assert_eq!(host.property(&mut registry, offset::VS, Four), Ok(0x0002_0000));
    assert_eq!(host.property(&mut registry, offset::CC, Four), Ok(0));
    assert_eq!(host.property(&mut registry, offset::CSTS, Four), Ok(0));
    assert_eq!(host.property(&mut registry, offset::CRTO, Four), Ok(15));
    let wrong = [
        (offset::CAP, Four),
        (offset::VS, Eight),
        (offset::CC, Eight),
        (offset::CSTS, Eight),
        (offset::CRTO, Eight),
        (offset::NSSR, Four),
        (offset::NSSD, Four),
        (4, Four),
        (u32::MAX, Four),
    ];
    for (ofst, size) in wrong {
        let value = host.property(&mut registry, ofst, size);
        assert_eq!(value, refused(Status::INVALID_FIELD), "{ofst:#x} {size:?}");
    }
    for attrib in 2..=7 {
        let mut command = PropertyGetCommand::new(1, offset::CSTS, Four);
        command.attrib = attrib;
        let value = host.result(&mut registry, &command.to_sqe());
        assert_eq!(value, refused(Status::INVALID_FIELD));
    }
}

#[test]
fn only_the_property_cc_can_be_written() {
    use PropertySize::{Eight, Four};
    let (mut registry, _) = registry();
    let host = Host::connect(&mut registry, SUBSYSTEM_NQN);
    let wrong = [
        (offset::CC, Eight),
        (offset::CAP, Eight),
        (offset::VS, Four),
        (offset::CSTS, Four),
        (offset::NSSR, Four),
        (0x24, Four),
    ];
    for (ofst, size) in wrong {
        let command = PropertySetCommand::new(1, ofst, size, 1).to_sqe();
        let value = host.result(&mut registry, &command);
        assert_eq!(value, refused(Status::INVALID_FIELD), "{ofst:#x}");
    }
    // The upper half of the value does not belong to CC.
    let value = u64::from(enabling().0) | 0xdead_beef << 32;
    let command = PropertySetCommand::new(1, offset::CC, Four, value).to_sqe();
    assert_eq!(host.result(&mut registry, &command), Ok(0));
    assert_eq!(host.property(&mut registry, offset::CC, Four), Ok(u64::from(enabling().0)));
    assert!(host.csts(&mut registry).rdy());
}

#[test]
fn an_unsupported_configuration_is_fatal_until_a_reset() {
    let (mut registry, _) = registry();
    let host = Host::connect(&mut registry, SUBSYSTEM_NQN);
    host.write_cc(&mut registry, enabling().with_iosqes(0), at(0));
    let csts = host.csts(&mut registry);
    assert!(csts.cfs() && !csts.rdy());
    host.write_cc(&mut registry, Cc::default(), at(0));
    assert_eq!(host.csts(&mut registry), Csts(0));
    host.write_cc(&mut registry, enabling(), at(0));
    assert_eq!(host.csts(&mut registry), Csts(1));
}

#[test]
fn shutdown_is_complete_at_once_when_there_is_nothing_to_flush() {
    for shn in [Cc::SHN_NORMAL, Cc::SHN_ABRUPT] {
        let (mut registry, _) = registry();
        let host = Host::ready(&mut registry);
        host.io_queue(&mut registry, 1).unwrap();
        host.io_queue(&mut registry, 4).unwrap();
        host.write_cc(&mut registry, enabling().with_shn(shn), at(1));
        let close = Teardown {
            controller: host.id,
            queues: vec![QueueId(1), QueueId(4)],
            reason: TeardownReason::Disabled,
        };
        assert_eq!(drain(&mut registry), [Action::Close(close)]);
        // The shutdown is not complete while queues are open or their commands are in progress.
        assert_eq!(host.csts(&mut registry).shst(), Csts::SHST_OCCURRING);
        registry.queue_closed(host.id, QueueId(1));
        registry.set_unfinished(host.id, host.instance, true);
        registry.queue_closed(host.id, QueueId(4));
        assert_eq!(host.csts(&mut registry).shst(), Csts::SHST_OCCURRING);
        registry.set_unfinished(host.id, host.instance, false);
        assert_eq!(host.csts(&mut registry).shst(), Csts::SHST_COMPLETE);
        // The host can still read properties for two minutes, independent of the keep-alive
        // timeout.
        assert_eq!(registry.next_deadline(), Some(at(121)));
        assert!(registry.tick(at(120)).is_empty());
        let ends = registry.tick(at(121));
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].reason, TeardownReason::AssociationExpired);
        assert_eq!(ends[0].queues, [QueueId(0)]);
    }
}

#[test]
fn a_reset_completes_when_its_queues_have_closed() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    host.io_queue(&mut registry, 1).unwrap();
    host.write_cc(&mut registry, Cc::default(), at(1));
    drain(&mut registry);
    assert!(host.csts(&mut registry).rdy());
    registry.queue_closed(host.id, QueueId(1));
    assert_eq!(host.csts(&mut registry), Csts(0));
}

#[test]
fn shutdown_waits_for_a_flush_if_configured() {
    let mut registry = Registry::new();
    let mut config = config();
    config.flush_on_shutdown = true;
    let subsystem = registry.add_subsystem(config).unwrap();
    let host = Host::ready(&mut registry);
    host.write_cc(&mut registry, enabling().with_shn(Cc::SHN_NORMAL), at(1));
    assert_eq!(host.csts(&mut registry).shst(), Csts::SHST_OCCURRING);
    let flush = Action::Flush { controller: host.id, subsystem };
    assert_eq!(drain(&mut registry), [flush]);
    // The host repeats the shutdown request, but the registry requests only one flush.
    host.write_cc(&mut registry, enabling().with_shn(Cc::SHN_ABRUPT), at(1));
    assert_eq!(drain(&mut registry), []);
    registry.shutdown_flushed(host.id, at(2));
    assert_eq!(host.csts(&mut registry).shst(), Csts::SHST_COMPLETE);
    assert_eq!(registry.next_deadline(), Some(at(122)));
    registry.shutdown_flushed(host.id, at(9));
    assert_eq!(registry.next_deadline(), Some(at(122)));
    registry.shutdown_flushed(ControllerId(99), at(9));
}

#[test]
fn a_reset_restores_features_and_drops_event_requests() {
    let (mut registry, subsystem) = registry();
    let host = Host::ready(&mut registry);
    host.set_feature(&mut registry, 0x0b, 1 << 8).unwrap();
    host.set_feature(&mut registry, 0x07, 0).unwrap();
    assert_eq!(host.admin(&mut registry, &event_request(5), at(0)), AdminOutcome::Pending);
    host.write_cc(&mut registry, Cc::default(), at(0));
    let forgotten = Action::Forget { controller: host.id, command: CommandId(5) };
    assert_eq!(drain(&mut registry), [forgotten]);
    assert_eq!(host.csts(&mut registry), Csts(0));

    host.write_cc(&mut registry, enabling(), at(0));
    assert_eq!(host.feature(&mut registry, 0x0b, 0, 0), Ok(0));
    assert_eq!(host.feature(&mut registry, 0x07, 0, 0), Ok(3 | 3 << 16));
    assert_eq!(host.admin(&mut registry, &event_request(6), at(0)), AdminOutcome::Pending);
    registry.resize_namespace(subsystem, NamespaceId(1), 10).unwrap();
    let events = drain(&mut registry);
    assert!(events.iter().all(|action| matches!(action, Action::Namespaces { .. })));
}

#[test]
fn before_enable_only_fabrics_commands_are_allowed() {
    let (mut registry, _) = registry();
    let states =
        [Cc::default(), enabling().with_mps(3), enabling().with_shn(Cc::SHN_NORMAL).with_en(false)];
    for nqn in [SUBSYSTEM_NQN, DISCOVERY_NQN] {
        for cc in states {
            let host = Host::connect(&mut registry, nqn);
            host.write_cc(&mut registry, cc, at(0));
            for opcode in [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0xff] {
                let outcome = host.admin(&mut registry, &Sqe::new(opcode, 1, 1), at(0));
                assert_eq!(outcome, failed(Status::COMMAND_SEQUENCE_ERROR), "{opcode:#x}");
            }
        }
    }
}

#[test]
fn unknown_and_malformed_commands_are_refused() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    let discovery = Host::discovery(&mut registry);
    let known = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x38, 0x7f];
    for opcode in (0..=0xff).filter(|opcode| !known.contains(opcode)) {
        for host in [&host, &discovery] {
            let outcome = host.admin(&mut registry, &Sqe::new(opcode, 1, 1), at(0));
            assert_eq!(outcome, failed(Status::INVALID_OPCODE), "{opcode:#x}");
        }
    }
    let abort = command(AdminOpcode::ABORT, 0);
    assert_eq!(discovery.admin(&mut registry, &abort, at(0)), failed(Status::INVALID_OPCODE));
    let reset = command(AdminOpcode::CROSS_CONTROLLER_RESET, 0);
    assert_eq!(discovery.admin(&mut registry, &reset, at(0)), failed(Status::INVALID_OPCODE));
    // Flags for PRPs, a reserved PSDT, and fused commands.
    for flags in [0x00, 0xc0, 0x41, 0x42, 0x43] {
        let mut sqe = command(AdminOpcode::KEEP_ALIVE, 0);
        sqe.flags = flags;
        let outcome = host.admin(&mut registry, &sqe, at(0));
        assert_eq!(outcome, failed(Status::INVALID_FIELD), "{flags:#x}");
    }
}

#[test]
fn fabrics_commands_on_the_wrong_queue_are_refused() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    let connect = ConnectCommand::new(1, 0, 31, 0).to_sqe();
    let disconnect = DisconnectCommand::new(1).to_sqe();
    let admin = [
        (connect, Status::COMMAND_SEQUENCE_ERROR),
        (disconnect, Status::new(1, 0x85)),
        (Sqe { nsid: 0x05.into(), ..connect }, Status::INVALID_OPCODE),
        (Sqe { nsid: 0xff.into(), ..connect }, Status::INVALID_OPCODE),
    ];
    for (sqe, status) in admin {
        assert_eq!(host.admin(&mut registry, &sqe, at(0)), failed(status));
    }

    host.io_queue(&mut registry, 1).unwrap();
    let on_io =
        |registry: &mut Registry, sqe: &Sqe| registry.fabrics_on_io_queue(host.id, QueueId(1), sqe);
    let get = PropertyGetCommand::new(1, offset::CSTS, PropertySize::Four).to_sqe();
    assert_eq!(on_io(&mut registry, &get), failed(Status::INVALID_OPCODE));
    assert_eq!(on_io(&mut registry, &connect), failed(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(on_io(&mut registry, &disconnect), AdminOutcome::Disconnect);
    let mut odd = DisconnectCommand::new(1);
    odd.recfmt = 1.into();
    let status = Status::CONNECT_INCOMPATIBLE_FORMAT;
    assert_eq!(on_io(&mut registry, &odd.to_sqe()), failed(status));
}

#[test]
fn commands_to_a_removed_controller_fail_with_aborted_sq_deletion() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    registry.remove_controller(host.id).unwrap();
    let sqe = command(AdminOpcode::KEEP_ALIVE, 0);
    let status = Status::ABORTED_SQ_DELETION;
    let outcome = AdminOutcome::Respond { status, result: 0 };
    assert_eq!(host.admin(&mut registry, &sqe, at(0)), outcome);
    assert_eq!(registry.admin_data_bytes(host.id, &sqe), 0);
    assert_eq!(registry.poll_event(host.id), None);
    assert_eq!(registry.queue_closed(host.id, QueueId(0)), None);
    assert_eq!(registry.remove_controller(host.id), None);
    assert_eq!(registry.max_transfer_bytes(host.id), None);
}

fn keep_alive(host: &Host, registry: &mut Registry, now: Instant) -> AdminOutcome {
    host.admin(registry, &command(AdminOpcode::KEEP_ALIVE, 0), now)
}

#[test]
fn a_silent_host_loses_its_controller() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    host.io_queue(&mut registry, 2).unwrap();
    assert_eq!(registry.next_deadline(), Some(at(5)));
    // Connect and the write to CC.EN count as traffic.
    assert!(registry.tick(at(5)).is_empty());
    assert_eq!(keep_alive(&host, &mut registry, at(9)), OK);
    assert_eq!(registry.next_deadline(), Some(at(14)));
    assert!(registry.tick(at(13)).is_empty());
    assert!(registry.tick(at(14)).is_empty(), "Keep Alive counts as traffic");
    assert!(registry.tick(at_ms(18_999)).is_empty());
    let gone = Teardown {
        controller: host.id,
        queues: vec![QueueId(0), QueueId(2)],
        reason: TeardownReason::KeepAliveExpired,
    };
    assert_eq!(registry.tick(at(19)), [gone]);
    assert_eq!(registry.next_deadline(), None);
    assert!(registry.tick(at(999)).is_empty());
}

#[test]
fn io_traffic_keeps_a_controller_alive() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    let queue = host.io_queue(&mut registry, 1).unwrap();
    for seconds in (5..100).step_by(5) {
        queue.traffic.mark();
        assert!(registry.tick(at(seconds)).is_empty(), "{seconds}");
    }
    assert_eq!(registry.tick(at(100)).len(), 1);
}

#[test]
fn the_keep_alive_timeout_can_be_changed_and_disabled() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    assert_eq!(host.feature(&mut registry, 0x0f, 0, 0), Ok(5000));
    host.set_feature(&mut registry, 0x0f, 60_001).unwrap();
    assert_eq!(host.feature(&mut registry, 0x0f, 0, 0), Ok(61_000));
    assert_eq!(registry.next_deadline(), Some(at(61)));
    host.set_feature(&mut registry, 0x0f, 0).unwrap();
    assert_eq!(registry.next_deadline(), None);
    assert_eq!(keep_alive(&host, &mut registry, at(1)), failed(Status::KEEP_ALIVE_INVALID));
    assert!(registry.tick(at(1_000_000)).is_empty());
}

#[test]
fn the_keep_alive_timer_starts_at_connect_and_restarts_at_enable() {
    let (mut registry, _) = registry();
    let host = Host::connect(&mut registry, SUBSYSTEM_NQN);
    assert_eq!(registry.next_deadline(), Some(at(5)));
    host.write_cc(&mut registry, enabling(), at(3));
    assert_eq!(registry.next_deadline(), Some(at(8)));

    Host::connect(&mut registry, SUBSYSTEM_NQN);
    assert_eq!(registry.next_deadline(), Some(at(5)));
    assert_eq!(registry.tick(at(5)).len(), 1, "the host never enables its controller");
}

#[test]
fn a_discovery_session_without_a_timeout_ends_after_two_minutes() {
    let (mut registry, _) = registry();
    let mut connect = Connect::admin(DISCOVERY_NQN);
    connect.command.kato = 0.into();
    let host = Host::of(&connect.send(&mut registry, at(0)).unwrap());
    assert_eq!(registry.next_deadline(), Some(at(120)));
    host.write_cc(&mut registry, enabling(), at(100));
    assert_eq!(keep_alive(&host, &mut registry, at(110)), OK);
    assert_eq!(registry.next_deadline(), Some(at(230)));
    assert!(registry.tick(at(230)).is_empty());
    assert_eq!(registry.tick(at(350)).len(), 1);
}

#[test]
fn a_namespace_change_is_reported_once_until_the_list_is_read() {
    let (mut registry, subsystem) = registry();
    let host = Host::ready(&mut registry);
    host.set_feature(&mut registry, 0x0b, 1 << 8).unwrap();
    for cid in 10..12 {
        let outcome = host.admin(&mut registry, &event_request(cid), at(0));
        assert_eq!(outcome, AdminOutcome::Pending);
    }
    assert_eq!(drain(&mut registry), []);

    let info = NamespaceInfo::new(4096, 10);
    registry.add_namespace(subsystem, NamespaceId(3), info).unwrap();
    let table = registry.namespaces(subsystem).unwrap();
    assert!(table.find(NamespaceId(3)).is_some());
    let changed = Action::Namespaces { subsystem, table };
    let told = event(host.id, 10, NAMESPACE_CHANGED);
    assert_eq!(drain(&mut registry), [changed, told]);

    registry.resize_namespace(subsystem, NamespaceId(7), 6_000).unwrap();
    registry.remove_namespace(subsystem, NamespaceId(3)).unwrap();
    assert_eq!(drain(&mut registry).len(), 1, "one table with both changes, and no event");
    let list = host.fetch(&mut registry, log_page(0x04, 0, 4096), 4096).unwrap();
    assert_eq!(&list[..12], [3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(drain(&mut registry), []);
    registry.resize_namespace(subsystem, NamespaceId(7), 7_000).unwrap();
    assert_eq!(drain(&mut registry)[1..], [event(host.id, 11, NAMESPACE_CHANGED)]);

    // A read with RAE leaves the event masked and the list unchanged.
    let mut retaining = log_page(0x04, 0, 4096);
    retaining.cdw10 = (retaining.cdw10.get() | 1 << 15).into();
    for _ in 0..2 {
        let list = host.fetch(&mut registry, retaining, 4096).unwrap();
        assert_eq!(&list[..8], [7, 0, 0, 0, 0, 0, 0, 0]);
    }
    registry.resize_namespace(subsystem, NamespaceId(1), 7_000).unwrap();
    let outcome = host.admin(&mut registry, &event_request(12), at(0));
    assert_eq!(outcome, AdminOutcome::Pending);
    assert_eq!(drain(&mut registry).len(), 1);
}

#[test]
fn a_replaced_namespace_is_reported_twice() {
    let (mut registry, subsystem) = registry();
    let host = Host::ready(&mut registry);
    host.set_feature(&mut registry, 0x0b, 1 << 8).unwrap();
    for cid in 10..13 {
        host.admin(&mut registry, &event_request(cid), at(0));
    }
    registry.remove_namespace(subsystem, NamespaceId(1)).unwrap();
    let info = NamespaceInfo::new(4096, 10);
    registry.add_namespace(subsystem, NamespaceId(1), info).unwrap();
    let told = |cid| [event(host.id, cid, NAMESPACE_CHANGED)];
    assert_eq!(drain(&mut registry).last(), told(10).last());
    let list = |registry: &mut Registry| {
        let list = host.fetch(registry, log_page(0x04, 0, 4096), 4096).unwrap();
        u32::from_le_bytes(list[..4].try_into().unwrap())
    };
    assert_eq!(list(&mut registry), 1);
    assert_eq!(drain(&mut registry), told(11), "the host may have seen only the removal");
    assert_eq!(list(&mut registry), 1);
    assert_eq!(drain(&mut registry), []);
    // If the host has read that the namespace was removed, a namespace that reuses its identifier
    // counts as new.
    registry.remove_namespace(subsystem, NamespaceId(1)).unwrap();
    assert_eq!(drain(&mut registry)[1..], told(12));
    list(&mut registry);
    registry.add_namespace(subsystem, NamespaceId(1), info).unwrap();
    drain(&mut registry);
    list(&mut registry);
    assert_eq!(registry.poll_event(host.id), None);
    assert_eq!(list(&mut registry), 0);
}

#[test]
fn an_event_waits_for_a_request() {
    let (mut registry, subsystem) = registry();
    let host = Host::ready(&mut registry);
    host.set_feature(&mut registry, 0x0b, 1 << 8).unwrap();
    registry.resize_namespace(subsystem, NamespaceId(1), 10).unwrap();
    assert_eq!(drain(&mut registry).len(), 1);
    assert_eq!(host.admin(&mut registry, &event_request(4), at(0)), AdminOutcome::Pending);
    assert_eq!(registry.poll_event(host.id), Some((CommandId(4), NAMESPACE_CHANGED)));
    assert_eq!(drain(&mut registry), []);
}

#[test]
fn a_namespace_change_is_reported_to_every_controller_of_its_subsystem_only() {
    let (mut registry, subsystem) = registry();
    let mut other = config();
    other.nqn = "nqn.2026-01.test.farblock:more".into();
    registry.add_subsystem(other.clone()).unwrap();
    let hosts = [Host::ready(&mut registry), Host::ready(&mut registry)];
    let stranger = Host::connect(&mut registry, &other.nqn);
    stranger.write_cc(&mut registry, enabling(), at(0));
    for host in hosts.iter().chain([&stranger]) {
        host.set_feature(&mut registry, 0x0b, 1 << 8).unwrap();
        host.admin(&mut registry, &event_request(1), at(0));
    }
    registry.resize_namespace(subsystem, NamespaceId(1), 10).unwrap();
    let told = hosts.map(|host| event(host.id, 1, NAMESPACE_CHANGED));
    assert_eq!(drain(&mut registry)[1..], told);
}

#[test]
fn discovery_changes_are_reported_only_to_hosts_that_see_them() {
    let (mut registry, subsystem) = registry();
    let mut connect = Connect::admin(DISCOVERY_NQN);
    connect.data.hostnqn = farblock_wire::nqn::nqn_field(OTHER_HOST_NQN);
    let stranger = Host::of(&connect.send(&mut registry, at(0)).unwrap());
    stranger.write_cc(&mut registry, enabling(), at(0));
    let host = Host::discovery(&mut registry);
    for host in [&host, &stranger] {
        let refusal = host.set_feature(&mut registry, 0x0b, 1 << 8);
        assert_eq!(refusal, refused(Status::INVALID_FIELD));
        host.set_feature(&mut registry, 0x0b, 1 << 31).unwrap();
        for cid in 0..3 {
            host.admin(&mut registry, &event_request(cid), at(0));
        }
    }
    registry.remove_subsystem(subsystem).unwrap();
    assert_eq!(drain(&mut registry), [event(host.id, 0, DISCOVERY_CHANGED)]);
    host.fetch(&mut registry, log_page(0x70, 0, 1024), 1024).unwrap();

    let mut open = config();
    open.allow_any_host = true;
    registry.add_subsystem(open).unwrap();
    let told = [(stranger.id, 0), (host.id, 1)];
    let told = told.map(|(id, cid)| event(id, cid, DISCOVERY_CHANGED));
    assert_eq!(drain(&mut registry), told);
}

#[test]
fn the_number_of_event_requests_is_limited() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    for cid in 0..limits::ASYNC_EVENT_REQUESTS as u16 {
        let outcome = host.admin(&mut registry, &event_request(cid), at(0));
        assert_eq!(outcome, AdminOutcome::Pending);
    }
    let outcome = host.admin(&mut registry, &event_request(77), at(0));
    assert_eq!(outcome, failed(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
}

#[test]
fn abort_reaches_event_requests_and_io_commands() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    host.io_queue(&mut registry, 2).unwrap();
    host.admin(&mut registry, &event_request(40), at(0));
    let abort = |registry: &mut Registry, sqid: u32, cid: u32| {
        let mut sqe = command(AdminOpcode::ABORT, 0);
        sqe.cdw10 = (sqid | cid << 16).into();
        host.admin(registry, &sqe, at(0))
    };
    let not_aborted = AdminOutcome::Respond { status: Status::SUCCESS, result: 1 };
    assert_eq!(abort(&mut registry, 0, 41), not_aborted);
    assert_eq!(abort(&mut registry, 3, 40), not_aborted);
    let (queue, command) = (QueueId(2), CommandId(0xffff));
    assert_eq!(abort(&mut registry, 2, 0xffff), AdminOutcome::Abort { queue, command });
    assert_eq!(drain(&mut registry), []);
    assert_eq!(abort(&mut registry, 0, 40), OK);
    let (command, status) = (CommandId(40), Status::ABORT_REQUESTED);
    let aborted = Action::Complete { controller: host.id, command, status, result: 0 };
    assert_eq!(drain(&mut registry), [aborted]);
    assert_eq!(abort(&mut registry, 0, 40), not_aborted);
}

#[test]
fn closed_queues_and_removed_objects_end_controllers() {
    let (mut registry, subsystem) = registry();
    let host = Host::ready(&mut registry);
    host.io_queue(&mut registry, 1).unwrap();
    host.io_queue(&mut registry, 2).unwrap();
    assert_eq!(registry.queue_closed(host.id, QueueId(1)), None);
    assert_eq!(registry.queue_closed(host.id, QueueId(9)), None);
    let end = Teardown {
        controller: host.id,
        queues: vec![QueueId(2)],
        reason: TeardownReason::AdminQueueClosed,
    };
    assert_eq!(registry.queue_closed(host.id, QueueId(0)), Some(end));

    let mut reasons = Vec::new();
    let host = Host::ready(&mut registry);
    reasons.push(registry.remove_controller(host.id).unwrap());
    Host::ready(&mut registry);
    reasons.extend(registry.disallow_host(subsystem, HOST_NQN).unwrap());
    registry.allow_host(subsystem, HOST_NQN).unwrap();
    registry.set_allow_any_host(subsystem, true).unwrap();
    Host::ready(&mut registry);
    assert_eq!(registry.disallow_host(subsystem, HOST_NQN).unwrap(), []);
    reasons.extend(registry.set_allow_any_host(subsystem, false).unwrap());
    registry.allow_host(subsystem, HOST_NQN).unwrap();
    Host::ready(&mut registry);
    reasons.extend(registry.remove_subsystem(subsystem).unwrap());
    Host::discovery(&mut registry);
    reasons.extend(registry.shutdown());
    let reasons: Vec<_> = reasons.into_iter().map(|end| end.reason).collect();
    let expected = [
        TeardownReason::Removed,
        TeardownReason::HostDisallowed,
        TeardownReason::HostDisallowed,
        TeardownReason::SubsystemRemoved,
        TeardownReason::TargetStopped,
    ];
    assert_eq!(reasons, expected);
    assert_eq!(registry.controllers().count(), 0);
}

#[test]
fn a_removed_controller_leaves_no_actions() {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    host.io_queue(&mut registry, 1).unwrap();
    host.admin(&mut registry, &event_request(1), at(0));
    host.write_cc(&mut registry, Cc::default(), at(0));
    registry.remove_controller(host.id).unwrap();
    assert_eq!(drain(&mut registry), []);
}

#[test]
fn the_summary_reports_the_lifecycle_of_a_controller() {
    let (mut registry, _) = registry();
    let host = Host::connect(&mut registry, SUBSYSTEM_NQN);
    let state = |registry: &Registry| registry.controllers().next().unwrap().lifecycle;
    assert_eq!(state(&registry), Lifecycle::Disabled);
    host.write_cc(&mut registry, enabling(), at(0));
    assert_eq!(state(&registry), Lifecycle::Ready);
    host.write_cc(&mut registry, enabling().with_shn(Cc::SHN_NORMAL), at(0));
    assert_eq!(state(&registry), Lifecycle::ShutDown);
}
