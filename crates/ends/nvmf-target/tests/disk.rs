//! A disk survives the loss of its connections to a farblock target. A proxy between them cuts,
//! stalls and restores the network.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::conformance::Suite;
use farblock_block::{Backed, BlockError};
use farblock_host::disk::{
    ControllerLife, ControllerOrigin, CrossControllerReset, DiskOptions, DiskState, KnownNamespace,
    PathState, Policy, Predecessor, Record,
};
use farblock_host::{Controller, Disk, HostId, Options};
use farblock_reactor::EngineKind;
use rig::gate::Gate;
use rig::proxy::Proxy;
use rig::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn mem() -> Arc<Mem> {
    Arc::new(Mem::new(BLOCK as u32, 16 << 20).expect("a size"))
}

fn connect(proxies: &[&Proxy], options: &DiskOptions) -> Disk {
    let urls: Vec<_> = proxies.iter().map(|proxy| url(proxy.address)).collect();
    Disk::connect(&urls, options).expect("connected")
}

#[test]
fn a_disk_conforms_to_the_namespace_contract() {
    for engine in engines() {
        for paths in [1, 2] {
            Suite::new(engine).run(&|block_size| {
                let backend = Arc::new(Mem::new(block_size, 64 << 20).expect("a size"));
                let target = serve_as(backend, "mem", &vec![any(); paths], engine);
                let urls: Vec<_> = target.addresses().iter().map(|&at| url(at)).collect();
                let policy = Policy::RoundRobin;
                let options = DiskOptions { policy, ..options(engine) };
                let disk = Disk::connect(&urls, &options).expect("connected");
                Arc::new(Backed { namespace: disk, backing: target })
            });
        }
    }
}

#[test]
fn operations_wait_for_a_path_and_complete_once() {
    for engine in engines() {
        let target = serve(mem(), &[any()]);
        let proxy = Proxy::new(target.addresses()[0]);
        let disk = connect(&[&proxy], &options(engine));
        let mut user = User::new(&disk, engine);
        user.write(0, 8, 1, 1);
        assert_eq!(user.one().result, Ok(()));
        proxy.down();
        until("the loss is noticed", || live_paths(&disk) == 0);
        user.write(4, 1, 2, 2);
        user.read(0, 4, 3);
        user.queue.submit(farblock_block::Op::flush(4));
        assert!(
            user.turn(Duration::from_millis(300)).is_empty(),
            "an operation completed although no target was reachable"
        );
        assert_eq!((disk.state(), user.queue.in_flight()), (DiskState::Waiting, 3));
        proxy.up();
        let mut done = Vec::new();
        while done.len() < 3 {
            let more = user.turn(Duration::from_secs(60));
            assert!(!more.is_empty(), "no operation completes in time");
            done.extend(more);
        }
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
        assert_eq!((user.value(3), user.value(4), user.value(5)), (1, 2, 1));
        let path = disk.paths().remove(0);
        assert_eq!((path.state, path.reconnects), (PathState::Live, 1));
        assert!(path.error.is_some() && path.controller.is_some());
    }
}

/// A write may be stuck in the target's storage when its connection is lost. The host must not
/// repeat the write before the storage has completed it. Otherwise it could undo later writes.
#[test]
fn a_write_is_not_repeated_while_its_first_attempt_executes() {
    for paths in [1, 2] {
        let gate = Arc::new(Gate::new(mem()));
        let target = serve(gate.clone(), &[any(), any()]);
        let proxies: Vec<_> =
            target.addresses()[..paths].iter().map(|&address| Proxy::new(address)).collect();
        let disk = connect(&proxies.iter().collect::<Vec<_>>(), &options(EngineKind::Auto));
        until("every path is live", || live_paths(&disk) == paths);
        let mut user = User::new(&disk, EngineKind::Auto);
        assert_eq!(user.value(0), 0);
        gate.keep(1);
        user.write(0, 1, 1, 1);
        while gate.kept() == 0 {
            assert!(user.turn(Duration::from_millis(5)).is_empty());
        }
        proxies[0].cut();
        let early = user.turn(Duration::from_millis(700));
        assert!(early.is_empty(), "a write was repeated while the first attempt runs");
        // Reads need not wait for the write, and continue on the other path.
        if paths == 2 {
            user.read(7, 1, 9);
            assert_eq!(user.one().token, 9);
        }
        gate.open_up();
        assert_eq!(user.one().token, 1);
        user.write(0, 1, 2, 2);
        assert_eq!(user.one().result, Ok(()));
        assert_eq!(user.value(0), 2);
    }
}

