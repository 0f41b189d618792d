//! Operations in flight when a disk loses their connections, over scripted targets.

mod peer;
mod stage;

use farblock_block::{BlockError, Change, Op};
use farblock_host::disk::{DiskLatency, DiskOptions, DiskState, Predecessor};
use farblock_host::{Disk, Url};
use farblock_reactor::Buffer;
use farblock_wire::Status;
use farblock_wire::log::AnaState;
use farblock_wire::origin::ControllerOrigin;
use peer::{Handled, Peer, SUBSYSTEM};
use stage::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// If a target cannot reset lost controllers, the disk repeats a write only when the target must
/// have stopped the lost controller, or after the time in the options. A read does not wait.
#[test]
fn writes_wait_for_the_end_of_a_controller_that_cannot_be_reset() {
    let (none, long) = (Some(Duration::ZERO), Duration::from_secs(4));
    for (quiesce, reading) in [(none, false), (Some(long), false), (None, false), (None, true)] {
        let stage = Stage::new(AnaState::OPTIMIZED);
        let peers = [target(&stage), target(&stage)];
        let disk = disk(&[&peers[0], &peers[1]], &impatient(quiesce));
        until("both paths are live", || disk.state() == DiskState::Live);
        let mut user = User::new(&disk);
        assert_eq!(user.write(0), Ok(()));
        assert!(user.turn(Duration::from_millis(100)).is_empty());
        stage.silent.store(true, Ordering::SeqCst);
        let op = match reading {
            true => Op::read(0, 1, Buffer::new(512), 1),
            false => Op::write(0, 1, Buffer::new(512), 1),
        };
        user.queue.submit(op);
        assert!(user.turn(Duration::from_millis(100)).is_empty());
        stage.silent.store(false, Ordering::SeqCst);
        let start = Instant::now();
        peers[0].cut();
        assert_eq!(user.one(), Ok(()));
        let (took, waits) = (start.elapsed(), !reading && quiesce != none);
        assert_eq!(took >= long - Duration::from_millis(50), waits, "{quiesce:?}: {took:?}");
    }
}

/// The disk measures each operation once, even if it tried the operation on several paths.
#[test]
fn the_latency_of_an_operation_includes_its_retries() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peers = [target(&stage), target(&stage)];
    let disk = disk(&[&peers[0], &peers[1]], &quick());
    until("both paths are live", || disk.state() == DiskState::Live);
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    assert_eq!(disk.latency(), DiskLatency::default(), "latencies are measured without a request");
    disk.measure_latency(true);
    stage.silent.store(true, Ordering::SeqCst);
    user.queue.submit(Op::read(0, 1, Buffer::new(512), 1));
    assert!(user.turn(Duration::from_millis(100)).is_empty());
    stage.silent.store(false, Ordering::SeqCst);
    // Cut both connections, because the operation may be on either path.
    peers.iter().for_each(Peer::cut);
    assert_eq!(user.one(), Ok(()));
    (0..2).for_each(|lba| assert_eq!(user.write(lba), Ok(())));
    assert_eq!(user.flush(), Ok(()));
    let measured = disk.latency();
    let DiskLatency { reads, writes, flushes, others } = measured;
    let counts = [reads, writes, flushes, others].map(|of| of.counts.iter().sum::<u64>());
    assert_eq!(counts, [1, 2, 1, 0]);
    assert!(reads.sum_ns >= 100_000_000, "the wait is not counted: {reads:?}");
    drop(user);
    assert_eq!(disk.latency(), measured, "the counts of a closed queue are lost");
    disk.measure_latency(false);
    assert_eq!(User::new(&disk).write(0), Ok(()));
    assert_eq!(disk.latency(), measured, "latencies are measured without a request");
}

