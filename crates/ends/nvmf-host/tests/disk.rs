//! A disk over scripted targets: access states (ANA), changed namespaces, and timeouts.

mod peer;
mod stage;

use farblock_block::blocking::Blocking;
use farblock_block::{BlockError, Change, Namespace, Op};
use farblock_host::disk::{DiskOptions, DiskState};
use farblock_host::{Controller, Disk, Url};
use farblock_reactor::Buffer;
use farblock_wire::log::AnaState;
use peer::{Connection, Handled, Peer, SUBSYSTEM, Script, options};
use stage::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn ana_states_select_the_path() {
    let stages = [Stage::new(AnaState::NON_OPTIMIZED), Stage::new(AnaState::OPTIMIZED)];
    let peers = [target(&stages[0]), target(&stages[1])];
    let disk = disk(&[&peers[0], &peers[1]], &usual());
    until("both paths are live", || disk.state() == DiskState::Live);
    let mut user = User::new(&disk);
    until("the optimized path is used", || user.goes_to(&stages[1]));
    let before = stages[0].ios();
    (0..5).for_each(|lba| assert_eq!(user.write(lba), Ok(())));
    assert_eq!(stages[0].ios(), before, "the nonoptimized path is used");
    // A command's status reports the change before the ANA event. The disk sends the operation to
    // the other path at once.
    stages[1].set_access(AnaState::INACCESSIBLE);
    assert_eq!(user.write(0), Ok(()));
    assert!(stages[0].ios() > before);
    let inaccessible = Some(AnaState::INACCESSIBLE);
    until("the states are known", || {
        access(&disk) == [Some(AnaState::NON_OPTIMIZED), inaccessible]
    });
    let before = stages[1].ios();
    (0..5).for_each(|lba| assert_eq!(user.write(lba), Ok(())));
    assert_eq!(stages[1].ios(), before);
    // The path becomes optimized again. Only the ANA event reports this.
    stages[1].set_access(AnaState::OPTIMIZED);
    until("the access states are known", || access(&disk)[1] == Some(AnaState::OPTIMIZED));
    // The queue was busy with the other path and must process the event first.
    until("the optimized path is used again", || user.goes_to(&stages[1]));
    let before = stages[0].ios();
    (0..5).for_each(|lba| assert_eq!(user.write(lba), Ok(())));
    assert_eq!(stages[0].ios(), before, "the optimized path is not used again");
    // The first path becomes optimized, too.
    stages[0].set_access(AnaState::OPTIMIZED);
    until("the access states are known", || access(&disk)[0] == Some(AnaState::OPTIMIZED));
    until("the optimized path is used", || user.goes_to(&stages[0]));
}

#[test]
fn operations_wait_during_an_ana_transition() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let disk = disk(&[&peer], &usual());
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    stage.set_access(AnaState::CHANGE);
    user.queue.submit(Op::write(0, 1, Buffer::new(512), 1));
    assert!(user.turn(Duration::from_millis(500)).is_empty());
    stage.set_access(AnaState::NON_OPTIMIZED);
    assert_eq!(user.one(), Ok(()));
    // A permanent loss fails operations at once.
    stage.set_access(AnaState::PERSISTENT_LOSS);
    assert_eq!(user.write(0), Err(BlockError::Disconnected));
}

#[test]
fn fast_io_fail_timeout_limits_the_wait_for_an_inaccessible_path() {
    let stage = Stage::new(AnaState::INACCESSIBLE);
    let peer = target(&stage);
    let fast_io_fail_timeout = Some(Duration::from_millis(200));
    let disk = disk(&[&peer], &DiskOptions { fast_io_fail_timeout, ..usual() });
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Err(BlockError::Disconnected));
    stage.set_access(AnaState::OPTIMIZED);
    until("the access states are known", || access(&disk) == [Some(AnaState::OPTIMIZED)]);
    assert_eq!(user.write(0), Ok(()));
}

#[test]
fn denied_timeout_limits_the_wait_for_an_inaccessible_path() {
    let stage = Stage::new(AnaState::INACCESSIBLE);
    let peer = target(&stage);
    let denied_timeout = Some(Duration::from_millis(200));
    let disk = disk(&[&peer], &DiskOptions { denied_timeout, ..usual() });
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Err(BlockError::Disconnected));
    stage.set_access(AnaState::OPTIMIZED);
    until("the access states are known", || access(&disk) == [Some(AnaState::OPTIMIZED)]);
    assert_eq!(user.write(0), Ok(()));
}

