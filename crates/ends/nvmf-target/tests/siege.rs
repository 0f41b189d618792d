//! Attacks a target with as many hostile connections as it admits. Run this by hand: it takes a
//! minute, and each of two processes needs a descriptor for each connection.
//!
//! ```text
//! ulimit -n 20000
//! cargo test --release -p farblock-target --test siege -- --ignored --nocapture siege
//! ```
#![cfg(target_os = "linux")]

mod rig;

use farblock_backends::mem::Mem;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::host_end::Transfer;
use farblock_target::{Export, Subsystem, Target, TargetConfig, limits};
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::besieged::{self, Besieged};
use rig::stranger::{MIB, NQN, Peer, WAIT_LIMIT, from, host, is_open, write_command};
use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The name of the test that runs the target's process.
const SERVE: &str = "serve_until_the_input_ends";
/// The number of addresses of attackers: so high that no address reaches its connection limit.
const ADDRESSES: usize = 200;
const ATTACKERS: usize = 96;
/// The test measures for this time after the attack has started.
const TIME: Duration = Duration::from_secs(60);
/// The most memory that the target's process may hold during the attack, in bytes.
const GOAL_BYTES: usize = 1 << 30;

/// The process under attack. Only the siege starts it.
#[test]
#[ignore = "the siege runs this in a separate process"]
fn serve_until_the_input_ends() {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let namespace = Arc::new(Mem::new(512, 64 << 20).expect("a size"));
    subsystem.exports.insert(NamespaceId(1), Export { namespace, identity: "d".to_owned() });
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![rig::any()],
        ..TargetConfig::default()
    };
    besieged::serve(&Target::start(&config).expect("the target starts"));
}

/// Runs a hostile connection, which stays open while the returned streams exist.
fn attack(number: usize, address: SocketAddr) -> Option<Vec<TcpStream>> {
    let connection = || {
        let stream = from(1, (number % ADDRESSES) as u8, address);
        let _ = socket2::SockRef::from(&stream).set_send_buffer_size(64 << 10);
        stream
    };
    let kind = number % 5;
    if kind == 0 {
        let mut stream = connection();
        // Send a part of a header, and then nothing.
        let _ = stream.write_all(&[0, 0, 128]);
        return Some(vec![stream]);
    }
    let nqn = if kind == 1 { DISCOVERY_NQN } else { NQN };
    let mut admin = Peer::try_on(connection())?;
    let controller = admin.try_enable(nqn, &host(number))?;
    admin.stream.set_write_timeout(Some(Duration::from_millis(5))).ok()?;
    if kind < 3 {
        leave_pages_unread(&mut admin, nqn);
        return Some(vec![admin.stream]);
    }
    let mut peer = Peer::try_on(connection())?;
    peer.try_connect(NQN, &host(number), 1, controller)?;
    peer.stream.set_write_timeout(Some(Duration::from_millis(5))).ok()?;
    peer.stream.set_read_timeout(Some(Duration::from_millis(50))).ok()?;
    if kind == 3 {
        peer.ask_to_write(MIB);
        if let Some(grant) = peer.granted() {
            peer.withhold(grant, 4);
        }
    } else {
        peer.ask_to_write(4096);
        let _ = peer.granted();
        let data = vec![0; 65536];
        let command = write_command(data.len(), SglDescriptor::in_capsule(0, 65536));
        while peer.next < 100 && peer.send(command, Transfer::InCapsule(65536), &data) {}
    }
    Some(vec![admin.stream, peer.stream])
}

fn leave_pages_unread(peer: &mut Peer, nqn: &str) {
    let mut page = Sqe { dptr: SglDescriptor::transport(MIB as u32), ..Sqe::new(2, 0, 0) };
    let dwords_z = (MIB / 4 - 1) as u32;
    let id = if nqn == NQN { 1 } else { 0x70 };
    page.cdw10 = (id | dwords_z << 16).into();
    page.cdw11 = (dwords_z >> 16).into();
    while peer.next < 30 && peer.send(page, Transfer::FromController(MIB as u32), &[]) {}
}