/// The disk uses a new connection at once, even to a target that cannot reset lost controllers.
/// Only writes that the lost controller may still execute have to wait.
#[test]
fn only_writes_of_the_lost_controller_wait() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let disk = disk(&[&peer], &impatient(None));
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    stage.silent.store(true, Ordering::SeqCst);
    user.queue.submit(Op::write(0, 1, Buffer::new(512), 7));
    assert!(user.turn(Duration::from_millis(100)).is_empty());
    stage.silent.store(false, Ordering::SeqCst);
    peer.cut();
    until("the disk is connected again", || {
        // The queue drops the lost connection at the next poll.
        assert!(user.turn(Duration::ZERO).is_empty());
        disk.paths()[0].reconnects == 1
    });
    user.queue.submit(Op::read(0, 1, Buffer::new(512), 8));
    user.queue.submit(Op::write(1, 1, Buffer::new(512), 9));
    let mut order = Vec::new();
    while order.len() < 3 {
        let done = user.turn(Duration::from_secs(60));
        assert!(!done.is_empty(), "{order:?}");
        order.extend(done.iter().map(|done| (done.token, done.result)));
    }
    assert_eq!(order[2], (7, Ok(())), "{order:?}");
}

/// If a target does not know a lost controller, that controller has ended only if the target has
/// the same origin (place and boot). Otherwise the host may have reached another target: a name may
/// resolve to several targets, and an address may move.
#[test]
fn an_unknown_lost_controller_has_ended_only_at_the_same_origin() {
    let place = |byte| ControllerOrigin { place: [byte; 16], boot: [1; 16] };
    for (origin, waits) in [(place(1), false), (place(2), true)] {
        let stage = Stage::new(AnaState::OPTIMIZED);
        stage.origin.lock().unwrap().replace(place(1));
        let peer = target(&stage);
        let disk = disk(&[&peer], &impatient(None));
        let mut user = User::new(&disk);
        assert_eq!(user.write(0), Ok(()));
        stage.silent.store(true, Ordering::SeqCst);
        user.queue.submit(Op::write(0, 1, Buffer::new(512), 1));
        assert!(user.turn(Duration::from_millis(100)).is_empty());
        stage.silent.store(false, Ordering::SeqCst);
        stage.origin.lock().unwrap().replace(origin);
        let start = Instant::now();
        peer.cut();
        assert_eq!(user.one(), Ok(()));
        let took = start.elapsed();
        assert_eq!(took >= Duration::from_millis(3900), waits, "{origin:?}: {took:?}");
    }
}

/// Without keep alives, a target that cannot reset controllers never stops a lost controller. The
/// disk then refuses to connect.
#[test]
fn connect_refuses_a_target_that_never_ends_lost_controllers() {
    let peer = target(&Stage::new(AnaState::OPTIMIZED));
    let url: Url = format!("nvme+tcp://{}/{SUBSYSTEM}?ns=1", peer.address()).parse().unwrap();
    let mut options = impatient(None);
    options.connection.keep_alive = Duration::ZERO;
    let error = Disk::connect(std::slice::from_ref(&url), &options).expect_err("refused");
    assert!(error.to_string().contains("choose a keep alive timeout"), "{error}");
    options.quiesce = Some(Duration::from_secs(1));
    Disk::connect(&[url], &options).expect("the options allow this host");
}

/// Writes of a dropped queue cannot undo later writes of other queues.
#[test]
fn writes_of_a_dropped_queue_do_not_overwrite_newer_ones() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let disk = disk(&[&peer], &impatient(None));
    let (mut first, mut second) = (User::new(&disk), User::new(&disk));
    assert_eq!((first.write(0), second.write(0)), (Ok(()), Ok(())));
    stage.silent.store(true, Ordering::SeqCst);
    first.queue.submit(Op::write(0, 1, Buffer::new(512), 1));
    assert!(first.turn(Duration::from_millis(100)).is_empty());
    let start = Instant::now();
    drop(first);
    stage.silent.store(false, Ordering::SeqCst);
    assert_eq!(second.write(0), Ok(()));
    assert!(start.elapsed() >= Duration::from_millis(3900), "a dropped write could still arrive");
}

