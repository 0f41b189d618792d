//! Tests of the floor (bare sockets) over loopback: its counts are correct, and clients that send
//! invalid data do no harm.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farblock_backends::mem::Mem;
use farblock_bench::floor::{Drive, Floor, Server, drive};
use farblock_bench::{
    Cancel, Figures, Meters, Pattern, PatternReport, Plan, Report, RunError, Rw, Side, SideName,
    Silent, Snapshot, compare,
};

/// An address without a listener: no system assigns this port.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

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

/// The figures of a load. Repeats the run with more time if no I/O completes, which may happen on a
/// busy machine.
fn measured(server: &Server, mut load: Drive) -> Figures {
    loop {
        match drive(server.address(), &load, &Cancel::new()) {
            Err(RunError::NothingMeasured) if load.runtime < Duration::from_secs(60) => {
                load.runtime *= 4;
            }
            result => return result.expect("the load succeeds"),
        }
    }
}

fn server() -> Server {
    Server::start("127.0.0.1:0", 1, &[]).expect("the server starts")
}

#[test]
fn the_floor_measures_every_kind_of_load() {
    let server = server();
    for (rw, bytes, connections, depth) in [
        (Rw::RandRead, 4096, 1, 1),
        (Rw::RandWrite, 4096, 3, 8),
        (Rw::RandRw, 65536, 2, 100),
        (Rw::Read, 1 << 20, 1, 8),
        (Rw::Write, 512, 1, 1000),
    ] {
        let load = Drive { threads: 2, ..load(Pattern::new(rw, bytes, connections, depth)) };
        let figures = measured(&server, load);
        assert!(figures.iops > 0.0 && figures.latency.p50_ns > 0, "{rw} {bytes}");
        assert_eq!(figures.reads > 0, rw.reads(), "{rw}: {figures:?}");
        assert_eq!(figures.writes > 0, rw.writes(), "{rw}: {figures:?}");
        let mib_per_second = figures.iops * f64::from(bytes) / f64::from(1 << 20);
        assert!((figures.mib_per_second - mib_per_second).abs() < 1e-6);
    }
}

#[test]
fn a_peer_with_invalid_data_is_disconnected_and_disturbs_no_other() {
    let server = server();
    let mut request = [0_u8; 72];
    request[..5].copy_from_slice(b"fBfL\x02");
    request[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let web: &[u8] =
        b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: everything and some more, to fill\r\n\r\n";
    let nonsense: [&[u8]; 4] = [&request, web, &[0; 4096], &[255; 100_000]];
    for bytes in nonsense {
        let mut stranger = TcpStream::connect(server.address()).expect("the server listens");
        let _ = stranger.write_all(bytes);
        stranger
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("the socket accepts the option");
        let end = stranger.read(&mut [0; 16]);
        let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(matches!(&end, Ok(0)) || end.as_ref().is_err_and(reset), "{end:?}");
    }
    // A client that sends many requests and never reads the answers does not delay other clients.
    let mut greedy = TcpStream::connect(server.address()).expect("the server listens");
    request[8..12].copy_from_slice(&(16_u32 << 20).to_le_bytes());
    for _ in 0..100 {
        greedy.write_all(&request).expect("the server reads");
    }
    let load = load(Pattern::new(Rw::RandRead, 4096, 1, 4));
    assert!(measured(&server, load).iops > 0.0);
}

#[test]
fn a_missing_or_wrong_floor_server_is_reported() {
    let load = load(Pattern::new(Rw::RandRead, 4096, 1, 1));
    let error = drive(NOBODY, &load, &Cancel::new()).expect_err("a server answered");
    assert!(error.to_string().contains("no program listens"), "{error}");

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket has an address");
    let web = thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("a client connects");
        let _ = peer.write_all(&[b'x'; 8192]);
        let _ = peer.read(&mut [0; 4096]);
        let (peer, _) = listener.accept().expect("a client connects");
        drop(peer);
    });
    let error = drive(address, &load, &Cancel::new()).expect_err("the answer was accepted");
    assert!(error.to_string().contains("is no"), "{error}");
    let error = drive(address, &load, &Cancel::new()).expect_err("the load succeeded");
    assert!(error.to_string().contains("closed"), "{error}");
    web.join().expect("the thread does not panic");
}

