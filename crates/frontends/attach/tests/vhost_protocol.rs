//! Tests a vhost-user disk as a guest's driver sees it.
#![cfg(target_os = "linux")]

mod vhost_support;

use farblock_attach::vhost_user::{Config, Server, StartError};
use farblock_block::testing::Elastic;
use farblock_block::{BlockError, Changes, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId};
use farblock_testkit::eventually;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost_support::*;

/// A namespace that counts its operations, and whose size can change.
struct Spy {
    disk: Arc<Elastic>,
    cache: bool,
    durable: Arc<AtomicUsize>,
    flushes: Arc<AtomicUsize>,
}

impl Spy {
    fn new(inner: Arc<dyn Namespace>, cache: bool) -> Arc<Spy> {
        let (durable, flushes) = (Arc::default(), Arc::default());
        Arc::new(Spy { disk: Elastic::new(inner), cache, durable, flushes })
    }
}

impl Namespace for Spy {
    fn changes(&self) -> Option<&Changes> {
        self.disk.changes()
    }

    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: self.cache, max_blocks: 100, ..self.disk.geometry() }
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.disk.open(reactor, parent)?;
        let (durable, flushes) = (Arc::clone(&self.durable), Arc::clone(&self.flushes));
        Ok(Box::new(SpyQueue { inner, durable, flushes }))
    }
}

struct SpyQueue {
    inner: Box<dyn Queue>,
    durable: Arc<AtomicUsize>,
    flushes: Arc<AtomicUsize>,
}

