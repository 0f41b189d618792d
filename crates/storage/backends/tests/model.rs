//! Compares random sequences of operations with a model: a vector of bytes.

mod support;

use std::sync::Arc;

use farblock_backends::concat::Concat;
use farblock_backends::file::FileOptions;
use farblock_backends::mem::{CHUNK_BYTES, Mem};
use farblock_backends::range::Range;
use farblock_backends::stripe::Stripe;
use farblock_block::blocking::Blocking;
use farblock_block::{BlockError, Namespace};
use farblock_reactor::EngineKind;
use proptest::prelude::*;
use support::Dir;

/// Several chunks, so that operations cross chunk boundaries.
const BYTES: usize = 4 * CHUNK_BYTES;

/// An operation. Positions and lengths are in blocks of 512 bytes, rounded to the block size of the
/// namespace.
#[derive(Clone, Debug)]
enum Action {
    Read(u32, u32),
    Write(u32, u32, u8),
    WriteDurable(u32, u32, u8),
    Zero(u32, u32, bool),
    Deallocate(u32, u32),
    Flush,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let places = BYTES as u32 / 512;
    // Some ranges reach beyond the end.
    let range = || (0..places + 20, prop_oneof![0..4_u32, 0..places]);
    prop::collection::vec(
        prop_oneof![
            3 => range().prop_map(|(lba, blocks)| Action::Read(lba, blocks)),
            4 => (range(), 1..255_u8).prop_map(|((l, b), fill)| Action::Write(l, b, fill)),
            1 => (range(), 1..255_u8).prop_map(|((l, b), fill)| Action::WriteDurable(l, b, fill)),
            2 => (range(), any::<bool>()).prop_map(|((l, b), free)| Action::Zero(l, b, free)),
            1 => range().prop_map(|(lba, blocks)| Action::Deallocate(lba, blocks)),
            1 => Just(Action::Flush),
        ],
        1..40,
    )
}

/// Data in which every block is different, so that the test detects a misplaced block.
fn pattern(block_size: usize, blocks: u32, fill: u8) -> Vec<u8> {
    let mut data = vec![fill; block_size * blocks as usize];
    for (at, block) in data.chunks_mut(block_size).enumerate() {
        block[..8].copy_from_slice(&(at as u64).to_le_bytes());
    }
    data
}

struct Model {
    disk: Blocking,
    block_size: usize,
    bytes: Vec<u8>,
}

impl Model {
    fn new(namespace: &dyn Namespace, engine: EngineKind) -> Model {
        let disk = Blocking::with_engine(namespace, engine).unwrap();
        let block_size = disk.geometry().block_size as usize;
        assert_eq!(disk.geometry().capacity_bytes(), BYTES as u64);
        Model { disk, block_size, bytes: vec![0; BYTES] }
    }

    /// The range in blocks of the namespace, and the range of its bytes in the model. The latter is
    /// `None` if the range exceeds the capacity.
    fn range(&self, lba: u32, blocks: u32) -> (u64, u32, Option<std::ops::Range<usize>>) {
        let scale = self.block_size as u32 / 512;
        let (lba, blocks) = (lba / scale, blocks / scale);
        let (start, length) = (lba as usize * self.block_size, blocks as usize * self.block_size);
        let range = (start + length <= BYTES).then_some(start..start + length);
        (u64::from(lba), blocks, range)
    }

