//! The operations of a disk's queue: each is here from its submission to its completion, with its
//! buffer whenever no path has that.

use farblock_block::{BlockError, Command, Completion, Op, Token};
use farblock_reactor::Buffer;
use std::time::Instant;

/// An operation that was not completed.
struct Entry {
    command: Command,
    lba: u64,
    blocks: u32,
    fua: bool,
    token: Token,
    /// `None` while a path has it, or if there is none.
    buffer: Option<Buffer>,
    /// When a path answered that the operation is not for it now, or was lost with it, the first
    /// time.
    put_off_since: Option<Instant>,
    /// The paths that did, as bits.
    put_off_by: u32,
    /// It is a flush of something.
    carries: bool,
    /// Nobody waits for its end.
    unwanted: bool,
    /// When it was submitted, if that is measured.
    begun: Option<Instant>,
}

/// See the module's text. It has its own list of free numbers and is no slab, since which numbers
/// were ever in use is asked ([`Table::slots`]), also of those that are free.
#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

impl Table {
    /// Takes an operation in; gives its number, by which it is known from here on.
    /// `carries`: it is a flush of something. `begun`: as of when its time is measured, if it is.
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
        self.entries[index as usize].as_mut().expect("an operation is known until it ends")
    }

    /// Whose operation it is.
    pub(super) fn token(&self, index: u32) -> u64 {
        let entry = self.entries[index as usize].as_ref();
        entry.expect("an operation is known until it ends").token.value()
    }

    /// The operation as a path is to carry it out.
    pub(super) fn attempt(&mut self, index: u32) -> Op {
        let entry = self.entry(index);
        let Entry { command, lba, blocks, fua, .. } = *entry;
        let buffer = entry.buffer.take();
        Op { fua, ..Op::with(command, lba, blocks, buffer, u64::from(index)) }
    }

    /// A path gives the operation back.
    pub(super) fn put_back(&mut self, index: u32, buffer: Option<Buffer>) {
        self.entry(index).buffer = buffer;
    }

    /// Notes that a path has not carried the operation out; gives since when that is so of any.
    pub(super) fn put_off(&mut self, index: u32, path: usize, now: Instant) -> Instant {
        let entry = self.entry(index);
        entry.put_off_by |= 1 << path;
        *entry.put_off_since.get_or_insert(now)
    }

    /// Whether a path has had the operation and not carried it out.
    pub(super) fn was_put_off_by(&mut self, index: u32, path: usize) -> bool {
        self.entry(index).put_off_by & 1 << path != 0
    }

    /// Notes whose end nobody waits for.
    pub(super) fn note_unwanted(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        for entry in self.entries.iter_mut().flatten() {
            entry.unwanted |= unwanted(entry.token.value());
        }
    }

    /// Whether nobody waits for its end.
    pub(super) fn is_unwanted(&self, index: u32) -> bool {
        self.entries[index as usize].as_ref().is_some_and(|entry| entry.unwanted)
    }

    /// Carrying the operation out a second time, late, could undo another one.
    pub(super) fn writes(&mut self, index: u32) -> bool {
        self.entry(index).command.writes()
    }

    /// How many numbers are in use at most.
    pub(super) fn slots(&self) -> u32 {
        self.entries.len() as u32
    }

    /// There is such an operation, and it changes blocks.
    pub(super) fn may_write(&self, index: u32) -> bool {
        self.entries[index as usize].as_ref().is_some_and(|entry| entry.command.writes())
    }

    /// What the operation is, whether it is durable when it is done, and whether it is a flush of
    /// something.
    pub(super) fn nature(&self, index: u32) -> Option<(Command, bool, bool)> {
        let entry = self.entries[index as usize].as_ref()?;
        Some((entry.command, entry.fua, entry.carries))
    }

    /// What the operation is and when it was submitted, if its time is measured.
    pub(super) fn measured(&self, index: u32) -> Option<(Command, Instant)> {
        let entry = self.entries[index as usize].as_ref()?;
        Some((entry.command, entry.begun?))
    }

    /// Ends an operation.
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

    /// Ends everything without completions: the queue goes away. Gives the buffers that are here.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = Buffer> {
        self.free.clear();
        self.entries.drain(..).flatten().filter_map(|entry| {
            entry.token.finish();
            entry.buffer
        })
    }
}