/// A write that is still in transit does not execute after its retry.
#[test]
fn a_delayed_write_does_not_execute_after_its_retry() {
    let target = serve(mem(), &[any()]);
    let proxy = Proxy::new(target.addresses()[0]);
    let disk = connect(&[&proxy], &options(EngineKind::Auto));
    let mut user = User::new(&disk, EngineKind::Auto);
    user.write(0, 1, 1, 1);
    assert_eq!(user.one().result, Ok(()));
    proxy.stall();
    user.write(0, 1, 2, 2);
    assert!(user.turn(Duration::from_millis(50)).is_empty());
    // The write stays in transit while the disk reconnects.
    proxy.detain();
    proxy.resume();
    assert_eq!(user.one().result, Ok(()));
    user.write(0, 1, 3, 3);
    assert_eq!(user.one().result, Ok(()));
    proxy.up();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(user.value(0), 3, "the late first attempt changed the block");
}

/// The journal of a disk. It keeps the list of controllers that the disk recorded last.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<ControllerLife>>>);

impl Record for Journal {
    fn namespace(&self, _: &KnownNamespace) -> Result<(), String> {
        Ok(())
    }

    fn controllers(&self, lives: &[ControllerLife]) -> Result<(), String> {
        *self.0.lock().unwrap() = lives.to_vec();
        Ok(())
    }
}

/// A delayed write of a host process that has ended does not execute. The successor process knows
/// the controller from the journal, and resets it.
#[test]
fn a_delayed_write_of_a_dead_process_does_not_execute() {
    let target = serve(mem(), &[any()]);
    let proxy = Proxy::new(target.addresses()[0]);
    let urls = [url(proxy.address)];
    let options = options(EngineKind::Auto);
    let journal = Journal::default();
    let begin = || {
        let controllers = journal.0.lock().unwrap().clone();
        let before = Predecessor { controllers, namespace: None };
        Disk::succeed(&urls, &options, before, journal.clone()).expect("connected")
    };
    let first = begin();
    let mut user = User::new(&first, EngineKind::Auto);
    user.write(0, 1, 1, 1);
    assert_eq!(user.one().result, Ok(()));
    let recorded = journal.0.lock().unwrap().clone();
    assert!(matches!(&recorded[..], [life] if life.url == urls[0] && life.name.is_some()));
    proxy.stall();
    user.write(0, 1, 2, 2);
    assert!(user.turn(Duration::from_millis(50)).is_empty());
    // The write stays in transit. The target keeps the controller, since it does not see the
    // connection close.
    proxy.refuse();
    proxy.detain();
    proxy.resume();
    drop((user, first));
    assert_eq!(*journal.0.lock().unwrap(), recorded);
    proxy.admit();
    let second = begin();
    let mut user = User::new(&second, EngineKind::Auto);
    user.write(0, 1, 3, 3);
    assert_eq!(user.one().result, Ok(()));
    let lives = journal.0.lock().unwrap().clone();
    assert!(matches!(&lives[..], [life] if *life != recorded[0]), "{lives:?}");
    proxy.up();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(user.value(0), 3, "a dead process's late write changed the block");
}