#[test]
fn operations_that_wait_for_a_path_can_be_abandoned() {
    let stage = Stage::new(AnaState::INACCESSIBLE);
    let peer = target(&stage);
    let disk = disk(&[&peer], &usual());
    let mut user = User::new(&disk);
    (1..4).for_each(|token| user.queue.submit(Op::write(0, 1, Buffer::new(512), token)));
    user.queue.abandon(&mut |token| token != 2);
    let done = user.turn(Duration::from_secs(60));
    let aborted = Err(BlockError::Aborted);
    let ends: Vec<_> = done.iter().map(|done| (done.token, done.result)).collect();
    assert_eq!(ends, [(1, aborted), (3, aborted)]);
    assert!(done.iter().all(|done| done.buffer.as_ref().is_some_and(|data| data.len() == 512)));
    let before = stage.ios();
    stage.set_access(AnaState::OPTIMIZED);
    assert_eq!(user.one(), Ok(()));
    assert_eq!((stage.ios() - before, user.queue.in_flight()), (1, 0), "one write remains");
}

#[test]
fn a_disk_follows_the_size_of_its_namespace() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let disk = disk(&[&peer], &usual());
    let mut user = User::new(&disk);
    let blocks = Script::<Connection>::default().blocks;
    assert_eq!(disk.geometry().blocks, blocks);
    let told = Arc::new(Mutex::new(Vec::new()));
    let (tell, seen) = (Arc::clone(&told), disk.clone());
    let _watch = disk.changes().watch(move |change| {
        if change == Change::Geometry {
            tell.lock().unwrap().push(seen.geometry().blocks);
        }
    });
    assert_eq!(user.write(blocks - 1), Ok(()));
    stage.resize(100);
    until("the new size is known", || disk.geometry().blocks == 100);
    assert_eq!(user.write(100), Err(BlockError::OutOfRange));
    assert_eq!(user.write(99), Ok(()));
    stage.resize(blocks);
    until("the new size is known", || disk.geometry().blocks == blocks);
    assert_eq!(user.write(blocks - 1), Ok(()));
    until("the size is reported", || *told.lock().unwrap() == [100, blocks]);
}

/// By default, `connect` makes one attempt. With `connect_wait` it waits for the target.
#[test]
fn connect_wait_waits_for_a_target_that_starts_later() {
    let refusals = AtomicUsize::new(0);
    let peer = Peer::with_hook(move |_, qid, capsule| {
        let connect = capsule.sqe.opcode == 0x7f && capsule.sqe.fctype() == 1;
        let refused = connect && qid == 0 && refusals.fetch_add(1, Ordering::SeqCst) < 3;
        Ok(if refused { Handled::Close } else { Handled::No })
    });
    let connect =
        |connect_wait| Disk::connect(&urls(&[&peer]), &DiskOptions { connect_wait, ..usual() });
    let refused = connect(Duration::ZERO).expect_err("no target listens");
    assert!(refused.to_string().contains("cannot connect"), "{refused}");
    assert_eq!(connect(Duration::from_secs(60)).expect("in time").state(), DiskState::Live);
}

/// `connect` waits for the target no longer than `connect_wait`.
#[test]
fn connect_wait_limits_the_wait_for_a_target() {
    // The system never assigns this port as a free one.
    let url: Url = format!("nvme+tcp://127.0.0.1:1/{SUBSYSTEM}?ns=1").parse().unwrap();
    let options = DiskOptions { connect_wait: Duration::from_millis(300), ..usual() };
    let start = Instant::now();
    let refused = Disk::connect(&[url], &options).expect_err("no target listens");
    assert!(start.elapsed() >= options.connect_wait);
    assert!(refused.to_string().contains("cannot connect"), "{refused}");
}

