//! Tests a disk over WinSpd's named pipe: the server loads WinSpd's library, which serves the pipe,
//! and a client sends the documented messages. The tests run with a stand-in for the library
//! (`examples/winspd_standin.rs`), and with a build of WinSpd if `FARBLOCK_WINSPD` names one.
#![cfg(windows)]

#[path = "support/gate.rs"]
mod gate;
mod support;

use farblock_backends::Spec;
use farblock_backends::fault::{Fault, Rule};
use farblock_block::{BlockError, Command, Namespace};
use farblock_random::Random;
use farblock_winspd::{Device, Options, Server, StartError};
use gate::Gate;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::*;

/// The longest wait. Even on a busy machine, expected events happen sooner.
const LONG: Duration = Duration::from_secs(60);
/// The number of concurrent requests. WinSpd's driver sends at most 254 at once.
const DEPTH: usize = 128;

fn disk(spec: &str, block_size: u32) -> Arc<dyn Namespace> {
    Spec::parse(spec).expect("a disk").open(block_size, false).expect("the disk opens")
}

/// Options with a pipe name that no other test uses.
fn options(library: &Library) -> Options {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("farblock-test-{}-{number}", std::process::id());
    let device = Device::Pipe(format!(r"\\.\pipe\{name}"));
    Options { library: Some(library.folder.clone()), ..Options::new(device, &name) }
}

fn serve(library: &Library, namespace: Arc<dyn Namespace>) -> Server {
    Server::start(&options(library), namespace).expect("the server starts")
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "this did not happen in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_disk_has_the_properties_of_the_namespace() {
    for library in libraries() {
        let named = |options: Options| Options { product: "A disk".to_owned(), ..options };
        let server =
            Server::start(&named(options(&library)), disk("mem:8MiB", 4096)).expect("a server");
        let client = Client::connect(&server.location());
        assert_eq!((client.blocks(), client.block_bytes()), (2048, 4096), "{library:?}");
        assert_eq!(client.product(), "A disk          ");
        assert_eq!(client.flags(), 4 | 8, "not the flags for unmap and no cache");
        assert_eq!(client.max_bytes(), 256 << 10);
        drop(client);
        server.stop(false).expect("the server stops");
        let small = Gate::new(disk("mem:1MiB", 512), |geometry| {
            geometry.max_blocks = 16;
            geometry.volatile_cache = true;
            geometry.deallocate = false;
        });
        let read_only = Options { read_only: true, ..options(&library) };
        let server = Server::start(&read_only, Arc::new(small)).expect("the server starts");
        let client = Client::connect(&server.location());
        assert_eq!((client.flags(), client.max_bytes()), (1 | 2 | 8, 8192));
        server.stop(true).expect("the server stops");
    }
}

/// Executes all operations of a disk, and compares the disk with a copy in memory.
#[test]
fn every_operation_of_a_disk_works() {
    for library in libraries() {
        let server = serve(&library, disk("mem:4MiB", 512));
        let mut client = Client::connect(&server.location());
        let mut random = Random::new(7);
        let mut model = vec![0_u8; 4 << 20];
        for _ in 0..200 {
            let blocks = 1 + random.below(512);
            let lba = random.below(8192 - blocks);
            let range = lba as usize * 512..(lba + blocks) as usize * 512;
            match random.below(4) {
                0 => {
                    let rest = blocks as u32 - 1;
                    assert!(client.unmap(&[(lba, 1), (lba + 1, rest)]).is_good());
                    // Unmapped blocks of the memory backend read as zeroes.
                    model[range].fill(0);
                }
                1 => {
                    let data = random.bytes(range.len());
                    assert!(client.write(lba, &data, random.below(2) == 0).is_good());
                    model[range].copy_from_slice(&data);
                }
                2 => assert!(client.flush(lba, blocks as u32).is_good()),
                _ => {
                    let answer = client.read(lba, blocks as u32);
                    assert!(answer.is_good() && answer.data == model[range], "{library:?}");
                }
            }
        }
        assert!(client.flush(0, 0).is_good());
        server.stop(false).expect("the server stops");
    }
}

