//! Tests of valid and invalid configurations of a registry, and of the behaviour at each limit.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::controller::{
    Action, AddressFamily, ConfigError, Listener, NamespaceInfo, PortId, Referral, Registry,
    Reservations, SubsystemConfig, SubsystemId, limits,
};
use farblock_proto::ids::NamespaceId;
use farblock_wire::log::TransportType;
use farblock_wire::nqn::DISCOVERY_NQN;

fn changed(change: impl FnOnce(&mut SubsystemConfig)) -> Result<(), ConfigError> {
    let mut config = config();
    change(&mut config);
    config.check()
}

fn namespace(change: impl FnOnce(&mut NamespaceInfo)) -> Result<(), ConfigError> {
    let (mut registry, subsystem) = registry();
    let mut info = NamespaceInfo::new(4096, 10);
    change(&mut info);
    registry.add_namespace(subsystem, NamespaceId(9), info)
}

#[test]
fn names_and_texts_that_do_not_fit_are_refused() {
    assert_eq!(changed(|_| {}), Ok(()));
    let bad_nqn =
        |name: &str| matches!(changed(|c| c.nqn = name.into()), Err(ConfigError::Nqn(..)));
    assert!(bad_nqn("") && bad_nqn("nqn.disks") && bad_nqn(&format!("{SUBSYSTEM_NQN}{:0>224}", 1)));
    assert_eq!(changed(|c| c.nqn = DISCOVERY_NQN.into()), Err(ConfigError::DiscoveryNqn));
    // The names of some peers are not NQNs and do not start with `nqn.`.
    assert_eq!(changed(|c| c.nqn = "blktests-subsystem-1".into()), Ok(()));
    let host = changed(|c| c.allowed_hosts.push("nqn.me".into()));
    assert!(matches!(host, Err(ConfigError::Nqn(..))));
    let texts = [
        changed(|c| c.serial = "x".repeat(21)),
        changed(|c| c.serial.clear()),
        changed(|c| c.model = "x".repeat(41)),
        changed(|c| c.firmware = "123456789".into()),
        changed(|c| c.serial = "naïve".into()),
        changed(|c| c.model = "tab\t".into()),
    ];
    for text in texts {
        assert!(matches!(text, Err(ConfigError::Text(_))), "{text:?}");
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let wrong = [
        changed(|c| c.max_io_queues = 0),
        changed(|c| c.max_io_queues = limits::MAX_IO_QUEUES + 1),
        changed(|c| c.max_queue_depth = limits::MIN_QUEUE_DEPTH - 1),
        changed(|c| c.max_queue_depth = farblock_proto::limits::MAX_QUEUE_DEPTH + 1),
        changed(|c| c.max_transfer_bytes = 4096),
        changed(|c| c.max_transfer_bytes = 12288),
        changed(|c| c.max_transfer_bytes = limits::MAX_TRANSFER_BYTES * 2),
        changed(|c| c.in_capsule_bytes = 8),
        changed(|c| c.in_capsule_bytes = limits::MAX_IN_CAPSULE_BYTES + 16),
    ];
    for number in wrong {
        assert!(matches!(number, Err(ConfigError::OutOfRange(_))), "{number:?}");
    }
    assert_eq!(changed(|c| c.in_capsule_bytes = 0), Ok(()));
    assert_eq!(changed(|c| c.max_transfer_bytes = 8192), Ok(()));
}

#[test]
fn impossible_namespaces_are_refused() {
    assert_eq!(namespace(|_| {}), Ok(()));
    for size in [0, 256, 513, 128 << 10] {
        assert_eq!(namespace(|info| info.block_size = size), Err(ConfigError::BlockSize(size)));
    }
    for blocks in [0, u64::MAX, 1 << 52] {
        assert_eq!(namespace(|info| info.blocks = blocks), Err(ConfigError::Capacity(blocks)));
    }
    assert_eq!(namespace(|info| info.blocks = (1 << 52) - 1), Ok(()));

    let (mut registry, subsystem) = registry();
    let info = NamespaceInfo::new(512, 1);
    for id in [0, limits::MAX_NAMESPACE_ID + 1, u32::MAX].map(NamespaceId) {
        let answer = registry.add_namespace(subsystem, id, info);
        assert_eq!(answer, Err(ConfigError::NamespaceId(id)));
    }
    let exists = registry.add_namespace(subsystem, NamespaceId(1), info);
    assert_eq!(exists, Err(ConfigError::Exists("namespace")));
    let missing = ConfigError::NotFound("namespace");
    assert_eq!(registry.remove_namespace(subsystem, NamespaceId(3)), Err(missing.clone()));
    assert_eq!(registry.resize_namespace(subsystem, NamespaceId(3), 1), Err(missing.clone()));
    assert_eq!(registry.replace_namespace(subsystem, NamespaceId(3), info), Err(missing));
    let empty = registry.resize_namespace(subsystem, NamespaceId(1), 0);
    assert_eq!(empty, Err(ConfigError::Capacity(0)));
    assert_eq!(drain(&mut registry), [], "a refused change has no effect");
}

#[test]
fn namespace_tables_are_snapshots_with_increasing_generations() {
    let (mut registry, subsystem) = registry();
    let before = registry.namespaces(subsystem).unwrap();
    registry.resize_namespace(subsystem, NamespaceId(1), 5).unwrap();
    let mut actions = drain(&mut registry);
    registry.remove_namespace(subsystem, NamespaceId(2)).unwrap();
    actions.extend(drain(&mut registry));
    let [Action::Namespaces { table: first, .. }, Action::Namespaces { table: second, .. }] =
        &actions[..]
    else {
        panic!("{actions:?}");
    };
    assert!(before.generation() < first.generation());
    assert!(first.generation() < second.generation());
    assert_eq!(before.find(NamespaceId(1)).unwrap().blocks, 20_000);
    assert_eq!(first.find(NamespaceId(1)).unwrap().blocks, 5);
    assert!(first.find(NamespaceId(2)).is_some() && second.find(NamespaceId(2)).is_none());
    assert_eq!(second.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1, 7]);
}