#[test]
fn a_floor_run_can_be_cancelled() {
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

fn plan(address: SocketAddr) -> Plan {
    let patterns = vec![
        Pattern::new(Rw::RandRead, 4096, 2, 8),
        Pattern { rwmixread: 70, ..Pattern::new(Rw::RandRw, 65536, 1, 4) },
    ];
    Plan {
        patterns,
        runtime: Duration::from_millis(200),
        ramp: Duration::ZERO,
        max_jobs: Some(2),
        connections: 3,
        floor: Some(Floor { address, threads: 1, meters: Meters::default(), briefly: None }),
        ..Plan::quick()
    }
}

fn disk() -> Side {
    Side::new(Arc::new(Mem::new(512, 16 << 20).expect("the size is valid"))).scratch()
}

#[test]
fn a_comparison_includes_the_floor() {
    let server = server();
    let (local, remote) = (disk(), disk());
    let mut plan = Plan { runs: 2, ..plan(server.address()) };
    let (report, mut order) = loop {
        let mut order = Vec::new();
        let mut progress = |snapshot: &Snapshot<'_>| order.push((snapshot.side, snapshot.run));
        let report = compare(&plan, Some(&local), Some(&remote), &Cancel::new(), &mut progress);
        let report = report.expect("the plan is valid");
        // Run enough I/Os for the shares to match the probabilities, however slow the machine is.
        let ios = |figures: &Figures| figures.reads + figures.writes;
        let few = |report: &PatternReport| report.floor.as_ref().map_or(0, ios) < 2000;
        if !report.patterns.iter().any(few) || plan.runtime > Duration::from_secs(60) {
            break (report, order);
        }
        plan.runtime *= 2;
    };
    assert!(!report.has_errors(), "{:?}", report.patterns);
    assert!(report.floor.as_ref().is_some_and(|floor| floor.contains("bare sockets")));
    assert!(report.method.notes.iter().any(|note| note.contains("bare sockets")));
    assert!(report.engine != "auto", "the report lacks the engine of the disks");
    for pattern in &report.patterns {
        let floor = pattern.floor.as_ref().expect("the pattern was measured");
        assert_eq!((floor.reads > 0, floor.writes > 0), (true, pattern.pattern.rw.writes()));
        assert_eq!(floor.runs.len(), 2);
        let percent = pattern.remote_percent_of_floor.expect("both sides were measured").iops;
        let remote = pattern.remote.as_ref().expect("the pattern was measured");
        assert!((percent - remote.iops / floor.iops * 100.0).abs() < 1e-6, "{percent}");
        if pattern.pattern.rw == Rw::RandRw {
            let share = floor.reads as f64 / (floor.reads + floor.writes) as f64;
            assert!((0.65..0.75).contains(&share), "{share}");
        }
    }
    order.dedup();
    let one = [(SideName::Local, 0), (SideName::Remote, 0), (SideName::Floor, 0)];
    let other = [(SideName::Floor, 1), (SideName::Remote, 1), (SideName::Local, 1)];
    assert_eq!(order, [one, other, one, other].concat());
    assert_eq!(
        Report::from_json(&report.to_json()).expect("the report was written by this program"),
        report
    );
}

#[test]
fn unsupported_floor_plans_are_refused_before_the_first_io() {
    let server = server();
    let good = plan(server.address());
    let with = |pattern: Pattern| Plan { patterns: vec![pattern], ..good.clone() };
    let timeless = Plan { runtime: Duration::ZERO, io_size: Some(1 << 20), ..good.clone() };
    let rate = Pattern { rate_iops: Some(100), ..Pattern::new(Rw::RandRead, 4096, 1, 1) };
    for (plan, part) in [
        (plan(NOBODY), "--floor-serve"),
        (timeless, "the floor needs a measuring time"),
        (with(rate), "does not support a fixed rate"),
        (with(Pattern::new(Rw::Read, 32 << 20, 1, 1)), "at most 16 MiB"),
    ] {
        let mut progress = |_: &Snapshot<'_>| panic!("a measurement started");
        let side = Side::new(Arc::new(Mem::new(512, 64 << 20).expect("the size is valid"))).fill();
        let side = side.scratch();
        let error = compare(&plan, Some(&side), None, &Cancel::new(), &mut progress);
        let error = error.expect_err("the plan was accepted").to_string();
        assert!(error.contains(part), "{error}");
    }
    let error = compare(&good, None, None, &Cancel::new(), &mut Silent)
        .expect_err("a plan without a disk was accepted");
    assert!(error.to_string().contains("neither"), "{error}");
}

#[test]
fn a_floor_server_that_disconnects_ends_the_run_at_once() {
    let server = server();
    let address = server.address();
    let load =
        Drive { runtime: Duration::from_secs(600), ..load(Pattern::new(Rw::RandRead, 4096, 2, 4)) };
    let load = Drive { threads: 2, ..load };
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        drop(server);
    });
    let start = Instant::now();
    let error = drive(address, &load, &Cancel::new()).expect_err("the server has stopped");
    assert!(error.to_string().contains("closed the connection"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    killer.join().expect("the thread does not panic");
}