/// More requests run concurrently than the library has threads. The server answers each when it
/// completes.
#[test]
fn requests_run_concurrently_up_to_the_queue_depth() {
    for library in libraries() {
        let gate = Arc::new(Gate::new(disk("mem:4MiB", 512), |_| {}));
        let server = serve(&library, Arc::clone(&gate) as Arc<dyn Namespace>);
        let mut client = Client::connect(&server.location());
        let block = |n: usize| vec![n as u8 ^ 0x5a; 1024];
        let mut hints: Vec<u64> =
            (0..DEPTH).map(|n| client.send(WRITE, n as u64 * 2, 2, false, &block(n))).collect();
        wait_until("all writes are in flight", || server.in_flight() == DEPTH);
        gate.open_up();
        let mut order = Vec::new();
        for _ in 0..DEPTH {
            let answer = client.receive().expect("an answer");
            assert!(answer.is_good() && answer.kind == WRITE);
            order.push(answer.hint);
        }
        assert_ne!(order, hints, "the gate releases writes in reverse order");
        order.sort_unstable();
        assert_eq!(order, hints, "a request has several answers or none");
        gate.close();
        hints = (0..DEPTH).map(|n| client.send(READ, n as u64 * 2, 2, false, &[])).collect();
        wait_until("all reads are in flight", || server.in_flight() == DEPTH);
        gate.open_up();
        for _ in 0..DEPTH {
            let answer = client.receive().expect("an answer");
            let n = hints.iter().position(|hint| *hint == answer.hint).expect("one request");
            assert_eq!(answer.data, block(n), "{library:?}");
        }
        wait_until("no request is in flight", || server.in_flight() == 0);
        server.stop(false).expect("the server stops");
    }
}

/// The server passes FUA, a flush, and the final flush to the namespace.
#[test]
fn fua_and_flushes_reach_the_namespace() {
    for library in libraries() {
        let cached = |geometry: &mut farblock_block::Geometry| geometry.volatile_cache = true;
        let gate = Arc::new(Gate::new(disk("mem:1MiB", 512), cached));
        gate.open_up();
        let server = serve(&library, Arc::clone(&gate) as Arc<dyn Namespace>);
        let mut client = Client::connect(&server.location());
        assert!(client.write(0, &[1; 512], false).is_good());
        assert!(client.write(0, &[2; 512], true).is_good());
        assert!(client.flush(0, 1).is_good());
        server.stop(false).expect("the server stops");
        let (write, flush) = (Command::Write, Command::Flush);
        let expected = [(write, false), (write, true), (flush, false), (flush, false)];
        assert_eq!(gate.seen(), expected, "{library:?}");
    }
}

#[test]
fn disk_errors_have_sense_data() {
    for library in libraries() {
        let faults = Fault::new(
            disk("mem:1MiB", 512),
            vec![
                Rule::new(BlockError::ReadFailed).command(Command::Read).blocks(100..101),
                Rule::new(BlockError::WriteFailed).command(Command::Write).blocks(100..101),
                Rule::new(BlockError::NoSpace).command(Command::Write).blocks(200..201),
                Rule::new(BlockError::WriteFailed).command(Command::Deallocate).blocks(100..101),
            ],
            1,
        );
        let server = serve(&library, Arc::new(faults));
        let mut client = Client::connect(&server.location());
        let sense = |answer: Answer| {
            assert_eq!(answer.scsi_status, 2, "the answer has no check condition");
            (answer.sense, answer.information)
        };
        assert!(client.write(0, &[0x77; 4096], false).is_good());
        let read = client.read(98, 4);
        assert!(
            read.data.iter().all(|byte| *byte == 0),
            "a failed read returned another read's data"
        );
        assert_eq!(sense(read), ((3, 0x11, 0), Some(98)));
        assert_eq!(sense(client.write(100, &[0; 512], false)), ((3, 0x0c, 0), Some(100)));
        assert_eq!(sense(client.write(200, &[0; 512], false)), ((7, 0x27, 7), None));
        assert_eq!(sense(client.unmap(&[(100, 1)])).0, (3, 0x0c, 0));
        // Access blocks just beyond the disk's end.
        assert_eq!(sense(client.read(2048, 1)), ((5, 0x21, 0), Some(2048)));
        assert_eq!(sense(client.read(2047, 2)), ((5, 0x21, 0), Some(2047)));
        assert_eq!(sense(client.write(u64::MAX, &[0; 1024], false)), ((5, 0x21, 0), None));
        assert_eq!(sense(client.unmap(&[(0, 1), (2048, 1)])).0, (5, 0x21, 0));
        assert!(client.read(2047, 1).is_good());
        // The same hints again: the server must keep nothing of the failed requests.
        client.next_hint = 1;
        assert!(client.read(0, 1).is_good() && client.read(1, 1).is_good());
        server.stop(false).expect("the server stops");
        let read_only = Options { read_only: true, ..options(&library) };
        let server = Server::start(&read_only, disk("mem:1MiB", 512)).expect("the server starts");
        let mut client = Client::connect(&server.location());
        assert_eq!(sense(client.write(0, &[0; 512], false)), ((7, 0x27, 0), None));
        assert_eq!(sense(client.unmap(&[(0, 1)])), ((7, 0x27, 0), None));
        assert!(client.read(0, 1).is_good() && client.flush(0, 1).is_good());
        server.stop(false).expect("the server stops");
    }
}

