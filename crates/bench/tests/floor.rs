//! The floor over loopback: it counts what it should, and whoever else connects does it no harm.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use farblock_bench::floor::{Drive, Server, drive};
use farblock_bench::{Cancel, Meters, Pattern, RunError, Rw};

fn load(pattern: Pattern) -> Drive {
    Drive {
        pattern,
        threads: 1,
        cpus: Vec::new(),
        ramp: Duration::from_millis(20),
        runtime: Duration::from_millis(200),
        meters: Meters::default(),
    }
}

fn server() -> Server {
    Server::start("127.0.0.1:0", 1, &[]).expect("a port is free")
}

#[test]
fn every_kind_of_load() {
    let server = server();
    for (rw, bytes, connections, depth) in [
        (Rw::RandRead, 4096, 1, 1),
        (Rw::RandWrite, 4096, 3, 8),
        (Rw::RandRw, 65536, 2, 100),
        (Rw::Read, 1 << 20, 1, 8),
        (Rw::Write, 512, 1, 1000),
    ] {
        let load = Drive { threads: 2, ..load(Pattern::new(rw, bytes, connections, depth)) };
        let figures = drive(server.address(), &load, &Cancel::new()).expect("it answers");
        assert!(figures.iops > 0.0 && figures.latency.p50_ns > 0, "{rw} {bytes}");
        assert_eq!(figures.reads > 0, rw.reads(), "{rw}: {figures:?}");
        assert_eq!(figures.writes > 0, rw.writes(), "{rw}: {figures:?}");
        let mib_per_second = figures.iops * f64::from(bytes) / f64::from(1 << 20);
        assert!((figures.mib_per_second - mib_per_second).abs() < 1e-6);
    }
}

#[test]
fn who_speaks_nonsense_is_disconnected_and_nobody_else_notices() {
    let server = server();
    let mut request = [0_u8; 72];
    request[..5].copy_from_slice(b"fBfL\x02");
    request[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let web: &[u8] =
        b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: everything, and some more to fill it\r\n\r\n";
    let nonsense: [&[u8]; 4] = [&request, web, &[0; 4096], &[255; 100_000]];
    for bytes in nonsense {
        let mut stranger = TcpStream::connect(server.address()).expect("it listens");
        let _ = stranger.write_all(bytes);
        stranger.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        let end = stranger.read(&mut [0; 16]);
        let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(matches!(&end, Ok(0)) || end.as_ref().is_err_and(reset), "{end:?}");
    }
    // One that asks for much and takes nothing holds nothing up.
    let mut greedy = TcpStream::connect(server.address()).expect("it listens");
    request[8..12].copy_from_slice(&(16_u32 << 20).to_le_bytes());
    for _ in 0..100 {
        greedy.write_all(&request).expect("it listens");
    }
    let load = load(Pattern::new(Rw::RandRead, 4096, 1, 4));
    assert!(drive(server.address(), &load, &Cancel::new()).expect("it answers").iops > 0.0);
}

#[test]
fn what_is_no_server_is_said_in_a_sentence() {
    let load = load(Pattern::new(Rw::RandRead, 4096, 1, 1));
    let refused = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    let error = drive(refused, &load, &Cancel::new()).expect_err("nobody listens");
    assert!(error.to_string().contains("nothing listens"), "{error}");

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let web = thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("somebody comes");
        let _ = peer.write_all(&[b'x'; 8192]);
        let _ = peer.read(&mut [0; 4096]);
        let (peer, _) = listener.accept().expect("somebody comes");
        drop(peer);
    });
    let error = drive(address, &load, &Cancel::new()).expect_err("it says nonsense");
    assert!(error.to_string().contains("is no"), "{error}");
    let error = drive(address, &load, &Cancel::new()).expect_err("it hangs up");
    assert!(error.to_string().contains("closed"), "{error}");
    web.join().expect("no panic");
}

#[test]
fn it_can_be_called_off() {
    let server = server();
    let load =
        Drive { runtime: Duration::from_secs(600), ..load(Pattern::new(Rw::RandRead, 4096, 2, 4)) };
    let cancel = Cancel::new();
    let remote = cancel.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        remote.cancel();
    });
    let result = drive(server.address(), &load, &cancel);
    assert!(matches!(result, Err(RunError::Cancelled)), "{result:?}");
}
