//! Tests of the visibility of namespaces: the notices to hosts, and namespaces that are inactive
//! for a host.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::capsule::RemoteForm;
use farblock_proto::controller::{
    Action, AddressFamily, ConfigError, IoCommand, Listener, NamespaceInfo, NamespaceTable,
    PortAccess, PortId, Registry, SubsystemId, limits,
};
use farblock_proto::ids::{CommandId, ControllerId, NamespaceId};
use farblock_wire::fabrics::{CNTLID_DYNAMIC, ConnectData};
use farblock_wire::log::{AnaState, TransportType};
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::sgl::SglDescriptor;
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;
use std::collections::BTreeSet;
use std::sync::Arc;

const FAR: PortId = PortId(2);
const ATTRIBUTES: u64 = 0x0004_0002;
const GONE: Status = Status::INVALID_NAMESPACE.with_dnr();

fn only(hosts: &[&str]) -> Option<BTreeSet<String>> {
    Some(hosts.iter().map(|host| (*host).to_owned()).collect())
}

/// Returns two hosts that enabled events. The first host sees namespace 7, the second host does
/// not.
fn two_hosts() -> (Registry, SubsystemId, Host, Host) {
    let (mut registry, id) = registry();
    registry.set_allow_any_host(id, true).unwrap();
    let hosts = [(HOST_NQN, [7; 16]), (OTHER_HOST_NQN, [9; 16])].map(|(name, host_id)| {
        let data = ConnectData::new(host_id, CNTLID_DYNAMIC, SUBSYSTEM_NQN, name);
        let connect = Connect { data, ..Connect::admin(SUBSYSTEM_NQN) };
        let host = Host::of(&connect.send(&mut registry, at(0)).unwrap());
        host.write_cc(&mut registry, enabling(), at(0));
        host.set_feature(&mut registry, 0x0b, 1 << 8).unwrap();
        for command in [1, 2, 3] {
            let sqe = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, command, 0);
            host.admin(&mut registry, &sqe, at(0));
        }
        host
    });
    registry.set_visible_to(id, NamespaceId(7), only(&[HOST_NQN])).unwrap();
    drain(&mut registry);
    let [first, second] = hosts;
    (registry, id, first, second)
}

fn identify(host: &Host, registry: &mut Registry, cns: u32, nsid: u32) -> Result<Vec<u8>, Status> {
    let mut sqe = Sqe::new(AdminOpcode::IDENTIFY.0, 8, nsid);
    sqe.cdw10 = cns.into();
    sqe.dptr = SglDescriptor::transport(4096);
    host.fetch(registry, sqe, 4096)
}

fn list(page: &[u8]) -> Vec<u32> {
    let ids = page.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
    ids.take_while(|id| *id != 0).collect()
}

fn active(host: &Host, registry: &mut Registry) -> Vec<u32> {
    list(&identify(host, registry, 0x02, 0).unwrap())
}

fn flush(table: &NamespaceTable, nsid: u32) -> Result<IoCommand, Status> {
    let sqe = Sqe::new(NvmOpcode::FLUSH.0, 1, nsid);
    IoCommand::parse(&sqe, table, RemoteForm::Transport)
}

fn tables(actions: &[Action]) -> Vec<Arc<NamespaceTable>> {
    let tables = actions.iter().filter_map(|action| match action {
        Action::Namespaces { table, .. } => Some(Arc::clone(table)),
        _ => None,
    });
    tables.collect()
}

fn told(actions: &[Action]) -> Vec<(ControllerId, CommandId)> {
    let events = actions.iter().filter_map(|action| match action {
        Action::Complete { controller, command, result, .. } => {
            assert_eq!(*result, ATTRIBUTES);
            Some((*controller, *command))
        }
        _ => None,
    });
    events.collect()
}

