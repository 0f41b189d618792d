//! Beginning to listen.

use farblock_target::{StartError, Target, TargetConfig};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

fn config(listeners: Vec<SocketAddr>) -> TargetConfig {
    TargetConfig { listeners, ..TargetConfig::default() }
}

fn any() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

/// As after a kill -9, when the process is gone and its ring is not.
#[test]
fn a_port_that_becomes_free_is_waited_for() {
    let other = any();
    let address = other.local_addr().expect("it is bound");
    let dying = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(other);
    });
    let target = Target::start(&config(vec![address])).expect("the port becomes free");
    assert_eq!(target.addresses(), [address]);
    dying.join().expect("it ends");
    target.stop().expect("it stops");
}

#[test]
fn a_port_that_stays_busy_is_said_to_be() {
    let other = any();
    let address = other.local_addr().expect("it is bound");
    match Target::start(&config(vec![address])).map(drop) {
        Err(StartError::Listen(busy, error)) => {
            assert_eq!((busy, error.kind()), (address, io::ErrorKind::AddrInUse));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_is_listened_on_once() {
    let address: SocketAddr = "127.0.0.1:4420".parse().expect("an address");
    match Target::start(&config(vec![address, address])).map(drop) {
        Err(StartError::Twice(twice)) => assert_eq!(twice, address),
        other => panic!("{other:?}"),
    }
}
