//! Tests the file of a FUSE mount with all operations that programs use.
#![cfg(target_os = "linux")]

mod fuse_support;

use farblock_block::{BlockError, Command};
use farblock_random::Random;
use farblock_testkit::eventually;
use fuse_support::{ENGINES, Served, Spy, disk, fio_verify, output, run};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

fn open(served: &Served) -> File {
    File::options().read(true).write(true).open(served.path()).expect("the file opens")
}

fn errno(result: io::Result<impl Sized>) -> i32 {
    let error = result.err().expect("the call fails");
    error.raw_os_error().unwrap_or_else(|| panic!("not a system error: {error}"))
}

const ENXIO: i32 = 6;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EPERM: i32 = 1;
const EIO: i32 = 5;
const EROFS: i32 = 30;
const EOPNOTSUPP: i32 = 95;

#[test]
fn the_file_has_the_properties_of_the_namespace() {
    let served = Served::with(disk("mem:3MiB", 4096), |config| config.name = "a disk".into());
    let folder: Vec<_> = fs::read_dir(served.folder.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(folder, ["a disk"]);
    let found = fs::metadata(served.path()).expect("the file exists");
    assert_eq!((found.len(), found.blksize(), found.blocks()), (3 << 20, 4096, 6144));
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert!(fs::metadata(served.folder.path().join("other")).is_err());
    let other = served.folder.path().join("other");
    assert_eq!(errno(File::create(&other)), EPERM);
    assert_eq!(errno(fs::create_dir(&other)), EPERM);
    assert_eq!(errno(fs::rename(served.path(), &other)), EPERM);
    assert_eq!(errno(fs::remove_file(served.path())), EPERM);
    served.stop();
}

/// Two threads read, write and zero random ranges. The test compares the file with a copy in
/// memory.
#[test]
fn any_range_of_bytes_can_be_read_written_and_zeroed() {
    for engine in ENGINES {
        for block_size in [512, 4096] {
            let served = Served::new(engine, disk("mem:1MiB", block_size));
            let file = open(&served);
            let mut random = Random::new(u64::from(block_size));
            let mut model = vec![0; 1 << 20];
            for round in 0..600 {
                let offset = random.below(1 << 20);
                let most = if round % 10 == 0 { 400_000 } else { 9000 };
                let length = 1 + random.below(most.min((1 << 20) - offset));
                let range = offset as usize..(offset + length) as usize;
                match random.below(4) {
                    0 => {
                        let mode = if random.below(2) == 0 { PUNCH } else { ZERO };
                        rustix::fs::fallocate(&file, mode, offset, length).expect("zeroes");
                        model[range].fill(0);
                    }
                    1 => {
                        let mut bytes = vec![1; range.len()];
                        file.read_exact_at(&mut bytes, offset).expect("the read succeeds");
                        assert!(
                            bytes == model[range.clone()],
                            "the file differs from the copy at {range:?} in round {round}"
                        );
                    }
                    _ => {
                        let bytes = random.bytes(range.len());
                        file.write_all_at(&bytes, offset).expect("the write succeeds");
                        model[range].copy_from_slice(&bytes);
                    }
                }
            }
            assert!(fs::read(served.path()).expect("the read succeeds") == model);
            drop(file);
            served.stop();
        }
    }
}

/// Threads that write neighbouring bytes of the same blocks do not undo each other's writes.
#[test]
fn concurrent_writes_to_one_block_are_all_kept() {
    for engine in ENGINES {
        let served = Served::new(engine, disk("mem:1MiB", 4096));
        std::thread::scope(|scope| {
            for writer in 0..8_u8 {
                let file = open(&served);
                scope.spawn(move || {
                    for round in 0..200 {
                        let bytes = [writer + 8 * (round % 16); 100];
                        file.write_all_at(&bytes, 100 * u64::from(writer))
                            .expect("the write succeeds");
                        // This write of a whole block must wait while other threads change parts of
                        // blocks.
                        let whole = [writer; 4096];
                        let at = 4096 * (1 + u64::from(writer));
                        file.write_all_at(&whole, at).expect("the write succeeds");
                        let mut found = [0; 100];
                        file.read_exact_at(&mut found, 100 * u64::from(writer))
                            .expect("the read succeeds");
                        assert_eq!(
                            found, bytes,
                            "the bytes of writer {writer} changed in round {round}"
                        );
                    }
                });
            }
        });
        served.stop();
    }
}

#[test]
fn the_file_has_a_fixed_size_like_a_disk() {
    let served = Served::new(ENGINES[0], disk("mem:1MiB", 512));
    let file = open(&served);
    let end = 1 << 20;
    assert_eq!(file.write_at(&[7; 4096], end - 1000).expect("the part that fits is written"), 1000);
    assert_eq!(errno(file.write_at(&[7; 10], end)), ENOSPC);
    let mut bytes = [0; 4096];
    assert_eq!(file.read_at(&mut bytes, end - 1000).expect("a partial read"), 1000);
    assert_eq!(bytes[999], 7);
    assert_eq!(file.read_at(&mut bytes, end).expect("the end"), 0);
    for other in [0, 12, end + 512] {
        assert_eq!(errno(file.set_len(other)), EINVAL, "the file's size changes to {other} bytes");
    }
    file.set_len(end).expect("setting the current size succeeds");
    assert_eq!(errno(fs::set_permissions(served.path(), fs::Permissions::from_mode(0o777))), EPERM);
    // `O_TRUNC` has no effect: the file keeps its content.
    let again = File::create(served.path()).expect("the file opens with O_TRUNC");
    assert_eq!(again.metadata().expect("a file").len(), end);
    assert_eq!(file.read_at(&mut bytes, end - 1000).expect("a partial read"), 1000);
    let fallocate = |mode, offset, length| {
        rustix::fs::fallocate(&file, mode, offset, length).map_err(io::Error::from)
    };
    assert_eq!(errno(fallocate(FallocateFlags::empty(), 0, 4096)), EOPNOTSUPP);
    assert_eq!(errno(fallocate(FallocateFlags::ZERO_RANGE, end - 512, 1024)), ENOSPC);
    fallocate(ZERO, end - 512, 1024).expect("the part before the end is zeroed");
    // Seeking finds data everywhere, and a hole only at the end of the file.
    let seek = |from| rustix::fs::seek(&file, from).map_err(io::Error::from);
    assert_eq!(seek(SeekFrom::Data(5000)).expect("data"), 5000);
    assert_eq!(seek(SeekFrom::Hole(5000)).expect("the end"), end);
    assert_eq!(errno(seek(SeekFrom::Data(end))), ENXIO);
    drop((file, again));
    served.stop();
}

#[test]
fn each_file_operation_issues_the_matching_block_command() {
    let spy = Spy::new(disk("mem:8MiB", 512), true);
    let served = Served::new(ENGINES[0], Arc::clone(&spy) as _);
    let file = open(&served);
    file.write_all_at(&[1; 4096], 8192).expect("the write succeeds");
    assert_eq!(spy.take(), [(Command::Write, 16, 8, false)]);
    file.sync_all().expect("the flush succeeds");
    file.sync_data().expect("the flush succeeds");
    assert_eq!(spy.take(), [(Command::Flush, 0, 0, false); 2]);
    let flags = OFlags::DSYNC.bits().cast_signed();
    let durable = File::options().write(true).custom_flags(flags).open(served.path());
    durable.expect("the file opens").write_all_at(&[2; 512], 0).expect("the write succeeds");
    let asked = spy.take();
    assert_eq!(asked[0], (Command::Write, 0, 1, true));
    assert!(asked[1..].iter().all(|asked| asked.0 == Command::Flush), "{asked:?}");
    // Closing a file that was open for writing flushes the disk. Closing a file that was open for
    // reading does not.
    let mut reader = File::open(served.path()).expect("the file opens for reading");
    io::Read::read_exact(&mut reader, &mut [0; 512]).expect("the read succeeds");
    drop(reader);
    assert_eq!(spy.take(), [(Command::Read, 0, 1, false)]);
    rustix::fs::fallocate(&file, PUNCH, 4096, 1 << 20).expect("a hole is punched");
    let zeroes = |deallocate| Command::WriteZeroes { deallocate };
    assert_eq!(spy.take(), [(zeroes(true), 8, 2048, false)]);
    rustix::fs::fallocate(&file, ZERO, 4096, 1 << 20).expect("zeroes are written");
    assert_eq!(spy.take(), [(zeroes(false), 8, 2048, false)]);
    drop(file);
    assert_eq!(spy.take(), [(Command::Flush, 0, 0, false)]);
    served.stop();
}

#[test]
fn punching_holes_is_refused_without_deallocation() {
    let served = Served::new(ENGINES[0], Spy::new(disk("mem:8MiB", 512), false));
    let file = open(&served);
    let punched = rustix::fs::fallocate(&file, PUNCH, 0, 4096).map_err(io::Error::from);
    assert_eq!(errno(punched), EOPNOTSUPP);
    rustix::fs::fallocate(&file, ZERO, 0, 4096).expect("zeroes are written");
    drop(file);
    served.stop();
}

#[test]
fn a_failed_request_returns_its_error_to_the_program() {
    let spy = Spy::new(disk("mem:1MiB", 512), true);
    let served = Served::new(ENGINES[0], Arc::clone(&spy) as _);
    let file = open(&served);
    for (error, number) in [
        (BlockError::WriteFailed, EIO),
        (BlockError::Disconnected, EIO),
        (BlockError::NoSpace, ENOSPC),
        (BlockError::ReadOnly, EROFS),
    ] {
        spy.fail_with(Some(error));
        assert_eq!(errno(file.write_at(&[1; 512], 0)), number, "{error:?}");
        assert_eq!(
            errno(file.write_at(&[1; 5], 0)),
            number,
            "the error number of a partial write for {error:?}"
        );
    }
    spy.fail_with(Some(BlockError::ReadFailed));
    assert_eq!(errno(file.read_at(&mut [0; 512], 0)), EIO);
    assert_eq!(errno(file.sync_all()), EIO);
    spy.fail_with(None);
    file.write_all_at(&[1; 5], 0).expect("the disk still works");
    drop(file);
    served.stop();
}

#[test]
fn a_read_only_file_refuses_writes() {
    let served = Served::with(disk("mem:1MiB", 512), |config| config.read_only = true);
    assert_eq!(errno(File::options().write(true).open(served.path())), EROFS);
    assert_eq!(fs::metadata(served.path()).expect("a file").permissions().mode() & 0o777, 0o400);
    assert_eq!(fs::read(served.path()).expect("the read succeeds").len(), 1 << 20);
    served.stop();
}

#[test]
fn programs_see_a_changed_size() {
    let spy = Spy::new(disk("mem:8MiB", 512), true);
    spy.disk.resize_silently(2048);
    let served = Served::new(ENGINES[0], Arc::clone(&spy) as _);
    let file = open(&served);
    for blocks in [16_384, 4096] {
        spy.disk.resize(blocks);
        let length = || file.metadata().expect("a file").len();
        eventually("the new size is reported", || length() == blocks * 512);
        file.write_all_at(&[3; 512], blocks * 512 - 512).expect("the last block is written");
        assert_eq!(errno(file.write_at(&[3; 512], blocks * 512)), ENOSPC);
    }
    drop(file);
    served.stop();
}

/// A program sends a hundred requests of 200 ms each at once. Together they take about as long as
/// one request.
#[test]
fn requests_are_served_concurrently() {
    for engine in ENGINES {
        let served = Served::new(engine, disk("delay:200ms,mem:1MiB", 512));
        let filename = format!("--filename={}", served.path().display());
        for rw in ["--rw=randread", "--rw=randwrite"] {
            let start = Instant::now();
            run(
                "fio",
                &[
                    "--name=depth",
                    &filename,
                    "--allow_file_create=0",
                    "--ioengine=libaio",
                    "--direct=1",
                    "--bs=4k",
                    "--iodepth=100",
                    "--number_ios=200",
                    "--minimal",
                    rw,
                ],
            );
            let took = start.elapsed();
            // Executing one request at a time would take forty seconds.
            assert!(took < Duration::from_secs(30), "{engine} {rw}: {took:?}");
        }
        served.stop();
    }
}

/// Ordinary programs copy data to the file, compare it, map it, and write it with and without the
/// kernel's cache.
#[test]
fn ordinary_programs_can_use_the_file() {
    for engine in ENGINES {
        let served = Served::new(engine, disk("mem:24MiB", 4096));
        let path = served.path().to_str().expect("UTF-8");
        for arguments in [
            ["--ioengine=libaio", "--direct=1", "--iodepth=32", "--rw=randrw", "--bs=4k"],
            [
                "--ioengine=psync",
                "--direct=0",
                "--iodepth=1",
                "--rw=randwrite",
                "--bsrange=512-20k",
            ],
            ["--ioengine=io_uring", "--direct=1", "--iodepth=16", "--rw=write", "--bs=1m"],
            ["--ioengine=mmap", "--direct=0", "--iodepth=1", "--rw=randwrite", "--bs=4k"],
        ] {
            let mut arguments = arguments.to_vec();
            arguments.extend(["--size=16m", "--bs_unaligned=1"]);
            fio_verify(path, &arguments);
        }
        let image = tempfile::NamedTempFile::new().expect("a file");
        fs::write(image.path(), Random::new(9).bytes(24 << 20)).expect("the file is written");
        let image = image.path().to_str().expect("UTF-8");
        run("dd", &[&format!("if={image}"), &format!("of={path}"), "bs=100000", "status=none"]);
        run("cmp", &[image, path]);
        assert!(!output("dd", &["if=/dev/zero", &format!("of={path}"), "bs=1M"]).status.success());
        served.stop();
    }
}
