//! After a warm-up, queues do not allocate per operation.

mod peer;

use farblock_block::conformance::Driver;
use farblock_block::{Namespace, Op};
use farblock_host::disk::Policy;
use farblock_host::{Controller, Disk, DiskOptions, Options};
use farblock_reactor::{Buffer, EngineKind};
use farblock_testkit::{Counting, allocations_here};
use peer::{Peer, SUBSYSTEM, Script, digests, engines, options};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: usize = 16;
const TOTAL: u64 = 300;

/// Runs operations of every size until one whole run allocates nothing.
fn settle(namespace: &Arc<dyn Namespace>, engine: EngineKind) {
    let mut driver = Driver::with(namespace, engine);
    // The sizes cover in-capsule data that are copied, in-capsule data that are not, one command,
    // and several commands.
    for blocks in [1u32, 16, 128, 600] {
        let bytes = blocks as usize * 512;
        let read = |buffer, at| Op::read(at % 100, blocks, buffer, at);
        let write = |buffer, at| Op::write(at % 100, blocks, buffer, at);
        let mut settles = |make: &dyn Fn(Buffer, u64) -> Op| {
            // A rare timing can still grow a list of the queue, so try several runs.
            (0..20).any(|_| driver.keep_busy(make, DEPTH, bytes, TOTAL, &allocations_here) == 0)
        };
        assert!(settles(&read), "{engine}, {blocks} blocks: reads still allocate");
        assert!(settles(&write), "{engine}, {blocks} blocks: writes still allocate");
    }
}

#[test]
fn a_controller_allocates_nothing_per_io() {
    let checked = Options { tcp: digests(true, true), ..options() };
    for engine in engines() {
        for options in [options(), checked.clone()] {
            let peer = Peer::new(Script::default());
            let controller = Controller::connect(&peer.address(), SUBSYSTEM, &options).unwrap();
            let namespace: Arc<dyn Namespace> = Arc::new(controller.namespace(1).unwrap());
            settle(&namespace, engine);
        }
    }
}

#[test]
fn a_disk_allocates_nothing_per_io() {
    for engine in engines() {
        for policy in [Policy::Numa, Policy::RoundRobin, Policy::QueueDepth] {
            let peers = [1, 2].map(|cntlid| Peer::new(Script { cntlid, ..Script::default() }));
            let url = |peer: &Peer| format!("nvme+tcp://{}/{SUBSYSTEM}", peer.address());
            let urls = [&peers[0], &peers[1]].map(|peer| url(peer).parse().unwrap());
            // The test must not lose a connection, even on a busy machine.
            let path_timeout = Some(std::time::Duration::from_secs(30));
            let connection = Options { path_timeout, ..options() };
            let options = DiskOptions { connection, policy, ..DiskOptions::default() };
            let disk: Arc<dyn Namespace> = Arc::new(Disk::connect(&urls, &options).unwrap());
            settle(&disk, engine);
        }
    }
}
