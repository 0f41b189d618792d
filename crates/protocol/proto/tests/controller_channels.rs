//! Tests of channel security in the discovery log page: the listeners to which each host may
//! connect, and with which security.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::controller::{
    Action, AddressFamily, ChannelSecurity, HostChannel, Listener, PortId, Registry, SubsystemId,
};
use farblock_proto::ids::CommandId;
use farblock_wire::log::TransportType;
use farblock_wire::nqn::{DISCOVERY_NQN, nqn_field};
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

/// The listeners: without TLS, with TLS for hosts that have a key, and with TLS for all hosts.
const PORTS: [(u16, ChannelSecurity); 3] =
    [(1, ChannelSecurity::None), (2, ChannelSecurity::Allowed), (3, ChannelSecurity::Required)];

/// The two secure channel bits of TREQ, and SECTYPE.
const NONE: (u8, u8) = (0b10, 0);
const ALLOWED: (u8, u8) = (0b10, 2);
const REQUIRED: (u8, u8) = (0b01, 2);

fn with_ports() -> (Registry, SubsystemId) {
    let (mut registry, subsystem) = registry();
    for (port, security) in PORTS {
        let (address, service) = ("192.0.2.7".into(), (4420 + port).to_string());
        let listener = Listener {
            port: PortId(port),
            number: None,
            transport: TransportType::TCP,
            family: AddressFamily::V4,
            address,
            service,
        };
        registry.add_listener(listener).unwrap();
        registry.set_security(PortId(port), security);
    }
    (registry, subsystem)
}

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(page[at..at + 2].try_into().unwrap())
}

/// Returns the port and the security of each record of one kind.
fn listed(page: &[u8], kind: u8) -> Vec<(u16, (u8, u8))> {
    let count = usize::from(u16_at(page, 8));
    let records = page[1024..].chunks_exact(1024).take(count).filter(|entry| entry[2] == kind);
    records.map(|entry| (u16_at(entry, 4), (entry[3] & 0b11, entry[768]))).collect()
}

fn page(registry: &mut Registry, host: &Host) -> Vec<u8> {
    host.fetch(registry, log_page(0x70, 0, 65536), 65536).unwrap()
}

#[test]
fn discovery_lists_the_usable_listeners_and_their_security() {
    const SUBSYSTEM: u8 = 2;
    const ITSELF: u8 = 3;
    for (channel, subsystem_at, itself_at) in [
        (HostChannel::Plain, vec![(1, NONE), (2, NONE)], vec![(1, NONE), (2, NONE)]),
        (HostChannel::Concatenated, vec![(2, ALLOWED)], vec![(1, NONE), (2, NONE)]),
        (
            HostChannel::Tls,
            vec![(2, REQUIRED), (3, REQUIRED)],
            vec![(1, NONE), (2, ALLOWED), (3, REQUIRED)],
        ),
    ] {
        for for_all in [false, true] {
            let (mut registry, subsystem) = with_ports();
            let host = Host::discovery(&mut registry);
            let place = (!for_all).then_some(subsystem);
            registry.set_host_channel(place, OTHER_HOST_NQN, HostChannel::Tls);
            registry.set_host_channel(place, HOST_NQN, channel);
            let page = page(&mut registry, &host);
            assert_eq!(listed(&page, SUBSYSTEM), subsystem_at, "{channel:?} {for_all}");
            assert_eq!(listed(&page, ITSELF), itself_at, "{channel:?} {for_all}");
        }
    }
}

#[test]
fn each_subsystem_has_its_own_records_at_any_offset() {
    let (mut registry, keyed) = with_ports();
    let add = |name: &str, registry: &mut Registry| {
        let mut more = config();
        more.nqn = format!("nqn.2026-01.test.farblock:{name}");
        registry.add_subsystem(more).unwrap()
    };
    let nowhere = add("nowhere", &mut registry);
    add("plain", &mut registry);
    registry.set_security(PortId(2), ChannelSecurity::None);
    registry.set_security(PortId(3), ChannelSecurity::Required);
    registry.set_host_channel(Some(keyed), HOST_NQN, HostChannel::Tls);
    registry.set_host_channel(Some(nowhere), HOST_NQN, HostChannel::Concatenated);
    let host = Host::discovery(&mut registry);
    let whole = page(&mut registry, &host);
    assert_eq!(listed(&whole, 2), [(3, REQUIRED), (1, NONE), (2, NONE)]);
    let count = u64::from(u16_at(&whole, 8));
    for index in 0..=count {
        let one = host.fetch(&mut registry, log_page(0x70, index * 1024, 1024), 1024).unwrap();
        let start = index as usize * 1024;
        assert_eq!(one, whole[start..start + 1024], "record {index}");
    }
    // The removal of a subsystem drops its channel settings.
    registry.remove_subsystem(keyed).unwrap();
    let again = registry.add_subsystem(config()).unwrap();
    assert_ne!(again, keyed);
    assert_eq!(
        listed(&page(&mut registry, &host), 3),
        [(1, NONE), (2, NONE)],
        "the host has no key any more"
    );
}

#[test]
fn a_change_of_security_is_reported_only_to_the_affected_host() {
    let (mut registry, subsystem) = with_ports();
    let mut connect = Connect::admin(DISCOVERY_NQN);
    connect.data.hostnqn = nqn_field(OTHER_HOST_NQN);
    let other = Host::of(&connect.send(&mut registry, at(0)).unwrap());
    other.write_cc(&mut registry, enabling(), at(0));
    let host = Host::discovery(&mut registry);
    for host in [&host, &other] {
        host.set_feature(&mut registry, 0x0b, 1 << 31).unwrap();
        let request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 1, 0);
        host.admin(&mut registry, &request, at(0));
    }
    registry.set_host_channel(Some(subsystem), HOST_NQN, HostChannel::Plain);
    assert_eq!(drain(&mut registry), [], "no event without a change");
    registry.set_host_channel(Some(subsystem), HOST_NQN, HostChannel::Tls);
    let told = Action::Complete {
        controller: host.id,
        command: CommandId(1),
        status: Status::SUCCESS,
        result: 0x0070_f002,
    };
    assert_eq!(drain(&mut registry), [told]);
}