/// A successor process need not wait if a new target process runs at the recorded origin, as after
/// a restart of the target.
#[test]
fn a_successor_does_not_wait_after_a_restart_of_the_target() {
    let backend = mem();
    let target = serve(backend.clone(), &[any()]);
    let proxy = Proxy::new(target.addresses()[0]);
    let urls = [url(proxy.address)];
    let stranger = CrossControllerReset { icid: 1, ciu: 1, cirn: 0x1234_5678_9abc_def0 };
    // Under Wine, connecting takes longer when other tests run in parallel, so allow more time.
    let quiesce_time = Duration::from_secs(if cfg!(windows) { 10 } else { 2 });
    let life = |name, origin| ControllerLife { url: urls[0].clone(), name, quiesce_time, origin };
    let origin = Controller::connect_url(&urls[0], &options(EngineKind::Auto).connection);
    let origin = origin.expect("connected").info().origin;
    let other = Some(ControllerOrigin { place: [7; 16], boot: [7; 16] });
    // On other systems, the target cannot identify the machine's boot and network, so the host does
    // not know whether the old process has ended.
    let unknown = !cfg!(any(target_os = "linux", windows));
    for (name, origin, waits) in
        [(Some(stranger), origin, unknown), (Some(stranger), other, true), (None, origin, true)]
    {
        let options = options(EngineKind::Auto);
        let begin = Instant::now();
        let before = Predecessor { controllers: vec![life(name, origin)], namespace: None };
        let disk = Disk::succeed(&urls, &options, before, Journal::default()).expect("connected");
        assert_eq!(disk.state(), DiskState::Live);
        let mut user = User::new(&disk, EngineKind::Auto);
        assert_eq!(user.value(0), 0);
        // The successor waits out the quiesce time of a controller that it cannot reset.
        user.write(1, 1, 1, 1);
        assert_eq!(user.one().result, Ok(()));
        assert_eq!(begin.elapsed() >= quiesce_time, waits, "{name:?} {origin:?}");
    }
}

#[test]
fn operations_fail_after_fast_io_fail_timeout_and_the_disk_still_reconnects() {
    for engine in engines() {
        let target = serve(mem(), &[any()]);
        let proxy = Proxy::new(target.addresses()[0]);
        let limit = Duration::from_millis(300);
        let options = DiskOptions { fast_io_fail_timeout: Some(limit), ..options(engine) };
        let disk = connect(&[&proxy], &options);
        let mut user = User::new(&disk, engine);
        assert_eq!(user.value(0), 0);
        let lost = Instant::now();
        proxy.down();
        until("the loss is noticed", || live_paths(&disk) == 0);
        user.write(0, 1, 1, 1);
        let done = user.one();
        assert_eq!(done.result, Err(BlockError::Disconnected));
        assert_eq!(done.buffer.map(|buffer| buffer.len()), Some(BLOCK));
        assert!(lost.elapsed() >= limit, "{:?}", lost.elapsed());
        assert_eq!(disk.state(), DiskState::Waiting, "the disk was given up too early");
        // Later operations fail at once. Use the fastest of several attempts, because a busy
        // machine delays some.
        let quickest = (0..20).map(|token| {
            let start = Instant::now();
            user.read(0, 1, token);
            assert_eq!(user.one().result, Err(BlockError::Disconnected));
            start.elapsed()
        });
        assert!(quickest.min() < Some(limit));
        proxy.up();
        until("the disk is back", || live_paths(&disk) == 1);
        assert_eq!(user.value(0), 0);
    }
}

#[test]
fn a_disk_is_dead_after_ctrl_loss_timeout() {
    for engine in engines() {
        let target = serve(mem(), &[any()]);
        let proxy = Proxy::new(target.addresses()[0]);
        let options = DiskOptions {
            fast_io_fail_timeout: Some(Duration::from_millis(300)),
            ctrl_loss_timeout: Some(Duration::from_millis(1500)),
            ..options(engine)
        };
        let disk = connect(&[&proxy], &options);
        let mut user = User::new(&disk, engine);
        assert_eq!(user.value(0), 0);
        proxy.down();
        until("the disk is given up", || disk.state() == DiskState::Dead);
        user.read(0, 1, 3);
        assert_eq!(user.one().result, Err(BlockError::Disconnected));
        proxy.up();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(disk.state(), DiskState::Dead, "a disk that was given up came back");
        assert_eq!(user.queue.in_flight(), 0);
    }
}

/// Without a `ctrl_loss_timeout`, no operation fails.
#[test]
fn no_operation_fails_without_a_ctrl_loss_timeout() {
    let target = serve(mem(), &[any()]);
    let proxy = Proxy::new(target.addresses()[0]);
    let options = DiskOptions { ctrl_loss_timeout: None, ..options(EngineKind::Auto) };
    let disk = connect(&[&proxy], &options);
    let mut user = User::new(&disk, EngineKind::Auto);
    for round in 0..5 {
        proxy.down();
        user.write(round, 1, 7, round);
        assert!(user.turn(Duration::from_millis(100)).is_empty());
        proxy.up();
        assert_eq!(user.one().result, Ok(()));
    }
    assert!(disk.paths()[0].reconnects >= 5);
}