/// Writes of a lost connection must not stay in the buffer of a closed socket. Otherwise the system
/// would continue to send them long after the disk has written the data over other paths.
#[test]
#[cfg(target_os = "linux")]
fn an_abandoned_connection_sends_no_buffered_writes() {
    use farblock_block::Namespace;
    use farblock_host::Controller;
    use farblock_reactor::Reactor;
    use peer::options;
    use std::{io, sync::Mutex};

    let stalled = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&stalled);
    let peer = Peer::with_hook(move |connection, _, capsule| {
        let mut stalled = keep.lock().unwrap();
        // Keep the connection of the first write open, and read no more from it.
        if capsule.sqe.opcode == 0x01 && stalled.is_none() {
            *stalled = Some(connection.stream.try_clone()?);
            drop(stalled);
            std::thread::sleep(Duration::from_secs(3600));
        }
        Ok(Handled::No)
    });
    let controller = Controller::connect(&peer.address(), SUBSYSTEM, &options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let reactor = Reactor::new(&farblock_reactor::Config::default()).expect("an engine");
    let task = reactor.add_task();
    let mut queue = namespace.open(&reactor, task).expect("a queue");
    // These writes have far more data than the target's system accepts without reads.
    for lba in 0..127 {
        queue.submit(Op::write(lba * 16, 16, Buffer::new(8192), lba));
    }
    let (mut done, mut ready) = (Vec::new(), Vec::new());
    until("a write arrives", || {
        queue.poll(&mut done);
        reactor.poll(Some(Duration::from_millis(5)), &mut ready).expect("the loop continues");
        stalled.lock().unwrap().is_some()
    });
    drop(queue);
    drop(reactor);
    let mut late = stalled.lock().unwrap().take().expect("the write arrived");
    late.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ended = io::copy(&mut late, &mut io::sink());
    let kind = ended.expect_err("the connection ends with a reset").kind();
    assert_eq!(kind, io::ErrorKind::ConnectionReset);
}

/// The time that I/O queues need to connect does not count towards the timeouts of operations.
#[test]
fn connecting_queues_do_not_use_up_operation_timeouts() {
    let connects = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connects);
    let peer = Peer::with_hook(move |_, qid, capsule| {
        let connect = capsule.sqe.opcode == 0x7f && capsule.sqe.fctype() == 1;
        if connect && qid > 0 && counter.fetch_add(1, Ordering::SeqCst) < 3 {
            return Ok(Handled::Yes);
        }
        Ok(Handled::No)
    });
    let mut options = DiskOptions { ctrl_loss_timeout: None, ..usual() };
    options.connection.connect_timeout = Duration::from_secs(3);
    let disk = disk(&[&peer], &options);
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    assert!(connects.load(Ordering::SeqCst) > 3);
}

/// Queues connect in parallel: one after another, many queues would take too long.
#[test]
fn queues_connect_in_parallel() {
    let (connecting, away) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let is_away = Arc::clone(&away);
    let peer = Peer::with_hook(move |_, qid, capsule| {
        let connect = capsule.sqe.opcode == 0x7f && capsule.sqe.fctype() == 1;
        if connect && qid > 0 {
            connecting.fetch_add(1, Ordering::SeqCst);
            // The target answers no Connect before three have arrived.
            until("other connections arrive", || connecting.load(Ordering::SeqCst) >= 3);
        }
        Ok(if is_away.load(Ordering::SeqCst) { Handled::Close } else { Handled::No })
    });
    let disk = disk(&[&peer], &usual());
    // Open all three queues before the path reconnects.
    away.store(true, Ordering::SeqCst);
    peer.cut();
    until("the disk waits", || disk.state() == DiskState::Waiting);
    let mut users: Vec<_> = (0..3).map(|_| User::new(&disk)).collect();
    away.store(false, Ordering::SeqCst);
    for user in &mut users {
        assert_eq!(user.write(0), Ok(()));
    }
}

/// The ANA log page reports a path as optimized, but commands on it fail with ANA Transition.
/// Operations wait no longer than for a path that the log page reports as unusable.
#[test]
fn an_answer_that_contradicts_the_ana_log_extends_no_timeout() {
    let peer = Peer::with_hook(|connection, qid, capsule| {
        if qid > 0 && capsule.sqe.opcode != 0x7f {
            connection.respond(capsule.cid(), Status::ANA_TRANSITION, 0)?;
            return Ok(Handled::Yes);
        }
        Ok(Handled::No)
    });
    let fast_io_fail_timeout = Some(Duration::from_millis(500));
    let disk = disk(&[&peer], &DiskOptions { fast_io_fail_timeout, ..usual() });
    assert_eq!(User::new(&disk).write(0), Err(BlockError::Disconnected));
}

