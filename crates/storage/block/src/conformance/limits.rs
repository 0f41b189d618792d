//! Checks of a namespace's properties, and of operations that the namespace must refuse.

use farblock_reactor::Buffer;

use super::Context;
use crate::{BlockError, Command, Geometry, Op};

pub(super) const CHANGES: [Command; 4] = [
    Command::Write,
    Command::WriteZeroes { deallocate: false },
    Command::WriteZeroes { deallocate: true },
    Command::Deallocate,
];
const RANGED: [Command; 5] = [
    Command::Read,
    Command::Write,
    Command::WriteZeroes { deallocate: false },
    Command::WriteZeroes { deallocate: true },
    Command::Deallocate,
];

/// Creates an operation with the buffer that it needs.
fn op(geometry: Geometry, command: Command, lba: u64, blocks: u32) -> Op {
    let buffer = command.moves_data().then(|| Buffer::new(geometry.bytes(blocks)));
    Op::with(command, lba, blocks, buffer, lba ^ u64::from(blocks))
}

pub(super) fn the_geometry_is_valid(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    assert_eq!(geometry.block_size, context.block_size);
    assert!(Geometry::is_block_size(geometry.block_size));
    assert!(
        i64::try_from(geometry.capacity_bytes()).is_ok(),
        "the capacity exceeds the largest file offset"
    );
    assert_eq!(namespace.geometry(), geometry, "the geometry changes without an operation");
    let line = namespace.describe();
    assert!(
        !line.trim().is_empty() && !line.contains('\n'),
        "the description is not one line: {line:?}"
    );
}

pub(super) fn ranges_beyond_the_end_are_refused(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let end = geometry.blocks;
    let block_size = u64::from(geometry.block_size);
    let last = context.filled(geometry, 1).to_vec();
    driver.write(0, geometry, end - 1, &last);
    let ranges = [
        (end, 1),
        (end - 1, 2),
        (end - 7, 8),
        (end + 1, 1),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 7, 8),
        (u64::MAX / block_size, 1),
        // A backend that multiplies or adds without an overflow check would treat these ranges as
        // ranges at the start of the namespace.
        (u64::MAX / block_size + 1, 1),
        (1 << 63, 1),
        (1 << 32, 1),
    ];
    for command in RANGED {
        for (lba, blocks) in ranges {
            if lba.checked_add(u64::from(blocks)).is_some_and(|after| after <= end) {
                continue; // the namespace is as large as this limit
            }
            let done = driver.run(0, op(geometry, command, lba, blocks));
            assert_eq!(
                done.result,
                Err(BlockError::OutOfRange),
                "result of {command:?}, {blocks} blocks at {lba}"
            );
            let expected = command.moves_data().then(|| geometry.bytes(blocks));
            assert_eq!(
                done.buffer.map(|buffer| buffer.len()),
                expected,
                "the completion has another buffer than the operation"
            );
        }
    }
    let read = driver.read(0, geometry, end - 1, 1);
    context.expect(&read, &last, "the last block after refused operations");
}

pub(super) fn operations_on_zero_blocks_succeed(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let first = context.filled(geometry, 1).to_vec();
    driver.write(0, geometry, 0, &first);
    for command in RANGED {
        for lba in [0, 1, geometry.blocks] {
            driver.must(0, Op::with(command, lba, 0, None, 1));
            if command.moves_data() {
                let back = driver.must(0, Op::with(command, lba, 0, Some(Buffer::new(0)), 1));
                assert!(
                    back.is_some_and(|buffer| buffer.is_empty()),
                    "the completion lacks the empty buffer"
                );
            }
        }
        for lba in [geometry.blocks + 1, u64::MAX] {
            let op = Op::with(command, lba, 0, None, 1);
            driver.must_fail(0, op, BlockError::OutOfRange);
        }
    }
    let read = driver.read(0, geometry, 0, 1);
    context.expect(&read, &first, "the first block after operations without blocks");
}

pub(super) fn more_than_max_blocks_is_refused(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let limit = geometry.max_blocks;
    if limit == 0 || u64::from(limit) >= geometry.blocks {
        return;
    }
    let mut driver = context.driver_of(&namespace);
    for command in [Command::Read, Command::Write] {
        driver.must(0, op(geometry, command, 0, limit));
        driver.must_fail(0, op(geometry, command, 0, limit + 1), BlockError::TooLarge);
    }
    for command in [Command::WriteZeroes { deallocate: true }, Command::Deallocate] {
        driver.must(0, op(geometry, command, 0, limit + 1)); // these commands transfer no data
    }
}

pub(super) fn a_read_only_namespace_refuses_changes(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    assert!(geometry.read_only, "the geometry does not report read-only");
    let mut driver = context.driver_of(&namespace);
    let before = driver.read(0, geometry, 0, 16);
    for command in CHANGES {
        for (lba, blocks) in [(0, 1), (3, 8), (geometry.blocks - 1, 1)] {
            let mut op = op(geometry, command, lba, blocks);
            if let Some(buffer) = &mut op.buffer {
                buffer.fill(0x77);
            }
            driver.must_fail(0, op, BlockError::ReadOnly);
        }
    }
    assert!(driver.read(0, geometry, 0, 16) == before, "a refused operation changed the data");
}

pub(super) fn a_read_only_namespace_can_be_read(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    driver.must(0, Op::flush(1));
    for _ in 0..32 {
        let blocks = context.random.within(1..33) as u32;
        let lba = context.random.within(0..geometry.blocks - u64::from(blocks));
        let once = driver.read(0, geometry, lba, blocks);
        assert!(driver.read(0, geometry, lba, blocks) == once, "{blocks} blocks at {lba} changed");
    }
    let beyond = op(geometry, Command::Read, geometry.blocks, 1);
    driver.must_fail(0, beyond, BlockError::OutOfRange);
}
