//! Tests the main use of the NBD server: a remote disk, with a real target and host.
#![cfg(target_os = "linux")]

mod nbd_support;

use farblock_block::Namespace;
use farblock_host::disk::{Disk, DiskOptions, DiskState};
use farblock_host::{Controller, Options};
use farblock_proto::ids::NamespaceId;
use farblock_random::Random;
use farblock_reactor::EngineKind;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use farblock_testkit::eventually;
use nbd_support::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const NQN: &str = "nqn.2026-11.org.farblock:nbd";

fn target(engine: EngineKind, address: SocketAddr, namespace: Arc<dyn Namespace>) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let export = Export { namespace, identity: "mem".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![address],
        engine,
        ..TargetConfig::default()
    };
    Target::start(&config).expect("the target starts")
}

/// Starts a target with 32 MiB in 4096-byte blocks, and connects a host to it.
fn remote(engine: EngineKind) -> (Target, Controller) {
    let target = target(engine, ([127, 0, 0, 1], 0).into(), disk("mem:32MiB", 4096));
    let address = target.addresses()[0].to_string();
    let options = Options { engine, ..Options::default() };
    let controller = Controller::connect(&address, NQN, &options).expect("the host connects");
    (target, controller)
}

#[test]
fn any_bytes_of_a_remote_disk_can_be_written() {
    for engine in ENGINES {
        let (target, controller) = remote(engine);
        let server = serve(engine, Arc::new(controller.namespace(1).expect("namespace 1 exists")));
        let (mut writer, mut reader) = (Client::simple(&server), Client::structured(&server));
        let mut random = Random::new(11);
        let mut model = random.bytes(32 << 20);
        assert_eq!(writer.write(0, 0, &model), 0, "the write succeeds");
        for _ in 0..100 {
            let offset = random.below(31 << 20);
            let length = random.index(20_000);
            let data = random.bytes(length);
            let range = offset as usize..offset as usize + data.len();
            if random.below(3) == 0 {
                assert_eq!(writer.call(FUA, ZEROES, offset, data.len() as u32).errno, 0);
                model[range].fill(0);
            } else {
                assert_eq!(writer.write(FUA, offset, &data), 0);
                model[range].copy_from_slice(&data);
            }
        }
        assert_eq!(writer.call(0, FLUSH, 0, 0).errno, 0);
        assert!(reader.read(0, 32 << 20) == model);
        server.stop().expect("the server stops");
        drop(controller);
        target.stop().expect("the target stops");
    }
}

/// The target disconnects while requests are in flight. Clients get errors, and the server
/// continues.
#[test]
fn clients_get_errors_when_the_remote_disk_is_lost() {
    for engine in ENGINES {
        let (target, controller) = remote(engine);
        let server = serve(engine, Arc::new(controller.namespace(1).expect("namespace 1 exists")));
        let mut client = Client::simple(&server);
        assert_eq!(client.write(0, 100, &[7; 100]), 0);
        for cookie in 0..33_u64 {
            // The requests are reads, writes of whole blocks, and writes of parts of blocks.
            let length = if cookie % 3 == 2 { 100 } else { 65_536 };
            let code = if cookie % 3 == 0 { READ } else { WRITE };
            client.request(0, code, cookie, cookie * 65_536, length);
            if code == WRITE {
                client.send(&vec![1; length as usize]);
            }
        }
        drop(target);
        for _ in 0..33 {
            let magic = client.take(4);
            assert_eq!(number(&magic), 0x6744_6698);
            let rest = client.take(12);
            let (errno, cookie) = (number(&rest[..4]) as u32, number(&rest[4..]));
            assert!(errno == 0 || errno == EIO, "{errno}");
            if errno == 0 && cookie % 3 == 0 {
                client.take(65_536);
            }
        }
        assert_eq!(client.call(0, READ, 0, 4096).errno, EIO);
        assert_eq!(client.write(0, 4096, &[1; 4096]), EIO);
        assert_eq!(client.write(0, 5, &[1; 5]), EIO);
        assert_eq!(client.call(0, FLUSH, 0, 0).errno, EIO);
        server.stop().expect("the server stops");
    }
}

/// A writing client dies while the target is unreachable, and a later client writes the same
/// blocks. When the target is reachable again, it must store the later client's data.
#[test]
fn writes_of_a_dead_client_do_not_overwrite_newer_writes_after_a_reconnect() {
    // Requests for so few blocks fit into the socket's buffer even while the server does not read.
    const BLOCKS: u64 = 16;
    for engine in ENGINES {
        let memory = disk("mem:32MiB", 4096);
        let first = target(engine, ([127, 0, 0, 1], 0).into(), Arc::clone(&memory));
        let address = first.addresses()[0];
        let url = format!("nvme+tcp://{address}/{NQN}?ns=1").parse().expect("a URL");
        let connection = Options { engine, ..Options::default() };
        let reconnect_delay = Duration::from_millis(50);
        let options = DiskOptions { connection, reconnect_delay, ..DiskOptions::default() };
        let remote =
            Disk::connect(std::slice::from_ref(&url), &options).expect("the disk connects");
        let server = serve(engine, Arc::new(remote.clone()));
        let mut dead = Client::simple(&server);
        let write = |client: &mut Client, block: u64, flags: u16, value: u8| {
            client.request(flags, WRITE, block, block * 4096, 4096);
            client.send(&[value; 4096]);
        };
        // Half of the writes start before the target disconnects. The others wait until it is
        // reachable again.
        (0..BLOCKS / 2).for_each(|block| write(&mut dead, block, 0, 1));
        drop(first);
        eventually("the loss is noticed", || remote.state() == DiskState::Waiting);
        (BLOCKS / 2..BLOCKS).for_each(|block| write(&mut dead, block, 0, 1));
        drop(dead);
        let mut later = Client::simple(&server);
        (0..BLOCKS).for_each(|block| write(&mut later, block, FUA, 2));
        let again = target(engine, address, memory);
        for _ in 0..BLOCKS {
            assert_eq!(later.reply(0).errno, 0);
        }
        eventually("the dead client is closed", || server.connections() == 1);
        let found = later.read(0, BLOCKS as u32 * 4096);
        assert!(found.iter().all(|&byte| byte == 2), "an acknowledged write is lost");
        server.stop().expect("the server stops");
        drop(remote);
        again.stop().expect("the target stops");
    }
}
