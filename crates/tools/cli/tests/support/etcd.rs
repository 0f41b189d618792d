//! Starts etcd, and kills the processes of a group's tests at the end.

use super::{Scratch, has, until};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

pub fn free() -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    socket.local_addr().expect("the socket has an address")
}

/// A process that is killed when this value is dropped.
pub struct Running(pub Child);

impl Running {
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one etcd with these addresses for clients and peers, and waits until it listens.
pub fn etcd(scratch: &Scratch, [client, peer]: [SocketAddr; 2]) -> Running {
    assert!(has("etcd"), "install etcd (Debian: etcd-server)");
    let (url, peer) = (format!("http://{client}"), format!("http://{peer}"));
    let child = Command::new("etcd")
        .args(["--name", "one", "--data-dir", &scratch.text("etcd")])
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("one={peer}"), "--unsafe-no-fsync"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let running = Running(child.expect("etcd starts"));
    until("etcd listens", || TcpStream::connect(client).is_ok());
    running
}
