//! Opens, changes and closes RDMA listeners of a running target, on the in-memory fabric.

use farblock_backends::mem::Mem;
use farblock_host::{Controller, Options};
use farblock_proto::controller::{AnaState, PortAccess};
use farblock_proto::ids::NamespaceId;
use farblock_target::{
    Entrance, Export, RdmaListeners, Report, Subsystem, Target, TargetConfig, TlsPolicy, Transport,
};
use farblock_verbs::{Network, Provider};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NQN: &str = "nqn.2026-11.org.farblock:rdma";
const OWN: [u8; 4] = [192, 0, 2, 2];

fn provider(network: &Network, last: u8) -> Provider {
    Provider::Memory(network.node([192, 0, 2, last].into()))
}

/// Starts a target that listens only by RDMA.
fn target(network: &Network) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let namespace = Arc::new(Mem::new(512, 1 << 20).expect("a size"));
    let export = Export { namespace, identity: "disk".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let addresses = vec![(OWN, 4420).into()];
    let config = TargetConfig {
        subsystems: vec![subsystem],
        rdma: Some(RdmaListeners { provider: provider(network, 2), addresses }),
        ..TargetConfig::default()
    };
    Target::start(&config).expect("the target starts")
}

#[test]
fn listeners_open_and_close_while_the_target_runs() {
    let network = Network::new();
    let target = target(&network);
    let control = target.control();
    let [first, second] = [4420, 4421].map(|port| Entrance::rdma((OWN, port).into()));
    assert_eq!(target.entrances(), [first]);
    let connect = |entrance: Entrance| {
        let options = Options::default();
        Controller::connect_by_rdma(provider(&network, 1), entrance.address, NQN, &options)
    };
    assert!(connect(second).is_err(), "the second listener is not open yet");
    control.listen(second, &PortAccess::default(), TlsPolicy::Allowed).expect("the target listens");
    let far = PortAccess::all(AnaState::NON_OPTIMIZED);
    control.set_access(second, &far).expect("the listener exists");
    let near = connect(first).expect("the first listener stays");
    let controller = connect(second).expect("the new listener answers");
    let report = control.report();
    assert_eq!(report.addresses, [first, second]);
    assert_eq!(report.tls[&second], TlsPolicy::Plain);
    assert!(report.controllers.iter().all(|one| one.transport == Transport::Rdma), "{report:?}");
    assert_eq!(report.controllers.len(), 2);
    // A TCP listener and an RDMA listener may have the same port.
    let tcp: SocketAddr = ([127, 0, 0, 1], 0).into();
    let tcp = control.listen(tcp, &PortAccess::default(), TlsPolicy::Allowed).expect("TCP");
    control.unlisten(second).expect("the listener closes");
    let end = Instant::now() + Duration::from_secs(60);
    while control.report().controllers.len() > 1 {
        assert!(Instant::now() < end, "the removed listener's connections stay");
        std::thread::yield_now();
    }
    assert!(connect(second).is_err(), "the second listener is closed");
    assert_eq!(control.report().addresses, [first, tcp.into()]);
    control
        .listen(second, &PortAccess::default(), TlsPolicy::Plain)
        .expect("the target listens again");
    drop((near, controller, connect(second).expect("the target answers again")));
    target.stop().expect("no loop failed");
}

#[test]
fn an_rdma_listener_cannot_require_tls() {
    let network = Network::new();
    let target = target(&network);
    let control = target.control();
    let entrance = target.entrances()[0];
    let refused = control.set_tls(entrance, TlsPolicy::Required).expect_err("RDMA has no TLS");
    assert!(refused.to_string().contains("NVMe/RDMA has no TLS"), "{refused}");
    let other = Entrance::rdma((OWN, 4421).into());
    let refused = control.listen(other, &PortAccess::default(), TlsPolicy::Required);
    assert!(refused.is_err_and(|error| error.to_string().contains("rdma:192.0.2.2:4421")));
}

#[test]
fn a_lost_listener_is_reported_until_its_device_returns() {
    let network = Network::new();
    let target = target(&network);
    let (control, entrance) = (target.control(), target.entrances()[0]);
    let wait_for = |what: &str, is_it: &dyn Fn(&Report) -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_it(&control.report()) {
            assert!(Instant::now() < end, "{what}: {:?}", control.report());
            std::thread::yield_now();
        }
    };
    let is_lost = |report: &Report| report.lost.contains(&entrance) && report.addresses.is_empty();
    let is_alive = |report: &Report| report.lost.is_empty() && report.addresses == [entrance];
    assert!(is_alive(&control.report()));
    for _ in 0..2 {
        network.remove_device(OWN.into());
        wait_for("the listener stays", &is_lost);
        // The device returns.
        let _ = provider(&network, 2);
        wait_for("the listener does not return", &is_alive);
        let connected = Controller::connect_by_rdma(
            provider(&network, 1),
            entrance.address,
            NQN,
            &Options::default(),
        );
        drop(connected.expect("the target answers again"));
    }
    // After a lost listener is closed, the report no longer contains it.
    let tcp: SocketAddr = ([127, 0, 0, 1], 0).into();
    control.listen(tcp, &PortAccess::default(), TlsPolicy::Allowed).expect("TCP");
    let second = Entrance::rdma((OWN, 4421).into());
    control.listen(second, &PortAccess::default(), TlsPolicy::Allowed).expect("the target listens");
    network.remove_device(OWN.into());
    wait_for("the second listener stays", &|report| !report.lost.is_empty());
    control.unlisten(second).expect("the listener closes");
    wait_for("a closed listener is lost", &|report| !report.lost.contains(&second));
    target.stop().expect("no loop failed");
}
