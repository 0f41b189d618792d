//! Threads that continuously write to a block device, and verify its contents.
//!
//! Each block contains the number of a write. Once a write is acknowledged, its data are the
//! block's content. The device acknowledges a direct write at once, and a buffered one with the
//! next `fsync`. A failed write may or may not have been executed. A later read decides this: if
//! the read does not show the write, the device must never execute the write.

use crate::support::until;
use farblock_random::Random;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 48;
/// The maximum number of buffered writes between two calls of `fsync`.
const BATCH: u64 = 6;

/// A buffer that is aligned for direct I/O.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// The state that the writers share with the thread that injects faults.
#[derive(Default)]
pub(super) struct Scene {
    /// The path of the device, and the number of times that it was created.
    pub(super) device: Mutex<Option<(u64, String)>>,
    /// Set while the device is being removed, when errors are expected.
    pub(super) may_fail: AtomicBool,
    pub(super) over: AtomicBool,
    pub(super) writes: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Set when a writer has found an error.
    pub(super) wrong: AtomicBool,
    /// The number of writers that have closed a removed device.
    pub(super) idle: AtomicU64,
}

/// The possible contents of one block.
#[derive(Clone, Default)]
struct Known {
    acknowledged: u64,
    /// Later writes that were not acknowledged, and may be executed.
    maybe: Vec<u64>,
}

struct Writer {
    scene: Arc<Scene>,
    number: u64,
    direct: bool,
    known: Vec<Known>,
    /// The number of the next write.
    next: u64,
    random: Random,
    block: Box<Block>,
}

/// The final contents of a writer's blocks.
pub(super) struct Expected {
    number: u64,
    known: Vec<Known>,
}

impl Expected {
    /// Checks that the file behind the device has these contents.
    pub(super) fn check(&self, image: &File) {
        let mut block = Block([0; BLOCK]);
        for (index, known) in (0..).zip(&self.known) {
            let at = (self.number * BLOCKS + index) * BLOCK as u64;
            image.read_exact_at(&mut block.0, at).expect("the block is read");
            let found = content(&block, self.number, index);
            assert_eq!(found, Some(known.acknowledged), "block {index} of {}", self.number);
        }
    }
}

/// Records a panic of a writer.
struct Alarm(Arc<Scene>);

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.wrong.fetch_or(thread::panicking(), Ordering::SeqCst);
    }
}

fn fill(block: &mut Block, writer: u64, index: u64, write: u64) {
    for (word, bytes) in (0u64..).zip(block.0.chunks_exact_mut(8)) {
        let value = match word % 2 {
            0 => write,
            _ => write.rotate_left(32) ^ (writer << 48 | index << 32 | word),
        };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// Returns the number of the write that a block contains, or `None` if the block is torn.
fn content(block: &Block, writer: u64, index: u64) -> Option<u64> {
    if block.0.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let write =
        u64::from_le_bytes(block.0[..8].try_into().expect("the slice has the right length"));
    let mut whole = Block([0; BLOCK]);
    fill(&mut whole, writer, index, write);
    (whole.0 == block.0).then_some(write)
}

pub(super) fn start(scene: &Arc<Scene>, number: u64) -> JoinHandle<Expected> {
    let mut writer = Writer {
        scene: Arc::clone(scene),
        number,
        direct: number.is_multiple_of(2),
        known: vec![Known::default(); BLOCKS as usize],
        next: 1,
        random: Random::new(number),
        block: Box::new(Block([0; BLOCK])),
    };
    thread::spawn(move || {
        let _alarm = Alarm(Arc::clone(&writer.scene));
        let mut before = 0;
        while !writer.scene.over.load(Ordering::SeqCst) {
            let (generation, path) = writer.wait_for_device(before);
            let Some(path) = path else { break };
            before = generation;
            if let Err(error) = writer.use_device(&path) {
                let scene = &writer.scene;
                assert!(scene.may_fail.load(Ordering::SeqCst), "writer {number}: {error}");
                scene.failed.fetch_add(1, Ordering::SeqCst);
                scene.idle.fetch_add(1, Ordering::SeqCst);
            }
        }
        Expected { number, known: writer.known }
    })
}

impl Writer {
    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn wait_for_device(&self, before: u64) -> (u64, Option<String>) {
        let mut found = (0, None);
        until("a device exists", || {
            let device = self.scene.device.lock().expect("no holder panics").clone();
            if let Some((generation, path)) = device.filter(|(it, _)| *it > before) {
                found = (generation, Some(path));
            }
            found.1.is_some() || self.scene.over.load(Ordering::SeqCst)
        });
        found
    }

    /// Writes and verifies until the device is removed or the test ends.
    fn use_device(&mut self, path: &str) -> io::Result<()> {
        let flags = if self.direct { rustix::fs::OFlags::DIRECT.bits() } else { 0 };
        let mut options = File::options();
        let file = options.read(true).write(true).custom_flags(flags.cast_signed()).open(path)?;
        (0..BLOCKS).try_for_each(|index| self.settle(&file, index))?;
        while !self.scene.over.load(Ordering::SeqCst) {
            let batch = if self.direct { 1 } else { 1 + self.below(BATCH) };
            for _ in 0..batch {
                let index = self.below(BLOCKS);
                self.write(&file, index)?;
            }
            if !self.direct || self.below(8) == 0 {
                self.sync(&file)?;
            }
            let index = self.below(BLOCKS);
            self.look(&file, index)?;
        }
        self.sync(&file)
    }

    fn offset(&self, index: u64) -> u64 {
        (self.number * BLOCKS + index) * BLOCK as u64
    }

    fn read(&mut self, file: &File, index: u64) -> io::Result<u64> {
        let at = self.offset(index);
        file.read_exact_at(&mut self.block.0, at)?;
        self.scene.reads.fetch_add(1, Ordering::Relaxed);
        let found = content(&self.block, self.number, index);
        Ok(found.unwrap_or_else(|| panic!("block {index} of {} is torn", self.number)))
    }

    /// Reads a block after a failed write, to decide whether the write was executed.
    fn settle(&mut self, file: &File, index: u64) -> io::Result<()> {
        let found = self.read(file, index)?;
        let known = &mut self.known[index as usize];
        assert!(
            found == known.acknowledged || known.maybe.contains(&found),
            "block {index} of {} holds {found}, not {} or one of {:?}",
            self.number,
            known.acknowledged,
            known.maybe
        );
        *known = Known { acknowledged: found, maybe: Vec::new() };
        Ok(())
    }

    fn look(&mut self, file: &File, index: u64) -> io::Result<()> {
        let found = self.read(file, index)?;
        let known = &self.known[index as usize];
        let latest = known.maybe.last().copied().unwrap_or(known.acknowledged);
        assert_eq!(found, latest, "block {index} of writer {}", self.number);
        Ok(())
    }

    fn write(&mut self, file: &File, index: u64) -> io::Result<()> {
        let write = self.next;
        self.next += 1;
        fill(&mut self.block, self.number, index, write);
        let known = &mut self.known[index as usize];
        known.maybe.push(write);
        let at = (self.number * BLOCKS + index) * BLOCK as u64;
        file.write_all_at(&self.block.0, at)?;
        if self.direct {
            *known = Known { acknowledged: write, maybe: Vec::new() };
        }
        self.scene.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_all()?;
        for known in &mut self.known {
            known.acknowledged = known.maybe.pop().unwrap_or(known.acknowledged);
            known.maybe.clear();
        }
        self.scene.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
