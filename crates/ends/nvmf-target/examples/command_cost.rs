//! Measures commands that disk benchmarks do not send: Compare, a fused pair, Copy and Preempt. For
//! comparison, it also measures reads and writes of the same sizes. Host and target run in this
//! process, with a RAM disk, over loopback. One command is in flight at a time. The results are the
//! medians of seven interleaved rounds.
//!
//! `cargo run --release -p farblock-target --example command_cost`

#[path = "../tests/rig/mod.rs"]
mod rig;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_proto::tcp::Digests;
use farblock_proto::tcp::host_end::Transfer;
use farblock_reactor::EngineKind;
use farblock_wire::nvm::{CopyControl, CopyRange};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::reservation::{
    AcquireAction, RegisterAction, ReservationControl, ReservationType,
};
use farblock_wire::{IntoBytes, SglDescriptor, Sqe, Status};
use rig::scripted::{BLOCK, Queue, admin_of, blocks, fused, io_of, read, target_of, write};
use rig::turns::reserve;
use std::sync::Arc;
use std::time::Instant;

const ROUNDS: usize = 7;
const TIMES: u32 = 2000;
const DISK_BYTES: u64 = 64 << 20;
const BYTES: usize = 4096;
const COUNT: u32 = (BYTES / BLOCK) as u32;

/// The name of a measured command, and the function that sends the command once.
type Row = (&'static str, fn(&mut Hosts));

struct Hosts {
    /// The I/O queues of two hosts that have registered with the namespace. The first host preempts
    /// the second.
    queues: [Queue; 2],
    data: Vec<u8>,
}

const ROWS: [Row; 8] = [
    ("read 4 KiB", |hosts| {
        assert_eq!(read(&mut hosts.queues[0], 64, BYTES as u32).status, Status::SUCCESS);
    }),
    ("write 4 KiB", |hosts| {
        let Hosts { queues, data } = hosts;
        assert_eq!(write(&mut queues[0], 64, data, true), Status::SUCCESS);
    }),
    ("compare 4 KiB", |hosts| {
        let dptr = SglDescriptor::in_capsule(0, BYTES as u32);
        let sqe = blocks(NvmOpcode::COMPARE.0, 64, COUNT, dptr);
        let answer = hosts.queues[0].run(sqe, Transfer::InCapsule(BYTES as u32), &hosts.data);
        assert_eq!(answer.status, Status::SUCCESS);
    }),
    ("compare and write a block, fused", |hosts| {
        let Hosts { queues: [queue, _], data } = hosts;
        assert_eq!(fused(queue, 64, &data[..BLOCK], &data[..BLOCK]), [Status::SUCCESS; 2]);
    }),
    ("copy 4 KiB", |hosts| copy(hosts, COUNT)),
    ("copy 1 MiB", |hosts| copy(hosts, (1 << 20) / BLOCK as u32)),
    ("register", |hosts| register(hosts, 1)),
    ("register, and be preempted", |hosts| {
        register(hosts, 1);
        let control = ReservationControl::default()
            .with_action(AcquireAction::PREEMPT.0)
            .with_rtype(ReservationType::WRITE_EXCLUSIVE.0);
        let keys = [key(0), key(1)];
        reserve(&mut hosts.queues[0], NvmOpcode::RESERVATION_ACQUIRE, control, keys);
    }),
];

fn main() {
    let disk = Mem::new(BLOCK as u32, DISK_BYTES).expect("a size");
    let target = target_of(EngineKind::Auto, [Arc::new(disk) as Arc<dyn Namespace>], |_| ());
    let address = target.addresses()[0];
    let admins = [1u8, 2].map(|host| admin_of([host; 16], address, Digests::NONE));
    let mut number = 0;
    let queues = admins.each_ref().map(|&(_, controller)| {
        number += 1;
        io_of([number; 16], address, Digests::NONE, controller, true)
    });
    let mut hosts = Hosts { queues, data: vec![7; BYTES] };
    register(&mut hosts, 0);
    let mut took: [Vec<f64>; ROWS.len()] = Default::default();
    for _ in 0..ROUNDS {
        for ((_, send), took) in ROWS.iter().zip(&mut took) {
            let began = Instant::now();
            (0..TIMES).for_each(|_| send(&mut hosts));
            took.push(began.elapsed().as_secs_f64() / f64::from(TIMES) * 1e6);
        }
    }
    for ((name, _), took) in ROWS.iter().zip(&mut took) {
        took.sort_by(f64::total_cmp);
        println!("{name:32} {:7.1} us", took[ROUNDS / 2]);
    }
}

/// Copies one range of `count` blocks within the disk.
fn copy(hosts: &mut Hosts, count: u32) {
    let to = DISK_BYTES / BLOCK as u64 / 2;
    let range =
        CopyRange { slba: 64.into(), nlb_z: ((count - 1) as u16).into(), ..CopyRange::zeroed() };
    let data = range.as_bytes();
    let length = data.len() as u32;
    let dptr = SglDescriptor::in_capsule(0, length);
    let sqe =
        Sqe { cdw12: CopyControl::default().0.into(), ..blocks(NvmOpcode::COPY.0, to, 1, dptr) };
    let answer = hosts.queues[0].run(sqe, Transfer::InCapsule(length), data);
    assert_eq!(answer.status, Status::SUCCESS);
}

fn key(host: usize) -> u64 {
    host as u64 + 1
}

fn register(hosts: &mut Hosts, host: usize) {
    let control =
        ReservationControl::default().with_action(RegisterAction::REPLACE.0).with_iekey(true);
    let keys = [0, key(host)];
    reserve(&mut hosts.queues[host], NvmOpcode::RESERVATION_REGISTER, control, keys);
}
