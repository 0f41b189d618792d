//! Checks against a model: a vector with the same bytes.

use super::driver::at_once;
use super::{Context, Driver};
use crate::{Geometry, Op};

/// The number of the namespace's blocks that the model covers.
const BLOCKS: u64 = 2048;

pub(super) fn random_transfers(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let mut model = Model::new(&mut driver, geometry);
    for _ in 0..300 {
        let (lba, blocks) = range(context, at_once(geometry, 64));
        if context.random.within(0..2) == 0 {
            model.write(context, &mut driver, lba, blocks);
        } else {
            model.check(context, &mut driver, lba, blocks);
        }
    }
    model.check_all(context, &mut driver);
}

pub(super) fn random_commands(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let mut model = Model::new(&mut driver, geometry);
    for _ in 0..300 {
        let (lba, blocks) = range(context, at_once(geometry, 200));
        match context.random.within(0..8) {
            0..=2 => model.write(context, &mut driver, lba, blocks),
            3 | 4 => model.check(context, &mut driver, lba, blocks),
            5 => {
                let deallocate = context.random.within(0..2) == 0;
                driver.must(0, Op::write_zeroes(lba, blocks, deallocate, 1));
                model.part(lba, blocks).fill(0);
            }
            6 => {
                driver.must(0, Op::deallocate(lba, blocks, 1));
                // A deallocated block may read as zeroes or as its old data. Either is correct, but
                // later reads must return the same.
                let now = driver.read(0, geometry, lba, blocks);
                model.part(lba, blocks).copy_from_slice(&now);
            }
            _ => {
                driver.must(0, Op::flush(1));
            }
        }
    }
    model.check_all(context, &mut driver);
}

fn range(context: &mut Context<'_>, max_blocks: u32) -> (u64, u32) {
    let blocks = context.random.within(1..u64::from(max_blocks) + 1);
    (context.random.within(0..BLOCKS - blocks + 1), blocks as u32)
}

struct Model {
    geometry: Geometry,
    bytes: Vec<u8>,
}

impl Model {
    /// Creates a model with the namespace's initial contents.
    fn new(driver: &mut Driver, geometry: Geometry) -> Model {
        let mut bytes = Vec::new();
        for lba in (0..BLOCKS).step_by(256) {
            bytes.extend(driver.read(0, geometry, lba, 256));
        }
        Model { geometry, bytes }
    }

    fn part(&mut self, lba: u64, blocks: u32) -> &mut [u8] {
        let from = self.geometry.offset(lba) as usize;
        &mut self.bytes[from..from + self.geometry.bytes(blocks)]
    }

    fn write(&mut self, context: &mut Context<'_>, driver: &mut Driver, lba: u64, blocks: u32) {
        let mut op = Op::write(lba, blocks, context.filled(self.geometry, blocks), 1);
        op.fua = context.random.within(0..16) == 0;
        self.part(lba, blocks)
            .copy_from_slice(op.buffer.as_deref().expect("the operation has a buffer"));
        driver.must(0, op);
    }

    fn check(&mut self, context: &Context<'_>, driver: &mut Driver, lba: u64, blocks: u32) {
        let read = driver.read(0, self.geometry, lba, blocks);
        context.expect(&read, self.part(lba, blocks), &format!("{blocks} blocks at {lba}"));
    }

    fn check_all(&mut self, context: &Context<'_>, driver: &mut Driver) {
        for lba in (0..BLOCKS).step_by(256) {
            self.check(context, driver, lba, 256);
        }
    }
}
