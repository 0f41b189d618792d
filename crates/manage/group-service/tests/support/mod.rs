//! etcd, a network that can be cut, and a disk that detects the writes of an earlier leader.

pub(crate) mod disk;
pub(crate) mod etcd;
pub(crate) mod proxy;

use std::time::{Duration, Instant};

/// Waits until a condition is true. Fails the test after a minute.
pub(crate) fn wait_for(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < end, "no {what} within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A free port of the loopback interface.
pub(crate) fn port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