#[test]
fn an_invisible_namespace_is_inactive() {
    let (mut registry, _, first, second) = two_hosts();
    assert_eq!(active(&first, &mut registry), [1, 2, 7]);
    for cns in [0x02, 0x07, 0x10, 0x1a] {
        assert_eq!(list(&identify(&second, &mut registry, cns, 0).unwrap()), [1, 2], "{cns:#x}");
    }
    for cns in [0x00, 0x11] {
        let page = identify(&second, &mut registry, cns, 7).unwrap();
        assert!(page.iter().all(|byte| *byte == 0), "{cns:#x}");
        let seen = identify(&first, &mut registry, cns, 7).unwrap();
        assert!(seen.iter().any(|byte| *byte != 0), "{cns:#x}");
    }
    for cns in [0x03, 0x05, 0x08] {
        assert_eq!(identify(&second, &mut registry, cns, 7), Err(GONE), "{cns:#x}");
        assert!(identify(&first, &mut registry, cns, 7).is_ok(), "{cns:#x}");
    }
    // The list of attached controllers contains only controllers whose hosts see the namespace.
    let attached = identify(&first, &mut registry, 0x12, 7).unwrap();
    assert_eq!(u16::from_le_bytes([attached[0], attached[1]]), 1);
    assert_eq!(u16::from_le_bytes([attached[2], attached[3]]), first.id.0);
    assert_eq!(identify(&second, &mut registry, 0x12, 7).unwrap()[0], 0);
    // ANA: the header counts the groups, and the group descriptors list only visible namespaces.
    let ana = second.fetch(&mut registry, log_page(0x0c, 0, 4096), 4096).unwrap();
    assert_eq!(u32::from_le_bytes(ana[20..24].try_into().unwrap()), 2, "NNSIDS");
    // The registry refuses reservation features for an invisible namespace.
    let mut get = get_features(0x82, 0, 0);
    get.nsid = 7.into();
    assert_eq!(second.result(&mut registry, &get), Err(GONE));
    assert_eq!(first.result(&mut registry, &get), Ok(0));
    let mut set = Sqe::new(AdminOpcode::SET_FEATURES.0, 9, 7);
    (set.cdw10, set.cdw11) = (0x82.into(), 2.into());
    assert_eq!(second.result(&mut registry, &set), Err(GONE));
    set.nsid = 0xffff_ffff.into();
    assert_eq!(second.result(&mut registry, &set), Ok(0));
    assert_eq!(
        first.result(&mut registry, &get),
        Ok(0),
        "the command applies to the visible namespaces"
    );
    assert_eq!(first.result(&mut registry, &set), Ok(0));
    assert_eq!(first.result(&mut registry, &get), Ok(2));
}

#[test]
fn queues_access_only_visible_namespaces() {
    let (mut registry, id, first, second) = two_hosts();
    let queue = first.io_queue(&mut registry, 1).unwrap();
    assert!(flush(&queue.namespaces, 7).is_ok());
    let table = registry.namespaces(id).unwrap();
    for nobody in [OTHER_HOST_NQN, "nqn.2026-01.test.farblock:never-heard-of"] {
        assert_eq!(flush(&table.seen_by(nobody), 7), Err(GONE), "{nobody}");
        assert!(flush(&table.seen_by(nobody), 1).is_ok());
        assert!(
            flush(&table.seen_by(nobody), 0xffff_ffff).is_ok(),
            "the command applies to the visible namespaces"
        );
    }
    // Visibility also applies together with the ANA states of a port.
    let (family, address) = (AddressFamily::V4, "192.0.2.1".to_owned());
    let listener = Listener {
        port: FAR,
        number: None,
        transport: TransportType::TCP,
        family,
        address,
        service: "4420".to_owned(),
    };
    registry.add_listener(listener).unwrap();
    registry.set_port_access(FAR, PortAccess::all(AnaState::INACCESSIBLE)).unwrap();
    let table = tables(&drain(&mut registry)).pop().unwrap();
    let far = |host: &str| table.seen_by(host).seen_from(Some(FAR));
    assert_eq!(flush(&far(HOST_NQN), 7), Err(Status::ANA_INACCESSIBLE));
    assert_ne!(flush(&far(OTHER_HOST_NQN), 7), Ok(IoCommand::Fabrics));
    assert!(far(OTHER_HOST_NQN).find(NamespaceId(7)).is_none());
    assert!(flush(&table.seen_by(HOST_NQN).seen_from(None), 7).is_ok());
    // Without a visibility list, there are no tables for individual hosts.
    registry.set_visible_to(id, NamespaceId(7), None).unwrap();
    let table = registry.namespaces(id).unwrap();
    assert!(Arc::ptr_eq(&table, &table.seen_by(OTHER_HOST_NQN)));
    assert_eq!(active(&second, &mut registry), [1, 2, 7]);
}

