//! Tests of block devices. The tests need root, because they create loop devices.

#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use farblock_backends::file::{FileDisk, FileOptions};
use farblock_block::blocking::Blocking;
use farblock_block::conformance::{self, MIN_BYTES, Suite};
use farblock_block::{BlockError, Change, Namespace};
use farblock_reactor::EngineKind;
use support::{Dir, Loop, Mount, may_use_root, on_both_engines, run};

/// The device of the last finished check. The tests keep only one device, to limit the number of
/// loop devices.
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
    a_device_with_512_byte_sectors_conforms(engine) {
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

    a_device_with_4096_byte_sectors_conforms(engine) {
        if !may_use_root() {
            return;
        }
        let (dir, last) = (Dir::new(), Last::default());
        let make = |block_size| {
            let disk = fresh(&dir, &last, 4096, &FileOptions::new(block_size));
            assert_eq!(disk.is_direct(), block_size == 4096, "{}", disk.describe());
            if block_size == 512 {
                assert!(disk.describe().contains("direct I/O on this disk needs blocks of 4096 \
                    bytes"));
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
    let read_only = || FileDisk::open(&device.path, &FileOptions::new(512).read_only());
    let refused = read_only().err().expect("the mounted device was opened").to_string();
    let at = mount.path("").display().to_string();
    assert!(refused.contains(at.trim_end_matches('/')), "{refused}");
    assert!(refused.contains("which may write to it"), "{refused}");
    run("mount", &["-o", "remount,ro", at.trim_end_matches('/')]);
    read_only().expect("two readers may share a device");
    drop(mount);
}

/// The test creates a second device node for one device. The kernel locks each node separately.
#[test]
fn a_device_with_a_writer_on_another_node_is_not_shared_read_only() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let device = Loop::new(&dir, 16 << 20, 512);
    let other = dir.path("other-node");
    let minor = device.name().trim_start_matches("/dev/loop").to_owned();
    run("mknod", &[other.to_str().unwrap(), "b", "7", &minor]);
    let options = FileOptions::new(512);
    let shared = FileDisk::open(&device.path, &options).unwrap();
    let refused = FileDisk::open(&other, &options.read_only()).err().expect("the file was opened");
    assert!(refused.to_string().contains("which may write to it"), "{refused}");
    drop(shared);
    FileDisk::open(&other, &options.read_only()).unwrap();
}

#[test]
fn an_open_device_is_locked() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let device = Loop::new(&dir, 16 << 20, 512);
    let disk = FileDisk::open(&device.path, &FileOptions::new(512)).unwrap();
    assert_eq!(disk.geometry().capacity_bytes(), 16 << 20);
    let again = FileDisk::open(&device.path, &FileOptions::new(512).read_only());
    assert!(again.err().unwrap().to_string().contains("which may write to it"));
}

/// Two targets must not share a loop device and its file.
#[test]
fn a_loop_device_and_its_file_exclude_each_other() {
    if !may_use_root() {
        return;
    }
    let (dir, options) = (Dir::new(), FileOptions::new(512));
    let device = Loop::new(&dir, MIN_BYTES, 512);
    let file = device.file.clone();
    let refused = |path: &std::path::Path, options: &FileOptions| {
        FileDisk::open(path, options).err().expect("the file was opened").to_string()
    };
    let of_file = refused(&file, &options);
    assert!(of_file.contains(device.path.to_str().unwrap()), "{of_file}");
    assert!(refused(&file, &options.read_only()).contains("which may write to it"));
    // The opposite order: create a loop device over a file that a target already shares.
    drop(device);
    let shared = FileDisk::open(&file, &options).unwrap();
    let device = Loop::over(&file, 512);
    let of_device = refused(&device.path, &options);
    assert!(of_device.contains("this target, as another disk"), "{of_device}");
    drop(shared);
    FileDisk::open(&device.path, &options).unwrap();
}

fn refusal(path: &Path) -> String {
    FileDisk::open(path, &FileOptions::new(512)).err().expect("the file was opened").to_string()
}

#[test]
fn stacked_loop_devices_exclude_each_other() {
    if !may_use_root() {
        return;
    }
    let (dir, options) = (Dir::new(), FileOptions::new(512));
    let lower = Loop::new(&dir, 16 << 20, 512);
    run("mkfs.ext4", &["-q", lower.name()]);
    let upper = Loop::over(&lower.path, 512);
    assert!(refusal(&lower.path).contains(upper.name()));
    assert!(refusal(&lower.file).contains(lower.name()));
    let mount = Mount::device(&dir, &lower);
    let of_mounted = refusal(&upper.path);
    let place = format!("the file system on {} at {}", lower.name(), mount.path("").display());
    assert!(of_mounted.contains(place.trim_end_matches('/')), "{of_mounted}");
    drop(mount);
    // A target may open the lower device before the upper device exists.
    drop(upper);
    let shared = FileDisk::open(&lower.path, &options).unwrap();
    let upper = Loop::over(&lower.path, 512);
    let of_shared = refusal(&upper.path);
    assert!(of_shared.contains(lower.name()), "{of_shared}");
    drop(shared);
    FileDisk::open(&upper.path, &options).unwrap();
}

#[test]
fn overlapping_loop_devices_on_one_file_exclude_each_other() {
    if !may_use_root() {
        return;
    }
    let (dir, options) = (Dir::new(), FileOptions::new(512));
    let device = Loop::new(&dir, 2 * MIN_BYTES, 512);
    let other = Loop::over(&device.file, 512);
    assert!(refusal(&device.path).contains(other.name()));
    assert!(refusal(&other.path).contains(device.name()));
    drop((device, other));
    let file = dir.file(2 * MIN_BYTES);
    let part = |offset| Loop::part(&file, offset, MIN_BYTES);
    let (device, other) = (part(0), part(MIN_BYTES));
    FileDisk::open(&device.path, &options).unwrap();
    FileDisk::open(&other.path, &options).unwrap();
}

/// The path that sysfs shows for a loop device's file may lead to no file or to another file.
#[test]
fn the_file_of_a_loop_device_is_found_without_its_path() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let device = Loop::new(&dir, MIN_BYTES, 512);
    let moved = device.file.with_extension("moved");
    std::fs::rename(&device.file, &moved).unwrap();
    assert!(refusal(&moved).contains(device.name()));
    std::fs::write(&device.file, vec![0; MIN_BYTES as usize]).unwrap();
    FileDisk::open(&device.file, &FileOptions::new(512)).expect("the path leads to a free file");
    let linked = moved.with_extension("linked");
    std::fs::hard_link(&moved, &linked).unwrap();
    std::fs::remove_file(&moved).unwrap();
    assert!(refusal(&linked).contains(device.name()));
    // Now let a program lock the file below the device instead.
    drop(device);
    let device = Loop::over(&linked, 512);
    let (below, moved) = (std::fs::File::open(&linked).unwrap(), linked.with_extension("again"));
    below.lock().unwrap();
    std::fs::rename(&linked, &moved).unwrap();
    let of_device = refusal(&device.path);
    assert!(of_device.contains("this target, as another disk"), "{of_device}");
}

