//! The operations of a disk's queue, from submission to completion. The table holds an operation's
//! buffer except while a path has the buffer.

use farblock_block::{BlockError, Command, Completion, Op, Token};
use farblock_reactor::Buffer;
use std::time::Instant;

/// An operation in progress.
struct Entry {
    command: Command,
    lba: u64,
    blocks: u32,
    fua: bool,
    token: Token,
    /// `None` while a path has the buffer, and for operations without a buffer.
    buffer: Option<Buffer>,
    /// The time at which a path first deferred the operation or was lost with it.
    put_off_since: Option<Instant>,
    /// The paths that deferred the operation or were lost with it, as bits.
    put_off_by: u32,
    /// Whether this is a flush, and writes before it are not durable yet.
    carries: bool,
    /// Whether the user has abandoned the operation.
    unwanted: bool,
    /// The time of submission; `None` if the latency is not measured.
    begun: Option<Instant>,
}

/// The operations of a queue, by number. The table has its own list of free numbers instead of
/// using a slab, because [`Table::slots`] must return how many numbers were ever in use.
#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

impl Table {
    /// Adds an operation and returns its number. `carries`: whether this is a flush with data to
    /// make durable. `begun`: the time of submission, if the latency is measured.
    pub(super) fn insert(&mut self, op: Op, carries: bool, begun: Option<Instant>) -> u32 {
        let Op { command, lba, blocks, fua, buffer, token } = op;
        let (put_off_since, put_off_by, unwanted) = (None, 0, false);
        let entry = Some(Entry {
            command,
            lba,
            blocks,
            fua,
            token,
            buffer,
            put_off_since,
            put_off_by,
            carries,
            unwanted,
            begun,
        });
        match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        }
    }

    fn entry(&mut self, index: u32) -> &mut Entry {
        self.entries[index as usize].as_mut().expect("an operation has an entry until it ends")
    }

    /// The user's token of an operation.
    pub(super) fn token(&self, index: u32) -> u64 {
        let entry = self.entries[index as usize].as_ref();
        entry.expect("an operation has an entry until it ends").token.value()
    }

    /// Returns the operation for submission to a path.
    pub(super) fn attempt(&mut self, index: u32) -> Op {
        let entry = self.entry(index);
        let Entry { command, lba, blocks, fua, .. } = *entry;
        let buffer = entry.buffer.take();
        Op { fua, ..Op::with(command, lba, blocks, buffer, u64::from(index)) }
    }

    /// Stores the operation's buffer that a path returned.
    pub(super) fn put_back(&mut self, index: u32, buffer: Option<Buffer>) {
        self.entry(index).buffer = buffer;
    }

    /// Records that a path deferred the operation or was lost with it. Returns the time at which
    /// this first happened to the operation.
    pub(super) fn put_off(&mut self, index: u32, path: usize, now: Instant) -> Instant {
        let entry = self.entry(index);
        entry.put_off_by |= 1 << path;
        *entry.put_off_since.get_or_insert(now)
    }

    /// Whether this path has failed to execute the operation.
    pub(super) fn was_put_off_by(&mut self, index: u32, path: usize) -> bool {
        self.entry(index).put_off_by & 1 << path != 0
    }

    /// Marks the operations that the user has abandoned.
    pub(super) fn note_unwanted(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        for entry in self.entries.iter_mut().flatten() {
            entry.unwanted |= unwanted(entry.token.value());
        }
    }

    /// Whether the user abandoned the operation.
    pub(super) fn is_unwanted(&self, index: u32) -> bool {
        self.entries[index as usize].as_ref().is_some_and(|entry| entry.unwanted)
    }

    /// Whether the operation changes blocks. If so, its late execution could undo another write.
    pub(super) fn writes(&mut self, index: u32) -> bool {
        self.entry(index).command.writes()
    }

    /// The largest number of concurrent operations so far.
    pub(super) fn slots(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Whether the operation exists and changes blocks.
    pub(super) fn may_write(&self, index: u32) -> bool {
        self.entries[index as usize].as_ref().is_some_and(|entry| entry.command.writes())
    }

    /// The command, whether it has the FUA flag, and whether it is a flush with data to make
    /// durable.
    pub(super) fn nature(&self, index: u32) -> Option<(Command, bool, bool)> {
        let entry = self.entries[index as usize].as_ref()?;
        Some((entry.command, entry.fua, entry.carries))
    }

    /// The command and its submission time; `None` if the latency is not measured.
    pub(super) fn measured(&self, index: u32) -> Option<(Command, Instant)> {
        let entry = self.entries[index as usize].as_ref()?;
        Some((entry.command, entry.begun?))
    }

    pub(super) fn complete(
        &mut self,
        index: u32,
        result: Result<(), BlockError>,
        buffer: Option<Buffer>,
    ) -> Completion {
        let entry = self.entries[index as usize].take().expect("an operation ends once");
        self.free.push(index);
        let buffer = buffer.or(entry.buffer);
        Completion { token: entry.token.finish(), result, buffer }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Drops all operations without completions, to close the queue. Returns their buffers.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = Buffer> {
        self.free.clear();
        self.entries.drain(..).flatten().filter_map(|entry| {
            entry.token.finish();
            entry.buffer
        })
    }
}