    fn apply(&mut self, action: &Action) {
        match *action {
            Action::Read(lba, blocks) => {
                let (lba, blocks, range) = self.range(lba, blocks);
                let mut data = vec![0xa5; blocks as usize * self.block_size];
                let result = self.disk.read(lba, &mut data);
                match range {
                    Some(range) => {
                        assert_eq!(result, Ok(()));
                        assert!(data == self.bytes[range], "{blocks} blocks at {lba} differ");
                    }
                    None => assert_eq!(result, Err(BlockError::OutOfRange)),
                }
            }
            Action::Write(lba, blocks, fill) | Action::WriteDurable(lba, blocks, fill) => {
                let (lba, blocks, range) = self.range(lba, blocks);
                let data = pattern(self.block_size, blocks, fill);
                let result = match action {
                    Action::Write(..) => self.disk.write(lba, &data),
                    _ => self.disk.write_durable(lba, &data),
                };
                self.settle(range, result, &data);
            }
            Action::Zero(lba, blocks, free) => {
                let (lba, blocks, range) = self.range(lba, blocks);
                let result = self.disk.write_zeroes(lba, blocks, free);
                self.settle(range, result, &vec![0; blocks as usize * self.block_size]);
            }
            Action::Deallocate(lba, blocks) => {
                let (lba, blocks, range) = self.range(lba, blocks);
                let result = self.disk.deallocate(lba, blocks);
                let mut data = vec![0; blocks as usize * self.block_size];
                if range.is_some() {
                    self.disk.read(lba, &mut data).unwrap();
                }
                self.settle(range, result, &data);
            }
            Action::Flush => self.disk.flush().unwrap(),
        }
    }

    fn settle(
        &mut self,
        range: Option<std::ops::Range<usize>>,
        result: Result<(), BlockError>,
        data: &[u8],
    ) {
        match range {
            Some(range) => {
                assert_eq!(result, Ok(()));
                self.bytes[range].copy_from_slice(data);
            }
            None => assert_eq!(result, Err(BlockError::OutOfRange)),
        }
    }

    fn run(mut self, actions: &[Action]) {
        actions.iter().for_each(|action| self.apply(action));
        let mut all = vec![0xa5; BYTES];
        self.disk.read(0, &mut all).unwrap();
        assert!(all == self.bytes, "the disk as a whole differs from the model");
    }
}

fn block_sizes() -> impl Strategy<Value = u32> {
    prop_oneof![Just(512_u32), Just(4096)]
}

fn engines() -> impl Strategy<Value = EngineKind> {
    proptest::sample::select(EngineKind::HERE)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_ram_disk_behaves_like_the_model(
        actions in actions(),
        block_size in block_sizes(),
        engine in engines(),
    ) {
        let mem = Mem::new(block_size, BYTES as u64).unwrap();
        Model::new(&mem, engine).run(&actions);
    }

    #[test]
    fn a_file_behaves_like_the_model(
        actions in actions(), block_size in block_sizes(), engine in engines(),
        direct in any::<bool>()
    ) {
        let options = FileOptions { direct, ..FileOptions::new(block_size) };
        let disk = Dir::new().disk(BYTES as u64, &options);
        Model::new(&disk, engine).run(&actions);
    }

    #[test]
    fn a_stripe_set_behaves_like_the_model(
        actions in actions(), block_size in block_sizes(), engine in engines(),
        children in prop_oneof![Just(1_u64), Just(2), Just(4)],
        chunk_blocks in prop_oneof![Just(1_u64), Just(2), Just(8), Just(16)],
    ) {
        let mem = || Arc::new(Mem::new(block_size, BYTES as u64 / children).unwrap());
        let disks = (0..children).map(|_| mem() as Arc<dyn Namespace>).collect();
        let stripe = Stripe::new(disks, chunk_blocks * u64::from(block_size)).unwrap();
        Model::new(&stripe, engine).run(&actions);
    }

    #[test]
    fn a_concatenation_of_ranges_behaves_like_the_model(
        actions in actions(), block_size in block_sizes(), engine in engines(), first in 1..4_u64,
    ) {
        // Two ranges of one disk, in the reverse order of their offsets.
        let disk: Arc<dyn Namespace> = Arc::new(Mem::new(block_size, BYTES as u64).unwrap());
        let size = BYTES as u64 / 4 * first;
        let parts = [(BYTES as u64 - size, size), (0, BYTES as u64 - size)];
        let part = |(at, bytes)| Arc::new(Range::new(Arc::clone(&disk), at, bytes).unwrap());
        let parts = parts.map(|it| part(it) as Arc<dyn Namespace>);
        Model::new(&Concat::new(parts.to_vec()).unwrap(), engine).run(&actions);
    }
}