/// The server refuses requests with more data than the limit. Such requests would overrun the
/// library's buffer.
#[test]
fn oversized_requests_are_refused() {
    // WinSpd's own library does not answer some of these requests, so test only the stand-in.
    for library in libraries().into_iter().filter(|library| library.name == "stand-in") {
        let server = serve(&library, disk("mem:1MiB", 512));
        let mut client = Client::connect(&server.location());
        for (kind, blocks) in [(READ, 513), (READ, u32::MAX), (WRITE, 513), (WRITE, 0x80_0001)] {
            let hint = client.send(kind, 0, blocks, false, &[]);
            let answer = client.answer(hint, kind);
            assert_eq!((answer.scsi_status, answer.sense), (2, (5, 0x24, 0)));
        }
        let hint = client.send(UNMAP, 1 << 24, 0, false, &[]);
        assert_eq!(client.answer(hint, UNMAP).sense, (5, 0x24, 0));
        let hint = client.send(77, 0, 1, false, &[]);
        assert_eq!(client.answer(hint, 77).sense, (5, 0x20, 0));
        assert!(client.read(0, 512).is_good());
        server.stop(false).expect("the server stops");
    }
}

/// A stop waits for accepted requests. A forced stop does not wait.
#[test]
fn a_stop_waits_for_requests_unless_it_is_forced() {
    for library in libraries() {
        let gate = Arc::new(Gate::new(disk("mem:1MiB", 512), |_| {}));
        let server = serve(&library, Arc::clone(&gate) as Arc<dyn Namespace>);
        let mut client = Client::connect(&server.location());
        for lba in 0..8 {
            client.send(WRITE, lba, 1, false, &[9; 512]);
        }
        wait_until("all requests are in flight", || server.in_flight() == 8);
        let stopper = thread::spawn(move || server.stop(false));
        thread::sleep(Duration::from_millis(100));
        assert!(!stopper.is_finished(), "the server stopped before the requests were answered");
        gate.open_up();
        let answers: Vec<Answer> = std::iter::from_fn(|| client.receive()).collect();
        stopper.join().expect("no panic").expect("the server stops");
        assert!(answers.iter().all(Answer::is_good));
        // When the disk is removed, WinSpd's library drops answers that the client has not read.
        assert!(
            answers.len() == 8 || library.name == "WinSpd",
            "the client received {} answers",
            answers.len()
        );
        assert_eq!(
            gate.seen().len(),
            8 + 1,
            "the namespace received other operations than eight writes and a flush"
        );

        gate.close();
        let server = serve(&library, Arc::clone(&gate) as Arc<dyn Namespace>);
        let mut client = Client::connect(&server.location());
        for lba in 0..8 {
            client.send(READ, lba, 1, false, &[]);
        }
        wait_until("all requests are in flight", || server.in_flight() == 8);
        server.stop(true).expect("the server stops");
        assert_eq!(client.receive(), None, "an aborted request is answered");
    }
}

/// If WinSpd's driver stops, the server notices and flushes the written data.
#[test]
fn the_server_notices_a_stopped_driver_and_flushes() {
    // Only the stand-in can simulate that the driver stops, when a client requests it.
    let library = &libraries()[0];
    let gate = Arc::new(Gate::new(disk("mem:1MiB", 512), |_| {}));
    gate.open_up();
    let server = serve(library, Arc::clone(&gate) as Arc<dyn Namespace>);
    let mut client = Client::connect(&server.location());
    assert!(client.write(0, &[1; 512], false).is_good());
    assert!(!server.is_gone());
    client.send(TAKE_AWAY, 0, 0, false, &[]);
    wait_until("the server notices the end", || server.is_gone());
    wait_until("the last flush arrives", || gate.seen().len() == 2);
    assert_eq!(gate.seen()[1].0, Command::Flush);
    server.stop(false).expect("the server stops");
}

