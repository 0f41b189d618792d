//! Tests loop devices on the file that a FUSE mount serves: file systems on them, their properties,
//! and their size. The tests need root.
#![cfg(target_os = "linux")]

mod fuse_support;

use farblock_attach::fuse::{StopError, loop_device};
use farblock_block::Command;
use farblock_random::Random;
use fuse_support::{ENGINES, Loop, MountedFs, Served, Spy, disk, fio_verify, output, run};
use std::fs;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A lock on the choice of a free loop device. One test changes the settings of a free device, and
/// must run alone, because another test could take that device.
static DEVICES: RwLock<()> = RwLock::new(());

/// A shared lock for tests that only use loop devices.
fn users() -> RwLockReadGuard<'static, ()> {
    DEVICES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an image file, whose data outlives a server. Returns the specification of a disk on it.
fn image(folder: &Path, bytes: u64) -> String {
    let path = folder.join("image");
    fs::File::create(&path).expect("a file").set_len(bytes).expect("a size");
    path.to_str().expect("UTF-8").into()
}

/// Creates a file system on a disk, writes to it, and attaches the disk again. The disk must still
/// have all data.
#[test]
fn a_file_system_survives_detach_and_attach() {
    let _users = users();
    for (engine, block_size) in [(ENGINES[0], 512), (ENGINES[1], 4096)] {
        let folder = tempfile::tempdir().expect("a folder");
        let image = image(folder.path(), 128 << 20);
        let data = Random::new(5).bytes(5 << 20);
        {
            let served = Served::new(engine, disk(&image, block_size));
            let device = Loop::new(served.path(), block_size, false);
            run("mkfs.ext4", &["-q", device.name()]);
            let mounted = MountedFs::new(device.name(), "discard");
            fs::write(mounted.file("kept"), &data).expect("the write succeeds");
            for arguments in [
                ["--ioengine=libaio", "--direct=1", "--iodepth=32", "--rw=randrw", "--bs=4k"],
                ["--ioengine=psync", "--direct=0", "--fsync=64", "--rw=randwrite", "--bs=8k"],
                ["--ioengine=libaio", "--direct=1", "--iodepth=4", "--rw=write", "--bs=1m"],
            ] {
                let mut all = arguments.to_vec();
                all.extend(["--size=24m", "--allow_file_create=1"]);
                fio_verify(&mounted.file("fio"), &all);
            }
            mounted.unmount();
            run("fsck.ext4", &["-fn", device.name()]);
            loop_device::detach(&device.0, false).expect("no process uses the device");
            served.stop();
        }
        let served = Served::new(engine, disk(&image, block_size));
        let device = Loop::new(served.path(), block_size, false);
        run("fsck.ext4", &["-fn", device.name()]);
        let mounted = MountedFs::new(device.name(), "ro");
        assert!(fs::read(mounted.file("kept")).expect("the file exists") == data, "wrong data");
        mounted.unmount();
        loop_device::detach(&device.0, false).expect("no process uses the device");
        served.stop();
        // The backend's image file contains the file system.
        run("fsck.ext4", &["-fn", &image]);
    }
}

#[test]
fn the_loop_device_has_the_properties_of_the_disk() {
    let _users = users();
    for block_size in [512, 4096] {
        let served = Served::new(ENGINES[0], disk("mem:64MiB", block_size));
        let device = Loop::new(served.path(), block_size, false);
        assert_eq!(device.says("queue/logical_block_size"), block_size.to_string());
        assert_eq!(device.says("queue/discard_granularity"), block_size.to_string());
        assert_eq!(device.says("size"), "131072");
        assert_eq!(device.says("ro"), "0");
        assert_eq!(device.says("loop/dio"), "1", "direct I/O is off");
        assert_eq!(device.says("queue/write_cache"), "write back");
        loop_device::detach(&device.0, false).expect("no process uses the device");
        served.stop();
    }
}

