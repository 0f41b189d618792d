//! Tests how a target binds its listeners when it starts.

use farblock_proto::controller::PortAccess;
use farblock_target::{StartError, Target, TargetConfig, TlsPolicy};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

fn config(listeners: Vec<SocketAddr>) -> TargetConfig {
    TargetConfig { listeners, ..TargetConfig::default() }
}

fn any() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

/// After a kill -9, the port stays in use for a while: the kernel closes the sockets of an io_uring
/// only some time after the process has ended.
#[test]
fn a_target_waits_for_a_port_to_become_free() {
    let other = any();
    let address = other.local_addr().expect("the socket is bound");
    let dying = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(other);
    });
    let target = Target::start(&config(vec![address])).expect("the port becomes free");
    assert_eq!(target.addresses(), [address]);
    dying.join().expect("the thread does not panic");
    target.stop().expect("the target stops");
}

#[test]
fn a_port_that_stays_in_use_is_reported() {
    let other = any();
    let address = other.local_addr().expect("the socket is bound");
    match Target::start(&config(vec![address])).map(drop) {
        Err(StartError::Listen(busy, error)) => {
            assert_eq!((busy, error.kind()), (address, io::ErrorKind::AddrInUse));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_listener_address_given_twice_is_refused() {
    let address: SocketAddr = "127.0.0.1:4420".parse().expect("an address");
    match Target::start(&config(vec![address, address])).map(drop) {
        Err(StartError::Twice(twice)) => assert_eq!(twice, address),
        other => panic!("{other:?}"),
    }
}

/// Starts a target on these addresses with one free port. Retries, since another process may take
/// the port in the meantime.
fn on_one_port(addresses: [&str; 2]) -> Target {
    let start = |_| {
        let port = any().local_addr().expect("the socket is bound").port();
        let at = |host: &str| format!("{host}:{port}").parse().expect("an address");
        Target::start(&config(addresses.map(at).to_vec()))
    };
    let mut tries = (0..3).map(start);
    let started = tries.by_ref().find(Result::is_ok);
    started.expect("three random ports are in use").expect("only successful starts are found")
}

#[test]
fn both_families_share_a_port_in_any_order() {
    for addresses in [["0.0.0.0", "[::]"], ["[::]", "0.0.0.0"], ["[::]", "127.0.0.1"]] {
        let target = on_one_port(addresses);
        let port = target.addresses()[0].port();
        for host in ["127.0.0.1", "[::1]"] {
            TcpStream::connect(format!("{host}:{port}")).expect(host);
        }
        target.stop().expect("the target stops");
    }
}

#[test]
fn a_listener_of_the_other_family_can_be_added() {
    let (access, plain) = (PortAccess::default(), TlsPolicy::Plain);
    let target = Target::start(&config(vec!["0.0.0.0:0".parse().expect("an address")]));
    let target = target.expect("the target starts");
    let port = target.addresses()[0].port();
    let six: SocketAddr = format!("[::]:{port}").parse().expect("an address");
    assert_eq!(target.control().listen(six, &access, plain).expect("an IPv6-only address"), six);
    TcpStream::connect(("::1", port)).expect("IPv6");
    target.stop().expect("the target stops");

    let target = Target::start(&config(vec!["[::]:0".parse().expect("an address")]));
    let target = target.expect("the target starts");
    let port = target.addresses()[0].port();
    TcpStream::connect(("127.0.0.1", port)).expect("both families");
    let four: SocketAddr = format!("0.0.0.0:{port}").parse().expect("an address");
    let error =
        target.control().listen(four, &access, plain).expect_err("both families use the port");
    assert!(error.to_string().contains("also accepts IPv4 connections"), "{error}");
    target.stop().expect("the target stops");
}
