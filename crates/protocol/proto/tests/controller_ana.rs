//! Tests of asymmetric namespace access: the notices to hosts, and the commands that a state
//! blocks.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::capsule::RemoteForm;
use farblock_proto::controller::{
    Action, AddressFamily, ConfigError, CopyPart, CopyPlan, CopyRanges, CopySource, IoCommand,
    Listener, NamespaceTable, PortAccess, PortId, Registry, SubsystemId, limits,
};
use farblock_proto::ids::{BlockCount, CommandId, Lba, NamespaceId};
use farblock_wire::log::{AnaState, TransportType};
use farblock_wire::nvm::CopyRange;
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::sgl::SglDescriptor;
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;
use std::sync::Arc;

const NEAR: PortId = PortId(1);
const FAR: PortId = PortId(2);
const LOG: u8 = 0x0c;
const EVENT: u64 = 0x000c_0302;

/// Returns a registry with two ports. Namespaces 1 and 2 are in group 1, and namespace 7 is in
/// group 3.
fn registry_of_two_ports() -> (Registry, SubsystemId) {
    let (mut registry, id) = registry();
    for port in [NEAR, FAR] {
        let (family, address, service) = (AddressFamily::V4, "192.0.2.1", format!("{port}"));
        let listener = Listener {
            port,
            number: None,
            transport: TransportType::TCP,
            family,
            address: address.to_string(),
            service,
        };
        registry.add_listener(listener).unwrap();
    }
    let info = registry.subsystem(id).unwrap().namespaces[&NamespaceId(7)];
    let info = farblock_proto::controller::NamespaceInfo { ana_group: 3, ..info };
    registry.replace_namespace(id, NamespaceId(7), info).unwrap();
    drain(&mut registry);
    (registry, id)
}

fn ready_at(registry: &mut Registry, port: PortId) -> Host {
    let connect = Connect { port: Some(port), ..Connect::admin(SUBSYSTEM_NQN) };
    let host = Host::of(&connect.send(registry, at(0)).unwrap());
    host.write_cc(registry, enabling(), at(0));
    host
}

fn states(usual: AnaState, groups: &[(u32, AnaState)]) -> PortAccess {
    PortAccess { usual, groups: groups.iter().copied().collect() }
}

