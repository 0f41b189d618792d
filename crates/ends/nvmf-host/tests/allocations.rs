//! Nothing is allocated per operation, once the queue has warmed up.

mod peer;

use farblock_block::conformance::Driver;
use farblock_block::{Namespace, Op};
use farblock_host::disk::Policy;
use farblock_host::{Controller, Disk, DiskOptions, Options};
use farblock_reactor::{Buffer, EngineKind};
use peer::{Peer, SUBSYSTEM, Script, engines, options};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

/// Counts what each thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more, and nobody asks for it.
    let _ = ALLOCATIONS.try_with(|counter| counter.set(counter.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: usize = 16;
const TOTAL: u64 = 300;

/// Operations of every size, until none allocates.
fn settle(namespace: &Arc<dyn Namespace>, engine: EngineKind) {
    let mut driver = Driver::with(namespace, engine);
    // In the capsule and copied, in the capsule, one command, and several.
    for blocks in [1u32, 16, 128, 600] {
        let bytes = blocks as usize * 512;
        let read = |buffer, at| Op::read(at % 100, blocks, buffer, at);
        let write = |buffer, at| Op::write(at % 100, blocks, buffer, at);
        let mut settles = |make: &dyn Fn(Buffer, u64) -> Op| {
            // Lists grow as long as the timing brings something new, and then no more.
            (0..20).any(|_| driver.keep_busy(make, DEPTH, bytes, TOTAL, &|| ALLOCATIONS.get()) == 0)
        };
        assert!(settles(&read), "{engine}, {blocks} blocks: reads go on allocating");
        assert!(settles(&write), "{engine}, {blocks} blocks: writes go on allocating");
    }
}

#[test]
fn steady_state_allocates_nothing() {
    let digests = Options { header_digest: true, data_digest: true, ..options() };
    for engine in engines() {
        for options in [options(), digests.clone()] {
            let peer = Peer::new(Script::default());
            let controller = Controller::connect(&peer.address(), SUBSYSTEM, &options).unwrap();
            let namespace: Arc<dyn Namespace> = Arc::new(controller.namespace(1).unwrap());
            settle(&namespace, engine);
        }
    }
}

#[test]
fn a_disk_allocates_nothing_either() {
    for engine in engines() {
        for policy in [Policy::Numa, Policy::RoundRobin, Policy::QueueDepth] {
            let peers = [Peer::new(Script::default()), Peer::new(Script::default())];
            let url = |peer: &Peer| format!("nvme+tcp://{}/{SUBSYSTEM}", peer.address());
            let urls = [&peers[0], &peers[1]].map(|peer| url(peer).parse().unwrap());
            // Nothing is to be lost here, however busy the machine is.
            let path_timeout = Some(std::time::Duration::from_secs(30));
            let connection = Options { path_timeout, ..options() };
            let options = DiskOptions { connection, policy, ..DiskOptions::default() };
            let disk: Arc<dyn Namespace> = Arc::new(Disk::connect(&urls, &options).unwrap());
            settle(&disk, engine);
        }
    }
}
