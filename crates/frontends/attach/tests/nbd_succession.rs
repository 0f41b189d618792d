//! Tests that an NBD server executes no request of a disconnected client after a request of a later
//! client.
#![cfg(target_os = "linux")]

mod nbd_support;

use farblock_attach::nbd::Server;
use farblock_reactor::EngineKind;
use farblock_testkit::eventually;
use nbd_support::sluice::Sluice;
use nbd_support::*;
use std::sync::Arc;

/// The number of requests, which is more than a connection may have in flight. So the server leaves
/// some requests unread in the socket.
const REQUESTS: u64 = 300;
const IN_FLIGHT: usize = 256;

/// Connects a client that sends a write of ones to each of the first `blocks`. The disk holds back
/// `held` of these writes. If `are_begun`, the held writes count as started, so that the server
/// cannot withdraw them.
fn begin(
    engine: EngineKind,
    held: usize,
    are_begun: bool,
    blocks: u64,
) -> (Arc<Sluice>, Server, Client) {
    let sluice = Sluice::new(disk("mem:1MiB", 512));
    let server = serve(engine, sluice.clone());
    sluice.hold(held, are_begun);
    let mut client = Client::simple(&server);
    for cookie in 0..blocks {
        client.request(0, WRITE, cookie, cookie * 512, 512);
        client.send(&[1; 512]);
    }
    eventually("the writes are held", || sluice.held() == held);
    (sluice, server, client)
}

#[test]
fn a_new_client_waits_for_started_writes_of_a_disconnected_client() {
    for engine in ENGINES {
        let (sluice, server, first) = begin(engine, 1, true, 1);
        drop(first);
        let mut second = Client::simple(&server);
        second.request(FUA, WRITE, 2, 0, 512);
        second.send(&[2; 512]);
        assert!(second.hears_nothing(), "the second client's write overtook a write in flight");
        sluice.open();
        assert_eq!(second.reply(0).errno, 0);
        eventually("no write is held", || sluice.held() == 0);
        assert_eq!(second.read(0, 512), [2; 512], "an acknowledged write is lost");
    }
}

#[test]
fn unread_requests_of_a_disconnected_client_are_dropped() {
    for engine in ENGINES {
        let (sluice, server, first) = begin(engine, IN_FLIGHT, true, REQUESTS);
        drop(first);
        let mut second = Client::simple(&server);
        let last = (REQUESTS - 1) * 512;
        second.request(FUA, WRITE, 2, last, 512);
        second.send(&[2; 512]);
        assert!(second.hears_nothing(), "the second client's write overtook the writes in flight");
        sluice.open();
        assert_eq!(second.reply(0).errno, 0);
        eventually("the first client is gone", || server.connections() == 1);
        assert_eq!(second.read(last, 512), [2; 512], "an acknowledged write is lost");
        assert_eq!(second.read(0, 512), [1; 512], "a write in flight was lost");
        assert_eq!(second.read(last - 512, 512), [0; 512], "an unread request was executed");
    }
}

#[test]
fn waiting_requests_of_a_disconnected_client_are_abandoned() {
    for engine in ENGINES {
        let (sluice, server, first) = begin(engine, 5, false, 5);
        drop(first);
        let mut second = Client::simple(&server);
        assert_eq!(second.write(FUA, 0, &[2; 512]), 0, "the second client's write fails");
        assert_eq!(sluice.abandoned(), 5);
        sluice.open();
        assert_eq!(second.read(0, 1024), [[2; 512], [0; 512]].concat());
    }
}

/// A client with an open connection opens a second connection, which must not wait for the first.
#[test]
fn a_new_connection_does_not_wait_for_connected_clients() {
    for engine in ENGINES {
        let (sluice, server, mut first) = begin(engine, 1, true, 1);
        assert_eq!(Client::simple(&server).write(0, 512, &[2; 512]), 0);
        sluice.open();
        assert_eq!(first.reply(0).errno, 0);
    }
}

/// The server forgets any number of clients that disconnect while they wait.
#[test]
fn clients_that_disconnect_while_they_wait_are_forgotten() {
    for engine in ENGINES {
        let (sluice, server, first) = begin(engine, 1, true, 1);
        drop(first);
        for _ in 0..400 {
            drop(Client::simple(&server));
        }
        let mut last = Client::simple(&server);
        sluice.open();
        assert_eq!(last.read(0, 512), [1; 512]);
        eventually("the other clients are gone", || server.connections() == 1);
    }
}