/// The target replaces the namespace by one with the same number and sizes, and reports this by an
/// event. The disk sends no operation to the new namespace, and waits until the old one is back.
#[test]
fn a_disk_sends_nothing_to_a_replaced_namespace() {
    for count in [1, 2] {
        let stages: Vec<_> = (0..count).map(|_| Stage::new(AnaState::OPTIMIZED)).collect();
        let peers: Vec<Peer> = stages.iter().map(target).collect();
        let disk = disk(&peers.iter().collect::<Vec<_>>(), &quick());
        until("every path is live", || disk.state() == DiskState::Live);
        let mut user = User::new(&disk);
        assert_eq!(user.write(0), Ok(()));
        stages.iter().for_each(|stage| stage.swap(2));
        for path in 0..count {
            until("the error states the reason", || error(&disk, path).contains("UUID 0202"));
        }
        assert_eq!(disk.state(), DiskState::Waiting);
        let ios = || stages.iter().map(|stage| stage.ios()).sum::<usize>();
        let before = ios();
        user.queue.submit(Op::write(0, 1, Buffer::new(512), 1));
        assert_eq!(user.turn(Duration::from_millis(200)).first().map(|done| done.result), None);
        assert_eq!(ios(), before, "the new namespace received the write");
        stages.iter().for_each(|stage| stage.uuid.store(1, Ordering::SeqCst));
        assert_eq!(user.one(), Ok(()));
        until("every path is live", || disk.state() == DiskState::Live);
    }
}

/// The target replaces the namespace while the host reads its properties, and reports this by an
/// event. The host must read them again.
#[test]
fn a_namespace_replaced_during_its_lookup_is_looked_up_again() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    stage.swaps_at_a_look.store(true, Ordering::SeqCst);
    let notes = Notes::default();
    let disk = Disk::succeed(&urls(&[&peer]), &quick(), notes.read(), notes.clone());
    drop(disk.expect("connected"));
    let known = notes.read().namespace.expect("a recorded namespace");
    assert_eq!(known.uuid, Some([2; 16]), "the UUID is not the new namespace's");
}

/// After a reconnect, one path leads to another namespace. The disk uses only the second path until
/// the first leads to the right namespace again.
#[test]
fn a_path_to_another_namespace_is_unused_until_it_leads_back() {
    let stages = [Stage::new(AnaState::OPTIMIZED), Stage::new(AnaState::OPTIMIZED)];
    let peers = [target(&stages[0]), target(&stages[1])];
    let disk = disk(&[&peers[0], &peers[1]], &quick());
    until("both paths are live", || disk.state() == DiskState::Live);
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    stages[0].uuid.store(9, Ordering::SeqCst);
    let before = stages[0].ios();
    peers[0].cut();
    until("the error states the reason", || error(&disk, 0).contains("UUID 0909"));
    assert_eq!(user.write(0), Ok(()));
    assert_eq!((stages[0].ios(), disk.state()), (before, DiskState::Degraded));
    stages[0].uuid.store(1, Ordering::SeqCst);
    until("both paths are live", || disk.state() == DiskState::Live);
}

#[test]
fn several_paths_require_a_namespace_with_an_identifier() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    stage.uuid.store(0, Ordering::SeqCst);
    let peers = [target(&stage), target(&stage)];
    let refused = Disk::connect(&urls(&[&peers[0], &peers[1]]), &quick()).expect_err("no UUID");
    assert!(refused.to_string().contains("give one address"), "{refused}");
    assert_eq!(disk(&[&peers[0]], &quick()).state(), DiskState::Live);
}

#[test]
fn only_a_namespace_with_the_requested_uuid_is_used() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let options = |uuid| DiskOptions { uuid: Some([uuid; 16]), ..quick() };
    assert_eq!(disk(&[&peer], &options(1)).state(), DiskState::Live);
    let refused =
        Disk::connect(&urls(&[&peer]), &options(2)).expect_err("the namespace has another UUID");
    assert!(refused.to_string().contains("but 0202"), "{refused}");
    stage.uuid.store(0, Ordering::SeqCst);
    let refused =
        Disk::connect(&urls(&[&peer]), &options(1)).expect_err("the namespace has no UUID");
    assert!(refused.to_string().contains("no UUID"), "{refused}");
}

/// A process that continues the disk of a dead process accepts only the same namespace.
#[test]
fn a_successor_accepts_only_the_namespace_of_its_predecessor() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let notes = Notes::default();
    let begin = || Disk::succeed(&urls(&[&peer]), &quick(), notes.read(), notes.clone());
    drop(begin().expect("connected"));
    assert!(notes.read().namespace.is_some_and(|known| known.uuid == Some([1; 16])));
    stage.uuid.store(3, Ordering::SeqCst);
    let refused = begin().expect_err("the target has another namespace");
    assert!(refused.to_string().contains("UUID 0303"), "{refused}");
    stage.uuid.store(1, Ordering::SeqCst);
    assert_eq!(begin().expect("the target is back").state(), DiskState::Live);
}

