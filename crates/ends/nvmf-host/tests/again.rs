//! The host retries commands a few times after transient failures.

mod peer;
mod stage;

use farblock_block::{BlockError, Op};
use farblock_host::disk::Policy;
use farblock_host::{Disk, DiskOptions, limits};
use farblock_reactor::Buffer;
use farblock_wire::Status;
use farblock_wire::opcode::NvmOpcode;
use peer::{Capsule, Connection, Handled, Peer, Script};
use stage::{User, disk, quick, until, usual};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TRIES: usize = 1 + limits::COMMAND_RETRIES as usize;

/// Connects a disk to a target that fails the first `failures` commands with `status`. Also returns
/// the count of commands.
fn failing(
    failures: usize,
    status: Status,
    options: &DiskOptions,
) -> (Peer, Disk, Arc<AtomicUsize>) {
    let tries = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&tries);
    let peer = Peer::with_hook(move |connection, qid, capsule| {
        if qid == 0 || capsule.sqe.opcode == 0x7f {
            return Ok(Handled::No);
        }
        if counter.fetch_add(1, Ordering::SeqCst) < failures {
            connection.respond(capsule.cid(), status, 0)?;
            return Ok(Handled::Yes);
        }
        Ok(Handled::No)
    });
    let disk = disk(&[&peer], options);
    (peer, disk, tries)
}

#[test]
fn a_transient_failure_is_retried() {
    let (_peer, disk, tries) = failing(TRIES - 1, Status::INTERNAL_ERROR, &usual());
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    assert_eq!(tries.load(Ordering::SeqCst), TRIES);
    assert_eq!(user.flush(), Ok(()));
}

#[test]
fn a_permanent_failure_is_reported_after_the_retries() {
    let (_peer, disk, tries) = failing(usize::MAX, Status::INTERNAL_ERROR, &usual());
    assert_eq!(User::new(&disk).write(0), Err(BlockError::WriteFailed));
    assert_eq!(tries.load(Ordering::SeqCst), TRIES);
}

#[test]
fn a_command_with_do_not_retry_is_not_retried() {
    let status = Status::INTERNAL_ERROR.with_dnr();
    let (_peer, disk, tries) = failing(usize::MAX, status, &usual());
    assert_eq!(User::new(&disk).write(0), Err(BlockError::WriteFailed));
    assert_eq!(tries.load(Ordering::SeqCst), 1);
}

/// The controller's CRD field selects one of three delays, here number 2: 300 ms.
#[test]
fn the_retry_delay_of_the_controller_is_observed() {
    let status = Status::INTERNAL_ERROR.with_retry_delay(2);
    let tries = AtomicUsize::new(0);
    let peer = Peer::with_hook(move |connection, qid, capsule| {
        if qid == 0 && capsule.sqe.opcode == 0x06 && capsule.sqe.cdw10.get() as u8 == 1 {
            let mut data = vec![0; 4096];
            peer::identify_controller(&Script::<Connection>::default(), &mut data);
            data[130] = 3;
            connection.push_all(capsule.cid(), &data, 4096, true)?;
            return Ok(Handled::Yes);
        }
        if qid > 0 && capsule.sqe.opcode == 0x01 && tries.fetch_add(1, Ordering::SeqCst) < 2 {
            connection.respond(capsule.cid(), status, 0)?;
            return Ok(Handled::Yes);
        }
        Ok(Handled::No)
    });
    let disk = disk(&[&peer], &usual());
    let mut user = User::new(&disk);
    assert_eq!(user.flush(), Ok(()));
    let start = Instant::now();
    assert_eq!(user.write(0), Ok(()));
    assert!(start.elapsed() >= Duration::from_millis(600), "{:?}", start.elapsed());
}