/// A target accepts controllers but refuses their I/O queues. Operations time out as without a
/// controller, and the host pauses between its attempts.
#[test]
fn a_target_that_refuses_queues_extends_no_timeout() {
    let controllers = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&controllers);
    let peer = Peer::with_hook(move |_, qid, capsule| {
        if capsule.sqe.opcode == 0x7f && capsule.sqe.fctype() == 1 {
            if qid > 0 {
                return Ok(Handled::Close);
            }
            counter.fetch_add(1, Ordering::SeqCst);
        }
        Ok(Handled::No)
    });
    let options = DiskOptions {
        fast_io_fail_timeout: Some(Duration::from_millis(500)),
        ctrl_loss_timeout: Some(Duration::from_secs(3)),
        reconnect_delay: Duration::from_millis(300),
        ..usual()
    };
    let disk = disk(&[&peer], &options);
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Err(BlockError::Disconnected));
    until("the disk is given up", || disk.state() == DiskState::Dead);
    let count = controllers.load(Ordering::SeqCst);
    assert!((3..20).contains(&count), "{count} controllers");
}

/// After a reboot of the target's machine, acknowledged writes without a flush may be lost: one
/// flush fails.
#[test]
fn one_flush_fails_after_a_reboot_of_the_target() {
    let boot = |byte| ControllerOrigin { place: [byte; 16], boot: [byte; 16] };
    let stage = Stage::new(AnaState::OPTIMIZED);
    stage.origin.lock().unwrap().replace(boot(1));
    let peer = target(&stage);
    let disk = disk(&[&peer], &usual());
    let losses = Arc::new(AtomicUsize::new(0));
    let heard = Arc::clone(&losses);
    let _watch = disk.changes().watch(move |change| {
        heard.fetch_add(usize::from(change == Change::Loss), Ordering::SeqCst);
    });
    let mut user = User::new(&disk);
    let restart = |byte, user: &mut User| {
        let before = disk.paths()[0].reconnects;
        stage.origin.lock().unwrap().replace(boot(byte));
        peer.cut();
        until("the disk is connected again", || {
            assert!(user.turn(Duration::ZERO).is_empty());
            disk.paths()[0].reconnects > before
        });
    };
    assert_eq!((user.write(0), user.flush()), (Ok(()), Ok(())));
    restart(2, &mut user);
    assert_eq!(user.flush(), Ok(()), "the flush fails although no write was unflushed");
    assert_eq!(user.write(0), Ok(()));
    restart(2, &mut user);
    assert_eq!(user.flush(), Ok(()), "a flush on the same boot succeeds");
    assert_eq!(user.write(0), Ok(()));
    assert_eq!(losses.load(Ordering::SeqCst), 0);
    restart(3, &mut user);
    assert_eq!(losses.load(Ordering::SeqCst), 1, "the record of the loss is missing");
    assert_eq!(user.flush(), Err(BlockError::WriteFailed));
    assert_eq!(user.flush(), Ok(()));
}

/// A path may lead to another target process later, which reports another process name.
#[test]
fn a_new_target_process_is_reported_before_the_path_is_used() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let origin = ControllerOrigin { place: [1; 16], boot: [1; 16] };
    stage.origin.lock().unwrap().replace(origin);
    stage.process.store(1, Ordering::SeqCst);
    let peer = target(&stage);
    let disk = disk(&[&peer], &usual());
    let told = Arc::new(AtomicUsize::new(0));
    let heard = Arc::clone(&told);
    let _watch = disk.changes().watch(move |change| {
        heard.fetch_add(usize::from(change == Change::Contents), Ordering::SeqCst);
    });
    let mut user = User::new(&disk);
    // The last two processes do not report their name.
    for (process, expected) in [(1, 0), (2, 1), (2, 1), (0, 2), (0, 3)] {
        let before = disk.paths()[0].reconnects;
        stage.process.store(process, Ordering::SeqCst);
        peer.cut();
        until("the disk is connected again", || {
            assert!(user.turn(Duration::ZERO).is_empty());
            disk.paths()[0].reconnects > before
        });
        assert_eq!(told.load(Ordering::SeqCst), expected, "process {process}");
    }
}

