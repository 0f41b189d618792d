//! The I/Os that one job keeps in flight, with their buffers.
//!
//! A slot is one I/O. The I/O consists of one operation, or of several if the namespace accepts
//! fewer blocks in one operation. It completes with the last operation. The job allocates all
//! buffers at the start. Operations take buffers, and completions return them.

use std::time::Instant;

use farblock_block::{BlockError, Command, Completion, Op};
use farblock_reactor::Buffer;

use crate::addresses::Span;
use crate::limits::MAX_BUFFER_BYTES;
use crate::pattern::Pattern;
use farblock_random::Random;

/// The distance, in bytes, between the random numbers that a job puts into the buffer of each
/// write. The numbers make all written pages differ.
const STAMP_INTERVAL_BYTES: usize = 4096;

/// One I/O that may be in flight.
#[derive(Clone, Copy, Debug)]
struct Slot {
    command: Command,
    lba: u64,
    submitted: Instant,
    ops_left: u32,
}

/// A completed I/O.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) command: Command,
    pub(crate) submitted: Instant,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) command: Command,
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
    pub(crate) error: BlockError,
}

/// All slots of a job. The token of an operation is its index among all operations of all slots.
#[derive(Debug)]
pub(crate) struct Slots {
    span: Span,
    block_size: u32,
    slots: Vec<Slot>,
    idle: Vec<u32>,
    /// One buffer per operation; `None` while the operation has the buffer. Empty if the pattern
    /// does not read.
    read_buffers: Vec<Option<Buffer>>,
    /// The buffers for writes, with random contents. Reads have other buffers, because they would
    /// overwrite these contents.
    write_buffers: Vec<Option<Buffer>>,
}

/// The memory for the buffers of a pattern with all of its jobs, in bytes.
pub(crate) fn buffer_bytes(pattern: &Pattern) -> u64 {
    let kinds = u64::from(pattern.rw.reads()) + u64::from(pattern.rw.writes());
    [pattern.iodepth, pattern.numjobs, pattern.block_size_bytes]
        .iter()
        .fold(kinds, |bytes, factor| bytes.saturating_mul(u64::from(*factor)))
}

impl Slots {
    pub(crate) fn new(
        pattern: &Pattern,
        span: Span,
        block_size: u32,
        random: &mut Random,
    ) -> Slots {
        assert!(buffer_bytes(pattern) <= MAX_BUFFER_BYTES, "the buffers exceed the limit");
        let idle_slot =
            Slot { command: Command::Read, lba: 0, submitted: Instant::now(), ops_left: 0 };
        let ops = pattern.iodepth * span.ops_per_io();
        let mut make = |wanted: bool, fill: bool| -> Vec<Option<Buffer>> {
            let count = if wanted { ops } else { 0 };
            (0..count)
                .map(|op| {
                    let mut buffer =
                        Buffer::new(op_blocks(&span, op) as usize * block_size as usize);
                    if fill {
                        random.fill(&mut buffer);
                    }
                    Some(buffer)
                })
                .collect()
        };
        Slots {
            span,
            block_size,
            slots: vec![idle_slot; pattern.iodepth as usize],
            idle: (0..pattern.iodepth).rev().collect(),
            read_buffers: make(pattern.rw.reads(), false),
            write_buffers: make(pattern.rw.writes(), true),
        }
    }

    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.idle.len()
    }

    pub(crate) fn io_bytes(&self) -> u64 {
        u64::from(self.span.io_blocks) * u64::from(self.block_size)
    }

    /// Starts the I/O with the number `io` of the span. `now` is a clock reading from before the
    /// start. All I/Os that start together use the same reading, so no measured latency is too
    /// small.
    pub(crate) fn submit(
        &mut self,
        submit: &mut impl FnMut(Op),
        command: Command,
        io: u64,
        random: &mut Random,
        now: Instant,
    ) {
        let index = self.idle.pop().expect("the caller asked for an idle slot");
        let per_io = self.span.ops_per_io();
        let lba = io * u64::from(self.span.io_blocks);
        let buffers = match command {
            Command::Write => &mut self.write_buffers,
            _ => &mut self.read_buffers,
        };
        let first = index * per_io;
        let slot = &mut self.slots[index as usize];
        *slot = Slot { command, lba, submitted: now, ops_left: per_io };
        for part in 0..per_io {
            let token = first + part;
            let mut buffer = buffers[token as usize].take().expect("an idle slot has its buffers");
            if command == Command::Write {
                stamp(&mut buffer, random);
            }
            let lba = lba + u64::from(part) * u64::from(self.span.op_blocks);
            let blocks = op_blocks(&self.span, part);
            submit(Op::with(command, lba, blocks, Some(buffer), u64::from(token)));
        }
    }

    /// Handles a completion. Returns the I/O if this was its last operation, or the failure.
    pub(crate) fn complete(&mut self, completion: Completion) -> Result<Option<Finished>, Failed> {
        let per_io = self.span.ops_per_io();
        let token = u32::try_from(completion.token).expect("the token belongs to a slot");
        let index = token / per_io;
        let slot = &mut self.slots[index as usize];
        assert!(slot.ops_left > 0, "an operation completed twice");
        slot.ops_left -= 1;
        let buffers = match slot.command {
            Command::Write => &mut self.write_buffers,
            _ => &mut self.read_buffers,
        };
        let buffer = completion.buffer.expect("a completion returns its buffer");
        let home = &mut buffers[token as usize];
        assert!(home.is_none(), "an operation completed twice");
        *home = Some(buffer);
        let (command, submitted) = (slot.command, slot.submitted);
        let lba = slot.lba + u64::from(token % per_io) * u64::from(self.span.op_blocks);
        let done = slot.ops_left == 0;
        if done {
            self.idle.push(index);
        }
        match completion.result {
            Ok(()) => Ok(done.then_some(Finished { command, submitted })),
            Err(error) => {
                let blocks = op_blocks(&self.span, token);
                Err(Failed { command, lba, blocks, error })
            }
        }
    }
}

