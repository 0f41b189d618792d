//! A model of the data that reads may return.
//!
//! Every write has a number, which its blocks contain. For each block the model has two sets of
//! numbers: those that the block may contain now, and those that it may contain after a power
//! failure.
//!
//! | event | may contain now | may contain after a power failure |
//! |---|---|---|
//! | a write is submitted | also this write | |
//! | the write is acknowledged | only this write | also what it contained before |
//! | the write is acknowledged with FUA | only this write | nothing else |
//! | the write fails | as when it was submitted | |
//! | a flush is acknowledged | | nothing else, for data acknowledged before the flush |
//! | the power fails | also what it could contain after a power failure | nothing else |
//! | the host's process dies | as if the operations in flight were submitted now | |
//!
//! If the power fails while acknowledged data is not flushed, the next flush must fail.

use farblock_block::{BlockError, Command};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const BLOCK_BYTES: usize = 512;
pub(super) const BLOCKS: u64 = 192;

#[derive(Clone, Default)]
struct Block {
    now: BTreeSet<u64>,
    older: BTreeSet<u64>,
    /// The value of [`Model::acknowledged`] when the block's content was acknowledged.
    since: u64,
}

/// An operation in flight.
struct Flying {
    command: Command,
    lba: u64,
    blocks: u64,
    /// For a write: its number, which its blocks contain.
    content: u64,
    is_durable: bool,
    /// The numbers that each block could contain when a read was submitted.
    possible: Vec<BTreeSet<u64>>,
    /// The number of writes that were acknowledged before the operation was submitted.
    acknowledged: u64,
    /// The number of power cuts before the operation was submitted.
    power_cuts: u64,
}

/// An operation to submit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) command: Command,
    pub(super) lba: u64,
    pub(super) blocks: u64,
    /// Whether the data must be durable when the operation completes.
    pub(super) is_durable: bool,
}

/// The possible contents of all blocks; see the [module](self).
pub(super) struct Model {
    blocks: Vec<Block>,
    flying: BTreeMap<u64, Flying>,
    next: u64,
    acknowledged: u64,
    power_cuts: u64,
    /// Whether a flush must still fail, because acknowledged data may be lost.
    owes_failure: bool,
    /// The number of acknowledgements before the last failed flush. The failed flush may
    /// nevertheless have made these writes durable, if it failed only because of an earlier loss.
    maybe_flushed: u64,
}

impl Default for Model {
    fn default() -> Model {
        let zeroes = Block { now: BTreeSet::from([0]), ..Block::default() };
        Model {
            blocks: vec![zeroes; BLOCKS as usize],
            flying: BTreeMap::new(),
            next: 1,
            acknowledged: 0,
            power_cuts: 0,
            owes_failure: false,
            maybe_flushed: 0,
        }
    }
}

impl Model {
    /// Whether an operation overlaps an operation in flight, so that the order of the two is
    /// undefined.
    pub(super) fn overlaps(&self, wish: &Wish) -> bool {
        self.flying
            .values()
            .any(|other| wish.lba < other.lba + other.blocks && other.lba < wish.lba + wish.blocks)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flying.len()
    }

    pub(super) fn describe(&self) -> String {
        let line = |(token, op): (&u64, &Flying)| {
            format!("{token}: {:?} of {} blocks at {}", op.command, op.blocks, op.lba)
        };
        self.flying.iter().map(line).collect::<Vec<_>>().join(", ")
    }

    /// Submits an operation. Returns its token and, for a write, the data.
    pub(super) fn submit(&mut self, wish: &Wish) -> (u64, Vec<u8>) {
        let token = self.next;
        self.next += 1;
        let content = if wish.command == Command::Write { token } else { 0 };
        let mut possible = Vec::new();
        let mut data = Vec::new();
        for (lba, block) in self.range(wish.lba, wish.blocks) {
            if wish.command.writes() {
                block.now.insert(content);
            } else {
                possible.push(block.now.clone());
            }
            data.extend_from_slice(&bytes_of(content, lba));
        }
        let Wish { command, lba, blocks, is_durable } = *wish;
        let (acknowledged, power_cuts) = (self.acknowledged, self.power_cuts);
        self.flying.insert(
            token,
            Flying {
                command,
                lba,
                blocks,
                content,
                is_durable,
                possible,
                acknowledged,
                power_cuts,
            },
        );
        (token, data)
    }