/// A process dies before a flush, and then the target's machine reboots. The flush of the process's
/// successor fails.
#[test]
fn a_successor_fails_the_flush_of_a_dead_process() {
    let boot = |byte| ControllerOrigin { place: [byte; 16], boot: [byte; 16] };
    let stage = Stage::new(AnaState::OPTIMIZED);
    stage.origin.lock().unwrap().replace(boot(1));
    let peer = target(&stage);
    let notes = Notes::default();
    let begin = || {
        let before = notes.0.lock().unwrap().0.clone();
        Disk::succeed(&urls(&[&peer]), &impatient(None), before, notes.clone()).expect("connected")
    };
    let first = begin();
    let mut user = User::new(&first);
    assert_eq!(user.write(0), Ok(()));
    stage.origin.lock().unwrap().replace(boot(2));
    peer.cut();
    until("the disk is connected again", || {
        assert!(user.turn(Duration::ZERO).is_empty());
        first.paths()[0].reconnects == 1
    });
    drop((user, first));
    let second = begin();
    let mut user = User::new(&second);
    assert_eq!(user.flush(), Err(BlockError::WriteFailed));
    assert_eq!((user.write(0), user.flush()), (Ok(()), Ok(())));
    let marks =
        || notes.0.lock().unwrap().0.controllers.iter().filter(|it| it.name.is_none()).count();
    until("the record is removed", || marks() == 0);
}

/// If a host process dies before its user can know of a loss, its successor reports the loss.
#[test]
fn a_successor_repeats_an_undelivered_flush_failure() {
    let boot = |byte| ControllerOrigin { place: [byte; 16], boot: [byte; 16] };
    let stage = Stage::new(AnaState::OPTIMIZED);
    stage.origin.lock().unwrap().replace(boot(1));
    let peer = target(&stage);
    let notes = Notes::default();
    let begin = |before: Predecessor| {
        Disk::succeed(&urls(&[&peer]), &impatient(None), before, notes.clone()).expect("connected")
    };
    let marks = |of: &Predecessor| of.controllers.iter().filter(|it| it.name.is_none()).count();
    let first = begin(Predecessor::default());
    let mut user = User::new(&first);
    assert_eq!(user.write(0), Ok(()));
    stage.origin.lock().unwrap().replace(boot(2));
    peer.cut();
    until("the disk is connected again", || {
        assert!(user.turn(Duration::ZERO).is_empty());
        first.paths()[0].reconnects == 1
    });
    // Another client abandons its flush. This does not count as a report to the users.
    let mut other = User::new(&first);
    assert_eq!(other.write(1), Ok(()));
    stage.silent.store(true, Ordering::SeqCst);
    other.queue.submit(Op::flush(5));
    assert!(other.turn(Duration::from_millis(100)).is_empty());
    other.queue.abandon(&mut |token| token == 5);
    stage.silent.store(false, Ordering::SeqCst);
    peer.cut();
    assert_eq!(other.one(), Ok(()));
    assert_eq!(user.flush(), Err(BlockError::WriteFailed));
    // The user has received the completion, but may not have processed it.
    std::thread::sleep(Duration::from_millis(300));
    let before = notes.read();
    assert!(marks(&before) > 0, "the record is removed before the user polled again");
    drop((other, user, first));
    let second = begin(before);
    let mut user = User::new(&second);
    assert_eq!(user.flush(), Err(BlockError::WriteFailed));
    assert!(user.turn(Duration::ZERO).is_empty());
    until("the record is removed", || marks(&notes.read()) == 0);
    assert_eq!(user.flush(), Ok(()));
}