#[test]
fn a_reused_loop_device_has_default_settings() {
    let _alone = DEVICES.write().unwrap_or_else(PoisonError::into_inner);
    let stale = |device: &str| {
        run("blockdev", &["--setro", "--setra", "4242", device]);
    };
    let free = output("losetup", &["--find"]);
    let free = String::from_utf8_lossy(&free.stdout).trim().to_owned();
    // In the second round, this test holds the device open, so that the server makes a new device.
    for is_open in [false, true] {
        if !Path::new(&free).exists() {
            break;
        }
        stale(&free);
        // Stop if another process has taken the device.
        if Path::new(&free.replace("/dev", "/sys/block")).join("loop").exists() {
            break;
        }
        let opened = is_open.then(|| fs::File::open(&free).expect("root may open it"));
        let served = Served::new(ENGINES[0], disk("mem:16MiB", 512));
        let device = Loop::new(served.path(), 512, false);
        assert_eq!(device.says("ro"), "0", "{} kept the setting of {free}", device.name());
        let read_ahead = device.says("queue/read_ahead_kb");
        assert_ne!(read_ahead, "2121", "{} kept the setting of {free}", device.name());
        run("dd", &["if=/dev/zero", &format!("of={}", device.name()), "count=1", "oflag=direct"]);
        drop(opened);
        loop_device::detach(&device.0, false).expect("no process uses the device");
        served.stop();
    }
    // Reset these settings: the next user of the device may not be farblock, which resets them
    // itself.
    let _ = output("blockdev", &["--setrw", "--setra", "256", &free]);
}

/// The backend frees the space of a range that a file system trims.
#[test]
fn a_trim_deallocates_space() {
    let _users = users();
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path(), 128 << 20);
    let spy = Spy::new(disk(&image, 512), true);
    let served = Served::new(ENGINES[0], Arc::clone(&spy) as _);
    let device = Loop::new(served.path(), 512, false);
    run("mkfs.ext4", &["-q", device.name()]);
    let mounted = MountedFs::new(device.name(), "nodiscard");
    fs::write(mounted.file("large"), Random::new(1).bytes(40 << 20)).expect("the write succeeds");
    run("sync", &["-f", &mounted.file("large")]);
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&image).expect("a file"));
    let full = blocks();
    assert!(full * 512 > 40 << 20);
    fs::remove_file(mounted.file("large")).expect("the file is removed");
    run("sync", &["-f", &mounted.file("")]);
    spy.take();
    run("fstrim", &[&mounted.file("")]);
    let given: u64 = spy
        .take()
        .iter()
        .filter(|asked| asked.0 == Command::WriteZeroes { deallocate: true })
        .map(|asked| u64::from(asked.2) * 512)
        .sum();
    assert!(given > 40 << 20, "the trim deallocated only {given} bytes");
    assert!(
        blocks() * 512 < (full * 512) - (39 << 20),
        "the image had {full} blocks before the trim, and {} after it",
        blocks()
    );
    mounted.unmount();
    run("fsck.ext4", &["-fn", device.name()]);
    // Zeroing through the device really zeroes, with and without deallocation.
    run("blkdiscard", &["-z", "-o", "0", "-l", "1048576", device.name()]);
    run("cmp", &["-n", "1048576", "/dev/zero", device.name()]);
    loop_device::detach(&device.0, false).expect("no process uses the device");
    served.stop();
}

#[test]
fn a_loop_device_without_discard_support_stops_discards() {
    let _users = users();
    let spy = Spy::new(disk("mem:64MiB", 512), false);
    let served = Served::new(ENGINES[0], Arc::clone(&spy) as _);
    let device = Loop::new(served.path(), 512, false);
    // The device learns from the first discard that the disk supports none, and sends no more.
    output("blkdiscard", &[device.name()]);
    assert_eq!(device.says("queue/discard_max_bytes"), "0");
    assert!(spy.take().iter().all(|asked| !asked.0.writes()), "the discard wrote zeroes");
    // Zeroing still works, because the kernel writes zeroes.
    run("dd", &["if=/dev/urandom", &format!("of={}", device.name()), "bs=1M", "count=2"]);
    run("blkdiscard", &["-z", "-l", "1048576", device.name()]);
    run("cmp", &["-n", "1048576", "/dev/zero", device.name()]);
    loop_device::detach(&device.0, false).expect("no process uses the device");
    served.stop();
}

#[test]
fn a_read_only_disk_gives_a_read_only_device() {
    let _users = users();
    let served = Served::with(disk("mem:64MiB", 512), |config| config.read_only = true);
    let device = Loop::new(served.path(), 512, true);
    assert_eq!(device.says("ro"), "1");
    assert!(!output("dd", &["if=/dev/zero", &format!("of={}", device.name())]).status.success());
    run("dd", &[&format!("if={}", device.name()), "of=/dev/null", "bs=1M"]);
    loop_device::detach(&device.0, false).expect("no process uses the device");
    served.stop();
}