#[test]
fn a_visibility_change_is_reported_only_to_affected_hosts() {
    let (mut registry, id, first, second) = two_hosts();
    for host in [&first, &second] {
        host.fetch(&mut registry, log_page(0x04, 0, 4096), 4096).unwrap();
    }
    drain(&mut registry);
    let changed = |host: &Host, registry: &mut Registry| {
        list(&host.fetch(registry, log_page(0x04, 0, 4096), 4096).unwrap())
    };
    registry.set_visible_to(id, NamespaceId(7), only(&[HOST_NQN, OTHER_HOST_NQN])).unwrap();
    let actions = drain(&mut registry);
    assert_eq!(tables(&actions).len(), 1, "a new table for the queues");
    assert_eq!(told(&actions), [(second.id, CommandId(2))]);
    assert_eq!(changed(&second, &mut registry), [7]);
    registry.set_visible_to(id, NamespaceId(7), only(&[])).unwrap();
    assert_eq!(active(&first, &mut registry), [1, 2]);
    assert_eq!(
        (changed(&first, &mut registry), changed(&second, &mut registry)),
        (vec![7], vec![7])
    );
    drain(&mut registry);
    // Later changes of this namespace raise no event for this host. A new namespace that only other
    // hosts see raises no event for this host, either.
    registry.resize_namespace(id, NamespaceId(7), 9).unwrap();
    registry.set_visible_to(id, NamespaceId(7), only(&[])).unwrap();
    registry.remove_namespace(id, NamespaceId(7)).unwrap();
    let info = NamespaceInfo::new(512, 8);
    registry.add_namespace_for(id, NamespaceId(8), info, only(&[HOST_NQN]), None).unwrap();
    let about: Vec<_> = told(&drain(&mut registry)).into_iter().map(|(id, _)| id).collect();
    assert!(!about.contains(&second.id), "{about:?}");
    assert_eq!(changed(&second, &mut registry), []);
    assert_eq!(active(&second, &mut registry), [1, 2]);
    assert_eq!(active(&first, &mut registry), [1, 2, 8]);
    // A new namespace with this identifier does not inherit the old visibility.
    registry.remove_namespace(id, NamespaceId(8)).unwrap();
    registry.add_namespace(id, NamespaceId(8), info).unwrap();
    assert_eq!(active(&second, &mut registry), [1, 2, 8]);
}

#[test]
fn visible_to_accepts_a_limited_number_of_valid_names() {
    let (mut registry, id, ..) = two_hosts();
    let mut set = |hosts| registry.set_visible_to(id, NamespaceId(1), hosts);
    assert!(matches!(set(only(&["nqn.wrong"])), Err(ConfigError::Nqn(..))));
    let name = |index| format!("nqn.2026-01.test.farblock:{index}");
    // One host is already on the list.
    let most: BTreeSet<_> = (1..limits::MAX_VISIBLE_TO).map(name).collect();
    set(Some(most.clone())).unwrap();
    let more = most.iter().cloned().chain([name(0)]).collect();
    assert!(matches!(set(Some(more)), Err(ConfigError::TooMany(_))));
    assert_eq!(
        registry.subsystem(id).unwrap().visible_to[&NamespaceId(1)],
        most,
        "a refused list changes nothing"
    );
    let missing = registry.set_visible_to(id, NamespaceId(99), None);
    assert_eq!(missing, Err(ConfigError::NotFound("namespace")));
    registry.set_visible_to(id, NamespaceId(1), None).unwrap();
    let info = NamespaceInfo::new(512, 8);
    let refused = registry.add_namespace_for(id, NamespaceId(9), info, only(&["nqn.wrong"]), None);
    assert!(matches!(refused, Err(ConfigError::Nqn(..))));
    assert!(registry.namespaces(id).unwrap().find(NamespaceId(9)).is_none());
}
