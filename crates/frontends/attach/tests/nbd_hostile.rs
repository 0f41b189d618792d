//! Tests malicious and broken NBD clients. The server must refuse them without disturbing other
//! clients.
#![cfg(target_os = "linux")]

mod nbd_support;

use farblock_random::Random;
use farblock_testkit::eventually;
use nbd_support::*;
use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Connects a client, and brings it to the protocol state with this number.
fn client_in_state(
    server: &farblock_attach::nbd::Server,
    state: u64,
    random: &mut Random,
) -> Client {
    let mut client = Client::raw(server);
    if state == 0 {
        return client;
    }
    client.flags(3);
    match state {
        1 => {}
        2 => {
            client.structure();
            client.send(b"IHAVEOPT");
        }
        3 => {
            client.send(b"IHAVEOPT\0\0\0\x07\0\0\x01\0");
        }
        _ => {
            client.go(b"", if state == 4 { &[] } else { &[3] }).expect("an export");
            if state == 6 {
                // The client stops sending in the middle of a write's data.
                client.request(0, WRITE, 1, 0, 100_000);
                client.send(&random.bytes(5000));
            }
        }
    }
    client
}

#[test]
fn random_bytes_in_every_state_disturb_no_other_client() {
    for engine in ENGINES {
        let server = serve(engine, disk("mem:16MiB", 512));
        let mut witness = Client::simple(&server);
        for seed in 0..350 {
            let mut random = Random::new(seed);
            let mut client = client_in_state(&server, seed % 7, &mut random);
            for _ in 0..random.below(4) {
                let count = random.below(3000) as usize;
                let nonsense = random.bytes(count);
                if client.stream.write_all(&nonsense).is_err() {
                    break;
                }
            }
            if seed % 50 == 0 {
                assert_eq!(witness.call(0, FLUSH, 0, 0).errno, 0, "seed {seed}");
            }
        }
        drop(witness);
        eventually("all clients are closed", || server.connections() == 0);
        server.stop().expect("no core panicked");
    }
}

/// Sends well-formed requests with random field values.
#[test]
fn random_requests_get_answers() {
    for engine in ENGINES {
        let server = serve(engine, disk("mem:1MiB", 4096));
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let mut client =
                if seed % 2 == 0 { Client::simple(&server) } else { Client::structured(&server) };
            for _ in 0..60 {
                let code = random.below(9) as u16;
                let flags = if random.below(3) == 0 { random.bits() as u16 } else { 0 };
                let offset = match random.below(3) {
                    0 => random.bits(),
                    1 => MIB.wrapping_sub(random.below(9) * 512),
                    _ => random.below(2 * MIB),
                };
                let length = match random.below(3) {
                    0 if code != WRITE => random.bits() as u32,
                    _ => random.below(20_000) as u32,
                };
                if code == DISC {
                    continue;
                }
                client.request(flags, code, seed, offset, length);
                if code == WRITE {
                    let data = random.bytes(length as usize);
                    client.send(&data);
                }
                let reply = client.reply(if code == READ { length } else { 0 });
                assert_eq!(reply.cookie, seed);
                assert!([0, EPERM, EINVAL, ENOSPC, ENOTSUP].contains(&reply.errno));
            }
        }
        server.stop().expect("no core panicked");
    }
}

#[test]
fn a_client_may_disconnect_during_a_write() {
    for engine in ENGINES {
        let server = serve(engine, disk("mem:16MiB", 512));
        for (sent, total) in [(0, 512), (1, 512), (511, 512), (4096, 8 << 20), (3 << 20, 8 << 20)] {
            let mut client = Client::simple(&server);
            client.request(0, WRITE, 1, 0, total);
            client.send(&vec![9; sent]);
            client.stream.shutdown(Shutdown::Both).expect("the client disconnects");
        }
        eventually("all clients are closed", || server.connections() == 0);
        let mut client = Client::simple(&server);
        assert!(client.read(0, 8 << 20).iter().all(|&byte| byte == 0), "half a write was executed");
    }
}

