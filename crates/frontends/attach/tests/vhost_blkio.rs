//! Tests the vhost-user back end with libblkio, an independent front end that QEMU and fio use to
//! access disks without a virtual machine. The test compares the disk with a copy in memory.

#![cfg(target_os = "linux")]

mod vhost_support;

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use std::mem::MaybeUninit;
use std::time::Duration;
use vhost_support::*;

const DISK_BYTES: usize = 8 << 20;
/// The length of the memory of each request, in bytes.
const REQUEST_BYTES: usize = 256 << 10;
const DEPTH: usize = 16;

/// A program that uses libblkio, with one connection to the back end.
struct Program {
    _blkio: Blkio,
    queues: Vec<Blkioq>,
    region: MemoryRegion,
}

fn connect(served: &Served) -> Blkio {
    let mut blkio = Blkio::new("virtio-blk-vhost-user").expect("the driver");
    let socket = served.config.socket.to_str().expect("a path in UTF-8");
    blkio.set_str("path", socket).expect("a path");
    blkio.connect().expect("libblkio connects");
    blkio
}

impl Program {
    fn start(served: &Served, queues: i32) -> Program {
        let mut blkio = connect(served);
        blkio.set_i32("num-queues", queues).expect("libblkio accepts the number of queues");
        let outcome = blkio.start().expect("libblkio starts");
        let region = blkio.alloc_mem_region(DEPTH * REQUEST_BYTES).expect("memory");
        blkio.map_mem_region(&region).expect("libblkio maps the memory");
        Program { _blkio: blkio, queues: outcome.queues, region }
    }

    fn memory(&mut self, slot: usize) -> &mut [u8] {
        let start = (self.region.addr + slot * REQUEST_BYTES) as *mut u8;
        // SAFETY: the range is part of the region, which lives as long as `self`. No request uses
        // it.
        unsafe { std::slice::from_raw_parts_mut(start, REQUEST_BYTES) }
    }

    fn next(&mut self, queue: usize) -> (usize, i32) {
        let mut completion = [const { MaybeUninit::<Completion>::uninit() }];
        let mut timeout = Duration::from_secs(60);
        let done = self.queues[queue].do_io(&mut completion, 1, Some(&mut timeout), None);
        assert_eq!(done.expect("a completion"), 1);
        // SAFETY: the call has written one completion.
        let completion = unsafe { completion[0].assume_init_ref() };
        (completion.user_data, completion.ret)
    }
}

/// A simple random number generator. The same seed yields the same numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// The operation in flight in a slot.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Doing {
    Nothing,
    Read { at: usize, len: usize },
    Other { at: usize, len: usize },
}

impl Doing {
    fn touches(self, at: usize, len: usize) -> bool {
        match self {
            Doing::Nothing => false,
            Doing::Read { at: start, len: bytes } | Doing::Other { at: start, len: bytes } => {
                at < start + bytes && start < at + len
            }
        }
    }
}

/// Runs up to 16 requests concurrently, on disjoint ranges, on one queue.
fn exercise(program: &mut Program, queue: usize, block: usize, seed: u64) {
    let mut dice = Dice(seed);
    let mut model = vec![0_u8; DISK_BYTES];
    let mut doing = [Doing::Nothing; DEPTH];
    for round in 0..3000 {
        let slot = round % DEPTH;
        while doing[slot] != Doing::Nothing {
            let (done, ret) = program.next(queue);
            assert_eq!(ret, 0, "{:?}", doing[done]);
            if let Doing::Read { at, len } = doing[done] {
                assert!(program.memory(done)[..len] == model[at..at + len], "wrong bytes at {at}");
            }
            doing[done] = Doing::Nothing;
        }
        let len = block * (1 + dice.below(REQUEST_BYTES / block));
        let at = block * dice.below((DISK_BYTES - len) / block + 1);
        if doing.iter().any(|other| other.touches(at, len)) {
            continue;
        }
        doing[slot] = Doing::Other { at, len };
        let memory = program.memory(slot).as_mut_ptr();
        let (queue, start, bytes) = (&mut program.queues[queue], at as u64, len as u64);
        match dice.below(8) {
            0..3 => {
                doing[slot] = Doing::Read { at, len };
                queue.read(start, memory, len, slot, ReqFlags::empty());
            }
            3..6 => {
                let value = dice.below(256) as u8;
                model[at..at + len].fill(value);
                // SAFETY: the memory belongs to the slot, and the back end reads it only later.
                unsafe { memory.write_bytes(value, len) };
                let flags = if value < 64 { ReqFlags::FUA } else { ReqFlags::empty() };
                queue.write(start, memory, len, slot, flags);
            }
            6 => {
                model[at..at + len].fill(0);
                let flags = if len > 4096 { ReqFlags::NO_UNMAP } else { ReqFlags::empty() };
                queue.write_zeroes(start, bytes, slot, flags);
            }
            _ => queue.flush(slot, ReqFlags::empty()),
        }
    }
    while doing.iter().any(|doing| *doing != Doing::Nothing) {
        let (done, ret) = program.next(queue);
        assert_eq!(ret, 0);
        doing[done] = Doing::Nothing;
    }
    for (slot, at) in (0..DISK_BYTES).step_by(REQUEST_BYTES).enumerate().map(|(i, at)| (i % 4, at))
    {
        let memory = program.memory(slot).as_mut_ptr();
        program.queues[queue].read(at as u64, memory, REQUEST_BYTES, slot, ReqFlags::empty());
        assert_eq!(program.next(queue), (slot, 0));
        assert!(program.memory(slot)[..] == model[at..at + REQUEST_BYTES], "wrong bytes from {at}");
    }
}

#[test]
fn libblkio_reads_and_writes_the_disk() {
    for engine in ENGINES {
        for block in [512, 4096] {
            let served = serve(engine, disk("mem:8MiB", block));
            let mut program = Program::start(&served, 2);
            // The second queue reads what the first queue wrote, and then overwrites it.
            for queue in 0..2 {
                for at in (0..DISK_BYTES).step_by(REQUEST_BYTES) {
                    let zeroes = &mut program.queues[queue];
                    zeroes.discard(at as u64, REQUEST_BYTES as u64, 0, ReqFlags::empty());
                    assert_eq!(program.next(queue), (0, 0));
                }
                exercise(&mut program, queue, block as usize, 0x5eed + queue as u64);
            }
            drop(program);
            served.stop();
        }
    }
}

#[test]
fn libblkio_sees_the_properties_of_the_disk() {
    let served = serve_with(disk("mem:8MiB", 4096), |config| config.read_only = true);
    let blkio = connect(&served);
    assert_eq!(blkio.get_u64("capacity").expect("a size"), DISK_BYTES as u64);
    assert_eq!(blkio.get_i32("request-alignment").expect("blocks"), 4096);
    assert_eq!(blkio.get_i32("max-queues").expect("libblkio reports the number of queues"), 2);
    drop(blkio);
    let mut blkio = connect(&served);
    assert!(blkio.start().is_err(), "a read-only disk was opened for writing");
    drop(blkio);
    served.stop();
}
