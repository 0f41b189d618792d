//! Tests the main use of the WinSpd server: a remote disk, with a real target and host. The test
//! cuts their connections repeatedly.
#![cfg(windows)]

mod support;

use farblock_backends::Spec;
use farblock_host::{Disk, DiskOptions, Url};
use farblock_proto::ids::NamespaceId;
use farblock_random::Random;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use farblock_winspd::{Device, Options, Server};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::*;

const NQN: &str = "nqn.2026-11.org.farblock:winspd";

/// Forwards connections to a target, so that the test can cut them.
struct Relay {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let streams = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&streams);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                let copies = (near.try_clone().expect("a copy"), far.try_clone().expect("a copy"));
                all.lock()
                    .expect("a lock")
                    .extend([near.try_clone().expect("a copy"), far.try_clone().expect("a copy")]);
                thread::spawn(move || copy(near, far));
                thread::spawn(move || copy(copies.1, copies.0));
            }
        });
        Relay { address, streams }
    }

    fn cut(&self) {
        for stream in self.streams.lock().expect("a lock").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 65_536];
    let mut pass = || -> io::Result<()> {
        loop {
            match from.read(&mut bytes)? {
                0 => return Ok(()),
                length => to.write_all(&bytes[..length])?,
            }
        }
    };
    let _ = pass();
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn target() -> Target {
    let namespace = Spec::parse("delay:2ms,mem:8MiB").expect("a disk");
    let namespace = namespace.open(512, false).expect("the disk opens");
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let export = Export { namespace, identity: "mem".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![([127, 0, 0, 1], 0).into()],
        ..TargetConfig::default()
    };
    Target::start(&config).expect("the target starts")
}

#[test]
fn a_cut_connection_only_delays_requests() {
    for (number, library) in libraries().into_iter().enumerate() {
        let target = target();
        let relay = Relay::start(target.addresses()[0]);
        let url: Url = format!("nvme+tcp://{}/{NQN}?ns=1", relay.address).parse().expect("a URL");
        let disk = Disk::connect(&[url], &DiskOptions::default()).expect("the disk connects");
        let name = format!("farblock-remote-{}-{number}", std::process::id());
        let device = Device::Pipe(format!(r"\\.\pipe\{name}"));
        let options = Options { library: Some(library.folder), ..Options::new(device, &name) };
        let server = Server::start(&options, Arc::new(disk.clone())).expect("the server starts");
        let mut client = Client::connect(&server.location());
        let mut random = Random::new(3);
        for round in 0..3 {
            let data: Vec<Vec<u8>> = (0..32).map(|_| random.bytes(4096)).collect();
            let lba = |n: usize| (round * 32 + n) as u64 * 8;
            let first = client.next_hint;
            for (n, data) in data.iter().enumerate() {
                client.send(WRITE, lba(n), 8, false, data);
                if n == 16 {
                    relay.cut();
                }
            }
            let mut hints: Vec<u64> = (0..32)
                .map(|_| {
                    let answer = client.receive().expect("an answer");
                    assert!(answer.is_good(), "{answer:?}");
                    answer.hint
                })
                .collect();
            hints.sort_unstable();
            assert!(
                hints.into_iter().eq(first..first + 32),
                "a request has several answers or none"
            );
            relay.cut();
            for (n, data) in data.iter().enumerate() {
                let answer = client.read(lba(n), 8);
                assert!(answer.is_good() && answer.data == *data);
            }
            thread::sleep(Duration::from_millis(20));
        }
        server.stop(false).expect("the server stops");
        drop(disk);
        target.stop().expect("the target stops");
    }
}