/// Building a table takes time in proportion to the number of namespaces, so a thousand changes
/// must not build a thousand tables.
#[test]
fn a_batch_of_changes_builds_one_table_after_the_reservation_rights() {
    let (mut registry, subsystem) = registry();
    let stored = format!(
        "farblock reservations 1\ngeneration 1\nreservation 1 {host}\nhost {host} 1f\n",
        host = "1".repeat(32)
    );
    let stored = Reservations::from_text(&stored).expect("a holder");
    let before = registry.namespaces(subsystem).unwrap();
    for id in 100..1100 {
        let kept = (id == 500).then(|| stored.clone());
        let info = NamespaceInfo::new(512, 1);
        registry.add_namespace_for(subsystem, NamespaceId(id), info, None, kept).unwrap();
    }
    registry.remove_namespace(subsystem, NamespaceId(1099)).unwrap();
    let actions = drain(&mut registry);
    let [Action::Access(rights), Action::Namespaces { table, .. }] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(rights.namespace, NamespaceId(500));
    assert_eq!(table.iter().count(), before.iter().count() + 999);
    assert_eq!(registry.namespaces(subsystem).as_ref(), Some(table));
    assert!(table.generation() > before.generation());
}

#[test]
fn changes_of_missing_objects_are_refused() {
    let mut registry = Registry::new();
    let missing = ConfigError::NotFound("subsystem");
    let id = SubsystemId(1);
    assert_eq!(registry.remove_subsystem(id), Err(missing.clone()));
    assert_eq!(registry.allow_host(id, HOST_NQN), Err(missing.clone()));
    assert_eq!(registry.disallow_host(id, HOST_NQN), Err(missing.clone()));
    assert_eq!(registry.set_allow_any_host(id, true), Err(missing.clone()));
    let info = NamespaceInfo::new(512, 1);
    assert_eq!(registry.add_namespace(id, NamespaceId(1), info), Err(missing));
    let listener = registry.remove_listener(PortId(0));
    assert_eq!(listener, Err(ConfigError::NotFound("listener")));
    assert_eq!(registry.subsystem(id), None);
    assert_eq!(registry.namespaces(id), None);
}

#[test]
fn subsystem_names_are_unique_and_their_number_is_limited() {
    let mut registry = Registry::new();
    for number in 0..limits::MAX_SUBSYSTEMS {
        let mut config = config();
        config.nqn = format!("{SUBSYSTEM_NQN}{number}");
        registry.add_subsystem(config.clone()).unwrap();
        let twice = registry.add_subsystem(config);
        assert_eq!(twice, Err(ConfigError::Exists("subsystem")));
    }
    let many = registry.add_subsystem(config());
    assert_eq!(many, Err(ConfigError::TooMany("subsystems")));
    registry.remove_subsystem(SubsystemId(1)).unwrap();
    let id = registry.add_subsystem(config()).unwrap();
    assert_eq!(
        id,
        SubsystemId(limits::MAX_SUBSYSTEMS as u32 + 1),
        "the identifier of a removed subsystem is not reused"
    );
    assert_eq!(registry.find_subsystem(SUBSYSTEM_NQN), Some(id));
}

