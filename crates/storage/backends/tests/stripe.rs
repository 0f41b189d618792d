//! Tests of stripe sets in addition to the conformance suite: the placement of data on the
//! children.

mod support;

use std::sync::Arc;

use farblock_backends::Spec;
use farblock_backends::fault::{Fault, Rule};
use farblock_backends::mem::Mem;
use farblock_backends::stripe::Stripe;
use farblock_block::blocking::Blocking;
use farblock_block::conformance::Driver;
use farblock_block::{BlockError, Command, Namespace, Op};
use farblock_reactor::{Buffer, EngineKind};
use support::on_both_engines;

const CHUNK: usize = 4096;

fn mem(bytes: u64) -> Arc<dyn Namespace> {
    Arc::new(Mem::new(512, bytes).unwrap())
}

on_both_engines! {
    chunks_are_distributed_round_robin(engine) {
        let disks = [mem(1 << 20), mem(1 << 20), mem(1 << 20)];
        let stripe = Stripe::new(disks.to_vec(), CHUNK as u64).unwrap();
        let mut whole = Blocking::with_engine(&stripe, engine).unwrap();
        for chunk in 0..9_u64 {
            whole.write(chunk * 8, &[chunk as u8 + 1; CHUNK]).unwrap();
        }
        for (child, disk) in disks.iter().enumerate() {
            let mut disk = Blocking::with_engine(&**disk, engine).unwrap();
            let mut data = [0; 3 * CHUNK];
            disk.read(0, &mut data).unwrap();
            for row in 0..3 {
                let expected = (row * 3 + child) as u8 + 1;
                assert_eq!(data[row * CHUNK], expected, "row {row} of disk {child}");
                assert_eq!(data[(row + 1) * CHUNK - 1], expected);
            }
        }
    }

    only_writes_to_the_broken_disk_fail(engine) {
        let rules = vec![Rule::new(BlockError::WriteFailed).command(Command::Write)];
        let broken = Arc::new(Fault::new(mem(1 << 20), rules, 1));
        let disks = vec![mem(1 << 20), broken.clone(), mem(1 << 20)];
        let stripe: Arc<dyn Namespace> = Arc::new(Stripe::new(disks, CHUNK as u64).unwrap());
        let mut driver = Driver::with(&stripe, engine);
        let write = |driver: &mut Driver, lba: u64, blocks: u32| {
            let buffer = Buffer::new(blocks as usize * 512);
            let identity = (buffer.as_ptr(), buffer.len());
            let done = driver.run(0, Op::write(lba, blocks, buffer, 5));
            let buffer = done.buffer.expect("a failed write returns its buffer");
            assert_eq!((buffer.as_ptr(), buffer.len()), identity);
            done.result
        };
        assert_eq!(write(&mut driver, 0, 8), Ok(()));
        assert_eq!(write(&mut driver, 8, 1), Err(BlockError::WriteFailed));
        assert_eq!(write(&mut driver, 16, 8), Ok(()));
        assert_eq!(write(&mut driver, 3, 100), Err(BlockError::WriteFailed));
        assert_eq!(broken.injected(), 1 + 4);
        assert_eq!(driver.queue(0).in_flight(), 0);
        broken.set_enabled(false);
        assert_eq!(write(&mut driver, 3, 100), Ok(()));
    }

    a_flush_reaches_every_disk(engine) {
        for bad in 0..3 {
            let disks = (0..3).map(|child| {
                let mut rules = vec![Rule::new(BlockError::WriteFailed).command(Command::Flush)];
                rules.truncate(usize::from(child == bad));
                Arc::new(Fault::new(mem(1 << 20), rules, 1)) as Arc<dyn Namespace>
            });
            let stripe = Stripe::new(disks.collect(), CHUNK as u64).unwrap();
            let mut disk = Blocking::with_engine(&stripe, engine).unwrap();
            assert_eq!(disk.flush(), Err(BlockError::WriteFailed), "disk {bad} was not flushed");
        }
    }

    zeroes_and_deallocation_reach_each_disk_once(engine) {
        let counted = |_| {
            let rules = vec![Rule::new(BlockError::Aborted).command(Command::Deallocate)];
            Arc::new(Fault::new(mem(1 << 20), rules, 1))
        };
        let disks: Vec<_> = (0..3).map(counted).collect();
        let children = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Namespace>).collect();
        let stripe = Stripe::new(children, CHUNK as u64).unwrap();
        let mut disk = Blocking::with_engine(&stripe, engine).unwrap();
        assert_eq!(disk.deallocate(5, 1000), Err(BlockError::Aborted));
        assert!(disks.iter().all(|disk| disk.injected() == 1), "not one operation per disk");
        assert_eq!(disk.deallocate(0, 8), Err(BlockError::Aborted));
        assert_eq!(injected(&disks), [2, 1, 1]);
    }
}