/// Attacks the target with one thread's share of the connections. Replaces the connections that
/// the target has closed.
fn besiege(part: usize, address: SocketAddr, is_over: &AtomicBool, begun: &AtomicUsize) {
    let share = limits::MAX_CONNECTIONS / ATTACKERS;
    let (mut alive, mut next) = (VecDeque::<Vec<TcpStream>>::new(), part);
    let mut open = 0;
    while !is_over.load(Ordering::Relaxed) {
        if let Some(streams) = attack(next, address) {
            open += streams.len();
            alive.push_back(streams);
            begun.fetch_add(1, Ordering::Relaxed);
        }
        next += ATTACKERS;
        if open > share {
            alive.retain(|streams| streams.iter().all(is_open));
            open = alive.iter().map(Vec::len).sum();
        }
        while open > share {
            open -= alive.pop_front().map_or(0, |streams| streams.len());
        }
    }
}

/// Runs a correct host that writes 4 KiB at a time. Now and then a second host connects and writes
/// 1 MiB. Returns the longest time of a 4 KiB write, the longest time of a connect together with
/// its write, and the number of 4 KiB writes.
fn honest(address: SocketAddr, is_over: &AtomicBool) -> (Duration, Duration, usize) {
    let (_admin, mut old) = Peer::io(address, &host(1_000_000));
    let (mut longest, mut longest_new, mut count) = (Duration::ZERO, Duration::ZERO, 0);
    while !is_over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        assert_eq!(old.write(4096), Status::SUCCESS, "write {count}");
        longest = longest.max(begin.elapsed());
        if count % 20 == 0 {
            let begin = Instant::now();
            let (_admin, mut new) = Peer::io(address, &host(1_000_001));
            assert_eq!(new.write(MIB), Status::SUCCESS, "a new host's write fails");
            longest_new = longest_new.max(begin.elapsed());
        }
        count += 1;
        thread::sleep(Duration::from_millis(10));
    }
    (longest, longest_new, count)
}

#[test]
#[ignore = "takes a minute and 20,000 descriptors"]
fn a_host_is_served_and_memory_stays_bounded_under_a_siege() {
    let besieged = Besieged::start(SERVE, None);
    let address = besieged.address;
    // After this connection, the target knows the host's address.
    drop(Peer::io(address, &host(1_000_000)));
    let before = besieged.resident();
    let (is_over, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut most = 0;
    let (longest, longest_new, writes) = thread::scope(|scope| {
        for part in 0..ATTACKERS {
            let (is_over, begun) = (&is_over, &begun);
            scope.spawn(move || besiege(part, address, is_over, begun));
        }
        let user = scope.spawn(|| honest(address, &is_over));
        let end = Instant::now() + TIME;
        while Instant::now() < end && !user.is_finished() {
            most = most.max(besieged.resident());
            thread::sleep(Duration::from_millis(50));
        }
        is_over.store(true, Ordering::Relaxed);
        user.join().expect("a valid host is served")
    });
    let deadline = Instant::now() + WAIT_LIMIT;
    while besieged.resident() > before + 200 * MIB && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
    let after_bytes = besieged.resident();
    let connections = besieged.end();
    println!(
        "{} attacks begun, {connections} connections at once; resident: {} MiB before, {} at most, \
         {} after; an honest host: {writes} writes, the longest {longest:?}, a new host with a \
         write of 1 MiB {longest_new:?}",
        begun.load(Ordering::Relaxed),
        before / MIB,
        most / MIB,
        after_bytes / MIB,
    );
    assert!(most < GOAL_BYTES, "{most} bytes");
    assert!(after_bytes < before + 200 * MIB, "{after_bytes} bytes are still in use");
}
