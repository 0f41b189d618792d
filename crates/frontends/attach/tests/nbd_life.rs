//! Tests the start and stop of an NBD server, and its listening addresses.
#![cfg(target_os = "linux")]

mod nbd_support;

use farblock_attach::nbd::{Address, Config, Server};
use farblock_testkit::eventually;
use nbd_support::*;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn at(path: &Path) -> Config {
    Config::new(Some(Address::Unix(path.to_path_buf())))
}

fn refusal(config: &Config) -> String {
    match Server::start(config, disk("mem:1MiB", 512)) {
        Ok(_) => panic!("the server started"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_server_listens_on_a_private_unix_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.sock");
    for engine in ENGINES {
        let config = Config { engine, ..at(&path) };
        let server = Server::start(&config, disk("mem:1MiB", 512)).expect("the server starts");
        assert_eq!(server.engine(), engine);
        assert_eq!(server.address(), Some(&Address::Unix(path.clone())));
        let found = std::fs::metadata(&path).expect("a socket");
        assert!(found.file_type().is_socket());
        assert_eq!(
            found.permissions().mode() & 0o777,
            0o600,
            "users other than the owner may connect"
        );
        let stream = UnixStream::connect(&path).expect("a server listens");
        eventually("the client is counted", || server.connections() == 1);
        drop(stream);
        eventually("the client is gone", || server.connections() == 0);
        server.stop().expect("the server stops");
        assert!(!path.exists(), "the socket was not removed");
    }
}

#[test]
fn a_server_replaces_a_stale_socket_but_not_a_live_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.sock");
    // A killed server leaves such a socket file.
    drop(UnixListener::bind(&path).expect("a socket"));
    let server = Server::start(&at(&path), disk("mem:1MiB", 512)).expect("a free path");
    assert!(refusal(&at(&path)).contains("another program listens at"));
    UnixStream::connect(&path).expect("the first server still listens");
    // If another process has replaced the socket at the path, the server must not remove it.
    std::fs::remove_file(&path).expect("the file exists");
    let other = UnixListener::bind(&path).expect("a socket");
    server.stop().expect("the server stops");
    assert!(path.exists());
    drop(other);
    std::fs::remove_file(&path).expect("the file exists");
    std::fs::write(&path, "text").expect("a file");
    assert!(refusal(&at(&path)).contains("is not a socket"));
    assert_eq!(std::fs::read(&path).expect("a file"), b"text");
    assert!(refusal(&at(&folder.path().join("x".repeat(120)))).contains("too long"));
    assert!(refusal(&at(&folder.path().join("none/disk.sock"))).contains("No such file"));
}

#[test]
fn a_server_listens_on_a_loopback_port() {
    let server = serve_tcp(ENGINES[0], disk("mem:1MiB", 512));
    let Some(address @ Address::Tcp(port)) = server.address().cloned() else { panic!("no port") };
    assert!(port.port() != 0);
    assert!(refusal(&Config::new(Some(address))).contains("another program listens at"));
    let anywhere = Address::Tcp(([0, 0, 0, 0], 0).into());
    assert!(refusal(&Config::new(Some(anywhere))).contains("does not authenticate clients"));
    let config = Config { export: "x".repeat(5000), ..Config::new(None) };
    assert!(refusal(&config).contains("at most 4096 are allowed"));
}

#[test]
fn a_stopping_server_answers_accepted_requests() {
    for engine in ENGINES {
        let disk = Spy::new(disk("delay:200ms,mem:1MiB", 512));
        let server = serve(engine, disk.clone());
        let mut client = Client::simple(&server);
        for cookie in 0..8 {
            client.request(0, WRITE, cookie, cookie * 512, 512);
            client.send(&[cookie as u8 + 1; 512]);
        }
        // Send only a part of a ninth write.
        client.request(0, WRITE, 9, 9 * 512, 512);
        client.send(&[9; 200]);
        eventually("all writes are in flight", || disk.writes.load(Ordering::Relaxed) == 8);
        let stopping = std::thread::spawn(move || server.stop());
        for _ in 0..8 {
            assert_eq!(client.reply(0).errno, 0);
        }
        client.expect_end();
        stopping.join().expect("no panic").expect("the server stops");
        let server = serve(engine, disk);
        let read = Client::simple(&server).read(0, 5120);
        for (index, block) in read.chunks(512).enumerate() {
            let expected = if index < 8 { index as u8 + 1 } else { 0 };
            assert_eq!(block, [expected; 512], "the content of block {index}");
        }
    }
}

#[test]
fn idle_clients_do_not_delay_the_stop() {
    for engine in ENGINES {
        let server = serve(engine, disk("mem:16MiB", 512));
        let mut clients = vec![Client::raw(&server), Client::simple(&server)];
        // The second client stops sending in the middle of a large write.
        let mut writing = Client::structured(&server);
        writing.request(0, WRITE, 9, 0, 1 << 20);
        writing.send(&[9; 50_000]);
        clients.push(writing);
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        server.stop().expect("the server stops");
        // If the server waited for these clients, it would wait ten seconds.
        assert!(start.elapsed() < Duration::from_secs(9), "the stop took {:?}", start.elapsed());
        clients.iter_mut().for_each(Client::expect_end);
    }
}

#[test]
fn a_client_that_reads_no_answers_delays_the_stop_for_ten_seconds() {
    let server = serve(ENGINES[0], disk("mem:16MiB", 512));
    let mut client = Client::simple(&server);
    (0..20).for_each(|cookie| client.request(0, READ, cookie, 0, 1 << 20));
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    server.stop().expect("the server stops");
    // The stop must last about ten seconds. A busy machine may take longer.
    let seconds = start.elapsed().as_secs();
    assert!(seconds >= 9, "the client was closed after {seconds} s");
}

#[test]
fn clients_see_a_changed_size() {
    let spy = Spy::new(disk("mem:1MiB", 512));
    spy.disk.resize_silently(1024);
    let server = serve(ENGINES[0], spy.clone());
    let mut client = Client::simple(&server);
    assert_eq!(client.call(0, READ, 512 << 10, 512).errno, EINVAL);
    spy.disk.resize(2048);
    eventually("the export has grown", || client.call(0, READ, 512 << 10, 512).errno == 0);
    let mut late = Client::raw(&server);
    late.flags(3);
    let info = late.ask(6, b"", &[]).expect("an export");
    assert_eq!(number(&info[0][2..10]), 1 << 20);
    spy.disk.resize(1);
    eventually("the export has shrunk", || client.call(0, READ, 512, 512).errno == EINVAL);
    assert_eq!(client.call(0, READ, 0, 512).errno, 0);
}

#[test]
fn a_stopped_server_releases_the_namespace() {
    let namespace = disk("mem:1MiB", 512);
    let server = serve(ENGINES[0], Arc::clone(&namespace));
    server.stop().expect("the server stops");
    assert_eq!(Arc::strong_count(&namespace), 1);
}