    /// Completes an operation.
    ///
    /// # Errors
    /// Returns a sentence that describes how the result contradicts the model.
    pub(super) fn complete(
        &mut self,
        token: u64,
        result: Result<(), BlockError>,
        data: &[u8],
    ) -> Result<(), String> {
        let op = self.flying.remove(&token).ok_or(format!("{token} ended twice"))?;
        if result.is_err() {
            if op.command == Command::Flush {
                self.owes_failure = false;
                self.maybe_flushed = self.maybe_flushed.max(op.acknowledged);
            }
            return Ok(());
        }
        match op.command {
            Command::Read => self.check(&op, data),
            Command::Flush => self.flushed(&op),
            Command::Write | Command::WriteZeroes { .. } | Command::Deallocate => {
                self.wrote(&op);
                Ok(())
            }
        }
    }

    /// Abandons the operations in flight, whose results stay unknown. Returns the number of the
    /// last write.
    pub(super) fn abandon(&mut self) -> u64 {
        for op in std::mem::take(&mut self.flying).into_values() {
            if op.command == Command::Flush {
                self.maybe_flushed = self.maybe_flushed.max(op.acknowledged);
            }
        }
        self.next - 1
    }

    pub(super) fn power_cut(&mut self) {
        self.power_cuts += 1;
        let is_lost = |block: &Block| !block.older.is_empty() && block.since > self.maybe_flushed;
        self.owes_failure |= self.blocks.iter().any(is_lost);
        for block in &mut self.blocks {
            block.now.append(&mut block.older);
        }
    }

    fn range(&mut self, lba: u64, blocks: u64) -> impl Iterator<Item = (u64, &mut Block)> {
        let range = lba as usize..(lba + blocks) as usize;
        (lba..).zip(&mut self.blocks[range])
    }

    fn wrote(&mut self, op: &Flying) {
        self.acknowledged += 1;
        let since = self.acknowledged;
        // If the power has failed since the submission, the target may have acknowledged the
        // operation before the failure and then lost its data.
        let is_certain = op.power_cuts == self.power_cuts || op.is_durable;
        for (_, block) in self.range(op.lba, op.blocks) {
            // A deallocated block may keep its earlier contents, which are as durable as before.
            if op.command == Command::Deallocate {
                continue;
            }
            block.since = since;
            if !is_certain {
                continue;
            }
            block.older.append(&mut std::mem::replace(&mut block.now, [op.content].into()));
            if op.is_durable {
                block.older.clear();
            }
        }
    }

    fn flushed(&mut self, op: &Flying) -> Result<(), String> {
        if op.power_cuts != self.power_cuts {
            // The flush may have completed before the power failure, so it may succeed.
            self.owes_failure = false;
            return Ok(());
        }
        if self.owes_failure {
            return Err("a flush succeeded although writes before it may be lost".to_owned());
        }
        for block in self.blocks.iter_mut().filter(|block| block.since <= op.acknowledged) {
            block.older.clear();
        }
        Ok(())
    }

    /// Whether an operation is a flush that may fail because a power cut lost data.
    pub(super) fn may_have_lost(&self, token: u64) -> bool {
        let is_flush = |op: &Flying| op.command == Command::Flush;
        self.power_cuts > 0 && self.flying.get(&token).is_some_and(is_flush)
    }

    fn check(&mut self, op: &Flying, data: &[u8]) -> Result<(), String> {
        if data.len() as u64 != op.blocks * BLOCK_BYTES as u64 {
            return Err(format!("a read of {} blocks gave {} bytes", op.blocks, data.len()));
        }
        let pieces = data.chunks(BLOCK_BYTES).zip(&op.possible);
        let mut wrong = Vec::new();
        for ((lba, block), (piece, possible)) in self.range(op.lba, op.blocks).zip(pieces) {
            let found = content_of(piece, lba);
            if !found.is_some_and(|found| possible.contains(&found) || block.now.contains(&found)) {
                wrong.push(format!(
                    "block {lba} holds {found:?} where one of {possible:?} was written"
                ));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

/// The contents of a block after the write with this number. For number 0, the contents are zeroes.
///
/// Fills pairs of words instead of single bytes, because simulations run without optimization.
pub(super) fn bytes_of(content: u64, lba: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    if content != 0 {
        let head = content.to_le_bytes();
        for (word, pair) in block.chunks_exact_mut(16).enumerate() {
            let tail = content.rotate_left(32) ^ lba << 8 ^ word as u64;
            pair[..8].copy_from_slice(&head);
            pair[8..].copy_from_slice(&tail.to_le_bytes());
        }
    }
    block
}

/// The number of the write with these contents; `None` if the contents are mixed.
fn content_of(bytes: &[u8], lba: u64) -> Option<u64> {
    let content = u64::from_le_bytes(bytes[..8].try_into().expect("a block"));
    (bytes_of(content, lba) == bytes).then_some(content)
}