#[test]
fn a_file_system_can_grow_with_the_disk() {
    let _users = users();
    let spy = Spy::new(disk("mem:128MiB", 512), true);
    spy.disk.resize_silently(131_072);
    let served = Served::new(ENGINES[0], Arc::clone(&spy) as _);
    let device = Loop::new(served.path(), 512, false);
    run("mkfs.ext4", &["-q", device.name()]);
    let held = fs::File::open(&device.0).expect("the device opens");
    spy.disk.resize_silently(262_144);
    served.server.resized().expect("the kernel accepts the size");
    loop_device::resize(&device.0).expect("the kernel accepts the size");
    assert_eq!(device.says("size"), "262144", "the device did not grow in place");
    drop(held);
    run("fsck.ext4", &["-fp", device.name()]);
    run("resize2fs", &[device.name()]);
    let mounted = MountedFs::new(device.name(), "rw");
    fs::write(mounted.file("large"), Random::new(2).bytes(80 << 20)).expect("room for the file");
    mounted.unmount();
    run("fsck.ext4", &["-fn", device.name()]);
    loop_device::detach(&device.0, false).expect("no process uses the device");
    served.stop();
}

/// The server refuses to stop while the disk is mounted, used for swap, partitioned or open, and
/// the error names the user.
#[test]
fn a_device_in_use_is_not_detached_and_its_user_is_named() {
    let _users = users();
    let mut served = Served::new(ENGINES[0], disk("mem:64MiB", 512));
    let device = Loop::new(served.path(), 512, false);
    let refused = |words: &[&str]| {
        let error =
            loop_device::detach(&device.0, false).expect_err("the device is in use").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    let open = fs::File::open(&device.0).expect("the device opens");
    refused(&[&format!("(process {}) has {} open", std::process::id(), device.name())]);
    drop(open);
    run("mkfs.ext4", &["-q", device.name()]);
    let mounted = MountedFs::new(device.name(), "rw");
    refused(&[&format!("{} is mounted at {}", device.name(), mounted.0.path().display())]);
    let Err(StopError::InUse(_, users)) = served.server.stop(false) else {
        panic!("the stop did not report the users")
    };
    let said: Vec<_> = users.iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|user| user.contains("is mounted at")), "{said:?}");
    fs::write(mounted.file("still"), "works").expect("the disk still works");
    mounted.unmount();
    run("mkswap", &[device.name()]);
    run("swapon", &[device.name()]);
    let swapped = std::panic::catch_unwind(|| refused(&["is a swap area"]));
    run("swapoff", &[device.name()]);
    swapped.expect("swap is a user");
    // Add the partition by hand, because not all kernels read partition tables.
    run("addpart", &[device.name(), "1", "2048", "40960"]);
    let partition = format!("{}p1", device.name());
    run("mkfs.ext4", &["-q", &partition]);
    let mounted = MountedFs::new(&partition, "rw");
    refused(&[&format!("{partition} is mounted at")]);
    mounted.unmount();
    loop_device::detach(&device.0, false).expect("no process uses the device");
    let gone =
        loop_device::detach(&device.0, false).expect_err("the device is not attached").to_string();
    assert!(gone.contains("is not an attached loop device"), "{gone}");
    served.stop();
}

/// With force, the server removes the disk. The disk's users get errors instead of waiting.
#[test]
fn a_forced_stop_detaches_a_device_in_use() {
    let _users = users();
    let mut served = Served::new(ENGINES[0], disk("mem:64MiB", 512));
    let device = Loop::new(served.path(), 512, false);
    run("mkfs.ext4", &["-q", device.name()]);
    let mounted = MountedFs::new(device.name(), "rw");
    fs::write(mounted.file("lost"), Random::new(1).bytes(1 << 20)).expect("the write succeeds");
    served.server.stop(true).expect("the server stops");
    assert!(!fuse_support::mounted(served.folder.path()));
    assert!(!output("sync", &["-f", &mounted.file("lost")]).status.success());
    mounted.unmount();
    assert!(loop_device::detach(&device.0, false).is_err(), "a removed device was detached");
}

/// Each request that cannot work fails with an error that states the reason.
#[test]
fn unsupported_loop_device_requests_are_reported() {
    let _users = users();
    let served = Served::new(ENGINES[0], disk("mem:64MiB", 512));
    let error =
        loop_device::attach(served.path(), 300, false).expect_err("the block size is invalid");
    assert!(error.to_string().contains("do not support blocks of 300 bytes"), "{error}");
    let error = loop_device::attach(&served.folder.path().join("none"), 512, false);
    let error = error.expect_err("the file does not exist").to_string();
    assert!(error.starts_with("cannot open ") && error.contains("none"), "{error}");
    let error = loop_device::resize(Path::new("/dev/null")).expect_err("not a loop device");
    assert!(error.to_string().contains("/dev/null is not an attached loop device"), "{error}");
    served.stop();
}
