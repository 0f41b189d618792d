//! Tests of the synchronous interface, with transfers that need several operations.

mod support;

use std::sync::Arc;

use farblock_backends::fault::{Fault, Rule};
use farblock_backends::mem::Mem;
use farblock_block::blocking::Blocking;
use farblock_block::{BlockError, Command, Namespace};
use farblock_random::Random;
use farblock_reactor::EngineKind;
use support::{Capped, on_both_engines};

fn mem() -> Arc<dyn Namespace> {
    Arc::new(Mem::new(512, 32 << 20).unwrap())
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Random::new(3).fill(&mut data);
    data
}

on_both_engines! {
    a_large_transfer_takes_several_operations(engine) {
        for namespace in [mem(), Arc::new(Capped::new(mem(), 33))] {
            let mut disk = Blocking::with_engine(&*namespace, engine).unwrap();
            let data = noise((13 << 20) + 512);
            disk.write(5, &data).unwrap();
            let mut read = vec![0; data.len()];
            disk.read(5, &mut read).unwrap();
            assert!(read == data);
            disk.write_zeroes(6, 20_000, true).unwrap();
            disk.read(5, &mut read).unwrap();
            assert!(read[..512] == data[..512] && read[20_001 * 512..] == data[20_001 * 512..]);
            assert!(read[512..20_001 * 512].iter().all(|&byte| byte == 0));
            disk.write_durable(5, &data).unwrap();
            disk.flush().unwrap();
        }
    }

    a_range_beyond_the_end_is_refused_entirely(engine) {
        let namespace = mem();
        let mut disk = Blocking::with_engine(&*namespace, engine).unwrap();
        let last = disk.geometry().blocks - 1;
        assert_eq!(disk.write(last, &[1; 1024]), Err(BlockError::OutOfRange));
        let many = vec![1; 8 << 20];
        assert_eq!(disk.write(last - 16_000, &many), Err(BlockError::OutOfRange));
        let mut block = [9; 512];
        disk.read(last, &mut block).unwrap();
        assert_eq!(block, [0; 512]);
        disk.read(last + 1, &mut []).unwrap();
    }

    a_transfer_returns_the_error_of_its_failed_part(engine) {
        let rule = Rule::new(BlockError::WriteFailed).command(Command::Write).blocks(9000..9001);
        let fault = Fault::new(mem(), vec![rule], 1);
        let mut disk = Blocking::with_engine(&fault, engine).unwrap();
        assert_eq!(disk.write(0, &noise(16 << 20)), Err(BlockError::WriteFailed));
        // A call after the failed one succeeds.
        fault.set_enabled(false);
        disk.write(0, &noise(16 << 20)).unwrap();
        let mut read = vec![0; 16 << 20];
        disk.read(0, &mut read).unwrap();
        assert!(read == noise(16 << 20));
    }
}

#[test]
#[should_panic(expected = "513 bytes are not whole blocks")]
fn a_slice_of_a_partial_block_panics() {
    let namespace = mem();
    let _ = Blocking::new(&*namespace).unwrap().read(0, &mut [0; 513]);
}