#[test]
fn operations_continue_after_a_restart_of_the_target() {
    for engine in engines() {
        let backend = mem();
        let target = serve(backend.clone(), &[any()]);
        let address = target.addresses()[0];
        let disk = Disk::connect(&[url(address)], &options(engine)).expect("connected");
        let mut user = User::new(&disk, engine);
        for round in 1..4 {
            user.write(0, 64, round, 1);
            assert_eq!(user.one().result, Ok(()));
        }
        target.stop().expect("a clean stop");
        user.write(0, 64, 9, 2);
        assert!(user.turn(Duration::from_millis(200)).is_empty());
        let target = serve(backend, &[address]);
        assert_eq!(user.one().result, Ok(()));
        assert_eq!(user.value(63), 9);
        drop((user, disk));
        target.stop().expect("a clean stop");
    }
}

#[test]
fn another_disk_at_the_same_address_is_refused() {
    let target = serve_as(mem(), "one", &[any()], EngineKind::Auto);
    let address = target.addresses()[0];
    let fast_io_fail_timeout = Some(Duration::from_millis(300));
    let options = DiskOptions { fast_io_fail_timeout, ..options(EngineKind::Auto) };
    let disk = Disk::connect(&[url(address)], &options).expect("connected");
    let mut user = User::new(&disk, EngineKind::Auto);
    assert_eq!(user.value(0), 0);
    drop(target);
    let target = serve_as(mem(), "two", &[address], EngineKind::Auto);
    let another = "is not the namespace of this disk: it has the UUID";
    until("the error states the reason", || {
        disk.paths()[0].error.clone().is_some_and(|it| it.contains(another))
    });
    user.write(0, 1, 1, 1);
    assert_eq!(user.one().result, Err(BlockError::Disconnected));
    assert_eq!(disk.state(), DiskState::Waiting, "the disk gave up because another disk answered");
    // The first connect also refuses paths to different disks.
    let other = serve_as(mem(), "one", &[any()], EngineKind::Auto);
    let urls = [url(address), url(other.addresses()[0])];
    let error = Disk::connect(&urls, &options).expect_err("two different disks");
    assert!(error.to_string().contains("UUID"), "{error}");
    drop(target);
}