/// The number of blocks of an operation, by its token or index. Only the last operation of an I/O
/// may be shorter.
fn op_blocks(span: &Span, op: u32) -> u32 {
    let per_io = span.ops_per_io();
    match op % per_io {
        last if last + 1 == per_io => span.io_blocks - last * span.op_blocks,
        _ => span.op_blocks,
    }
}

fn stamp(buffer: &mut [u8], random: &mut Random) {
    for page in buffer.chunks_mut(STAMP_INTERVAL_BYTES) {
        if let Some(head) = page.first_chunk_mut::<8>() {
            *head = random.bits().to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Rw;

    fn slots(rw: Rw, span: Span) -> (Slots, Random) {
        let mut random = Random::new(1);
        let bytes = span.io_blocks * 512;
        let slots = Slots::new(&Pattern::new(rw, bytes, 1, 2), span, 512, &mut random);
        (slots, random)
    }

    #[test]
    fn a_split_io_completes_with_its_last_operation() {
        let span = Span { io_blocks: 8, op_blocks: 3, ios: 100 };
        let (mut slots, mut random) = slots(Rw::RandRead, span);
        let mut held = Vec::new();
        slots.submit(&mut |op| held.push(op), Command::Read, 0, &mut random, Instant::now());
        slots.submit(&mut |op| held.push(op), Command::Read, 5, &mut random, Instant::now());
        assert!(!slots.has_idle());
        let shape: Vec<_> = held.iter().map(|op| (op.token.value(), op.lba, op.blocks)).collect();
        assert_eq!(shape, [(0, 0, 3), (1, 3, 3), (2, 6, 2), (3, 40, 3), (4, 43, 3), (5, 46, 2)]);
        let mut finished = 0;
        for op in held.drain(..).rev() {
            finished += u32::from(
                slots.complete(op.complete(Ok(()))).expect("the operation succeeds").is_some(),
            );
        }
        assert_eq!((finished, slots.in_flight()), (2, 0));
        slots.submit(&mut |op| held.push(op), Command::Read, 1, &mut random, Instant::now());
        assert!(held.iter().all(|op| op.check(&Geometry::new(512, 800)).is_ok()));
        held.drain(..).for_each(|op| drop(op.abandon()));
    }

    use farblock_block::Geometry;

    #[test]
    fn a_failure_names_the_failed_operation() {
        let span = Span { io_blocks: 8, op_blocks: 3, ios: 100 };
        let (mut slots, mut random) = slots(Rw::Write, span);
        let mut held = Vec::new();
        slots.submit(&mut |op| held.push(op), Command::Write, 2, &mut random, Instant::now());
        let last = held.pop().expect("three operations are held");
        let failed = slots.complete(last.complete(Err(BlockError::NoSpace)));
        let expected =
            Failed { command: Command::Write, lba: 22, blocks: 2, error: BlockError::NoSpace };
        assert_eq!(failed.expect_err("the operation fails"), expected);
        held.drain(..).for_each(|op| drop(op.abandon()));
    }

    #[test]
    fn written_pages_are_random_and_distinct() {
        let span = Span { io_blocks: 16, op_blocks: 16, ios: 100 };
        let (mut slots, mut random) = slots(Rw::RandWrite, span);
        let mut held = Vec::new();
        let mut pages = std::collections::HashSet::new();
        for _ in 0..10 {
            slots.submit(&mut |op| held.push(op), Command::Write, 0, &mut random, Instant::now());
            let op = held.pop().expect("an operation is held");
            for page in op.buffer.as_deref().expect("a write has data").chunks(4096) {
                assert!(pages.insert(page.to_vec()), "two written pages are equal");
                let zeroes = page.iter().filter(|byte| **byte == 0).count();
                assert!(zeroes < 100, "{zeroes} zeroes do not look random");
            }
            slots.complete(op.complete(Ok(()))).expect("the operation succeeds");
        }
    }

    #[test]
    fn mixed_patterns_use_separate_buffers_for_reads_and_writes() {
        let span = Span { io_blocks: 8, op_blocks: 8, ios: 100 };
        let (mut slots, mut random) = slots(Rw::RandRw, span);
        let mut held = Vec::new();
        slots.submit(&mut |op| held.push(op), Command::Read, 0, &mut random, Instant::now());
        let mut read = held.pop().expect("an operation is held");
        read.buffer.as_deref_mut().expect("the operation has a buffer").fill(0);
        slots.complete(read.complete(Ok(()))).expect("the operation succeeds");
        slots.submit(&mut |op| held.push(op), Command::Write, 0, &mut random, Instant::now());
        let write = held.pop().expect("an operation is held");
        assert!(
            write.buffer.as_deref().expect("the operation has a buffer")[8..]
                .iter()
                .any(|byte| *byte != 0)
        );
        write.abandon();
    }

    #[test]
    fn the_buffer_memory_of_all_jobs_is_summed() {
        assert_eq!(buffer_bytes(&Pattern::new(Rw::Rw, 1 << 20, 3, 8)), 48 << 20);
        assert_eq!(buffer_bytes(&Pattern::new(Rw::Read, u32::MAX, u32::MAX, u32::MAX)), u64::MAX);
    }
}
