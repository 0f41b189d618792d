//! Checks of single operations: whether data reach the right blocks, and what completions contain.

use farblock_reactor::Buffer;

use super::Context;
use super::driver::at_once;
use crate::{BlockError, Op};

pub(super) fn a_write_changes_no_neighbour(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let size = geometry.block_size as usize;
    let mut model = context.filled(geometry, 24).to_vec();
    driver.write(0, geometry, 1000, &model);
    for at in [0_usize, 7, 8, 15, 23] {
        let block = context.filled(geometry, 1).to_vec();
        driver.write(0, geometry, 1000 + at as u64, &block);
        model[at * size..(at + 1) * size].copy_from_slice(&block);
        let read = driver.read(0, geometry, 1000, 24);
        context.expect(&read, &model, "24 blocks after a write to one of them");
    }
}

pub(super) fn the_first_and_last_block_are_usable(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    for lba in [0, geometry.blocks - 1] {
        let block = context.filled(geometry, 1).to_vec();
        driver.write(0, geometry, lba, &block);
        let read = driver.read(0, geometry, lba, 1);
        context.expect(&read, &block, "the first or last block");
    }
    let tail = context.filled(geometry, 5).to_vec();
    driver.write(0, geometry, geometry.blocks - 5, &tail);
    let read = driver.read(0, geometry, geometry.blocks - 5, 5);
    context.expect(&read, &tail, "the last five blocks");
}

pub(super) fn odd_ranges_are_read_back(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    for blocks in [1, 2, 3, 5, 7, 9, 31, 33, 63, 127, 129, 255] {
        for lba in [1_u64, 3, 127, 509, 1023] {
            let data = context.filled(geometry, blocks).to_vec();
            driver.write(0, geometry, lba, &data);
            let read = driver.read(0, geometry, lba, blocks);
            context.expect(&read, &data, &format!("{blocks} blocks at {lba}"));
        }
    }
}

pub(super) fn large_transfers_are_read_back(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    for bytes in [1_u32 << 20, 4 << 20] {
        let blocks = bytes / geometry.block_size;
        if geometry.max_blocks != 0 && blocks > geometry.max_blocks {
            continue;
        }
        for lba in [0, 3, geometry.blocks - u64::from(blocks)] {
            let data = context.filled(geometry, blocks).to_vec();
            driver.write(0, geometry, lba, &data);
            let read = driver.read(0, geometry, lba, blocks);
            context.expect(&read, &data, &format!("{bytes} bytes at block {lba}"));
        }
    }
}

/// A frontend may pass any part of a buffer, for example the bytes after the header in a receive
/// buffer.
pub(super) fn a_buffer_may_have_any_address(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    for skip in [1_usize, 8, 24, 72, 511, 512, 1024, 4096] {
        for blocks in [1_u32, 3, 8] {
            let mut whole = Buffer::new(skip + geometry.bytes(blocks) + 100);
            context.random.fill(&mut whole);
            let before = whole.to_vec();
            let mut front = whole.split_to(skip + geometry.bytes(blocks));
            let head = front.split_to(skip);
            let data = front.to_vec();
            let front = driver.must(0, Op::write(17, blocks, front, 1)).expect("a write's buffer");
            assert!(front[..] == data[..], "a write changed its buffer");
            let back = driver.must(0, Op::read(17, blocks, front, 2)).expect("a read's buffer");
            context.expect(&back, &data, &format!("{blocks} blocks, {skip} bytes into a buffer"));
            // The parts of the buffer can be joined again. The read changed only the middle part.
            let mut again = head;
            again.unsplit(back);
            again.unsplit(whole);
            assert!(again[..skip] == before[..skip], "bytes before the buffer changed");
            let end = skip + geometry.bytes(blocks);
            assert!(again[end..] == before[end..], "bytes after the buffer changed");
        }
    }
}

pub(super) fn completions_return_the_buffers(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    for blocks in [1, 3, 8, 100, 256].map(|blocks| at_once(geometry, blocks)) {
        let buffer = context.filled(geometry, blocks);
        let identity = (buffer.as_ptr(), buffer.len());
        let written = driver.must(0, Op::write(5, blocks, buffer, 1)).expect("a write's buffer");
        assert_eq!(
            (written.as_ptr(), written.len()),
            identity,
            "the write returned another buffer"
        );
        let read = driver.must(0, Op::read(5, blocks, written, 2)).expect("a read's buffer");
        assert_eq!((read.as_ptr(), read.len()), identity, "the read returned another buffer");
        let refused = driver.run(0, Op::read(geometry.blocks, blocks, read, 3));
        assert_eq!(refused.result, Err(BlockError::OutOfRange));
        let refused = refused.buffer.expect("a refused read's buffer");
        assert_eq!(
            (refused.as_ptr(), refused.len()),
            identity,
            "the refused read returned another buffer"
        );
    }
    assert!(driver.must(0, Op::flush(1)).is_none());
    assert!(driver.must(0, Op::write_zeroes(0, 8, true, 1)).is_none());
    assert!(driver.must(0, Op::deallocate(0, 8, 1)).is_none());
}

