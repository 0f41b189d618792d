//! Tests farblock's initiator with farblock's target. Reads must return the written data, whatever
//! PDUs the initiator used.

mod support;

use farblock_block::blocking::Blocking;
use farblock_block::{Geometry, Namespace};
use farblock_iscsi::Server;
use farblock_iscsi::initiator::{Config, Initiator, TRANSFER_BYTES};
use std::io::{Read, Write};
use std::net::TcpListener;
use support::{ENGINES, NAME, disk, serve};

fn reaching(server: &Server, sessions: usize) -> Config {
    let (address, target) = (server.address(), NAME.to_owned());
    Config { address, target, lun: 0, sessions, depth: 32 }
}

#[test]
fn reads_return_the_written_data_of_every_size() {
    for &engine in ENGINES {
        for block_size in [512, 4096] {
            let server = serve(engine, disk("mem:16MiB", block_size));
            let unit = Initiator::connect(&reaching(&server, 2)).expect("a session");
            let Geometry { blocks, max_blocks, .. } = unit.geometry();
            assert_eq!(blocks, (16 << 20) / u64::from(block_size));
            assert_eq!(max_blocks, TRANSFER_BYTES / block_size);
            let (mut left, mut right) =
                (Blocking::new(&unit).unwrap(), Blocking::new(&unit).unwrap());
            assert!(Blocking::new(&unit).is_err(), "a third session was opened");
            // The data of these sizes fits into the command's PDU, into one burst, or into several
            // bursts.
            for (at, size) in [(0, 1), (7, 3), (100, max_blocks / 4), (1000, max_blocks)] {
                let length = (size * block_size) as usize;
                let data: Vec<u8> = (0..length).map(|byte| (byte / 7 + at) as u8).collect();
                left.write(at as u64, &data).expect("the data is written");
                let mut read = vec![0; length];
                right.read(at as u64, &mut read).expect("the block is read");
                assert!(read == data, "wrong data with {size} blocks of {block_size}");
            }
            left.flush().expect("the disk is flushed");
        }
    }
}

#[test]
fn the_initiator_reports_failed_writes_and_a_lost_target() {
    let server = serve(ENGINES[0], disk("fault:1,mem:16MiB", 512));
    let unit = Initiator::connect(&reaching(&server, 2)).expect("the target accepts the session");
    let mut blocks = Blocking::new(&unit).expect("a session");
    assert!(blocks.write(0, &[7; 512]).is_err(), "a write succeeds");
    server.stop(true).expect("the server stops");
    assert!(blocks.read(0, &mut [0; 512]).is_err(), "a read without a target succeeds");
}

#[test]
fn the_initiator_refuses_other_servers() {
    let other = Config {
        target: "iqn.2026-11.org.farblock:other".to_owned(),
        ..reaching(&serve(ENGINES[0], disk("mem:1MiB", 512)), 1)
    };
    assert!(Initiator::connect(&other).is_err());
    for said in [&[0x23; 48][..], &[0xff; 200], b"HTTP/1.1 400 Bad Request\r\n\r\n", b""] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("the listener has an address");
        let stranger = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the initiator connects");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(said);
        });
        assert!(Initiator::connect(&Config { address, ..other.clone() }).is_err(), "{said:?}");
        stranger.join().expect("the other server's thread ends");
    }
}
