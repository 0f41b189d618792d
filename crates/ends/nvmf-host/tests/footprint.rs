//! Besides their queues, all disks of a process together use one thread and one event loop. After
//! all disks have closed, no thread is left.

#![cfg(target_os = "linux")]

mod peer;
mod stage;

use farblock_block::Namespace;
use farblock_host::Disk;
use farblock_host::disk::PathState;
use farblock_reactor::{Config, Reactor};
use farblock_wire::log::AnaState;
use peer::{Peer, SUBSYSTEM};
use stage::*;
use std::fs;

/// Returns the names of the library's threads in this process.
fn threads() -> Vec<String> {
    let all = fs::read_dir("/proc/self/task").expect("threads of this process");
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).ok();
    // A thread that has exited has no name.
    let names = all.flatten().filter_map(name).map(|name| name.trim_end().to_owned());
    names.filter(|name| name.starts_with("farblock-")).collect()
}

fn rings() -> usize {
    let all = fs::read_dir("/proc/self/fd").expect("descriptors of this process");
    let targets = all.flatten().filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("io_uring")).count()
}

#[test]
fn disks_share_one_thread_and_one_loop() {
    let stages: [_; 2] = std::array::from_fn(|_| Stage::new(AnaState::OPTIMIZED));
    let peers = stages.each_ref().map(target);
    let reactor = Reactor::new(&Config::default()).expect("an engine");
    let task = reactor.add_task();
    let own = rings();
    let mut paths = urls(&[&peers[0], &peers[1]]);
    // No target listens at this address.
    paths.push(format!("nvme+tcp://127.0.0.1:1/{SUBSYSTEM}").parse().expect("a URL"));
    let connect = |_| Disk::connect(&paths, &usual()).expect("connected");
    let disks: Vec<_> = (0..3).map(connect).collect();
    let open = |disk: &Disk| disk.open(&reactor, task).expect("a queue");
    let queues: Vec<_> = disks.iter().flat_map(|disk| [open(disk), open(disk)]).collect();
    let live = |disk: &Disk| disk.paths().iter().filter(|it| it.state == PathState::Live).count();
    until("every path is live", || disks.iter().all(|disk| live(disk) == 2));
    // Helper threads exit soon. An unreachable path uses no thread.
    until("all disks use one thread", || threads() == ["farblock-hosts"]);
    assert!(rings() <= own + 1, "each disk has its own loop");
    peers.iter().for_each(Peer::cut);
    let is_back = |disk: &Disk| disk.paths()[..2].iter().all(|path| path.reconnects > 0);
    until("every path is connected again", || disks.iter().all(is_back));
    until("all disks still use one thread", || threads() == ["farblock-hosts"]);
    assert!(rings() <= own + 1, "the loops of lost connections remain");
    drop(queues);
    drop(disks);
    until("no thread is left", || threads().is_empty());
    assert_eq!(rings(), own);
}