#[test]
fn a_loop_device_in_another_mount_namespace_is_found() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let (file, shown) = (dir.file(MIN_BYTES), dir.file(0));
    // The file has this path only in the other mount namespace. Here the path leads to an empty
    // file.
    let script = "mount --bind \"$1\" \"$2\" && losetup --show --find \"$2\"";
    let paths = [file.to_str().unwrap(), shown.to_str().unwrap()];
    let made = run("unshare", &["--mount", "sh", "-c", script, "sh", paths[0], paths[1]]);
    let device = Loop { path: made.into(), file: file.clone() };
    assert!(refusal(&file).contains(device.name()));
}

#[test]
fn a_write_protected_device_is_not_shared_as_writable() {
    if !may_use_root() {
        return;
    }
    let (dir, options) = (Dir::new(), FileOptions::new(512));
    let device = Loop::new(&dir, MIN_BYTES, 512);
    run("blockdev", &["--setro", device.path.to_str().unwrap()]);
    let refused =
        FileDisk::open(&device.path, &options).err().expect("the device was opened").to_string();
    assert!(refused.contains("write-protected"), "{refused}");
    FileDisk::open(&device.path, &options.read_only()).unwrap();
    // The flag remains after the file is detached from the device, and a later loop device may get
    // the same number.
    run("blockdev", &["--setrw", device.path.to_str().unwrap()]);
}

