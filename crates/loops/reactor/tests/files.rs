//! Tests file operations, on both engines.

mod support;

use farblock_random::Random;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use farblock_reactor::{Buffer, Event, FileId, FileOp};
use support::Loop;

on_both_engines! {
    written_data_are_read
    more_operations_than_queue_entries_complete
    reading_beyond_the_end_fails
    empty_buffers_succeed
    durable_writes_and_sync_succeed
    punched_and_zeroed_ranges_read_as_zeroes
    a_read_only_file_refuses_writes
    a_removed_file_finishes_its_operations
    a_stale_file_is_not_found
    offsets_out_of_range_are_errors
    events_of_a_removed_task_are_recycled
    a_loop_can_be_dropped_with_operations_in_flight
    direct_io_works
    unsupported_operations_are_reported
}

on_the_simulated_engine! {
    written_data_are_read
    more_operations_than_queue_entries_complete
    reading_beyond_the_end_fails
    empty_buffers_succeed
    durable_writes_and_sync_succeed
    punched_and_zeroed_ranges_read_as_zeroes
    a_removed_file_finishes_its_operations
    a_stale_file_is_not_found
    offsets_out_of_range_are_errors
    events_of_a_removed_task_are_recycled
    a_loop_can_be_dropped_with_operations_in_flight
}

/// Creates a file without a name. On Windows the name disappears only when the file is closed.
fn scratch(name: &str, options: &mut OpenOptions) -> File {
    let path = scratch_path(name);
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let _ = std::fs::remove_file(path);
    file
}

fn scratch_path(name: &str) -> PathBuf {
    let thread = std::thread::current().name().unwrap_or("main").replace("::", "-");
    let process = std::process::id();
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{thread}-{process}"))
}

fn open(event_loop: &Loop, name: &str) -> FileId {
    if let Some(world) = event_loop.world() {
        let medium = farblock_reactor::os::File::Sim(world.disk(0));
        return event_loop.reactor.add_file(medium).unwrap();
    }
    let file = scratch(name, &mut OpenOptions::new());
    event_loop.reactor.add_file(file).unwrap()
}

/// Executes an operation. Returns its buffer and its result.
fn run(event_loop: &mut Loop, file: FileId, op: FileOp) -> (Option<Buffer>, std::io::Result<()>) {
    event_loop.reactor.file(event_loop.task, file, op, 77);
    match event_loop.next() {
        Event::File { user_data: 77, buffer, result } => (buffer, result),
        other => panic!("{other:?}"),
    }
}

fn write(event_loop: &mut Loop, file: FileId, offset: u64, content: &[u8], durable: bool) {
    let buffer = Buffer::copy_of(content);
    let (buffer, result) = run(event_loop, file, FileOp::Write { buffer, offset, durable });
    result.unwrap();
    assert_eq!(&buffer.unwrap()[..], content);
}

fn read(event_loop: &mut Loop, file: FileId, offset: u64, len: usize) -> Buffer {
    let buffer = Buffer::new(len);
    let (buffer, result) = run(event_loop, file, FileOp::Read { buffer, offset });
    result.unwrap();
    buffer.unwrap()
}

fn written_data_are_read(mut event_loop: Loop) {
    let file = open(&event_loop, "write-read");
    let mut content = vec![0; 3_000_001];
    Random::new(1).fill(&mut content);
    write(&mut event_loop, file, 12_345, &content, false);
    assert!(read(&mut event_loop, file, 12_345, content.len())[..] == content);
    assert!(read(&mut event_loop, file, 0, 12_345).iter().all(|&byte| byte == 0));
    assert_eq!(&read(&mut event_loop, file, 12_345 + 1000, 7)[..], &content[1000..1007]);
}

fn more_operations_than_queue_entries_complete(mut event_loop: Loop) {
    const BLOCKS: usize = 10_000;
    const BLOCK_BYTES: usize = 512;
    let reactor = event_loop.reactor.clone();
    let file = open(&event_loop, "many");
    for block in 0..BLOCKS {
        let mut buffer = reactor.buffers().take(BLOCK_BYTES);
        buffer.fill(block as u8);
        let op = FileOp::Write { buffer, offset: (block * BLOCK_BYTES) as u64, durable: false };
        reactor.file(event_loop.task, file, op, block as u64);
    }
    // Read each block immediately after its write, so that reads and writes are in flight at the
    // same time.
    let mut seen = HashSet::new();
    while seen.len() < 2 * BLOCKS {
        let Event::File { user_data, buffer, result } = event_loop.next() else { panic!() };
        result.unwrap();
        assert!(seen.insert(user_data), "an operation completed twice");
        let buffer = buffer.unwrap();
        match user_data.checked_sub(BLOCKS as u64) {
            Some(block) => assert!(buffer.iter().all(|&byte| byte == block as u8)),
            None => {
                let op = FileOp::Read { buffer, offset: user_data * BLOCK_BYTES as u64 };
                reactor.file(event_loop.task, file, op, user_data + BLOCKS as u64);
            }
        }
    }
}

