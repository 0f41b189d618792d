//! Checks of immediate operations: borrowed reads and inline writes. A queue that supports neither
//! passes all checks.

use farblock_reactor::Buffer;

use super::Context;
use super::driver::Driver;
use crate::{BlockError, Geometry, Op};

/// The number of blocks that a check reads and writes: several chunks of any backend.
const BLOCKS: u32 = 600;

/// Returns borrowed buffers of a range; `None` if the queue does not support borrowed reads.
fn lend(driver: &mut Driver, geometry: Geometry, lba: u64, blocks: u32) -> Option<Vec<Buffer>> {
    let mut views = Vec::new();
    driver.queue(0).expect_read(lba);
    let result = driver.queue(0).read_borrowed(lba, blocks, &mut views);
    let Some(result) = result else {
        assert!(views.is_empty(), "the queue returned `None` and buffers");
        return None;
    };
    assert_eq!(result, Ok(()));
    let bytes: usize = views.iter().map(|view| view.len()).sum();
    assert_eq!(
        bytes,
        geometry.bytes(blocks),
        "the length of the borrowed buffers of {blocks} blocks"
    );
    Some(views)
}

fn concat(views: &[Buffer]) -> Vec<u8> {
    // Copy whole slices, because builds without optimization take seconds to copy byte by byte.
    let mut bytes = Vec::new();
    for view in views {
        bytes.extend_from_slice(view);
    }
    bytes
}

pub(super) fn borrowed_reads_do_not_change(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    for (lba, blocks) in [(0, 1), (100, BLOCKS), (127, 3), (geometry.blocks - 2, 2)] {
        let before = context.filled(geometry, blocks).to_vec();
        driver.write(0, geometry, lba, &before);
        let Some(views) = lend(&mut driver, geometry, lba, blocks) else { continue };
        let after = context.filled(geometry, blocks).to_vec();
        driver.write(0, geometry, lba, &after);
        context.expect(&concat(&views), &before, "borrowed data after a write to its blocks");
        let read = driver.read(0, geometry, lba, blocks);
        context.expect(&read, &after, "blocks written while their old data was borrowed");
        for deallocate in [false, true] {
            driver.must(0, Op::write_zeroes(lba, blocks, deallocate, 0));
            context.expect(
                &concat(&views),
                &before,
                "borrowed data after a Write Zeroes to its blocks",
            );
        }
        driver.must(0, Op::deallocate(lba, blocks, 0));
        context.expect(
            &concat(&views),
            &before,
            "borrowed data after a deallocation of its blocks",
        );
    }
}

pub(super) fn borrowed_buffers_outlive_their_queue(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let data = context.filled(geometry, BLOCKS).to_vec();
    driver.write(0, geometry, 3, &data);
    let Some(views) = lend(&mut driver, geometry, 3, BLOCKS) else { return };
    drop((driver, namespace));
    context.expect(&concat(&views), &data, "borrowed data after its namespace was dropped");
}

pub(super) fn inline_writes_are_read_back(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    for (lba, blocks, fua) in [(0, 1, false), (100, BLOCKS, true), (127, 3, false)] {
        let data = context.filled(geometry, blocks);
        let Some(result) = driver.queue(0).write_inline(lba, blocks, fua, &data) else { continue };
        assert_eq!(result, Ok(()));
        let read = driver.read(0, geometry, lba, blocks);
        context.expect(&read, &data, "blocks written inline");
    }
}

pub(super) fn immediate_operations_check_ranges(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let data = context.filled(geometry, 2);
    for lba in [geometry.blocks - 1, geometry.blocks, u64::MAX - 1, u64::MAX] {
        let mut views = Vec::new();
        driver.queue(0).expect_read(lba);
        let lent = driver.queue(0).read_borrowed(lba, 2, &mut views);
        assert!(lent.is_none_or(|result| result == Err(BlockError::OutOfRange)), "{lba}: {lent:?}");
        assert!(views.is_empty(), "buffers returned for a range beyond the end, at {lba}");
        let stored = driver.queue(0).write_inline(lba, 2, false, &data);
        let refused = stored.is_none_or(|result| result == Err(BlockError::OutOfRange));
        assert!(refused, "{lba}: {stored:?}");
    }
}

pub(super) fn a_read_only_namespace_refuses_inline_writes(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let data = context.filled(geometry, 1);
    let stored = driver.queue(0).write_inline(0, 1, false, &data);
    assert!(stored.is_none_or(|result| result == Err(BlockError::ReadOnly)), "{stored:?}");
}