#[test]
fn connect_reports_a_missing_target_after_the_first_attempt() {
    // Bind the port without listening, so that no other process can take it.
    let taken = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let taken = taken.expect("a socket");
    taken.bind(&any().into()).expect("a port");
    let address = taken.local_addr().ok().and_then(|it| it.as_socket()).expect("bound");
    // The connect reports its first failed attempt. The next attempt would follow ten minutes
    // later.
    let start = Instant::now();
    let error =
        Disk::connect(&[url(address)], &options(EngineKind::Auto)).expect_err("no target listens");
    assert!(error.to_string().contains("nothing listens"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

/// Cuts or silences one of two paths under load. Returns the longest latency.
fn failover(engine: EngineKind, silent: bool) -> Duration {
    let target = serve(mem(), &[any(), any()]);
    let proxies: Vec<_> = target.addresses().iter().map(|&address| Proxy::new(address)).collect();
    let disk = connect(&[&proxies[0], &proxies[1]], &options(engine));
    until("both paths are live", || live_paths(&disk) == 2);
    let mut user = User::new(&disk, engine);
    let mut longest = Duration::ZERO;
    let mut write = |lba| {
        let begun = Instant::now();
        user.write(lba, 4, 5, 1);
        assert_eq!(user.one().result, Ok(()));
        longest = longest.max(begun.elapsed());
    };
    (0..100).for_each(|turn| write(turn % 16));
    if silent {
        proxies[0].stall()
    } else {
        proxies[0].down()
    }
    until("the loss is noticed", || {
        write(0);
        disk.state() == DiskState::Degraded
    });
    // Continue while the host tries to reconnect the path.
    let lost = Instant::now();
    while lost.elapsed() < Duration::from_secs(2) {
        write(1);
    }
    assert_eq!(disk.state(), DiskState::Degraded);
    proxies[0].up();
    proxies[0].cut();
    until("the disk is back", || live_paths(&disk) == 2);
    // The host prefers the first path, so operations return to it.
    proxies[1].down();
    write(0);
    println!("{engine}, {}: {longest:?}", if silent { "silence" } else { "a cut" });
    longest
}

/// Uses the fastest of several runs, because a busy machine delays some.
#[test]
fn failover_takes_less_than_a_second() {
    for engine in engines() {
        for silent in [false, true] {
            let mut took = (0..10).map(|_| failover(engine, silent));
            let is_quick = took.any(|longest| longest < Duration::from_secs(1));
            assert!(is_quick, "{engine}, silent: {silent}");
        }
    }
}

/// Waits until `count` operations have completed, and checks that no more have.
fn wait_for(user: &mut User, count: usize) {
    let mut done = 0;
    while done < count {
        let more = user.turn(WAIT_LIMIT).len();
        assert!(more > 0, "no operation completes in time");
        done += more;
    }
    assert_eq!(done, count);
}

#[test]
fn path_policies_select_the_paths() {
    for (policy, both) in
        [(Policy::Numa, false), (Policy::RoundRobin, true), (Policy::QueueDepth, true)]
    {
        let target = serve(mem(), &[any(), any()]);
        let proxies: Vec<_> =
            target.addresses().iter().map(|&address| Proxy::new(address)).collect();
        // Delay the network, so that the queue depth of the paths has an effect.
        proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(5)));
        let mut options = DiskOptions { policy, ..options(EngineKind::Auto) };
        // A stalled path must not count as lost before the test has checked it.
        options.connection.path_timeout = Some(WAIT_LIMIT);
        let disk = connect(&[&proxies[0], &proxies[1]], &options);
        let mut user = User::new(&disk, EngineKind::Auto);
        until("both paths are live", || live_paths(&disk) == 2);
        // A write of this many blocks has more bytes than a Connect command with its data.
        let blocks = 64;
        let wanted = if both { &proxies[..] } else { &proxies[..1] };
        until("all queues are open", || {
            (0..2).for_each(|token| user.write(0, blocks, 1, token));
            wait_for(&mut user, 2);
            wanted.iter().all(|proxy| proxy.carried() > blocks as usize * BLOCK)
        });
        // If one path is stalled, only operations on the other path complete.
        proxies[1].stall();
        for token in 0..16 {
            user.write(token, 1, 1, token);
        }
        let expected = if both { 8 } else { 16 };
        wait_for(&mut user, expected);
        assert!(user.turn(Duration::from_millis(200)).is_empty(), "{policy}");
        proxies[1].resume();
        wait_for(&mut user, 16 - expected);
    }
}

#[test]
fn a_disk_queue_without_a_controller_queue_fails_until_one_is_free() {
    let target = serve(mem(), &[any()]);
    let usual = options(EngineKind::Auto);
    let connection = Options { queues: 1, ..usual.connection.clone() };
    let options = DiskOptions { connection, ..usual };
    let disk = Disk::connect(&[url(target.addresses()[0])], &options).expect("connected");
    let mut first = User::new(&disk, EngineKind::Auto);
    assert_eq!(first.value(0), 0);
    let mut second = User::new(&disk, EngineKind::Auto);
    second.read(0, 1, 1);
    assert_eq!(second.one().result, Err(BlockError::NoResources));
    drop(first);
    // Retry until the target has freed a queue.
    until("a controller queue is free", || {
        second.read(0, 1, 2);
        second.one().result == Ok(())
    });
}

#[test]
fn loss_and_return_of_a_path_are_reported() {
    let target = serve(mem(), &[any()]);
    let proxy = Proxy::new(target.addresses()[0]);
    let disk = connect(&[&proxy], &options(EngineKind::Auto));
    let told = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&told);
    let watch = disk.changes().watch(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let before = disk.changes().generation();
    proxy.cut();
    until("a loss and a return are reported", || told.load(Ordering::SeqCst) >= 2);
    assert!(disk.changes().generation() >= before + 2);
    drop(watch);
    until("the disk is back", || live_paths(&disk) == 1);
    let count = told.load(Ordering::SeqCst);
    proxy.cut();
    until("the disk is back", || disk.paths()[0].reconnects == 2);
    assert_eq!(told.load(Ordering::SeqCst), count, "a dropped watch is notified");
}

/// A queue keeps its disk alive. Dropping the last queue does not block the queue's event loop.
#[test]
fn a_queue_keeps_its_disk_alive() {
    let target = serve(mem(), &[any()]);
    // Use the fastest of several runs, because a busy machine delays some.
    let mut took = (0..10).map(|_| {
        let proxy = Proxy::new(target.addresses()[0]);
        let disk = connect(&[&proxy], &options(EngineKind::Auto));
        let mut user = User::new(&disk, EngineKind::Auto);
        drop(disk);
        assert_eq!(user.value(0), 0);
        proxy.cut();
        assert_eq!(user.value(0), 0);
        proxy.stall();
        user.read(0, 1, 1);
        let start = Instant::now();
        drop(user);
        start.elapsed()
    });
    assert!(took.any(|it| it < Duration::from_millis(200)), "the drop of the queue blocks");
}

/// A new host process without records must also wait for its predecessor's operations.
#[test]
fn a_new_controller_waits_for_the_writes_of_the_previous_one() {
    let gate = Arc::new(Gate::new(mem()));
    let target = serve(gate.clone(), &[any()]);
    let proxy = Proxy::new(target.addresses()[0]);
    let options = options(EngineKind::Auto);
    let connect = |options: &Options| {
        farblock_host::Controller::connect_url(&url(target.addresses()[0]), options)
    };
    let lost = farblock_host::Controller::connect_url(&url(proxy.address), &options.connection);
    let lost = lost.expect("connected").namespace(1).expect("a namespace");
    let mut user = User::new(&lost, EngineKind::Auto);
    assert_eq!(user.value(0), 0);
    gate.keep(1);
    user.write(0, 1, 1, 1);
    while gate.kept() == 0 {
        assert!(user.turn(Duration::from_millis(5)).is_empty());
    }
    // While the old controller is connected, the host may connect further paths.
    drop(connect(&options.connection).expect("a second path"));
    proxy.cut();
    assert_eq!(user.one().result, Err(BlockError::Disconnected));
    until("the connections are closed", || target.connections() <= 1);
    // The new controller may connect, but its commands wait. The commands of another host do not
    // wait.
    let anew = connect(&options.connection).expect("connected").namespace(1).expect("a namespace");
    let mut user = User::new(&anew, EngineKind::Auto);
    user.write(0, 1, 2, 1);
    user.read(0, 1, 2);
    let other = Options { hostid: Some(HostId([9; 16])), ..options.connection.clone() };
    let other = connect(&other).expect("another host connects").namespace(1).expect("a namespace");
    assert_eq!(User::new(&other, EngineKind::Auto).value(0), 0);
    assert!(user.turn(Duration::from_millis(100)).is_empty(), "the write did not wait");
    gate.open_up();
    let mut done = Vec::new();
    while done.len() < 2 {
        done.extend(user.turn(Duration::from_secs(60)));
    }
    assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
    assert_eq!(user.value(0), 2, "the earlier write changed the block");
}

/// A write that the disk reported as failed ends before any later write executes.
#[test]
fn a_failed_write_does_not_execute_after_later_writes() {
    let gate = Arc::new(Gate::new(mem()));
    let target = serve(gate.clone(), &[any()]);
    let proxy = Proxy::new(target.addresses()[0]);
    let fast_io_fail_timeout = Some(Duration::from_millis(50));
    let options = DiskOptions { fast_io_fail_timeout, ..options(EngineKind::Auto) };
    let disk = connect(&[&proxy], &options);
    let mut user = User::new(&disk, EngineKind::Auto);
    assert_eq!(user.value(0), 0);
    gate.keep(1);
    user.write(0, 1, 1, 1);
    while gate.kept() == 0 {
        assert!(user.turn(Duration::from_millis(5)).is_empty());
    }
    // Keep the host disconnected until the first write fails. Otherwise its retry would wait for
    // the held attempt.
    proxy.down();
    assert_eq!(user.one().result, Err(BlockError::Disconnected));
    proxy.up();
    // The second write waits or fails while the first is in progress. Then it succeeds.
    user.write(0, 1, 2, 2);
    let mut early = user.turn(Duration::from_millis(700));
    assert!(
        early.iter().all(|done| done.result.is_err()),
        "the second write succeeded before the first one ended"
    );
    gate.open_up();
    until("the write completes", || {
        let done = early.pop().unwrap_or_else(|| user.one());
        if let Err(error) = done.result {
            assert_eq!(error, BlockError::Disconnected);
            user.write(0, 1, 2, 2);
        }
        done.result.is_ok()
    });
    assert_eq!(user.value(0), 2);
}
