//! Tests that reads and writes of a block are atomic, as AWUN promises, even through the page
//! cache.

mod support;

use std::sync::Arc;

use farblock_backends::file::{FileDisk, FileOptions};
use farblock_block::Namespace;
use farblock_block::blocking::Blocking;
use farblock_reactor::EngineKind;
use support::on_both_engines;

/// The largest block size. Its blocks are the most likely to be torn.
const BLOCK_BYTES: u32 = 64 << 10;
const ROUNDS: u32 = 500;

/// A file to use through the page cache. It is on tmpfs if this machine has one.
fn disk() -> (tempfile::TempDir, Arc<FileDisk>) {
    let memory = std::path::Path::new("/dev/shm");
    let dir = match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let path = dir.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(4 * u64::from(BLOCK_BYTES)).unwrap();
    let disk = FileDisk::open(path, &FileOptions::new(BLOCK_BYTES).buffered()).unwrap();
    (dir, Arc::new(disk))
}

fn write(disk: &dyn Namespace, engine: EngineKind, with: u8) {
    let mut disk = Blocking::with_engine(disk, engine).unwrap();
    let data = vec![with; 2 * BLOCK_BYTES as usize];
    for round in 0..ROUNDS {
        // Write zeroes, and operations that overlap only partly, must also be atomic.
        let (lba, blocks) = (u64::from(round % 2), 1 + round as usize % 2);
        match round % 5 {
            0 => disk.write_zeroes(lba, blocks as u32, round % 10 == 0).unwrap(),
            _ => disk.write(lba, &data[..blocks * BLOCK_BYTES as usize]).unwrap(),
        }
    }
}

fn read(disk: &dyn Namespace, engine: EngineKind) {
    let mut disk = Blocking::with_engine(disk, engine).unwrap();
    let mut data = vec![0; 3 * BLOCK_BYTES as usize];
    for _ in 0..ROUNDS {
        disk.read(0, &mut data).unwrap();
        for block in data.chunks(BLOCK_BYTES as usize) {
            assert!(block.iter().all(|&byte| byte == block[0]), "a block is torn");
        }
    }
}

on_both_engines! {
    concurrent_reads_and_writes_do_not_tear_blocks(engine) {
        let (_dir, disk) = disk();
        assert!(!disk.is_direct());
        std::thread::scope(|scope| {
            for with in [1, 2] {
                let disk = &disk;
                scope.spawn(move || write(&**disk, engine, with));
                scope.spawn(move || read(&**disk, engine));
            }
        });
    }
}