/// A bit error in transit is not the controller's fault, so the host retries the read.
#[test]
fn a_read_with_a_wrong_data_digest_is_retried() {
    let damage = AtomicUsize::new(0);
    let peer = Peer::with_hook(move |connection, qid, capsule| {
        let read = qid > 0 && NvmOpcode(capsule.sqe.opcode) == NvmOpcode::READ;
        if read && damage.fetch_add(1, Ordering::SeqCst) == 0 {
            connection.corrupt_data_digest = true;
        }
        Ok(Handled::No)
    });
    let mut options = usual();
    options.connection.tcp.data_digest = true;
    let disk = disk(&[&peer], &options);
    let mut user = User::new(&disk);
    let mut data = Buffer::new(512);
    data.fill(0xa5);
    user.queue.submit(Op::write(3, 1, data, 1));
    assert_eq!(user.one(), Ok(()));
    user.queue.submit(Op::read(3, 1, Buffer::new(512), 2));
    let done = user.turn(Duration::from_secs(60));
    let read = done[0].buffer.as_ref().expect("a read has a buffer");
    assert!(done[0].result.is_ok() && read.iter().all(|byte| *byte == 0xa5));
}

/// With a queue depth of 1, the host sends the commands of an operation one after another. After a
/// permanent failure of the first, it sends no others; after a transient one, it repeats all.
#[test]
fn an_operation_of_several_commands_is_retried_as_a_whole() {
    for (status, expected) in [
        (Status::CAPACITY_EXCEEDED.with_dnr(), Err(BlockError::NoSpace)),
        (Status::INTERNAL_ERROR, Ok(())),
    ] {
        let mut options = usual();
        options.connection.queue_depth = 1;
        let (_peer, disk, _) = failing(1, status, &options);
        let mut user = User::new(&disk);
        let blocks = 1 << 10;
        user.queue.submit(Op::write(0, blocks, Buffer::new(blocks as usize * 512), 1));
        assert_eq!(user.one(), expected);
        assert_eq!(user.write(0), Ok(()));
    }
}

/// Starts a target that answers every I/O command with a path error after `delay`, while `misleads`
/// is set. Also returns the count of these answers.
fn misleading(delay: Duration, misleads: &Arc<AtomicBool>) -> (Peer, Arc<AtomicUsize>) {
    let tries = Arc::new(AtomicUsize::new(0));
    let (counter, misleads) = (Arc::clone(&tries), Arc::clone(misleads));
    let peer = Peer::with_hook(move |connection, qid, capsule| {
        if qid == 0 || capsule.sqe.opcode == 0x7f || !misleads.load(Ordering::SeqCst) {
            return Ok(Handled::No);
        }
        counter.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(delay);
        connection.respond(capsule.cid(), Status::INTERNAL_PATH_ERROR, 0)?;
        Ok(Handled::Yes)
    });
    (peer, tries)
}

/// Operations wait as long for paths that answer with path errors as for lost paths, however long
/// each answer takes.
#[test]
fn operations_wait_for_failing_paths_as_long_as_for_lost_ones() {
    let limit = Duration::from_secs(1);
    let mut options = DiskOptions { fast_io_fail_timeout: Some(limit), ..usual() };
    options.connection.path_timeout = Some(Duration::from_secs(60));
    let misleads = Arc::new(AtomicBool::new(true));
    let (peer, tries) = misleading(limit / 5, &misleads);
    let disk = disk(&[&peer], &options);
    let mut user = User::new(&disk);
    let start = Instant::now();
    assert_eq!(user.write(0), Err(BlockError::Disconnected));
    assert!(start.elapsed() >= limit, "the operation failed after {:?}", start.elapsed());
    // No attempt starts after the limit, and each attempt takes a fifth of the limit.
    assert!(tries.load(Ordering::SeqCst) <= 7, "{tries:?} tries");
    misleads.store(false, Ordering::SeqCst);
    assert_eq!(user.write(0), Ok(()), "the backoff is over");
}

/// `denied_timeout` limits the wait for targets that answer with path errors, not the wait for lost
/// paths.
#[test]
fn denied_timeout_limits_the_wait_for_a_target_that_denies_access() {
    let denied_timeout = Some(Duration::from_millis(300));
    let misleads = Arc::new(AtomicBool::new(true));
    let (peer, _) = misleading(Duration::from_millis(10), &misleads);
    let disk = disk(&[&peer], &DiskOptions { denied_timeout, ..usual() });
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Err(BlockError::Disconnected));
    misleads.store(false, Ordering::SeqCst);
    until("the backoff is over", || user.write(0) == Ok(()));
}

