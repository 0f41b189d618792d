//! Blocks with known content. Each block contains its address and a version, so that a read detects
//! an old, lost or misplaced block.

use farblock_block::Namespace;
use farblock_block::blocking::Blocking;
use farblock_host::Disk;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The size of a block, in bytes.
const BLOCK: usize = 4096;
/// The number of blocks in each read of [`Versioned::sweep`].
const SWEEP_BLOCKS: usize = 16;

/// One writer, with its own part of a disk and one operation at a time.
pub struct Versioned {
    blocks: Blocking,
    /// The first block of the writer.
    first: u64,
    /// The number of logical blocks of the disk in each [`BLOCK`] bytes.
    per_block: u64,
    /// The acknowledged version of each block; `None` if it is unknown, for example after a failed
    /// write.
    versions: Vec<Option<u64>>,
    data: Vec<u8>,
}

/// The result of reading blocks and comparing them with the acknowledged writes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Compared {
    /// The number of compared blocks: all blocks in the range whose content is known.
    pub known: u64,
    /// The number of blocks with wrong content.
    pub lost: u64,
    /// The first block with wrong content.
    pub first_lost: Option<u64>,
}

impl Versioned {
    /// Creates the writer for part `part` of `of` equal parts of a disk. It uses at most `most`
    /// blocks. With `is_new`, all blocks must read as zeroes before they are written.
    pub fn new(
        disk: &Disk,
        (part, of): (usize, usize),
        most: u64,
        is_new: bool,
    ) -> Result<Versioned, String> {
        let blocks =
            Blocking::new(disk).map_err(|error| format!("cannot open a queue: {error}"))?;
        let per_block = (BLOCK as u64 / u64::from(blocks.geometry().block_size)).max(1);
        let count = (disk.geometry().blocks / per_block / of as u64).min(most);
        if count == 0 {
            return Err("the disk is too small for a verification".to_owned());
        }
        let versions = vec![is_new.then_some(0); count as usize];
        let first = part as u64 * count;
        Ok(Versioned { blocks, first, per_block, versions, data: vec![0; BLOCK] })
    }

    /// The pseudorandom index of the block that operation number `turn` uses.
    pub fn scattered(&self, turn: u64) -> usize {
        let scattered = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        (scattered % self.versions.len() as u64) as usize
    }

    /// Returns the ranges to read so that every block is compared.
    pub fn sweep(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let count = self.versions.len();
        (0..count).step_by(SWEEP_BLOCKS).map(move |at| at..(at + SWEEP_BLOCKS).min(count))
    }

    /// Writes this version to a block. The first version is 1.
    pub fn write(&mut self, at: usize, version: u64) -> Result<(), String> {
        let block = self.first + at as u64;
        fill(&mut self.data, block, version);
        let done = self.blocks.write(block * self.per_block, &self.data);
        self.versions[at] = done.is_ok().then_some(version);
        done.map_err(|error| format!("a write failed: {error}"))
    }

    /// Reads blocks, and compares them with the acknowledged versions.
    pub fn compare(&mut self, range: Range<usize>) -> Result<Compared, String> {
        let mut read = vec![0; range.len() * BLOCK];
        let lba = (self.first + range.start as u64) * self.per_block;
        self.blocks.read(lba, &mut read).map_err(|error| format!("a read failed: {error}"))?;
        let mut compared = Compared::default();
        for (at, read) in range.zip(read.chunks_exact(BLOCK)) {
            let Some(version) = self.versions[at] else { continue };
            let block = self.first + at as u64;
            fill(&mut self.data, block, version);
            compared.known += 1;
            if read != self.data {
                compared.lost += 1;
                compared.first_lost.get_or_insert(block);
            }
        }
        Ok(compared)
    }
}

/// The results of several writers.
#[derive(Default)]
pub struct Tally {
    /// The number of acknowledged writes.
    pub writes: AtomicU64,
    /// The number of failed operations.
    pub failed: AtomicU64,
    /// The number of blocks whose content differed from the acknowledged content.
    pub lost: AtomicU64,
    wrong: Mutex<Option<String>>,
}

impl Tally {
    /// Counts an acknowledged or failed write.
    pub fn wrote(&self, done: Result<(), String>) {
        match done {
            Ok(()) => _ = self.writes.fetch_add(1, Relaxed),
            Err(why) => self.fail(why),
        }
    }

    /// Counts the lost blocks or the failure of a read, and adds its compared blocks to `blocks`.
    pub fn compared(&self, done: Result<Compared, String>, blocks: &AtomicU64) {
        match done {
            Ok(compared) => {
                blocks.fetch_add(compared.known, Relaxed);
                self.lost.fetch_add(compared.lost, Relaxed);
                if let Some(block) = compared.first_lost {
                    self.complain(format!("block {block} differs from the acknowledged data"));
                }
            }
            Err(why) => self.fail(why),
        }
    }

    /// Counts a failed operation, and keeps its reason if it is the first.
    pub fn fail(&self, why: String) {
        self.failed.fetch_add(1, Relaxed);
        self.complain(why);
    }

    /// The first failure or lost block, as a sentence.
    pub fn wrong(&self) -> Option<String> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn complain(&self, what: String) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
    }
}

/// Fills a block with its address and version, or with zeroes for version 0 (never written).
fn fill(data: &mut [u8], block: u64, version: u64) {
    let block = if version == 0 { 0 } else { block };
    for chunk in data.chunks_exact_mut(16) {
        chunk[..8].copy_from_slice(&version.to_le_bytes());
        chunk[8..].copy_from_slice(&block.to_le_bytes());
    }
}
