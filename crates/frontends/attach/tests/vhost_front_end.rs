//! Tests the vhost-user front end, and through it the rings, with the conformance suite for
//! namespaces.
#![cfg(target_os = "linux")]

use farblock_attach::vhost_user::front_end::{self, FrontEnd};
use farblock_attach::vhost_user::{Config, Server};
use farblock_backends::Spec;
use farblock_block::blocking::Blocking;
use farblock_block::conformance::Suite;
use farblock_block::{Backed, Namespace};
use farblock_reactor::EngineKind;
use std::sync::Arc;
use tempfile::TempDir;

/// The number of rings: more than the queues that the suite opens at once.
const QUEUES: usize = 8;

/// A front end, with the server of its disk and the folder of their socket.
type Guest = Backed<FrontEnd, (Server, TempDir)>;

fn driven(folder: &TempDir, depth: u16) -> front_end::Config {
    let socket = folder.path().join("disk.sock");
    front_end::Config { socket, queues: QUEUES, depth, request_bytes: 256 << 10 }
}

fn guest(disk: &str, block_size: u32, engine: EngineKind, depth: u16) -> Guest {
    let folder = tempfile::tempdir().expect("a folder");
    let driven = driven(&folder, depth);
    let mut config = Config::new(&driven.socket);
    (config.queues, config.engine) = (QUEUES, engine);
    let disk = Spec::parse(disk).expect("a disk").open(block_size, false).expect("the disk opens");
    let server = Server::start(&config, disk).expect("the server starts");
    let disk = FrontEnd::connect(&driven).expect("the front end connects");
    Guest { namespace: disk, backing: (server, folder) }
}

#[test]
fn the_front_end_conforms_to_the_namespace_contract() {
    for engine in [EngineKind::Uring, EngineKind::Portable] {
        // With 2 requests per ring, some operations wait in the front end. With as many requests as
        // the ring holds, none waits.
        for depth in [2, front_end::RING_SIZE] {
            let make = |block_size| Arc::new(guest("mem:16MiB", block_size, engine, depth)) as _;
            Suite::new(engine).run(&make);
        }
    }
}

#[test]
fn a_transfer_of_the_largest_request_size_works() {
    let guest = guest("mem:16MiB", 512, EngineKind::Auto, 4);
    assert_eq!(guest.geometry().max_blocks, 512);
    let written: Vec<u8> = (0..256_u32 << 10).map(|at| (at / 512) as u8).collect();
    let mut blocks = Blocking::new(&guest).expect("a queue");
    blocks.write(3, &written).expect("the data is written");
    let mut read = vec![0; written.len()];
    blocks.read(3, &mut read).expect("the block is read");
    assert!(read == written);
}

#[test]
fn each_queue_uses_one_ring_and_returns_it() {
    let guest = guest("mem:16MiB", 512, EngineKind::Auto, 4);
    let queues: Vec<_> = (0..QUEUES).map(|_| Blocking::new(&guest).expect("a queue")).collect();
    assert!(Blocking::new(&guest).is_err(), "a queue opened without a free ring");
    drop(queues);
    Blocking::new(&guest).expect("a queue").write(0, &[7; 512]).expect("the disk still works");
}

#[test]
fn disk_errors_and_failed_connects_are_reported() {
    let guest = guest("fault:1,mem:16MiB", 512, EngineKind::Auto, 4);
    let mut blocks = Blocking::new(&guest).expect("a queue");
    assert!(blocks.write(0, &[7; 512]).is_err(), "a write succeeds");
    drop(blocks);
    let Guest { namespace: disk, backing: (server, folder) } = guest;
    drop(disk);
    server.stop().expect("the server stops");
    let why = |config| FrontEnd::connect(&config).err().expect("no server listens").to_string();
    assert!(why(driven(&folder, 4)).contains("No such file"), "{}", why(driven(&folder, 4)));
    let wrong = front_end::Config { queues: 0, ..driven(&folder, 4) };
    assert!(why(wrong).contains("is out of range"));
}