fn reading_beyond_the_end_fails(mut event_loop: Loop) {
    let file = open(&event_loop, "end");
    write(&mut event_loop, file, 0, &[1; 1000], false);
    for (offset, len) in [(0, 1001), (999, 2), (1000, 1), (5000, 100)] {
        let op = FileOp::Read { buffer: Buffer::new(len), offset };
        let (buffer, result) = run(&mut event_loop, file, op);
        assert_eq!(
            result.unwrap_err().kind(),
            ErrorKind::UnexpectedEof,
            "the error of a read at {offset}, beyond the end"
        );
        assert_eq!(buffer.unwrap().len(), len);
    }
}

fn empty_buffers_succeed(mut event_loop: Loop) {
    let file = open(&event_loop, "empty");
    write(&mut event_loop, file, 10, &[], false);
    write(&mut event_loop, file, 10, &[], true);
    assert!(read(&mut event_loop, file, 10, 0).is_empty());
}

fn durable_writes_and_sync_succeed(mut event_loop: Loop) {
    let file = open(&event_loop, "durable");
    write(&mut event_loop, file, 0, &[5; 10_000], true);
    let (buffer, result) = run(&mut event_loop, file, FileOp::Sync);
    assert!(buffer.is_none());
    result.unwrap();
    assert!(read(&mut event_loop, file, 0, 10_000).iter().all(|&byte| byte == 5));
}

fn punched_and_zeroed_ranges_read_as_zeroes(mut event_loop: Loop) {
    for is_punch in [true, false] {
        let file = open(&event_loop, "punch");
        write(&mut event_loop, file, 0, &[0xff; 65_536], false);
        let (offset, len) = (8192, 16_384);
        let op = if is_punch {
            FileOp::PunchHole { offset, len }
        } else {
            FileOp::ZeroRange { offset, len }
        };
        let (_, result) = run(&mut event_loop, file, op);
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            continue;
        }
        let content = read(&mut event_loop, file, 0, 65_536);
        let expected = |at: usize| if (8192..24_576).contains(&at) { 0 } else { 0xff };
        assert!(content.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
        // A hole beyond the end does not change the size.
        let op = FileOp::PunchHole { offset: 60_000, len: 100_000 };
        run(&mut event_loop, file, op).1.unwrap();
        let op = FileOp::Read { buffer: Buffer::new(65_537), offset: 0 };
        assert!(run(&mut event_loop, file, op).1.is_err());
    }
}

fn a_read_only_file_refuses_writes(mut event_loop: Loop) {
    let path = scratch_path("read-only");
    std::fs::write(&path, [9; 100]).unwrap();
    let file = event_loop.reactor.add_file(File::open(&path).unwrap()).unwrap();
    for durable in [false, true] {
        let op = FileOp::Write { buffer: Buffer::new(10), offset: 0, durable };
        let (buffer, result) = run(&mut event_loop, file, op);
        assert_eq!(buffer.unwrap().len(), 10);
        assert!(result.is_err());
    }
    assert!(read(&mut event_loop, file, 0, 100).iter().all(|&byte| byte == 9));
    std::fs::remove_file(path).unwrap();
}

fn a_removed_file_finishes_its_operations(mut event_loop: Loop) {
    let file = open(&event_loop, "removed");
    write(&mut event_loop, file, 0, &[3; 4096], false);
    let op = |offset| FileOp::Read { buffer: Buffer::new(1024), offset };
    for index in 0..4 {
        event_loop.reactor.file(event_loop.task, file, op(index * 1024), index);
    }
    event_loop.reactor.remove_file(file);
    event_loop.reactor.file(event_loop.task, file, op(0), 4);
    for _ in 0..5 {
        let Event::File { user_data, result, .. } = event_loop.next() else { panic!() };
        match user_data {
            4 => assert_eq!(result.unwrap_err().kind(), ErrorKind::NotFound),
            _ => result.unwrap(),
        }
    }
    event_loop.reactor.remove_file(file);
}

fn a_stale_file_is_not_found(mut event_loop: Loop) {
    let stale = open(&event_loop, "stale");
    event_loop.reactor.remove_file(stale);
    let _successor = open(&event_loop, "successor");
    let (_, result) = run(&mut event_loop, stale, FileOp::Sync);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::NotFound);
    let op = FileOp::Read { buffer: Buffer::new(10), offset: 0 };
    let (buffer, result) = run(&mut event_loop, stale, op);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(buffer.unwrap().len(), 10);
}

