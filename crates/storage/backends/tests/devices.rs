//! Block devices: loop devices made for the purpose, which takes root.

#![cfg(target_os = "linux")]

mod support;

use std::sync::{Arc, Mutex};

use farblock_backends::file::{FileDisk, FileOptions};
use farblock_block::Namespace;
use farblock_block::conformance::{self, MIN_BYTES, Suite};
use farblock_reactor::EngineKind;
use support::{Dir, Loop, Mount, may_use_root, on_both_engines, run};

/// Devices of the checks that are done with: one at a time, so that there are never many.
type Last = Mutex<Option<Loop>>;

fn fresh(dir: &Dir, last: &Last, sector: u32, options: &FileOptions) -> FileDisk {
    let mut last = last.lock().unwrap();
    *last = None;
    let device = Loop::new(dir, MIN_BYTES, sector);
    let disk = FileDisk::open(&device.path, options).unwrap();
    *last = Some(device);
    disk
}

on_both_engines! {
    sectors_of_512_bytes(engine) {
        if !may_use_root() {
            return;
        }
        let (dir, last) = (Dir::new(), Last::default());
        let make = |block_size| {
            let disk = fresh(&dir, &last, 512, &FileOptions::new(block_size));
            assert!(disk.is_direct(), "{}", disk.describe());
            assert!(disk.describe().starts_with("block device /dev/loop"));
            Arc::new(disk) as Arc<_>
        };
        conformance::run(&make, engine);
    }

    sectors_of_4096_bytes(engine) {
        if !may_use_root() {
            return;
        }
        let (dir, last) = (Dir::new(), Last::default());
        let make = |block_size| {
            let disk = fresh(&dir, &last, 4096, &FileOptions::new(block_size));
            assert_eq!(disk.is_direct(), block_size == 4096, "{}", disk.describe());
            if block_size == 512 {
                assert!(disk.describe().contains("direct I/O needs blocks of 4096 bytes"));
            }
            Arc::new(disk) as Arc<_>
        };
        Suite::new(engine).block_sizes(&[512, 4096]).run(&make);
    }
}

#[test]
fn a_mounted_device_is_refused() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let device = Loop::new(&dir, 16 << 20, 512);
    run("mkfs.ext4", &["-q", device.name()]);
    let mount = Mount::device(&dir, &device);
    let error = FileDisk::open(&device.path, &FileOptions::new(512)).err().unwrap().to_string();
    assert!(error.contains("in use by the system: unmount it"), "{error}");
    FileDisk::open(&device.path, &FileOptions::new(512).read_only()).unwrap();
    drop(mount);
}

#[test]
fn a_device_is_locked() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let device = Loop::new(&dir, 16 << 20, 512);
    let disk = FileDisk::open(&device.path, &FileOptions::new(512)).unwrap();
    assert_eq!(disk.geometry().capacity_bytes(), 16 << 20);
    let again = FileDisk::open(&device.path, &FileOptions::new(512).read_only());
    assert!(again.err().unwrap().to_string().contains("stop its writer"));
}