pub(super) fn completions_return_the_tokens(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    for token in [0, 1, u64::from(u32::MAX), 1 << 32, 1 << 63, u64::MAX] {
        let buffer = Buffer::new(geometry.bytes(1));
        assert_eq!(driver.run(0, Op::read(0, 1, buffer, token)).token, token);
        assert_eq!(driver.run(0, Op::flush(token)).token, token);
        assert_eq!(driver.run(0, Op::write_zeroes(0, 1, false, token)).token, token);
        assert_eq!(driver.run(0, Op::deallocate(0, 1, token)).token, token);
        assert_eq!(driver.run(0, Op::deallocate(u64::MAX, 1, token)).token, token);
    }
    // Two operations may have the same token, because only the submitter has to distinguish them.
    driver.submit(0, Op::flush(9));
    driver.submit(0, Op::read(0, 1, Buffer::new(geometry.bytes(1)), 9));
    assert!(driver.wait(0, 2).iter().all(|done| done.token == 9 && done.result.is_ok()));
}

pub(super) fn write_zeroes_changes_only_its_range(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let size = geometry.block_size as usize;
    for deallocate in [false, true] {
        for (lba, blocks) in [(64_u64, 1_u32), (65, 7), (71, 200), (64, 300)] {
            let mut model = context.filled(geometry, 400).to_vec();
            driver.write(0, geometry, 0, &model);
            driver.must(0, Op::write_zeroes(lba, blocks, deallocate, 3));
            let from = lba as usize * size;
            model[from..from + geometry.bytes(blocks)].fill(0);
            let read = driver.read(0, geometry, 0, 400);
            context.expect(&read, &model, &format!("{blocks} zero blocks at {lba}"));
        }
    }
}

pub(super) fn large_ranges_become_zero(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let blocks = (8 << 20) / geometry.block_size;
    for deallocate in [false, true] {
        let data = context.filled(geometry, 8).to_vec();
        for lba in [0, u64::from(blocks) / 2, u64::from(blocks) - 8, u64::from(blocks)] {
            driver.write(0, geometry, lba, &data);
        }
        let op = Op::write_zeroes(0, blocks, deallocate, 1).durable();
        driver.must(0, op);
        let zeroes = vec![0; geometry.bytes(8)];
        for lba in [0, u64::from(blocks) / 2, u64::from(blocks) - 8] {
            let read = driver.read(0, geometry, lba, 8);
            context.expect(&read, &zeroes, "8 blocks within the range of Write Zeroes");
        }
        let read = driver.read(0, geometry, u64::from(blocks), 8);
        context.expect(&read, &data, "the blocks after the range of Write Zeroes");
    }
}

pub(super) fn deallocated_reads_are_stable(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let size = geometry.block_size as usize;
    for (lba, blocks) in [(0_u64, 1_u32), (9, 17), (1, 512), (0, 1024)] {
        let data = context.filled(geometry, blocks + 16).to_vec();
        driver.write(0, geometry, lba, &data);
        driver.must(0, Op::deallocate(lba + 8, blocks, 1));
        let read = driver.read(0, geometry, lba, blocks + 16);
        context.expect(
            &read[..8 * size],
            &data[..8 * size],
            "the blocks before a deallocated range",
        );
        let after = (blocks as usize + 8) * size;
        context.expect(&read[after..], &data[after..], "the blocks after a deallocated range");
        let pairs = read.chunks(size).zip(data.chunks(size));
        for (at, (now, old)) in pairs.enumerate() {
            let zero = now.iter().all(|&byte| byte == 0);
            assert!(zero || now == old, "block {at} is neither zero nor unchanged");
        }
        for _ in 0..3 {
            let again = driver.read(0, geometry, lba, blocks + 16);
            assert!(again == read, "deallocated blocks read differently each time");
        }
        driver.write(0, geometry, lba, &data);
        let read = driver.read(0, geometry, lba, blocks + 16);
        context.expect(&read, &data, "blocks written after a deallocation");
    }
}

pub(super) fn flushes_complete_among_writes(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    driver.must(0, Op::flush(0));
    // A flush ignores its range, even an invalid one.
    driver.must(0, Op { lba: u64::MAX, blocks: u32::MAX, ..Op::flush(0) });
    let data = context.filled(geometry, 64).to_vec();
    for at in 0..64_u32 {
        let mut buffer = Buffer::new(geometry.bytes(1));
        buffer.copy_from_slice(&data[geometry.bytes(at)..geometry.bytes(at + 1)]);
        driver.submit(0, Op::write(u64::from(at), 1, buffer, 1));
        if at % 8 == 7 {
            driver.submit(0, Op::flush(2));
        }
    }
    let done = driver.wait(0, 72);
    assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
    assert_eq!(done.iter().filter(|done| done.token == 2).count(), 8);
    let read = driver.read(0, geometry, 0, 64);
    context.expect(&read, &data, "64 blocks written among flushes");
}

pub(super) fn durable_writes_are_read_back(context: &mut Context<'_>) {
    let namespace = context.namespace();
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    for (lba, blocks) in [(0_u64, 1_u32), (11, 3), (64, at_once(geometry, 64))] {
        let buffer = context.filled(geometry, blocks);
        let data = buffer.to_vec();
        driver.must(0, Op::write(lba, blocks, buffer, 1).durable());
        let read = driver.read(0, geometry, lba, blocks);
        context.expect(&read, &data, "a durable write");
    }
    driver.must(0, Op::write_zeroes(0, 8, true, 1).durable());
    driver.must(0, Op::write_zeroes(0, 8, false, 1).durable());
    // FUA has no effect on deallocate and read.
    driver.must(0, Op::deallocate(0, 8, 1).durable());
    driver.must(0, Op::read(0, 1, Buffer::new(geometry.bytes(1)), 1).durable());
}
