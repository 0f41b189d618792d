//! Fused Compare and Write over TCP, as clustered file systems use it for locks: two hosts share a
//! counter.

mod rig;

use farblock_proto::tcp::Digests;
use farblock_reactor::EngineKind;
use farblock_wire::Status;
use rig::scripted::{self, BLOCK, Queue, admin_of, io_of, read, target};
use std::thread;

const LBA: u64 = 17;
const ROUNDS: u32 = 100;

fn block(value: u32) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..4].copy_from_slice(&value.to_le_bytes());
    block
}

/// The statuses of a pair.
fn fused(queue: &mut Queue, old: u32, new: u32) -> [Status; 2] {
    scripted::fused(queue, LBA, &block(old), &block(new))
}

fn value(queue: &mut Queue) -> u32 {
    let data = read(queue, LBA, BLOCK as u32).data;
    u32::from_le_bytes(data[..4].try_into().expect("four bytes"))
}

/// Each host increments a given number of times.
fn count(hosts: u8, engine: EngineKind, digests: Digests) {
    let target = target(engine, |_| ());
    let address = target.addresses()[0];
    let differs = [Status::COMPARE_FAILURE.with_dnr(), Status::ABORTED_FAILED_FUSED];
    thread::scope(|scope| {
        for host in 0..hosts {
            scope.spawn(move || {
                let (_admin, controller) = admin_of([host; 16], address, digests);
                let mut queue = io_of([host; 16], address, digests, controller, true);
                let mut made = 0;
                while made < ROUNDS {
                    let value = value(&mut queue);
                    match fused(&mut queue, value, value + 1) {
                        [Status::SUCCESS, Status::SUCCESS] => made += 1,
                        lost => assert_eq!(lost, differs),
                    }
                }
            });
        }
    });
    let (_admin, controller) = admin_of([99; 16], address, digests);
    let mut queue = io_of([99; 16], address, digests, controller, true);
    assert_eq!(value(&mut queue), ROUNDS * u32::from(hosts));
}

#[test]
fn two_hosts_count_and_lose_nothing() {
    count(2, EngineKind::Auto, Digests::new(true, true));
}

#[test]
fn five_hosts_count_and_lose_nothing_on_the_portable_engine() {
    count(5, EngineKind::Portable, Digests::NONE);
}
