//! Tests of concatenations in addition to the conformance suite: the boundaries between the disks.

mod support;

use std::sync::Arc;

use farblock_backends::concat::Concat;
use farblock_backends::fault::{Fault, Rule};
use farblock_backends::mem::Mem;
use farblock_backends::stripe::Stripe;
use farblock_backends::{OpenError, Spec};
use farblock_block::blocking::Blocking;
use farblock_block::testing::Elastic;
use farblock_block::{BlockError, Command, Namespace};
use farblock_reactor::EngineKind;
use support::on_both_engines;

const BLOCK: usize = 512;

/// A disk of at most 100 blocks that the test can shrink and grow.
fn elastic(blocks: u64) -> Arc<Elastic> {
    let disk = Elastic::new(Arc::new(Mem::new(BLOCK as u32, 100 * BLOCK as u64).unwrap()));
    disk.resize_silently(blocks);
    disk
}

fn parts(disks: &[Arc<Elastic>]) -> Vec<Arc<dyn Namespace>> {
    disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Namespace>).collect()
}

on_both_engines! {
    only_blocks_lost_by_a_shrunken_disk_fail(engine) {
        let disks = [elastic(10), elastic(10), elastic(10)];
        let concat = Concat::new(parts(&disks)).unwrap();
        let mut whole = Blocking::with_engine(&concat, engine).unwrap();
        for lba in 0..30 {
            whole.write(lba, &[lba as u8 + 1; BLOCK]).unwrap();
        }
        disks[1].resize(4);
        // The concatenation keeps its size, so the error is not `OutOfRange`.
        assert_eq!(concat.geometry().blocks, 30);
        let mut two = [0; 2 * BLOCK];
        assert_eq!(whole.read(13, &mut two), Err(BlockError::ReadFailed));
        assert_eq!(whole.write(14, &[9; BLOCK]), Err(BlockError::WriteFailed));
        assert_eq!(whole.write_zeroes(19, 2, false), Err(BlockError::WriteFailed));
        assert_eq!(whole.read(12, &mut two), Ok(()));
        assert_eq!((two[0], two[BLOCK]), (13, 14));
        assert_eq!(whole.read(28, &mut two), Ok(()));
        assert_eq!((two[0], two[BLOCK]), (29, 30));
        assert_eq!(whole.flush(), Ok(()));
        disks[1].resize(50);
        assert_eq!(concat.geometry().blocks, 30);
        assert_eq!(whole.read(19, &mut two), Ok(()));
        assert_eq!(two[0], 20, "the old block is lost");
        // When the last disk shrinks, the concatenation shrinks.
        disks[2].resize(5);
        assert_eq!(concat.geometry().blocks, 25);
        assert_eq!(whole.read(24, &mut two), Err(BlockError::OutOfRange));
        disks[2].resize(12);
        assert_eq!(concat.geometry().blocks, 32);
        let mut whole = Blocking::with_engine(&concat, engine).unwrap();
        assert_eq!(whole.write(30, &two), Ok(()));
    }

    a_flush_reports_a_lasting_error_first(engine) {
        let failing = |error| {
            let rules = vec![Rule::new(error).command(Command::Flush)];
            let inner: Arc<dyn Namespace> = elastic(10);
            Arc::new(Fault::new(inner, rules, 1)) as Arc<dyn Namespace>
        };
        for errors in [
            [BlockError::Disconnected, BlockError::WriteFailed],
            [BlockError::WriteFailed, BlockError::Disconnected],
            [BlockError::Aborted, BlockError::NoSpace],
        ] {
            let concat = Concat::new(errors.map(failing).to_vec()).unwrap();
            let mut whole = Blocking::with_engine(&concat, engine).unwrap();
            let lasting = *errors.iter().find(|error| matches!(
                error, BlockError::WriteFailed | BlockError::NoSpace
            )).unwrap();
            assert_eq!(whole.flush(), Err(lasting), "{errors:?}");
        }
    }

    a_stripe_set_keeps_its_size_when_a_disk_shrinks(engine) {
        let disks = [elastic(8), elastic(8)];
        let stripe = Stripe::new(parts(&disks), 4 * BLOCK as u64).unwrap();
        let mut whole = Blocking::with_engine(&stripe, engine).unwrap();
        disks[0].resize(7);
        assert_eq!(stripe.geometry().blocks, 8);
        assert_eq!(whole.write(0, &[1; 8 * BLOCK]), Ok(()));
        assert_eq!(whole.write(8, &[1; BLOCK]), Err(BlockError::OutOfRange));
    }

    an_explicit_size_limits_what_is_used_of_a_disk(engine) {
        let disks = [elastic(10), elastic(10)];
        let fronts = |sizes: [Option<u64>; 2]| {
            let sizes = sizes.map(|blocks| blocks.map(|blocks| blocks * BLOCK as u64));
            Concat::of(parts(&disks).into_iter().zip(sizes).collect())
        };
        let concat = fronts([Some(4), Some(6)]).unwrap();
        let mut whole = Blocking::with_engine(&concat, engine).unwrap();
        let data: Vec<u8> = (0..10 * BLOCK).map(|at| (at / BLOCK) as u8 + 1).collect();
        whole.write(0, &data).unwrap();
        assert_eq!(whole.write(10, &[1; BLOCK]), Err(BlockError::OutOfRange));
        let first_of = |disk: usize, lba| {
            let mut block = [0; BLOCK];
            Blocking::with_engine(&*disks[disk], engine).unwrap().read(lba, &mut block).unwrap();
            block[0]
        };
        assert_eq!([first_of(0, 3), first_of(0, 4), first_of(1, 0), first_of(1, 5)], [4, 0, 5, 10]);
        assert_eq!([first_of(1, 6)], [0], "a block beyond the given size was written");
        disks[1].resize(20);
        assert_eq!(concat.geometry().blocks, 10);
        disks[1].resize(3);
        assert_eq!(concat.geometry().blocks, 7);
        let short = fronts([Some(4), Some(6)]).err().expect("the set was opened").to_string();
        assert!(short.contains("shorter than its part of the concatenation, 3 KiB"), "{short}");
        assert_eq!(fronts([Some(4), None]).unwrap().geometry().blocks, 7);
        assert!(fronts([Some(0), None]).is_err());
    }
}

#[test]
fn a_concatenation_needs_explicit_sizes_of_files() {
    let dir = support::Dir::new();
    let [one, two] = [dir.noise(1 << 20), dir.noise(1 << 20)];
    let [one, two] = [one.display(), two.display()];
    let open = |text: String| text.parse::<Spec>().unwrap().open(512, false);
    let said = match open(format!("concat:{one},{two}")) {
        Err(OpenError::Set(said)) => said,
        other => panic!("{:?}", other.err()),
    };
    let written = format!("concat:1MiB@{one},{two}");
    assert!(said.contains("does not fix the size") && said.contains(&written), "{said}");
    assert_eq!(open(written).unwrap().geometry().capacity_bytes(), 2 << 20);
    assert!(open(format!("concat:mem:1MiB,{two}")).is_ok(), "a RAM disk needs an explicit size");
    assert!(open(format!("concat:{one}")).is_ok(), "the last disk needs an explicit size");
}