#[test]
fn a_client_may_disconnect_with_requests_in_flight() {
    for engine in ENGINES {
        let server = serve(engine, disk("delay:5ms,mem:16MiB", 4096));
        for round in 0..20 {
            let mut client = Client::simple(&server);
            for index in 0..40_u64 {
                // The requests are reads, writes of whole blocks, and writes of parts of blocks.
                let (code, length) =
                    [(READ, 65_536), (WRITE, 4096), (WRITE, 100)][(index % 3) as usize];
                client.request(0, code, index, index * 8192, length);
                if code == WRITE {
                    client.send(&vec![1; length as usize]);
                }
            }
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        eventually("all clients are closed", || server.connections() == 0);
        let mut client = Client::simple(&server);
        assert_eq!(client.write(0, 5, &[3; 10]), 0, "a write of a partial block fails");
        server.stop().expect("no core panicked");
    }
}

/// A client sends requests but reads no answers. The server stops reading from it at a limit. When
/// the client reads again, all answers arrive.
#[test]
fn a_client_that_reads_no_answers_is_limited() {
    for engine in ENGINES {
        let spy = Spy::new(disk("mem:16MiB", 512));
        let server = serve(engine, spy.clone());
        let mut slow = Client::simple(&server);
        for cookie in 0..300 {
            slow.request(0, READ, cookie, (cookie % 15) * MIB, MIB as u32);
        }
        let mut other = Client::simple(&server);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            assert_eq!(other.read(0, 512), [0; 512]);
        }
        let reads = || spy.reads.load(Ordering::Relaxed);
        eventually("the server reads no more from a slow client", || {
            let before = reads();
            std::thread::sleep(Duration::from_millis(50));
            reads() == before
        });
        let enough = reads();
        for _ in 0..300 {
            assert_eq!(slow.reply(MIB as u32).data.len(), MIB as usize);
        }
        assert!(reads() > enough, "the server read everything from a slow client");
    }
}

#[test]
fn the_number_of_requests_in_flight_is_limited() {
    let spy = Spy::new(disk("delay:3s,mem:1MiB", 512));
    let server = serve(ENGINES[0], spy.clone());
    let mut client = Client::simple(&server);
    (0..400).for_each(|cookie| client.request(0, READ, cookie, 0, 512));
    eventually("the first reads are executed", || spy.reads.load(Ordering::Relaxed) >= 256);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(spy.reads.load(Ordering::Relaxed), farblock_attach::nbd::limits::MAX_REQUESTS);
    let mut cookies: Vec<u64> = (0..400).map(|_| client.reply(512).cookie).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..400).collect::<Vec<_>>());
}

#[test]
fn the_number_of_connections_is_limited() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let most = farblock_attach::nbd::limits::MAX_CONNECTIONS;
    let mut clients: Vec<_> = (0..most).map(|_| Client::raw(&server)).collect();
    assert_eq!(server.connections(), most);
    let (mut extra, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    server.adopt(theirs);
    let mut greeting = Vec::new();
    std::io::Read::read_to_end(&mut extra, &mut greeting).expect("the stream ends");
    assert!(greeting.is_empty());
    clients.pop();
    eventually("the server has closed one client", || server.connections() == most - 1);
    Client::simple(&server).read(0, 512);
}

#[test]
fn a_client_that_never_chooses_an_export_is_disconnected() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let start = Instant::now();
    let mut client = Client::raw(&server);
    client.flags(3);
    // A client that sends without pause does not extend its time limit.
    while client.stream.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0").is_ok() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "a client that only sends options is never disconnected"
        );
        if client.stream.set_nonblocking(true).is_ok() {
            let _ = std::io::Read::read(&mut client.stream, &mut [0; 4096]);
            client.stream.set_nonblocking(false).expect("a socket");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut client = Client::raw(&server);
    let start = Instant::now();
    client.expect_end();
    let seconds = start.elapsed().as_secs();
    assert!((9..60).contains(&seconds), "the server closed a silent client after {seconds} s");
}