impl Queue for SpyQueue {
    fn submit(&mut self, op: Op) {
        assert!(!op.command.moves_data() || op.blocks <= 100, "an operation exceeds the limit");
        self.durable.fetch_add(usize::from(op.fua), Ordering::Relaxed);
        let flush = op.command == farblock_block::Command::Flush;
        self.flushes.fetch_add(usize::from(flush), Ordering::Relaxed);
        self.inner.submit(op);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn a_monitor_sees_the_properties_of_the_disk() {
    for (block_size, per_block) in [(512_u32, 1_u32), (4096, 8)] {
        let served = serve_with(disk("mem:32MiB", block_size), |_| {});
        let mut vm = served.boot();
        assert_eq!(vm.frontend().get_queue_num().expect("a number"), 2);
        let features = vm.frontend().get_features().expect("features");
        assert_eq!(features & F_RO, 0);
        assert_ne!(features & F_DISCARD, 0, "the disk does not offer F_DISCARD");
        // Without `F_LOG_ALL`, a monitor refuses to migrate the guest: the server does not record
        // which memory it writes.
        let offered = vm.frontend().get_protocol_features().expect("protocol features");
        assert_eq!(features & F_LOG_ALL, 0, "F_LOG_ALL");
        assert!(!offered.contains(VhostUserProtocolFeatures::LOG_SHMFD), "{offered:?}");
        assert_eq!(vm.config(0, 8), (65_536_u64).to_le_bytes());
        assert_eq!(vm.config(20, 4), block_size.to_le_bytes());
        assert_eq!(vm.config(34, 2), [2, 0]);
        assert_eq!(vm.config(44, 4), per_block.to_le_bytes());
        assert_eq!(vm.call(0, GET_ID, 0, &[(DATA, 20)]), (OK, 21));
        assert_eq!(vm.read(DATA, 20), b"serial-1\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(vm.call(1, GET_ID, 0, &[(DATA, 3), (DATA + 100, 4)]), (OK, 8));
        assert_eq!(vm.read(DATA + 100, 4), b"ial-");
        served.stop();
    }
}

/// Transfers data in segments that do not end at block boundaries, on both rings. Some requests are
/// longer than one operation.
#[test]
fn data_may_be_split_at_any_byte() {
    for engine in ENGINES {
        let spy = Spy::new(disk("mem:32MiB", 512), false);
        let served = serve(engine, spy);
        let mut vm = served.boot();
        let data = pattern(7, 5 << 20);
        vm.write(DATA, &data);
        let last = (5 << 20) - 3 - 70_000;
        let pieces = [(DATA, 3), (DATA + 3, 70_000), (DATA + 70_003, last)];
        assert_eq!(vm.call(0, OUT, 8, &pieces), (OK, 1));
        assert_eq!(vm.call(1, FLUSH, 0, &[]), (OK, 1));
        vm.write(DATA, &vec![0; 5 << 20]);
        let to = [(DATA + 9, 4 << 20), (DATA + 9 + (4 << 20), 1), (DATA + 10 + (4 << 20), 1048575)];
        assert_eq!(vm.call(1, IN, 8, &to), (OK, (5 << 20) + 1));
        assert!(vm.read(DATA + 9, 5 << 20) == data);
        // The request did not change the neighbouring blocks.
        assert_eq!(vm.load(0, 4096), vec![0; 4096]);
        served.stop();
    }
}

/// Fills a ring with requests, several times.
#[test]
fn a_full_ring_of_requests_is_served() {
    for engine in ENGINES {
        for spec in ["mem:32MiB", "delay:1ms,mem:32MiB"] {
            let served = serve(engine, disk(spec, 512));
            let mut vm = served.boot();
            for round in 0..7_u64 {
                let mut open = Vec::new();
                for index in 0..SIZE / 3 {
                    let sector = u64::from(index) * 8;
                    let at = DATA + sector * 512;
                    let kind = if round % 2 == 0 { OUT } else { IN };
                    let bytes =
                        if kind == OUT { pattern(round + sector + 1, 4096) } else { vec![0; 4096] };
                    vm.write(at, &bytes);
                    open.push((vm.submit(0, kind, sector, &[(at, 4096)]), at, sector));
                }
                for _ in &open {
                    let (id, _) = vm.used(0).expect("an answer");
                    assert!(open.iter().any(|&((head, _), ..)| u32::from(head) == id));
                }
                for ((_, status), at, sector) in open {
                    assert_eq!(vm.read(status, 1), [OK]);
                    assert!(vm.read(at, 4096) == pattern(round / 2 * 2 + sector + 1, 4096));
                }
            }
            served.stop();
        }
    }
}

#[test]
fn indirect_tables_are_followed() {
    let served = serve_with(disk("mem:32MiB", 512), |_| {});
    let mut vm = served.boot();
    let data = pattern(3, 128 * 512);
    vm.write(DATA, &data);
    let (header, status) = vm.frame(0, OUT, 0);
    let table = 1 << 20;
    // The request has as many segments as a guest may use.
    let count = 126_u16;
    vm.descriptor(table, (header.0, 16, NEXT, 1));
    for piece in 0..count {
        let (at, length) = (DATA + u64::from(piece) * 520, 520_u32);
        let length = if piece == count - 1 { 128 * 512 - 125 * 520 } else { length };
        vm.descriptor(table + 16 * (1 + u64::from(piece)), (at, length, NEXT, piece + 2));
    }
    vm.descriptor(table + 16 * 127, (status.0, 1, WRITE, 0));
    vm.offer(0, &[(table, 128 * 16, INDIRECT, 0)]);
    vm.kick(0);
    assert_eq!(vm.used(0).map(|used| used.1), Some(1));
    assert_eq!(vm.read(status.0, 1), [OK]);
    assert!(vm.load(0, 128 * 512) == data);
    served.stop();
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    for engine in ENGINES {
        let served = serve(engine, disk("mem:32MiB", 4096));
        let mut vm = served.boot();
        assert_eq!(vm.store(0, &pattern(1, 1 << 20)), OK);
        assert_eq!(vm.ranges(DISCARD, &[(8, 8, 0), (24, 16, 0)]), OK);
        assert_eq!(vm.ranges(ZEROES, &[(64, 8, 0)]), OK);
        assert_eq!(vm.ranges(ZEROES, &[(80, 8, 1)]), OK);
        let found = vm.load(0, 1 << 20);
        let mut expected = pattern(1, 1 << 20);
        for (sector, sectors) in [(8, 8), (24, 16), (64, 8), (80, 8)] {
            expected[sector * 512..(sector + sectors) * 512].fill(0);
        }
        assert!(found == expected);
        served.stop();
    }
}

#[test]
fn invalid_requests_get_an_error_status() {
    let served = serve_with(disk("mem:32MiB", 4096), |_| {});
    let mut vm = served.boot();
    let end = 65_536;
    for (kind, sector, length) in [
        (IN, 1, 4096),
        (IN, 0, 512),
        (OUT, 0, 4097),
        (IN, end, 4096),
        (OUT, end - 8, 8192),
        (IN, u64::MAX, 4096),
        (OUT, u64::MAX - 7, 4096),
        (IN, 0, 33 << 20),
    ] {
        assert_eq!(
            vm.call(0, kind, sector, &[(DATA, length)]),
            (IOERR, 1),
            "the answer to request {kind} at sector {sector}"
        );
    }
    assert_eq!(vm.call(0, IN, 0, &[]), (OK, 1), "an empty request failed");
    assert_eq!(vm.call(0, 99, 0, &[(DATA, 512)]), (UNSUPP, 1));
    assert_eq!(vm.ranges(DISCARD, &[(0, 8, 1)]), UNSUPP);
    assert_eq!(vm.ranges(ZEROES, &[(0, 8, 2)]), UNSUPP);
    assert_eq!(vm.ranges(DISCARD, &[(0, 8, 0), (4, 8, 0)]), IOERR);
    assert_eq!(vm.ranges(DISCARD, &[(end - 8, 16, 0)]), IOERR);
    assert_eq!(vm.ranges(ZEROES, &[(u64::MAX - 7, u32::MAX, 0)]), IOERR);
    assert_eq!(vm.ranges(ZEROES, &[(0, 8, 0); 17]), IOERR);
    assert_eq!(vm.ranges(ZEROES, &[]), IOERR);
    assert_eq!(vm.call(0, DISCARD, 0, &[(DATA, 15)]).0, IOERR);
    assert_eq!(vm.load(65_528, 4096), vec![0; 4096], "a refused request changed the disk");
    served.stop();
}

#[test]
fn a_read_only_disk_refuses_writes() {
    let served = serve_with(disk("mem:1MiB", 512), |config| config.read_only = true);
    let mut vm = served.boot();
    assert_ne!(vm.frontend().get_features().expect("features") & F_RO, 0);
    assert_eq!(vm.store(0, &[1; 512]), IOERR);
    assert_eq!(vm.ranges(DISCARD, &[(0, 8, 0)]), IOERR);
    assert_eq!(vm.ranges(ZEROES, &[(0, 8, 0)]), IOERR);
    assert_eq!(vm.call(0, FLUSH, 0, &[]), (OK, 1));
    assert_eq!(vm.load(0, 512), [0; 512]);
    served.stop();
}

#[test]
fn a_guest_can_switch_the_write_cache() {
    let spy = Spy::new(disk("mem:1MiB", 512), true);
    let served = serve_with(Arc::clone(&spy) as Arc<dyn Namespace>, |_| {});
    let mut vm = served.boot();
    let durable = || spy.durable.load(Ordering::Relaxed);
    assert_eq!(vm.config(32, 1), [1], "the write cache is off");
    assert_eq!((vm.store(0, &[1; 512]), durable()), (OK, 0));
    assert_eq!(vm.call(0, FLUSH, 0, &[]), (OK, 1));
    assert_eq!(spy.flushes.load(Ordering::Relaxed), 1);
    let flags = VhostUserConfigFlags::WRITABLE;
    vm.frontend().set_config(32, flags, &[0]).expect("the cache can be disabled");
    assert_eq!(vm.config(32, 1), [0]);
    assert_eq!((vm.store(0, &[2; 512]), durable()), (OK, 1));
    assert_eq!((vm.ranges(ZEROES, &[(0, 1, 0)]), durable()), (OK, 2));
    assert!(vm.frontend().set_config(0, flags, &[0]).is_err(), "the driver changed the capacity");
    vm.frontend().set_config(32, flags, &[1]).expect("the cache can be enabled");
    assert_eq!((vm.store(0, &[3; 512]), durable()), (OK, 2));
    vm.disconnect();
    // A driver without the flush feature sends no flushes, so its writes must be durable.
    let mut vm = Vm::new();
    vm.attach(&served, !F_FLUSH);
    assert_eq!((vm.store(0, &[4; 512]), durable()), (OK, 3));
    served.stop();
}

#[test]
fn a_changed_size_is_announced() {
    let spy = Spy::new(disk("mem:1MiB", 512), false);
    let served = serve_with(Arc::clone(&spy) as Arc<dyn Namespace>, |_| {});
    let mut vm = served.boot();
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    vm.frontend().set_backend_request_fd(&theirs).expect("a channel");
    assert_eq!(vm.call(0, IN, 2047, &[(DATA, 512)]).0, OK);
    spy.disk.resize(1000);
    let mut message = [0; 12];
    ours.read_exact(&mut message).expect("a message");
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], "the new size was not announced");
    assert_eq!(vm.config(0, 8), 1000_u64.to_le_bytes());
    eventually("requests use the new size", || vm.call(0, IN, 2047, &[(DATA, 512)]).0 == IOERR);
    assert_eq!(vm.call(1, IN, 999, &[(DATA, 512)]).0, OK);
    // A monitor that reconnects may still use the old size.
    vm.disconnect();
    let mut vm = served.boot();
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    vm.frontend().set_backend_request_fd(&theirs).expect("a channel");
    ours.read_exact(&mut message).expect("a message");
    assert_eq!(message[..4], [2, 0, 0, 0], "the size was not announced again");
    drop(vm);
    served.stop();
}

/// A guest that disables interrupts gets no interrupts, with and without event indexes.
#[test]
fn interrupts_are_sent_only_if_the_guest_wants_them() {
    let served = serve_with(disk("mem:1MiB", 512), |_| {});
    for features in [u64::MAX, !F_EVENT_IDX, !F_INDIRECT] {
        let mut vm = Vm::new();
        vm.attach(&served, features);
        for _ in 0..3 {
            assert_eq!(vm.call(0, IN, 0, &[(DATA, 512)]).0, OK);
            eventually("the guest is notified", || vm.rings[0].call.read().is_ok());
        }
        assert!(vm.rings[1].call.read().is_err(), "another ring is notified");
    }
    let mut vm = served.boot();
    // Request an interrupt only at an index that this test never reaches.
    vm.write(ring_at(0) + 4096 + 4 + u64::from(SIZE) * 2, &1000_u16.to_le_bytes());
    let (_, status) = vm.submit(0, IN, 0, &[(DATA, 512)]);
    eventually("the request is answered", || vm.used_index(0) == 1);
    assert_eq!(vm.read(status, 1), [OK]);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(vm.rings[0].call.read().is_err(), "the guest was notified without a request");
    served.stop();
}

#[test]
fn an_unusable_configuration_is_refused() {
    let namespace = disk("mem:1MiB", 512);
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = Config::new(folder.path().join("disk.sock"));
    let server = Server::start(&config, Arc::clone(&namespace)).expect("the server starts");
    let mode = std::fs::metadata(server.socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let error = Server::start(&config, Arc::clone(&namespace)).err().expect("the socket is in use");
    assert!(matches!(error, StartError::Listen(_)) && error.to_string().contains("choose another"));
    server.stop().expect("the server stops");
    assert!(!config.socket.exists());
    config.serial = "123456789012345678901".to_owned();
    let error = Server::start(&config, Arc::clone(&namespace))
        .err()
        .expect("a serial number that is too long is refused");
    assert!(error.to_string().contains("at most 20"), "{error}");
    config.serial = "ä".to_owned();
    assert!(Server::start(&config, Arc::clone(&namespace)).is_err());
    config.serial.clear();
    config.queues = 65;
    let error = Server::start(&config, namespace).err().expect("too many queues");
    assert!(error.to_string().contains("at most 64"), "{error}");
}