fn number(page: &[u8], at: usize, bytes: usize) -> u64 {
    page[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the log page's change count, and the number, state and namespaces of each group.
fn log(host: &Host, registry: &mut Registry, groups_only: bool) -> (u64, Vec<(u64, u8, Vec<u64>)>) {
    let mut sqe = log_page(LOG, 0, 4096);
    sqe.cdw10 = (sqe.cdw10.get() | u32::from(groups_only) << 8).into();
    let page = host.fetch(registry, sqe, 4096).unwrap();
    let (mut at, mut groups) = (16, Vec::new());
    for _ in 0..number(&page, 8, 2) {
        let (id, count) = (number(&page, at, 4), number(&page, at + 4, 4));
        let namespaces = (0..count as usize).map(|index| number(&page, at + 32 + 4 * index, 4));
        groups.push((id, page[at + 16], namespaces.collect()));
        at += 32 + 4 * count as usize;
    }
    (number(&page, 0, 8), groups)
}

fn identify(host: &Host, registry: &mut Registry, cns: u32, nsid: u32) -> Vec<u8> {
    let mut sqe = command(AdminOpcode::IDENTIFY, nsid);
    sqe.cdw10 = cns.into();
    host.fetch(registry, sqe, 4096).unwrap()
}

fn io(opcode: NvmOpcode, nsid: u32) -> Sqe {
    let mut sqe = Sqe::new(opcode.0, 1, nsid);
    sqe.dptr = SglDescriptor::transport(4096);
    sqe
}

fn parsed(table: &NamespaceTable, opcode: NvmOpcode, nsid: u32) -> Result<IoCommand, Status> {
    IoCommand::parse(&io(opcode, nsid), table, RemoteForm::Transport)
}

/// Returns the supported I/O commands in the page Commands Supported and Effects.
fn supported(host: &Host, registry: &mut Registry) -> Vec<NvmOpcode> {
    let page = host.fetch(registry, log_page(0x05, 0, 4096), 4096).unwrap();
    let is_there = |opcode: &u8| page[1024 + 4 * usize::from(*opcode)] & 1 == 1;
    let all: Vec<NvmOpcode> = (0..0x7f).filter(is_there).map(NvmOpcode).collect();
    for opcode in [
        NvmOpcode::COPY,
        NvmOpcode::RESERVATION_REGISTER,
        NvmOpcode::RESERVATION_ACQUIRE,
        NvmOpcode::RESERVATION_RELEASE,
    ] {
        assert!(all.contains(&opcode), "{opcode:?}");
    }
    all
}

fn tables(registry: &mut Registry) -> Vec<Arc<NamespaceTable>> {
    let tables = drain(registry).into_iter().filter_map(|action| match action {
        Action::Namespaces { table, .. } => Some(table),
        _ => None,
    });
    tables.collect()
}

#[test]
fn identify_advertises_the_ana_capabilities() {
    let (mut registry, _) = registry_of_two_ports();
    let host = ready_at(&mut registry, NEAR);
    let page = identify(&host, &mut registry, 0x01, 0);
    assert_eq!(page[76] & 0b1000, 0b1000, "CMIC");
    assert_eq!((page[342], page[343]), (limits::ANA_TRANSITION_SECONDS, 0b1_1111), "ANATT, ANACAP");
    assert_eq!(number(&page, 344, 4), u64::from(limits::MAX_ANA_GROUPS), "ANAGRPMAX");
    assert_eq!(number(&page, 348, 4), u64::from(limits::MAX_ANA_GROUPS), "NANAGRPID");
    // A port can have each state that ANACAP lists, and reports this state.
    for state in [0x01, 0x02, 0x03, 0x04, 0x0f].map(AnaState) {
        registry.set_port_access(NEAR, PortAccess::all(state)).unwrap();
        assert_eq!(log(&host, &mut registry, true).1[0].1, state.0);
    }
    for wrong in [
        PortAccess::all(AnaState(0)),
        PortAccess::all(AnaState(5)),
        states(AnaState::OPTIMIZED, &[(0, AnaState::OPTIMIZED)]),
        states(AnaState::OPTIMIZED, &[(limits::MAX_ANA_GROUPS + 1, AnaState::OPTIMIZED)]),
    ] {
        let refused = registry.set_port_access(NEAR, wrong);
        assert!(matches!(refused, Err(ConfigError::OutOfRange(_))), "{refused:?}");
    }
    let most = states(AnaState::OPTIMIZED, &[(limits::MAX_ANA_GROUPS, AnaState::CHANGE)]);
    registry.set_port_access(NEAR, most).unwrap();
    let nowhere = registry.set_port_access(PortId(9), PortAccess::default());
    assert_eq!(nowhere, Err(ConfigError::NotFound("listener")));
}

#[test]
fn each_port_has_its_own_ana_states() {
    let (mut registry, _) = registry_of_two_ports();
    let (near, far) = (ready_at(&mut registry, NEAR), ready_at(&mut registry, FAR));
    let access = states(AnaState::NON_OPTIMIZED, &[(3, AnaState::INACCESSIBLE)]);
    registry.set_port_access(FAR, access).unwrap();
    assert_eq!(log(&near, &mut registry, false), (0, vec![(1, 1, vec![1, 2]), (3, 1, vec![7])]));
    assert_eq!(log(&far, &mut registry, false), (1, vec![(1, 2, vec![1, 2]), (3, 3, vec![7])]));
    assert_eq!(log(&far, &mut registry, true).1, [(1, 2, vec![]), (3, 3, vec![])], "RGO");
    for (host, used) in [(near, 5_000), (far, 0)] {
        let page = identify(&host, &mut registry, 0x00, 7);
        assert_eq!((number(&page, 0, 8), number(&page, 16, 8)), (5_000, used), "NSZE, NUSE");
        assert_eq!(number(&page, 92, 4), 3, "ANAGRPID");
        let page = identify(&host, &mut registry, 0x08, 7);
        assert_eq!(number(&page, 4, 4), 3, "ANAGRPID of the independent structure");
    }
}

#[test]
fn each_unusable_ana_state_has_its_own_status() {
    let (mut registry, _) = registry_of_two_ports();
    let host = ready_at(&mut registry, FAR);
    for (state, status) in [
        (AnaState::INACCESSIBLE, Status::ANA_INACCESSIBLE),
        (AnaState::PERSISTENT_LOSS, Status::ANA_PERSISTENT_LOSS),
        (AnaState::CHANGE, Status::ANA_TRANSITION),
    ] {
        registry.set_port_access(FAR, states(AnaState::OPTIMIZED, &[(3, state)])).unwrap();
        let table = tables(&mut registry).pop().expect("a new table for the queues");
        let (near, far) = (table.seen_from(Some(NEAR)), table.seen_from(Some(FAR)));
        let elsewhere = table.seen_from(None);
        for opcode in supported(&host, &mut registry) {
            assert_eq!(parsed(&far, opcode, 7), Err(status), "{opcode:?} fails, without DNR");
            for table in [&near, &elsewhere] {
                let free = parsed(table, opcode, 7);
                assert_ne!(free, Err(status), "{opcode:?} does not fail through another port");
            }
        }
        // Check both commands of a fused pair, because the check must not depend on the role.
        for (opcode, fuse) in [(NvmOpcode::COMPARE, 1), (NvmOpcode::WRITE, 2)] {
            let sqe = Sqe { flags: fuse | io(opcode, 7).flags, ..io(opcode, 7) };
            let by = |table| IoCommand::parse(&sqe, table, RemoteForm::Transport);
            assert_eq!(by(&far), Err(status), "{opcode:?}, fused, fails");
            assert_ne!(
                by(&near),
                Err(status),
                "{opcode:?}, fused, does not fail through another port"
            );
        }
        assert!(parsed(&far, NvmOpcode::FLUSH, 1).is_ok(), "the other group is accessible");
        assert_eq!(
            parsed(&far, NvmOpcode::FLUSH, 0xffff_ffff),
            Err(status),
            "a Flush of all namespaces fails"
        );
        assert_eq!(parsed(&far, NvmOpcode(0x7f), 1).ok(), Some(IoCommand::Fabrics));
        // The registry also refuses pages about the namespace itself. It returns all other pages.
        let mut get = get_features(0x83, 0, 0);
        get.nsid = 7.into();
        assert_eq!(host.result(&mut registry, &get), Err(status));
        get.nsid = 1.into();
        assert_eq!(host.result(&mut registry, &get), Ok(0));
        assert!(host.set_feature(&mut registry, 0x0f, 5000).is_ok());
    }
    let queue = host.io_queue(&mut registry, 1).unwrap();
    assert_eq!(queue.port, Some(FAR));
    assert_eq!(parsed(&queue.namespaces, NvmOpcode::FLUSH, 7), Err(Status::ANA_TRANSITION));
    registry.set_port_access(FAR, PortAccess::default()).unwrap();
    let table = tables(&mut registry).pop().unwrap();
    assert!(table.generation() > queue.namespaces.generation());
    assert!(parsed(&table.seen_from(Some(FAR)), NvmOpcode::FLUSH, 7).is_ok());
}

/// A Copy needs access to its sources and its destination. Between two steps, either may become
/// inaccessible.
#[test]
fn a_copy_needs_access_to_its_sources_and_destination() {
    let (mut registry, subsystem) = registry_of_two_ports();
    let info = registry.subsystem(subsystem).unwrap().namespaces[&NamespaceId(7)];
    let other = farblock_proto::controller::NamespaceInfo { ana_group: 4, ..info };
    registry.add_namespace(subsystem, NamespaceId(8), other).unwrap();
    let source = |nsid: u32| {
        let mut range = [0; CopyRange::LEN];
        range[..4].copy_from_slice(&nsid.to_le_bytes());
        range
    };
    let (from, into) = (NamespaceId(7), NamespaceId(8));
    let plan = CopyPlan { namespace: into, lba: Lba(0), ranges: 1, across: true };
    let blocks = BlockCount(1);
    let from = CopySource { namespace: from, lba: Lba(0), blocks };
    let part = CopyPart { from, namespace: into, to: Lba(0) };
    for (state, status) in [
        (AnaState::INACCESSIBLE, Status::ANA_INACCESSIBLE),
        (AnaState::PERSISTENT_LOSS, Status::ANA_PERSISTENT_LOSS),
        (AnaState::CHANGE, Status::ANA_TRANSITION),
    ] {
        for group in [3, 4] {
            let access = states(AnaState::OPTIMIZED, &[(group, state)]);
            registry.set_port_access(FAR, access).unwrap();
            let table = tables(&mut registry).pop().expect("a new table for the queues");
            let (near, far) = (table.seen_from(Some(NEAR)), table.seen_from(Some(FAR)));
            // The target checks the command's own namespace before its ranges.
            let refused = parsed(&far, NvmOpcode::COPY, 8) == Err(status);
            assert_eq!(refused, group == 4, "group {group}");
            assert_eq!(part.check(&far), Err(status), "group {group}");
            assert_eq!(part.check(&near), Ok(()), "group {group}");
            let ranges = |table| CopyRanges::parse(&source(7), &plan, table).map(drop);
            let read = if group == 3 { Err(status) } else { Ok(()) };
            assert_eq!(ranges(&far), read);
            assert_eq!(ranges(&near), Ok(()));
        }
    }
}

#[test]
fn an_ana_change_is_reported_once_to_the_affected_hosts() {
    let (mut registry, subsystem) = registry_of_two_ports();
    let (near, far) = (ready_at(&mut registry, NEAR), ready_at(&mut registry, FAR));
    for host in [&near, &far] {
        host.set_feature(&mut registry, 0x0b, 1 << 11).unwrap();
        for command in [1, 2, 3] {
            let sqe = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, command, 0);
            host.admin(&mut registry, &sqe, at(0));
        }
    }
    let told = |registry: &mut Registry| -> Vec<_> {
        let events = drain(registry).into_iter().filter_map(|action| match action {
            Action::Complete { controller, command, result, .. } => {
                assert_eq!(result, EVENT);
                Some((controller, command))
            }
            _ => None,
        });
        events.collect()
    };
    registry.set_port_access(FAR, PortAccess::all(AnaState::INACCESSIBLE)).unwrap();
    assert_eq!(told(&mut registry), [(far.id, CommandId(1))]);
    registry.set_port_access(FAR, PortAccess::all(AnaState::OPTIMIZED)).unwrap();
    assert_eq!(told(&mut registry), [], "events are masked until the page is read");
    let mut retained = log_page(LOG, 0, 4096);
    retained.cdw10 = (retained.cdw10.get() | 1 << 15).into();
    far.fetch(&mut registry, retained, 4096).unwrap();
    registry.set_port_access(FAR, PortAccess::all(AnaState::CHANGE)).unwrap();
    assert_eq!(told(&mut registry), [], "a read with RAE does not unmask the event");
    assert_eq!(log(&far, &mut registry, true).0, 3);
    registry.set_port_access(FAR, PortAccess::all(AnaState::CHANGE)).unwrap();
    assert_eq!(told(&mut registry), [], "no event without a change");
    let of_nobody = states(AnaState::CHANGE, &[(9, AnaState::OPTIMIZED)]);
    registry.set_port_access(FAR, of_nobody).unwrap();
    assert_eq!(told(&mut registry), [], "no event about an invisible namespace");
    // A namespace that moves to another group raises an ANA event. A new namespace raises only its
    // own event.
    let info = registry.subsystem(subsystem).unwrap().namespaces[&NamespaceId(7)];
    let info = farblock_proto::controller::NamespaceInfo { ana_group: 1, ..info };
    registry.replace_namespace(subsystem, NamespaceId(7), info).unwrap();
    assert_eq!(told(&mut registry), [(near.id, CommandId(1)), (far.id, CommandId(2))]);
    assert_eq!(log(&far, &mut registry, false), (4, vec![(1, 0x0f, vec![1, 2, 7])]));
    registry.add_namespace(subsystem, NamespaceId(9), info).unwrap();
    assert_eq!(told(&mut registry), []);
    assert_eq!(log(&far, &mut registry, true).0, 5);
    // The change count restarts with the controller.
    far.write_cc(&mut registry, Default::default(), at(0));
    far.write_cc(&mut registry, enabling(), at(0));
    assert_eq!(log(&far, &mut registry, true).0, 0);
}

/// A new listener may reuse the port number of a removed listener.
#[test]
fn a_listener_with_a_reused_number_starts_with_default_ana_states() {
    let (mut registry, subsystem) = registry_of_two_ports();
    let host = ready_at(&mut registry, FAR);
    registry.set_port_access(FAR, PortAccess::all(AnaState::INACCESSIBLE)).unwrap();
    let reach = |registry: &Registry| {
        let table = registry.namespaces(subsystem).unwrap();
        table.seen_from(Some(FAR)).check_reach(NamespaceId(1))
    };
    let listener = registry.remove_listener(FAR).unwrap();
    // A controller of the removed listener still exists for a moment, and other changes may happen
    // meanwhile.
    registry.publish(subsystem);
    assert_eq!(reach(&registry), Err(Status::ANA_INACCESSIBLE));
    assert_eq!(log(&host, &mut registry, true).1[0].1, AnaState::INACCESSIBLE.0);
    drain(&mut registry);
    registry.add_listener(listener).unwrap();
    registry.set_port_access(FAR, PortAccess::default()).unwrap();
    let told = tables(&mut registry).pop().expect("a new table for the queues");
    assert_eq!(told.seen_from(Some(FAR)).check_reach(NamespaceId(1)), Ok(()));
    assert_eq!(reach(&registry), Ok(()));
    assert_eq!(registry.port_access(Some(FAR)), PortAccess::default());
}