fn offsets_out_of_range_are_errors(mut event_loop: Loop) {
    let file = open(&event_loop, "absurd");
    write(&mut event_loop, file, 0, &[1; 100], false);
    for offset in [u64::MAX, u64::MAX - 5, i64::MAX as u64, i64::MAX as u64 - 5] {
        let op = FileOp::Read { buffer: Buffer::new(10), offset };
        assert!(run(&mut event_loop, file, op).1.is_err());
        let op = FileOp::Write { buffer: Buffer::new(10), offset, durable: true };
        assert!(run(&mut event_loop, file, op).1.is_err());
        assert!(run(&mut event_loop, file, FileOp::PunchHole { offset, len: 10 }).1.is_err());
        assert!(run(&mut event_loop, file, FileOp::ZeroRange { offset, len: 10 }).1.is_err());
    }
    assert!(read(&mut event_loop, file, 0, 100).iter().all(|&byte| byte == 1));
}

fn events_of_a_removed_task_are_recycled(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let file = open(&event_loop, "recycled");
    write(&mut event_loop, file, 0, &[1; 4096], false);
    let other = reactor.add_child(event_loop.task);
    let before = reactor.buffers().retained_bytes();
    let buffer = Buffer::new(4096);
    reactor.file(other, file, FileOp::Read { buffer, offset: 0 }, 1);
    reactor.remove_task(other);
    let deadline = std::time::Instant::now() + support::WAIT_LIMIT;
    while reactor.buffers().retained_bytes() != before + 4096 {
        assert!(std::time::Instant::now() < deadline, "the slots are never recycled");
        event_loop.poll(Some(Duration::from_millis(1)));
    }
}

fn a_loop_can_be_dropped_with_operations_in_flight(event_loop: Loop) {
    let file = open(&event_loop, "dropped");
    for index in 0..200 {
        let buffer = Buffer::new(100_000);
        let op = FileOp::Write { buffer, offset: index * 100_000, durable: index % 50 == 0 };
        event_loop.reactor.file(event_loop.task, file, op, index);
        if index == 100 {
            event_loop.reactor.poll(Some(Duration::ZERO), &mut Vec::new()).unwrap();
        }
    }
    drop(event_loop);
}

#[cfg(target_os = "linux")]
fn direct_io_works(mut event_loop: Loop) {
    use std::os::unix::fs::OpenOptionsExt;
    let path = scratch_path("direct");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let file = match options.open(&path) {
        Ok(file) => file,
        Err(error) => return eprintln!("skipped, no direct I/O here: {error}"),
    };
    std::fs::remove_file(path).unwrap();
    let file = event_loop.reactor.add_file(file).unwrap();
    let mut content = vec![0; 1 << 20];
    Random::new(11).fill(&mut content);
    write(&mut event_loop, file, 0, &content, false);
    write(&mut event_loop, file, 4096, &content[4096..8192], true);
    assert!(read(&mut event_loop, file, 0, 1 << 20)[..] == content);
    for offset in [1 << 20, (1 << 20) - 4096] {
        let op = FileOp::Read { buffer: Buffer::new(8192), offset };
        let (_, result) = run(&mut event_loop, file, op);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}

#[cfg(not(target_os = "linux"))]
fn direct_io_works(_: Loop) {}

/// A file system in shared memory (tmpfs) supports holes, but not zeroing.
#[cfg(target_os = "linux")]
fn unsupported_operations_are_reported(mut event_loop: Loop) {
    let path = format!("/dev/shm/farblock-{}-{:p}", std::process::id(), &event_loop);
    let mut options = OpenOptions::new();
    let Ok(file) = options.read(true).write(true).create_new(true).open(&path) else { return };
    std::fs::remove_file(path).unwrap();
    let file = event_loop.reactor.add_file(file).unwrap();
    write(&mut event_loop, file, 0, &[1; 8192], true);
    run(&mut event_loop, file, FileOp::PunchHole { offset: 0, len: 4096 }).1.unwrap();
    let (_, result) = run(&mut event_loop, file, FileOp::ZeroRange { offset: 4096, len: 4096 });
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[cfg(not(target_os = "linux"))]
fn unsupported_operations_are_reported(mut event_loop: Loop) {
    let file = open(&event_loop, "unsupported");
    let (_, result) = run(&mut event_loop, file, FileOp::ZeroRange { offset: 0, len: 4096 });
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Unsupported);
}