/// Clients connect and disconnect, even while requests are in flight, and the disk stays available.
#[test]
fn the_disk_survives_reconnecting_clients() {
    for library in libraries() {
        let server = serve(&library, disk("mem:1MiB", 512));
        for round in 1..4_u8 {
            let mut client = Client::connect(&server.location());
            client.next_hint = u64::from(round) << 32;
            let before = client.read(0, 1);
            assert!(before.data.iter().all(|byte| *byte == round - 1), "{library:?}");
            assert!(client.write(0, &[round; 512], false).is_good());
        }
        server.stop(false).expect("the server stops");
        // A server to which no client ever connected must also stop.
        serve(&library, disk("mem:1MiB", 512)).stop(false).expect("the server stops");
        drop(serve(&library, disk("mem:1MiB", 512)));
    }
}

#[test]
fn several_disks_are_independent() {
    for library in libraries() {
        let servers: Vec<Server> = (0..3).map(|_| serve(&library, disk("mem:1MiB", 512))).collect();
        for (n, server) in servers.iter().enumerate() {
            let mut client = Client::connect(&server.location());
            assert!(client.read(5, 1).data == [0; 512]);
            assert!(client.write(5, &[n as u8 + 1; 512], false).is_good());
        }
        for (n, server) in servers.into_iter().enumerate() {
            let mut client = Client::connect(&server.location());
            client.next_hint = 100;
            assert!(client.read(5, 1).data == [n as u8 + 1; 512]);
            server.stop(false).expect("the server stops");
        }
    }
}

fn refused(options: &Options, namespace: Arc<dyn Namespace>) -> (StartError, String) {
    let error = Server::start(options, namespace).err().expect("the server refuses to start");
    let text = error.to_string();
    (error, text)
}

/// The text of each start error tells the user how to fix the problem.
#[test]
fn start_errors_say_how_to_fix_the_problem() {
    for library in libraries() {
        let server_options = options(&library);
        let server =
            Server::start(&server_options, disk("mem:1MiB", 512)).expect("the server starts");
        let (error, _) = refused(&server_options, disk("mem:1MiB", 512));
        assert!(matches!(error, StartError::InUse), "{error:?}");
        server.stop(false).expect("the server stops");
        let driver = Options { device: Device::Driver, ..options(&library) };
        let (error, text) = refused(&driver, disk("mem:1MiB", 512));
        assert!(matches!(error, StartError::NoDriver), "{error:?}");
        assert!(text.contains("https://github.com/winfsp/winspd/releases"), "{text}");
    }
    let library = &libraries()[0];
    let elsewhere = Options { library: Some("C:\\nowhere".into()), ..options(library) };
    let (error, text) = refused(&elsewhere, disk("mem:1MiB", 512));
    assert!(matches!(error, StartError::NotInstalled(..)), "{error:?}");
    for part in ["WinSpd is not installed", "winspd-*.msi", "github.com/winfsp/winspd", "iscsi"] {
        assert!(text.contains(part), "{text}");
    }
    let nameless = Options { device: Device::Pipe("farblock".to_owned()), ..options(library) };
    assert!(matches!(refused(&nameless, disk("mem:1MiB", 512)).0, StartError::PipeName(_)));
    let long = Options { product: "more than sixteen".to_owned(), ..options(library) };
    assert!(matches!(refused(&long, disk("mem:1MiB", 512)).0, StartError::Product(_)));
    let (error, _) = refused(&options(library), disk("mem:1MiB", 8192));
    assert!(matches!(error, StartError::BlockSize(8192)), "{error:?}");
}

/// Runs WinSpd's own test program.
#[test]
fn stgtest_passes() {
    let Some(folder) = std::env::var_os("FARBLOCK_WINSPD") else {
        eprintln!("not run: FARBLOCK_WINSPD names no folder with stgtest.exe");
        return;
    };
    let program = std::path::Path::new(&folder).join("stgtest.exe");
    for library in libraries() {
        for operations in ["WR", "UR", "RWFU"] {
            let server = serve(&library, disk("mem:16MiB", 512));
            let status = std::process::Command::new(&program)
                .args(["-s", "1", &server.location(), "2000", operations, "*", "*"])
                .status()
                .expect("stgtest.exe runs");
            assert!(status.success(), "{library:?} {operations}: {status}");
            server.stop(false).expect("the server stops");
        }
    }
}
