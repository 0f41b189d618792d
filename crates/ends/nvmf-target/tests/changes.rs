//! Adds and removes subsystems, hosts and listeners while hosts are connected.

use farblock_backends::mem::Mem;
use farblock_block::blocking::Blocking;
use farblock_host::{Controller, Options, discover};
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_target::{Export, Sharing, Subsystem, Target, TargetConfig, TlsPolicy};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FIRST: &str = "nqn.2026-11.org.farblock:first";
const SECOND: &str = "nqn.2026-11.org.farblock:second";
const WAIT_LIMIT: Duration = Duration::from_secs(60);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < WAIT_LIMIT, "{what}: not within the time limit");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn subsystem(nqn: &str) -> Subsystem {
    let mut subsystem = Subsystem::new(nqn);
    subsystem.config.allow_any_host = true;
    let namespace = Arc::new(Mem::new(512, 1 << 20).expect("a size"));
    let export = Export { namespace, identity: nqn.to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    subsystem
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn target() -> Target {
    let subsystems = vec![subsystem(FIRST)];
    let listeners = vec![any_port()];
    Target::start(&TargetConfig { subsystems, listeners, ..Default::default() })
        .expect("the target starts")
}

fn connect(address: SocketAddr, nqn: &str) -> Result<Controller, farblock_host::Error> {
    Controller::connect(&address.to_string(), nqn, &Options::default())
}

/// Returns the number of discovery entries of a subsystem.
fn listed(address: SocketAddr, nqn: &str) -> usize {
    let found = discover(&address.to_string(), &Options::default()).expect("the target answers");
    found.iter().filter(|entry| entry.subnqn == nqn).count()
}

#[test]
fn a_subsystem_is_added_and_removed() {
    let target = target();
    let (control, address) = (target.control(), target.addresses()[0]);
    assert!(connect(address, SECOND).is_err());
    control.add_subsystem(&subsystem(SECOND)).expect("a new subsystem");
    assert_eq!(listed(address, SECOND), 1);
    let second = connect(address, SECOND).expect("the host connects");
    assert_eq!(second.namespace_ids().expect("the target answers"), [1]);
    let error = control.add_subsystem(&subsystem(SECOND)).expect_err("the subsystem exists");
    assert!(error.to_string().contains("exists already"), "{error}");
    let first = connect(address, FIRST).expect("the host connects");
    let removals = control.remove_subsystem(SECOND).expect("the subsystem exists");
    assert_eq!(removals.len(), 1);
    for removal in removals {
        removal.wait(WAIT_LIMIT).expect("no command is in flight");
    }
    until("the controller ends", || second.lost().is_some());
    assert_eq!(listed(address, SECOND), 0);
    assert!(connect(address, SECOND).is_err());
    assert_eq!(first.namespace_ids().expect("other controllers stay connected"), [1]);
    // Add the subsystem again under its old name.
    control.add_subsystem(&subsystem(SECOND)).expect("a new subsystem");
    connect(address, SECOND).expect("the host connects");
    target.stop().expect("the target stops");
}

#[test]
fn a_host_that_is_no_longer_allowed_is_disconnected() {
    let target = target();
    let (control, address) = (target.control(), target.addresses()[0]);
    let controller = connect(address, FIRST).expect("every host may connect");
    let report = control.report();
    let [connected] = &report.controllers[..] else { panic!("{report:?}") };
    assert_eq!(connected.subsystem.as_deref(), Some(FIRST));
    assert_eq!(connected.peer, Some(Ipv4Addr::LOCALHOST.into()));
    let host = connected.host_nqn.clone();
    control.allow_host(FIRST, &host).expect("a name");
    control.set_allow_any_host(FIRST, false).expect("the subsystem exists");
    assert!(controller.namespace_ids().is_ok(), "an allowed host");
    control.disallow_host(FIRST, &host).expect("the subsystem exists");
    until("the controller ends", || controller.lost().is_some());
    assert!(connect(address, FIRST).is_err());
    until("the report shows no controller", || control.report().controllers.is_empty());
    let error =
        control.allow_host("nqn.2026-11.org.farblock:none", &host).expect_err("no such subsystem");
    assert!(error.to_string().contains("shares no subsystem"), "{error}");
}

#[test]
fn a_listener_is_added_and_removed() {
    let target = target();
    let (control, first) = (target.control(), target.addresses()[0]);
    let second = control
        .listen(any_port(), &PortAccess::default(), TlsPolicy::Allowed)
        .expect("a free port");
    assert_eq!(control.report().addresses, [first, second]);
    assert_eq!(listed(second, FIRST), 2);
    let here = connect(first, FIRST).expect("the target listens");
    let there = connect(second, FIRST).expect("the target listens at the second address");
    control.unlisten(second).expect("the listener exists");
    until("the controller of the second address ends", || there.lost().is_some());
    assert!(here.namespace_ids().is_ok(), "the controller of the first address stays");
    until("the second address is closed", || connect(second, FIRST).is_err());
    assert_eq!(listed(first, FIRST), 1);
    // The port is free again.
    assert_eq!(
        control.listen(second, &PortAccess::default(), TlsPolicy::Allowed).expect("a free address"),
        second
    );
    connect(second, FIRST).expect("the target listens again");
    let error = control.unlisten(first).expect_err("hosts know the target by this address");
    assert!(error.to_string().contains("restart the target without it"), "{error}");
    assert!(control.unlisten(any_port()).is_err());
    let error = control
        .listen(first, &PortAccess::default(), TlsPolicy::Allowed)
        .expect_err("the address is in use");
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn a_namespace_can_be_hidden_from_one_host() {
    let target = target();
    let (control, address) = (target.control(), target.addresses()[0]);
    let hosts = ["nqn.2026-11.org.farblock:one", "nqn.2026-11.org.farblock:other"];
    let [one, other] = hosts.map(|host| {
        let hostnqn = Some(host.to_owned());
        let options = Options { hostnqn, ..Options::default() };
        Controller::connect(&address.to_string(), FIRST, &options).expect("every host may connect")
    });
    let namespace = Arc::new(Mem::new(512, 1 << 20).expect("a size"));
    let export = Export { namespace, identity: "second".to_owned() };
    let sharing = Sharing { visible_to: Some([].into()), ..Sharing::default() };
    let second = NamespaceId(2);
    control.add_namespace_as(FIRST, second, &export, &sharing).expect("a free namespace number");
    let listed = |host: &Controller| host.namespace_ids().expect("the target answers");
    assert_eq!((listed(&one), listed(&other)), (vec![1], vec![1]));
    let see = |hosts: Option<&[&str]>| {
        let hosts: Option<std::collections::BTreeSet<String>> =
            hosts.map(|hosts| hosts.iter().map(|host| (*host).to_owned()).collect());
        control.set_visible_to(FIRST, second, hosts.as_ref()).expect("the subsystem exists");
    };
    see(Some(&hosts[..1]));
    assert_eq!((listed(&one), listed(&other)), (vec![1, 2], vec![1]));
    assert!(other.namespace(2).is_err());
    // Another host uses the namespace on a queue that connected earlier.
    let remote = one.namespace(2).expect("the host sees namespace 2");
    let mut blocks = Blocking::new(&remote).expect("a queue");
    let mut data = vec![1; 512];
    blocks.write(0, &data).expect("the host may write");
    see(Some(&hosts[1..]));
    until("the queue notices the change", || blocks.write(0, &[2; 512]).is_err());
    assert_eq!((listed(&one), listed(&other)), (vec![1], vec![1, 2]));
    assert!(one.lost().is_none(), "the controller stays connected");
    see(None);
    assert_eq!((listed(&one), listed(&other)), (vec![1, 2], vec![1, 2]));
    until("the disk is readable again", || blocks.read(0, &mut data).is_ok());
    let missing = control.set_visible_to(FIRST, NamespaceId(9), None).expect_err("no namespace");
    assert!(missing.to_string().contains("the namespace does not exist"), "{missing}");
}