#[test]
fn the_numbers_of_listeners_and_referrals_are_limited() {
    let mut registry = Registry::new();
    let listener = |port: u16| Listener {
        port: PortId(port),
        number: None,
        transport: TransportType::TCP,
        family: AddressFamily::V4,
        address: "192.0.2.1".into(),
        service: "4420".into(),
    };
    for port in 0..limits::MAX_LISTENERS as u16 {
        registry.add_listener(listener(port)).unwrap();
    }
    let twice = registry.add_listener(listener(0));
    assert_eq!(twice, Err(ConfigError::Exists("listener")));
    let many = registry.add_listener(listener(999));
    assert_eq!(many, Err(ConfigError::TooMany("listeners")));
    assert_eq!(registry.remove_listener(PortId(3)), Ok(listener(3)));
    let long = Listener { address: "x".repeat(257), ..listener(999) };
    assert_eq!(registry.add_listener(long), Err(ConfigError::Text("listener address")));

    let referral = |number: usize| Referral {
        family: AddressFamily::V6,
        address: format!("2001:db8::{number:x}"),
        service: "8009".into(),
    };
    for number in 0..limits::MAX_REFERRALS {
        registry.add_referral(referral(number)).unwrap();
    }
    assert_eq!(registry.add_referral(referral(0)), Err(ConfigError::Exists("referral")));
    let many = registry.add_referral(referral(999));
    assert_eq!(many, Err(ConfigError::TooMany("referrals")));
    registry.remove_referral(&referral(0)).unwrap();
    let gone = registry.remove_referral(&referral(0));
    assert_eq!(gone, Err(ConfigError::NotFound("referral")));
    let empty = Referral { service: String::new(), ..referral(0) };
    assert_eq!(registry.add_referral(empty), Err(ConfigError::Text("referral service")));
}

#[test]
fn the_number_of_allowed_hosts_is_limited() {
    let (mut registry, subsystem) = registry();
    for number in 1..limits::MAX_ALLOWED_HOSTS {
        registry.allow_host(subsystem, &format!("{HOST_NQN}{number}")).unwrap();
    }
    assert_eq!(
        registry.allow_host(subsystem, HOST_NQN),
        Ok(()),
        "an allowed host may be allowed again at the limit"
    );
    let many = registry.allow_host(subsystem, OTHER_HOST_NQN);
    assert_eq!(many, Err(ConfigError::TooMany("allowed hosts")));
    let many = changed(|c| c.allowed_hosts = vec![HOST_NQN.into(); 1025]);
    assert_eq!(many, Err(ConfigError::TooMany("allowed hosts")));
}

#[test]
fn the_largest_discovery_page_can_be_read_in_pieces() {
    let mut registry = Registry::new();
    for number in 0..limits::MAX_SUBSYSTEMS {
        let mut config = config();
        config.nqn = format!("{SUBSYSTEM_NQN}{number}");
        registry.add_subsystem(config).unwrap();
    }
    for port in 0..limits::MAX_LISTENERS as u16 {
        let listener = Listener {
            port: PortId(port),
            number: None,
            transport: TransportType::TCP,
            family: AddressFamily::V4,
            address: "0.0.0.0".into(),
            service: (4420 + port).to_string(),
        };
        registry.add_listener(listener).unwrap();
    }
    let host = Host::discovery(&mut registry);
    let header = host.fetch(&mut registry, log_page(0x70, 0, 16), 16).unwrap();
    let records = u64::from_le_bytes(header[8..].try_into().unwrap());
    assert_eq!(records, 32 * 257);
    let last = host.fetch(&mut registry, log_page(0x70, records * 1024, 1024), 1024).unwrap();
    assert_eq!((last[2], u16::from_le_bytes([last[4], last[5]])), (3, 31));
    let most = 1 << 20;
    let page = host.fetch(&mut registry, log_page(0x70, 512, most), most).unwrap();
    let second = host.fetch(&mut registry, log_page(0x70, 1024, 1024), 1024).unwrap();
    assert_eq!(page[512..1536], second);
}

#[test]
fn every_configuration_error_has_a_message() {
    let errors = [
        changed(|c| c.nqn = "nqn.x".into()),
        changed(|c| c.nqn = DISCOVERY_NQN.into()),
        changed(|c| c.serial.clear()),
        changed(|c| c.max_io_queues = 0),
        namespace(|info| info.block_size = 3),
        namespace(|info| info.blocks = 0),
        Err(ConfigError::NamespaceId(NamespaceId(0))),
        Err(ConfigError::TooMany("listeners")),
        Err(ConfigError::Exists("namespace")),
        Err(ConfigError::NotFound("subsystem")),
    ];
    for error in errors {
        assert!(error.unwrap_err().to_string().len() > 10);
    }
}