/// The options let operations fail instead of waiting, but only after the disk has tried both
/// paths.
#[test]
fn a_path_error_is_retried_on_another_live_path() {
    let options = DiskOptions {
        fast_io_fail_timeout: Some(Duration::ZERO),
        policy: Policy::RoundRobin,
        ..usual()
    };
    let misleads = [false, false].map(|it| Arc::new(AtomicBool::new(it)));
    let asked: [Arc<AtomicUsize>; 2] = Default::default();
    let peers: [Peer; 2] = std::array::from_fn(|at| {
        let (misleads, asked) = (Arc::clone(&misleads[at]), Arc::clone(&asked[at]));
        let hook = move |connection: &mut Connection, qid, capsule: &Capsule| {
            if qid == 0 || capsule.sqe.opcode == 0x7f {
                return Ok(Handled::No);
            }
            asked.fetch_add(1, Ordering::SeqCst);
            if !misleads.load(Ordering::SeqCst) {
                return Ok(Handled::No);
            }
            connection.respond(capsule.cid(), Status::INTERNAL_PATH_ERROR, 0)?;
            Ok(Handled::Yes)
        };
        let cntlid = 1 + at as u16;
        Peer::new(Script { cntlid, hook: Box::new(hook), ..Script::default() })
    });
    let disk = disk(&[&peers[0], &peers[1]], &options);
    let mut user = User::new(&disk);
    until("both paths are used", || {
        assert_eq!(user.write(0), Ok(()));
        asked.iter().all(|asked| asked.load(Ordering::SeqCst) > 0)
    });
    misleads[0].store(true, Ordering::SeqCst);
    let before = asked[0].load(Ordering::SeqCst);
    until("the first path gets a command", || {
        assert_eq!(user.write(0), Ok(()), "the second path is live");
        asked[0].load(Ordering::SeqCst) > before
    });
    misleads[1].store(true, Ordering::SeqCst);
    // While the first path is in its backoff after a path error, the disk tries only the second.
    assert_eq!(user.write(0), Err(BlockError::Disconnected), "no path accepts the operation");
}

/// A target closes the connection at each command and accepts a new one at once. Even so, no
/// operation fails before `fast_io_fail_timeout`.
#[test]
fn operations_wait_for_connections_that_are_lost_at_each_command() {
    let limit = Duration::from_secs(1);
    // The disk repeats reads at once. It repeats writes when the first attempt can no longer take
    // effect.
    let options = DiskOptions { fast_io_fail_timeout: Some(limit), ..quick() };
    let drops = Arc::new(AtomicBool::new(false));
    let tries = Arc::new(AtomicUsize::new(0));
    let (counter, dropping) = (Arc::clone(&tries), Arc::clone(&drops));
    let peer = Peer::with_hook(move |_, qid, capsule| {
        if qid == 0 || capsule.sqe.opcode == 0x7f || !dropping.load(Ordering::SeqCst) {
            return Ok(Handled::No);
        }
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(Handled::Close)
    });
    let disk = disk(&[&peer], &options);
    let mut user = User::new(&disk);
    for op in [Op::read(0, 1, Buffer::new(512), 1), Op::write(0, 1, Buffer::new(512), 1)] {
        tries.store(0, Ordering::SeqCst);
        drops.store(true, Ordering::SeqCst);
        let start = Instant::now();
        user.queue.submit(op);
        assert_eq!(user.one(), Err(BlockError::Disconnected));
        assert!(start.elapsed() >= limit, "the operation failed after {:?}", start.elapsed());
        assert!(tries.load(Ordering::SeqCst) > 1, "the operation was not tried again");
        // Wait until the path executes commands again: otherwise the next operation would have no
        // time left.
        drops.store(false, Ordering::SeqCst);
        until("a write succeeds again", || user.write(0) == Ok(()));
    }
}