/// The disk does not use a controller until the record has stored the controller.
#[test]
fn a_controller_that_cannot_be_recorded_is_not_used() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let notes = Notes::default();
    let begin = || Disk::succeed(&urls(&[&peer]), &quick(), notes.read(), notes.clone());
    notes.fill_up(true);
    let refused = begin().expect_err("the folder accepts no record");
    assert!(refused.to_string().contains("no space left"), "{refused}");
    notes.fill_up(false);
    let disk = begin().expect("connected");
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    notes.fill_up(true);
    let before = stage.ios();
    peer.cut();
    until("the error states the reason", || error(&disk, 0).contains("no space left"));
    user.queue.submit(Op::write(0, 1, Buffer::new(512), 1));
    assert!(user.turn(Duration::from_millis(200)).is_empty());
    assert_eq!((stage.ios(), disk.state()), (before, DiskState::Waiting));
    notes.fill_up(false);
    assert_eq!(user.one(), Ok(()));
}

/// The disk follows changes of the target's volatile cache. If its users once saw no volatile
/// cache, they do not flush, so the disk makes every write durable (FUA).
#[test]
fn writes_become_durable_if_the_users_saw_no_volatile_cache() {
    let stage = Stage::new(AnaState::OPTIMIZED);
    let peer = target(&stage);
    let notes = Notes::default();
    let begin = || Disk::succeed(&urls(&[&peer]), &quick(), notes.read(), notes.clone());
    let disk = begin().expect("connected");
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    assert_eq!(stage.durable.load(Ordering::SeqCst), 0);
    for there in [false, true] {
        stage.volatile_cache.store(there, Ordering::SeqCst);
        peer.cut();
        until("the cache state is known", || disk.geometry().volatile_cache == there);
        let before = stage.durable.load(Ordering::SeqCst);
        assert_eq!(user.write(0), Ok(()));
        let durable = stage.durable.load(Ordering::SeqCst) > before;
        assert_eq!(durable, there, "FUA");
    }
    drop((user, disk));
    let disk = begin().expect("connected");
    let mut user = User::new(&disk);
    let before = stage.durable.load(Ordering::SeqCst);
    assert_eq!(user.write(0), Ok(()));
    assert_eq!(
        stage.durable.load(Ordering::SeqCst),
        before + 1,
        "a later process does not add FUA"
    );
}

/// The disk gives up a target that always breaks the protocol, and reports the reason to its users.
#[test]
fn a_disk_gives_up_a_target_that_always_breaks_the_protocol() {
    let peer = Peer::with_hook(|connection, qid, capsule| match (qid, capsule.sqe.opcode) {
        // A read on an I/O queue.
        (1.., 0x02) => connection.succeed(capsule.cid()).map(|()| Handled::Yes),
        _ => Ok(Handled::No),
    });
    let disk = disk(&[&peer], &DiskOptions { breaches_max: Some(3), ..quick() });
    let mut user = User::new(&disk);
    assert_eq!(user.write(0), Ok(()));
    user.queue.submit(Op::read(0, 1, Buffer::new(512), 1));
    assert_eq!(user.one(), Err(BlockError::Disconnected));
    assert_eq!(disk.state(), DiskState::Dead);
    let (count, how) = disk.paths()[0].breaches.clone().expect("a count of breaches");
    assert!(count >= 3 && how.contains("broke the protocol"), "{count}: {how}");
    let said = |namespace: &dyn Namespace| namespace.trouble().expect("a reason");
    let breach = "the controller broke the protocol: it reported success for a read";
    assert!(said(&disk).contains(breach), "{}", said(&disk));
    let controller = Controller::connect(&peer.address(), SUBSYSTEM, &options()).unwrap();
    let namespace = controller.namespace(1).expect("namespace 1 exists");
    let mut one = Blocking::new(&namespace).expect("a queue");
    assert_eq!(one.read(0, &mut [0; 512]), Err(BlockError::Disconnected));
    assert!(said(&namespace).contains(breach), "{}", said(&namespace));
}
