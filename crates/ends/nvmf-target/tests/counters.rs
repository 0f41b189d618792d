//! The target's counters match the commands that the hosts sent.

mod rig;

use farblock_backends::fault::{Fault, Rule};
use farblock_backends::mem::Mem;
use farblock_block::{BlockError, Command, Namespace};
use farblock_host::{Controller, Disk, Options};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_target::{IoCounts, Stats, Target};
use rig::{BLOCK, NQN, User, any, options, serve, until, url};
use std::sync::Arc;

const HOST: &str = "nqn.2014-08.org.example:tester";
/// Writes to these blocks fail with the error NoSpace.
const FULL: std::ops::Range<u64> = 0..8;

fn target() -> Target {
    let disk = Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"));
    let rule = Rule::new(BlockError::NoSpace).command(Command::Write).blocks(FULL);
    serve(Arc::new(Fault::new(disk, vec![rule], 1)), &[any()])
}

fn connect(target: &Target) -> Disk {
    Disk::connect(&[url(target.addresses()[0])], &options(EngineKind::Auto)).expect("connected")
}

fn timed(counts: &IoCounts) -> (u64, u64) {
    let sum = |counts: &[u64]| counts.iter().sum();
    (sum(&counts.read_latency.counts), sum(&counts.write_latency.counts))
}

/// Returns the counters of the target, subsystem, namespace, host and cores, which must be equal.
fn views(stats: &Stats) -> [IoCounts; 5] {
    let mut cores = IoCounts::default();
    stats.cores.iter().for_each(|core| cores += &core.io);
    let (subsystem, host) = (&stats.subsystems[0], &stats.hosts[0]);
    assert_eq!((subsystem.nqn.as_str(), host.nqn.as_str()), (NQN, HOST));
    [stats.total, cores, subsystem.io, subsystem.namespaces[0].1, host.io]
}

#[test]
fn every_view_of_the_counters_counts_each_command_once() {
    let target = target();
    let control = target.control();
    let disk = connect(&target);
    let mut user = User::new(&disk, EngineKind::Auto);
    for lba in 0..10 {
        user.read(lba, 2, lba);
        assert_eq!(user.one().result, Ok(()));
        user.write(8 + lba, 1, 7, lba);
        assert_eq!(user.one().result, Ok(()));
    }
    user.write(0, 1, 7, 0);
    assert_eq!(user.one().result, Err(BlockError::NoSpace));
    let before = control.stats();
    for counts in views(&before) {
        assert_eq!((counts.reads, counts.writes), (10, 10));
        assert_eq!((counts.read_bytes, counts.written_bytes), (20 * 512, 10 * 512));
        // Capacity Exceeded is a generic status.
        assert_eq!((counts.errors.generic, counts.errors.media), (1, 0));
        assert_eq!((counts.storage_errors, counts.media_errors), (1, 0));
        assert_eq!(timed(&counts), (0, 0), "latencies are measured without a request");
    }
    assert!(before.hosts[0].controllers > 0 && before.hosts[0].io_queues > 0);
    let served: usize = before.cores.iter().map(|core| core.connections).sum();
    assert_eq!(served, before.connections);
    control.measure_latency(true);
    until("a core measures latencies", || {
        user.read(0, 1, 0);
        assert_eq!(user.one().result, Ok(()));
        timed(&control.stats().total).0 > 0
    });
    user.write(9, 1, 7, 0);
    assert_eq!(user.one().result, Ok(()));
    let after = control.stats();
    for counts in views(&after) {
        assert_eq!(timed(&counts).1, 1);
        assert!(counts.write_latency.sum_ns > 0 && counts.reads > 10);
    }
    drop(user);
    drop(disk);
    until("the host is disconnected", || control.stats().hosts[0].controllers == 0);
    assert_eq!(control.stats().total, after.total, "the total lacks a disconnected host");
    let removal = control.remove_namespace(NQN, NamespaceId(1)).expect("the namespace exists");
    removal.wait(std::time::Duration::from_secs(60)).expect("no command is in flight");
    let last = control.stats();
    assert!(last.subsystems[0].namespaces.is_empty());
    assert_eq!(last.subsystems[0].io, after.subsystems[0].io);
    assert_eq!(last.total, after.total);
    target.stop().expect("the target stops");
}

#[test]
fn accepted_and_refused_connections_are_counted() {
    let target = target();
    let (control, address) = (target.control(), target.addresses()[0].to_string());
    let before = control.stats().admissions;
    assert_eq!((before.accepted, before.refused.values().sum::<u64>()), (0, 0));
    let wrong = Controller::connect(&address, "nqn.2026-11.org.farblock:no", &Options::default());
    assert!(wrong.is_err());
    let disk = connect(&target);
    control.set_allow_any_host(NQN, false).expect("the subsystem exists");
    until("the disk has no live path", || rig::live_paths(&disk) == 0);
    let refused = |reason| control.stats().admissions.refused[reason];
    until("the host is refused", || refused("host_not_allowed") > 0);
    let after = control.stats().admissions;
    assert_eq!(after.refused["no_subsystem"], 1);
    assert!(after.accepted > 2, "{after:?}");
    assert_eq!(disk.geometry().block_size as usize, BLOCK);
    drop(disk);
    target.stop().expect("the target stops");
}

/// Each core reports its processor time: much when it is busy, and almost none when it is idle.
#[test]
#[cfg(target_os = "linux")]
fn each_core_reports_its_processor_time() {
    let target = target();
    let times = || {
        let cores = target.control().stats().cores;
        cores.iter().map(|core| core.processor_time).collect::<Option<Vec<_>>>()
    };
    // Wait: the thread of a core may have started so recently that Linux reports no time yet.
    until("Linux reports the time of every core", || times().is_some());
    let time = || times().expect("the time of every core").into_iter().sum::<std::time::Duration>();
    let disk = connect(&target);
    let mut user = User::new(&disk, EngineKind::Auto);
    let before = time();
    until("a core has used time", || {
        user.read(0, 1, 0);
        assert_eq!(user.one().result, Ok(()));
        time() > before
    });
    drop(user);
    drop(disk);
    target.stop().expect("the target stops");
}