/// Waits until the disk is read-only (or writable) and its watchers have been notified.
fn wait_for(disk: &FileDisk, told: &Receiver<Change>, read_only: bool) {
    while disk.geometry().read_only != read_only {
        assert_eq!(told.recv(), Ok(Change::Geometry));
    }
    assert_eq!(disk.trouble().is_some(), read_only);
}

/// Checks that an open disk becomes read-only when it is write-protected, and writable when the
/// protection is removed.
fn becomes_read_only_and_writable(path: &Path, advice: &str, set: &dyn Fn(bool)) {
    let disk = FileDisk::open(path, &FileOptions::new(4096)).unwrap();
    let (tell, told) = channel();
    let _watch = disk.changes().unwrap().watch(move |change| tell.send(change).unwrap());
    let mut blocks = Blocking::new(&disk).unwrap();
    blocks.write(0, &[1; 4096]).unwrap();
    set(true);
    let refused = blocks.write(0, &[2; 4096]);
    assert!(matches!(refused, Err(BlockError::ReadOnly) | Ok(())), "{refused:?}");
    wait_for(&disk, &told, true);
    assert!(disk.trouble().unwrap().contains(advice), "{:?}", disk.trouble());
    assert_eq!(blocks.write(0, &[3; 4096]), Err(BlockError::ReadOnly));
    blocks.flush().expect("a flush works while the disk is read-only");
    blocks.read(0, &mut [0; 4096]).unwrap();
    assert!(!disk.is_opened_to_read());
    set(false);
    wait_for(&disk, &told, false);
    blocks.write(0, &[4; 4096]).unwrap();
}

#[test]
fn an_open_device_reports_write_protection() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let device = Loop::new(&dir, MIN_BYTES, 512);
    let path = device.path.to_str().unwrap();
    becomes_read_only_and_writable(&device.path, "blockdev --setrw", &|protect| {
        run("blockdev", &[if protect { "--setro" } else { "--setrw" }, path]);
    });
}

#[test]
fn an_open_file_reports_that_it_became_immutable() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let device = Loop::new(&dir, 16 << 20, 512);
    run("mkfs.ext4", &["-q", device.name()]);
    let mount = Mount::device(&dir, &device);
    let file = mount.path("disk.img");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    becomes_read_only_and_writable(&file, "chattr -i -a", &|protect| {
        run("chattr", &[if protect { "+i" } else { "-i" }, file.to_str().unwrap()]);
    });
}

/// The file system becomes read-only after an error. `statfs` of Linux 6.12 and later does not
/// report this.
#[test]
fn an_open_file_reports_that_its_file_system_became_read_only() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let device = Loop::new(&dir, 16 << 20, 512);
    run("mkfs.ext4", &["-q", "-e", "remount-ro", device.name()]);
    let mount = Mount::device(&dir, &device);
    let file = mount.path("disk.img");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    let disk = FileDisk::open(&file, &FileOptions::new(4096)).unwrap();
    let (tell, told) = channel();
    let _watch = disk.changes().unwrap().watch(move |change| tell.send(change).unwrap());
    let mut blocks = Blocking::new(&disk).unwrap();
    blocks.write(0, &[1; 4096]).unwrap();
    let number = device.path.file_name().unwrap().to_str().unwrap();
    std::fs::write(format!("/sys/fs/ext4/{number}/trigger_fs_error"), "a test").unwrap();
    assert_eq!(blocks.write(0, &[2; 4096]), Err(BlockError::ReadOnly));
    wait_for(&disk, &told, true);
    assert!(disk.trouble().unwrap().contains("its file system became read-only"));
    assert_eq!(blocks.flush(), Err(BlockError::WriteFailed), "the flush ignores lost writes");
}

#[test]
fn an_immutable_file_is_refused_as_writable() {
    if !may_use_root() {
        return;
    }
    let dir = Dir::new();
    let file = dir.file(4096);
    if !std::process::Command::new("chattr").arg("+i").arg(&file).status().unwrap().success() {
        return; // the file system does not support these attributes
    }
    let refused = FileDisk::open(&file, &FileOptions::new(512)).err().map(|it| it.to_string());
    let read_only = FileDisk::open(&file, &FileOptions::new(512).read_only()).is_ok();
    run("chattr", &["-i", file.to_str().unwrap()]);
    assert!(refused.expect("the file was opened").contains("chattr -i -a") && read_only);
}
