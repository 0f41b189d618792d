//! A TCP proxy that stops forwarding in either direction, without closing connections.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

#[derive(Clone, Default)]
pub(crate) struct Cut {
    /// While true, the proxy forwards no requests.
    pub(crate) requests: Arc<AtomicBool>,
    /// While true, the proxy forwards no replies.
    pub(crate) replies: Arc<AtomicBool>,
}

/// Starts a proxy to a port. Returns its own port, and the switches.
pub(crate) fn start(to: u16) -> (u16, Cut) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let cut = Cut::default();
    let its = cut.clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let both =
                (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
            let (requests, replies) = (its.requests.clone(), its.replies.clone());
            thread::spawn(move || forward(client, server, &requests));
            thread::spawn(move || forward(both.1, both.0, &replies));
        }
    });
    (port, cut)
}

fn forward(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 16384];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_cut.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
