//! Tests of sparse files: deallocated space, and a full file system.

#![cfg(target_os = "linux")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use farblock_backends::file::{FileDisk, FileOptions};
use farblock_block::blocking::Blocking;
use farblock_block::conformance::{self, Driver, MIN_BYTES};
use farblock_block::{BlockError, Namespace, Op};
use farblock_reactor::{Buffer, EngineKind};
use support::{Dir, Loop, Mount, may_use_root, on_both_engines, run};

/// The size of a file, which is larger than the file systems of these tests.
const FILE_BYTES: u64 = 64 << 20;
const PIECE: u32 = 256;

/// Fills the file system through the file, and checks which operations fail.
fn fill(path: &Path, engine: EngineKind) {
    File::create(path).and_then(|file| file.set_len(FILE_BYTES)).unwrap();
    let disk: Arc<dyn Namespace> = Arc::new(FileDisk::open(path, &FileOptions::new(4096)).unwrap());
    let geometry = disk.geometry();
    let mut driver = Driver::with(&disk, engine);
    driver.write(0, geometry, 0, &[1; 8192]);
    let mut outcomes = [0, 0];
    for at in 1..geometry.blocks / u64::from(PIECE) {
        let mut buffer = Buffer::new(geometry.bytes(PIECE));
        buffer.fill(2);
        driver.submit(0, Op::write(at * u64::from(PIECE), PIECE, buffer, 1));
        // Operations that need no new space succeed.
        driver.submit(0, Op::read(0, 2, Buffer::new(8192), 2));
        let mut buffer = Buffer::new(8192);
        buffer.fill(1);
        driver.submit(0, Op::write(0, 2, buffer, 3));
        for done in driver.wait(0, 3) {
            match (done.token, done.result) {
                (1, Ok(())) => outcomes[0] += 1,
                (1, Err(BlockError::NoSpace)) => outcomes[1] += 1,
                (_, Ok(())) => {}
                (token, result) => panic!("token {token}: {result:?}"),
            }
        }
    }
    assert!(outcomes[0] > 0, "no write fit");
    assert!(outcomes[1] > 0, "every write fit");
    assert_eq!(driver.read(0, geometry, 0, 2), [1; 8192]);
    driver.must(0, Op::flush(1));
    // Deallocating frees space again.
    driver.must(0, Op::deallocate(u64::from(PIECE), 4 * PIECE, 1));
    driver.write(0, geometry, u64::from(PIECE), &[3; 65536]);
    driver.must(0, Op::flush(1));
    assert_eq!(driver.read(0, geometry, u64::from(PIECE), 16), [3; 65536]);
}

on_both_engines! {
    a_full_tmpfs_is_reported(engine) {
        if may_use_root() {
            let dir = Dir::new();
            let mount = Mount::tmpfs(&dir, 8 << 20);
            fill(&mount.path("disk.img"), engine);
        }
    }

    a_full_ext4_is_reported(engine) {
        if may_use_root() {
            let dir = Dir::new();
            let device = Loop::new(&dir, 24 << 20, 512);
            run("mkfs.ext4", &["-q", device.name()]);
            let mount = Mount::device(&dir, &device);
            fill(&mount.path("disk.img"), engine);
        }
    }

    deallocation_frees_space_of_the_file(engine) {
        let dir = Dir::new();
        let path = dir.noise(4 << 20);
        let disk: Arc<dyn Namespace> =
            Arc::new(FileDisk::open(&path, &FileOptions::new(512)).unwrap());
        if !disk.geometry().deallocate {
            return; // the file system does not support holes
        }
        let allocated = || fs::metadata(&path).unwrap().blocks() * 512;
        let mut blocking = Blocking::with_engine(&*disk, engine).unwrap();
        let before = allocated();
        blocking.deallocate(0, 2048).unwrap();
        assert!(allocated() <= before - (1 << 20), "{} of {before} bytes left", allocated());
        blocking.write_zeroes(2048, 2048, true).unwrap();
        assert!(allocated() <= before - (2 << 20), "{} of {before} bytes left", allocated());
        blocking.write_zeroes(0, 2048, false).unwrap();
        assert!(allocated() >= before - (1 << 20), "write zeroes freed space that it must keep");
        assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
    }

    // This file system cannot mark ranges as zero, so the backend writes zeroes.
    a_file_on_tmpfs_conforms(engine) {
        if !may_use_root() {
            return;
        }
        let dir = Dir::new();
        let mount = Mount::tmpfs(&dir, 2 * MIN_BYTES);
        let make = |block_size| {
            let path = mount.path("disk.img");
            File::create(&path).and_then(|file| file.set_len(MIN_BYTES)).unwrap();
            let disk = FileDisk::open(&path, &FileOptions::new(block_size)).unwrap();
            fs::remove_file(&path).unwrap();
            Arc::new(disk) as Arc<_>
        };
        conformance::run(&make, engine);
    }
}