fn injected(disks: &[Arc<Fault>]) -> Vec<u64> {
    disks.iter().map(|disk| disk.injected()).collect()
}

#[test]
fn the_capacity_is_whole_chunks_of_the_smallest_disk() {
    let stripe = Stripe::new(vec![mem(1 << 20), mem(70_144)], 65536).unwrap();
    assert_eq!(stripe.geometry().capacity_bytes(), 2 * 65536);
    assert_eq!(stripe.geometry().optimal_blocks, 128);
}

#[test]
fn stripe_sets_of_unsuitable_disks_are_refused() {
    let other: Arc<dyn Namespace> = Arc::new(Mem::new(4096, 1 << 20).unwrap());
    for (disks, chunk_bytes, message) in [
        (vec![], 65536, "at least one disk"),
        (vec![mem(1 << 20), other], 65536, "same block size"),
        (vec![mem(1 << 20)], 100, "do not suit"),
        (vec![mem(1 << 20)], 0, "do not suit"),
        (vec![mem(1 << 20)], 1 << 50, "do not suit"),
        (vec![mem(1 << 20), mem(512)], 65536, "smallest disk of the stripe set has 512 bytes"),
        (vec![mem(1 << 20); 300], 65536, "300 disks are too many"),
    ] {
        let error =
            Stripe::new(disks, chunk_bytes).err().expect("the stripe set was created").to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_stripe_set_is_read_only_if_one_disk_is_read_only() {
    let fixed: Arc<dyn Namespace> = Arc::new(Mem::new(512, 1 << 20).unwrap().read_only());
    let stripe = Stripe::new(vec![mem(1 << 20), fixed], 65536).unwrap();
    let mut disk = Blocking::with_engine(&stripe, EngineKind::Auto).unwrap();
    assert_eq!(disk.write(0, &[1; 512]), Err(BlockError::ReadOnly));
}

/// Several ranges of one file can be open at the same time. A range that overlaps an open one is
/// refused.
#[test]
fn overlapping_ranges_of_a_file_are_refused() {
    let dir = support::Dir::new();
    let file = dir.noise(1 << 20);
    let open = |place: &str| {
        let text = format!("range:{place},{}", file.display());
        text.parse::<Spec>().unwrap().open(512, false)
    };
    let first = open("0+512KiB").unwrap();
    let error = open("256KiB+512KiB").err().expect("the ranges overlap").to_string();
    assert!(error.contains("overlaps another"), "{error}");
    let second = open("512KiB+512KiB").unwrap();
    let mut disk = Blocking::with_engine(&*second, EngineKind::Auto).unwrap();
    disk.write(0, &[7; 512]).unwrap();
    assert_eq!(disk.write(1024, &[1; 512]), Err(BlockError::OutOfRange));
    let whole = Spec::File(file.clone()).open(512, false);
    assert!(whole.is_err(), "the whole file opened while its ranges are open");
    drop((first, disk, second));
    let all = open("0+1MiB").unwrap();
    let (mut disk, mut block) = (Blocking::with_engine(&*all, EngineKind::Auto).unwrap(), [0; 512]);
    disk.read(1024, &mut block).unwrap();
    assert_eq!(block, [7; 512]);
}
